"""The division of a training run's arrays over the devices of a mesh.

Rows of a batch lie over `data`. The frozen target and the trained model are divided over `model`
by the target's rules, as far as sizes allow it, and the optimizer's state is divided like the
parameters that it belongs to. An update keeps these shardings.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TypeVar

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from specdec.models import partitioning
from specdec.models.contract.model import Model
from specdec.models.heads import HeadedTarget
from specdec.models.partitioning import Partitioner
from specdec.training.loss import Pairs
from specdec.types import Array, PyTree, Values

M = TypeVar("M", Model, HeadedTarget)


@dataclasses.dataclass(frozen=True)
class Division:
    """The sharding of a training run's arrays over the devices of a mesh."""

    mesh: Mesh | None = None  # the devices, with the axes `data` and `model`; None for one device

    def entered(self) -> contextlib.AbstractContextManager:
        """Returns the context of the mesh, in which programs are traced and run."""
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def divided(self, model: M, partitioner: Partitioner) -> M:
        """Returns a model with the partitioner's rules, as far as its sizes allow on the mesh."""
        if self.mesh is None:
            return model
        if isinstance(model, HeadedTarget):
            parts = {name: self.divided(part, partitioner) for name, part in model.parts.items()}
            return dataclasses.replace(model, **parts)
        rules = partitioning.fitting(model, partitioner.logical_axis_rules, self.mesh)
        return dataclasses.replace(model, axis_rules=rules)

    def placed(self, params: PyTree, model: Model | HeadedTarget) -> PyTree:
        """Returns parameters on the devices; every process passes the same parameters."""
        if self.mesh is None:
            return params

        def place(leaf: Array, sharding: NamedSharding) -> jax.Array:
            values = np.asarray(leaf)
            return jax.make_array_from_callback(values.shape, sharding, lambda part: values[part])

        return jax.tree.map(place, params, self.shardings(model))

    def like_parameters(
        self, state: PyTree, optimizer: optax.GradientTransformation, model: Model | HeadedTarget
    ) -> PyTree:
        """Returns the shardings of an optimizer's state.

        An array with the shape of its parameter is divided like the parameter. Other arrays, such
        as factored second moments, are whole on every device.
        """
        everywhere = self.whole
        params = model.parameter_shapes()

        def place(leaf: Array, param: Array, sharding: NamedSharding) -> NamedSharding:
            return sharding if leaf.shape == param.shape else everywhere

        return optax.tree_utils.tree_map_params(
            optimizer,
            place,
            state,
            params,
            self.shardings(model),
            transform_non_params=lambda _: everywhere,
        )

    def kept(self, params: PyTree, model: Model | HeadedTarget) -> PyTree:
        """Returns traced parameters, or gradients, constrained to the model's shardings."""
        if self.mesh is None:
            return params
        return jax.lax.with_sharding_constraint(params, self.shardings(model))

    def replicated(self, tree: PyTree) -> PyTree:
        """Returns traced arrays, constrained to be whole on every device."""
        if self.mesh is None:
            return tree
        return jax.lax.with_sharding_constraint(tree, self.whole)

    def rows(self, pairs: Pairs) -> Pairs:
        """Returns a batch divided over the devices.

        Every process passes the same batch, and places only the rows of its devices."""
        return pairs if self.mesh is None else partitioning.divided_rows(pairs, self.mesh)

    @property
    def whole(self) -> NamedSharding:
        """The sharding of arrays that are whole on every device; needs a mesh."""
        assert self.mesh is not None, "one device divides nothing"
        return partitioning.whole(self.mesh)

    def shardings(self, model: Model | HeadedTarget) -> PyTree:
        """Returns the sharding of each parameter of a model from `divided`; needs a mesh."""
        assert self.mesh is not None, "one device divides nothing"
        if isinstance(model, HeadedTarget):
            return {name: self.shardings(part) for name, part in model.parts.items()}
        return partitioning.shardings(model, self.mesh)


def micro_batches(pairs: Pairs, count: int) -> Pairs:
    """Returns a batch [B, ...] as [count, B / count, ...].

    Part i has the rows i, i + count, i + 2 count and so on. Each device therefore keeps its rows.
    """

    def split(rows: Values) -> Values:
        parts = rows.reshape(rows.shape[0] // count, count, *rows.shape[1:])
        return parts.swapaxes(0, 1)

    return jax.tree.map(split, pairs)
