"""Processors through the loop: laws by enumeration, the target's own texts, and bugs that are seen:
pytest tests/sampling/test_processed.py"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import cells, few

from specdec import Plan, autoregressive_decode, decode, row_keys
from specdec.decoding import states
from specdec.drafters import Autoregressive, Blockwise, Hybrid, PromptLookup
from specdec.sampling import (
    ForcedEOS,
    ForcedTokens,
    FrequencyPenalty,
    Greedy,
    MinLength,
    NoBadWords,
    NoRepeatNGram,
    Opening,
    PresencePenalty,
    Processed,
    RepetitionPenalty,
    Sampling,
    SuppressTokens,
    SuppressTokensAtBegin,
)
from specdec.schedules import Confidence, Fixed
from specdec.testing import Bench, Law, check_everything_accepted, check_processor, compare
from specdec.types import History, LogitsProcessor, Params
from specdec.verifiers import (
    Block,
    Coupled,
    Distance,
    Ensemble,
    GreedyMatch,
    Lenient,
    MinimumBlock,
    SpeculativeCascade,
    SpeculativeSampling,
    TopBeta,
)

PROCESSORS = {
    "no repeat 1": NoRepeatNGram(1),
    "no repeat 2": NoRepeatNGram(2),
    "repetition": RepetitionPenalty(1.7),
    "frequency": FrequencyPenalty(0.8),
    "presence": PresencePenalty(1.0),
    "bad words": NoBadWords(((3, 2), (2, 2, 4), (5,))),
    "shortest": MinLength(2),
    "forced": ForcedTokens((3,), 1),
    "forced end": ForcedEOS(3),
    "suppressed": SuppressTokens((2,)),
    "not first": SuppressTokensAtBegin((2, 3)),
    "opening": Opening(((4, 2), (3,))),
}
ALL = (*PROCESSORS.values(),)[1:7] + (ForcedEOS(4), SuppressTokensAtBegin((2,)))
SETS = {name: (one,) for name, one in PROCESSORS.items()} | {"all": ALL}
BENCH = Bench.create(vocab_size=6, rows=20_000, max_length=4)
LENIENT = Lenient(0.1)
STOPPING = Confidence(0.3, buckets=(4,))


def bench_of(sampling, drafts=None, **parts):
    drafter = Autoregressive(BENCH.target, drafts or sampling)
    return BENCH._replace(drafter=drafter, **parts)


# Both temperatures, drafts that know of the processors and such that do not, and both verifiers.
@pytest.mark.parametrize(
    "name, temperature, knows, verifier",
    [
        *(
            pytest.param(
                *(name, 0.7, True, SpeculativeSampling()),
                marks=[pytest.mark.slow] * (name != "all"),
            )
            for name in SETS
        ),
        *(
            pytest.param(
                *(name, 1.0, False, Block()),
                marks=pytest.mark.ci if name == "all" else pytest.mark.slow,
            )
            for name in SETS
        ),
    ],
)
def test_speculation_keeps_the_law(name, temperature, knows, verifier):
    sampling = Processed(Sampling(temperature), SETS[name])
    bench = bench_of(sampling, None if knows else Sampling(temperature))
    result = bench.compare(bench.run(verifier, Fixed(3), sampling).tokens, sampling)
    assert result.passed, result
    assert result.degrees > 10, "there is a law to test"


def by_definition(params, sampling_of):
    """The law of outputs of 4 tokens, with what a function (text, logits) -> logits leaves."""
    table, found = np.asarray(params["logits"], np.float64)[4 % 3], {}

    def walk(text, prob):
        if len(text) == 5 or text[-1] == 1 and len(text) > 1:
            out = (*text[1:], *[0] * (5 - len(text)))
            found[out] = found.get(out, 0) + prob
            return
        weights = np.exp(sampling_of(text, table[sum(text) % 6, text[-1]].copy()))
        for token, share in enumerate(weights / weights.sum()):
            if share:
                walk((*text, token), prob * share)

    walk((0,), 1.0)
    return Law(np.array(list(found), np.int32), np.array(list(found.values())))


def test_the_law_is_the_definitions():
    """Without anything of the package: a penalty and a ban by hand."""

    def left(text, logits):
        for token in set(text):
            logits[token] *= 1.7 if logits[token] < 0 else 1 / 1.7
        for i in range(len(text) - 1):
            if text[i] == text[-1]:
                logits[text[i + 1]] = -np.inf
        return logits

    sampling = Processed(Sampling(), (RepetitionPenalty(1.7), NoRepeatNGram(2)))
    bench = bench_of(sampling, rows=30_000)
    tokens = np.asarray(bench.run(SpeculativeSampling(), Fixed(3), sampling).tokens)
    result = compare(by_definition(bench.params["target"], left), tokens)
    assert result.passed and result.degrees > 100, result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all", "no repeat 2"])
def test_texts_are_those_of_the_target_alone(name):
    """Greedy, and drawn with the same noise; in a batch and by itself."""
    for base, verifier in ((Greedy(), GreedyMatch()), (Sampling(0.8), Coupled())):
        sampling = Processed(base, SETS[name])
        for drafts in (sampling, base):
            bench = bench_of(sampling, drafts)
            ours = bench.run(verifier, STOPPING, sampling, 2_000)
            assert bool((ours.tokens == bench.alone(sampling, 2_000).tokens).all())
            one = bench.run(verifier, STOPPING, sampling, 1, first=7)
            assert one.tokens[0].tolist() == ours.tokens[7].tolist()
        assert len(np.unique(ours.tokens, axis=0)) > 20 or sampling.greedy


@pytest.mark.slow
@pytest.mark.parametrize("base", [Greedy(), Sampling(0.7)], ids=str)
def test_a_drafter_that_knows_what_the_target_knows_is_never_refused(base):
    """One that saw anything else than the target's would propose what that excludes."""
    sampling = Processed(base, ALL)
    bench = bench_of(sampling)
    perfect = bench._replace(
        params=Params(bench.params["target"], bench.params["target"]), max_length=8
    )
    check_everything_accepted(perfect, Fixed(3), sampling)
    check_everything_accepted(perfect, STOPPING, sampling)


