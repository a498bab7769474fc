"""The engine's own loop over recordings: how many target calls the texts of a pass take.

The target is replaced by a recording of the text, and each drafter that has a `sampling` by one of
what it would have proposed along it. Drafts are proposed, cut, counted and scheduled as ever. What
a drafter would have proposed behind a refused token is not recorded, and makes no difference: it is
never kept. A rule that stops within a draft is told what the drafter would have thought along the
text, which is what it would have seen up to the first refused token: so calls are the loop's, and
how many tokens are drafted behind a refused one, which only costs time, is a guess.

Of a drafter that is certain of its tokens that is exact: a draft was kept if it is the text's
token. Of one that draws, given that a text has come out by exact speculative sampling, a draft of
token y_t, if one was tested, was kept with probability

    min(p(y_t), q(y_t)) / p(y_t) = min(1, q(y_t) / p(y_t))

independently of the others. So a coin is tossed for each token: where it falls, the recording of
the drafter has y_t, elsewhere another id.

Block verification keeps i tokens or more of a draft with probability P_i (`verifiers.Block`), and
goes on by p. So, given that the text has come out, and that i - 1 tokens were kept, one more was
with probability min(1, (q(y_t) / p(y_t)) / P_{i-1}), which depends on where the call began: coins
are tossed for each start and depth.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from specdec.acceptance import recorded
from specdec.decoding import decode, row_keys
from specdec.forecast.recorded import Recorded, Told, kind_of, played_by, role_of
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.types import Params, PyTree
from specdec.verifiers import Block, GreedyMatch

SAMPLES = 8  # of the coins
ROWS = {True: 512, False: 32}  # of a batch: where all is recorded, and else
# The ids of a replay in which nothing looks at tokens: all of them are one of these.
STOPS, TOKEN, OTHER = 1, 2, 3


class Pass(Protocol):
    """A text of the target and the recordings along it: `acceptance.Accepted` is one."""

    @property
    def index(self) -> int: ...
    @property
    def inputs(self) -> Sequence[int]: ...
    @property
    def output(self) -> Sequence[int]: ...
    @property
    def drafts(self) -> Mapping[str, Mapping[str, Sequence[float]]]: ...


class Replayed(NamedTuple):
    """Of R = samples x texts, sample by sample; the calls as in `types.Trace`."""

    tokens: np.ndarray  # [R] output tokens
    calls: np.ndarray  # [R]
    drafted: np.ndarray  # [R, N]
    accepted: np.ndarray  # [R, N]
    source: np.ndarray | None  # [R, N]


def replay(
    plan: Plan,
    passes: Sequence[Pass],
    *,
    vocab_size: int,
    length: int | None = None,
    tables: Mapping[str, PyTree] | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Replayed:
    """Decodes the texts of the passes once more, by recordings.

    Args:
      plan: of which the drafter, the schedule, the longest length and the stop ids count, and of
        the verifier whether it is `Block`.
      vocab_size: V of the target.
      length: that inputs are filled up to, as they were; None for that of the longest one.
      tables: the parameters by role of what the drafter has besides models and recordings.
      samples: how often coins are tossed, if a recorded drafter draws.
      seed: of the coins.

    Raises:
      ValueError: the passes lack a recording, or are of longer texts; or the drafter has a model
        and no `sampling`, so that nothing says what it would have proposed.
    """
    check(plan, passes)
    names = dict(recorded(plan.drafter))
    whole = list(names.values()) == [plan.drafter]
    played = _played(plan, 4 if whole else vocab_size, whole)
    draws = any(not drafter.sampling.greedy for drafter in names.values())
    size = min(ROWS[whole], len(passes))
    width = 1 if whole else length or max(len(one.inputs) for one in passes)
    found = []
    for sample in range(samples if draws else 1):
        coins = np.random.default_rng((seed, sample))
        rows = [_row(plan, one, names, coins, whole, vocab_size) for one in passes]
        for start in range(0, len(rows), size):
            found.append(_decoded(played, rows[start : start + size], (size, width), tables))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *found)


class _Row(NamedTuple):
    inputs: Sequence[int]
    tokens: np.ndarray  # [T] int32, as the replay has them
    recordings: dict[str, np.ndarray]  # by role, likewise; [T, K] of `ByStart`


def check(plan: Plan, passes: Sequence[Pass]) -> None:
    """Raises ValueError for passes that cannot be replayed with a plan, as `replay` does."""
    _played(plan, 4, whole=True)
    told = ["confidence", "entropy"] if _stops(plan) else []
    kinds = [(name, k) for name, x in recorded(plan.drafter) for k in (kind_of(x), *told)]
    for one in passes:
        if len(one.output) > plan.max_length:
            raise ValueError(
                f"text {one.index} has {len(one.output)} tokens but outputs hold "
                f"{plan.max_length}; replay the texts of this run"
            )
        for name, kind in kinds:
            if len(one.drafts.get(name, {}).get(kind, ())) != len(one.output):
                raise ValueError(
                    f"text {one.index} has no recording {kind!r} of {name}; make the passes with "
                    "`specdec acceptance` of this run"
                )


def needed(plan: Plan) -> frozenset[str]:
    """The roles of the tables that a replay looks things up in."""
    return frozenset(_played(plan, 4, whole=True).tables())


def _played(plan: Plan, vocab_size: int, whole: bool) -> Plan:
    """The plan with recordings of so many ids in it."""
    start_of = None if whole else plan.target
    played = Plan(
        target=Recorded(vocab_size, start_of),
        drafter=played_by(plan.drafter, Recorded(vocab_size), _by_block(plan)),
        verifier=GreedyMatch(),
        schedule=Told(plan.schedule) if _stops(plan) else plan.schedule,
        sampling=Greedy(),
        max_length=plan.max_length,
        stop_ids=(STOPS,) if whole else plan.stop_ids,
    )
    if _stops(plan):
        _check_stops(plan)
    for role, model in played.models().items():
        if not isinstance(model, Recorded):
            raise ValueError(
                f"{type(plan.drafter).__name__} runs the model {role!r} and has no `sampling`, so "
                "nothing says what it proposes along a text; measure it with `specdec bench`"
            )
    return played


def _row(
    plan: Plan,
    one: Pass,
    names: Mapping[str, Any],
    coins: np.random.Generator,
    whole: bool,
    vocab_size: int,
) -> _Row:
    output = np.array(one.output, np.int32)
    text, other = output, _another(output, plan.stop_ids, vocab_size)
    if whole:
        text = np.where(np.isin(output, plan.stop_ids), STOPS, TOKEN)
        other = np.full_like(text, OTHER)
    recordings = {}
    for name, drafter in names.items():
        said, at = np.array(one.drafts[name][kind_of(drafter)]), np.arange(len(output))
        if kind_of(drafter) == "proposed":
            agrees = said == output
            unlike = other if whole else np.where(said < 0, other, said)
        elif not _by_block(plan):
            agrees, unlike = coins.random(len(output)) < said, other
        else:
            agrees, at = _kept_of_blocks(said, plan.longest_draft, coins)
            unlike = other[at]
        recording = np.where(agrees, text[at], unlike)
        if _stops(plan):
            seen = (np.array(one.drafts[name][x]) for x in ("confidence", "entropy"))
            size = 4 if whole else vocab_size
            recording = recording + size * plan.schedule.stops(*seen)  # type: ignore[attr-defined]
        recordings[role_of(drafter)] = recording.astype(np.int32)
    return _Row(() if whole else one.inputs, text, recordings)


def _stops(plan: Plan) -> bool:
    """Whether the schedule has a rule that stops within a draft."""
    return hasattr(plan.schedule, "stop")


def _check_stops(plan: Plan) -> None:
    """Raises ValueError for a rule that cannot be replayed."""
    if not hasattr(plan.schedule, "stops"):
        raise ValueError(
            f"{plan.schedule} stops by what is not recorded; measure it with `specdec bench`"
        )
    if _by_block(plan) and any(kind_of(x) == "ratio" for _, x in recorded(plan.drafter)):
        raise ValueError(
            f"{plan.schedule} stops within a draft, and block verification of drawn texts is "
            "replayed for whole drafts only; give verifiers/speculative_sampling.gin"
        )


def _by_block(plan: Plan) -> bool:
    """Whether drafts are decided about as a whole."""
    return isinstance(plan.verifier, Block)


def _kept_of_blocks(
    ratios: np.ndarray, longest: int, coins: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """[T, K] of each start and depth, whether one more token is kept, and the token's index."""
    index = np.arange(len(ratios))[:, None] + np.arange(longest)[None]
    index = np.minimum(index, len(ratios) - 1)  # behind the end nothing is drafted
    kept, reach = np.zeros(index.shape, bool), np.ones(len(ratios))
    for depth, at in enumerate(index.T):
        ratio = ratios[at]
        kept[:, depth] = coins.random(len(ratios)) * reach < ratio
        reach = np.minimum(reach / np.maximum(ratio, 1e-30), 1)
    return kept, index


