"""Texts as they are defined: one token after the other, on the host, without a cache or a draft.

`Placed` is a target of which every token depends on all tokens before it, on their distances and on
its own place; `Rolls` and `Turned` are a processor and a rule of which every token depends on the
prompt, the whole text and the position. One wrong slot, position, history or prompt therefore
changes a text. `check_plain` and the others compare what a loop decodes with the definition.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from support import PromptTable

from specdec.decoding import Decided, decode, replay, row_keys, score, token_key
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import BeamRule, HuggingFaceBeams, T5XBeams
from specdec.decoding.beam_search import BeamOutput, beam_search
from specdec.decoding.draft_beams import DraftBeams
from specdec.decoding.finite import NonFiniteLogits
from specdec.decoding.program import GivenBatch
from specdec.decoding.refilling import Refilled
from specdec.drafters import Autoregressive, MultiPath
from specdec.models.contract.blocks import view
from specdec.plan import Plan
from specdec.sampling import Greedy, Processed, Sampling
from specdec.schedules import Fixed
from specdec.types import DecodeOutput, LogitsProcessor, ModelOutput, Params
from specdec.verifiers import Block, Coupled

V, CLASSES, PAD, STOP = 7, 3, 6, 1
SPOILED = np.float32(1e30)  # logits of which `Rolls` makes NaN
ROWS, WIDTH, LONGEST = 20, 4, 8  # more rows than are written to a cache one by one
SCORES = dict(rtol=1e-4)  # float32 sums of a few logarithms against float64's


@dataclasses.dataclass(frozen=True)
class Placed(PromptTable):
    """A table of which a slot holds token and position, and which weighs it by how far back it is.

    Prompts are padded with 6. A write beyond the cache, which `dynamic_update_slice` would shift,
    spoils the logits of all rows.
    """

    pad_id: ClassVar[int] = PAD

    def prefill(self, params, inputs, capacity):
        return super().prefill(params, jnp.where(inputs == PAD, 0, inputs), capacity)

    def decode(self, params, tokens, cache, *, ancestors=None, layers=None, resume=None):
        width = tokens.shape[1]
        block = view(cache.length, cache.capacity, width, ancestors)
        stored = (tokens + block.queries)[:, :, None, None].astype(jnp.float32)
        beyond = jnp.any(cache.length + width > cache.capacity)
        cache = cache.write(0, stored, stored)
        back = block.queries[:, :, None] - block.keys[:, None]
        weighed = (cache.keys[0][:, :, :, 0].astype(jnp.int32) + 1) * (1 + back % 3)
        total = jnp.sum(jnp.where(block.visible, weighed, 0), axis=-1) + 2 * block.queries + beyond
        classes = jnp.broadcast_to(cache.encoded[:, :, 0], tokens.shape)
        hidden = jnp.stack([classes, total % V, tokens], axis=-1).astype(jnp.float32)
        output = ModelOutput(self.logits(params, hidden), hidden, None)
        return output, cache.rewind(cache.length + width)


@dataclasses.dataclass(frozen=True)
class Rolls(LogitsProcessor):
    """Rolls the logits by a sum over prompt and text, in which the order counts.

    It hides NaN, as a processor may, and makes NaN of other logits.
    """

    def process(self, logits, history):
        index = jnp.arange(len(history.tokens))
        each = jnp.where(index < history.length, (index + 2) * (history.tokens + 1), 0)
        rolled = jnp.roll(logits, jnp.sum(each) + history.position)
        rolled = jnp.where(jnp.isnan(rolled), jnp.arange(V, dtype=jnp.float32), rolled)
        return jnp.where(rolled >= SPOILED, jnp.nan, rolled)


@dataclasses.dataclass(frozen=True)
class Turned(Sampling):
    """Rolls the logits by the index of the output token."""

    def probabilities(self, logits, positions=None, history=None):
        assert positions is not None
        index = jnp.broadcast_to(jnp.arange(V), logits.shape) - positions[..., None]
        return super().probabilities(jnp.take_along_axis(logits, index % V, axis=-1))


TARGET, PROCESSORS = Placed(V, classes=CLASSES), (Rolls(),)
KEYS = row_keys(5, jnp.arange(ROWS))
LENGTHS = np.array([1 + i % WIDTH for i in range(ROWS)])
PROMPTS = np.random.default_rng(0).integers(2, PAD, [ROWS, WIDTH]).astype(np.int32)
PROMPTS[np.arange(WIDTH) >= LENGTHS[:, None]] = PAD
PREFIX = np.random.default_rng(1).integers(2, PAD, [ROWS, 3]).astype(np.int32)
GIVEN = np.array([i % 4 for i in range(ROWS)][::-1])
PREFIX[np.arange(3) >= GIVEN[:, None]] = PAD


@functools.cache
def tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of the target, those of a draft that is often right, and the target's with NaN.

    Of the last ones some become NaN by the processor.
    """
    target, noise = np.random.default_rng(2).normal(size=[2, CLASSES, V, V, V]).astype(np.float32)
    broken = target.copy()
    broken[:, 3, 2] = broken[:, 5, 4] = np.nan
    broken[:, 1, 3] = SPOILED
    return target, target + 0.7 * noise, broken


