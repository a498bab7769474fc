"""Growth of models: a trained model at a larger size that computes the same.

The residual stream is widened, and added units come in twins: pairs whose outputs cancel. See
`models.t5.growth`.
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
    spread: float  # standard deviation of the first model's output
    what: str = "logits"  # the name of the output

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
    """Enlarges models of a family."""

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
                raise ValueError(f"{which}; growth cannot change it")

    @abc.abstractmethod
    def grow(self, params: PyTree, config: C, to: C, key: Array) -> PyTree:
        """Returns the parameters of a larger model with the same outputs as a smaller one.

        Outputs are equal up to the rounding of the sums in which twins cancel.
        """

    @abc.abstractmethod
    def resized(self, config: C, to: Config) -> C:
        """Returns `config` with the sizes of `to`, the config of another model."""

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
        """Compares the outputs of two models on random texts; `grown_by` was the key of `grow`."""


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
        """Returns a parameter for the wider stream; `axis` is its axis of the old stream.

        The first axis is that of a kernel that reads the stream, and the last axis that of one that
        writes it. An array with this axis alone scales the stream.
        """
        repeated = jnp.take(x, self.origin, axis)
        if x.ndim == 1:
            return repeated
        return repeated * along(self.weight * (self.ratio if axis == 0 else 1), axis, x.ndim)

    def of(self, x: Array) -> Array:
        """Returns R x, for x [..., D]."""
        return jnp.take(x, self.origin, -1) * along(self.weight, x.ndim - 1, x.ndim)


def key_of_streams(key: Array) -> Array:
    """Returns the random key of R; models grown with one key, between equal widths, share R."""
    return jax.random.split(key, 3)[0]


def alike(x: Array, old: int, axis: int) -> Array:
    """Makes the entries of twins equal: pairs along the axis, after the first `old` entries."""
    index, _ = _twins(old, x.shape[axis])
    if (x.shape[axis] - old) % 2:
        index[-1] = 0
    return jnp.take(x, index, axis)


def opposed(x: Array, old: int, axis: int) -> Array:
    """Makes the entries of twins sum to zero: pairs along the axis, after the first `old` ones."""
    index, sign = _twins(old, x.shape[axis])
    x = jnp.take(x, index, axis) * along(jnp.asarray(sign), axis, x.ndim)
    if (x.shape[axis] - old) % 2:
        first, last = ((slice(None),) * axis + (i,) for i in (0, -1))
        x = x.at[first].add(-x[last])
    return x


def _twins(old: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns [size] each: the index of the first entry of an entry's pair, and the entry's sign.

    An entry without a pair has its own index. The sign is -1 for second entries of pairs, else 1.
    """
    index, sign = np.arange(size), np.ones(size, np.float32)
    first = np.arange(old, size - 1, 2)
    index[first + 1], sign[first + 1] = first, -1
    return index, sign


def along(vector: Array, axis: int, ndim: int) -> Array:
    """Reshapes [n] to [1, .., n, .., 1]."""
    return vector.reshape([-1 if i == axis else 1 for i in range(ndim)])
