"""The base classes of objects with parameters: any weights, targets, and models of a family."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp

from specdec.common.values import check_is
from specdec.models.contract.blocks import View
from specdec.models.placement.device import Device
from specdec.models.placement.layouts import Layout
from specdec.types import Array, AxisRules, Cache, ModelOutput, Prompt, PyTree, Resume

EXAMPLE = "such as T5Target(config)"

Self = TypeVar("Self", bound="Weights")
M = TypeVar("M", bound="Model")


class Config(Protocol):
    """The architecture of a family's model: a frozen dataclass of plain values."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def vocab_size(self) -> int: ...
    @property
    def dtype(self) -> str: ...


class Weights(abc.ABC):
    """An object with a tree of parameters: a model, or heads on a model's states."""

    @abc.abstractmethod
    def init(self, key: Array) -> PyTree:
        """Returns random parameters."""

    def parameter_shapes(self) -> PyTree:
        """Returns the shapes and dtypes of the parameters that `init` returns."""
        return jax.eval_shape(self.init, jax.random.key(0))

    @abc.abstractmethod
    def axes(self) -> PyTree:
        """Returns a tree like the parameters, with a tuple of logical axis names for each array."""

    @property
    def dtype(self) -> str:
        """The dtype of matrix products and of the cache, 'float32' or 'bfloat16'."""
        return "float32"

    @property
    def cache_heads(self) -> int | None:
        """The number of heads that the mesh axis of "heads" has to divide; None for no limit."""
        return None

    @property
    def longest_text(self) -> int | None:
        """The most tokens of input and output together; None if there is no such limit."""
        return None

    @property
    def longest_output(self) -> int | None:
        """The most tokens of an output; None if there is no such limit."""
        return None

    @property
    def states_dim(self) -> int | None:
        """The width of the target's hidden states if a drafter reads one per token; else None."""
        return None

    @property
    def encoded_dim(self) -> int | None:
        """The width of another model's encoder output, if `attach` reads one.

        None for a model that reads inputs by `prefill`.
        """
        return None

    @property
    def head_ids(self) -> tuple[int, ...] | None:
        """The ids that can have a probability above 0, ascending; None for all."""
        return None

    def laid_out(self: Self, calls: Mapping[int, float], device: Device | None = None) -> Self:
        """Returns this model in the layout that is fastest for its calls; by default unchanged.

        `calls` maps a number of tokens, over all rows, to the number of calls with these tokens.
        """
        return self

    def drafting(self: Self) -> Self:
        """Returns this model for drafting only, where logits may be rounded differently.

        It uses the kernels that were measured to be fastest on this device; by default unchanged.
        """
        return self

    def stored(self: Self) -> Self:
        """Returns this model with parameters as in checkpoints; by default unchanged."""
        return self

    def from_stored(self, params: PyTree) -> PyTree:
        """Returns a checkpoint's parameters in this layout; by default unchanged."""
        return params

    def swapped(self) -> frozenset[str] | None:
        """Returns the names, with slashes, of the matrices that `from_stored` transposes.

        None if `from_stored` changes more. A reader of files can transpose them while it reads.
        """
        return None

    def to_stored(self, params: PyTree) -> PyTree:
        """Returns a checkpoint's parameters: the inverse of `from_stored`, bit for bit."""
        return params

    def read_by_decode(self, params: PyTree) -> PyTree:
        """Returns the parameters that each call of `decode` reads completely; by default all.

        The cost of a step is their bytes, and their number times 2 FLOPs per token.
        """
        return params


