"""The parameters that the engines of a run share."""

from __future__ import annotations

import dataclasses

from specdec.common import progress
from specdec.engine.placement import Placement
from specdec.models.contract.model import Model, Target, Weights
from specdec.types import PyTree, Table


@dataclasses.dataclass(frozen=True, eq=False)
class Store:
    """Reads the parameters of each model and path once, and returns them in any layout.

    Parameters in another layout are rewritten in memory.

    Attributes:
      placement: the devices.
      trees: the parameters that were read, by (model or table, path).
    """

    placement: Placement = Placement()
    trees: dict[tuple[Weights | Table, str], PyTree] = dataclasses.field(default_factory=dict)

    def read(self, owned: Target | Table, path: str, name: str = "") -> PyTree:
        """Returns the parameters of a model or table, and keeps them; progress shows `name`."""
        key = _as_read(owned), path
        if key not in self.trees:
            tree = self._rewritten(owned, path)
            if tree is None:
                with progress.stage("reading", name and f"reading the {name}"):
                    tree = self.placement.read(owned, path)
            self.trees[key] = tree
        return self.trees[key]

    def copy(self) -> Store:
        """Returns a store that has what was read so far, and whose later reads this one lacks."""
        return Store(self.placement, dict(self.trees))

    def _rewritten(self, owned: Target | Table, path: str) -> PyTree | None:
        """Converts parameters that were read in another layout; returns None without any."""
        if not isinstance(owned, Model):
            return None
        for (model, model_path), tree in self.trees.items():
            if not isinstance(model, Model) or model_path != path:
                continue
            if model.stored() == owned.stored() and model.weights == owned.weights:
                return owned.from_stored(model.to_stored(tree))
        return None


def _as_read(owned: Target | Table) -> Target | Table:
    """Returns a model without the fields that its parameters do not depend on."""
    if not isinstance(owned, Model):
        return owned
    return dataclasses.replace(owned, layout=owned.layout.of_parameters)
