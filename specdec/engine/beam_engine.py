"""Beam search with the parts of an engine."""

from __future__ import annotations

import dataclasses
import functools

from specdec import decoding, tasks
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import BeamRule
from specdec.decoding.beam_search import BeamOutput
from specdec.decoding.draft_beams import DraftBeams
from specdec.decoding.program import BeamProgram, batch_shapes
from specdec.drafters import Autoregressive
from specdec.engine.engine import Engine
from specdec.plan import Plan
from specdec.sampling import looks_back
from specdec.types import Params


def beam_plan(
    plan: Plan,
    beams: int,
    rule: BeamRule,
    *,
    width: int | None = None,
    depth: int = 2,
    best_only: bool = False,
) -> BeamPlan:
    """Returns the plan of a search with the parts of a plan for decoding: its target, the model of
    its drafter, its processors, its longest output and its stop ids.

    Args:
      beams: w.
      width: u, the beams of the draft; None for twice as many as are searched for.
      depth: gamma, the steps that the draft looks ahead.
      best_only: whether one text is wanted; behind processors all beams are searched for.

    Raises:
      ValueError: the plan samples, or its drafter has no model that drafts token by token.
    """
    if not plan.sampling.greedy:
        raise ValueError(
            f"beam search takes the likeliest texts, and sampling is {plan.sampling}; give "
            "Greedy(), or leave out the beams"
        )
    drafter = None
    if plan.drafts:
        if not isinstance(plan.drafter, Autoregressive):
            raise ValueError(
                "beams are drafted by a model of their own, and the drafter is "
                f"{type(plan.drafter).__name__}; give Autoregressive, or no drafter"
            )
        model, view, role = plan.drafter.model, plan.drafter.view, plan.drafter.role
        drafter = DraftBeams(model, width or 2 * beams, depth, view, role=role)
    processors = plan.sampling.processors if looks_back(plan.sampling) else ()
    best_only = best_only and not processors
    given = plan.target, beams, rule, plan.max_length, drafter, processors, best_only, plan.stop_ids
    return BeamPlan(*given)


@dataclasses.dataclass(frozen=True, eq=False)
class BeamEngine:
    """Searches for the best texts of batches, with the models and parameters of an engine.

    plan: with its models in the layouts that suit its calls; `of` lays them out.
    """

    engine: Engine
    plan: BeamPlan

    @classmethod
    def of(cls, engine: Engine, plan: BeamPlan) -> BeamEngine:
        """Returns a search with the parts of an engine, laid out for the search's own calls."""
        return cls(engine, engine.placement.laid_out(plan, engine.rows))

    @functools.cached_property
    def params(self) -> Params:
        """The parameters of the models, read or converted when they are asked for, and kept."""
        return self.plan.params(self.engine.params_of(self.plan.models()))

    @functools.cached_property
    def program(self) -> BeamProgram:
        """The program of the search."""
        return BeamProgram(
            self.plan, mesh=self.engine.placement.mesh, prefix=self.engine.given_prefix
        )

    def check(self, length: int) -> None:
        """Traces the program for inputs of `length` tokens; raises ValueError for parts that cannot
        work together."""
        own, models = self.engine, self.plan.models()
        shapes = {
            role: own.placement.shape(x, str(own.weights[role])) for role, x in models.items()
        }
        batch = batch_shapes(own.rows, length, own.placement.mesh)
        self.program.lower(Params(**shapes), *batch)

    def search(self, batch: tasks.Batch) -> tuple[BeamOutput, float]:
        """Searches for the beams of a batch of texts.

        Returns:
          The output, on the host, and the seconds that it took without compiling.

        Raises:
          NonFiniteLogits: with the index of the text.
        """
        keys = self.engine.keys(batch, seed=0)
        with decoding.naming_texts(batch.index):
            return self.program.fetch(self.params, keys, batch.inputs)

    def alone(self) -> BeamEngine:
        """Returns the same search by the target alone, one step with each call."""
        return BeamEngine.of(self.engine, self.plan.alone())
