"""A target small enough to enumerate, which still reads its past from a real KV cache."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from specdec.models.blocks import view
from specdec.models.cache import KVCache
from specdec.models.inputs import check_tokens
from specdec.types import Array, ModelOutput, PyTree


@dataclasses.dataclass(frozen=True)
class TableTarget:
    """Looks its logits up by the class of the input, the sum of all tokens, and the last one.

    The sum is taken over the cache, slot by slot, so that one stale or misplaced slot changes the
    distribution: whatever is wrong with rewinding, capacity or positions is wrong here too.

    vocab_size: V; the table has classes * V^3 logits.
    classes: inputs are told apart by the sum of their tokens, modulo this.
    scale: standard deviation of the random logits `init` makes.
    """

    vocab_size: int
    classes: int = 1
    scale: float = 1.0
    pad_id: ClassVar[int] = 0
    stop_ids: ClassVar[tuple[int, ...]] = (1,)
    exact: ClassVar[bool] = True

    def init(self, key: Array) -> PyTree:
        size = self.vocab_size
        logits = jax.random.normal(key, (self.classes, size, size, size), jnp.float32)
        return {"logits": self.scale * logits}

    def axes(self) -> PyTree:
        return {"logits": PartitionSpec(None, None, None, "vocab")}

    def start(self, inputs: Array) -> Array:
        return jnp.zeros(inputs.shape[0], jnp.int32)

    def active(self, inputs: Array) -> Array:
        return jnp.any(inputs != self.pad_id, axis=1)

    def prefill(self, params: PyTree, inputs: Array, capacity: int) -> KVCache:
        check_tokens(inputs)
        input_class = jnp.sum(inputs, axis=1) % self.classes
        return KVCache.create(
            inputs.shape[0],
            capacity,
            layers=1,
            heads=1,
            head_dim=1,
            dtype=jnp.float32,
            encoded=input_class[:, None, None],
            inputs_mask=inputs != self.pad_id,
        )

    def decode(
        self, params: PyTree, tokens: Array, cache: KVCache, *, ancestors: Array | None = None
    ) -> tuple[ModelOutput, KVCache]:
        stored = tokens[:, :, None, None].astype(jnp.float32)
        cache = cache.write(0, stored, stored)
        block = view(cache.length, cache.capacity, tokens.shape[1], ancestors)
        total = jnp.sum(jnp.where(block.visible, cache.keys[0][:, :, :, 0], 0), axis=-1)
        total = total.astype(jnp.int32) % self.vocab_size
        classes = jnp.broadcast_to(cache.encoded[:, :, 0], total.shape)
        hidden = jnp.stack([classes, total, tokens], axis=-1).astype(jnp.float32)
        output = ModelOutput(self.logits(params, hidden), hidden)
        return output, cache.rewind(cache.length + tokens.shape[1])

    def logits(self, params: PyTree, hidden: Array) -> Array:
        """Of a class, a sum and a token each."""
        classes, total, tokens = jnp.moveaxis(hidden.astype(jnp.int32), -1, 0)
        return params["logits"][classes, total, tokens]
