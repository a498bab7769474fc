"""The base class of models whose network is a Linen module."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.core import meta

from specdec.common.values import Checked
from specdec.models.contract.cache import kv_bytes
from specdec.models.contract.model import Config, Model
from specdec.models.placement.layouts import STORED, Layout
from specdec.types import Array, AxisRules, Cache, ModelOutput, PyTree


class LinenConfig(Config, Protocol):
    """The config of a `LinenModel`."""

    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


Self = TypeVar("Self", bound="LinenModel")


@dataclasses.dataclass(frozen=True)
class LinenModel(Checked, Model):
    """The base of models that read int32 tokens [B, S], with parameters as in checkpoints.

    A family adds `network`, whose call is `decode`, `example`, `stop_ids`, and the methods that
    depend on its architecture. Its config is a `LinenConfig`.
    """

    config: LinenConfig
    axis_rules: AxisRules = ()
    layout: Layout = STORED
    weights: str = "stored"
    has_joined: ClassVar[bool] = False
    has_fused: ClassVar[bool] = False
    pad_id: ClassVar[int] = 0
    exact: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.weights != "stored" and not self.has_int8:
            name = type(self).__name__
            raise ValueError(f"{name}.weights is {self.weights!r}; this family has only 'stored'")
        for field, known in (("joined", self.has_joined), ("fused", self.has_fused)):
            if (value := getattr(self.layout, field)) and not known:
                name = type(self).__name__
                raise ValueError(f"{name}.layout.{field} is {value!r}; {name} lacks such kernels")
        object.__setattr__(self, "axis_rules", tuple(map(tuple, self.axis_rules)))

    @abc.abstractmethod
    def network(self) -> nn.Module:
        """Returns the Linen module, with parameters in this model's layout."""

    @abc.abstractmethod
    def example(self) -> tuple:
        """Returns example arguments of the module's `__call__`, to find its parameters' shapes."""

    @property
    def sizes(self) -> Mapping[str, int]:
        fields = dataclasses.asdict(self.config).items()
        return {name: value for name, value in fields if isinstance(value, int)}

    def init(self, key: Array) -> PyTree:
        """Returns random float32 parameters, the same numbers in every layout."""
        return self.from_stored(meta.unbox(_undivided(self.stored())._boxed(key)))

    def parameter_shapes(self) -> PyTree:
        stored = meta.unbox(_boxed_shapes(_undivided(self.stored())))
        return jax.eval_shape(self.from_stored, stored)

    def axes(self) -> PyTree:
        """Returns a tree like the parameters, with a PartitionSpec of logical axes for each."""
        return nn.get_partition_spec(_boxed_shapes(_undivided(self)))

    def active(self, inputs: Array) -> Array:
        """Returns [B] bool, the rows that have a token other than padding."""
        return jnp.any(inputs != self.pad_id, axis=1)

    def apply(self, params: PyTree, *arguments: object, method: str | None = None) -> Any:
        """Returns the result of the network's `method`, with arrays divided by `axis_rules`."""
        with nn.logical_axis_rules(self.axis_rules):
            return self.network().apply({"params": params}, *arguments, method=method)

    def decode(self, params: PyTree, tokens: Array, cache: Cache) -> tuple[ModelOutput, Cache]:
        """Feeds tokens [B, T] int32; returns output and cache, see `Target.decode`."""
        return self.apply(params, tokens, cache)

    def stored(self: Self) -> Self:
        """Returns this model with parameters as in checkpoints."""
        return dataclasses.replace(self, layout=STORED, weights="stored")

    @property
    def keeps_kernels(self) -> bool:
        """Whether each kernel is stored as in checkpoints, or only joined with others."""
        return self.layout.storage == "checkpoint" and self.weights == "stored"

    @property
    def cache_sizes(self) -> Mapping[str, int]:
        """The sizes `layers`, `heads` (of keys and values) and `head_dim` of the cache."""
        c = self.config
        return {"layers": self.num_layers, "heads": c.num_kv_heads, "head_dim": c.head_dim}

    @property
    def spare(self) -> int:
        """The slots of a cache after its capacity, for tokens that are added to a call."""
        return self.layout.least_width - 1

    def cache_bytes(
        self, rows: int, slots: int, inputs_length: int, mesh: Mapping[str, int] | None = None
    ) -> int:
        """Returns the bytes of keys and values of outputs and inputs on one device."""
        sizes = self.cache_sizes
        slots += self.spare + inputs_length
        shape = (rows, sizes["heads"], slots, sizes["head_dim"])
        return sizes["layers"] * kv_bytes(shape, self.dtype, self.axis_rules, mesh)

    def _boxed(self, key: Array) -> PyTree:
        """Returns initial parameters with the names of their axes.

        A program draws each parameter, and is compiled once per shape. One program for all of them
        would take seconds to compile for every model. The network is not computed.
        """
        return self.network().lazy_init(key, *jax.eval_shape(self.example))["params"]


def _undivided(model: Self) -> Self:
    return dataclasses.replace(model, axis_rules=())


@functools.cache  # tracing all layers of a large model takes seconds
def _boxed_shapes(model: LinenModel) -> PyTree:
    return jax.eval_shape(model._boxed, jax.random.key(0))
