"""The token loop: prefill, then draft -> verify -> commit until every row is done.

One iteration of `step`, for one row with draft tokens x y z, of which the target accepts x y:

    positions            n    n+1  n+2  n+3
    committed     .. a   b                       b is pending: committed, not fed to the target
    target is fed        b    x    y    z        one call
    its rows predict     x?   y?   z?   ?
    committed     .. a   b    x    y    c        c is the target's own; now c is pending
    valid cache   .. a   b    x    y             length n+3; z's slot is garbage, overwritten next

Randomness. `decode` owns it; drafters and verifiers get finished keys. With r the row's key, t the
index of an output token and n the number of output tokens committed when an iteration starts:

    token key    T(t)      = fold_in(fold_in(r, 0), t)
    private key  P(s,n,j)  = fold_in(fold_in(fold_in(r, s), n), j)
                             s = 1 draft, 2 accept, 3 correct

A verifier with shared noise gives draw j of the draft and of the target the key T(n+j), all
others use the private keys. `autoregressive_decode` draws token t with T(t). From a token key a
token is drawn by `sampling.draw_shared`, from a private one by `sampling.draw`. Neither kind serves
for both: with private keys `Coupled` would not reproduce the baseline; with token keys a token
that was seen and not committed would be drawn again from the same noise, which biases every other
verifier as soon as a draft length depends on what was drawn.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from specdec import verifiers
from specdec.sampling import draw_shared
from specdec.types import (
    Array,
    Context,
    DecodeOutput,
    DecodeState,
    Draft,
    Drafter,
    Noise,
    Params,
    PyTree,
    SamplingRule,
    Schedule,
    Scores,
    Stop,
    Target,
    Trace,
    Verdict,
    Verifier,
)


def row_keys(seed: int, examples: Array, samples: Array | int = 0) -> Array:
    """[B] keys, a function of the seed, of each example's index in the unsharded task, and of which
    sample of that example it is: [B] int32 and [] or [B] int32."""
    key = jax.random.key(seed, impl="threefry2x32")
    examples = jnp.asarray(examples, jnp.uint32)
    samples = jnp.broadcast_to(jnp.asarray(samples, jnp.uint32), examples.shape)
    fold = jax.random.fold_in
    return jax.vmap(lambda e, s: fold(fold(key, e), s))(examples, samples)


def token_key(key: Array, position: Array | int) -> Array:
    """T(t): what the target alone, and `Coupled`, draw output token t of a row with."""
    return jax.random.fold_in(jax.random.fold_in(key, 0), position)


def decode(
    params: Params,
    keys: Array,
    inputs: Array,
    *,
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    schedule: Schedule,
    sampling: SamplingRule,
    max_length: int,
    eos_id: int = 1,
    prefix: Array | None = None,
) -> DecodeOutput:
    """Decodes a batch by speculation; one compiled program, one dispatch.

    With an exact verifier the output has the law of `autoregressive_decode` with the same target
    and sampling: the same tokens when greedy, the same distribution otherwise, and with `Coupled`
    the same tokens for the same keys. A row does not depend on its neighbours.

    Args:
      params: of target, drafter and schedule.
      keys: [B] typed threefry keys, one per row (`row_keys`).
      inputs: [B, S] int32 encoder inputs, 0 = padding. A row of padding only stays empty. Inputs of
        another shape compile another program: pad to few lengths (`tasks` does).
      target, drafter, verifier, schedule, sampling: frozen dataclasses, static.
      max_length: N, the longest output in tokens including EOS.
      eos_id: ends a row.
      prefix: [B, P] int32, the tokens each output is to begin with, without EOS and at most N; 0
        after a row's own. They cost one target call, and nothing of them is in the trace.

    Raises:
      ValueError: before anything is compiled, for keys, shapes or combinations that cannot work.
    """
    _check(keys, inputs, max_length, sampling, verifier)
    _check_prefix(prefix, inputs, max_length)
    return _decode(
        params,
        keys,
        inputs,
        target=target,
        drafter=drafter,
        verifier=verifier,
        schedule=schedule,
        sampling=sampling,
        max_length=max_length,
        eos_id=eos_id,
        prefix=prefix,
    )


def autoregressive_decode(
    target_params: PyTree,
    keys: Array,
    inputs: Array,
    *,
    target: Target,
    sampling: SamplingRule,
    max_length: int,
    eos_id: int = 1,
    width: int = 1,
    prefix: Array | None = None,
) -> DecodeOutput:
    """The baseline: the target alone, one token per call, through the same loop.

    Token t is argmax(log p + gumbel(T(t))). With width > 1 each call is as wide as a verify call of
    width - 1 draft tokens, of which only the first position counts: the logits are then those of
    the same compiled shape, also in bfloat16, where another width rounds differently.

    The other arguments are those of `decode`.
    """
    alone: Any = _Alone(width, sampling.greedy)  # drafter, verifier and schedule in one
    return decode(
        Params(target_params),
        keys,
        inputs,
        target=target,
        drafter=alone,
        verifier=alone,
        schedule=alone,
        sampling=sampling,
        max_length=max_length,
        eos_id=eos_id,
        prefix=prefix,
    )


def score(target_params: PyTree, inputs: Array, targets: Array, *, target: Target) -> Array:
    """Log-probabilities of given outputs, teacher-forced: one target call over all positions.

    The values are those of `DecodeOutput.log_probs` for the same tokens.

    Args:
      inputs: [B, S] int32, 0 = padding.
      targets: [B, N] int32, with EOS if that is to count, 0 after a row's last token.

    Returns:
      [B, N] float32 in nats, 0 after a row's last token.
    """
    return _score(target_params, inputs, targets, target=target)


@functools.partial(jax.jit, static_argnames="target")
def _score(params: PyTree, inputs: Array, targets: Array, *, target: Target) -> Array:
    cache = target.prefill(params, inputs, targets.shape[1])
    return _force(target, params, target.start(inputs), targets, cache)[0]


_MODELS = ("target", "drafter", "schedule")
_RULES = ("verifier", "sampling", "eos_id")


@functools.partial(jax.jit, static_argnames=(*_MODELS, "max_length", *_RULES))
def _decode(params, keys, inputs, *, target, drafter, schedule, max_length, prefix, **rules):
    state = prefill(
        params,
        keys,
        inputs,
        target=target,
        drafter=drafter,
        schedule=schedule,
        max_length=max_length,
        prefix=prefix,
    )
    advance = functools.partial(
        step, params, target=target, drafter=drafter, schedule=schedule, **rules
    )
    state = jax.lax.while_loop(lambda state: jnp.any(state.active), advance, state)
    return output(state)


@functools.partial(jax.jit, static_argnames=(*_MODELS, "max_length"))
def prefill(
    params: Params,
    keys: Array,
    inputs: Array,
    *,
    target: Target,
    drafter: Drafter,
    schedule: Schedule,
    max_length: int,
    prefix: Array | None = None,
) -> DecodeState:
    """Encodes the inputs and lays out everything `step` updates; arguments as for `decode`."""
    batch, longest = inputs.shape[0], schedule.buckets[-1]
    start = target.start(inputs)
    cache = target.prefill(params.target, inputs, capacity(max_length, schedule))
    tokens = jnp.zeros([batch, 1 + max_length], jnp.int32)
    tokens = tokens.at[:, 0].set(start)
    shapes, _ = jax.eval_shape(target.decode, params.target, tokens[:, :1], cache)
    state = DecodeState(
        tokens=tokens,
        length=jnp.ones([batch], jnp.int32),
        active=jnp.any(inputs != 0, axis=1),
        cache=cache,
        hidden=jnp.zeros([batch, shapes.hidden.shape[-1]], shapes.hidden.dtype),
        drafter=(),
        schedule=schedule.init(batch),
        keys=jax.vmap(_purpose_keys)(keys),
        inputs=inputs,
        log_probs=jnp.zeros([batch, max_length], jnp.float32),
        trace=Trace(
            proposed=jnp.zeros([batch, max_length, longest], jnp.int32),
            drafted=jnp.zeros([batch, max_length], jnp.int32),
            accepted=jnp.zeros([batch, max_length], jnp.int32),
            calls=jnp.zeros([batch], jnp.int32),
            ended_in_draft=jnp.zeros([batch], bool),
            steps=jnp.zeros([], jnp.int32),
        ),
        vocab_size=shapes.logits.shape[-1],
    )
    if prefix is not None:
        state = _begin_with(prefix, state, target, params.target, start)
    return _by_rows(state.replace(drafter=drafter.init(params, state.context())), batch)


def _by_rows(tree: PyTree, batch: int) -> PyTree:
    """The arrays with a row each divided over the mesh's axis `data`, where there is one: so does
    `step` return them. XLA would begin with zeros for all rows on every device."""
    if "data" not in jax.sharding.get_abstract_mesh().axis_names:
        return tree

    def place(x: Array) -> Array:
        if x.shape[:1] != (batch,):
            return x
        others = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
        return jax.lax.with_sharding_constraint(x, PartitionSpec("data", *others))

    return jax.tree.map(place, tree)


def _begin_with(prefix: Array, state: DecodeState, target, params, start: Array) -> DecodeState:
    """Commits [B, P] tokens; the last one of each row is then its pending token."""
    log_probs, output, cache = _force(target, params, start, prefix, state.cache)
    given = _lengths(prefix)
    last = jnp.maximum(given - 1, 0)[:, None, None]
    hidden = jnp.take_along_axis(output.hidden, last, axis=1)[:, 0]
    size = prefix.shape[1]
    return state.replace(
        tokens=state.tokens.at[:, 1 : 1 + size].set(prefix),
        length=1 + given,
        active=state.active & (given < state.log_probs.shape[1]),
        cache=cache.rewind(given),
        hidden=jnp.where(given[:, None] > 0, hidden, state.hidden),
        log_probs=state.log_probs.at[:, :size].set(log_probs),
    )


def _force(target: Target, params, start: Array, tokens: Array, cache) -> tuple[Array, Any, Any]:
    """Feeds the start token and all but the last of [B, T] tokens: their log-probabilities [B, T],
    0 after a row's last token, with the target's output and cache."""
    fed = jnp.concatenate([start[:, None], tokens[:, :-1]], axis=1)
    output, cache = target.decode(params, fed, cache)
    log_probs = jax.nn.log_softmax(output.logits, axis=-1)
    log_probs = jnp.take_along_axis(log_probs, tokens[:, :, None], axis=2)[:, :, 0]
    inside = jnp.arange(tokens.shape[1])[None] < _lengths(tokens)[:, None]
    return jnp.where(inside, log_probs, 0.0), output, cache


def _lengths(tokens: Array) -> Array:
    """[B] how many tokens each row of [B, T] has: up to its last that is not 0."""
    index = jnp.arange(1, tokens.shape[1] + 1, dtype=jnp.int32)[None]
    return jnp.max(jnp.where(tokens != 0, index, 0), axis=1)


@functools.partial(jax.jit, static_argnames=(*_MODELS, *_RULES))
def step(
    params: Params,
    state: DecodeState,
    *,
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    schedule: Schedule,
    sampling: SamplingRule,
    eos_id: int = 1,
) -> DecodeState:
    """One iteration for every active row: draft, one target call, verdict, commit.

    With several buckets the draft buffer and the target call have the smallest width that holds
    what the rows want. Each width is the body of a while loop of at most one trip, because a
    `lax.switch` around a cache copies every array of it.
    """
    max_length = state.tokens.shape[1] - 1
    needed = capacity(max_length, schedule)
    if state.cache.capacity != needed:
        raise ValueError(
            f"the target's cache holds {state.cache.capacity} positions but max_length "
            f"{max_length} and the schedule's longest draft {schedule.buckets[-1]} need {needed}; "
            "use the state that prefill made with this schedule"
        )
    room = max_length - state.length  # the target's own token always fits as well
    want = jnp.clip(schedule.want(state.schedule), 0, jnp.minimum(room, schedule.buckets[-1]))
    want = jnp.where(state.active, want, 0)
    iterate = functools.partial(
        _iterate,
        params,
        want=want,
        target=target,
        drafter=drafter,
        verifier=verifier,
        schedule=schedule,
        sampling=sampling,
        eos_id=eos_id,
    )
    if len(schedule.buckets) == 1:
        return iterate(state, width=schedule.buckets[0])
    widths = jnp.array(schedule.buckets, jnp.int32)
    choice = jnp.sum(widths < jnp.max(want))
    for i, width in enumerate(schedule.buckets):
        _, state = jax.lax.while_loop(
            lambda loop: loop[0],
            lambda loop, width=width: (jnp.bool_(False), iterate(loop[1], width=width)),
            (choice == i, state),
        )
    return state


def capacity(max_length: int, schedule: Schedule) -> int:
    """Slots a cache needs: the last call starts at position max_length - 1 at the latest and feeds
    the pending token and K draft tokens."""
    return max_length + schedule.buckets[-1]


def output(state: DecodeState) -> DecodeOutput:
    """What has been decoded so far."""
    return DecodeOutput(state.tokens[:, 1:], state.length - 1, state.log_probs, state.trace)


def _iterate(
    params, state, *, width, want, target, drafter, verifier, schedule, sampling, eos_id
) -> DecodeState:
    """The body of `step` with a draft buffer of `width` tokens."""
    committed = state.length - 1  # [B] n
    shared = getattr(verifier, "shared_noise", False)
    noise = jax.vmap(functools.partial(_noise, width=width, shared=shared))(state.keys, committed)

    with jax.named_scope("draft"):
        if width:
            stop = _stop(schedule, params.schedule, state.schedule)
            draft, drafter_state = drafter.propose(
                params, noise.draft, state.context(shared), state.drafter, want, stop
            )
            draft = _trim(draft, want, state.vocab_size, eos_id)
        else:
            draft = Draft(jnp.zeros([state.length.shape[0], 0], jnp.int32), None, want)
            drafter_state = state.drafter
    with jax.named_scope("verify"):
        pending = jnp.take_along_axis(state.tokens, committed[:, None], axis=1)
        block = jnp.concatenate([pending, draft.tokens], axis=1)
        scored, cache = target.decode(params.target, block, state.cache, resume=draft.resume)
    with jax.named_scope("accept"):
        draft = draft.replace(resume=None)
        positions = committed[:, None] + jnp.arange(width + 1)[None]
        scores = Scores(scored.logits, sampling.probabilities(scored.logits, positions))
        verdict = jax.vmap(functools.partial(verifiers.verdict, verifier))(noise, draft, scores)
        schedule_state = schedule.update(state.schedule, draft, verdict)
        state = _commit(state, draft, scored, verdict, eos_id)
        # Rollback. (A row that is full keeps being fed while others go on: its writes must fit.)
        last = state.tokens.shape[1] - 2
        cache = cache.rewind(jnp.minimum(state.length - 1, last))
    return state.replace(cache=cache, drafter=drafter_state, schedule=schedule_state)


def _purpose_keys(key: Array) -> Array:
    """[4] a row's key for tokens, drafts, acceptance and correction: the first fold of each."""
    return jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(4))


