"""The base classes of decoder-only models, which continue prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from specdec.common.values import PositiveFloat, PositiveInt, TokenIds
from specdec.models.bases.architecture import NO_PAD, Architecture, PadId
from specdec.models.bases.linen import LinenModel
from specdec.models.bases.networks import StackNetwork
from specdec.models.bases.stack import StackModel
from specdec.models.contract import loops
from specdec.models.contract.cache import PromptCache
from specdec.models.contract.inputs import check_tokens
from specdec.models.layers.layers import DType
from specdec.models.sizes.kept_parts import Numbers
from specdec.types import Array, ModelOutput, Prompt, PyTree

SIZES = ("emb_dim", "num_heads", "num_kv_heads", "head_dim", "mlp_dim", "num_decoder_layers")
BLOCK = 512  # tokens of a prompt that are read in one call


@dataclasses.dataclass(frozen=True)
class PromptReader(LinenModel):
    """A model that continues prompts [B, S] int32, which are padded at the end with its `pad_id`.

    A family adds `network`, whose call is `decode` on a `PromptCache`.
    """

    decoder_only: ClassVar[bool] = True

    @property
    def cache_heads(self) -> int:
        """The number of heads of keys and values, which their kernels' width does not tell."""
        return self.cache_sizes["heads"]

    def example(self) -> tuple[Array, PromptCache]:
        """Returns a token and an empty cache for it."""
        return jnp.zeros([1, 1], jnp.int32), self._cache(1, 1)

    def start(self, inputs: Array) -> Array:
        """Returns [B] int32, the last token of each prompt; 0 for a row of padding."""
        last = jnp.take_along_axis(inputs, self._base(inputs)[:, None], axis=1)[:, 0]
        return jnp.maximum(last, 0)

    def prompt(self, inputs: Array) -> Prompt:
        """Returns the inputs with their lengths, as the text that outputs continue."""
        return Prompt(inputs, self._base(inputs) + 1)

    def prefill(self, params: PyTree, inputs: Array, capacity: int) -> PromptCache:
        """Returns the cache of prompts [B, S] int32 without their last tokens, read in blocks."""
        check_tokens(inputs)

        def feed(tokens: Array, cache: PromptCache) -> PromptCache:
            return cast(PromptCache, self.decode(params, tokens, cache)[1])

        return self._filled(inputs, self._base(inputs), capacity, feed)

    def _filled(
        self,
        prompts: Array,
        base: Array,
        capacity: int,
        feed: Callable[[Array, PromptCache], PromptCache],
    ) -> PromptCache:
        """Returns the cache after all but the last token of prompts, [B, S] or [B, S, D].

        `feed` returns the cache after one more block of a prompt, [B, T] or [B, T, D].
        """
        rows, room = prompts.shape[0], prompts.shape[1] - 1
        cache = self._cache(rows, capacity + room, base=base, room=room)
        if not room:
            return cache
        count = -(-room // BLOCK)
        size = -(-room // count)
        others = prompts.shape[2:]
        padding = (0, 0), (0, count * size - room), *((0, 0) for _ in others)
        fed = jnp.pad(prompts[:, :-1], padding)
        read = self._cache(rows, count * size)
        if count == 1:
            read = feed(fed, read)
        else:
            blocks = fed.reshape(rows, count, size, *others).swapaxes(0, 1)
            read, _ = loops.scan(lambda cache, block: (feed(block, cache), None), read, blocks)

        def behind(empty: Array, array: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(empty, array[:, :, :room], 0, axis=2)

        keys, values = (
            tuple(map(behind, getattr(cache, name), getattr(read, name)))
            for name in ("keys", "values")
        )
        with nn.logical_axis_rules(self.axis_rules):
            return cache.replace(keys=keys, values=values).placed()

    def cache_bytes(
        self, rows: int, slots: int, inputs_length: int, mesh: Mapping[str, int] | None = None
    ) -> int:
        """Returns the bytes of keys and values of outputs and prompts on one device."""
        return super().cache_bytes(rows, slots, inputs_length - 1, mesh)

    def _base(self, inputs: Array) -> Array:
        """Returns [B] int32, the index of each prompt's last token; 0 for a row of padding."""
        index = jnp.arange(inputs.shape[1], dtype=jnp.int32)[None]
        return jnp.max(jnp.where(inputs != self.pad_id, index, 0), axis=1)

    def _cache(
        self, rows: int, slots: int, room: int = 0, base: Array | None = None
    ) -> PromptCache:
        base = jnp.zeros([rows], jnp.int32) if base is None else base
        settings = {"dtype": self.dtype, **self.cache_sizes, "base": base, "room": room}
        with nn.logical_axis_rules(self.axis_rules):
            return PromptCache.create(rows, slots + self.spare, **settings, spare=self.spare)


@dataclasses.dataclass(frozen=True)
class DecoderConfig(Architecture):
    """The architecture of a decoder-only model; a family adds fields of its own.

    The other fields are those of `Architecture`.

    Args:
      context: tokens of the longest text that the model was trained on.
    """

    vocab_size: PositiveInt
    emb_dim: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    mlp_dim: PositiveInt
    num_decoder_layers: PositiveInt
    context: PositiveInt = 2048
    logits_via_embedding: bool = False
    dtype: DType = "float32"
    layer_norm_epsilon: PositiveFloat = 1e-5
    pad_id: PadId = dataclasses.field(default=NO_PAD, repr=False)
    stop_ids: TokenIds = dataclasses.field(default=(2,), repr=False)
    head_ids: Numbers | None = dataclasses.field(default=None, repr=False)

    num_encoder_layers: ClassVar[int] = 0
    has_cross: ClassVar[bool] = False
    mlp_activations: ClassVar[tuple[str, ...]] = ("silu", "linear")
    pad_remedy: ClassVar[str] = "-1"


class DecoderOnly(StackNetwork):
    """The network of a `PromptModel`."""

    def __call__(self, tokens: Array, cache: PromptCache) -> ModelOutput:
        return self.decode(tokens, cache)[0]


@dataclasses.dataclass(frozen=True)
class PromptModel(PromptReader, StackModel):
    """A decoder-only model of some family.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
    """

    config: DecoderConfig
    size_names: ClassVar[tuple[str, ...]] = SIZES
    network_class: ClassVar[type[StackNetwork]] = DecoderOnly

    @property
    def longest_text(self) -> int | None:
        """The number of positions in a learned table; None for rotary positions, without limit."""
        rows = self.config.num_positions
        return None if rows is None else rows - self.config.first_position
