"""Runs the engine's own loop over recordings, to count the target calls of recorded texts.

The target is replaced by a recording of the text. Each drafter that has a `sampling` is replaced by
a recording of its proposals along the text. Drafts are proposed, cut, counted and scheduled as
usual. A drafter's proposals after a rejected token are not recorded; they make no difference, since
they are never kept. A rule that stops within a draft reads the drafter's signals along the text.
These are the right ones up to the first rejected token. Calls are therefore those of the loop,
while the number of tokens drafted after a rejected one is a guess, which only affects time. For the
rejected token itself, the rule reads the recording of a rejected token: if the drafter samples,
this is another token than the text's. (A `Guard` around such a rule counts drafted tokens, so its
calls are a guess.)

For a drafter that is certain of its tokens this is exact: a draft token was kept if it is the
text's token. For a drafter that samples, suppose that a text is the output of exact speculative
sampling. Then a tested draft of token y_t was kept with probability

  min(p(y_t), q(y_t)) / p(y_t) = min(1, q(y_t) / p(y_t))

independently of the others. A random number is therefore drawn for each token. The recording of the
drafter has y_t if the token is kept, otherwise another id.

Block verification keeps i tokens or more of a draft with probability P_i (`verifiers.Block`), and
then continues with p. Given the text, and that i - 1 tokens were kept, one more was kept with
probability min(1, (q(y_t) / p(y_t)) / P_{i-1}). This depends on where the call began, so random
numbers are drawn for each start and position. It also holds if a schedule stops within a draft, for
the draft's own positions: P_i is the share kept over all continuations, wherever they end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from specdec.decoding import decode, row_keys
from specdec.drafters import Drawing
from specdec.measure.alphas import Accepted
from specdec.measure.opinions import recorded
from specdec.plan import Plan
from specdec.predict.recorded import Recorded, kind_of, played_by, role_of
from specdec.sampling import Greedy
from specdec.schedules.signals import Signals
from specdec.types import DecodeOutput, Params, PyTree
from specdec.verifiers import Block, GreedyMatch

SAMPLES = 8  # of the coins
ROWS = {True: 512, False: 32}  # of a batch, by whether all drafters are recorded
# The ids of a replay in which nothing looks at tokens: all of them are one of these.
STOPS, TOKEN, OTHER = 1, 2, 3
SIGNALS = ("confidence", "entropy", "top")  # that a rule which stops within a draft sees
REFUSED = "refused"  # of a drafter that draws, the confidence where a token is refused


class Replayed(NamedTuple):
    """The calls of R = samples x texts, sample by sample, as in `types.Trace`."""

    tokens: np.ndarray  # [R] output tokens
    calls: np.ndarray  # [R]
    drafted: np.ndarray  # [R, N]
    accepted: np.ndarray  # [R, N]
    source: np.ndarray | None  # [R, N]
    depth: np.ndarray | None = None  # [R, N] layers of the call


def replay(
    plan: Plan,
    passes: Sequence[Accepted],
    *,
    vocab_size: int,
    length: int | None = None,
    tables: Mapping[str, PyTree] | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Replayed:
    """Decodes recorded texts once more."""
    check(plan, passes)
    tables, names = tables or {}, dict(recorded(plan.drafter))
    all_recorded = list(names.values()) == [plan.drafter]
    played = _played(plan, 4 if all_recorded else vocab_size, all_recorded)
    draws = any(not drafter.sampling.greedy for drafter in names.values())
    size = min(ROWS[all_recorded], len(passes))
    width = 1 if all_recorded else length or max([1, *(len(text.inputs) for text in passes)])
    program, rule = _program(played), Params(**tables)
    batches = []
    for sample in range(samples if draws else 1):
        coins = np.random.default_rng((seed, sample))
        rows = [_row(plan, rule, text, names, coins, all_recorded, vocab_size) for text in passes]
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            batches.append(_decoded(played, program, some, (size, width), tables))
    calls = jax.tree.map(lambda *parts: np.concatenate(parts), *batches)
    return calls._replace(depth=_depths(plan, passes, calls) if plan.target.depths else None)


def _depths(plan: Plan, passes: Sequence[Accepted], calls: Replayed) -> np.ndarray:
    """Returns [R, N], the layers of each call: the most that a token of the text in it needs."""
    # A rejected token is assumed to need the layers of the text's token in its place.
    longest, rows = plan.max_length, len(calls.tokens)
    of_tokens = np.zeros([len(passes), longest + plan.longest_draft], int)
    for row, text in zip(of_tokens, passes, strict=True):
        row[: len(text.depths)] = text.depths
    of_tokens = np.tile(of_tokens, (rows // len(passes), 1))
    starts = np.cumsum(calls.accepted + 1, axis=1) - calls.accepted - 1
    starts = np.minimum(starts, longest - 1)
    index = np.arange(plan.longest_draft + 1)
    of_calls = np.take_along_axis(of_tokens[:, None], starts[:, :, None] + index, axis=2)
    return np.where(index <= calls.drafted[:, :, None], of_calls, 0).max(axis=2)


class _Row(NamedTuple):
    inputs: Sequence[int]
    tokens: np.ndarray  # [T] int32, as the replay has them
    recordings: dict[str, dict[str, np.ndarray]]  # by role, the parameters of each player's row


def longest(plan: Plan) -> int:
    """Returns the longest useful draft: a block, and the target's own token must fit after it."""
    blocks = (drafter.block for _, drafter in recorded(plan.drafter))
    return min([plan.max_length - 1, *(block for block in blocks if block is not None)])


