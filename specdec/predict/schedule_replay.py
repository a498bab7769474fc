"""Counts the target calls of recorded texts by running the decoding loop without models.

The target is replaced by a recording of the text. Each drafter that has a `sampling` is replaced by
a recording of its proposals along the text. Drafts are proposed, cut, counted and scheduled as
usual. Proposals after a rejected token are not recorded; they are never accepted. A rule that stops
within a draft reads the drafter's signals, which are recorded along the text. They are right up to
the first rejected token, so the counted calls are right. The number of tokens drafted after a
rejected token is an estimate, which only affects the predicted time. For the rejected token itself,
the rule reads the recorded signal `refused` if the drafter samples. (A `Guard` around such a rule
counts drafted tokens, so its calls are an estimate.)

For a greedy drafter the counts are exact: a draft token is accepted if it is the text's token. For
a drafter that samples, suppose that the text is an output of exact speculative sampling. Then, if a
draft was tested at the text's token y_t, that token was a kept draft token with probability

  min(p(y_t), q(y_t)) / p(y_t) = min(1, q(y_t) / p(y_t))

independently of the other tokens. A random number is therefore drawn for each token. The recording
that replaces the drafter has y_t if the draft token is kept, otherwise another id.

Block verification keeps i tokens or more of a draft with probability P_i (`verifiers.Block`), and
then continues with p. Given the text, and that i - 1 tokens were kept, one more was kept with
probability min(1, (q(y_t) / p(y_t)) / P_{i-1}). This depends on the start of the draft, so random
numbers are drawn for each start and position. It also holds if a schedule stops within a draft.
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
    start_of: Target | None = None  # provides start token, padding and prompts; None: token 0
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
    """Returns the recorded figure that decides acceptance: "proposed" if greedy, else "ratio"."""
    return "proposed" if drafter.sampling.greedy else "ratio"


@dataclasses.dataclass(frozen=True)
class ByStart(Autoregressive):
    """A drafter that replays a recorded draft for each start position t in the text.

    Its tokens are params['tokens'][b, t], of [B, N, K]; its length is params['length'][b, t]."""

    def init(self, params: Params, context: Context) -> PyTree:
        return ()

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        tokens, length = (params[self.role][name] for name in ("tokens", "length"))
        start = jnp.minimum(request.context.length - 1, length.shape[1] - 1)[:, None]
        draft = jnp.take_along_axis(tokens, start[:, :, None], axis=1)[:, 0, : request.longest]
        length = jnp.take_along_axis(length, start, axis=1)[:, 0]
        return Draft(draft, None, jnp.minimum(request.want, length)), state


def played_by(drafter: Drafter, model: Recorded, by_start: Callable[[Drawing], bool]) -> Drafter:
    """Returns the drafter with each recorded drafter in it replaced by a replay of `model`."""
    if isinstance(drafter, Drawing):
        player = ByStart if by_start(drafter) else Autoregressive
        return player(model, Greedy(), role=role_of(drafter))
    inner = drafter.inner().items()
    return drafter.with_inner({name: played_by(x, model, by_start) for name, x in inner})


def role_of(drafter: Drafter) -> str:
    """Returns the role of the parameters of the recording that replaces a drafter."""
    return next(iter(drafter.owned()), "draft")


SAMPLES = 8  # replays with other random numbers, if a drafter samples
ROWS = {True: 512, False: 32}  # the batch size, by whether all drafters are recorded
# If all drafters are recorded, a replay has only these ids: stop id, text's token, other token.
STOPS, TOKEN, OTHER = 1, 2, 3
SIGNALS = ("confidence", "entropy", "top")  # recorded for rules that stop within a draft
REFUSED = "refused"  # the recorded confidence at a rejected token, if the drafter samples


class Replayed(NamedTuple):
    """The target calls of replayed texts; R = samples * texts, all texts of a sample together."""

    tokens: np.ndarray  # [R] output tokens
    calls: np.ndarray  # [R] target calls
    drafted: np.ndarray  # [R, N] draft tokens of each call
    accepted: np.ndarray  # [R, N] accepted draft tokens of each call
    source: np.ndarray | None  # [R, N] the inner drafter that drafted; None if there is only one
    depth: np.ndarray | None = None  # [R, N] layers of each call; None if always all layers


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
    """Returns the target calls of the recorded texts `passes` with a plan, without its models.

    Inputs are padded to `length`. `tables` has the drafter's lookup tables by role. If a drafter
    samples, the texts are replayed `samples` times with other random numbers."""
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
    """Returns [R, N], the layers of each call, which are the most that one of its tokens needs."""
    # A rejected token is assumed to need the layers of the text's token at its position.
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
    tokens: np.ndarray  # [T] int32, the ids of the text in the replay
    recordings: dict[str, dict[str, np.ndarray]]  # role -> this row of its recording's parameters


def longest(plan: Plan) -> int:
    """Returns the longest draft: a drafter's block, and one token less than outputs hold."""
    blocks = (drafter.block for _, drafter in recorded(plan.drafter))
    return min([plan.max_length - 1, *(block for block in blocks if block is not None)])


