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

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from specdec.decoding import decode, row_keys
from specdec.drafters import Autoregressive, Drafter, Drawing
from specdec.measure.alphas import Accepted
from specdec.measure.opinions import recorded
from specdec.models.contract.cache import NoKeys
from specdec.models.contract.model import Target
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules.schedule import Signals
from specdec.types import (
    Array,
    Context,
    DecodeOutput,
    Draft,
    ModelOutput,
    Params,
    Prompt,
    PyTree,
    Request,
)
from specdec.verifiers import Block, GreedyMatch


@dataclasses.dataclass(frozen=True)
class Recorded(Target):
    """A target whose argmax at position t of row b is params['tokens'][b, t], [B, N] int32."""

    vocab_size: int  # V
    # the model whose start token, padding and prompts it has, None for token 0
    start_of: Target | None = None
    stop_ids: ClassVar[tuple[int, ...]] = ()
    exact: ClassVar[bool] = True

    def init(self, key: Array) -> PyTree:
        return {"tokens": jnp.zeros([1, 1], jnp.int32)}

    def axes(self) -> PyTree:
        return {"tokens": (None, None)}

    def start(self, inputs: PyTree) -> Array:
        if self.start_of is not None:
            return self.start_of.start(inputs)
        return jnp.zeros(jax.tree.leaves(inputs)[0].shape[0], jnp.int32)

    @property
    def pad_id(self) -> int:  # type: ignore[override]
        return 0 if self.start_of is None else self.start_of.pad_id

    def prompt(self, inputs: PyTree) -> Prompt | None:
        return None if self.start_of is None else self.start_of.prompt(inputs)

    def prefill(self, params: PyTree, inputs: PyTree, capacity: int) -> NoKeys:
        return NoKeys(jnp.zeros(params["tokens"].shape[0], jnp.int32), capacity)

    def decode(self, params: PyTree, tokens: Array, cache: NoKeys) -> tuple[ModelOutput, NoKeys]:
        recording, width = params["tokens"], tokens.shape[1]
        positions = cache.length[:, None] + jnp.arange(width)[None]
        positions = jnp.minimum(positions, recording.shape[1] - 1)
        next_tokens = jnp.take_along_axis(recording, positions, axis=1)
        logits = jax.nn.one_hot(next_tokens, self.vocab_size, dtype=jnp.float32)
        hidden = jnp.zeros((*tokens.shape, 1), jnp.float32)
        return ModelOutput(logits, hidden), cache.rewind(cache.length + width)


def kind_of(drafter: Drawing) -> str:
    """Returns the kind of recording that a replay of the drafter needs."""
    return "proposed" if drafter.sampling.greedy else "ratio"


@dataclasses.dataclass(frozen=True)
class ByStart(Autoregressive):
    """Drafts params['tokens'] [B, N, K] of the draft's start, up to params['length'] [B, N]."""

    def init(self, params: Params, context: Context) -> PyTree:
        return ()

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        tokens, length = (params[self.role][name] for name in ("tokens", "length"))
        start = jnp.minimum(request.context.length - 1, length.shape[1] - 1)[:, None]
        draft = jnp.take_along_axis(tokens, start[:, :, None], axis=1)[:, 0, : request.longest]
        length = jnp.take_along_axis(length, start, axis=1)[:, 0]
        return Draft(draft, None, jnp.minimum(request.want, length)), state


def played_by(drafter: Drafter, model: Recorded, by_start: Callable[[Drawing], bool]) -> Drafter:
    """Returns the drafter with recordings instead of all drafters in `acceptance.recorded`."""
    if isinstance(drafter, Drawing):
        player = ByStart if by_start(drafter) else Autoregressive
        return player(model, Greedy(), role=role_of(drafter))
    inner = drafter.inner().items()
    return drafter.with_inner({name: played_by(x, model, by_start) for name, x in inner})


def role_of(drafter: Drafter) -> str:
    """Returns the role of the recording that replaces a drafter."""
    return next(iter(drafter.owned()), "draft")


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
    names = dict(recorded(plan.drafter))
    all_recorded = list(names.values()) == [plan.drafter]
    replaying = _Replaying(plan, names, all_recorded, vocab_size, tables or {})
    draws = any(not drafter.sampling.greedy for drafter in names.values())
    width = 1 if all_recorded else length or max([1, *(len(text.inputs) for text in passes)])
    decoded = replaying.program(min(ROWS[all_recorded], len(passes)), width)
    batches = []
    for sample in range(samples if draws else 1):
        coins = np.random.default_rng((seed, sample))
        rows = [replaying.row(text, coins) for text in passes]
        size = min(ROWS[all_recorded], len(rows))
        batches += [decoded(rows[start : start + size]) for start in range(0, len(rows), size)]
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


def _by_start(plan: Plan, drafter: Drawing) -> bool:
    """Returns whether a drafter's recording depends on where the draft starts."""
    by_start = drafter.block is not None or _stops(plan)
    return by_start or (_by_block(plan) and kind_of(drafter) == "ratio")


