"""The run that is measured, as the functions of this package take it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from specdec import checkpoints
from specdec.engine import Engine
from specdec.plan import Plan
from specdec.tasks import Batch
from specdec.types import PyTree


class Run(Protocol):
    """A plan, the texts, and the devices. It is a dataclass, so `dataclasses.replace` changes it.

    data: which texts, see `cli.Data`.
    placement: on which devices, see `cli.Placement`.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def plan(self) -> Plan: ...
    @property
    def alone(self) -> Plan: ...
    @property
    def data(self) -> Any: ...
    @property
    def placement(self) -> Any: ...
    @property
    def checkpoint_path(self) -> str: ...
    @property
    def lengths(self) -> dict[str, int]: ...
    @property
    def compare(self) -> bool: ...
    @property
    def lossy(self) -> bool: ...
    def paths(self) -> dict[str, str]: ...
    def batches(self) -> Iterator[Batch]: ...
    def trees(self, tree_of: Callable[[Any, str], PyTree]) -> dict[str, PyTree]: ...


class Variant(NamedTuple):
    """One of the runs that are compared, or the only one.

    name: the settings that only this one has, '' for none.
    run: with the plan as its engine has it.
    settings: those in force, as gin text.
    engine: what decodes.
    """

    name: str
    run: Run
    settings: str
    engine: Engine

    @property
    def vocabulary(self) -> Any:
        """The vocabulary of its texts."""
        return self.engine.vocabulary


def described(run: Run) -> dict[str, Any]:
    """Returns what every report says of a run."""
    models = run.plan.models()
    return {
        "dtype": {role: model.dtype for role, model in models.items()},
        "parameters": parameter_counts(models),
        "lengths": run.lengths,
        "split": run.data.split,
        "seed": run.data.seed,
        "limit": run.data.limit,
    }


def parameter_counts(models: Mapping[str, Any]) -> dict[str, int]:
    """Returns how many numbers each model's checkpoint has, by role."""
    return {role: checkpoints.parameter_count(model) for role, model in models.items()}
