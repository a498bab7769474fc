"""Beam search with the models and parameters of an engine."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from specdec.checkpoints.generation_settings import searched
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import BeamRule
from specdec.decoding.beam_search import BeamOutput
from specdec.decoding.draft_beams import DraftBeams
from specdec.drafters import Autoregressive
from specdec.engine.engine import Engine
from specdec.plan import Plan
from specdec.sampling import Opening, looks_back

BeamEngine: TypeAlias = Engine[BeamPlan, BeamOutput]


def beam_plan(
    plan: Plan,
    beams: int,
    rule: BeamRule,
    *,
    width: int | None = None,
    depth: int = 2,
    best_only: bool = False,
) -> BeamPlan:
    """Returns the plan of a beam search that is made from a plan for decoding.

    The search has the plan's target, processors, longest output and stop ids, and its drafter's
    model. The drafter drafts `width` beams, by default 2 `beams`, for `depth` steps.
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
                "beams are drafted by an autoregressive model, and the drafter is "
                f"{type(plan.drafter).__name__}; give Autoregressive, or no drafter"
            )
        model, view, role = plan.drafter.model, plan.drafter.view, plan.drafter.role
        drafter = DraftBeams(model, width or 2 * beams, depth, view, role=role)
    processors = plan.sampling.processors if looks_back(plan.sampling) else ()
    best_only = best_only and not processors
    parts = plan.target, beams, rule, plan.max_length, drafter, processors, best_only, plan.stop_ids
    return BeamPlan(*parts, same_bits=plan.same_bits)


def searching(engine: Engine, plan: BeamPlan) -> BeamEngine:
    """Returns an engine for the search `plan`, which shares the parameters that `engine` has read.

    Its models have the layouts that are fastest for the search. Its beam rule follows the
    generation settings of the target's checkpoint, see `generation_settings.searched`.
    """
    if engine.text is not None and engine.settings != "ignore":
        opened = sum(len(x.choices) for x in plan.processors if isinstance(x, Opening))
        plan = dataclasses.replace(plan, rule=searched(plan.rule, engine.text, opened))
    return engine.with_plan(engine.placement.laid_out(plan, engine.rows))
