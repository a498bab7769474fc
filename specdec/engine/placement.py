"""The devices that a run's models are divided over, and the layouts of their parameters."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from os import PathLike
from typing import TypeVar

import jax
from jax.sharding import Mesh

from specdec import checkpoints
from specdec.checkpoints import tables
from specdec.models import partitioning
from specdec.models.contract.model import Model, Target
from specdec.models.partitioning import Partitioner, Share
from specdec.plan import BasePlan, Plan
from specdec.types import PyTree, Table

PlanT = TypeVar("PlanT", bound=BasePlan)


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices of a run, and how parameters are placed on them. Outputs do not depend on it.

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
          ValueError: a model is no `Model`, so it cannot be divided.
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

    def of_run(
        self, plan: Plan, weights: Mapping[str, str | PathLike], rows: int
    ) -> tuple[Placement, Plan]:
        """Returns this placement on its mesh, if it has one, and the plan divided over that mesh.

        Raises for a table that does not exist, and for a model that the mesh cannot divide.
        """
        placement, mesh = self, self.mesh or self.partitioner.mesh()
        if mesh is not None:
            partitioning.check_batch(rows, mesh)
            placement = self.over(mesh)
            plan = placement.divided(plan)
        for role, owned in plan.owned().items():
            if role in weights and (mesh is not None or role in plan.tables()):
                placement.shape(owned, str(weights[role]))
        return placement, plan

    def laid_out(self, plan: PlanT, rows: int) -> PlanT:
        """Returns the plan with kernels in the layouts that this device reads fastest.

        Over a mesh, where nothing was measured, the layouts do not change.

        Args:
          plan: the plan, of decoding or of a search.
          rows: B, the number of texts in a batch.
        """
        return plan if self.mesh is not None else plan.laid_out(rows)

    def share(self) -> Share:
        """Returns which of all rows this process decodes, as one of several hosts."""
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

    def read(self, model: Target | Table, path: str) -> PyTree:
        """Reads a model's parameters, in its dtype and layout.

        A host reads only the parts of each array that its devices hold. Every device holds all of a
        table.

        Args:
          model: a model or a table.
          path: its directory.
        """
        if isinstance(model, Table):
            return tables.load(path, model, sharding=self._whole, checksums=self.checksums)
        how = {"dtype": model.dtype, "checksums": self.checksums}
        if not isinstance(model, Model):  # a target without a family has no config to compare with
            return model.from_stored(checkpoints.load(path, **how))
        how["config"] = model.config
        if self.mesh is None and (swapped := model.swapped()) is not None:
            return checkpoints.load(path, swapped=swapped, **how)
        shardings = self.mesh and partitioning.shardings(model.stored(), self.mesh)
        with self._rounding(model):
            tree = model.from_stored(checkpoints.load(path, shardings=shardings, **how))
        rounded = model.weights != "stored" and self.mesh is None
        return jax.device_put(tree, jax.devices()[0]) if rounded else tree

    @property
    def _whole(self) -> jax.sharding.Sharding | None:
        """The sharding of an array that each device holds entirely."""
        return None if self.mesh is None else partitioning.whole(self.mesh)

    def _rounding(self, model: Model) -> contextlib.AbstractContextManager:
        """Returns a context in which kernels are rounded to eight bits, on the host.

        The host's memory has room for kernels that a device's may lack. Over a mesh, each device
        rounds its own part.
        """
        if model.weights == "stored" or self.mesh is not None:
            return contextlib.nullcontext()
        try:
            return jax.default_device(jax.local_devices(backend="cpu")[0])
        except RuntimeError:  # JAX_PLATFORMS excludes the CPU
            return contextlib.nullcontext()
