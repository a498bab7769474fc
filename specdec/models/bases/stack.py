"""The base classes of models with a stack of decoder layers, and of those with an encoder too."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar, TypeVar, cast

import jax
import jax.numpy as jnp
from flax import traverse_util

from specdec.models.bases.architecture import Architecture
from specdec.models.bases.linen import LinenModel
from specdec.models.bases.networks import StackNetwork
from specdec.models.contract import blocks
from specdec.models.contract.blocks import View
from specdec.models.contract.cache import KVCache
from specdec.models.contract.inputs import check_layers, check_tokens
from specdec.models.contract.model import LayeredTarget
from specdec.models.layers.int8 import Rounding
from specdec.models.placement import device as devices
from specdec.models.placement import layouts, single_rows
from specdec.models.placement.device import Device
from specdec.models.placement.layouts import STORED, Layout
from specdec.types import Array, ModelOutput, PyTree

Self = TypeVar("Self", bound="StackModel")


@dataclasses.dataclass(frozen=True)
class StackModel(LinenModel, LayeredTarget):
    """A `Model` whose parameters have decoder layers: "decoder/layers_0", "decoder/layers_1", ..

    The parameters are those of a checkpoint, or the result of `from_stored` for them. A family adds
    `network_class`, `example`, `start` and `prefill`. Its config is an `Architecture`.

    Args:
      config: the architecture.
      axis_rules: pairs of a logical axis name and the mesh axis, or None, that it is divided over
        under a mesh (`jax.set_mesh`). `models.partitioning` has the usual ones. They are a field
        rather than Linen's context, because the compiled program depends on them.
      layout: how parameters are stored and calls computed, which `laid_out` chooses for a device.
      weights: "int8" for kernels in eight bits, "int8_tokens" for tokens in eight bits as well.
        Each is another model than the checkpoint's.
    """

    config: Architecture
    layout: Layout = STORED
    weights: Rounding = "stored"
    has_int8: ClassVar[bool] = True
    config_class: ClassVar[type]
    network_class: ClassVar[type[StackNetwork]]
    size_names: ClassVar[tuple[str, ...]]  # the config's fields that make a model small or large

    def __post_init__(self):
        if type(self.config) is not self.config_class:  # it would be half of another model
            name, kind = type(self).__name__, type(self.config).__name__
            raise ValueError(f"{name}.config is a {kind}; give families.model_of(config) instead")
        super().__post_init__()
        unsigned = self.layout.storage == "unsigned"
        if unsigned and (self.weights != "int8_tokens" or self.layout.widened):
            raise ValueError(
                f"{type(self).__name__}.layout is 'unsigned' and weights are {self.weights!r}; "
                "give another layout, or 'int8_tokens' and widened=False"
            )

    def network(self) -> StackNetwork:
        return self.network_class(self.config, self.layout, self.weights)

    @property
    def pad_id(self) -> int:  # type: ignore[override]
        return self.config.pad_id

    @property
    def stop_ids(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.config.stop_ids

    @property
    def head_ids(self) -> tuple[int, ...] | None:
        return self.config.head_ids

    @property
    def num_layers(self) -> int:
        """The number of decoder layers."""
        return self.config.num_decoder_layers

    @property
    def sizes(self) -> Mapping[str, int]:
        """The config's fields that differ between small and large models of the family."""
        return {name: getattr(self.config, name) for name in self.size_names}

    def laid_out(self: Self, calls: Mapping[int, float], device: Device | None = None) -> Self:
        """Returns this model in the layout that was measured to be fastest on a device.

        A call on one token is computed with two where that is faster. On a CPU the time of products
        decides this, and on other devices the time of whole calls.

        Logits are equal up to the order of summation, so a near-tie may be decided differently.

        At batch 1, `calls` are {1: 1} for the model alone, {2: 1, 1: gamma - 1} for a drafter, and
        {gamma + 1: 1} for the target that verifies; `Plan.laid_out` does this.
        """
        int8_tokens = self.weights == "int8_tokens"
        device = device or devices.this(int8_tokens)
        layout = STORED
        if device is not None and self.weights == "int8":
            # A CPU reads eight bits well for one token only, in this layout.
            layout = Layout("out_in")
        elif device is not None:
            kernels = _kernels_of_step(self.whole.stored())
            layout = layouts.fastest(kernels, calls, device, int8_tokens)
        elif 1 in calls and devices.measures_calls():
            layout = Layout(least_width=single_rows.least_width(self.whole.stored()))
        kept = {name: getattr(self.layout, name) for name in ("joined", "fused", "in_order")}
        return dataclasses.replace(self, layout=dataclasses.replace(layout, **kept))

    def from_stored(self, params: PyTree) -> PyTree:
        """Returns a checkpoint's tree in this layout; arrays that keep their shape are shared."""
        int8_tokens = self.weights == "int8_tokens"
        params = layouts.from_stored(params, self.config, self.layout, int8_tokens)
        if self.layout.joined:
            params = layouts.joined(params)
        if self.weights == "stored":
            return params
        dtype = self.dtype if self.layout.widened else "int8"
        return layouts.quantized(params, self.layout, int8_tokens, dtype)

    def swapped(self) -> frozenset[str] | None:
        tied = self.config.head_is_table
        copied = tied and not layouts.logits_from_table(self.config, self.layout, False)
        if self.weights != "stored" or self.layout.joined or copied:
            return None
        shapes = self.stored().parameter_shapes()
        return frozenset(map("/".join, layouts.out_in(shapes, self.layout)))

    def to_stored(self, params: PyTree) -> PyTree:
        """Returns a checkpoint's tree: the inverse of `from_stored`, exact unless in eight bits."""
        if self.weights != "stored":
            params = layouts.dequantized(params, self.layout)
        if self.layout.joined:
            params = layouts.apart(params)
        return layouts.to_stored(params, self.config, self.layout)

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
        """Feeds tokens [B, T] int32; returns output and cache, see `LayeredTarget.decode`."""
        check_layers(layers, resume, self.num_layers)
        return self._fed(params, tokens, cache, ancestors, layers, resume)

    def computed_width(self, width: int) -> int:
        return max(width, self.layout.least_width)

    def same_bits(self: Self, width: int = 2, in_order: bool = False) -> Self:
        """Returns this model with one order of products for all calls, see `Target.same_bits`.

        Calls compute `width` tokens or more: one row is multiplied by other code than several rows.
        """
        layout = Layout(
            least_width=max(width, self.layout.least_width),
            in_order=in_order or self.layout.in_order,
        )
        return dataclasses.replace(self, layout=layout)

    def _fed(
        self,
        params: PyTree,
        tokens: Array,
        cache: KVCache,
        ancestors: Array | View | None,
        layers: tuple[int, int] | None,
        *others: Array | None,
    ) -> tuple[ModelOutput, KVCache]:
        """Runs the network on a block, with tokens added up to the computed width.

        The slots of added tokens lie after the cache's new length, so that they are garbage like
        those of rejected tokens. `others` are further arguments [B, T, ..] of the network's
        `decode`.
        """
        width = tokens.shape[1]
        more = self.computed_width(width) - width
        if more:
            tokens = _filled_up(tokens, more)
            others = tuple(None if x is None else _filled_up(x, more) for x in others)
            ancestors = blocks.filled_up(ancestors, more)
        result = self.apply(params, tokens, cache, ancestors, layers, *others, method="decode")
        output, fed = cast(tuple[ModelOutput, KVCache], result)
        if not more:
            return output, fed
        # Without the barrier a compiler may compute only the rows that are read.
        output = jax.lax.optimization_barrier(output)
        output = jax.tree.map(lambda x: x[:, :width], output)
        return output, fed.rewind(cache.length + width)

    def first(self: Self, layers: int) -> Self:
        """Returns the model of the first `layers` decoder layers; see `LayeredTarget.first`."""
        check_layers((0, layers), None, self.num_layers)
        return dataclasses.replace(
            self, config=dataclasses.replace(self.config, num_decoder_layers=layers)
        )

    def part_of(self, params: PyTree) -> PyTree:
        """Returns those of a deeper model's parameters that this model has."""
        names = {f"layers_{i}" for i in range(self.num_layers)}
        decoder = params["decoder"].items()
        leaves = {k: leaf for k, leaf in decoder if k in names or not k.startswith("layers_")}
        return params | {"decoder": leaves}

    def pass_by(
        self, params: PyTree, stream: Array, cache: KVCache, layers: tuple[int, int]
    ) -> KVCache:
        """Returns the cache with keys and values, in layers a .. b - 1, of states that skip them.

        Keys and values of each of the layers are computed from the unchanged states [B, T, D]. The
        cache's length grows by T.
        """
        check_layers(layers, stream, self.num_layers)
        return cast(KVCache, self.apply(params, stream, cache, layers, method="pass_by"))

    def logits(self, params: PyTree, hidden: Array) -> Array:
        """Maps states [B, T, D] to logits [B, T, V] float32, projected as in `decode`."""
        return cast(Array, self.apply(params, hidden, method="logits"))

    def read_by_decode(self, params: PyTree) -> PyTree:
        """Returns the parameters that each call of `decode` reads completely.

        Kernels of cross-attention's keys and values are excluded, because only `prefill` uses them.
        Of the embedding, only the rows of the fed tokens are read, unless it projects to the
        logits.
        """
        decoder = traverse_util.flatten_dict(params["decoder"])
        read: dict[str, PyTree] = {
            "decoder": traverse_util.unflatten_dict(layouts.read_in_step(decoder))
        }
        if layouts.logits_from_table(self.config, self.layout, self.weights == "int8_tokens"):
            read["token_embedder"] = params["token_embedder"]
        return read