def params(target: int, draft: int | None = 1) -> Params:
    """Returns parameters; the arguments are numbers of tables."""
    trees = [{"logits": jnp.asarray(table)} for table in tables()]
    return Params(trees[target]) if draft is None else Params(trees[target], trees[draft])


def prompt_of(row: int) -> list[int]:
    return PROMPTS[row, : LENGTHS[row]].tolist()


def logits_after(table: np.ndarray, row: int, words: Sequence[int]) -> np.ndarray:
    """Returns the target's logits [V] after some words, the first of which is the start token."""
    last = len(words) - 1
    total = sum((word + i + 1) * (1 + (last - i) % 3) for i, word in enumerate(words)) + 2 * last
    return table[sum(prompt_of(row)) % CLASSES, total % V, words[-1]].astype(np.float64)


def rolled(logits: np.ndarray, row: int, words: Sequence[int]) -> np.ndarray:
    """Returns what `Rolls` makes of the logits after some words; NaN stays."""
    text = [*prompt_of(row)[:-1], *words]
    code = sum((i + 2) * (word + 1) for i, word in enumerate(text)) + len(words) - 1
    return np.where(logits >= SPOILED, np.nan, np.roll(logits, code))


def turned(logits: np.ndarray, words: Sequence[int]) -> np.ndarray:
    """Returns the log-probabilities that `Turned` gives the token after some words."""
    logits = np.roll(logits, len(words) - 1)
    return logits - np.log(np.sum(np.exp(logits)))


class Text(NamedTuple):
    """A text without its start token, and whether it ends because the next logits are NaN."""

    words: list[int]
    failed: bool


def text_of(
    row: int, table: np.ndarray, choose: Callable[[np.ndarray, list[int]], Any], given=()
) -> Text:
    """Returns a row's text after a prefix; `choose` returns a token, given logits and words."""
    words = [prompt_of(row)[-1], *given]
    while len(words) <= LONGEST:
        logits = rolled(logits_after(table, row, words), row, words)
        if np.isnan(logits).any():
            return Text(words[1:], True)
        words.append(int(choose(logits, words)))
        if words[-1] == STOP:
            break
    return Text(words[1:], False)


@functools.cache
def gumbels() -> np.ndarray:
    """The noise [B, N, V] of the token keys."""
    of_row = jax.vmap(token_key, (None, 0))
    keys = jax.vmap(of_row, (0, None))(KEYS, jnp.arange(LONGEST))
    noise = jax.vmap(jax.vmap(functools.partial(jax.random.gumbel, shape=(V,))))(keys)
    return np.asarray(noise, np.float64)


def drawn(row: int) -> Callable[[np.ndarray, list[int]], Any]:
    """Draws with the key of each token, as the target alone and `Coupled` do."""
    return lambda logits, words: np.argmax(turned(logits, words) + gumbels()[row, len(words) - 1])


def likeliest(_: int) -> Callable[[np.ndarray, list[int]], Any]:
    return lambda logits, words: np.argmax(logits)


def likeliest_turned(_: int) -> Callable[[np.ndarray, list[int]], Any]:
    return lambda logits, words: np.argmax(turned(logits, words))


def texts(choose, table: int, prefix: np.ndarray | None) -> list[Text]:
    """Returns the text of each row."""
    return [
        text_of(row, tables()[table], choose(row), given_to(row, prefix)) for row in range(ROWS)
    ]


def given_to(row: int, prefix: np.ndarray | None) -> list[int]:
    """Returns the tokens of a row's prefix."""
    return [] if prefix is None else prefix[row][prefix[row] != PAD].tolist()


def kinds(found: Sequence[Text]) -> set[str]:
    """Returns the kinds of texts that there are, so that a check knows what it has compared."""
    return {
        "failed" if text.failed else "full" if len(text.words) == LONGEST else "ended"
        for text in found
    }


