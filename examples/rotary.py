"""A family of models outside of the package: decoders alone, with rotary positions.

Importing it makes its checkpoints known, to a gin file too:

    from __gin__ import dynamic_registration
    import rotary  # which is beside the gin file, or in PYTHONPATH
    include 'models/from_checkpoint.gin'

A prompt's last token is the start token. What comes before it is kept where an encoder's keys and
values would be, so that the slots and the length of the cache are the output's alone.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.core import meta

from specdec.models import families
from specdec.models.cache import KVCache, kv_bytes
from specdec.models.inputs import check_tokens
from specdec.models.layers import MASKED, Dense, RMSNorm, constrain, parameter, precision
from specdec.types import AxisRules, ModelOutput


@dataclasses.dataclass(frozen=True)
class RotaryConfig:
    """The architecture. head_dim is even; dtype is 'float32' or 'bfloat16'."""

    vocab_size: int
    emb_dim: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    num_layers: int
    dtype: str = "float32"


class Network(nn.Module):
    """Feeds [B, T] tokens behind the prompts and outputs that a cache holds."""

    config: RotaryConfig

    @nn.compact
    def __call__(self, tokens, cache):
        c, cache = self.config, cache.placed()
        init, shape = nn.initializers.normal(1.0), (c.vocab_size, c.emb_dim)
        table = parameter(self, "embedding", init, ("vocab", "embed"), shape)
        x = table[tokens].astype(c.dtype)
        for index in range(c.num_layers):
            x, cache = Layer(c, index, name=f"layers_{index}")(x, cache)
        hidden = RMSNorm(c.dtype, 1e-6, name="norm")(x)
        logits = Dense(c.vocab_size, ("embed", "vocab"), "float32", name="logits")(hidden)
        logits = constrain(logits, "batch", "length", None)
        return ModelOutput(logits, hidden), cache.rewind(cache.length + tokens.shape[1])


class Layer(nn.Module):
    config: RotaryConfig
    index: int

    @nn.compact
    def __call__(self, x, cache):
        c = self.config

        def dense(name, x, features, *axes):
            return Dense(features, axes, c.dtype, name=name)(x)

        def heads(name, x):
            y = dense(name, x, c.num_heads * c.head_dim, "embed", "joined_kv")
            y = y.reshape(*x.shape[:2], c.num_heads, c.head_dim)
            return constrain(y, "batch", "length", "heads", "kv")

        y = RMSNorm(c.dtype, 1e-6, name="attention_norm")(x)
        at = cache.positions(x.shape[1]) + jnp.sum(cache.inputs_mask, axis=1, keepdims=True)
        query, key = (rotated(heads(name, y), at) for name in ("query", "key"))
        cache = cache.write(self.index, key, heads("value", y))
        y = attention(query, cache, self.index).reshape(*x.shape[:2], -1)
        x += constrain(dense("out", y, c.emb_dim, "joined_kv", "embed"), "batch", "length", "embed")
        y = RMSNorm(c.dtype, 1e-6, name="mlp_norm")(x)
        gate, up = (dense(name, y, c.mlp_dim, "embed", "mlp") for name in ("gate", "up"))
        y = constrain(jax.nn.silu(gate) * up, "batch", "length", "mlp")
        x += constrain(dense("down", y, c.emb_dim, "mlp", "embed"), "batch", "length", "embed")
        return x, cache


def rotated(x, positions, longest=10_000.0):
    """[B, T, H, head_dim] with each pair of numbers turned by its position over a wavelength, so
    that products depend on distances alone (Su et al. 2021, section 3.4)."""
    half = x.shape[-1] // 2
    rates = longest ** (-np.arange(half, dtype=np.float32) / half)
    angles = positions[:, :, None, None] * rates[None, None, None]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def attention(query, cache, layer):
    """[B, T, H, head_dim] queries over the prompts and the slots up to each query's own."""
    exact = precision(query.dtype)
    keys, values = cache.cross_keys[layer].swapaxes(2, 3), cache.cross_values[layer]
    keys = jnp.concatenate([keys, cache.keys[layer]], axis=2)
    values = jnp.concatenate([values, cache.values[layer]], axis=2)
    known = jnp.repeat(cache.inputs_mask[:, None], query.shape[1], axis=1)
    slots = jnp.arange(cache.capacity)[None, None]
    visible = jnp.concatenate([known, slots <= cache.positions(query.shape[1])[:, :, None]], axis=2)
    scores = jnp.einsum("bthd,bhcd->bhtc", query, keys, precision=exact).astype(jnp.float32)
    scores = jnp.where(visible[:, None], scores / np.sqrt(query.shape[-1]), MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    return jnp.einsum("bhtc,bhcd->bthd", weights, values, precision=exact)


@dataclasses.dataclass(frozen=True)
class Rotary:
    """A decoder of [B, S] int32 prompts, padded behind."""

    config: RotaryConfig
    axis_rules: AxisRules = ()
    layout: str = "checkpoint"  # the only one
    pad_id: ClassVar[int] = 0
    stop_ids: ClassVar[tuple[int, ...]] = (1,)
    exact: ClassVar[bool] = True
    vocab_size = property(lambda self: self.config.vocab_size)
    dtype = property(lambda self: self.config.dtype)
    num_layers = property(lambda self: self.config.num_layers)
    sizes = property(lambda self: {k: v for k, v in vars(self.config).items() if k != "dtype"})

    def init(self, key):
        return meta.unbox(self._boxed(key))

    def axes(self):
        return nn.get_partition_spec(jax.eval_shape(self._boxed, jax.random.key(0)))

    def start(self, inputs):
        return jnp.take_along_axis(inputs, self._last(inputs)[:, None], axis=1)[:, 0]

    def active(self, inputs):
        return jnp.any(inputs != self.pad_id, axis=1)

    def prefill(self, params, inputs, capacity):
        check_tokens(inputs)
        rows, width = inputs.shape
        _, fed = self.decode(params, inputs, self._cache(rows, width))
        before = jnp.arange(width)[None] < self._last(inputs)[:, None]
        keys = [array.swapaxes(2, 3) for array in fed.keys]
        return self._cache(rows, capacity, before, tuple(keys), fed.values)

    def decode(self, params, tokens, cache):
        with nn.logical_axis_rules(self.axis_rules):
            return Network(self.config).apply({"params": params}, tokens, cache)

    def laid_out(self, *, tokens, platform=None):
        return self

    def from_stored(self, params):
        return params

    def to_stored(self, params):
        return params

    def read_by_decode(self, params):
        return {name: leaf for name, leaf in params.items() if name != "embedding"}

    def cache_bytes(self, rows, slots, inputs_length, mesh=None):
        shape = (rows, self.config.num_heads, inputs_length + slots, self.config.head_dim)
        return self.num_layers * kv_bytes(shape, self.dtype, self.axis_rules, mesh)

    def _boxed(self, key):
        tokens = jnp.zeros([1, 1], jnp.int32)
        return Network(self.config).init(key, tokens, self._cache(1, 1))["params"]

    def _last(self, inputs):
        tokens = jnp.sum(inputs != self.pad_id, axis=1, dtype=jnp.int32)
        return jnp.maximum(tokens - 1, 0)

    def _cache(self, rows, slots, before=None, keys=None, values=None):
        """Empty slots behind the keys and values of prompts, if there are any."""
        c = self.config
        none = jnp.zeros([rows, c.num_heads, 0, c.head_dim], c.dtype)
        with nn.logical_axis_rules(self.axis_rules):
            return KVCache.create(
                rows,
                slots,
                layers=c.num_layers,
                heads=c.num_heads,
                head_dim=c.head_dim,
                dtype=c.dtype,
                inputs_mask=jnp.zeros([rows, 0], bool) if before is None else before,
                cross_keys=keys or (none.swapaxes(2, 3),) * c.num_layers,
                cross_values=values or (none,) * c.num_layers,
            )


families.register(families.Family("rotary", RotaryConfig, Rotary))
