"""The facts on which an output depends, as plain values by name, to be compared and stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from os import PathLike
from types import FunctionType

from specdec import checkpoints, tasks
from specdec.checkpoints import tables
from specdec.drafters.drafter import Drafter
from specdec.models.contract.model import Weights
from specdec.types import Table

# Fields of a model that say where its parameters are and how they lie in memory.
PLACEMENT = ("axis_rules", "layout")


def fingerprints(
    owned: Mapping[str, Weights | Table],
    weights: Mapping[str, str | PathLike],
    vocabulary: tasks.LoadedVocabulary,
) -> dict[str, str]:
    """Returns short fingerprints of checkpoints, tables and vocabulary, by name.

    Args:
      owned: role -> model or table.
      weights: role -> directory.
      vocabulary: the vocabulary, in seqio's form.
    """
    prints = {}
    for role, path in weights.items():
        part = owned[role]
        is_table = isinstance(part, Table)
        digest = tables.fingerprint(path, part) if is_table else checkpoints.fingerprint(path)
        prints[f"fingerprint of {role}"] = digest
    if digest := tasks.digest(vocabulary):  # none of UTF-8 bytes
        prints["fingerprint of vocabulary"] = digest[:16]
    return prints


def drafter_key(name: str, drafter: Drafter, prints: Mapping[str, str]) -> dict[str, object]:
    """Returns name -> value of all that a drafter's proposals for a text depend on.

    Args:
      name: the drafter's name.
      drafter: the drafter.
      prints: the `fingerprints` of a run.
    """
    names = (f"fingerprint of {role}" for role in drafter.owned())
    return {x: prints[x] for x in names if x in prints} | flat(name, drafter)


def flat(name: str, value: object) -> dict[str, object]:
    """Returns the plain values inside a value, and each object's class, by dotted names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [x.name for x in dataclasses.fields(value) if x.name not in PLACEMENT]
        inside: dict[object, object] = {field: getattr(value, field) for field in fields}
        values: dict[str, object] = {name: type(value).__name__}
    elif isinstance(value, Mapping):
        inside, values = dict(value), {name: len(value)}
    elif isinstance(value, list | tuple) and any(map(_has_parts, value)):
        inside, values = dict(enumerate(value)), {name: len(value)}
    elif isinstance(value, list | tuple):
        return {name: [_plain(item) for item in value]}
    else:
        return {name: _plain(value)}
    for part, item in inside.items():
        values |= flat(f"{name}.{part}", item)
    return values


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.__qualname__ if isinstance(value, type | FunctionType) else repr(value)


def _has_parts(value: object) -> bool:
    return dataclasses.is_dataclass(value) or isinstance(value, Mapping | list | tuple)