RULE = Processed(Turned(), PROCESSORS)
PLAIN = Plan(TARGET, Autoregressive(TARGET, RULE), Coupled(), Fixed(3), RULE, LONGEST)
SHARP = Processed(Turned(top_k=1), PROCESSORS)  # draws are certain, so that texts are defined
PATHS = Plan(TARGET, MultiPath(TARGET, Sampling(), paths=3), Block(), Fixed(2), SHARP, LONGEST)
GREEDY = Processed(Greedy(), PROCESSORS)
TREE = Plan(TARGET, MultiPath(TARGET, GREEDY, paths=3), Block(), Fixed(2), GREEDY, LONGEST)


@functools.partial(jax.jit, static_argnames="plan")
def traced(params, plan, prefix):
    """Decodes where `decode` cannot raise."""
    return decode(params, KEYS, jnp.asarray(PROMPTS), plan, prefix=prefix)


def check_texts(plan: Plan, choose) -> None:
    """Compares texts of sound and of broken logits with the definition."""
    for table, draft in ((0, 1), (2, 1), (2, 2)):  # the last goes on where processors hide NaN
        right = texts(choose, table, PREFIX)
        assert kinds(right) >= ({"ended", "failed"} if table else {"ended", "full"})
        output = jax.device_get(traced(params(table, draft), plan, jnp.asarray(PREFIX)))
        for row, text in enumerate(right):
            check_row(output, row, row, text, table, given_to(row, PREFIX))
        assert np.any(output.trace.broken_drafts) == (draft == 2)
        assert output.trace.steps == np.max(output.trace.calls)
        assert draft == 2 or 0 < np.sum(output.trace.accepted) < np.sum(output.trace.drafted)


def check_row(
    output: DecodeOutput, place: int, row: int, text: Text, table: int, given: Sequence[int]
) -> None:
    """Compares a text with the definition, its log-probabilities, and the trace of its calls."""
    size, (words, failed) = len(text.words), text
    assert output.length[place] == size, row
    assert output.tokens[place].tolist() == [*words, *[0] * (LONGEST - size)], row
    fed = [[prompt_of(row)[-1], *words[:j]] for j in range(size)]
    logits = [logits_after(tables()[table], row, each) for each in fed]
    own = [log_softmax(each)[word] for each, word in zip(logits, words, strict=True)]
    np.testing.assert_allclose(output.log_probs[place, :size], own, **SCORES)
    assert not np.any(output.log_probs[place, size:])
    trace, at = output.trace, len(given)
    assert trace.failed[place] == failed, row
    for call in range(trace.calls[place]):
        accepted, drafted = trace.accepted[place, call], trace.drafted[place, call]
        assert accepted <= drafted and not np.any(trace.proposed[place, call, drafted:])
        assert trace.proposed[place, call, :accepted].tolist() == words[at : at + accepted], row
        at += accepted + 1
    assert not np.any([x[place, trace.calls[place] :] for x in (trace.accepted, trace.drafted)])
    assert at - (trace.ended_in_draft[place] | failed) == size, row


def check_broken_drafts(plan: Plan, choose) -> None:
    """Requires the texts of the target if the draft's logits are NaN at some tokens."""
    output = jax.device_get(traced(params(0, 2), plan, jnp.asarray(PREFIX)))
    for row, text in enumerate(texts(choose, 0, PREFIX)):
        check_row(output, row, row, text, 0, given_to(row, PREFIX))
    assert np.any(output.trace.broken_drafts)