def bound(plan: Plan) -> str:
    """Returns the reason for the value of `longest(plan)`, in words."""
    if longest(plan) == plan.max_length - 1:
        return f"outputs hold {plan.max_length}"
    return f"{type(plan.drafter).__name__} drafts {longest(plan)} at most"


def check(plan: Plan, passes: Sequence[Accepted]) -> None:
    """Raises ValueError if recorded texts cannot be replayed with a plan."""
    _played(plan, 4, all_recorded=True)
    if plan.longest_draft > longest(plan) < plan.max_length - 1:
        raise ValueError(f"drafts have {plan.longest_draft} tokens but {bound(plan)}; draft fewer")
    kinds = [(name, k) for name, x in recorded(plan.drafter) for k in _kinds(plan, x)]
    leave = len(plan.target.depths) > 0
    for text in passes:
        if leave and len(text.depths) != len(text.output):
            raise ValueError(
                f"text {text.index} does not record its tokens' layers; make the passes with "
                "`specdec acceptance` of this run"
            )
        _check_end(plan, text)
        for name, kind in kinds:
            if len(text.drafts.get(name, {}).get(kind, ())) != len(text.output):
                raise ValueError(
                    f"text {text.index} has no recording {kind!r} of {name}; make the passes with "
                    "`specdec acceptance` of this run"
                )


def _check_end(plan: Plan, text: Accepted) -> None:
    """Raises ValueError if the plan's stop ids or maximum length would end the text elsewhere."""
    tokens, stops = len(text.output), np.isin(text.output, plan.stop_ids)
    if tokens > plan.max_length:
        what = f"has {tokens} tokens but outputs hold {plan.max_length}"
    elif stops[:-1].any():
        what = f"goes on after the stop id {text.output[int(stops.argmax())]}"
    elif tokens < plan.max_length and not stops[-1:].any():
        what = f"ends with {tokens} tokens and no stop id, but outputs hold {plan.max_length}"
    else:
        return
    raise ValueError(f"text {text.index} {what}; replay the texts of this run")


def _kinds(plan: Plan, drafter: Drawing) -> tuple[str, ...]:
    """Returns the names of the recorded figures that a replay of the drafter reads."""
    kind = kind_of(drafter)
    if not _stops(plan):
        return (kind,)
    return (kind, *SIGNALS) if kind == "proposed" else (kind, *SIGNALS, REFUSED)


def grouped(replayed: Replayed, texts: int, rows: int) -> Replayed:
    """Returns, for each full batch of `rows` texts, the largest of each figure over its rows."""
    batches = texts // rows

    def largest(values: np.ndarray) -> np.ndarray:
        by_sample = values.reshape(-1, texts, *values.shape[1:])[:, : batches * rows]
        return by_sample.reshape(-1, rows, *values.shape[1:]).max(axis=1)

    return jax.tree.map(largest, replayed)


def needed(plan: Plan) -> frozenset[str]:
    """Returns the roles of the lookup tables that a replay still needs."""
    return frozenset(_played(plan, 4, all_recorded=True).tables())


def _played(plan: Plan, vocab_size: int, all_recorded: bool) -> Plan:
    """Returns the plan with recordings of `vocab_size` ids in place of models."""
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
            f"{plan.schedule} stops by other signals than recorded; measure it with `specdec bench`"
        )
    for role, model in played.models().items():
        if not isinstance(model, Recorded):
            raise ValueError(
                f"{type(plan.drafter).__name__} runs the model {role!r} and has no `sampling`, so "
                "its proposals are not recorded; measure it with `specdec bench`"
            )
    return played


