"""The beams of a run: its settings and its flags.

The commands that search take the flags; `runs.opened` refuses the settings in the others.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Literal

from specdec.common.values import Checked, NonNegativeInt, Number, PositiveInt
from specdec.decoding.beam_rules import BeamRule, HuggingFaceBeams, T5XBeams
from specdec.texts.measured_run import GivenBeams


@dataclasses.dataclass(frozen=True)
class Beams(Checked):
    """The settings of a run's beam search; gin builds it.

    Args:
      num_beams: w, the number of beams; 0 for no search.
      num_return: the number of texts that are written for each input, best first.
      rule: the library whose search it is, 't5x' or 'huggingface'.
      length_penalty: T5X's alpha or Hugging Face's length_penalty; None for 0.6 or 1.0.
      early_stopping: the setting of Hugging Face's rule.
      draft_beams: u, the beams of the draft; None for 2 * w.
      draft_steps: gamma, the steps that the draft looks ahead.
    """

    num_beams: NonNegativeInt = 0
    num_return: PositiveInt = 1
    rule: Literal["t5x", "huggingface"] = "t5x"
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
        if not self.num_beams and any(searching.values()):
            given = next(name for name, one in searching.items() if one)
            raise ValueError(
                f"{given} is set but NUM_BEAMS is 0; give --num_beams, or leave it out"
            )
        if self.rule == "t5x" and self.early_stopping is not False:
            raise ValueError(
                f"EARLY_STOPPING is {self.early_stopping!r} but BEAM_RULE 't5x'; give "
                "BEAM_RULE = 'huggingface', or leave it out"
            )
        self.given()  # raises for settings that do not go together

    def given(self) -> GivenBeams | None:
        """Returns the search; None for no search."""
        if not self.num_beams:
            return None
        draft = self.draft_beams, self.draft_steps
        return GivenBeams(self.num_beams, self.num_return, self._rule(), *draft)

    def _rule(self) -> BeamRule:
        penalty = () if self.length_penalty is None else (self.length_penalty,)
        if self.rule == "t5x":
            return T5XBeams(*penalty)
        return HuggingFaceBeams(*penalty or (1.0,), self.early_stopping)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a search."""
    group = parser.add_argument_group("beam search")
    group.add_argument(
        "--num_beams",
        type=int,
        metavar="N",
        help="search for the likeliest texts with N beams, instead of the likeliest token each "
        "time; a draft makes it faster and changes nothing",
    )
    group.add_argument(
        "--num_return", type=int, metavar="N", help="write the N best texts (default: 1)"
    )
    group.add_argument(
        "--beam_rule",
        choices=("t5x", "huggingface"),
        help="whose beam search: T5X's, or that of Hugging Face's generate (default: t5x)",
    )
    group.add_argument(
        "--length_penalty",
        type=float,
        metavar="X",
        help="T5X's alpha (default: 0.6), or Hugging Face's length_penalty (default: 1)",
    )