def _noise(keys: Array, committed: Array, *, width: int, shared: bool) -> Noise:
    """The finished keys of one row, from its purpose keys [4]; see the head of this file."""
    fold_each = jax.vmap(jax.random.fold_in, (None, 0))
    index = jnp.arange(width + 1)
    if shared:
        token = fold_each(keys[0], committed + index)
        return Noise(draft=token[:-1], accept=token[:-1], correct=token)
    base = jax.vmap(jax.random.fold_in, (0, None))(keys[1:], committed)
    private = jax.vmap(fold_each, (0, None))(base, index)
    return Noise(draft=private[0, :-1], accept=private[1, :-1], correct=private[2])


def _stop(schedule: Schedule, params: PyTree, state: PyTree) -> Stop | None:
    rule = getattr(schedule, "stop", None)
    return None if rule is None else Stop(state, functools.partial(rule, params))


def _trim(draft: Draft, want: Array, vocab_size: int, eos_id: int) -> Draft:
    """Cuts each row to what is wanted, after its first EOS, and before an id that does not exist.

    Stopping after a token that was seen is exact, and an id outside the vocabulary could not have
    been drawn from `probs`. What is cut becomes token 0, so that the target is fed real ids only.
    """
    index = jnp.arange(draft.tokens.shape[1])[None]
    width = draft.tokens.shape[1]
    exists = (draft.tokens >= 0) & (draft.tokens < vocab_size)
    before_unknown = jnp.min(jnp.where(exists, width, index), axis=1, initial=width)
    after_eos = jnp.min(jnp.where(draft.tokens == eos_id, index + 1, width), 1, initial=width)
    length = jnp.minimum(jnp.minimum(draft.length, want), jnp.minimum(before_unknown, after_eos))
    length = jnp.maximum(length, 0).astype(jnp.int32)
    return draft.replace(tokens=jnp.where(index < length[:, None], draft.tokens, 0), length=length)


