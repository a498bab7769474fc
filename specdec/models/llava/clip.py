"""CLIP's vision transformer, which maps pictures to features of their patches."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.common.values import Checked, PositiveFloat, PositiveInt, is_integer
from specdec.models.bases.architecture import SPREAD
from specdec.models.layers.attention import attend
from specdec.models.layers.layers import (
    MLP,
    Dense,
    Embedding,
    LayerNorm,
    constrain,
    fan_in,
    layer_class,
    matmul,
    parameter,
)
from specdec.models.layers.products import precision
from specdec.types import Array

CHANNELS = 3


@dataclasses.dataclass(frozen=True)
class ClipConfig(Checked):
    """The architecture of CLIP's vision tower (Radford et al. 2021, 2103.00020, section 2.4).

    Args:
      image_size: the pixels of a picture's side.
      patch_size: the pixels of a patch's side, a divisor of `image_size`.
      emb_dim: the width of the residual stream.
      num_heads: attention heads, a divisor of `emb_dim`.
      mlp_dim: hidden units of an MLP.
      num_layers: the number of layers.
      feature_layer: the index of the features among the stream before the first layer and that
        after each layer; -2 is the stream before the last layer.
      layer_norm_epsilon: epsilon of the norms.
    """

    image_size: PositiveInt
    patch_size: PositiveInt
    emb_dim: PositiveInt
    num_heads: PositiveInt
    mlp_dim: PositiveInt
    num_layers: PositiveInt
    feature_layer: int = -2
    layer_norm_epsilon: PositiveFloat = 1e-5

    def __post_init__(self):
        super().__post_init__()
        for part, total in (("patch_size", "image_size"), ("num_heads", "emb_dim")):
            if getattr(self, total) % getattr(self, part):
                raise ValueError(
                    f"ClipConfig.{part} is {getattr(self, part)}, which does not divide {total} "
                    f"{getattr(self, total)}; give a divisor"
                )
        last = self.num_layers
        if not is_integer(self.feature_layer, -last - 1) or self.feature_layer > last:
            raise ValueError(
                f"ClipConfig.feature_layer is {self.feature_layer!r}; give one layer, an integer "
                f"from {-last - 1} to {last}"
            )

    @property
    def num_patches(self) -> int:
        """The number of patches of a picture."""
        return (self.image_size // self.patch_size) ** 2


class ClipAttention(nn.Module):
    config: ClipConfig
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        c = self.config
        head_dim = c.emb_dim // c.num_heads

        def heads(name: str) -> Array:
            dense = Dense(c.emb_dim, ("embed", "joined_kv"), self.dtype, bias=True, name=name)
            split = dense(x).reshape(*x.shape[:2], c.num_heads, head_dim)
            return constrain(split, "batch", "length", "heads", "kv")

        query = heads("query")
        query *= np.asarray(1 / math.sqrt(head_dim), query.dtype)
        keys, values = (heads(name).swapaxes(1, 2) for name in ("key", "value"))
        y = attend(query, keys, values, jnp.zeros([1, 1, 1, 1]))
        y = y.reshape(x.shape)
        return Dense(c.emb_dim, ("joined_kv", "embed"), self.dtype, bias=True, name="out")(y)


class ClipLayer(nn.Module):
    config: ClipConfig
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        c = self.config
        norm = functools.partial(LayerNorm, self.dtype, c.layer_norm_epsilon)
        attention = ClipAttention(c, self.dtype, name="self_attention")
        mlp = MLP(c.mlp_dim, c.emb_dim, ("quick_gelu",), self.dtype, bias=True, name="mlp")
        x = x + attention(norm(name="pre_self_attention_layer_norm")(x))
        x = x + mlp(norm(name="pre_mlp_layer_norm")(x))
        return constrain(x, "batch", "length", "embed")


class ClipTower(nn.Module):
    """Maps pixels [N, 3, image_size, image_size] to features [N, patches, emb_dim].

    The module has all parameters of a checkpoint. XLA removes the layers after the features, and
    the last norm.
    """

    config: ClipConfig
    dtype: str

    @nn.compact
    def __call__(self, pixels: Array) -> Array:
        c = self.config
        count, size, grid = len(pixels), c.patch_size, c.image_size // c.patch_size
        # The axes of a patch are those of transformers' kernel, reversed.
        patches = pixels.reshape(count, CHANNELS, grid, size, grid, size)
        patches = patches.transpose(0, 2, 4, 5, 3, 1).reshape(count, c.num_patches, -1)
        axes = ("patch_column", "patch_row", "channel", "embed")
        shape = (size, size, CHANNELS, c.emb_dim)
        kernel = parameter(self, "patch_kernel", fan_in("truncated_normal"), axes, shape)
        spread = nn.initializers.normal(SPREAD)
        first = parameter(self, "class_embedding", spread, ("embed",), (c.emb_dim,))
        positions = Embedding(
            *(c.num_patches + 1, c.emb_dim, self.dtype),
            rows="positions",
            spread=SPREAD,
            name="position_embedder",
        )
        norm = functools.partial(LayerNorm, self.dtype, c.layer_norm_epsilon)

        kernel = kernel.astype(self.dtype).reshape(-1, c.emb_dim)
        x = matmul(patches.astype(self.dtype), kernel, precision=precision(self.dtype))
        first = jnp.broadcast_to(first.astype(self.dtype), (count, 1, c.emb_dim))
        x = jnp.concatenate([first, x], axis=1) + positions(jnp.arange(c.num_patches + 1)[None])
        streams = [norm(name="pre_layer_norm")(x)]
        layer = layer_class(ClipLayer)
        for i in range(c.num_layers):
            streams.append(layer(c, self.dtype, name=f"layers_{i}")(streams[-1]))
        norm(name="post_layer_norm")(streams[-1])
        return streams[c.feature_layer][:, 1:]