def bound(plan: Plan) -> str:
    """Returns the reason for `longest`, in words."""
    if longest(plan) == plan.max_length - 1:
        return f"outputs hold {plan.max_length}"
    return f"{type(plan.drafter).__name__} drafts {longest(plan)} at most"


def check(plan: Plan, passes: Sequence[Accepted]) -> None:
    """Raises ValueError for recorded texts that cannot be replayed with a plan."""
    _played(plan, 4, all_recorded=True)
    if plan.longest_draft > longest(plan) < plan.max_length - 1:
        raise ValueError(f"drafts have {plan.longest_draft} tokens but {bound(plan)}; draft fewer")
    kinds = [(name, k) for name, x in recorded(plan.drafter) for k in _kinds(plan, x)]
    leave = len(plan.target.depths) > 0
    for text in passes:
        if leave and len(text.depths) != len(text.output):
            raise ValueError(
                f"text {text.index} has no layers of its tokens; make the passes with `specdec "
                "acceptance` of this run"
            )
        _check_end(plan, text)
        for name, kind in kinds:
            if len(text.drafts.get(name, {}).get(kind, ())) != len(text.output):
                raise ValueError(
                    f"text {text.index} has no recording {kind!r} of {name}; make the passes with "
                    "`specdec acceptance` of this run"
                )


def _check_end(plan: Plan, text: Accepted) -> None:
    """Raises ValueError for a text that this plan would not have ended in the same place."""
    tokens, stops = len(text.output), np.isin(text.output, plan.stop_ids)
    if tokens > plan.max_length:
        what = f"has {tokens} tokens but outputs hold {plan.max_length}"
    elif stops[:-1].any():
        what = f"goes on behind the stop id {text.output[int(stops.argmax())]}"
    elif tokens < plan.max_length and not stops[-1:].any():
        what = f"ends with {tokens} tokens and no stop id, but outputs hold {plan.max_length}"
    else:
        return
    raise ValueError(f"text {text.index} {what}; replay the texts of this run")


def _kinds(plan: Plan, drafter: Drawing) -> tuple[str, ...]:
    """Returns the kinds of recordings that are needed of a drafter."""
    kind = kind_of(drafter)
    if not _stops(plan):
        return (kind,)
    return (kind, *SIGNALS) if kind == "proposed" else (kind, *SIGNALS, REFUSED)


def grouped(replayed: Replayed, texts: int, rows: int) -> Replayed:
    """Returns full batches of `rows` texts, each with the calls of its slowest row."""
    batches = texts // rows

    def largest(values: np.ndarray) -> np.ndarray:
        by_sample = values.reshape(-1, texts, *values.shape[1:])[:, : batches * rows]
        return by_sample.reshape(-1, rows, *values.shape[1:]).max(axis=1)

    return jax.tree.map(largest, replayed)


def needed(plan: Plan) -> frozenset[str]:
    """Returns the roles of the tables that a replay looks things up in."""
    return frozenset(_played(plan, 4, all_recorded=True).tables())


