"""The network: blocks of tokens behind what is in a KV cache, as functions of a tree of arrays."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from specdec.models.cache import KVCache
from specdec.models.layers import MASKED, constrain, float32_matmul, matmul, precision
from specdec.types import Array, ModelOutput, PyTree

AXES = {"embedding": ("vocab", "embed"), "norm": ("embed",), "logits": ("embed", "vocab")}
AXES_OF_A_LAYER = {
    "attention_norm": ("embed",),
    "query": ("embed", "joined_kv"),
    "key": ("embed", "joined_kv"),
    "value": ("embed", "joined_kv"),
    "out": ("joined_kv", "embed"),
    "mlp_norm": ("embed",),
    "gate": ("embed", "mlp"),
    "up": ("embed", "mlp"),
    "down": ("mlp", "embed"),
}


@dataclasses.dataclass(frozen=True)
class RotaryConfig:
    """The architecture."""

    vocab_size: int
    emb_dim: int
    num_heads: int
    head_dim: int  # even
    mlp_dim: int
    num_layers: int
    dtype: str = "float32"  # or 'bfloat16'
    longest_wave: float = 10_000.0  # of the rotations, in positions over 2 pi

    @property
    def axis_sizes(self) -> dict[str, int]:
        """The size of each logical axis."""
        joined = self.num_heads * self.head_dim
        sizes = (self.vocab_size, self.emb_dim, self.mlp_dim, joined)
        return dict(zip(("vocab", "embed", "mlp", "joined_kv"), sizes, strict=True))


def forward(
    config: RotaryConfig, params: PyTree, tokens: Array, cache: KVCache
) -> tuple[ModelOutput, KVCache]:
    """Feeds [B, T] tokens at the positions cache.length + (0..T-1)."""
    cache, positions = cache.placed(), cache.positions(tokens.shape[1])
    x = _residual(params["embedding"][tokens].astype(config.dtype))
    for i in range(config.num_layers):
        layer = params[f"layers_{i}"]
        y, cache = _attention(config, layer, _norm(x, layer["attention_norm"]), cache, i, positions)
        x = _residual(x + y)
        x = _residual(x + _mlp(layer, _norm(x, layer["mlp_norm"])))
    hidden = _norm(x, params["norm"])
    logits = constrain(float32_matmul(hidden, params["logits"]), "batch", "length", None)
    return ModelOutput(logits, hidden), cache.rewind(cache.length + tokens.shape[1])


def rotated(x: Array, positions: Array, longest: float) -> Array:
    """[B, T, H, head_dim] with each pair of numbers turned by its position over a wavelength, so
    that products depend on distances alone (Su et al. 2021, section 3.4)."""
    half = x.shape[-1] // 2
    rates = longest ** (-np.arange(half, dtype=np.float32) / half)
    angles = positions[:, :, None, None] * rates[None, None, None]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def _attention(
    config: RotaryConfig, layer: PyTree, x: Array, cache: KVCache, index: int, positions: Array
) -> tuple[Array, KVCache]:
    """Of [B, T, D] over all slots up to each query's own."""
    query, key, value = (_heads(config, x, layer[name]) for name in ("query", "key", "value"))
    key = rotated(key, positions, config.longest_wave)
    query = rotated(query, positions, config.longest_wave)
    cache = cache.write(index, key, value)
    visible = jnp.arange(cache.capacity)[None, None] <= positions[:, :, None]
    mixed = _mix(query, cache.keys[index], cache.values[index], visible[:, None])
    return _dense(mixed.reshape(*x.shape[:2], -1), layer["out"]), cache


def _mix(query: Array, keys: Array, values: Array, visible: Array) -> Array:
    """[B, T, H, d] over [B, H, C, d]; the softmax is float32."""
    exact = precision(query.dtype)
    scores = jnp.einsum("bthd,bhcd->bhtc", query, keys, precision=exact).astype(jnp.float32)
    scores = jnp.where(visible, scores / math.sqrt(query.shape[-1]), MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    return jnp.einsum("bhtc,bhcd->bthd", weights, values, precision=exact)


def _heads(config: RotaryConfig, x: Array, kernel: Array) -> Array:
    x = _dense(x, kernel).reshape(*x.shape[:2], config.num_heads, config.head_dim)
    return constrain(x, "batch", "length", "heads", "kv")


def _mlp(layer: PyTree, x: Array) -> Array:
    hidden = jax.nn.silu(_dense(x, layer["gate"])) * _dense(x, layer["up"])
    return _dense(constrain(hidden, "batch", "length", "mlp"), layer["down"])


def _dense(x: Array, kernel: Array) -> Array:
    return matmul(x, kernel.astype(x.dtype), precision=precision(x.dtype))


def _residual(x: Array) -> Array:
    return constrain(x, "batch", "length", "embed")


def _norm(x: Array, scale: Array) -> Array:
    mean = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * scale.astype(x.dtype)[None, None]
