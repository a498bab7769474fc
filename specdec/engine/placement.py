"""The devices that a run's models are divided over, and the layouts of their parameters."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TypeAlias, TypeVar

import jax
from jax.sharding import Mesh

from specdec import checkpoints
from specdec.checkpoints import tables
from specdec.models import partitioning
from specdec.models.contract.model import Model, Target, Weights
from specdec.models.partitioning import Partitioner, Share
from specdec.plan import BasePlan, Plan
from specdec.types import PyTree, Table

PlanT = TypeVar("PlanT", bound=BasePlan)


# Parameters that have been read, by model or table and path.
Trees: TypeAlias = dict[tuple[Weights | Table, str], PyTree]


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices of a run, and how its parameters get there. It does not change what is decoded.

    Args:
      partitioner: how the models are divided over devices, as gin configures it.
      checksums: whether arrays are compared with the checksums that were saved with them.
      mesh: the devices that the models are divided over, None for one device; see `over`.
    """

    partitioner: Partitioner = Partitioner()
    checksums: bool = True
    mesh: Mesh | None = None

    def over(self, mesh: Mesh) -> Placement:
        """Returns this placement on the devices of a mesh."""
        return dataclasses.replace(self, mesh=mesh)

    def divided(self, plan: Plan) -> Plan:
        """Returns the plan with its models divided as the partitioner says, for any mesh.

        Raises:
          ValueError: a model does not say how it can be divided.
        """
        for role, model in plan.models().items():
            if not isinstance(model, Model):
                raise ValueError(
                    f"the {role} is {model}, which a mesh cannot divide; leave NUM_PARTITIONS out, "
                    "or make it a specdec.models.contract.model.Model"
                )
        rules = {"target": self.partitioner.logical_axis_rules}
        others = self.partitioner.draft_logical_axis_rules
        models = {
            role: dataclasses.replace(model, axis_rules=rules.get(role, others))
            for role, model in plan.models().items()
        }
        return plan.with_models(models)

    def laid_out(self, plan: PlanT, rows: int) -> PlanT:
        """Returns the plan with kernels in the layouts that this device reads fastest.

        Over a mesh, where nothing was measured, the layouts do not change.

        Args:
          plan: the plan, of decoding or of a search.
          rows: the size of a batch.
        """
        return plan if self.mesh is not None else plan.laid_out(rows)

    def share(self) -> Share:
        """Returns the rows that this process decodes; without a mesh, it has its own programs."""
        if self.mesh is None:
            return Share(jax.process_index(), jax.process_count())
        return partitioning.share(self.mesh)

    def shape(self, model: Target | Table, path: str = "") -> PyTree:
        """Returns the shapes and dtypes of the result of `read`.

        Args:
          model: a model or a table.
          path: the directory of a table.

        Raises:
          ValueError: the model cannot be divided over the mesh, or the table does not exist.
        """
        if isinstance(model, Table):
            return tables.shapes(path, model, sharding=self._whole)
        return partitioning.abstract(model, self.mesh)

    def read(self, model: Target | Table, path: str, trees: Trees | None = None) -> PyTree:
        """Reads a model's parameters, in its dtype and layout.

        A host reads only the parts of each array that its devices hold. Every device holds all of a
        table.

        Args:
          model: a model or a table.
          path: its directory.
          trees: parameters that have been read, by model and path. They are not read again, and
            newly read ones are added.
        """
        alone, trees = trees is None, {} if trees is None else trees
        if isinstance(model, Table):
            if (model, path) not in trees:
                trees[model, path] = tables.load(
                    path, model, sharding=self._whole, checksums=self.checksums
                )
            return trees[model, path]
        if not isinstance(model, Model):  # a target without a family has no config to compare with
            if (model, path) not in trees:
                stored = checkpoints.load(path, dtype=model.dtype, checksums=self.checksums)
                trees[model, path] = model.from_stored(stored)
            return trees[model, path]
        if alone and self.mesh is None and (swapped := model.swapped()) is not None:
            how = {"dtype": model.dtype, "checksums": self.checksums, "swapped": swapped}
            return checkpoints.load(path, config=model.config, **how)
        stored = model.stored()
        # Parameters do not depend on these.
        unread = {"orders": (), "least_width": 1, "fused": None, "in_order": False}
        kept = dataclasses.replace(model, **unread)
        if (kept, path) not in trees:
            with self._rounding(model):
                if (stored, path) not in trees:
                    trees[stored, path] = checkpoints.load(
                        path,
                        config=model.config,
                        dtype=model.dtype,
                        shardings=self.mesh and partitioning.shardings(stored, self.mesh),
                        checksums=self.checksums,
                    )
                found = model.from_stored(trees[stored, path])
            here = model.weights == "stored" or self.mesh is not None
            trees[kept, path] = found if here else jax.device_put(found, jax.devices()[0])
        return trees[kept, path]

    @property
    def _whole(self) -> jax.sharding.Sharding | None:
        """The sharding of an array that each device holds entirely."""
        return None if self.mesh is None else partitioning.whole(self.mesh)

    def _rounding(self, model: Model) -> contextlib.AbstractContextManager:
        """Returns a context in which kernels are rounded to eight bits, on the host.

        The host's memory holds what a device's may not. Over a mesh, each device rounds its own
        part.
        """
        if model.weights == "stored" or self.mesh is not None:
            return contextlib.nullcontext()
        try:
            return jax.default_device(jax.local_devices(backend="cpu")[0])
        except RuntimeError:  # JAX_PLATFORMS leaves it out
            return contextlib.nullcontext()
