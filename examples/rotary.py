"""A family of models outside of the package: decoders alone, with rotary positions.

Importing it makes its checkpoints known, to a gin file too:

    from __gin__ import dynamic_registration
    import rotary  # which is beside the gin file, or in PYTHONPATH
    include 'models/from_checkpoint.gin'

A prompt's last token is the start token. Prompt and output share one cache, whose length is that of
the output (`specdec.models.contract.cache.PromptCache`).
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.models import families
from specdec.models.bases.prompts import PromptReader
from specdec.models.bases.transformer import rotated
from specdec.models.layers.attention import MASKED, attend
from specdec.models.layers.layers import (
    MLP,
    Dense,
    Embedding,
    Logits,
    RMSNorm,
    constrain,
)
from specdec.types import ModelOutput


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
        c, seen, cache = self.config, cache.view(tokens.shape[1]), cache.placed()
        x = Embedding(c.vocab_size, c.emb_dim, c.dtype, name="embedding")(tokens)
        for index in range(c.num_layers):
            x, cache = Layer(c, index, name=f"layers_{index}")(x, cache, seen)
        hidden = RMSNorm(c.dtype, 1e-6, name="norm")(x)
        output = ModelOutput(Logits(c.vocab_size, name="logits")(hidden), hidden)
        return output, cache.rewind(cache.length + tokens.shape[1])


class Layer(nn.Module):
    config: RotaryConfig
    index: int

    @nn.compact
    def __call__(self, x, cache, seen):
        c = self.config
        y = RMSNorm(c.dtype, 1e-6, name="attention_norm")(x)

        def heads(name):
            z = Dense(c.num_heads * c.head_dim, ("embed", "joined_kv"), c.dtype, name=name)(y)
            z = z.reshape(*x.shape[:2], c.num_heads, c.head_dim)
            return constrain(z, "batch", "length", "heads", "kv")

        rates = 10_000.0 ** (-np.arange(0, c.head_dim, 2, dtype=np.float32) / c.head_dim)
        query, key = (rotated(heads(name), seen.queries, rates) for name in ("query", "key"))
        cache = cache.write(self.index, key, heads("value"))
        query /= np.sqrt(c.head_dim).astype(query.dtype)
        mask = jnp.where(seen.visible, 0.0, MASKED)[:, None]
        y = attend(query, cache.keys[self.index], cache.values[self.index], mask)
        y = y.reshape(*x.shape[:2], -1)
        y = Dense(c.emb_dim, ("joined_kv", "embed"), c.dtype, name="out")(y)
        x += constrain(y, "batch", "length", "embed")
        y = RMSNorm(c.dtype, 1e-6, name="mlp_norm")(x)
        y = MLP(c.mlp_dim, c.emb_dim, ("silu", "linear"), c.dtype, name="mlp")(y)
        return x + constrain(y, "batch", "length", "embed"), cache


@dataclasses.dataclass(frozen=True)
class Rotary(PromptReader):
    """A decoder of [B, S] int32 prompts, padded behind with id 0."""

    stop_ids: ClassVar[tuple[int, ...]] = (1,)

    @property
    def cache_sizes(self):
        c = self.config
        return {"layers": c.num_layers, "heads": c.num_heads, "head_dim": c.head_dim}

    def network(self):
        return Network(self.config)

    def read_by_decode(self, params):
        return {name: leaf for name, leaf in params.items() if name != "embedding"}


families.register(families.Family("rotary", RotaryConfig, Rotary))