class Target(Weights):
    """A model of texts, as pure functions of an explicit parameter tree.

    Attributes:
      vocab_size: V, the ids of its logits.
      stop_ids: the ids that end a text; if None, `Plan.stop_ids` must name them.
      pad_id: the id that inputs, prefixes and targets are padded with.
      exact: whether it computes the model that it names. The default is False; a target that skips
        parts of its model is not exact.
      decoder_only: whether an output continues its inputs, which `prompt` then returns.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    vocab_size: int
    stop_ids: ClassVar[tuple[int, ...] | None] = None
    pad_id: ClassVar[int] = 0
    exact: ClassVar[bool] = False
    decoder_only: ClassVar[bool] = False

    @property
    def has_markov(self) -> bool:
        """Whether the model has `markov`: a token of a block then changes the next one's logits."""
        return False

    @property
    def has_confidence(self) -> bool:
        """Whether the model has `confidence`, the log-odds that a token of a block is accepted."""
        return False

    @property
    def has_exit_classifier(self) -> bool:
        """Whether the model has `exit_logits`, for tokens that leave before the last layer."""
        return False

    @abc.abstractmethod
    def start(self, inputs: PyTree) -> Array:
        """Returns [B] int32, the start token of each row's output."""

    @abc.abstractmethod
    def prefill(self, params: PyTree, inputs: PyTree, capacity: int) -> Cache:
        """Reads the inputs; returns a `Cache` of length 0 with room for `capacity` positions."""

    @abc.abstractmethod
    def decode(self, params: PyTree, tokens: Array, cache: Cache) -> tuple[ModelOutput, Cache]:
        """Returns the output for tokens [B, T] int32 after a cache, and the cache with them.

        The tokens' positions are cache.length + (0..T-1), and the returned cache is T longer.
        Position 0 is that of the start token, even if a model stores a prompt before it. A model
        that accepts blocks that are not text has one more argument, `ancestors`: [T, T] or [B, T,
        T] bool or a `View`, see `models.contract.blocks`.
        """

    def computed_width(self, width: int) -> int:
        """Returns the number of tokens that a call of `decode` on `width` tokens computes.

        Results of added tokens are discarded, and the next call overwrites their slots. By default
        no token is added.
        """
        return width

    def same_bits(self: Self, width: int = 2, in_order: bool = False) -> Self:
        """Returns this target with calls that give a token the same bits whatever their width.

        Whether they do depends on the device; see `decoding.row_bits`. By default the target is
        unchanged. A call computes `width` tokens or more. `in_order` includes calls in which a
        token attends to other slots of the cache than in text, as in a draft tree.
        """
        return self

    def prompt(self, inputs: PyTree) -> Prompt | None:
        """Returns the prompts that outputs continue; None if inputs and outputs are two texts.

        Processors and copying drafters read a prompt as the beginning of the text. Its last token
        is the start token.
        """
        return None

    def inputs_shape(self, rows: int, length: int) -> PyTree:
        """Returns the shapes and dtypes of its inputs; by default [rows, length] int32, tokens."""
        return jax.ShapeDtypeStruct((rows, length), jnp.int32)

    def encoded_shape(self, inputs: PyTree) -> tuple[int, ...]:
        """Returns the encoder output's rows and positions, by default one position per token."""
        return inputs.shape

    def with_room(self: Self, files: int) -> Self:
        """Returns this target with room in `inputs_shape` for `files` files, as pictures, per text.

        By default it is unchanged.
        """
        del files
        return self

    def check_inputs(self, inputs: PyTree) -> None:  # noqa: B027, most targets read all values
        """Raises UsageError for values that the target cannot read; by default it accepts all.

        `decode` calls it before anything is compiled, if the values are known then.
        """

    def active(self, inputs: PyTree) -> Array:
        """Returns [B] bool, which rows hold a text; by default all."""
        return jnp.ones(jax.tree.leaves(inputs)[0].shape[0], bool)

    def logits(self, params: PyTree, hidden: Array) -> Array:
        """Returns the logits [B, T, V] of states [B, T, D], projected as in `decode`.

        Raises:
          ValueError: the target does not project states. This is the default.
        """
        raise ValueError(
            f"the target is {self!r}, which does not project states to logits; give a target that "
            f"does, {EXAMPLE}"
        )

    def markov(self, params: PyTree, tokens: Array) -> Array:
        """Returns the term [B, T, V] that each token [B, T] of a block adds to the next logits."""
        raise NotImplementedError

    def confidence(self, params: PyTree, hidden: Array) -> Array:
        """Returns the log-odds [B, T] that a block's tokens are accepted, from states [B, T, D]."""
        raise NotImplementedError

    def exit_logits(self, params: PyTree, hidden: Array) -> Array:
        """Returns the log-odds [B, T] that the last layer predicts the token that a layer's states
        `hidden` [B, T, D] predict."""
        raise NotImplementedError

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of layers that a call may use, ascending; () if every call uses all.

        A target whose tokens may leave before the last layer reports the number in
        `ModelOutput.depth`.
        """
        return ()

    @property
    def whole(self) -> Target:
        """The target with all tokens going through all layers: the baseline of measurements."""
        return self

    def always(self, depth: int) -> Target:
        """Returns this target with calls that always go through `depth` layers, for timing.

        Its `read_by_decode` and its cache are those of these layers.

        Raises:
          ValueError: `depths` does not have this number.
        """
        raise ValueError(f"depth is {depth}, but all calls of {self!r} go through all layers")


class LayeredTarget(Target):
    """A target that can run some of its layers; its `decode` has two more arguments.

    A call with layers (0, e), and one with (e, num_layers) that resumes its stream, equal a full
    call. The cache is rewound before the second call, because each call lengthens it by T.
    """

    @property
    @abc.abstractmethod
    def num_layers(self) -> int:
        """The number of layers that a call of `decode` runs."""

    @abc.abstractmethod
    def decode(
        self,
        params: PyTree,
        tokens: Array,
        cache: Cache,
        *,
        layers: tuple[int, int] | None = None,
        resume: Array | None = None,
    ) -> tuple[ModelOutput, Cache]:
        """Returns output and cache of `Target.decode`, through all layers or some.

        `layers` (a, b) runs layers a .. b - 1 only, and writes their keys and values.
        `ModelOutput.stream` is then the residual stream after layer b - 1, and the logits are its
        projection by the model's head. `resume` [B, T, D] is the stream after layer a - 1 if a > 0.
        """

    def first(self, layers: int) -> Target | None:
        """Returns a model that has only the first `layers` layers, or None if there is none.

        Its method `part_of` selects its parameters from those of this model.
        """
        return None


def finish(
    target: Target, params: PyTree, tokens: Array, resume: Resume, length: Array
) -> tuple[ModelOutput, Cache]:
    """Finishes a call of `decode` on a pending token and a draft [B, K+1], which a drafter began.

    The lower layers run on the last draft token of each row, the upper layers on all tokens. The
    stream in `resume` has K tokens, and the first `length` [B] of them are valid.
    """
    assert isinstance(target, LayeredTarget), "only such a target has a `Resume`"
    cache = resume.cache
    last = jnp.take_along_axis(tokens, length[:, None], axis=1)
    below, fed = target.decode(
        params, last, cache.rewind(cache.length + length), layers=(0, resume.layers)
    )
    assert below.stream is not None, "a call of some layers returns its stream"
    index = jnp.arange(tokens.shape[1])[None, :, None]
    stream = jnp.pad(resume.stream, ((0, 0), (0, 1), (0, 0)))
    stream = jnp.where(index == length[:, None, None], below.stream, stream)
    above = resume.layers, target.num_layers
    output, fed = target.decode(
        params, tokens, fed.rewind(cache.length), layers=above, resume=stream
    )
    return output._replace(stream=None), fed


class _Layered(Protocol):
    num_layers: int


class _OfBlocks(Protocol):
    def decode(
        self, params: PyTree, tokens: Array, cache: Cache, /, **others: Array | View | None
    ) -> tuple[ModelOutput, Cache]: ...


def decode_block(
    target: Target,
    params: PyTree,
    tokens: Array,
    cache: Cache,
    ancestors: Array | View | None = None,
    **states: Array,
) -> tuple[ModelOutput, Cache]:
    """Feeds a block [B, T] that is not text to a target that accepts one, see `Target.decode`.

    `states` [B, T, D] are hidden states of another model, if the target reads such states.
    """
    return cast(_OfBlocks, target).decode(params, tokens, cache, ancestors=ancestors, **states)


def check_model(name: str, value: object, kind: type[Weights] = Target) -> None:
    """Raises ValueError unless a value is a model, by default a target."""
    apart = " whose layers can be run apart" if kind is LayeredTarget else ""
    check_is(name, value, kind, f"a model{apart}, {EXAMPLE}")


class Model(Target):
    """A target of some family (`models.families`), with the fields that commands need.

    Attributes:
      config: the architecture, a frozen dataclass of plain values.
      axis_rules: how its arrays are divided over a mesh; () for not at all.
      layout: how its parameters are stored in memory, and its calls computed.
      weights: "int8" for kernels in eight bits, "int8_tokens" for tokens in eight bits as well.
        Each is another model than the checkpoint's.
    """

    config: Config
    axis_rules: AxisRules
    layout: Layout
    weights: str
    has_int8: ClassVar[bool] = False  # whether `weights` may be other than "stored"

    def in_layout(self: M, **changes: Any) -> M:
        """Returns this model with its `Layout`'s fields changed to these values."""
        return dataclasses.replace(self, layout=dataclasses.replace(self.layout, **changes))

    @property
    def vocab_size(self) -> int:
        """V, including ids that only pad the table."""
        return self.config.vocab_size

    @property
    def dtype(self) -> str:
        return self.config.dtype

    @property
    def num_layers(self) -> int:
        """The number of layers that a call of `decode` runs."""
        return cast(_Layered, self.config).num_layers

    @property
    @abc.abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """The sizes that make the model small or large, by the name of the config's field."""

    @abc.abstractmethod
    def cache_bytes(
        self, rows: int, slots: int, inputs_length: int, mesh: Mapping[str, int] | None = None
    ) -> int:
        """Returns the bytes of keys and values on one device; `mesh` has the sizes of its axes."""
