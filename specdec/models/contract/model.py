"""The base classes of objects with parameters: weights, targets, and models that are both."""

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
        """Returns the shapes and dtypes of what `init` returns; nothing is drawn."""
        return jax.eval_shape(self.init, jax.random.key(0))

    @abc.abstractmethod
    def axes(self) -> PyTree:
        """Returns the parameters' logical axis names: their tree, with a tuple of names each."""

    @property
    def dtype(self) -> str:
        """The dtype of matrix products and of the cache, 'float32' or 'bfloat16'."""
        return "float32"

    @property
    def cache_heads(self) -> int | None:
        """Heads of keys and values, if a mesh that divides "heads" has to divide their number."""
        return None

    @property
    def longest_text(self) -> int | None:
        """Tokens of the longest input and output together; None if there is no such limit."""
        return None

    @property
    def longest_output(self) -> int | None:
        """Tokens of the longest output; None if there is no such limit."""
        return None

    @property
    def states_dim(self) -> int | None:
        """The width of another model's states that it reads, one per token; None for none."""
        return None

    @property
    def encoded_dim(self) -> int | None:
        """The width of another encoder's output that `attach` reads.

        None for a model that reads inputs by `prefill`.
        """
        return None

    @property
    def head_ids(self) -> tuple[int, ...] | None:
        """The ids that its output head has, ascending; None for all."""
        return None

    def laid_out(self: Self, calls: Mapping[int, float], device: Device | None = None) -> Self:
        """Returns this model in the layout that is fastest for its calls; by default unchanged.

        `calls` says how often there is a call of each number of tokens, over all rows.
        """
        return self

    def drafting(self: Self) -> Self:
        """Returns this model as one that only drafts, and whose numbers may round differently.

        It is computed by what was measured to be fastest on this device; by default unchanged.
        """
        return self

    def stored(self: Self) -> Self:
        """Returns this model with parameters as in checkpoints; by default unchanged."""
        return self

    def from_stored(self, params: PyTree) -> PyTree:
        """Returns a checkpoint's parameters in this layout; by default unchanged."""
        return params

    def swapped(self) -> frozenset[str] | None:
        """Returns the matrices that `from_stored` transposes, if it does nothing else; else None.

        A reader can transpose them on the way. Their names have slashes.
        """
        return None

    def to_stored(self, params: PyTree) -> PyTree:
        """Returns the inverse of `from_stored`, bit for bit."""
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
        """Whether it has `markov`, by which a token of a block changes the next token's logits."""
        return False

    @property
    def has_confidence(self) -> bool:
        """Whether it has `confidence`, the probability that each token of a block is kept."""
        return False

    @property
    def has_exit_classifier(self) -> bool:
        """Whether it has `exit_logits`, for tokens that leave before the last layer."""
        return False

    @abc.abstractmethod
    def start(self, inputs: PyTree) -> Array:
        """Returns [B] int32, the start token of each row's output."""

    @abc.abstractmethod
    def prefill(self, params: PyTree, inputs: PyTree, capacity: int) -> Cache:
        """Reads the inputs; returns a `Cache` of length 0 with room for `capacity` positions."""

    @abc.abstractmethod
    def decode(self, params: PyTree, tokens: Array, cache: Cache) -> tuple[ModelOutput, Cache]:
        """Feeds tokens [B, T] int32 to the cache that `prefill` or the last call returned.

        Their positions are cache.length + (0..T-1), and the cache's length grows by T. Position 0
        is that of the start token, even if a model stores something before it. A model that accepts
        blocks that are not text has one more argument, `ancestors`: [T, T] or [B, T, T] bool or a
        `View`, see `models.contract.blocks`.
        """

    def computed_width(self, width: int) -> int:
        """Returns the tokens that a call of `decode` on `width` tokens is computed with.

        The tokens that fill it up do not count, and the next call overwrites their slots. By
        default there are none.
        """
        return width

    def same_bits(self: Self, width: int = 2, in_order: bool = False) -> Self:
        """Returns this target with all calls computed by products whose rows may have equal bits.

        Whether they have depends on the device; see `decoding.row_bits`. By default it is
        unchanged. A call is computed with `width` tokens or more. `in_order` says that tokens
        attend to other slots of the cache in some calls than in others, as those of a tree.
        """
        return self

    def prompt(self, inputs: PyTree) -> Prompt | None:
        """Returns the text that outputs continue, or None if inputs are another text.

        Processors and copying drafters read it as a part of the text. Its last token is the start
        token.
        """
        return None

    def inputs_shape(self, rows: int, length: int) -> PyTree:
        """Returns the shapes and dtypes of its inputs; by default [rows, length] int32, tokens."""
        return jax.ShapeDtypeStruct((rows, length), jnp.int32)

    def encoded_shape(self, inputs: PyTree) -> tuple[int, ...]:
        """Returns rows and positions of an encoder's output; by default one for each token."""
        return inputs.shape

    def with_room(self: Self, files: int) -> Self:
        """Returns the target whose `inputs_shape` has room for this many files of a text.

        By default it has room for all.
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
            f"the target is {self!r}, which does not project states; give a target that does, "
            f"{EXAMPLE}"
        )

    def markov(self, params: PyTree, tokens: Array) -> Array:
        """Returns what tokens [B, T] of a block add to the logits of the next ones, [B, T, V]."""
        raise NotImplementedError

    def confidence(self, params: PyTree, hidden: Array) -> Array:
        """Returns the log-odds [B, T] that a token of a block is kept, from states [B, T, D]."""
        raise NotImplementedError

    def exit_logits(self, params: PyTree, hidden: Array) -> Array:
        """Returns the log-odds [B, T] that the last layer would predict the same, from states."""
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

    Calls with (0, e) and then (e, num_layers), resuming the first one's stream, equal a full call.
    The second call begins at the same length of the cache, because each call lengthens it by T.
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
        """Feeds tokens [B, T], see `Target.decode`, through all layers or some.

        `layers` (a, b) runs layers a .. b - 1 only, and writes their keys and values.
        `ModelOutput.stream` is then the residual stream after them, and the logits are what the
        model's own head makes of it. `resume` [B, T, D] is the stream of layer a - 1, if a > 0.
        """

    def first(self, layers: int) -> Target | None:
        """Returns the model of the first layers, or None if it is not known.

        Its parameters are the result of its `part_of` for this model's parameters.
        """
        return None


def finish(
    target: Target, params: PyTree, tokens: Array, resume: Resume, length: Array
) -> tuple[ModelOutput, Cache]:
    """Finishes a call of `decode` on a pending token and a draft [B, K+1], which a drafter began.

    The lower layers run on the last draft token of each row, the upper layers on all tokens. Of the
    begun call's stream of K tokens, the first `length` [B] are valid.
    """
    assert isinstance(target, LayeredTarget), "`EarlyExit` and its like ask for one"
    cache = resume.cache
    last = jnp.take_along_axis(tokens, length[:, None], axis=1)
    below, fed = target.decode(
        params, last, cache.rewind(cache.length + length), layers=(0, resume.layers)
    )
    assert below.stream is not None, "it was asked for some layers"
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

    `states` are those of another model, if the target reads them.
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
        """Returns this model with these fields of its `Layout` changed."""
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