def _played(plan: Plan, vocab_size: int, all_recorded: bool) -> Plan:
    """Returns the plan with recordings of `vocab_size` ids."""
    start_of = None if all_recorded else plan.target
    played = Plan(
        target=Recorded(vocab_size, start_of),
        drafter=played_by(plan.drafter, Recorded(vocab_size), functools.partial(_by_start, plan)),
        verifier=GreedyMatch(),
        schedule=plan.schedule,
        sampling=Greedy(),
        max_length=plan.max_length,
        stop_ids=(STOPS,) if all_recorded else plan.stop_ids,
    )
    if _stops(plan) and not plan.schedule.replayable:
        raise ValueError(
            f"{plan.schedule} stops by what is not recorded; measure it with `specdec bench`"
        )
    for role, model in played.models().items():
        if not isinstance(model, Recorded):
            raise ValueError(
                f"{type(plan.drafter).__name__} runs the model {role!r} and has no `sampling`, so "
                "nothing says what it proposes along a text; measure it with `specdec bench`"
            )
    return played


def _row(
    plan: Plan,
    rule: Params,
    text: Accepted,
    names: Mapping[str, Drawing],
    coins: np.random.Generator,
    all_recorded: bool,
    vocab_size: int,
) -> _Row:
    output = np.array(text.output, np.int32)
    tokens, other = output, _another(output, plan.stop_ids, vocab_size)
    if all_recorded:
        tokens = np.where(np.isin(output, plan.stop_ids), STOPS, TOKEN)
        other = np.full_like(tokens, OTHER)
    recordings = {}
    for name, drafter in names.items():
        recording, kind = text.drafts[name], kind_of(drafter)
        at = np.arange(len(output))
        if _by_start(plan, drafter):
            at = _from_each_start(len(output), plan.longest_draft)
        of_drafts = _of_drafts(recording, kind, at, drafter)
        if kind == "proposed":
            agrees = of_drafts == output[at]
            unlike = other[at] if all_recorded else np.where(of_drafts < 0, other[at], of_drafts)
        else:
            agrees, unlike = _agrees(plan, drafter, recording, of_drafts, at, coins), other[at]
        params = {"tokens": np.where(agrees, tokens[at], unlike).astype(np.int32)}
        if at.ndim > 1:
            params["length"] = _lengths(plan, rule, recording, at, agrees, drafter)
        recordings[role_of(drafter)] = params
    return _Row(() if all_recorded else text.inputs, tokens, recordings)


def _by_start(plan: Plan, drafter: Drawing) -> bool:
    """Returns whether a drafter's recording depends on where the draft starts."""
    by_start = drafter.block is not None or _stops(plan)
    return by_start or (_by_block(plan) and kind_of(drafter) == "ratio")


def _of_drafts(
    recording: Mapping[str, ArrayLike], kind: str, at: np.ndarray, drafter: Drawing
) -> np.ndarray:
    """Returns the recording of the tokens `at`, [T], or [T, K] of drafts from each start."""
    values = np.array(recording[kind])
    return values[:, : at.shape[1]] if drafter.block is not None else values[at]


def _agrees(
    plan: Plan,
    drafter: Drawing,
    recording: Mapping[str, ArrayLike],
    ratios: np.ndarray,
    at: np.ndarray,
    coins: np.random.Generator,
) -> np.ndarray:
    """Returns which tokens with these ratios are kept; [T], or [T, K] of drafts from each start."""
    if _by_block(plan):
        return _kept_of_blocks(ratios, coins)
    if drafter.block is not None:
        return _kept(ratios, coins)
    return _kept(np.array(recording["ratio"]), coins)[at]  # a token is tested once


def _from_each_start(tokens: int, longest: int) -> np.ndarray:
    """Returns [T, K], the indices of the tokens of a draft from each start."""
    index = np.arange(tokens)[:, None] + np.arange(longest)[None]
    return np.minimum(index, tokens - 1)


