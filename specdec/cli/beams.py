"""The beams of a run: its settings, its flags, and what `specdec decode` writes of them.

The commands that search take the flags; `runs.opened` refuses the settings in the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from specdec import tasks
from specdec.cli import settings
from specdec.common import terminal
from specdec.common.values import Checked, NonNegativeInt, Number, PositiveInt, UsageError
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import BeamRule, HuggingFaceBeams, T5XBeams
from specdec.engine import Engine
from specdec.engine.beam_engine import BeamEngine
from specdec.instrument.beam_texts import BeamSummary, searched
from specdec.instrument.runs import GivenBeams
from specdec.plan import Plan


@dataclasses.dataclass(frozen=True)
class Beams(Checked):
    """How a run searches for the likeliest texts; gin builds it.

    num_beams: w; 0 for no search.
    num_return: texts that are written for each input, the best first.
    rule: 't5x' or 'huggingface', whose search it is.
    length_penalty: T5X's alpha (0.6) or Hugging Face's length_penalty (1.0); None for these.
    early_stopping: that of Hugging Face's rule.
    draft_beams: u, the beams of the draft; None for twice as many.
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
        if self.num_beams and self.num_return > self.num_beams:
            raise ValueError(
                f"NUM_RETURN is {self.num_return} but NUM_BEAMS {self.num_beams}; give no more "
                "texts than beams"
            )

    def engine(self, engine: Engine) -> BeamEngine:
        """Returns the search with the parts of an engine; raises as `plan` does."""
        return BeamEngine(engine, self.plan(engine.plan))

    def plan(self, plan: Plan) -> BeamPlan:
        """Returns the plan of the search with the parts of a plan for decoding.

        Raises:
          UsageError: the run cannot be searched.
        """
        rule, draft = self._rule(), (self.draft_beams, self.draft_steps)
        try:
            return GivenBeams(self.num_beams, self.num_return, rule, *draft).plan(plan)
        except ValueError as error:
            raise UsageError(str(error)) from error

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


def flags_of(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of the flags."""
    return {
        "Beams.num_beams": args.num_beams,
        "Beams.num_return": args.num_return,
        "Beams.rule": args.beam_rule,
        "Beams.length_penalty": args.length_penalty,
    }


def write(
    args: argparse.Namespace,
    beams: Beams,
    engine: BeamEngine,
    batches: Iterable[tasks.Batch],
    text_of: Callable[[Sequence[int]], str],
    compare: bool,
    in_force: str,
) -> None:
    """Writes the beams of texts: lines to --output_file, texts with their scores to a terminal,
    and one plain text per line to anything else."""
    summary, on_terminal = BeamSummary(), sys.stdout.isatty()
    shown = on_terminal or not args.output_file
    file = settings.json_lines(args.output_file, in_force)
    try:
        for text in searched(engine, batches, text_of, beams.num_return, summary, compare):
            if file:
                file.append(text.record())
            for score, found in zip(text.scores, text.predictions, strict=True) if shown else ():
                before = f"{score:9.4f}  " if on_terminal else ""
                print(before + terminal.one_line(found), flush=True)
    finally:
        if summary.texts:
            print(engine.plan, *summary.lines(), sep="\n", file=sys.stderr)
