"""The network as a `Model`: prompts in front of outputs, in one cache.

The last token of a prompt of p tokens is its start token. Position i of the output is in slot
p - 1 + i of its row, and the cache's length counts from there:

    slots     0   1   2   3   4   5    a prompt a, b, c, padded to 5, and an output x, y
    prefill   a   b   c   .   .        all of it is fed, and then rewound to c
    decode    a   b   c   x   y   .    c is fed again, as the start token; x and y follow
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from jax.sharding import PartitionSpec

from rotary.network import AXES, AXES_OF_A_LAYER, RotaryConfig, forward
from specdec.models.cache import KVCache, kv_bytes
from specdec.models.inputs import check_tokens
from specdec.types import Array, AxisRules, ModelOutput, PyTree


class RotaryCache(struct.PyTreeNode):
    """Slots of prompts and outputs; `length` and `capacity` are the outputs'."""

    slots: KVCache
    first: Array  # [B] int32, the slot of the start token
    before: int = struct.field(pytree_node=False)  # slots in front of it, at most

    @property
    def length(self) -> Array:
        return self.slots.length - self.first

    @property
    def capacity(self) -> int:
        return self.slots.capacity - self.before

    def rewind(self, length: Array) -> RotaryCache:
        return self.replace(slots=self.slots.rewind(self.first + length))


@dataclasses.dataclass(frozen=True)
class Rotary:
    """A decoder of [B, S] int32 prompts, padded behind."""

    config: RotaryConfig
    axis_rules: AxisRules = ()
    layout: str = "checkpoint"  # the only one
    pad_id: ClassVar[int] = 0
    stop_ids: ClassVar[tuple[int, ...]] = (1,)
    exact: ClassVar[bool] = True

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def dtype(self) -> str:
        return self.config.dtype

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    @property
    def sizes(self) -> Mapping[str, int]:
        names = ("emb_dim", "num_heads", "head_dim", "mlp_dim", "num_layers")
        return {name: getattr(self.config, name) for name in names}

    def axes(self) -> PyTree:
        tree = AXES | {f"layers_{i}": AXES_OF_A_LAYER for i in range(self.num_layers)}
        return jax.tree.map(lambda names: PartitionSpec(*names), tree, is_leaf=_is_names)

    def init(self, key: Array) -> PyTree:
        sizes = self.config.axis_sizes
        leaves, tree = jax.tree.flatten(self.axes())
        shapes = [[sizes[name] for name in names] for names in leaves]
        return jax.tree.unflatten(tree, map(_draw, jax.random.split(key, len(shapes)), shapes))

    def start(self, inputs: Array) -> Array:
        return jnp.take_along_axis(inputs, self._last(inputs)[:, None], axis=1)[:, 0]

    def active(self, inputs: Array) -> Array:
        return jnp.any(inputs != self.pad_id, axis=1)

    def prefill(self, params: PyTree, inputs: Array, capacity: int) -> RotaryCache:
        check_tokens(inputs)
        config, (rows, width), first = self.config, inputs.shape, self._last(inputs)
        with nn.logical_axis_rules(self.axis_rules):
            slots = KVCache.create(
                rows,
                width - 1 + capacity,
                layers=config.num_layers,
                heads=config.num_heads,
                head_dim=config.head_dim,
                dtype=config.dtype,
            )
            _, slots = forward(config, params, inputs, slots)
        return RotaryCache(slots.rewind(first), first, width - 1)

    def decode(
        self, params: PyTree, tokens: Array, cache: RotaryCache
    ) -> tuple[ModelOutput, RotaryCache]:
        with nn.logical_axis_rules(self.axis_rules):
            output, slots = forward(self.config, params, tokens, cache.slots)
        return output, cache.replace(slots=slots)

    def laid_out(self, *, tokens: int, platform: str | None = None) -> Rotary:
        return self

    def from_stored(self, params: PyTree) -> PyTree:
        return params

    def to_stored(self, params: PyTree) -> PyTree:
        return params

    def read_by_decode(self, params: PyTree) -> PyTree:
        return {name: leaf for name, leaf in params.items() if name != "embedding"}

    def cache_bytes(
        self, rows: int, slots: int, inputs_length: int, mesh: Mapping[str, int] | None = None
    ) -> int:
        config, slots = self.config, inputs_length - 1 + slots
        shape = (rows, config.num_heads, slots, config.head_dim)
        return config.num_layers * kv_bytes(shape, config.dtype, self.axis_rules, mesh)

    def _last(self, inputs: Array) -> Array:
        """[B] int32: where the last token of each prompt is."""
        tokens = jnp.sum(inputs != self.pad_id, axis=1, dtype=jnp.int32)
        return jnp.maximum(tokens - 1, 0)


def _is_names(x: object) -> bool:
    return isinstance(x, tuple)


def _draw(key: Array, shape: list[int]) -> Array:
    """Ones for a scale, and for a matrix random numbers that keep the size of what it is fed."""
    if len(shape) == 1:
        return jnp.ones(shape)
    return jax.random.normal(key, shape) / np.float32(np.sqrt(shape[0]))