@pytest.mark.slow
def test_to_know_of_the_processors_pays():
    sampling = Processed(Sampling(0.7), (NoRepeatNGram(2), SuppressTokens((2, 5))))
    kept = [
        int(bench_of(sampling, drafts).run(Block(), Fixed(3), sampling, 2_000).trace.calls.sum())
        for drafts in (sampling, Sampling(0.7))
    ]
    assert kept[0] < kept[1]


@pytest.mark.slow
def test_what_is_drafted_at_once_is_drawn_in_turn():
    from support import TableHeads

    sampling = Processed(Sampling(0.7), (NoRepeatNGram(1), FrequencyPenalty(0.5)))
    heads = TableHeads(6, heads=4)
    bench = BENCH._replace(
        drafter=Hybrid(PromptLookup(), Blockwise(heads, sampling)),
        params=Params(BENCH.params["target"], heads.init(jax.random.key(3))),
        rows=20_000,
    )
    result = bench.compare(bench.run(Block(), Fixed(3), sampling).tokens, sampling)
    assert result.passed and result.degrees > 10, result


@pytest.mark.parametrize(
    "verifier, base",
    cells(
        [
            TopBeta(6, 100.0),
            Distance(5),
            LENIENT,
            MinimumBlock(GreedyMatch(), 3),
            Ensemble(0.2),
            SpeculativeCascade("token", 1.0),
        ],
        [Greedy(), Sampling()],
        often=[(TopBeta(6, 100.0), Greedy()), (LENIENT, Sampling())],
        ci=[(SpeculativeCascade("token", 1.0), Sampling())],
    ),
    ids=lambda one: type(one).__name__,
)
def test_no_verifier_keeps_what_is_excluded(verifier, base):
    """Not even one that keeps almost anything, of a drafter that knows of no processor."""
    if getattr(verifier, "greedy_only", False) and not base.greedy:
        pytest.skip("it compares argmaxes")
    sampling = Processed(base, (SuppressTokens((2, 4)), MinLength(3)))
    tokens = np.asarray(bench_of(sampling, base).run(verifier, Fixed(3), sampling, 3_000).tokens)
    assert not np.isin(tokens, (2, 4)).any() and not (tokens[:, :3] == 1).any()
    if not base.greedy:
        plain = np.asarray(bench_of(base).run(verifier, Fixed(3), base, 3_000).tokens)
        assert np.isin(plain, (2, 4)).any() and (plain[:, :3] == 1).any()


def test_a_prefix_is_of_the_text():
    sampling = Processed(Greedy(), (NoRepeatNGram(1), MinLength(3)))
    prefix = jnp.array([[3, 2], [4, 0]], jnp.int32)  # the second row's has one token
    inputs = jnp.tile(jnp.array([[3, 1]], jnp.int32), (2, 1))
    keys = row_keys(0, jnp.arange(2))
    plan = Plan(
        BENCH.target, Autoregressive(BENCH.target, sampling), Block(), Fixed(3), sampling, 6
    )
    ours = decode(BENCH.params, keys, inputs, plan, prefix=prefix)
    alone = autoregressive_decode(
        BENCH.params["target"],
        keys,
        inputs,
        target=BENCH.target,
        sampling=sampling,
        max_length=6,
        prefix=prefix,
    )
    assert ours.tokens.tolist() == alone.tokens.tolist()
    for row in ours.tokens.tolist():
        text = row[: row.index(1)] if 1 in row else row
        assert len(set(text)) == len(text) >= 3 and 0 not in text


