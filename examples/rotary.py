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

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.models import families
from specdec.models.cache import KVCache
from specdec.models.inputs import check_tokens
from specdec.models.layers import MASKED, MLP, Dense, Embedding, Logits, RMSNorm, attend, constrain
from specdec.models.linen import LinenModel
from specdec.types import ModelOutput, Prompt


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
        x = Embedding(c.vocab_size, c.emb_dim, c.dtype, name="embedding")(tokens)
        for index in range(c.num_layers):
            x, cache = Layer(c, index, name=f"layers_{index}")(x, cache)
        hidden = RMSNorm(c.dtype, 1e-6, name="norm")(x)
        output = ModelOutput(Logits(c.vocab_size, name="logits")(hidden), hidden)
        return output, cache.rewind(cache.length + tokens.shape[1])


class Layer(nn.Module):
    config: RotaryConfig
    index: int

    @nn.compact
    def __call__(self, x, cache):
        c = self.config
        y = RMSNorm(c.dtype, 1e-6, name="attention_norm")(x)

        def heads(name):
            z = Dense(c.num_heads * c.head_dim, ("embed", "joined_kv"), c.dtype, name=name)(y)
            z = z.reshape(*x.shape[:2], c.num_heads, c.head_dim)
            return constrain(z, "batch", "length", "heads", "kv")

        at = cache.positions(x.shape[1]) + jnp.sum(cache.inputs_mask, axis=1, keepdims=True)
        query, key = (rotated(heads(name), at) for name in ("query", "key"))
        cache = cache.write(self.index, key, heads("value"))
        y = attention(query, cache, self.index).reshape(*x.shape[:2], -1)
        y = Dense(c.emb_dim, ("joined_kv", "embed"), c.dtype, name="out")(y)
        x += constrain(y, "batch", "length", "embed")
        y = RMSNorm(c.dtype, 1e-6, name="mlp_norm")(x)
        y = MLP(c.mlp_dim, c.emb_dim, ("silu", "linear"), c.dtype, name="mlp")(y)
        return x + constrain(y, "batch", "length", "embed"), cache


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
    keys, values = cache.keys[layer], cache.values[layer]
    if cache.cross_keys:
        keys = jnp.concatenate([cache.cross_keys[layer].swapaxes(2, 3), keys], axis=2)
        values = jnp.concatenate([cache.cross_values[layer], values], axis=2)
    at = cache.positions(query.shape[1])[:, :, None]
    known = jnp.repeat(cache.inputs_mask[:, None], query.shape[1], axis=1)
    visible = jnp.concatenate([known, jnp.arange(cache.capacity)[None, None] <= at], axis=2)
    query /= np.sqrt(query.shape[-1]).astype(query.dtype)
    return attend(query, keys, values, jnp.where(visible, 0.0, MASKED)[:, None])


@dataclasses.dataclass(frozen=True)
class Rotary(LinenModel):
    """A decoder of [B, S] int32 prompts, padded behind."""

    stop_ids: ClassVar[tuple[int, ...]] = (1,)
    decoder_only: ClassVar[bool] = True

    def network(self):
        return Network(self.config)

    def example(self):
        return jnp.zeros([1, 1], jnp.int32), self._cache(1, 1)

    def start(self, inputs):
        return jnp.take_along_axis(inputs, self._before(inputs)[:, None], axis=1)[:, 0]

    def prompt(self, inputs):
        return Prompt(inputs, self._before(inputs) + 1)

    def prefill(self, params, inputs, capacity):
        check_tokens(inputs)
        rows, width = inputs.shape
        _, fed = self.decode(params, inputs, self._cache(rows, width))
        keys = tuple(array.swapaxes(2, 3) for array in fed.keys)
        prompts = {"cross_keys": keys, "cross_values": fed.values}
        known = jnp.arange(width)[None] < self._before(inputs)[:, None]
        return self._cache(rows, capacity, inputs_mask=known, **prompts)

    def read_by_decode(self, params):
        return {name: leaf for name, leaf in params.items() if name != "embedding"}

    def _before(self, inputs):
        """Tokens in front of the start token."""
        tokens = jnp.sum(inputs != self.pad_id, axis=1, dtype=jnp.int32)
        return jnp.maximum(tokens - 1, 0)

    def _cache(self, rows, slots, **prompts):
        c, none = self.config, {"inputs_mask": jnp.zeros([rows, 0], bool)}
        sizes = {"layers": c.num_layers, "heads": c.num_heads, "head_dim": c.head_dim}
        with nn.logical_axis_rules(self.axis_rules):
            return KVCache.create(rows, slots, dtype=c.dtype, **sizes, **(prompts or none))


families.register(families.Family("rotary", RotaryConfig, Rotary))
