"""Where a run's models are: over which devices, and in which layout."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from specdec import checkpoints
from specdec.checkpoints import tables
from specdec.decoding.beam_plan import BeamPlan
from specdec.models import partitioning
from specdec.models.model import Model
from specdec.models.partitioning import Partitioner, Share
from specdec.plan import Plan
from specdec.types import PyTree, Table

AnyPlan = TypeVar("AnyPlan", Plan, BeamPlan)


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices of a run, and how its parameters get there; it changes nothing that is decoded.

    partitioner: how the models are divided over devices; gin says so.
    checksums: compare the arrays with the checksums that were saved with them.
    mesh: of the devices that they are divided over, None for one device; see `over`.
    """

    partitioner: Partitioner = Partitioner()
    checksums: bool = True
    mesh: Mesh | None = None

    def over(self, mesh: Mesh) -> Placement:
        """This placement on the devices of a mesh."""
        return dataclasses.replace(self, mesh=mesh)

    def divided(self, plan: Plan) -> Plan:
        """The plan with its models divided as the partitioner says, whatever the mesh is."""
        rules = {"target": self.partitioner.logical_axis_rules}
        others = self.partitioner.draft_logical_axis_rules
        models = {
            role: dataclasses.replace(model, axis_rules=rules.get(role, others))
            for role, model in plan.models().items()
        }
        return plan.with_models(models)

    def laid_out(self, plan: AnyPlan, rows: int) -> AnyPlan:
        """The plan with its models' kernels kept as this device reads them fastest, in batches of
        so many rows. Over a mesh, where nothing was measured, they stay as they are."""
        return plan if self.mesh is not None else plan.laid_out(rows)

    def share(self) -> Share:
        """What this process feeds and decodes; without a mesh each one has programs of its own."""
        if self.mesh is None:
            return Share(jax.process_index(), jax.process_count())
        return partitioning.share(self.mesh)

    def shape(self, model: Model | Table, path: str = "") -> PyTree:
        """The shapes and dtypes of what `read` gives.

        Raises:
          ValueError: the model cannot be divided over the mesh, or there is no such table.
        """
        if isinstance(model, Table):
            return tables.shapes(path, model, sharding=self._whole)
        return partitioning.abstract(model, self.mesh)

    def read(
        self, model: Any, path: str, trees: dict[tuple[Any, str], PyTree] | None = None
    ) -> PyTree:
        """A model's parameters, in its dtype and layout; of each array a host reads what its
        devices are to have. What is in `trees` is not read again, and what is read is put there.
        Of a table every device has the whole."""
        trees = {} if trees is None else trees
        if isinstance(model, Table):
            if (model, path) not in trees:
                trees[model, path] = tables.load(
                    path, model, sharding=self._whole, checksums=self.checksums
                )
            return trees[model, path]
        stored = model.stored()
        kept = dataclasses.replace(model, orders=())  # which parameters do not depend on
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
            here = model.weights != "int8" or self.mesh is not None
            trees[kept, path] = found if here else jax.device_put(found, jax.devices()[0])
        return trees[kept, path]

    @property
    def _whole(self) -> Any:
        """How an array is placed of which each device has all."""
        return None if self.mesh is None else partitioning.whole(self.mesh)

    def _rounding(self, model: Model) -> contextlib.AbstractContextManager:
        """Where kernels are rounded to eight bits: on the host, whose memory holds what a device's
        may not. Over a mesh the devices do it, each its part."""
        if model.weights != "int8" or self.mesh is not None:
            return contextlib.nullcontext()
        try:
            return jax.default_device(jax.local_devices(backend="cpu")[0])
        except RuntimeError:  # JAX_PLATFORMS leaves it out
            return contextlib.nullcontext()