def _commit(state: DecodeState, draft: Draft, scored, verdict: Verdict, eos_id: int) -> DecodeState:
    """Appends the accepted tokens and the next one, and records the call."""
    accepted = verdict.num_accepted
    width = draft.tokens.shape[1]
    index = jnp.arange(width + 1)[None]
    emitted = jnp.pad(draft.tokens, ((0, 0), (0, 1)))
    emitted = jnp.where(index < accepted[:, None], emitted, verdict.next_token[:, None])
    # A draft is cut after its first EOS, so an accepted EOS is the last accepted token.
    last = jnp.take_along_axis(emitted, jnp.maximum(accepted - 1, 0)[:, None], axis=1)[:, 0]
    ended_in_draft = state.active & (accepted > 0) & (last == eos_id)
    count = jnp.where(state.active, accepted + 1 - ended_in_draft, 0)
    log_probs = jax.nn.log_softmax(scored.logits, axis=-1)
    log_probs = jnp.take_along_axis(log_probs, emitted[:, :, None], axis=2)[:, :, 0]
    length = state.length + count
    ended = ended_in_draft | (verdict.next_token == eos_id)
    hidden = jnp.take_along_axis(scored.hidden, accepted[:, None, None], axis=1)[:, 0]
    trace = state.trace
    active = state.active[:, None]
    column = active & (jnp.arange(trace.drafted.shape[1])[None] == trace.calls[:, None])
    proposed = jnp.pad(draft.tokens, ((0, 0), (0, trace.proposed.shape[2] - width)))
    return state.replace(
        tokens=_append(state.tokens, emitted, state.length, count),
        log_probs=_append(state.log_probs, log_probs, state.length - 1, count),
        length=length,
        active=state.active & ~ended & (length < state.tokens.shape[1]),
        hidden=jnp.where(active, hidden, state.hidden),
        trace=Trace(
            proposed=jnp.where(column[:, :, None], proposed[:, None], trace.proposed),
            drafted=jnp.where(column, draft.length[:, None], trace.drafted),
            accepted=jnp.where(column, accepted[:, None], trace.accepted),
            calls=trace.calls + state.active,
            ended_in_draft=trace.ended_in_draft | ended_in_draft,
            steps=trace.steps + 1,
        ),
    )


