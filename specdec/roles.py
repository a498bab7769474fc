"""Whose the trees of parameters are: models and tables of a drafter, or a schedule, by role."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.types import Params, PyTree, Table


def reads_hidden(drafter: Any) -> bool:
    """Whether it, or a drafter that it is made of, reads the target's states."""
    if getattr(drafter, "reads_hidden", False):
        return True
    inner = vars(drafter).values() if dataclasses.is_dataclass(drafter) else ()
    flat = (one for value in inner for one in (value if isinstance(value, tuple) else [value]))
    return any(reads_hidden(one) for one in flat if hasattr(one, "propose"))


def models_of(drafter: Any) -> Mapping[str, Any]:
    """The models that it runs."""
    return drafter.models() if hasattr(drafter, "models") else {}


def tables_of(drafter: Any) -> Mapping[str, Table]:
    """The tables that it looks things up in."""
    return drafter.tables() if hasattr(drafter, "tables") else {}


def owned_by(drafter: Any) -> dict[str, Any]:
    """Everything that has a tree in `Params.drafter`, or of a schedule in `Params.schedule`."""
    return {**models_of(drafter), **tables_of(drafter)}


def with_models(drafter: Any, models: Mapping[str, Any]) -> Any:
    """The drafter with its own ones of these models."""
    own = models_of(drafter)
    return drafter.with_models({role: models[role] for role in own}) if own else drafter


def packed(drafter: Any, trees: Mapping[str, PyTree]) -> PyTree:
    """The tree of `Params` for a drafter, of trees by role, among which are its own."""
    own = {role: trees[role] for role in owned_by(drafter)}
    return own if len(own) > 1 else next(iter(own.values()), ())


def unpacked(drafter: Any, tree: PyTree) -> dict[str, PyTree]:
    """The trees by role: the inverse of `packed`."""
    roles = list(owned_by(drafter))
    return dict(tree) if len(roles) > 1 else {role: tree for role in roles}


def divided(drafter: Any, members: Sequence[Any], params: Params) -> list[Params]:
    """The parameters of each member of a drafter that is made of others."""
    trees = unpacked(drafter, params.drafter)
    return [params._replace(drafter=packed(member, trees)) for member in members]
