"""A target whose outputs can be enumerated, and which reads previous tokens from a KV cache."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from specdec.models.contract.blocks import View, view
from specdec.models.contract.cache import KVCache
from specdec.models.contract.inputs import check_layers, check_tokens
from specdec.models.contract.model import LayeredTarget
from specdec.types import Array, ModelOutput, PyTree


@dataclasses.dataclass(frozen=True)
class TableTarget(LayeredTarget):
    """A target that looks up logits by the input's class, the sum of all tokens, and the last one.

    The sum is computed from the slots of the KV cache. A stale or misplaced slot therefore changes
    the distribution, so that errors in rewinding, capacity or positions are visible.

    Args:
      vocab_size: V; the table has classes * V^3 logits.
      classes: the number of input classes; an input's class is the sum of its tokens modulo this.
      scale: the standard deviation of the random logits that `init` makes.
      num_layers: the number of layers, each of which sums over its own keys. After a layer, the
        sum is off by the number of remaining layers, so that early exits predict other tokens.
    """

    vocab_size: int
    classes: int = 1
    scale: float = 1.0
    num_layers: int = 1
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
            layers=self.num_layers,
            heads=1,
            head_dim=1,
            dtype=jnp.float32,
            encoded=input_class[:, None, None],
            inputs_mask=inputs != self.pad_id,
        )

    def decode(
        self,
        params: PyTree,
        tokens: Array,
        cache: KVCache,
        *,
        ancestors: Array | View | None = None,
        layers: tuple[int, int] | None = None,
        resume: Array | None = None,
    ) -> tuple[ModelOutput, KVCache]:
        check_layers(layers, resume, self.num_layers)
        classes = jnp.broadcast_to(cache.encoded[:, :, 0], tokens.shape)
        stream = jnp.stack([classes, 0 * tokens, tokens], axis=-1).astype(jnp.float32)
        stream = stream if resume is None else resume
        block = view(cache.length, cache.capacity, tokens.shape[1], ancestors)
        for i in range(*(layers or (0, self.num_layers))):
            cache = self._written(i, stream, cache)
            total = jnp.sum(jnp.where(block.visible, cache.keys[i][:, :, :, 0], 0), axis=-1)
            above = self.num_layers - 1 - i
            if i:  # an error in the layer below is carried on
                total = 2 * total - (stream[:, :, 1] - above - 1)
            total = (total + above) % self.vocab_size
            stream = jnp.stack([classes, total, stream[:, :, 2]], axis=-1)
        stream_after = None if layers is None else stream
        output = ModelOutput(self.logits(params, stream), stream, stream_after)
        return output, cache.rewind(cache.length + tokens.shape[1])

    def pass_by(
        self, params: PyTree, stream: Array, cache: KVCache, layers: tuple[int, int]
    ) -> KVCache:
        for i in range(*layers):
            cache = self._written(i, stream, cache)
        return cache.rewind(cache.length + stream.shape[1])

    def _written(self, layer: int, stream: Array, cache: KVCache) -> KVCache:
        stored = stream[:, :, 2, None, None]
        return cache.write(layer, stored, stored)

    def logits(self, params: PyTree, hidden: Array) -> Array:
        """Returns the logits for states `hidden` [..., 3]: class, sum and last token."""
        classes, total, tokens = jnp.moveaxis(hidden.astype(jnp.int32), -1, 0)
        return params["logits"][classes, total, tokens]
