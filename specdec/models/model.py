"""The base classes of what has parameters: weights, targets, and models that are both."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp

from specdec.common.values import check_is
from specdec.types import Array, AxisRules, ModelOutput, PyTree, Resume

EXAMPLE = "such as T5Target(config)"

Self = TypeVar("Self", bound="Weights")


class Weights(abc.ABC):
    """Something that has a tree of parameters: a model, or heads on the states of one."""

    @abc.abstractmethod
    def init(self, key: Array) -> PyTree:
        """Returns random parameters."""

    @abc.abstractmethod
    def axes(self) -> PyTree:
        """Returns the parameters' logical axis names: their tree, with a tuple of names each."""

    @property
    def dtype(self) -> str:
        """The dtype of matrix products and of the cache, 'float32' or 'bfloat16'."""
        return "float32"

    @property
    def states_dim(self) -> int | None:
        """The width of another model's states that it reads, one for each token; None for none."""
        return None

    @property
    def encoded_dim(self) -> int | None:
        """The width of another encoder's output that it reads by `attach`, in place of inputs; None
        for a model that reads inputs by `prefill`."""
        return None

    @property
    def head_ids(self) -> tuple[int, ...] | None:
        """The ids that its head has, ascending; None for all."""
        return None

    def laid_out(self: Self, calls: Mapping[int, float], device: Any = None) -> Self:
        """Returns this model in the layout that is fastest for its calls; by default itself.

        Args:
          calls: the tokens of a call, of all rows -> how often there is one.
          device: a `models.device.Device`; None for the default device.
        """
        return self

    def stored(self: Self) -> Self:
        """Returns this model with parameters as a checkpoint has them; by default itself."""
        return self

    def from_stored(self, params: PyTree) -> PyTree:
        """Returns a checkpoint's parameters in this layout; by default as they are."""
        return params

    def to_stored(self, params: PyTree) -> PyTree:
        """Returns the inverse of `from_stored`, bit for bit."""
        return params

    def read_by_decode(self, params: PyTree) -> PyTree:
        """Returns the part of the parameters that a call of `decode` reads as a whole: its bytes,
        and its numbers times 2 FLOPs a token, are what a step costs. By default all of them."""
        return params


class Target(Weights):
    """A model of texts, as pure functions over an explicit parameter tree.

    stop_ids: what ends a text; None: `Plan.stop_ids` must say.
    pad_id: what fills up inputs, prefixes and targets.
    exact: whether it computes the model it names. A target that does not say so is not exact; one
      that skips a part of its model says False.
    depths: how many layers a call may go through, ascending, of a target whose tokens may leave
      before the last layer, and which says so in `ModelOutput.depth`; () where all go through all.
    """

    stop_ids: ClassVar[tuple[int, ...] | None] = None
    pad_id: ClassVar[int] = 0
    exact: ClassVar[bool] = False

    @property
    def has_markov(self) -> bool:
        """Whether it has `markov`, by which a token of a block changes the logits of the next."""
        return False

    @property
    def has_confidence(self) -> bool:
        """Whether it has `confidence`, how probable each token of a block is to be kept."""
        return False

    @property
    def has_exit_classifier(self) -> bool:
        """Whether it has `exit_logits`, for tokens that leave before the last layer."""
        return False

    @abc.abstractmethod
    def start(self, inputs: PyTree) -> Array:
        """Returns the token that each row's output begins behind, [B] int32."""

    @abc.abstractmethod
    def prefill(self, params: PyTree, inputs: PyTree, capacity: int) -> Any:
        """Reads the inputs; a `Cache` of length 0 with room for `capacity` output positions."""

    @abc.abstractmethod
    def decode(self, params: PyTree, tokens: Array, cache: Any) -> tuple[ModelOutput, Any]:
        """Feeds [B, T] tokens at positions cache.length + (0..T-1); the cache's length grows by T.

        Position 0 is that of the start token, whatever a model keeps in front of it. A model that
        fills in blocks of tokens that are not text takes one more argument, `ancestors`: [T, T] or
        [B, T, T] bool or a `View`, see `models.blocks`.
        """

    def active(self, inputs: PyTree) -> Array:
        """Returns which rows hold a text, [B] bool; by default all do."""
        return jnp.ones(jax.tree.leaves(inputs)[0].shape[0], bool)

    def logits(self, params: PyTree, hidden: Array) -> Array:
        """Returns [B, T, V] logits of [B, T, D] states, as `decode` projects them.

        Raises:
          ValueError: the target does not project states, which is what it does by default.
        """
        raise ValueError(
            f"the target is {self!r}, which does not project states; give a target that does, "
            f"{EXAMPLE}"
        )

    @property
    def depths(self) -> tuple[int, ...]:
        """How many layers a call may go through, see above."""
        return ()

    @property
    def whole(self) -> Target:
        """This target with all tokens going through all layers: what it is measured against."""
        return self

    def always(self, depth: int) -> Any:
        """Returns this target with calls that all go through `depth` layers, for timing; what it
        says that `decode` reads, and of its cache, is of these layers.

        Raises:
          ValueError: `depths` has no such one.
        """
        raise ValueError(f"depth is {depth}, but all calls of {self!r} go through all layers")