class _Recording(NamedTuple):
    """The recording of one drafter along a text."""

    plan: Plan
    drafter: Drawing
    values: Mapping[str, ArrayLike]  # by kind
    tokens: int  # T, of the text

    @property
    def at(self) -> np.ndarray:
        """The indices of the tokens that are drafted, [T], or [T, K] of drafts from each start."""
        index = np.arange(self.tokens)
        if not _by_start(self.plan, self.drafter):
            return index
        places = index[:, None] + np.arange(self.plan.longest_draft)[None]
        return np.minimum(places, self.tokens - 1)

    def of_drafts(self, kind: str) -> np.ndarray:
        """Returns the values of the tokens `at`."""
        values = np.array(self.values[kind])
        blocks = self.drafter.block is not None
        return values[:, : self.plan.longest_draft] if blocks else values[self.at]

    def kept(self, coins: np.random.Generator) -> np.ndarray:
        """Returns which of the tokens `at` are kept, of a drafter that samples."""
        if _by_block(self.plan):
            return _kept_of_blocks(self.of_drafts("ratio"), coins)
        if self.drafter.block is not None:
            return _kept(self.of_drafts("ratio"), coins)
        return _kept(np.array(self.values["ratio"]), coins)[self.at]  # a token is tested once

    def lengths(self, rule: Params, agrees: np.ndarray) -> np.ndarray:
        """Returns [T], after how many tokens of a draft from each start the schedule stops."""
        plan, (tokens, longest) = self.plan, agrees.shape
        if not _stops(plan):
            return np.full(tokens, longest, np.int32)

        def of(kind: str) -> np.ndarray:
            values = self.of_drafts(kind).astype(np.float32)
            # Of one size for all texts, so that the rule is compiled once.
            return np.pad(values, [(0, plan.max_length - tokens), *[(0, 0)] * (values.ndim - 1)])

        seen = {kind: of(kind) for kind in SIGNALS}
        if REFUSED in self.values:
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


class _Replaying(NamedTuple):
    """A plan whose recorded texts are decoded again."""

    plan: Plan
    names: Mapping[str, Drawing]  # the recorded drafters
    all_recorded: bool
    vocab_size: int
    tables: Mapping[str, PyTree]

    def row(self, text: Accepted, coins: np.random.Generator) -> _Row:
        """Returns a text and the recordings along it, as the replay has them."""
        output = np.array(text.output, np.int32)
        tokens, other = output, _another(output, self.plan.stop_ids, self.vocab_size)
        if self.all_recorded:
            tokens = np.where(np.isin(output, self.plan.stop_ids), STOPS, TOKEN)
            other = np.full_like(tokens, OTHER)
        recordings = {}
        for name, drafter in self.names.items():
            recording = _Recording(self.plan, drafter, text.drafts[name], len(output))
            at = recording.at
            if drafter.sampling.greedy:
                proposed = recording.of_drafts("proposed")
                agrees, unlike = proposed == output[at], other[at]
                if not self.all_recorded:
                    unlike = np.where(proposed < 0, unlike, proposed)
            else:
                agrees, unlike = recording.kept(coins), other[at]
            params = {"tokens": np.where(agrees, tokens[at], unlike).astype(np.int32)}
            if at.ndim > 1:
                params["length"] = recording.lengths(Params(**self.tables), agrees)
            recordings[role_of(drafter)] = params
        return _Row(() if self.all_recorded else text.inputs, tokens, recordings)

    def program(self, size: int, width: int) -> Callable[[Sequence[_Row]], Replayed]:
        """Returns a function that decodes up to `size` texts in a batch of inputs [size, width]."""
        # Its program is discarded with the replay: a search makes hundreds, and a process has
        # limited room.
        plan = _played(self.plan, 4 if self.all_recorded else self.vocab_size, self.all_recorded)

        @jax.jit
        def run(params: Params, inputs: jax.Array, active: jax.Array) -> DecodeOutput:
            return decode(params, row_keys(0, jnp.arange(size)), inputs, plan, active=active)

        def filled(
            arrays: Iterable[Sequence[int] | np.ndarray], *shape: int, padding: int = 0
        ) -> np.ndarray:
            block = np.full([size, *shape], padding, np.int32)
            for row, array in zip(block, arrays, strict=False):
                row[: len(array)] = array
            return block

        def decoded(rows: Sequence[_Row]) -> Replayed:
            inputs = filled((row.inputs for row in rows), width, padding=plan.target.pad_id)
            trees: dict[str, PyTree] = dict(self.tables)
            trees["target"] = {"tokens": filled((row.tokens for row in rows), plan.max_length)}
            for role, recording in rows[0].recordings.items():
                trees[role] = {
                    name: filled(
                        (x.recordings[role][name] for x in rows), plan.max_length, *array.shape[1:]
                    )
                    for name, array in recording.items()
                }
            active = np.arange(size) < len(rows)
            output = jax.device_get(run(plan.params(trees), inputs, active))
            for row, tokens, length in zip(rows, output.tokens, output.length, strict=False):
                if not np.array_equal(row.tokens, tokens[:length]):
                    raise RuntimeError(
                        "a replay has not written its text; does the text hold a stop id?"
                    )
            trace = output.trace
            calls = output.length, trace.calls, trace.drafted, trace.accepted, trace.source
            return jax.tree.map(lambda x: x[: len(rows)], Replayed(*calls))

        return decoded
