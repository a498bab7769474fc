"""`specdec acceptance`, on a target small enough to know all of: pytest tests/test_acceptance.py"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import bytes_run, check_lines, few
from tolerances import PROBABILITIES

from specdec import cli
from specdec.drafters import Autoregressive, Drafter
from specdec.engine import Placement
from specdec.measure import recording
from specdec.measure.alphas import Accepted, lines, summarize
from specdec.measure.opinions import LENIENCE
from specdec.measure.recording import NGrams, generate
from specdec.plan import Plan
from specdec.sampling import Greedy, MinLength, Processed, Sampling
from specdec.schedules import Fixed
from specdec.testing import TableTarget, sequence_law
from specdec.types import Draft, History, Params, SamplingRule
from specdec.verifiers import Coupled

TARGET = TableTarget(5, classes=2)
WIDE, NARROW = TableTarget(7, classes=2), TableTarget(3, classes=2)  # drafts of other vocabularies
N = 4


def plan(draft: TableTarget, rule: Greedy | Sampling, min_length: int = 0) -> Plan:
    target_rule = Processed(rule, (MinLength(min_length),)) if min_length else rule
    drafter = Autoregressive(draft, rule)
    return Plan(TARGET, drafter, Coupled(), Fixed(2), target_rule, max_length=N)


GREEDY = plan(NARROW, Greedy())
SAMPLED = plan(WIDE, Sampling(0.7, top_k=4), min_length=2)


def params_of(plan: Plan) -> Params:
    models = enumerate(plan.models().items())
    return plan.params({role: model.init(jax.random.key(seed)) for seed, (role, model) in models})


def batches(count: int, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs [2] and [3], by turns, which are of different classes."""
    inputs = np.zeros([-(-count // size) * size, 3], np.int32)  # padded
    inputs[:count, 0] = 2 + np.arange(count) % 2
    index = np.where(inputs[:, 0], np.arange(len(inputs)), -1).astype(np.int32)
    return [(index[at : at + size], inputs[at : at + size]) for at in range(0, len(inputs), size)]


@functools.cache
def tables_of(plan: Plan) -> list[np.ndarray]:
    """[N, ..] p and q at each position after everything that can be fed, and what a lenient target
    goes by."""
    params = params_of(plan)
    logits, draft = params["target"]["logits"], params["draft"]["logits"][..., : TARGET.vocab_size]
    padding = TARGET.vocab_size - draft.shape[-1]
    draft = jnp.pad(draft, [(0, 0)] * 3 + [(0, padding)], constant_values=-jnp.inf)
    rules = (plan.sampling, plan.drafter.sampling)
    rules = (*rules, Sampling() if plan.sampling.greedy else plan.sampling)
    return [
        np.stack([_at(i, rule, table) for i in range(N)])
        for rule, table in zip(rules, (logits, draft, logits), strict=True)
    ]


def _at(position: int, rule: SamplingRule, table: jax.Array) -> np.ndarray:
    """The probabilities of output token `position`; none of the processors here reads tokens."""
    rows = table.reshape(-1, table.shape[-1])
    text = jnp.zeros([len(rows), N], jnp.int32), jnp.full(len(rows), position + 1)
    probs = rule.probabilities(rows, history=History(*text, (1,)))
    return np.asarray(probs).reshape(table.shape)


def distributions(plan: Plan, given: int, text) -> list[np.ndarray]:
    """The rows [T, V] of these for the tokens of one text."""
    fed = np.array([0, *text[:-1]])

    def rows(table: np.ndarray) -> np.ndarray:
        size = table.shape[2]
        # JAX reads an id beyond a table as its last one.
        last = np.minimum(fed, size - 1)
        return table[np.arange(len(fed)), given % 2, np.cumsum(fed) % size, last]

    return [rows(table) for table in tables_of(plan)]


def expected(plan: Plan, p, q, likely) -> list[float]:
    """[L] the sums of one text by the paper's formula, or by the paper's rule for argmax."""
    if not plan.sampling.greedy:
        return [np.minimum(p / lenience, q).sum() for lenience in LENIENCE]
    drafted = q.argmax(axis=1)
    chosen = likely[np.arange(len(q)), drafted]
    lenient = [np.sum(chosen >= lenience * likely.max(axis=1)) for lenience in LENIENCE[1:]]
    return [np.sum(drafted == p.argmax(axis=1)), *lenient]


@functools.cache
def texts_of(plan: Plan) -> list:
    """60 texts in batches of 8."""
    target = params_of(plan)["target"]
    return list(generate(plan, target, batches(60, 8), seed=3, tokens=10**6))


@pytest.fixture(scope="module", params=[GREEDY, SAMPLED], ids=["greedy", "sampled"])
def measured(request):
    """A plan, its texts, and the records of all drafters."""
    one = request.param
    texts = texts_of(one)
    return one, texts, list(recording.measure(one, params_of(one), texts, tables=True))


def rows(texts) -> list[tuple[int, list[int]]]:
    """(input, output tokens) of each text."""
    return [
        (int(batch.inputs[row, 0]), batch.tokens[row, 1 : 1 + batch.length[row]].tolist())
        for batch in texts
        for row in np.flatnonzero(batch.length)
    ]


def test_each_text_by_the_formulas(measured):
    one, texts, records = measured
    assert [record.index for record in records] == list(range(60))
    for (given, text), record in zip(rows(texts), records, strict=True):
        assert record.tokens == len(text) and (1 in text) == (text[-1] == 1)
        p, q, likely = distributions(one, given, text)
        np.testing.assert_allclose(
            record.accepted["model"], expected(one, p, q, likely), rtol=1e-5, atol=PROBABILITIES
        )
    assert len({record.tokens for record in records}) > 1


def test_a_text_is_not_in_the_tables_it_is_measured_by(measured):
    """Which are those of every other text."""
    one, texts, records = measured
    written = rows(texts)
    for number, (given, text) in enumerate(written):
        others = [[0, *other] for _, other in written[1 - number % 2 :: 2]]
        tables = NGrams(others, TARGET.vocab_size)
        p, _, likely = distributions(one, given, text)
        proposals = {
            "unigram": np.tile(tables.unigram, (len(text), 1)),
            "bigram": np.stack([tables.bigram(token) for token in [0, *text[:-1]]]),
        }
        for name, q in proposals.items():
            if one.sampling.greedy:
                q = np.eye(TARGET.vocab_size)[q.argmax(axis=1)]
            np.testing.assert_allclose(
                records[number].accepted[name],
                expected(one, p, q, likely),
                rtol=1e-5,
                atol=PROBABILITIES,
            )


def test_alpha_is_that_of_all_texts_the_target_can_write():
    """4,000 texts against the enumeration of all: alpha is the expected sum over the expected
    length. Within 4 standard errors, which is a false alarm once in 4,000 runs with other seeds."""
    one = plan(WIDE, Sampling(1.0))
    params = params_of(one)
    sums, lengths = np.zeros(len(LENIENCE)), 0.0
    for given in (2, 3):
        law = sequence_law(
            TARGET, params["target"], np.array([given]), sampling=one.sampling, max_length=N
        )
        for tokens, probability in zip(law.tokens, law.probs, strict=True):
            text = tokens[: 1 + np.argmax(tokens == 1)] if 1 in tokens else tokens
            p, q, likely = distributions(one, given, text)
            sums += probability * np.array(expected(one, p, q, likely))
            lengths += probability * len(text)
    texts = generate(one, params["target"], batches(4000, 4000), seed=0, tokens=10**6)
    summary = summarize(recording.measure(one, params, texts, tables=False))
    assert summary.texts == 4000 and list(summary.alphas) == ["model"]
    for alpha, exact in zip(summary.alphas["model"].values(), sums / lengths, strict=True):
        error = (alpha.high - alpha.low) / 2 / 1.96
        assert 0 < error < 0.004
        assert abs(alpha.value - exact) < 4 * error


@dataclasses.dataclass(frozen=True)
class Unsaid(Drafter):
    """A drafter that has a model inside, and does not say what it draws with."""

    own: Autoregressive

    def inner(self):
        return {"own": self.own}

    def init(self, params, context):
        return self.own.init(params, context)

    def propose(self, params, request, state):
        return self.own.propose(params, request, state)


@pytest.mark.parametrize("one", few([SAMPLED, GREEDY]), ids=["sampled", "greedy"])
def test_a_drafter_that_is_asked_token_by_token_says_what_it_says_at_once(one):
    params, texts = params_of(one), texts_of(one)
    asked = dataclasses.replace(one, drafter=Unsaid(one.drafter))
    both = [list(recording.measure(x, params, texts, tables=False)) for x in (one, asked)]
    for at_once, in_turn in zip(*both, strict=True):
        sums = (x.accepted["model"] for x in (at_once, in_turn))
        np.testing.assert_allclose(*sums, rtol=1e-5)
        assert at_once.proposes == in_turn.proposes == at_once.tokens
        assert list(in_turn.drafts) == ["own Autoregressive"]
        assert in_turn.drafts["own Autoregressive"] == at_once.drafts["Autoregressive"]


@dataclasses.dataclass(frozen=True)
class AfterZero(Drafter):
    """Proposes token 3 behind token 0, the start, and nothing else."""

    def propose(self, params, request, state):
        context, keys, want = request.context, request.keys, request.want
        last = jnp.take_along_axis(context.tokens, context.length[:, None] - 1, axis=1)[:, 0]
        tokens = jnp.full(keys.shape, 3, jnp.int32)
        return Draft(tokens, None, jnp.where(last == 0, want, 0)), state


@pytest.mark.parametrize("one", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_where_nothing_is_proposed_nothing_is_accepted(one):
    texts, params = texts_of(one), params_of(one)
    one = dataclasses.replace(one, drafter=AfterZero())
    records = list(recording.measure(one, params, texts, tables=False))
    with_model = dataclasses.replace(one, drafter=GREEDY.drafter)
    for (given, text), record in zip(rows(texts), records, strict=True):
        behind = np.array([0, *text[:-1]]) == 0
        p, _, likely = distributions(with_model, given, text)
        q = np.where(behind[:, None], np.eye(TARGET.vocab_size)[3], 0)
        if one.sampling.greedy:
            right = (p.argmax(axis=1) == 3) & behind
            assert record.accepted["model"][0] == right.sum()
        else:
            sums = [np.minimum(p / lenience, q).sum() for lenience in LENIENCE]
            np.testing.assert_allclose(record.accepted["model"], sums, rtol=1e-5)
        assert record.proposes == behind.sum()
        assert (record.inputs, record.output, record.drafts) == ([given], text, {})
    summary = summarize(records)
    assert 0 < summary.proposes < 1
    _, header, figures, last = lines(summary)
    assert header.split()[5:] == [x for one in LENIENCE[1:] for x in ("l", "=", f"{one:g}")]
    assert len(figures.split()) == 5 + 3 and last.startswith("drafts exist at")


def test_what_a_replay_needs_is_kept(measured):
    """min(1, q(y) / p(y)) of the text's own tokens, and the draft's favourites."""
    one, texts, records = measured
    for (given, text), record in zip(rows(texts), records, strict=True):
        p, q, _ = distributions(one, given, text)
        found = record.drafts["Autoregressive"]
        assert (record.inputs, record.output) == ([given], text)
        assert found["proposed"] == q.argmax(axis=1).tolist()
        if not one.sampling.greedy:
            at = np.arange(len(text)), text
            np.testing.assert_allclose(found["ratio"], q[at] / p[at], rtol=1e-4, atol=PROBABILITIES)
        assert ("ratio" in found) == (not one.sampling.greedy)


def test_which_texts_count_does_not_depend_on_the_batch_size():
    """As many whole texts as hold 50 tokens, and the same sums for each."""
    one, params = SAMPLED, params_of(SAMPLED)

    def records(size: int) -> list[Accepted]:
        texts = generate(one, params["target"], batches(60, size), seed=0, tokens=50)
        return list(recording.measure(one, params, texts, tables=True))

    alone, together = records(5), records(8)
    assert len(together) < 60
    assert sum(text.tokens for text in alone) >= 50 > sum(text.tokens for text in alone[:-1])
    for first, second in zip(alone, together, strict=True):
        assert first[:2] == second[:2]
        for name, sums in first.accepted.items():
            np.testing.assert_allclose(sums, second.accepted[name], rtol=1e-5)


def test_texts_that_were_measured_before_are_not_written_again():
    """Whichever those are, the others are what they would have been, and the last one is too."""
    one, params = SAMPLED, params_of(SAMPLED)

    def records(**options) -> list[Accepted]:
        texts = generate(one, params["target"], batches(60, 8), seed=0, **options)
        return list(recording.measure(one, params, texts, tables=False))

    whole = records(tokens=50)
    for done in (3, 8, len(whole)):
        before = whole[:done]
        left = 50 - sum(text.tokens for text in before)
        assert before + records(tokens=left, skip=[text.index for text in before]) == whole


def test_rows_with_a_new_text_are_refilled():
    """Not those that pad a batch, nor those of texts that were measured before."""
    live: list = []

    class Refilled:
        def outputs(self, params, given):
            for batch in given:
                live.append(batch.live.tolist())
                made = np.ones([4, N], int)
                yield SimpleNamespace(tokens=made, length=np.array([2, 3, 1, 4])), None

    given = plan(NARROW, Greedy()), params_of(GREEDY)["target"], batches(3, 4)
    how: Any = {"seed": 0, "tokens": 100, "refilled": Refilled()}
    (texts,) = generate(*given, **how, skip=[1])
    assert live == [[True, False, True, False]] and texts.length.tolist() == [2, 0, 1, 4]
    (texts,) = generate(*given, **how)
    assert live[1:] == [[True, True, True, False]]


def test_batches_are_written_when_they_are_asked_for():
    one, params = GREEDY, params_of(GREEDY)
    asked = []
    given = (asked.append(batch) or batch for batch in batches(60, 8))
    texts = generate(one, params["target"], given, seed=0, tokens=10**6)
    next(recording.measure(one, params, texts, tables=False))
    assert len(asked) == 1


def test_the_tables_by_hand():
    """Start token 0 and two texts, 2 3 2 1 and 2 1: six tokens, of three types."""
    tables = NGrams([[0, 2, 3, 2, 1], [0, 2, 1]], vocab_size=4)
    unigram = np.array([0 + 3 / 4, 2 + 3 / 4, 3 + 3 / 4, 1 + 3 / 4]) / 9
    np.testing.assert_allclose(tables.unigram, unigram)
    after_2 = (np.array([0, 2, 0, 1]) + 2 * unigram) / 5  # 3, 1 and 1: two types
    np.testing.assert_allclose(tables.bigram(2), after_2)
    np.testing.assert_allclose(tables.bigram(0), (np.array([0, 0, 2, 0]) + unigram) / 3)
    np.testing.assert_allclose(tables.bigram(1), unigram)  # which nothing follows
    for token in range(4):
        assert tables.bigram(token).sum() == pytest.approx(1)


def text(tokens: int, *accepted: float) -> Accepted:
    sums = {"model": list(accepted or [tokens] * len(LENIENCE))}
    return Accepted(0, tokens, sums, proposes=tokens)


def test_alpha_is_a_mean_over_tokens():
    summary = summarize([text(1, 1, 1, 1, 1), text(9, 0, 3, 6, 9)])
    assert (summary.texts, summary.tokens) == (2, 10)
    alphas = summary.alphas["model"]
    assert list(alphas) == list(LENIENCE)
    alphas = list(alphas.values())
    assert [alpha.value for alpha in alphas] == pytest.approx([0.1, 0.4, 0.7, 1.0])
    assert (alphas[0].low, alphas[0].high) == (0, 1)  # a quarter of the resamples has one twice
    assert (alphas[3].low, alphas[3].high) == (1, 1)


def test_the_interval_holds_the_mean_where_texts_are_easy_or_hard():
    """Tokens of a text share one rate, so a bootstrap over tokens would have a quarter of the
    width. Of 100 samples of 50 texts 95 % are expected to hold the mean, here 0.5."""
    draws = np.random.default_rng(0)
    held = 0
    for _ in range(100):
        rates = draws.integers(2, size=50)
        records = [text(16, *[16.0 * rate] * len(LENIENCE)) for rate in rates]
        alpha = summarize(records).alphas["model"][1.0]
        held += alpha.low <= 0.5 <= alpha.high
    assert 88 <= held <= 99


def test_no_text_is_an_error():
    with pytest.raises(ValueError, match="no text was written"):
        summarize([])


# The command.

LINES = ["one\teins", "two words\tzwei Wörter", "three\tdrei", "a\tein", "five\tfünf"]


@pytest.fixture(scope="module")
def specdec_acceptance(tmp_path_factory, cache):
    """Runs the command on texts and two models of bytes; returns its exit code."""
    more = "include 'sampling/temperature.gin'\nBATCH_SIZE = 2\n"
    path = bytes_run(tmp_path_factory.mktemp("run"), "acceptance", {"test": LINES}, more)
    given = [f"--gin_file={path}", f"--compilation_cache_dir={cache}"]
    return lambda *flags: cli.main(["acceptance", *given, *flags])


@pytest.mark.slow
def test_what_was_interrupted_goes_on(specdec_acceptance, tmp_path, capsys, monkeypatch):
    path, flags = tmp_path / "run.jsonl", [f"--output_file={tmp_path / 'run.jsonl'}", "--tokens=12"]
    assert specdec_acceptance(*flags) == 0
    whole, out = path.read_text(), capsys.readouterr().out
    lines = whole.splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:20])
    assert specdec_acceptance(*flags) == 0
    assert (path.read_text(), capsys.readouterr().out) == (whole, out)
    assert specdec_acceptance(*flags, "--gin.SEED=3") == 2
    assert "was begun with SEED = 0, and now it is 3; take" in capsys.readouterr().err
    monkeypatch.setattr(Placement, "read", lambda *_: pytest.fail("there is nothing left"))
    assert specdec_acceptance(*flags) == 0
    assert specdec_acceptance(*flags, "--tokens=1") == 0
    assert path.read_text() == lines[0]


@pytest.mark.ci
def test_the_command(specdec_acceptance, tmp_path, capsys):
    path = tmp_path / "run.alpha.jsonl"
    assert specdec_acceptance("--tables", f"--output_file={path}") == 0
    check_lines("acceptance", path)
    captured = capsys.readouterr()
    records = [Accepted(**json.loads(line)) for line in path.read_text().splitlines()]
    assert [record.index for record in records] == list(range(len(LINES)))
    summary = summarize(records)
    assert "\n".join(lines(summary)) + "\n" == captured.out
    assert f"end after {summary.tokens} of 10000 tokens" in captured.err
    report = json.loads(Path(f"{path}.summary.json").read_text())
    assert (report["texts"], report["tokens"]) == (len(LINES), summary.tokens)
    assert list(report["alphas"]) == ["model", "unigram", "bigram"]
    assert report["alphas"] == summary.record()["alphas"]
    assert (
        report["run"]["sampling"] == repr(Sampling()) and report["environment"]["backend"] == "cpu"
    )
    assert report["run"]["parameters"]["draft"] > 0
    assert "BATCH_SIZE = 2" in Path(f"{path}.gin").read_text()
    assert cli.main(["report", f"{path}.summary.json"]) == 0
    assert (
        f"| run | here |  | {summary.alphas['model'][1.0].value:.3f} [" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--tokens=0", "--tokens is 0"),
        ("--gin.DECODER_PREFIX='a'", "decoder_prefix is 'a'; leave it out"),
        ("--gin.DRAFTER=None", "the run has no drafter"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, monkeypatch, flag, message):
    monkeypatch.setattr(Placement, "read", lambda *_: pytest.fail("long work"))
    assert cli.main(["acceptance", "--gin_file=demo.gin", flag]) == 2
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("specdec: ")]
    assert message in line and captured.out == ""
