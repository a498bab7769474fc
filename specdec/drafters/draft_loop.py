"""Draws draft tokens, one by one or as a block, and stops where the schedule says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specdec.models.contract import loops
from specdec.sampling import Processed, draw, draw_shared, fit_vocabulary, looks_back
from specdec.types import Array, Context, Draft, History, PyTree, Request, SamplingRule, Stop


class Steps(NamedTuple):
    """The logits of a draft's first token, and the function that computes the later logits."""

    logits: Array  # [B, any width] for the first token
    advance: Callable[[PyTree, Array], tuple[Array, PyTree]]
    # (carry, draft token i [B] int32) -> (logits for token i + 1, carry)
    carry: PyTree  # the state of `advance`, such as a model's cache


def draft_loop(steps: Steps, request: Request, sampling: SamplingRule) -> tuple[Draft, PyTree]:
    """Draws K tokens per row, each from logits that depend on the tokens before it.

    The first token is drawn from `steps.logits`. The other K - 1 are drawn in a `lax.scan`. With a
    stopping rule, they are drawn in a `lax.while_loop` that ends when no row wants more.

    Args:
      steps: the first token's logits, and the function that computes the later ones.
      request: the argument of `propose`. Logits are padded or cut to its context's `vocab_size`
        *before* drawing, so that tokens are drawn from `probs`. A `vocab_size` of None keeps them.
      sampling: turns logits into the distribution that is drawn from. Greedy drafts have
        `probs=None`. Processors read the text and the draft so far.

    Returns:
      The draft, and the carry that the last call of `steps.advance` returned.
    """
    if looks_back(sampling):
        steps = _processed(steps, request.context, sampling)
        draft, (carry, _) = draft_loop(steps, request, sampling.sampling)
        return draft, carry
    context, keys, want, stop = request
    draw_tokens = functools.partial(_draw_tokens, context=context, sampling=sampling)
    first = draw_tokens(steps.logits, keys[:, 0], jnp.int32(0))
    with jax.named_scope("extend"):
        if stop is None:
            return _all(draw_tokens, first, steps, keys, want)
        return _until_stopped(draw_tokens, first, steps, keys, want, stop)


def _processed(steps: Steps, context: Context, sampling: Processed) -> Steps:
    """Returns steps whose logits have gone through the sampling's processors.

    The carry includes the history that processors read.
    """

    def process(logits: Array, history: History) -> Array:
        if context.vocab_size is not None:
            logits = fit_vocabulary(logits, context.vocab_size)
        return sampling.process(logits, history)

    def advance(carry: PyTree, tokens: Array) -> tuple[Array, PyTree]:
        carry, history = carry
        logits, carry = steps.advance(carry, tokens)
        if context.taught is not None:
            drafted = (history.length - context.length)[:, None]
            tokens = jnp.take_along_axis(context.taught, drafted, axis=1)[:, 0]
        history = history.append(tokens)
        return process(logits, history), (carry, history)

    return Steps(process(steps.logits, context.history), advance, (steps.carry, context.history))


def draft_block(logits: Array, request: Request, sampling: SamplingRule) -> Draft:
    """Draws K tokens per row from the logits of a block, which do not depend on its tokens.

    If a logits processor reads earlier tokens, the tokens are drawn one by one. A stopping rule is
    applied after each token, and ends the draft there, as in `draft_loop`.

    Args:
      logits: [B, K, any width] float32.
      request: the argument of `propose`, see `draft_loop`.
      sampling: turns logits into the distribution that is drawn from.

    Returns:
      The draft.
    """
    if looks_back(sampling):
        return draft_loop(_one_by_one(logits), request, sampling)[0]
    context, keys, want, stop = request
    draw_tokens = functools.partial(_draw_tokens, context=context, sampling=sampling)
    index = jnp.arange(keys.shape[1], dtype=jnp.int32)
    drawn = jax.vmap(draw_tokens, in_axes=(1, 1, 0), out_axes=1)(logits, keys, index)
    length = want if stop is None else _stopped(drawn, want, stop)
    return Draft(drawn.tokens, drawn.probs, length, beliefs=drawn.beliefs)


def _one_by_one(logits: Array) -> Steps:
    """Returns steps through a block [B, K, any width] in which tokens do not change the logits."""

    def advance(i: Array, tokens: Array) -> tuple[Array, Array]:
        return jax.lax.dynamic_index_in_dim(logits, i, axis=1, keepdims=False), i + 1

    return Steps(logits[:, 0], advance, jnp.int32(1))