@dataclasses.dataclass(frozen=True)
class NoEcho(LogitsProcessor):
    """Excludes the token before the newest: a processor of somebody's own."""

    behind: int = 0  # the bug: how far it looks beyond what there is

    def process(self, logits, history):
        at = jnp.minimum(history.length - 2 + self.behind, len(history.tokens) - 1)
        here = jnp.arange(len(logits)) == history.tokens[jnp.maximum(at, 0)]
        return jnp.where(here & (history.length > 1), -jnp.inf, logits)


@pytest.mark.slow
def test_a_processor_of_ones_own_is_checked():
    check_processor(NoEcho())
    with pytest.raises(AssertionError, match="NoEcho.behind=2.: .* outputs differ"):
        check_processor(NoEcho(2))


# Bugs, each of which changes the law of what comes out, or costs a perfect drafter.
@dataclasses.dataclass
class Planted:
    """A history of the target's call that is wrong in one way."""

    wrong: str

    def __call__(self, history: History, block):
        right = History.ahead(history, block)
        rows, width = right.length.shape
        first = history.length[:, None]
        if self.wrong == "without the draft":
            return right.replace(length=jnp.broadcast_to(first, (rows, width)))
        if self.wrong == "one step late":
            return right.replace(length=jnp.maximum(right.length - 1, 1))
        if self.wrong == "of another row":
            return right.replace(tokens=jnp.roll(right.tokens, 1, axis=0))
        if self.wrong == "with what is behind":
            return right.replace(length=jnp.broadcast_to(right.length[:, -1:], (rows, width)))
        raise AssertionError(self.wrong)


# Of what is in a text, of how often, and of the order.
SEEN = Processed(Sampling(), (RepetitionPenalty(2.0), FrequencyPenalty(1.0), NoRepeatNGram(2)))


def measured(monkeypatch_history=None, plant=None):
    if plant:
        plant(states, "History", monkeypatch_history)
    bench = bench_of(SEEN)
    return bench.compare(bench.run(SpeculativeSampling(), Fixed(3), SEEN).tokens, SEEN)


@pytest.mark.planted
@pytest.mark.parametrize(
    "wrong", few(["without the draft", "one step late", "of another row", "with what is behind"])
)
def test_a_wrong_history_is_seen(wrong, plant):
    planted = Planted(wrong)

    class Wrong(History):
        def ahead(self, block):
            return planted(self, block)

    result = measured(Wrong, plant)
    assert not result.passed, f"{wrong} was not seen: {result}"


@pytest.mark.planted
def test_a_history_that_keeps_rejected_tokens_is_seen(plant):
    """What was drafted last and refused stands behind the text, and is taken for it."""
    real = states.commit

    def keeping(state, draft, scored, verdict, *others):
        after = real(state, draft, scored, verdict, *others)
        if draft.tokens.shape[1]:
            behind = jnp.arange(after.tokens.shape[1])[None] == after.length[:, None]
            refused = verdict.num_accepted < draft.length
            last = jnp.take_along_axis(
                draft.tokens, jnp.minimum(verdict.num_accepted, 2)[:, None], axis=1
            )
            after = after.replace(tokens=jnp.where(behind & refused[:, None], last, after.tokens))
        return after

    class NotRewound(History):
        """One token longer than the text is."""

        def ahead(self, block):
            right = History.ahead(self, block)
            kept = jnp.take_along_axis(self.tokens, self.length[:, None], axis=1)
            tokens = jnp.where(kept > 0, self.tokens.at[:, 0].set(kept[:, 0]), self.tokens)
            return (
                History(tokens, self.length, self.stop_ids)
                .ahead(block)
                .replace(length=right.length)
            )

    plant(states, "commit", keeping)
    result = measured(NotRewound, plant)
    assert not result.passed, f"it was not seen: {result}"


@pytest.mark.planted
@pytest.mark.parametrize("late", few([True, False]))
def test_a_draft_that_is_not_in_its_own_history_costs_a_perfect_drafter(late, plant):
    """The output stays right, whatever a drafter does: only what is refused tells."""
    real = History.append

    def wrong(self, tokens):
        return self if late else real(real(self, tokens), tokens)

    plant(History, "append", wrong)
    bench = bench_of(
        SEEN, params=Params(BENCH.params["target"], BENCH.params["target"]), max_length=8
    )
    with pytest.raises(AssertionError, match="accepted only"):
        check_everything_accepted(bench, Fixed(3), SEEN)


@pytest.mark.planted
def test_the_wrong_histories_are_no_false_alarms():
    assert measured().passed
