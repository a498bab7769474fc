"""The seconds of model calls, and the time of an iteration that follows from them.

Costs are measured, or come from a roofline or from the compiler's cycles. An iteration is one
target call with its draft. Letters as in `theory`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypedDict

from specdec.common import theory
from specdec.common.json_values import JsonObject, converted, record_of
from specdec.types import Part, verifies


class Calls(NamedTuple):
    """Calls of a model that are `width` tokens wide."""

    role: str
    width: int

    @classmethod
    def of(cls, name: str) -> Calls:
        """Returns the calls with this name in files."""
        role, _, width = name.rpartition(" ")
        return cls(role, int(width))

    @property
    def name(self) -> str:
        """The name in files."""
        return f"{self.role} {self.width}"

    @property
    def drafts(self) -> bool:
        return self.role != "alone" and not verifies(self.role)


class Iteration(NamedTuple):
    """The predicted seconds of an iteration; nan if a call's are not known."""

    draft: float  # of the draft's calls
    verify: float  # of the target's call
    step: float  # of a token of the target alone
    drafted: float  # tokens of the draft; a mean if that varies

    @property
    def seconds(self) -> float:
        """The seconds of the draft's calls and the target's call."""
        return self.draft + self.verify

    @property
    def cost_ratio(self) -> float:
        """The letter c; 0 if nothing is drafted."""
        return self.draft / self.drafted / self.step if self.drafted else 0.0

    @property
    def verify_cost(self) -> float:
        """The letter v."""
        return self.verify / self.step

    def speedup(self, alpha: float) -> float:
        """Returns `theory.speedup` at an acceptance rate; `drafted` is a whole number."""
        return theory.speedup(alpha, int(self.drafted), self.cost_ratio, self.verify_cost)


class _Record(TypedDict):
    calls: dict[str, float]


class Costs(NamedTuple):
    """The costs of a plan's parts, in seconds."""

    calls: Mapping[Calls, float]  # of one model call in an iteration; others may be present
    prefill: float = 0.0  # before the first iteration, all models
    prefill_alone: float = 0.0  # before the first iteration, target alone
    step: float = math.nan  # a token of the target alone
    source: str = ""  # where the costs come from, in words

    def record(self) -> Mapping[str, object]:
        """Returns plain values, for JSON."""
        calls = {key.name: seconds for key, seconds in self.calls.items()}
        return self._asdict() | {"calls": calls}

    @classmethod
    def of_record(cls, fields: JsonObject) -> Costs:
        """Returns the costs from the values of `record`."""
        calls = converted(fields, _Record)["calls"]
        return record_of(cls, fields, calls={Calls.of(name): x for name, x in calls.items()})

    def iteration(self, parts: Iterable[Part], drafted: float = 0) -> Iteration:
        """Predicts an iteration of these model calls, whose draft has this many tokens."""
        spent = {False: 0.0, True: 0.0}
        for role, width, times in parts:
            spent[verifies(role)] += times * self.calls.get(Calls(role, width), math.nan)
        return Iteration(spent[False], spent[True], self.step, drafted)
