"""The seconds of model calls, and the time of an iteration computed from them.

Costs are measured, or come from a roofline or from the compiler's cycles. An iteration is one
draft and the target call that verifies it. Letters are those of `common.theory`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypedDict

from specdec.common import theory
from specdec.common.json_values import JsonObject, converted, record_of
from specdec.types import Part, verifies


class Calls(NamedTuple):
    """The calls of one model on a given number of tokens, as a key of costs."""

    role: str  # the model's, such as "target", "draft" or "alone" (the target alone)
    width: int  # tokens per call

    @classmethod
    def of(cls, name: str) -> Calls:
        """Returns the calls that a name in files such as "target 8" stands for."""
        role, _, width = name.rpartition(" ")
        return cls(role, int(width))

    @property
    def name(self) -> str:
        """The name in files, such as "target 8"."""
        return f"{self.role} {self.width}"

    @property
    def drafts(self) -> bool:
        return self.role != "alone" and not verifies(self.role)


class Iteration(NamedTuple):
    """The predicted seconds of an iteration; nan if the cost of a call is not known."""

    draft: float  # seconds of the draft's model calls
    verify: float  # seconds of the target's call
    step: float  # seconds per token of the target alone
    drafted: float  # tokens per draft; a mean if drafts vary in length

    @property
    def seconds(self) -> float:
        """The seconds of the draft's calls and the target's call."""
        return self.draft + self.verify

    @property
    def cost_ratio(self) -> float:
        """c, the seconds per draft token / `step`; 0 if nothing is drafted."""
        return self.draft / self.drafted / self.step if self.drafted else 0.0

    @property
    def verify_cost(self) -> float:
        """v, `verify` / `step`."""
        return self.verify / self.step

    def speedup(self, alpha: float) -> float:
        """Returns the speed-up at an acceptance rate; `drafted` must be a whole number."""
        return theory.speedup(alpha, int(self.drafted), self.cost_ratio, self.verify_cost)


class _Record(TypedDict):
    calls: dict[str, float]


class Costs(NamedTuple):
    """The seconds of a plan's model calls and prefills."""

    calls: Mapping[Calls, float]  # seconds of one call within an iteration
    prefill: float = 0.0  # seconds before the first iteration, for all models
    prefill_alone: float = 0.0  # seconds before the first step of the target alone
    step: float = math.nan  # seconds per token of the target alone
    source: str = ""  # where the costs come from, in words

    def record(self) -> Mapping[str, object]:
        """Returns all fields as values that JSON can hold."""
        calls = {key.name: seconds for key, seconds in self.calls.items()}
        return self._asdict() | {"calls": calls}

    @classmethod
    def of_record(cls, fields: JsonObject) -> Costs:
        """Returns the costs from the fields that `record` returns."""
        calls = converted(fields, _Record)["calls"]
        return record_of(cls, fields, calls={Calls.of(name): x for name, x in calls.items()})

    def iteration(self, parts: Iterable[Part], drafted: float = 0) -> Iteration:
        """Predicts an iteration that runs the model calls `parts` for `drafted` draft tokens."""
        spent = {False: 0.0, True: 0.0}
        for role, width, times in parts:
            spent[verifies(role)] += times * self.calls.get(Calls(role, width), math.nan)
        return Iteration(spent[False], spent[True], self.step, drafted)