def _stopped(drawn: _Drawn, want: Array, stop: Stop) -> Array:
    """Returns [B], the length at which a stopping rule ends each row's block, at most `want`."""

    def after(loop, token):
        going, carry, length = loop
        i, seen, tokens = token
        length = length + going
        carry, stopped = stop.ask(carry, i, seen, tokens)
        return (going & ~stopped & (i + 1 < want), carry, length), None

    index = jnp.arange(drawn.tokens.shape[1], dtype=jnp.int32)
    block = index, drawn.seen.swapaxes(0, 1), drawn.tokens.swapaxes(0, 1)
    (_, _, length), _ = jax.lax.scan(after, (want > 0, stop.carry, jnp.zeros_like(want)), block)
    return length


class _Drawn(NamedTuple):
    tokens: Array  # [B] int32
    probs: Array | None  # [B, V] the distribution they were drawn from, None if greedy
    beliefs: Array | None  # [B, V] the softmax, if greedy and `Context.beliefs`; else None
    seen: Array  # [B, V] for stopping rules: probs, or the softmax if greedy


def _draw_tokens(
    logits: Array, keys: Array, index: Array, *, context: Context, sampling: SamplingRule
) -> _Drawn:
    """Draws draft token number `index` [] of each row."""
    if context.vocab_size is not None:
        logits = fit_vocabulary(logits, context.vocab_size)
    if sampling.greedy:
        # If logits are NaN or infinite, no token is the likeliest: use an id that does not exist.
        best = jnp.argmax(logits, axis=-1, keepdims=True)
        finite = jnp.isfinite(jnp.take_along_axis(logits, best, axis=-1))
        tokens = jnp.where(finite, best, logits.shape[-1])[..., 0].astype(jnp.int32)
        softmax = jax.nn.softmax(logits, axis=-1)
        return _Drawn(tokens, None, softmax if context.beliefs else None, softmax)
    probs = sampling.probabilities(logits, context.length - 1 + index)
    draw_one = draw_shared if context.shared_noise else draw
    return _Drawn(jax.vmap(draw_one)(keys, probs), probs, None, probs)


def _all(draw_tokens, first: _Drawn, steps: Steps, keys: Array, want: Array):
    """Draws K tokens in a scan of fixed length, however many are wanted."""

    def extend(loop, draw):
        logits, carry = steps.advance(*loop)
        drawn = draw_tokens(logits, *draw)
        return (carry, drawn.tokens), drawn[:3]

    draws = keys[:, 1:].swapaxes(0, 1), jnp.arange(1, keys.shape[1], dtype=jnp.int32)
    (carry, _), rest = loops.scan(extend, (steps.carry, first.tokens), draws)
    tokens, probs, beliefs = jax.tree.map(
        lambda head, tail: jnp.concatenate([head[:, None], tail.swapaxes(0, 1)], axis=1),
        first[:3],
        rest,
    )
    return Draft(tokens, probs, want, beliefs=beliefs), carry


def _until_stopped(draw_tokens, first: _Drawn, steps: Steps, keys: Array, want, stop: Stop):
    """Draws tokens until no row wants another one; `going` marks the rows that want one more."""

    def put(buffer, drawn: _Drawn, i):
        write = functools.partial(jax.lax.dynamic_update_index_in_dim, index=i, axis=1)
        return jax.tree.map(write, buffer, drawn[:3])

    def after(i, drawn: _Drawn, going, stop_carry):
        stop_carry, stopped = stop.ask(stop_carry, i, drawn.seen, drawn.tokens)
        return going & ~stopped & (i + 1 < want), stop_carry

    def extend(loop):
        i, going, stop_carry, length, buffer, token, carry = loop
        logits, carry = steps.advance(carry, token)
        drawn = draw_tokens(logits, jax.lax.dynamic_index_in_dim(keys, i, 1, keepdims=False), i)
        length = length + going
        going, stop_carry = after(i, drawn, going, stop_carry)
        return i + 1, going, stop_carry, length, put(buffer, drawn, i), drawn.tokens, carry

    second = jnp.int32(1)
    length = jnp.minimum(want, 1)
    going, stop_carry = after(second - 1, first, want > 0, stop.carry)
    buffer = jax.tree.map(lambda x: jnp.zeros((*keys.shape, *x.shape[1:]), x.dtype), first[:3])
    loop = (second, going, stop_carry, length, put(buffer, first, 0), first.tokens, steps.carry)
    loop = loops.while_loop(lambda loop: jnp.any(loop[1]), extend, loop)
    _, _, _, length, (tokens, probs, beliefs), _, carry = loop
    return Draft(tokens, probs, length, beliefs=beliefs), carry
