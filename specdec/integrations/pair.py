"""Converts arguments of `InteractiveModel` to beam settings, directories and input lengths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias, TypedDict

from specdec import checkpoints
from specdec.decoding.beam_rules import BeamRule
from specdec.drafters import Autoregressive
from specdec.drafters.drafter import Drafter
from specdec.schedules.schedule import Schedule
from specdec.texts.beams import NO_BEAMS, Beams
from specdec.types import SamplingRule

Directory: TypeAlias = str | os.PathLike
Directories: TypeAlias = Directory | Mapping[str, Directory]

SHORTEST_BUCKET = 32  # tokens; each longer one is twice as long


class Search(TypedDict, total=False):
    """The settings of a beam search, in addition to the number of beams."""

    num_return: int | None
    rule: BeamRule | None
    draft_beams: int | None
    draft_steps: int


def beams_of(num_beams: int, search: Search) -> Beams:
    """Returns the settings of a search, or `NO_BEAMS` for 0 beams; None stands for a default."""
    settings: Any = {name: value for name, value in search.items() if value is not None}
    return Beams(num_beams, **settings) if num_beams else NO_BEAMS


def drafter_of(
    draft: Directories | None, drafter: Drafter | None, dtype: str | None, sampling: SamplingRule
) -> Drafter | None:
    """Returns the drafter, or the one of a draft model's directory; None if there is no draft."""
    if drafter is not None or draft is None:
        return drafter
    path = draft["draft"] if isinstance(draft, Mapping) else draft
    return Autoregressive(checkpoints.model_from(path, dtype), sampling)


def weights_of(
    target: Directory,
    draft: Directories | None,
    drafter: Drafter | None,
    schedule: Schedule | None,
    schedule_table: Directory | None,
) -> dict[str, Directory]:
    """Returns role -> directory of all parameters and tables of a target, drafter and schedule."""
    roles = list(drafter.owned()) if drafter else []
    paths: Mapping[str, Any] = dict.fromkeys(roles[:1], draft)
    if isinstance(draft, Mapping):
        paths = draft
    if missing := [role for role in roles if paths.get(role) is None]:
        raise ValueError(
            f"{type(drafter).__name__} has parameters for {', '.join(roles)} and draft is "
            f"{draft!r}; give the directory of {missing[0]}, of several a dict by role"
        )
    weights = {"target": target, **{role: paths[role] for role in roles}}
    for role in schedule.tables() if schedule else ():
        if schedule_table is None:
            raise ValueError(f"{schedule} needs a table; give schedule_table")
        weights[role] = schedule_table
    return weights


def buckets_below(longest: int) -> tuple[int, ...]:
    """Returns the lengths below `longest` that inputs are padded to: 32, 64, 128, ..."""
    lengths = (SHORTEST_BUCKET << doublings for doublings in range(longest.bit_length()))
    return tuple(length for length in lengths if length < longest)
