"""The draft loop: drawing, keys and stopping for every drafter that proposes token by token."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from specdec.sampling import draw
from specdec.types import Array, Draft, PyTree, SamplingRule, Stop


def draft_loop(
    logits: Array,
    advance: Callable[[PyTree, Array], tuple[Array, PyTree]],
    carry: PyTree,
    *,
    keys: Array,
    want: Array,
    stop: Stop | None,
    sampling: SamplingRule,
    vocab_size: int,
) -> tuple[Draft, PyTree]:
    """Draws K tokens per row, each from the logits that the ones before it lead to.

    The first token is drawn from `logits`; the others are a `lax.scan` over the remaining K - 1, or
    with a stopping rule a `lax.while_loop` that ends when no row wants more.

    Args:
      logits: [B, any width] for the first token.
      advance: feeds draft token i, [B] int32: (carry, tokens) -> (logits for token i + 1, carry).
      carry: what `advance` threads, a model's cache for example.
      keys: [B, K] finished keys. want: [B] int32. stop: see `types.Stop`.
      sampling: turns logits into what is drawn from. Greedy drafts have `probs=None`.
      vocab_size: V of the target; narrower or wider logits are padded or cut *before* drawing, so
        that the probabilities are those drawn from and shared noise has one width.
    """
    batch, longest = keys.shape

    def draw_tokens(logits: Array, keys: Array) -> tuple[Array, Array | None, Array]:
        """Tokens, what they were drawn from (None if greedy), and what a stopping rule may see."""
        logits = _fit(logits, vocab_size)
        if sampling.greedy:
            tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
            return tokens, None, jax.nn.softmax(logits, axis=-1)
        probs = sampling.probabilities(logits)
        return jax.vmap(draw)(keys, probs), probs, probs

    first, probs, seen = draw_tokens(logits, keys[:, 0])

    if stop is None:

        def extend(loop, key):
            logits, carry = advance(*loop)
            token, probs, _ = draw_tokens(logits, key)
            return (carry, token), (token, probs)

        (carry, _), rest = jax.lax.scan(extend, (carry, first), keys[:, 1:].swapaxes(0, 1))
        tokens, probs = jax.tree.map(
            lambda head, tail: jnp.concatenate([head[:, None], tail.swapaxes(0, 1)], axis=1),
            (first, probs),
            rest,
        )
        return Draft(tokens, probs, want), carry

    def put(buffer, row, i):
        return jax.tree.map(
            lambda b, r: jax.lax.dynamic_update_index_in_dim(b, r, i, axis=1), buffer, row
        )

    def after(i, seen, tokens, going, carry):
        """Which rows go on now that token i is in."""
        carry, stopped = stop.rule(carry, i, seen, tokens)
        return going & ~stopped & (i + 1 < want), carry

    def extend_some(loop):
        i, going, length, token, buffer, stop_carry, carry = loop
        logits, carry = advance(carry, token)
        key = jax.lax.dynamic_index_in_dim(keys, i, axis=1, keepdims=False)
        token, probs, seen = draw_tokens(logits, key)
        length = length + going
        going, stop_carry = after(i, seen, token, going, stop_carry)
        return i + 1, going, length, token, put(buffer, (token, probs), i), stop_carry, carry

    buffer = jax.tree.map(
        lambda x: jnp.zeros((batch, longest, *x.shape[1:]), x.dtype), (first, probs)
    )
    buffer = put(buffer, (first, probs), 0)
    wanted = want > 0
    going, stop_carry = after(jnp.int32(0), seen, first, wanted, stop.carry)
    loop = (jnp.int32(1), going, wanted.astype(jnp.int32), first, buffer, stop_carry, carry)
    loop = jax.lax.while_loop(lambda loop: jnp.any(loop[1]), extend_some, loop)
    _, _, length, _, (tokens, probs), _, carry = loop
    return Draft(tokens, probs, length), carry


def _fit(logits: Array, vocab_size: int) -> Array:
    """[B, any width] -> [B, vocab_size]: ids that one side lacks get no probability."""
    logits = logits[:, :vocab_size]
    missing = vocab_size - logits.shape[1]
    return jnp.pad(logits, ((0, 0), (0, missing)), constant_values=-jnp.inf)
