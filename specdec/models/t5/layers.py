"""The pieces of T5, with T5X's parameter names, shapes and logical axis names.

Attention logits and softmax are float32 whatever the weights are. Attention has no
1/sqrt(head_dim): T5 folds it into the initialisation.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.models.layers import (
    Dense,
    constrain,
    fan_in,
    float32_matmul,
    kernel_of,
    parameter,
    precision,
)
from specdec.types import Array


class Logits(nn.Module):
    """[..., D] -> [..., V] float32. The kernel is used in the dtype it is stored in.

    scaled: by 1/sqrt(D), as a tied model's are.
    transposed: the kernel is [V, D].
    """

    vocab_size: int
    scaled: bool = False
    transposed: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init = fan_in("truncated_normal")
        shape = (x.shape[-1], self.vocab_size)
        kernel = kernel_of(self, init, ("embed", "vocab"), shape, self.transposed)
        logits = float32_matmul(x, kernel, transposed=self.transposed)
        logits = logits / math.sqrt(x.shape[-1]) if self.scaled else logits
        return constrain(logits, "batch", "length", None)


class Embedding(nn.Module):
    """The token table, shared by encoder and decoder, and by the logits of tied models."""

    vocab_size: int
    emb_dim: int
    dtype: str

    def setup(self):
        init = nn.initializers.normal(1.0)
        shape = (self.vocab_size, self.emb_dim)
        self.embedding = parameter(self, "embedding", init, ("vocab", "embed"), shape)

    def __call__(self, tokens: Array) -> Array:
        """[...] int32 -> [..., D]."""
        x = jnp.take(self.embedding, tokens, axis=0).astype(self.dtype)
        return constrain(x, "batch", "length", "embed")

    def logits(self, x: Array) -> Array:
        """[..., D] -> [..., V] float32, scaled by 1/sqrt(D) as T5 v1.0 does."""
        logits = float32_matmul(x, self.embedding.T) / math.sqrt(self.emb_dim)
        return constrain(logits, "batch", "length", None)


def relative_buckets(buckets: int, max_distance: int) -> np.ndarray:
    """The bucket of each distance 0..max_distance, beyond which it is constant.

    The first half of the buckets holds one distance each, the second half grows logarithmically
    (Raffel et al. 2020, section 2.1). A table made once, on the host: the logarithm of an
    accelerator rounds differently at bucket borders.
    """
    exact = buckets // 2
    distance = np.arange(max_distance + 1)
    ratio = np.maximum(distance, 1).astype(np.float32) / exact + np.finfo(np.float32).eps
    scaled = np.log(ratio) / np.log(max_distance / exact) * (buckets - exact)
    large = np.minimum(exact + scaled.astype(np.int32), buckets - 1)
    return np.where(distance < exact, distance, large).astype(np.int32)


class RelativeBias(nn.Module):
    """T5's position information: a bias per head and bucket of (key - query), shared by layers."""

    num_heads: int
    buckets: int
    max_distance: int
    bidirectional: bool

    @nn.compact
    def __call__(self, queries: Array, keys: Array) -> Array:
        """[B, T] and [B, C] absolute positions -> [B, H, T, C] float32."""
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        shape = (self.num_heads, self.buckets)
        table = parameter(self, "rel_embedding", init, ("heads", "relpos_buckets"), shape)
        behind = queries[:, :, None] - keys[:, None, :]
        buckets = self.buckets // 2 if self.bidirectional else self.buckets
        by_distance = relative_buckets(buckets, self.max_distance)
        if self.bidirectional:  # keys ahead of the query have buckets of their own
            by_distance = np.concatenate([by_distance[:0:-1] + buckets, by_distance])
            index = jnp.clip(behind, -self.max_distance, self.max_distance) + self.max_distance
        else:
            index = jnp.clip(behind, 0, self.max_distance)
        by_distance = table.astype(jnp.float32)[:, by_distance]
        rows = "batch" if index.shape[0] > 1 else None  # an encoder's is one for all rows
        return constrain(jnp.moveaxis(by_distance[:, index], 0, 1), rows, "heads", None, None)


