"""Drawing, keys and stopping: token by token, or a block of tokens at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specdec.sampling import draw, draw_shared, fit_vocabulary
from specdec.types import Array, Draft, PyTree, SamplingRule, Stop


class Steps(NamedTuple):
    """A drafter that proposes token by token, at the start of a draft."""

    logits: Array  # [B, any width] for the first token
    advance: Callable[[PyTree, Array], tuple[Array, PyTree]]
    # feeds draft token i, [B] int32: (carry, tokens) -> (logits for token i + 1, carry)
    carry: PyTree  # what `advance` threads, a model's cache for example


def draft_loop(
    steps: Steps,
    *,
    keys: Array,
    want: Array,
    stop: Stop | None,
    sampling: SamplingRule,
    vocab_size: int | None,
    shared_noise: bool,
    beliefs: bool = False,
) -> tuple[Draft, PyTree]:
    """Draws K tokens per row, each from the logits that the ones before it lead to.

    The first token is drawn from `steps.logits`; the others are a `lax.scan` over the remaining
    K - 1, or with a stopping rule a `lax.while_loop` that ends when no row wants more.

    Args:
      steps: the logits and what leads to the next ones.
      keys: [B, K] finished keys. want: [B] int32. stop: see `types.Stop`.
      sampling: turns logits into what is drawn from. Greedy drafts have `probs=None`.
      vocab_size: V of the target; narrower or wider logits are padded or cut *before* drawing, so
        that the probabilities are those drawn from and shared noise has one width. None: as wide
        as the logits are.
      shared_noise, beliefs: see `types.Context`.
    """
    draw_tokens = functools.partial(
        _draw_tokens,
        draw_one=draw_shared if shared_noise else draw,
        sampling=sampling,
        vocab_size=vocab_size,
        beliefs=beliefs,
    )
    first = draw_tokens(steps.logits, keys[:, 0])
    with jax.named_scope("extend"):
        if stop is None:
            return _all(draw_tokens, first, steps, keys, want)
        return _until_stopped(draw_tokens, first, steps, keys, want, stop)


def draft_block(
    logits: Array,
    *,
    keys: Array,
    want: Array,
    stop: Stop | None,
    sampling: SamplingRule,
    vocab_size: int | None,
    shared_noise: bool,
    beliefs: bool = False,
) -> Draft:
    """Draws K tokens per row, each from logits [B, K, any width] that no other one has led to.

    A stopping rule is asked as in `draft_loop`: it may drop a token by those before it, and by the
    probabilities of all, which were there before any was drawn. Arguments as for `draft_loop`.
    """
    draw_tokens = functools.partial(
        _draw_tokens,
        draw_one=draw_shared if shared_noise else draw,
        sampling=sampling,
        vocab_size=vocab_size,
        beliefs=beliefs,
    )
    drawn = jax.vmap(draw_tokens, in_axes=1, out_axes=1)(logits, keys)
    length = want if stop is None else _stopped(drawn, want, stop)
    return Draft(drawn.tokens, drawn.probs, length, beliefs=drawn.beliefs)


def _stopped(drawn: _Drawn, want: Array, stop: Stop) -> Array:
    """[B] the tokens of a block until a stopping rule ends it."""

    def after(loop, given):
        going, carry, length = loop
        i, seen, tokens = given
        length = length + going
        carry, stopped = stop.ask(carry, i, seen, tokens)
        return (going & ~stopped & (i + 1 < want), carry, length), None

    index = jnp.arange(drawn.tokens.shape[1], dtype=jnp.int32)
    block = index, drawn.seen.swapaxes(0, 1), drawn.tokens.swapaxes(0, 1)
    (_, _, length), _ = jax.lax.scan(after, (want > 0, stop.carry, jnp.zeros_like(want)), block)
    return length


class _Drawn(NamedTuple):
    tokens: Array  # [B] int32
    probs: Array | None  # [B, V] what they were drawn from, None if greedy
    beliefs: Array | None  # [B, V] the softmax if greedy and it is asked for
    seen: Array  # [B, V] what a stopping rule may look at: probs, or the softmax if greedy


def _draw_tokens(
    logits: Array,
    keys: Array,
    *,
    draw_one,
    sampling: SamplingRule,
    vocab_size: int | None,
    beliefs: bool,
) -> _Drawn:
    if vocab_size is not None:
        logits = fit_vocabulary(logits, vocab_size)
    if sampling.greedy:
        tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        softmax = jax.nn.softmax(logits, axis=-1)
        return _Drawn(tokens, None, softmax if beliefs else None, softmax)
    probs = sampling.probabilities(logits)
    return _Drawn(jax.vmap(draw_one)(keys, probs), probs, None, probs)


def _all(draw_tokens, first: _Drawn, steps: Steps, keys: Array, want: Array):
    """K tokens, whatever is wanted: a scan of a fixed length."""

    def extend(loop, key):
        logits, carry = steps.advance(*loop)
        drawn = draw_tokens(logits, key)
        return (carry, drawn.tokens), drawn[:3]

    (carry, _), rest = jax.lax.scan(extend, (steps.carry, first.tokens), keys[:, 1:].swapaxes(0, 1))
    tokens, probs, beliefs = jax.tree.map(
        lambda head, tail: jnp.concatenate([head[:, None], tail.swapaxes(0, 1)], axis=1),
        first[:3],
        rest,
    )
    return Draft(tokens, probs, want, beliefs=beliefs), carry


def _until_stopped(draw_tokens, first: _Drawn, steps: Steps, keys: Array, want, stop: Stop):
    """As many tokens as the row that goes on longest; `going` rows want one more."""

    def put(buffer, drawn: _Drawn, i):
        write = functools.partial(jax.lax.dynamic_update_index_in_dim, index=i, axis=1)
        return jax.tree.map(write, buffer, drawn[:3])

    def after(i, drawn: _Drawn, going, stop_carry):
        stop_carry, stopped = stop.ask(stop_carry, i, drawn.seen, drawn.tokens)
        return going & ~stopped & (i + 1 < want), stop_carry

    def extend(loop):
        i, going, stop_carry, length, buffer, token, carry = loop
        logits, carry = steps.advance(carry, token)
        drawn = draw_tokens(logits, jax.lax.dynamic_index_in_dim(keys, i, 1, keepdims=False))
        length = length + going
        going, stop_carry = after(i, drawn, going, stop_carry)
        return i + 1, going, stop_carry, length, put(buffer, drawn, i), drawn.tokens, carry

    one = jnp.int32(1)
    length = jnp.minimum(want, 1)
    going, stop_carry = after(one - 1, first, want > 0, stop.carry)
    buffer = jax.tree.map(lambda x: jnp.zeros((*keys.shape, *x.shape[1:]), x.dtype), first[:3])
    loop = (one, going, stop_carry, length, put(buffer, first, 0), first.tokens, steps.carry)
    loop = jax.lax.while_loop(lambda loop: jnp.any(loop[1]), extend, loop)
    _, _, _, length, (tokens, probs, beliefs), _, carry = loop
    return Draft(tokens, probs, length, beliefs=beliefs), carry