def _another(output: np.ndarray, stop_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """[T] an id that is neither the text's nor a stop id."""
    first, second = [i for i in range(vocab_size) if i not in stop_ids][-2:]
    return np.where(output == second, first, second)


def _decoded(
    plan: Plan, rows: Sequence[_Row], shape: tuple[int, int], tables: Mapping[str, PyTree] | None
) -> Replayed:
    """Some texts in a batch whose inputs have this shape."""
    longest, (size, width) = plan.max_length, shape

    def filled(arrays: Iterator[Any], columns: int, *depth: int) -> np.ndarray:
        block = np.zeros([size, columns, *depth], np.int32)
        for row, array in zip(block, arrays, strict=False):
            row[: len(array)] = array
        return block

    inputs = filled((row.inputs for row in rows), width)
    trees: dict[str, PyTree] = dict(tables or {})
    trees["target"] = {"tokens": filled((row.tokens for row in rows), longest)}
    for role, recording in rows[0].recordings.items():
        arrays = (row.recordings[role] for row in rows)
        trees[role] = {"tokens": filled(arrays, longest, *recording.shape[1:])}
    active = np.arange(size) < len(rows)
    output = _jitted(plan.params(trees), inputs, active, plan=plan)
    output = jax.device_get(output)
    for row, tokens, length in zip(rows, output.tokens, output.length, strict=False):
        if not np.array_equal(row.tokens, tokens[:length]):
            raise RuntimeError("a replay has not written its text; does the text hold a stop id?")
    trace, count = output.trace, len(rows)
    source = None if trace.source is None else trace.source[:count]
    return Replayed(
        output.length[:count],
        trace.calls[:count],
        trace.drafted[:count],
        trace.accepted[:count],
        source,
    )


@functools.partial(jax.jit, static_argnames="plan")
def _jitted(params: Params, inputs: jax.Array, active: jax.Array, *, plan: Plan) -> Any:
    keys = row_keys(0, jnp.arange(inputs.shape[0]))
    return decode(params, keys, inputs, plan, active=active)