class Attention(nn.Module):
    """Multi-head attention, in two halves so that keys and values can wait in a cache between.

    transposed: which kernels are [out, in], of "query", "key", "value" and "out".
    """

    num_heads: int
    head_dim: int
    emb_dim: int
    dtype: str
    transposed: tuple[str, ...] = ()

    def setup(self):
        def dense(name, init, features=self.num_heads * self.head_dim, axes=("embed", "joined_kv")):
            return Dense(features, axes, self.dtype, init, transposed=name in self.transposed)

        normal = fan_in("normal")
        self.query = dense("query", lambda *a, **k: normal(*a, **k) / math.sqrt(self.head_dim))
        self.key = dense("key", normal)
        self.value = dense("value", normal)
        self.out = dense("out", normal, self.emb_dim, ("joined_kv", "embed"))

    def keys_values(self, x: Array) -> tuple[Array, Array]:
        """[B, T, D] -> keys and values [B, T, H, head_dim]."""
        return self._split(self.key(x)), self._split(self.value(x))

    def over_cache(self, x: Array, keys: Array, values: Array, bias: Array) -> Array:
        """Queries from x [B, T, D] over cached [B, H, C, head_dim] -> [B, T, D].

        `bias` [B, 1 or H, T, C] float32 is added to the attention logits.
        """
        return self._mix(self._weights("bthd,bhcd->bhtc", x, keys, bias), values)

    def over_inputs(self, x: Array, keys: Array, values: Array, bias: Array) -> Array:
        """As `over_cache`, but for keys [B, H, head_dim, C]: they are written once, so they can lie
        as the product with the queries reads them. XLA's CPU backend would turn them in each call.
        """
        return self._mix(self._weights("bthd,bhdc->bhtc", x, keys, bias), values)

    def over_itself(self, x: Array, bias: Array) -> Array:
        """Attention of the encoder: x [B, S, D] over its own keys and values -> [B, S, D].

        The layout, and so the rounding, is T5X's: float32 logits then agree to the last bits also
        for weights that amplify rounding (random ones do, a hundredfold).
        """
        keys, values = self.keys_values(x)
        weights = self._weights("bthd,bshd->bhts", x, keys, bias)
        mixed = jnp.einsum("bhts,bshd->bthd", weights, values, precision=precision(self.dtype))
        return self._merge(mixed)

    def _weights(self, equation: str, x: Array, keys: Array, bias: Array) -> Array:
        logits = jnp.einsum(
            equation,
            self._split(self.query(x)),
            keys,
            precision=precision(self.dtype),
            preferred_element_type=jnp.float32,
        )
        return jax.nn.softmax(logits + bias, axis=-1).astype(self.dtype)

    def _mix(self, weights: Array, values: Array) -> Array:
        mixed = jnp.einsum("bhtc,bhcd->bhtd", weights, values, precision=precision(self.dtype))
        return self._merge(mixed.swapaxes(1, 2))

    def _split(self, x: Array) -> Array:
        # Else the heads that it is split into decide how a TPU wants to have the kernel, and each
        # program begins with a copy of most kernels.
        x = constrain(x, "batch", "length", "joined_kv", tpu_order=(0, 1, 2))
        x = x.reshape(*x.shape[:2], self.num_heads, self.head_dim)
        return constrain(x, "batch", "length", "heads", "kv")

    def _merge(self, x: Array) -> Array:
        x = constrain(x, "batch", "length", "heads", "kv")
        return self.out(x.reshape(*x.shape[:2], -1))


class MLP(nn.Module):
    """One projection per activation, their product, and back: wi (v1.0) or wi_0 * wi_1 (v1.1).

    transposed: all kernels are [out, in].
    """

    mlp_dim: int
    emb_dim: int
    activations: tuple[str, ...]
    dtype: str
    transposed: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        dense = functools.partial(Dense, dtype=self.dtype, transposed=self.transposed)
        gates = []
        for i, activation in enumerate(self.activations):
            name = "wi" if len(self.activations) == 1 else f"wi_{i}"
            gate = dense(self.mlp_dim, ("embed", "mlp"), name=name)(x)
            gates.append(ACTIVATIONS[activation](gate))
        hidden = constrain(math.prod(gates[1:], start=gates[0]), "batch", "length", "mlp")
        return dense(self.emb_dim, ("mlp", "embed"), name="wo")(hidden)


ACTIVATIONS = {"relu": nn.relu, "gelu": nn.gelu, "silu": nn.silu, "linear": lambda x: x}
