"""Attention over cached keys and values.

Arrays have a leading axis of rows. At batch 1 the products are computed without this axis, for the
reason that `specdec.models.contract.loops` gives.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specdec.models.layers import rowwise
from specdec.models.layers.products import Kernels, precision
from specdec.types import Array

MASKED = -1e10  # added to the attention logits of masked slots; finite also in bfloat16
BLOCK_BYTES = 2**25  # of attention logits that a CPU computes at a time
MIX = "...htc,...hcd->...htd"  # weights and values
EACH_SCORES, EACH_MIX = "...thd,...htcd->...htc", "...htc,...htcd->...htd"  # a cache per token


@dataclasses.dataclass(frozen=True)
class AttentionPolicy:
    """The way in which attention is computed.

    Args:
      keys_transposed: whether cached keys are [H, head_dim, C] instead of [H, C, head_dim]. The
        encoder's keys are stored so, because the product with queries reads them in this order.
        Otherwise, XLA's CPU backend would transpose them in each call.
      by_row: whether a token's bits must not depend on the other tokens of a call.
      in_order: whether a token's visible slots are moved together before sums over them. Otherwise
        masked slots between them change the bits of a sum. It has no effect on transposed keys,
        whose slots are visible to all tokens.
      cap: the soft cap of attention logits, see `soft_capped`; None for none.
    """

    keys_transposed: bool = False
    by_row: bool = False
    in_order: bool = False
    cap: float | None = None

    @classmethod
    def of(
        cls, kernels: Kernels, keys_transposed: bool = False, cap: float | None = None
    ) -> AttentionPolicy:
        """Returns the policy of an attention module with these settings of its kernels."""
        return cls(keys_transposed, kernels.int8_tokens, kernels.in_order, cap)

    @property
    def scores(self) -> str:
        """The einsum equation of queries [T, H, head_dim] and keys for attention logits."""
        return "...thd,...hdc->...htc" if self.keys_transposed else "...thd,...hcd->...htc"


PLAIN = AttentionPolicy()


def attend(
    query: Array,
    keys: Array,
    values: Array,
    bias: Array,
    policy: AttentionPolicy = PLAIN,
) -> Array:
    """Returns the attention of queries over cached keys and values, [B, T, H, head_dim].

    Args:
      query: [B, T, H, head_dim].
      keys: [B, H, C, head_dim], or [B, H, head_dim, C] if the policy transposes them. If keys have
        fewer rows than queries, several neighbouring rows of queries share each row of keys.
      values: [B, H, C, head_dim].
      bias: [B, 1 or H, T, C] float32, added to the attention logits; [rows of keys, 1, 1, C] if
        keys have fewer rows.
      policy: the way in which it is computed.
    """
    rows, tokens = query.shape[:2]
    if (together := rows // keys.shape[0]) > 1:  # samples of a text share the keys of its input
        shared = query.reshape(-1, together * tokens, *query.shape[2:])
        return attend(shared, keys, values, bias, policy).reshape(query.shape)
    if policy.by_row and tokens == 1:
        query = jnp.pad(query, ((0, 0), (0, 1), (0, 0), (0, 0)))
        bias = jnp.pad(bias, ((0, 0), (0, 0), (0, 1), (0, 0)))
    scores, mix, ordered = policy.scores, MIX, policy.in_order and not policy.keys_transposed
    if ordered:
        keys, values, bias = _visible_first(keys, values, bias)
        scores, mix = EACH_SCORES, EACH_MIX
    if rows == 1:
        query, keys, values, bias = query[0], keys[0], values[0], bias[0]
        if policy.by_row and not policy.keys_transposed and not ordered:
            # Else their bits would depend on the number of tokens and slots.
            keys = jax.lax.optimization_barrier(keys.swapaxes(1, 2))
            scores = dataclasses.replace(policy, keys_transposed=True).scores
    weights = attention_weights(scores, query, keys, bias, policy)
    mixed = jnp.einsum(mix, weights, values, precision=precision(query.dtype)).swapaxes(-3, -2)
    return mixed[..., :tokens, :, :].reshape(rows, tokens, *mixed.shape[-2:])


def _visible_first(keys: Array, values: Array, bias: Array) -> tuple[Array, Array, Array]:
    """Returns keys and values [B, H, T, C, head_dim] and biases, each token's visible slots first.

    A slot is visible to all heads or to none.
    """
    hidden = bias[:, :1] < MASKED / 2
    order = jnp.argsort(hidden, axis=-1, stable=True)
    keys, values = (
        jnp.take_along_axis(x[:, :, None], order[..., None], axis=3) for x in (keys, values)
    )
    return keys, values, jnp.take_along_axis(bias, order, axis=-1)


def attend_to_all(query: Array, keys: Array, values: Array) -> Array:
    """Returns the attention of all positions over all positions; arrays are [B, S, H, head_dim].

    A CPU computes some heads of a row at a time, so that their logits stay in its cache. With 1,500
    positions that takes two thirds of the time. A row has the same bits in each batch.
    """
    rows, length, heads, size = query.shape
    most = max(1, BLOCK_BYTES // (4 * length**2))
    each = max(n for n in range(1, heads + 1) if heads % n == 0 and n <= most)

    def in_one(*arrays: Array) -> Array:
        return mixed(*(x.swapaxes(1, 2) for x in arrays)).swapaxes(1, 2)

    def in_blocks(*arrays: Array) -> Array:
        blocks = tuple(x.swapaxes(1, 2).reshape(-1, 1, each, length, size) for x in arrays)
        attended = jax.lax.map(lambda block: mixed(*block), blocks)
        return attended.reshape(rows, heads, length, size).swapaxes(1, 2)

    def mixed(query: Array, keys: Array, values: Array) -> Array:
        weights = attention_weights("bhtd,bhcd->bhtc", query, keys, jnp.zeros([]))
        return jnp.einsum(MIX, weights, values, precision=precision(query.dtype))

    return jax.lax.platform_dependent(query, keys, values, cpu=in_blocks, default=in_one)


def attend_grouped(
    query: Array,
    keys: Array,
    values: Array,
    bias: Array,
    policy: AttentionPolicy = PLAIN,
) -> Array:
    """Returns `attend` where several heads of queries share a head of keys and values.

    Head h reads the keys of head h // (H / G) (Ainslie et al. 2023, 2305.13245). The heads of a
    group are computed as further tokens.

    Args:
      query: [B, T, H, head_dim].
      keys: [B, G, C, head_dim], with G a divisor of H, see `attend`.
      values: [B, G, C, head_dim].
      bias: [B, 1, 1 or T, C] float32, added to the attention logits.
      policy: the way in which it is computed.
    """
    tokens, heads, groups = query.shape[1], query.shape[2], keys.shape[1]
    if heads == groups:
        return attend(query, keys, values, bias, policy)
    bias = bias if bias.shape[2] == 1 else jnp.repeat(bias, heads // groups, axis=2)
    return unfolded(attend(folded(query, groups), keys, values, bias, policy), tokens)


def folded(query: Array, groups: int) -> Array:
    """Maps queries [B, T, H, head_dim] to [B, T * H / G, G, head_dim]: the H / G heads that share
    keys become tokens."""
    rows, tokens, heads, size = query.shape
    query = query.reshape(rows, tokens, groups, heads // groups, size).swapaxes(2, 3)
    return query.reshape(rows, -1, groups, size)


def unfolded(mixed: Array, tokens: int) -> Array:
    """Maps [B, T * H / G, G, head_dim] back to [B, T, H, head_dim], see `folded`."""
    rows, folded_tokens, groups, size = mixed.shape
    mixed = mixed.reshape(rows, tokens, folded_tokens // tokens, groups, size).swapaxes(2, 3)
    return mixed.reshape(rows, tokens, -1, size)


def attention_weights(
    scores: str,
    query: Array,
    keys: Array,
    bias: Array,
    policy: AttentionPolicy = PLAIN,
) -> Array:
    """Returns attention weights [B, H, T, C] in the queries' dtype, with float32 logits.

    `scores` is the einsum equation of queries and keys.
    """
    exact, wide = precision(query.dtype), jnp.float32
    logits = jnp.einsum(scores, query, keys, precision=exact, preferred_element_type=wide)
    logits = soft_capped(logits, policy.cap)
    softmax = rowwise.softmax if policy.by_row else jax.nn.softmax
    return softmax(logits + bias).astype(query.dtype)


def soft_capped(logits: Array, cap: float | None) -> Array:
    """Returns cap * tanh(logits / cap), between -cap and cap, or the logits if the cap is None.

    Gemma Team 2024, 2408.00118, section 2.
    """
    return logits if cap is None else cap * jnp.tanh(logits / cap)
