"""Whose the trees of parameters are: models and tables of a drafter, or a schedule, by role."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from specdec.types import Params, Part, PyTree, Table
from specdec.values import is_word

# The roles of the target's calls: in speculation, and where it is timed alone.
RESERVED = ("target", "alone")


def shared_roles(owners: Iterable[Any]) -> list[str]:
    """Returns the roles that several drafters have for parameters of their own; a table that they
    all read is no such role."""
    found: dict[str, list[Any]] = {}
    for owner in owners:
        for role, owned in owned_by(owner).items():
            found.setdefault(role, []).append(owned)

    def one_table(owned: list[Any]) -> bool:
        return isinstance(owned[0], Table) and all(one == owned[0] for one in owned)

    return sorted(role for role, x in found.items() if len(x) > 1 and not one_table(x))


def check_names(drafter: Any, schedule: Any) -> None:
    """Raises ValueError for a role that is the target's, or that drafter and schedule both have."""
    for owner in (drafter, schedule):
        for role in owned_by(owner):
            if not is_word(role) or role.partition("/")[0] in RESERVED:
                raise ValueError(
                    f"{type(owner).__name__} has the role {role!r}; give it one that does not name "
                    f"the target ({', '.join(RESERVED)}), such as 'draft'"
                )
    if both := owned_by(drafter).keys() & owned_by(schedule).keys():
        names = ", ".join(sorted(both))
        raise ValueError(
            f"{type(drafter).__name__} and {type(schedule).__name__} both own {names}; "
            "give the drafter's another role"
        )


def reads_hidden(drafter: Any) -> bool:
    """Whether it, or a drafter that it is made of, reads the target's states."""
    return getattr(drafter, "reads_hidden", False) or any(map(reads_hidden, _inside(drafter)))


def calls_of(drafter: Any, target: Any) -> dict[str, Callable]:
    """What a call of each role is, where it is no plain call of `decode`: of a drafter, see
    `Drafter`, and of a target whose calls go through more layers or fewer."""
    always = {of_depth(depth): target.always(depth) for depth in depths_of(target)}
    return _drafting(drafter, target) | {k: plain_call("target", v) for k, v in always.items()}


def _drafting(drafter: Any, target: Any) -> dict[str, Callable]:
    own = drafter.timed(target) if hasattr(drafter, "timed") else {}
    return own | {k: v for one in _inside(drafter) for k, v in _drafting(one, target).items()}


def depths_of(target: Any) -> tuple[int, ...]:
    """How many layers its calls may go through, () if they go through all."""
    return getattr(target, "depths", ())


def of_depth(depth: int | None) -> str:
    """The role of the target's calls that go through so many layers: 'target/6', and 'target' where
    all go through all."""
    return "target" if depth is None else f"target/{depth}"


def verifies(role: str) -> bool:
    """Whether it is one of the target's calls, and not one that drafts."""
    return role.partition("/")[0] == "target"


def partial_models(drafter: Any, target: Any) -> dict[str, Any]:
    """The models that stand for calls of the target which are not of all its layers, by role."""
    own = drafter.partial_models(target) if hasattr(drafter, "partial_models") else {}
    return own | {k: v for one in _inside(drafter) for k, v in partial_models(one, target).items()}


def itself(drafter: Any, target: Any) -> Any:
    """The drafter with the whole target in the place of a part of it; None if it runs none."""
    return drafter.itself(target) if hasattr(drafter, "itself") else None


def sources_of(drafter: Any) -> tuple[str, ...]:
    """Returns the names of the drafters that one is made of, () if it is made of none."""
    return getattr(drafter, "sources", ())


def parts_of(drafter: Any, length: int, source: int | None) -> tuple[Part, ...]:
    """Returns the model calls of a draft of `length` tokens, which one of the drafter's sources has
    proposed; the source does not matter where there are none."""
    if not hasattr(drafter, "parts"):
        return ()
    return tuple(drafter.parts(length, source) if sources_of(drafter) else drafter.parts(length))


def spare_ids_of(drafter: Any) -> dict[str, int]:
    """Ids beyond those of texts that it needs of its models, by role: the masks of `Masked`."""
    own = drafter.spare_ids() if hasattr(drafter, "spare_ids") else {}
    return own | {k: v for one in _inside(drafter) for k, v in spare_ids_of(one).items()}


def holder(role: str, models: Mapping[str, Any]) -> str:
    """Whose cache the calls of a part run on: its model's, or the target's where it has none."""
    return role if role in models else "target"


def plain_call(role: str, model: Any) -> Callable:
    """A call of `decode`, of whose logits the argmaxes are taken."""

    def call(trees: Mapping[str, PyTree], tokens: Any, cache: PyTree) -> tuple[Any, PyTree]:
        output, fed = model.decode(trees[role], tokens, cache)
        return jnp.argmax(output.logits, axis=-1).astype(jnp.int32), fed

    return call


def _inside(drafter: Any) -> list[Any]:
    """The drafters that one is made of."""
    values = vars(drafter).values() if dataclasses.is_dataclass(drafter) else ()
    flat = (one for value in values for one in (value if isinstance(value, tuple) else [value]))
    return [one for one in flat if hasattr(one, "propose")]


def models_of(drafter: Any) -> Mapping[str, Any]:
    """The models that it runs."""
    return drafter.models() if hasattr(drafter, "models") else {}


def tables_of(drafter: Any) -> Mapping[str, Table]:
    """The tables that it looks things up in."""
    return drafter.tables() if hasattr(drafter, "tables") else {}


def owned_by(drafter: Any) -> dict[str, Any]:
    """Everything that has a tree in `Params.drafter`, or of a schedule in `Params.schedule`."""
    return {**models_of(drafter), **tables_of(drafter)}


def views_of(drafter: Any) -> dict[str, Callable[[PyTree], PyTree]]:
    """Returns what its models read of the inputs, by role, where that is not all of them; see
    `drafters.Autoregressive`."""
    own: Any = getattr(drafter, "view", None)
    found: dict[str, Any] = dict.fromkeys(models_of(drafter), own) if own else {}
    return found | {k: v for one in _inside(drafter) for k, v in views_of(one).items()}


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
