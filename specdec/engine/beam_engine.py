"""Beam search with the parts of an engine."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator

from specdec import decoding, tasks
from specdec.checkpoints.generation_settings import searched
from specdec.common import progress
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import BeamRule
from specdec.decoding.beam_search import BeamOutput
from specdec.decoding.draft_beams import DraftBeams
from specdec.decoding.program import BeamProgram, batch_shapes
from specdec.decoding.row_bits import check_same_beams
from specdec.drafters import Autoregressive
from specdec.engine.engine import BITS_INPUTS, Engine
from specdec.plan import Plan
from specdec.sampling import Opening, looks_back
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
    """Returns the plan of a beam search with the parts of a plan for decoding.

    The search takes the plan's target, processors, longest output and stop ids, and the model of
    its drafter.

    Args:
      plan: the plan for decoding.
      beams: w, the number of beams.
      rule: the library whose bookkeeping is used.
      width: u, the beams of the draft; None for 2 * w.
      depth: gamma, the steps that the draft looks ahead.
      best_only: whether only the best text is wanted; with processors all beams are searched for.

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
    return BeamPlan(*given, same_bits=plan.same_bits)


@dataclasses.dataclass(frozen=True, eq=False)
class BeamEngine:
    """Searches for the best texts of batches, with the models and parameters of an engine.

    Both have their models in the layouts that suit the calls of the search. The rule follows the
    settings of the target's checkpoint, see `generation_settings.searched`.

    Raises:
      CheckpointError: the rule cannot follow them.
    """

    engine: Engine
    plan: BeamPlan

    def __post_init__(self):
        plan, text = self.plan, self.engine.text
        if text is not None and self.engine.settings != "ignore":
            opened = sum(len(x.choices) for x in plan.processors if isinstance(x, Opening))
            plan = dataclasses.replace(plan, rule=searched(plan.rule, text, opened))
        plan = self.engine.placement.laid_out(plan, self.engine.rows)
        engine = self.engine.with_models(plan.models())
        # A search measures its own calls, and not those of decoding.
        decoding_plan = dataclasses.replace(engine.plan, same_bits=False)
        engine = dataclasses.replace(engine, plan=decoding_plan)
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "engine", engine)

    @functools.cached_property
    def params(self) -> Params:
        """The parameters of the search's models, by role.

        Raises:
          NotTheSameBits: the plan asks for the same bits, and this device does not give them.
        """
        params = self.plan.params(self.engine.params)
        if self.plan.same_bits and self.plan.drafts:
            with progress.stage("measuring", "measuring the bits of the target's calls"):
                check_same_beams(self.plan, params, self.engine.rows, BITS_INPUTS)
        return params

    @functools.cached_property
    def program(self) -> BeamProgram:
        """The program of the search."""
        return BeamProgram(
            self.plan, mesh=self.engine.placement.mesh, prefix=self.engine.given_prefix
        )

    @property
    def compile_seconds(self) -> float:
        """The time of all compilations of `program` so far."""
        return self.program.seconds

    @property
    def vocabulary(self) -> tasks.LoadedVocabulary:
        """The vocabulary of the texts."""
        return self.engine.vocabulary

    @property
    def prefix(self) -> tuple[int, ...]:
        """The ids that every output begins with."""
        return self.engine.prefix

    def load(self) -> Params:
        """Reads `params` now rather than at first use, and returns them."""
        return self.params

    def suited(self, **how: object) -> BeamEngine:
        """Returns this engine: a search has one program; see `Engine.suited`."""
        del how
        return self

    def check(self, length: int, *, compile: bool = False) -> None:
        """Traces the program for inputs of `length` tokens, as `Engine.check` does."""
        batch = batch_shapes(self.plan.target, self.engine.rows, length, self.engine.placement.mesh)
        shapes = self.plan.params(self.engine.abstract())
        self.program.lower(shapes, *batch)
        if compile:
            self.program.begin_to_compile(shapes, *batch)

    def decode(
        self, batch: tasks.Batch, *, seed: int = 0, sample: int = 0
    ) -> tuple[BeamOutput, float]:
        """Searches for the beams of a batch of texts.

        Args:
          batch: the texts.
          seed: has no effect, as `sample` has none: a search draws nothing.
          sample: see `seed`.

        Returns:
          The output, on the host, and the seconds that the search took without compiling.

        Raises:
          NonFiniteLogits: the target's logits are not finite; the error has the index of the text.
        """
        keys = self.engine.keys(batch, seed, sample)
        with decoding.naming_texts(batch.index):
            return self.program.fetch(self.params, keys, self.engine.inputs(batch))

    def outputs(
        self, work: Iterable[tuple[tasks.Batch, int]], *, seed: int = 0
    ) -> Iterator[tuple[BeamOutput, float]]:
        """Yields the results of `decode` for batches and numbers of samples, in order.

        Args:
          work: pairs of a batch and a sample.
          seed: see `decode`.
        """
        for batch, sample in work:
            yield self.decode(batch, seed=seed, sample=sample)

    def alone(self) -> BeamEngine:
        """Returns the same search by the target alone, one step per call."""
        return dataclasses.replace(self, plan=self.plan.alone())
