"""The layers of T5, with T5X's parameter names, shapes and logical axis names.

Attention logits and softmax are always float32. Attention has no 1/sqrt(head_dim), because T5 folds
it into the initialisation.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.models.layers.attention import AttentionPolicy, attend, attention_weights
from specdec.models.layers.layers import Dense, constrain, fan_in, parameter
from specdec.models.layers.products import STORED_KERNELS, Kernels, precision
from specdec.types import Array


def relative_buckets(buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each distance 0..max_distance, beyond which it is constant.

    The first half of the buckets holds one distance each, the second half grows logarithmically
    (Raffel et al. 2020, section 2.1). The table is made once, on the host, because an accelerator's
    logarithm rounds differently at bucket borders.
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
        """Maps absolute positions [B, T] and [B, C] to biases [B, H, T, C] float32."""
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
    """Multi-head attention, in two halves so that keys and values can be cached between them."""

    num_heads: int  # H
    head_dim: int  # the size of a head
    emb_dim: int  # D
    dtype: str  # of the products
    kernels: Kernels = STORED_KERNELS  # how the kernels are stored
    # how the kernels of keys and values are stored, if these are made in prefill
    of_inputs: Kernels | None = None

    def setup(self):
        def dense(init, kernels=self.kernels):
            features = self.num_heads * self.head_dim * (3 if kernels.joined else 1)
            return Dense(features, ("embed", "joined_kv"), self.dtype, init, kernels)

        normal = fan_in("normal")
        if self.kernels.joined:
            self.query_key_value = dense(normal)
        else:
            self.query = dense(lambda *a, **k: normal(*a, **k) / math.sqrt(self.head_dim))
            self.key = dense(normal, self.of_inputs or self.kernels)
            self.value = dense(normal, self.of_inputs or self.kernels)
        axes = ("joined_kv", "embed")
        self.out = Dense(self.emb_dim, axes, self.dtype, normal, self.kernels)

    def keys_values(self, x: Array) -> tuple[Array, Array]:
        """Maps [B, T, D] to keys and values [B, T, H, head_dim]."""
        if self.kernels.joined:
            return self.queries_keys_values(x)[1:]
        return self._split(self.key(x)), self._split(self.value(x))

    def queries_keys_values(self, x: Array) -> tuple[Array, Array, Array]:
        """Maps [B, T, D] to all three [B, T, H, head_dim] by a joined kernel."""
        query, key, value = jnp.split(self.query_key_value(x), 3, axis=-1)
        return self._split(query), self._split(key), self._split(value)

    def over_cache(
        self, x: Array, keys: Array, values: Array, bias: Array, query: Array | None = None
    ) -> Array:
        """Computes attention of x [B, T, D] over cached [B, H, C, head_dim]: [B, T, D].

        `bias` [B, 1 or H, T, C] float32 is added to the attention logits. `query` [B, T, H,
        head_dim] is that of a joined kernel.
        """
        query = self._split(self.query(x)) if query is None else query
        return self._merge(attend(query, keys, values, bias, AttentionPolicy.of(self.kernels)))

    def over_inputs(self, x: Array, keys: Array, values: Array, bias: Array) -> Array:
        """Computes `over_cache` for keys [B, H, head_dim, C]."""
        policy = AttentionPolicy.of(self.kernels, keys_transposed=True)
        return self._merge(attend(self._split(self.query(x)), keys, values, bias, policy))

    def over_itself(self, x: Array, bias: Array) -> Array:
        """Computes the encoder's attention: x [B, S, D] over its own keys and values, [B, S, D].

        The layout, and so the rounding, is T5X's. Float32 logits therefore agree to the last bits
        even for weights that amplify rounding, as random ones do a hundredfold.
        """
        keys, values = self.keys_values(x)
        weights = attention_weights("bthd,bshd->bhts", self._split(self.query(x)), keys, bias)
        mixed = jnp.einsum("bhts,bshd->bthd", weights, values, precision=precision(self.dtype))
        return self._merge(mixed)

    def _split(self, x: Array) -> Array:
        # Else the heads that it is split into decide how a TPU wants to have the kernel, and each
        # program begins with a copy of most kernels.
        x = constrain(x, "batch", "length", "joined_kv", tpu_order=(0, 1, 2))
        x = x.reshape(*x.shape[:2], self.num_heads, self.head_dim)
        return constrain(x, "batch", "length", "heads", "kv")

    def _merge(self, x: Array) -> Array:
        x = constrain(x, "batch", "length", "heads", "kv")
        return self.out(x.reshape(*x.shape[:2], -1))
