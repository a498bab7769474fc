"""T5 (v1.0, v1.1 and their descendants) as a network and as a `Model`, with T5X's tree.

Attention has no 1/sqrt(head_dim), because T5 folds it into the initialisation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from specdec.models.bases.networks import EncoderDecoderNetwork, StackNetwork
from specdec.models.bases.stack import EncoderDecoder
from specdec.models.bases.transformer import (
    Attention,
    BlockInputs,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    masked,
)
from specdec.models.contract.blocks import View
from specdec.models.contract.cache import KVCache
from specdec.models.layers.attention import attention_weights
from specdec.models.layers.layers import constrain, fan_in, parameter
from specdec.models.layers.products import Fused, precision
from specdec.models.placement import device, single_rows
from specdec.models.t5.config import SIZES, T5Config
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


class T5Attention(Attention):
    @nn.nowrap
    def initializer(self, name: str) -> Callable:
        normal = fan_in("normal")
        if name != "query":
            return normal
        return lambda *a, **k: normal(*a, **k) / math.sqrt(self.sizes.head_dim)

    def over_itself(self, x: Array, positions: Array, bias: Array) -> Array:
        """Returns attention [B, S, D] of the encoder's x [B, S, D] over its own keys and values.

        The layout, and so the rounding, is T5X's. Float32 logits therefore agree to the last bits
        even for weights that amplify rounding, as random ones do a hundredfold.
        """
        keys, values = self.keys_values(x)
        weights = attention_weights("bthd,bshd->bhts", self.queries(x), keys, bias)
        exact = precision(self.config.dtype)
        return self.mapped(jnp.einsum("bhts,bshd->bthd", weights, values, precision=exact))


def _relative_bias(config: T5Config, bidirectional: bool) -> RelativeBias:
    return RelativeBias(
        config.num_heads,
        config.relative_attention_num_buckets,
        config.relative_attention_max_distance,
        bidirectional,
    )


def _biases(
    stack: T5Encoder | T5Decoder, layers: list, queries: Array, keys: Array, mask: Array
) -> list:
    """Returns, for each layer, the mask plus its relative-position bias, or plus the stack's."""
    if stack.config.relative_bias_per_layer:
        return [layer.relpos_bias(queries, keys) + mask for layer in layers]
    return [stack.relpos_bias(queries, keys) + mask] * len(layers)


class T5EncoderLayer(EncoderLayer):
    config: T5Config
    attention_class: ClassVar[type[Attention]] = T5Attention
    first: ClassVar[str] = "attention"

    def setup(self):
        super().setup()
        if self.config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(self.config, bidirectional=True)


class T5Encoder(Encoder):
    config: T5Config
    layer_type: ClassVar[type[EncoderLayer]] = T5EncoderLayer

    def setup(self):
        super().setup()
        if not self.config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(self.config, bidirectional=True)

    def biases(self, positions: Array, inputs_mask: Array) -> list[Array]:
        mask = masked(inputs_mask[:, None, None, :])
        return _biases(self, self.layers, positions, positions, mask)


class T5DecoderLayer(DecoderLayer):
    config: T5Config
    attention_class: ClassVar[type[Attention]] = T5Attention

    def setup(self):
        super().setup()
        if self.config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(self.config, bidirectional=False)


class T5Decoder(Decoder):
    config: T5Config
    layer_type: ClassVar[type[DecoderLayer]] = T5DecoderLayer

    def setup(self):
        super().setup()
        if not self.config.relative_bias_per_layer:
            self.relpos_bias = _relative_bias(self.config, bidirectional=False)

    def biases(self, seen: View, layers: range) -> list[Array]:
        run = [self.layers[i] for i in layers]
        return _biases(self, run, seen.queries, seen.keys, masked(seen.visible[:, None]))

    def run(
        self,
        x: Array,
        cache: KVCache,
        layers: range,
        blocks: list[BlockInputs],
        fused: Fused | None,
    ) -> tuple[Array, KVCache]:
        kernels = None
        if fused is not None and not self.is_initializing():
            kernels = _own_kernels(fused, self.config, x, cache)
        if kernels is None:
            return super().run(x, cache, layers, blocks, fused)
        biases, params = [block.bias for block in blocks], self.variables["params"]
        return kernels.run(self.config, params, x, cache, layers, biases, blocks[0].cross_bias)


def _own_kernels(fused: Fused, config: T5Config, x: Array, cache: KVCache) -> ModuleType | None:
    """Returns the module of the kernels if they can compute a call on [B, T, D], else None."""
    if fused == "triton":  # Pallas takes a second to import
        from specdec.models.t5 import fused as module
    else:
        from specdec.models.t5 import streamed as module
    rows, tokens, _ = x.shape
    return module if module.fits(config, rows, tokens, cache) else None


class T5(EncoderDecoderNetwork):
    """The network of a `T5Target`."""

    encoder_class: ClassVar[type[Encoder]] = T5Encoder
    decoder_class: ClassVar[type[Decoder]] = T5Decoder

    def embed(self, tokens: Array) -> Array:
        return self.token_embedder(tokens)


Self = TypeVar("Self", bound="T5Target")

FUSED: Mapping[str, Fused] = {"gpu": "triton", "tpu": "mosaic"}  # by backend


@dataclasses.dataclass(frozen=True)
class T5Target(EncoderDecoder):
    """T5 as a `Model`, for targets and drafters, with T5X's tree of parameters.

    Args:
      config: the architecture. The other fields are those of `StackModel`; fused kernels are those
        of `t5.fused` ("triton") and `t5.streamed` ("mosaic").

    Raises:
      ValueError: kernels are both joined and fused, or either in a layout or with weights that are
        not those of checkpoints.
    """

    config: T5Config
    config_class: ClassVar[type[T5Config]] = T5Config
    network_class: ClassVar[type[StackNetwork]] = T5
    size_names: ClassVar[tuple[str, ...]] = SIZES
    has_joined: ClassVar[bool] = True
    has_fused: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        joined, fused = self.layout.joined, self.layout.fused
        if (joined or fused) and not self.keeps_kernels or joined and fused:
            name = type(self).__name__
            raise ValueError(
                f"{name}.layout.joined is {joined} and fused is {fused!r}, its storage "
                f"{self.layout.storage!r} and its weights {self.weights!r}; give at most one of "
                "the two, and only with storage 'checkpoint' and weights 'stored'"
            )

    def drafting(self: Self) -> Self:
        """Returns this model with joined or fused kernels, where they were measured to be faster.

        Fused kernels compute calls at batch 1 on one and two tokens, but not the logits. On a TPU a
        call on one token may therefore still be computed with two.
        """
        chosen = self.layout.joined or self.layout.fused
        if chosen or not self.keeps_kernels or self.axis_rules or not device.measures_calls():
            return self
        others = [self.in_layout(joined=True)]
        if fused := FUSED.get(jax.default_backend()):
            width = 1 if fused == "triton" else self.layout.least_width
            others.append(self.in_layout(fused=fused, least_width=width))
        return single_rows.fastest((self, *others))