def _append(buffer: Array, block: Array, start: Array, count: Array) -> Array:
    """buffer[b, start[b]:start[b]+count[b]] = block[b, :count[b]], without a scatter."""
    offset = jnp.arange(buffer.shape[1])[None] - start[:, None]
    moved = jnp.take_along_axis(block, jnp.clip(offset, 0, block.shape[1] - 1), axis=1)
    return jnp.where((offset >= 0) & (offset < count[:, None]), moved, buffer)


@dataclasses.dataclass(frozen=True)
class _Alone:
    """No drafter: the drafter, schedule and verifier of the target decoding alone."""

    width: int
    greedy: bool
    shared_noise: ClassVar[bool] = True

    def __post_init__(self):
        if not isinstance(self.width, int) or self.width < 1:
            raise ValueError(f"width is {self.width!r}; give a positive number of tokens per call")

    @property
    def buckets(self) -> tuple[int, ...]:
        return (self.width - 1,)

    def init(self, *_) -> PyTree:
        return ()

    def want(self, state: PyTree) -> Array:
        return jnp.zeros([1], jnp.int32)

    def update(self, state: PyTree, draft: Draft, verdict: Verdict) -> PyTree:
        return state

    def propose(
        self, params: Params, keys: Array, context: Context, state, want: Array, stop
    ) -> tuple[Draft, PyTree]:
        nothing = jnp.zeros(keys.shape, jnp.int32)
        return Draft(nothing, None, jnp.zeros(keys.shape[0], jnp.int32)), state

    def verdict(self, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
        if self.greedy:
            best = jnp.argmax(scores.logits[0])
        else:
            best = draw_shared(keys.correct[0], scores.probs[0])
        return Verdict(jnp.zeros([], jnp.int32), best.astype(jnp.int32))


def _check(keys, inputs, max_length, sampling, verifier) -> None:
    """Refuses what cannot work, before anything is compiled."""
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        raise ValueError(
            f"keys have dtype {keys.dtype}; give typed keys, one per row: specdec.row_keys(seed, "
            "examples), or jax.random.wrap_key_data(keys) of raw ones"
        )
    implementation = str(jax.random.key_impl(keys))
    if implementation != "threefry2x32":
        raise ValueError(
            f"keys are {implementation} keys, under which a row's numbers depend on its batch; "
            "make them with jax.random.key(seed, impl='threefry2x32')"
        )
    if inputs.ndim != 2 or inputs.dtype != jnp.int32:
        raise ValueError(
            f"inputs are {inputs.dtype}{list(inputs.shape)}; give int32 [rows, input length]"
        )
    if keys.shape != inputs.shape[:1]:
        raise ValueError(
            f"keys have shape {list(keys.shape)} but inputs have {inputs.shape[0]} rows; give one "
            "key per row (specdec.row_keys)"
        )
    if not isinstance(max_length, int) or max_length < 1:
        raise ValueError(f"max_length is {max_length!r}; give a positive number of tokens")
    if getattr(verifier, "greedy_only", False) and not sampling.greedy:
        raise ValueError(
            f"{type(verifier).__name__} compares argmaxes but sampling is {sampling}; use "
            "SpeculativeSampling() or Coupled() to sample, or Greedy()"
        )


def _check_prefix(prefix: Array | None, inputs: Array, max_length: int) -> None:
    if prefix is None:
        return
    fits = prefix.ndim == 2 and prefix.shape[0] == inputs.shape[0] and prefix.dtype == jnp.int32
    if not fits or not 1 <= prefix.shape[1] <= max_length:
        raise ValueError(
            f"prefix is {prefix.dtype}{list(prefix.shape)}; give int32 "
            f"[{inputs.shape[0]}, at most max_length {max_length}]"
        )