@dataclasses.dataclass(frozen=True)
class EncoderDecoder(StackModel):
    """A `StackModel` with an encoder, or one that reads another model's encoder output instead.

    Its network is an `EncoderDecoderNetwork`.
    """

    def example(self) -> tuple[Array, Array]:
        """Returns inputs and outputs of one token."""
        tokens = jnp.zeros([1, 1], jnp.int32)
        return tokens, tokens

    def start(self, inputs: Array) -> Array:
        """Returns [B] int32, the config's start token."""
        return jnp.full(inputs.shape[0], self.config.decoder_start_id, jnp.int32)

    def check_arrays(self, inputs: Array) -> None:
        """Raises ValueError, at tracing, for inputs of another shape or dtype than the model's."""
        check_tokens(inputs)

    @property
    def encoded_dim(self) -> int | None:
        return self.config.encoded_dim

    def prefill(self, params: PyTree, inputs: Array, capacity: int) -> KVCache:
        """Encodes inputs, [B, S] int32 by default; returns a cache with their keys and values."""
        if self.encoded_dim is not None:
            raise ValueError(
                "this model has no encoder (encoded_dim): it drafts for the model whose encoder's "
                "output it reads, and decodes nothing by itself"
            )
        self.check_arrays(inputs)
        return self._read(params, "encode", capacity, inputs)

    def attach(self, params: PyTree, encoded: Array, mask: Array, capacity: int) -> KVCache:
        """Returns a cache with keys and values of an encoder's output [B, S, encoded_dim]; `mask`
        [B, S] is False for padding."""
        return self._read(params, "attach", capacity, encoded.astype(self.config.dtype), mask)

    def _read(self, params: PyTree, method: str, capacity: int, *inputs: Array) -> KVCache:
        cache = self.apply(params, *inputs, capacity + self.spare, method=method)
        return cast(KVCache, cache.replace(spare=self.spare))


def _filled_up(x: Array, more: int) -> Array:
    """Returns [B, T + more, ..] with the last token of each row repeated."""
    return jnp.pad(x, [(0, 0), (0, more), *((0, 0) for _ in x.shape[2:])], mode="edge")


@functools.cache
def _kernels_of_step(model: StackModel) -> dict[int, int]:
    """Counts the matrices that a call of `decode` reads, by their bytes in float32."""
    read = model.read_by_decode(model.parameter_shapes())
    return dict(Counter(4 * leaf.size for leaf in jax.tree.leaves(read) if leaf.ndim == 2))