def check_calls(plan: Plan, choose) -> None:
    """Requires that a draft which is the target itself has all its tokens accepted."""
    output = traced(params(0, 0), plan, jnp.asarray(PREFIX))
    for row, text in enumerate(texts(choose, 0, PREFIX)):
        left = len(text.words) - GIVEN[row]
        assert output.trace.calls[row] == -(-left // (plan.longest_draft + 1)), row


def check_plain() -> None:
    """Checks the loop of `decode` with drafts that are one text."""
    check_texts(PLAIN, drawn)
    check_broken_drafts(PLAIN, drawn)
    check_calls(PLAIN, drawn)


def check_paths() -> None:
    """Checks drafts of several drawn paths."""
    check_texts(PATHS, likeliest_turned)
    check_broken_drafts(PATHS, likeliest_turned)


def check_tree() -> None:
    """Checks drafts that are a tree."""
    check_texts(TREE, likeliest)
    check_broken_drafts(TREE, likeliest)
    check_calls(TREE, likeliest)


def check_refilled() -> None:
    """Checks a stream of texts in rows that are filled again; inputs have two widths."""
    common = np.full([ROWS, 1], 3, np.int32)
    program = Refilled(PLAIN, 8, (2, WIDTH), prefix=jnp.asarray(common[:8]))
    each = np.arange(ROWS).reshape(4, -1)
    for table in (0, 2):
        batches = [GivenBatch(KEYS[rows], PROMPTS[rows], np.ones(len(rows), bool)) for rows in each]
        right, found, error = texts(drawn, table, common), [], None
        try:
            given = params(table, table or 1)
            found.extend(output for output, _ in program.outputs(given, batches))
        except NonFiniteLogits as raised:
            error = raised.row, raised.position
        fails = [[row for row in rows if right[row].failed] for rows in each]
        sound = next((i for i, rows in enumerate(fails) if rows), len(each))
        assert len(found) == sound and (sound < len(each)) == (table == 2)
        if error:
            row = fails[sound][0]
            assert error == (row - each[sound][0], len(right[row].words))
        for rows, output in zip(each[:sound], found, strict=True):
            assert output.trace.steps == np.max(output.trace.calls)
            for i, row in enumerate(rows):
                check_row(output, i, row, right[row], table, given_to(row, common))


def check_replay() -> None:
    """Checks the probabilities of both models, computed after the texts are finished."""
    prefix, (target, draft, _) = jnp.asarray(PREFIX), tables()
    output = jax.device_get(traced(params(0), PLAIN, prefix))
    trace = output.trace
    decided = Decided(output.tokens, trace.proposed, trace.drafted, trace.accepted)
    found = jax.jit(functools.partial(replay, plan=PLAIN))(
        params(0), KEYS, jnp.asarray(PROMPTS), decided, prefix=prefix
    )
    found = jax.device_get(found)
    for row in range(ROWS):
        words = [prompt_of(row)[-1], *given_to(row, PREFIX)]
        text = output.tokens[row, : output.length[row]].tolist()
        for call in range(trace.calls[row]):
            drafted, accepted = trace.drafted[row, call], trace.accepted[row, call]
            proposed = trace.proposed[row, call, :drafted].tolist()
            before = [[*words, *proposed[:j]] for j in range(drafted + 1)]
            p, q = ([likely(table, row, each) for each in before] for table in (target, draft))
            plain = [log_softmax(logits_after(target, row, each)) for each in before]
            for j, token in enumerate(proposed):
                own = [x[row, call, j] for x in (found.p, found.q, found.softmax)]
                np.testing.assert_allclose(
                    np.log(own), [x[j][token] for x in (p, q, plain)], **SCORES
                )
            words += proposed[:accepted]
            if len(words) <= len(text):
                words.append(text[len(words) - 1])
                own = found.own_p[row, call], found.own_q[row, call]
                right = [p[accepted][words[-1]], q[accepted][words[-1]]]
                corrects = accepted < drafted
                assert np.isfinite(own[1]) == corrects
                np.testing.assert_allclose(
                    np.log(own)[: 1 + corrects], right[: 1 + corrects], **SCORES
                )
        assert words[1:] == text


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - np.max(logits)
    return logits - np.log(np.sum(np.exp(logits)))


def likely(table: np.ndarray, row: int, words: Sequence[int]) -> np.ndarray:
    """Returns the log-probabilities [V] of `RULE` after some words."""
    return turned(rolled(logits_after(table, row, words), row, words), words)


def check_scoring() -> None:
    """Checks the scores of texts that are given."""
    right = [text.words for text in texts(drawn, 0, PREFIX)]
    given = jnp.asarray([[*words, *[PAD] * (LONGEST - len(words))] for words in right])
    inputs, table = jnp.asarray(PROMPTS), tables()[0]
    rules: Any = {"target": TARGET, "sampling": RULE}
    found = score(params(0)["target"], inputs, given, **rules)
    raw = score(params(0)["target"], inputs, given, target=TARGET)
    for row, words in enumerate(right):
        text = [prompt_of(row)[-1], *words]
        for j, word in enumerate(words):
            before = text[: j + 1]
            plain = log_softmax(logits_after(table, row, before))
            own = likely(table, row, before)[word], plain[word]
            np.testing.assert_allclose([found[row, j], raw[row, j]], own, **SCORES)
        assert not np.any(found[row, len(words) :]) and not np.any(raw[row, len(words) :])
    broken: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    for row, words in enumerate(right):
        for j in range(len(words)):
            before = [prompt_of(row)[-1], *words[:j]]
            logits = logits_after(tables()[2], row, before)
            broken[False] += [(row, j)] * bool(np.isnan(logits).any())
            broken[True] += [(row, j)] * bool(np.isnan(rolled(logits, row, before)).any())
    assert set(broken[True]) - set(broken[False])
    for processed, rule in ((True, rules), (False, {"target": TARGET})):
        first = None
        try:
            score(params(2)["target"], inputs, given, **rule)
        except NonFiniteLogits as error:
            first = error.row, error.position
        assert first == broken[processed][0]


def scores(logits: np.ndarray, row: int, words: Sequence[int], processed: bool) -> np.ndarray:
    """Returns the log-probabilities [V] of a beam's next token, which processors have changed."""
    left = log_softmax(logits)
    return rolled(left, row, words) if processed else left


class Search(NamedTuple):
    """The result of a beam search: texts, best first, and their scores."""

    words: list[list[int]]
    scores: list[float]
    steps: int
    failed: bool


def search_of(
    row: int, table: np.ndarray, rule: BeamRule, beams: int, given: Sequence[int], processed: bool
) -> Search:
    """Returns the search of a row as the library of its rule defines it."""
    start = [prompt_of(row)[-1], *given]
    live, done, steps, failed = [(0.0, start)], [], 0, False
    while True:
        logits = [logits_after(table, row, words) for _, words in live]
        if failed := bool(np.isnan(logits).any()):
            break
        steps += 1
        found = [
            (total + own, [*words, token])
            for (total, words), each in zip(live, logits, strict=True)
            for token, own in enumerate(scores(each, row, words, processed))
        ]
        found = sorted(found, key=lambda one: -one[0])[: 2 * beams]
        size = len(found[0][1]) - 1
        full = size == LONGEST
        counted = size - (0 if rule.counts_prefix else len(given))
        for rank, (total, words) in enumerate(found):
            ends = words[-1] == STOP or (full and rule.ends_at_limit)
            if ends and (rule.best_last or rank < beams):
                done.append((total / rule.penalty(counted), words))
        done = sorted(done, key=lambda one: -one[0])[:beams]
        live = [one for one in found if one[1][-1] != STOP][:beams]
        reach = live[0][0] / rule.penalty(LONGEST + 1 if rule.best_last else counted)
        whole = len(done) == beams
        if full or (
            whole and (done[-1][0] > reach or (not rule.best_last and done[-1][0] == reach))
        ):
            break
    if not done and not rule.ends_at_limit:
        done = live
    return Search([words[1:] for _, words in done], [total for total, _ in done], steps, failed)


@functools.partial(jax.jit, static_argnames="plan")
def searched(params, plan, prefix):
    """Searches where `beam_search` cannot raise."""
    return beam_search(params, jnp.asarray(PROMPTS), plan, prefix=prefix)


BEAMS, RULES = 3, (T5XBeams(0.6), HuggingFaceBeams())


def check_search(plan: BeamPlan) -> None:
    """Compares searches of sound and of broken logits with the definition."""
    for table in (0, 2):
        given = params(table, 1 if plan.drafter else None)
        output: BeamOutput = jax.device_get(searched(given, plan, jnp.asarray(PREFIX)))
        failures = 0
        for row in range(ROWS):
            arguments = plan.rule, BEAMS, given_to(row, PREFIX), bool(plan.processors)
            right = search_of(row, tables()[table], *arguments)
            assert output.trace.failed[row] == right.failed, (table, row)
            assert np.sum(output.trace.steps[row]) == right.steps, (table, row)
            failures += right.failed
            if not right.failed:
                assert output.texts(row) == right.words, (table, row)
                for words, tokens in zip(right.words, output.tokens[row], strict=False):
                    assert tokens.tolist() == [*words, *[0] * (LONGEST - len(words))], (table, row)
                ended = [x[-1] == STOP or plan.rule.ends_at_limit for x in right.words]
                assert output.finished[row].tolist() == ended + [False] * (BEAMS - len(ended))
                found = output.scores[row, : len(right.scores)]
                np.testing.assert_allclose(found, right.scores, **SCORES)
        assert (failures > 0) == (table == 2) and failures < ROWS


def check_beams() -> None:
    """Checks the search without a draft, by both rules."""
    for rule in RULES:
        check_search(BeamPlan(TARGET, BEAMS, rule, LONGEST, None, PROCESSORS))


def check_draft_beams() -> None:
    """Checks the search with a draft, and that a draft which is the target has few calls."""
    rule = RULES[0]
    check_search(BeamPlan(TARGET, BEAMS, rule, LONGEST, DraftBeams(TARGET, 6, 2), PROCESSORS))
    alike = BeamPlan(TARGET, BEAMS, rule, LONGEST, DraftBeams(TARGET, 12, 2, reuse=False))
    output = searched(params(0, 0), alike, jnp.asarray(PREFIX))
    for row in range(ROWS):
        right = search_of(row, tables()[0], rule, BEAMS, given_to(row, PREFIX), False)
        assert output.trace.calls[row] == -(-right.steps // 3), row