def _lengths(
    plan: Plan,
    rule: Params,
    recording: Mapping[str, ArrayLike],
    at: np.ndarray,
    agrees: np.ndarray,
    drafter: Drawing,
) -> np.ndarray:
    """Returns [T], after how many tokens of a draft from each start the schedule stops."""
    tokens, longest = at.shape
    if not _stops(plan):
        return np.full(tokens, longest, np.int32)

    def of(kind: str) -> np.ndarray:
        values = _of_drafts(recording, kind, at, drafter).astype(np.float32)
        # Of one size for all texts, so that the rule is compiled once.
        grid = np.zeros([plan.max_length, *values.shape[1:]], np.float32)
        grid[:tokens] = values
        return grid

    seen = {kind: of(kind) for kind in SIGNALS}
    if REFUSED in recording:
        confidence = seen["confidence"]
        confidence[:tokens] = np.where(agrees, confidence[:tokens], of(REFUSED)[:tokens])
    index = np.broadcast_to(np.arange(longest), (plan.max_length, longest))
    stops = np.asarray(plan.schedule.stops(rule, Signals(**seen, index=index)))[:tokens]
    return np.where(stops.any(axis=1), stops.argmax(axis=1) + 1, longest).astype(np.int32)


def _stops(plan: Plan) -> bool:
    """Returns whether the schedule has a rule that stops within a draft."""
    return plan.schedule.stops_within or plan.schedule.cuts


def _by_block(plan: Plan) -> bool:
    """Returns whether the verifier decides about a draft as a whole."""
    return isinstance(plan.verifier, Block)


def _kept(ratios: np.ndarray, coins: np.random.Generator) -> np.ndarray:
    """Returns whether each token is kept, if it is drafted."""
    return coins.random(ratios.shape) < ratios


def _kept_of_blocks(ratios: np.ndarray, coins: np.random.Generator) -> np.ndarray:
    """Returns [T, K], for each start and position, whether one more token is kept."""
    more, reach = np.zeros(ratios.shape, bool), np.ones(len(ratios))
    for depth, ratio in enumerate(ratios.T):
        more[:, depth] = coins.random(len(ratios)) * reach < ratio
        reach = np.minimum(reach / np.maximum(ratio, 1e-30), 1)
    return more


def _another(output: np.ndarray, stop_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """Returns [T], ids that are neither the text's nor a stop id."""
    first, second = [i for i in range(vocab_size) if i not in stop_ids][-2:]
    return np.where(output == second, first, second)


def _decoded(
    plan: Plan,
    program: Callable[[Params, np.ndarray, np.ndarray], DecodeOutput],
    rows: Sequence[_Row],
    shape: tuple[int, int],
    tables: Mapping[str, PyTree],
) -> Replayed:
    """Decodes some texts in a batch whose inputs have this shape."""
    longest, (size, width) = plan.max_length, shape

    def filled(
        arrays: Iterator[Sequence[int] | np.ndarray], *shape: int, padding: int = 0
    ) -> np.ndarray:
        block = np.full([size, *shape], padding, np.int32)
        for row, array in zip(block, arrays, strict=False):
            row[: len(array)] = array
        return block

    inputs = filled((row.inputs for row in rows), width, padding=plan.target.pad_id)
    trees: dict[str, PyTree] = dict(tables)
    trees["target"] = {"tokens": filled((row.tokens for row in rows), longest)}
    for role, recording in rows[0].recordings.items():
        trees[role] = {
            name: filled((row.recordings[role][name] for row in rows), longest, *array.shape[1:])
            for name, array in recording.items()
        }
    active = np.arange(size) < len(rows)
    output = jax.device_get(program(plan.params(trees), inputs, active))
    for row, tokens, length in zip(rows, output.tokens, output.length, strict=False):
        if not np.array_equal(row.tokens, tokens[:length]):
            raise RuntimeError("a replay has not written its text; does the text hold a stop id?")
    trace = output.trace
    calls = Replayed(output.length, trace.calls, trace.drafted, trace.accepted, trace.source)
    return jax.tree.map(lambda x: x[: len(rows)], calls)


def _program(plan: Plan) -> Callable[[Params, np.ndarray, np.ndarray], DecodeOutput]:
    """Returns a program that decodes inputs [B, S] whose rows are active [B]."""
    # It is discarded with the replay: a search makes hundreds, and a process has limited room.

    def run(params: Params, inputs: jax.Array, active: jax.Array) -> DecodeOutput:
        keys = row_keys(0, jnp.arange(inputs.shape[0]))
        return decode(params, keys, inputs, plan, active=active)

    return jax.jit(run)
