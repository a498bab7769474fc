"""The settings of the beam search that replaces decoding."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from specdec.common.values import Checked, NonNegativeInt, Number, PositiveInt, Rule, one_line
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import BeamRule, HuggingFaceBeams, T5XBeams
from specdec.engine import Engine
from specdec.engine.beam_engine import BeamEngine, beam_plan, searching
from specdec.plan import Plan

LIBRARIES = "t5x", "huggingface"
_RULE = Rule(
    lambda value: isinstance(value, BeamRule) or value in LIBRARIES,
    f"one of {', '.join(map(repr, LIBRARIES))}",
)


@dataclasses.dataclass(frozen=True)
class Beams(Checked):
    """The settings of a run's beam search; false if there is none. gin builds it as `cli.Beams`.

    Args:
      num_beams: w, the number of beams; 0 for no search.
      num_return: the number of output texts for each input, the best beams.
      rule: the library whose search is reproduced, 't5x' or 'huggingface', or a rule of
        `decoding.beam_rules`.
      length_penalty: T5X's alpha or Hugging Face's length_penalty; None for 0.6 or 1.0.
      early_stopping: Hugging Face's early_stopping; T5X has none.
      draft_beams: u, the beams of the draft; None for 2 * w.
      draft_steps: gamma, the number of steps per draft.
    """

    num_beams: NonNegativeInt = 0
    num_return: PositiveInt = 1
    rule: Annotated[str | BeamRule, _RULE] = "t5x"
    length_penalty: Number | None = None
    early_stopping: Literal[False, True, "never"] = False
    draft_beams: PositiveInt | None = None
    draft_steps: PositiveInt = 2

    def __post_init__(self):
        super().__post_init__()
        searching = {
            "NUM_RETURN": self.num_return != 1,
            "LENGTH_PENALTY": self.length_penalty is not None,
            "BEAM_RULE": self.rule != "t5x",
        }
        if not self and any(searching.values()):
            name = next(name for name, is_set in searching.items() if is_set)
            raise ValueError(f"{name} is set but NUM_BEAMS is 0; give --num_beams, or leave it out")
        if self.rule == "t5x" and self.early_stopping is not False:
            raise ValueError(
                f"EARLY_STOPPING is {self.early_stopping!r} but BEAM_RULE 't5x'; give "
                "BEAM_RULE = 'huggingface', or leave it out"
            )
        if self and self.num_return > self.num_beams:
            raise ValueError(
                f"num_return is {self.num_return} but num_beams {self.num_beams}; give no more "
                "texts than beams"
            )
        if self:
            self.beam_rule()  # raises for settings that do not go together

    def __bool__(self) -> bool:
        return self.num_beams > 0

    def beam_rule(self) -> BeamRule:
        """Returns the search's rule with its settings."""
        if isinstance(self.rule, BeamRule):
            return self.rule
        penalty = () if self.length_penalty is None else (self.length_penalty,)
        if self.rule == "t5x":
            return T5XBeams(*penalty)
        return HuggingFaceBeams(*penalty or (1.0,), self.early_stopping)

    def engine(self, engine: Engine) -> BeamEngine:
        """Returns the engine of the search, with the models and devices of `engine`."""
        return searching(engine, self.plan(engine.plan))

    def plan(self, plan: Plan) -> BeamPlan:
        """Returns the plan of the search, with the target and drafter of `plan`."""
        draft = {"width": self.draft_beams, "depth": self.draft_steps}
        with one_line():
            best_only = self.num_return == 1
            return beam_plan(plan, self.num_beams, self.beam_rule(), **draft, best_only=best_only)


NO_BEAMS = Beams()
