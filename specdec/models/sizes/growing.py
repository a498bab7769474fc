"""Growth of models: a trained model at a larger size that computes the same.

The added parts are wider streams, and twins that cancel each other; see `models.t5.growth`.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from specdec.models.contract.model import Config
from specdec.types import Array, PyTree

C = TypeVar("C", bound=Config)


class Difference(NamedTuple):
    """The difference between the logits, or another output, of two models."""

    largest: float  # absolute difference
    spread: float  # standard deviation of what the first model makes
    what: str = "logits"

    @classmethod
    def between(cls, first: Array, second: Array, what: str = "logits") -> Difference:
        return cls(float(jnp.max(jnp.abs(second - first))), float(jnp.std(first)), what)

    def __str__(self) -> str:
        relative = self.largest / self.spread
        return (
            f"{self.what} of random texts differ by at most {self.largest:.2g}, which is "
            f"{relative:.2g} of their standard deviation"
        )


class Growth(abc.ABC, Generic[C]):
    """The growth of a family's models."""

    growing: ClassVar[tuple[str, ...]]  # the fields of the config that may become larger

    def check_growth(self, config: C, to: C) -> None:
        """Raises ValueError, naming the field, if `grow` cannot make `to` from `config`."""
        for field in dataclasses.fields(config):
            before, after = getattr(config, field.name), getattr(to, field.name)
            which = f"{type(config).__name__}.{field.name} is {before!r} and would become {after!r}"
            if field.name in self.growing and None not in (before, after):
                if after < before:
                    raise ValueError(f"{which}; a model only grows")
            elif field.name != "dtype" and after != before:
                raise ValueError(f"{which}; growth keeps it")

    @abc.abstractmethod
    def grow(self, params: PyTree, config: C, to: C, key: Array) -> PyTree:
        """Returns the parameters of a larger model that computes what a smaller one does.

        Both are equal up to the rounding of the sums in which twins cancel.
        """

    @abc.abstractmethod
    def resized(self, config: C, to: Config) -> C:
        """Returns the config at the sizes of another model."""

    @abc.abstractmethod
    def logit_difference(
        self,
        params: PyTree,
        config: C,
        others: PyTree,
        other: C,
        key: Array,
        *,
        grown_by: Array,
    ) -> Difference:
        """Compares two models on random texts."""


class Stream(NamedTuple):
    """The map R from D old to D' new dimensions of a residual stream; see `models.t5.growth`."""

    origin: np.ndarray  # [D'] int: o(r)
    weight: Array  # [D'] float32: w_r
    ratio: float  # D / D'

    @classmethod
    def create(cls, key: Array, old: int, new: int) -> Stream:
        origin = np.arange(new) % old
        weight = jax.random.uniform(key, (new,), jnp.float32, 0.5, 1.5)
        squares = jnp.zeros(old).at[origin].add(jnp.square(weight))
        return cls(origin, weight / jnp.sqrt(squares[origin] * (old / new)), old / new)

    def widen(self, x: Array, axis: int) -> Array:
        """Returns an array in the wider stream.

        The axis tells what the array does: the first axis reads the stream, the last one writes it,
        and the only axis scales it.
        """
        repeated = jnp.take(x, self.origin, axis)
        if x.ndim == 1:
            return repeated
        return repeated * along(self.weight * (self.ratio if axis == 0 else 1), axis, x.ndim)

    def of(self, x: Array) -> Array:
        """Returns R x, for x [..., D]."""
        return jnp.take(x, self.origin, -1) * along(self.weight, x.ndim - 1, x.ndim)


def key_of_streams(key: Array) -> Array:
    """Returns the key of R. Models grown with one key, between the same widths, have the same R."""
    return jax.random.split(key, 3)[0]


def alike(x: Array, old: int, axis: int) -> Array:
    """Gives twins along the axis, beyond the `old` first entries, equal entries."""
    index, _ = _twins(old, x.shape[axis])
    if (x.shape[axis] - old) % 2:
        index[-1] = 0
    return jnp.take(x, index, axis)


def opposed(x: Array, old: int, axis: int) -> Array:
    """Gives twins along the axis, beyond the `old` first entries, entries that sum to zero."""
    index, sign = _twins(old, x.shape[axis])
    x = jnp.take(x, index, axis) * along(jnp.asarray(sign), axis, x.ndim)
    if (x.shape[axis] - old) % 2:
        first, last = ((slice(None),) * axis + (i,) for i in (0, -1))
        x = x.at[first].add(-x[last])
    return x


def _twins(old: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns [size], the index of each entry's twin (its own if it has none), and its sign.

    The sign is -1 for the second entry of a pair, 1 for all others.
    """
    index, sign = np.arange(size), np.ones(size, np.float32)
    first = np.arange(old, size - 1, 2)
    index[first + 1], sign[first + 1] = first, -1
    return index, sign


def along(vector: Array, axis: int, ndim: int) -> Array:
    """Reshapes [n] to [1, .., n, .., 1]."""
    return vector.reshape([-1 if i == axis else 1 for i in range(ndim)])