class LayeredTarget(Target):
    """A target that can run some of its layers. Its `decode` takes two more arguments:

    layers (a, b): runs layers a .. b - 1 only, and writes the keys and values of these;
      `ModelOutput.stream` is what the last of them left, and the logits are what the model's own
      head makes of that.
    resume [B, T, D]: the stream of layer a - 1, where a > 0.

    (0, e) and then (e, num_layers) on what that left is the whole call. The second one begins at
    the same length of the cache: each of them lengthens it by T.
    """

    @property
    @abc.abstractmethod
    def num_layers(self) -> int:
        """The layers that a call of `decode` runs through."""

    @abc.abstractmethod
    def decode(
        self,
        params: PyTree,
        tokens: Array,
        cache: Any,
        *,
        layers: tuple[int, int] | None = None,
        resume: Array | None = None,
    ) -> tuple[ModelOutput, Any]:
        """Feeds [B, T] tokens, see `Target.decode`, through all layers or some."""

    def first(self, layers: int) -> Any:
        """Returns the model of the first layers, whose parameters are its `part_of` of this one's;
        None where it is not known."""
        return None


def finish(
    target: Any, params: PyTree, tokens: Array, resume: Resume, length: Array
) -> tuple[ModelOutput, Any]:
    """Returns the rest of a call of `decode` on a pending token and a draft, which a drafter has
    begun: the lower layers on the last drafted token of each row, the upper ones on all tokens.

    Args:
      tokens: [B, K+1] int32. resume: with a stream of K tokens, see `Resume`.
      length: [B] int32, tokens of each row's draft: so many positions are in the stream.
    """
    cache = resume.cache
    last = jnp.take_along_axis(tokens, length[:, None], axis=1)
    below, fed = target.decode(
        params, last, cache.rewind(cache.length + length), layers=(0, resume.layers)
    )
    index = jnp.arange(tokens.shape[1])[None, :, None]
    stream = jnp.pad(resume.stream, ((0, 0), (0, 1), (0, 0)))
    stream = jnp.where(index == length[:, None, None], below.stream, stream)
    above = resume.layers, target.num_layers
    output, fed = target.decode(
        params, tokens, fed.rewind(cache.length), layers=above, resume=stream
    )
    return output._replace(stream=None), fed


def check_model(name: str, value: Any, kind: type[Weights] = Target) -> None:
    """Raises ValueError unless a part is a model, by default a target."""
    apart = " whose layers can be run apart" if kind is LayeredTarget else ""
    check_is(name, value, kind, f"a model{apart}, {EXAMPLE}")


class Model(Target):
    """A target of some family (`models.families`), with what commands need to know: a frozen
    dataclass with these fields.

    config: the architecture, a frozen dataclass of plain values.
    axis_rules: how its arrays are divided over a mesh, () for not at all.
    layout: how its parameters are kept in memory, "checkpoint" for as they are stored.
    orders: how products are computed with them, see `models.products`; of no influence on how they
      are kept.
    weights: "int8" for kernels in eight bits, which is another model than the checkpoint's.
    """

    config: Any
    axis_rules: AxisRules
    layout: str
    orders: tuple[tuple[int, str], ...]
    weights: str
    has_int8: ClassVar[bool] = False  # whether `weights` may be "int8"

    @property
    def vocab_size(self) -> int:
        """V, with ids that only pad the table."""
        return self.config.vocab_size

    @property
    def dtype(self) -> str:
        return self.config.dtype

    @property
    def num_layers(self) -> int:
        """The layers that a call of `decode` runs through."""
        return self.config.num_layers

    @property
    @abc.abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """The sizes that make it small or large, by the name of the config's field."""

    @abc.abstractmethod
    def cache_bytes(
        self, rows: int, slots: int, inputs_length: int, mesh: Mapping[str, int] | None = None
    ) -> int:
        """Returns the bytes of keys and values on one device; `mesh` has the sizes of its axes."""