def _by_start(plan: Plan, drafter: Drawing) -> bool:
    """Returns whether a replay needs one recorded draft for each start position."""
    by_start = drafter.block is not None or _stops(plan)
    return by_start or (_by_block(plan) and kind_of(drafter) == "ratio")


class _Recording(NamedTuple):
    """The recorded figures of one drafter on one text, see `alphas.Accepted.drafts`."""

    plan: Plan
    drafter: Drawing
    values: Mapping[str, ArrayLike]  # name of the figure -> [T], or [T, K] for a block drafter
    tokens: int  # T, the number of the text's tokens

    @property
    def at(self) -> np.ndarray:
        """The indices of drafted tokens, [T], or [T, K] if there is a draft from each start."""
        index = np.arange(self.tokens)
        if not _by_start(self.plan, self.drafter):
            return index
        places = index[:, None] + np.arange(self.plan.longest_draft)[None]
        return np.minimum(places, self.tokens - 1)

    def of_drafts(self, kind: str) -> np.ndarray:
        """Returns a recorded figure for each draft token of `at`."""
        values = np.array(self.values[kind])
        blocks = self.drafter.block is not None
        return values[:, : self.plan.longest_draft] if blocks else values[self.at]

    def kept(self, coins: np.random.Generator) -> np.ndarray:
        """Returns, in the shape of `at`, which tokens are accepted; the drafter samples."""
        if _by_block(self.plan):
            return _kept_of_blocks(self.of_drafts("ratio"), coins)
        if self.drafter.block is not None:
            return _kept(self.of_drafts("ratio"), coins)
        return _kept(np.array(self.values["ratio"]), coins)[self.at]  # a token is tested once

    def lengths(self, rule: Params, agrees: np.ndarray) -> np.ndarray:
        """Returns [T], the length at which the schedule stops the draft from each start."""
        plan, (tokens, longest) = self.plan, agrees.shape
        if not _stops(plan):
            return np.full(tokens, longest, np.int32)

        def of(kind: str) -> np.ndarray:
            values = self.of_drafts(kind).astype(np.float32)
            # All texts are padded to one size, so that the rule is compiled once.
            return np.pad(values, [(0, plan.max_length - tokens), *[(0, 0)] * (values.ndim - 1)])

        seen = {kind: of(kind) for kind in SIGNALS}
        if REFUSED in self.values:
            confidence = seen["confidence"]
            confidence[:tokens] = np.where(agrees, confidence[:tokens], of(REFUSED)[:tokens])
        index = np.broadcast_to(np.arange(longest), (plan.max_length, longest))
        stops = np.asarray(plan.schedule.stops(rule, Signals(**seen, index=index)))[:tokens]
        return np.where(stops.any(axis=1), stops.argmax(axis=1) + 1, longest).astype(np.int32)


def _stops(plan: Plan) -> bool:
    return plan.schedule.stops_within or plan.schedule.cuts


def _by_block(plan: Plan) -> bool:
    return isinstance(plan.verifier, Block)


def _kept(ratios: np.ndarray, coins: np.random.Generator) -> np.ndarray:
    """Returns a bool for each token, true with probability min(1, ratio)."""
    return coins.random(ratios.shape) < ratios


def _kept_of_blocks(ratios: np.ndarray, coins: np.random.Generator) -> np.ndarray:
    """Returns [T, K] bool, whether block verification accepts one more token, by start."""
    more, reach = np.zeros(ratios.shape, bool), np.ones(len(ratios))
    for depth, ratio in enumerate(ratios.T):
        more[:, depth] = coins.random(len(ratios)) * reach < ratio
        reach = np.minimum(reach / np.maximum(ratio, 1e-30), 1)
    return more


def _another(output: np.ndarray, stop_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """Returns [T], ids that are neither the text's token at that place nor a stop id."""
    first, second = [i for i in range(vocab_size) if i not in stop_ids][-2:]
    return np.where(output == second, first, second)


class _Replaying(NamedTuple):
    plan: Plan
    names: Mapping[str, Drawing]  # name -> recorded drafter
    all_recorded: bool  # whether the plan's drafter itself is recorded
    vocab_size: int
    tables: Mapping[str, PyTree]  # role -> parameters of a lookup table

    def row(self, text: Accepted, coins: np.random.Generator) -> _Row:
        """Returns one row of the replay's batch: inputs, tokens and parameters of recordings."""
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
        # The program is discarded with the replay, because a search compiles hundreds of them.
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
