"""The plan of a beam search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt, check_has, check_is
from specdec.decoding.beam_rules import BeamRule
from specdec.decoding.draft_beams import DraftBeams, rooted, view_of
from specdec.models.contract.beam_tree import Slots
from specdec.models.contract.model import Target, check_model, decode_block
from specdec.plan import BasePlan, Plan, stop_ids_of
from specdec.types import Array, Cache, LogitsProcessor, Part, PyTree, TargetCall


@dataclasses.dataclass(frozen=True)
class BeamPlan(Checked, BasePlan):
    """Holds every static choice that decides about the beams of a text; hashable, for `jax.jit`.

    The processors change the log-probabilities of a token by the text before it, in this order, as
    in Hugging Face's beam search. With `best_only`, the search returns only the best text, and
    stops as soon as no other text can become better. With `same_bits`, calls of the target alone
    are computed as wide as those on a draft's tree. All beams and scores are then those of the
    target alone in bfloat16 too, on devices where `decoding.row_bits` finds no difference.
    """

    target: Target
    beams: PositiveInt  # w
    rule: BeamRule
    max_length: PositiveInt  # N, the longest output in tokens, including the stop id
    drafter: DraftBeams | None = None  # None for one step per call
    processors: tuple[LogitsProcessor, ...] = ()
    best_only: bool = False
    stop_ids: tuple[int, ...] = None  # type: ignore[assignment]  # None for the target's own
    same_bits: bool = False

    def __post_init__(self):
        super().__post_init__()
        check_model("BeamPlan.target", self.target)
        if self.same_bits:
            object.__setattr__(self, "target", self.target.same_bits(self.width, in_order=True))
        check_is("BeamPlan.rule", self.rule, BeamRule, "a rule, such as T5XBeams(0.6)")
        object.__setattr__(self, "processors", tuple(self.processors))
        for processor in self.processors:
            remedy = "processors, such as NoRepeatNGram(3)"
            check_has("BeamPlan.processors", processor, "process", remedy)
        object.__setattr__(self, "stop_ids", stop_ids_of(self.stop_ids, self.target))
        if self.drafter is not None and self.drafter.width < self.beams:
            raise ValueError(
                f"DraftBeams.width is {self.drafter.width}, fewer than the {self.beams} beams that "
                f"are searched for; give {self.beams} or more"
            )
        if self.best_only and self.processors:
            raise ValueError(
                "best_only needs scores that cannot rise, and processors may raise them; give "
                "best_only=False, or no processors"
            )

    @property
    def exact(self) -> bool:
        """Whether the beams are those of the target alone."""
        return self.target.exact

    @property
    def drafts(self) -> bool:
        """Whether there is a drafter."""
        return self.drafter is not None

    @property
    def depth(self) -> int:
        """gamma, the steps that the draft looks ahead; 0 without a draft."""
        return self.drafter.depth if self.drafter else 0

    @property
    def draft_beams(self) -> int:
        """u, the beams of the draft; 0 without a draft."""
        return self.drafter.width if self.drafter else 0

    @property
    def same_output(self) -> bool:
        """Whether the output is the target's own, token by token."""
        return self.exact

    @property
    def gamma(self) -> int | None:
        """gamma, the steps that the draft looks ahead; None without a draft."""
        return self.depth or None

    @property
    def longest_draft(self) -> int:
        """gamma, the steps of every draft; 0 without a draft."""
        return self.depth

    @property
    def width(self) -> int:
        """T, the tokens of a target call."""
        return self.beams + (self.drafter.nodes if self.drafter else 0)

    @property
    def slots(self) -> Slots:
        """The order of a cache row's slots: w for each output position, then those of a tree."""
        return Slots(self.beams, self.draft_beams, self.capacity)

    @property
    def capacity(self) -> int:
        """C, the number of slots in a row of the cache."""
        return self.beams * (self.max_length - 1) + self.target.computed_width(self.width)

    def models(self) -> dict[str, Target]:
        return {"target": self.target, **(self.drafter.models() if self.drafter else {})}

    def with_models(self, models: Mapping[str, Target]) -> BeamPlan:
        drafter, target = self.drafter, models.get("target", self.target)
        if drafter is not None:
            drafter = dataclasses.replace(drafter, model=models.get(drafter.role, drafter.model))
        return dataclasses.replace(self, target=target, drafter=drafter)

    def parts(self, calls: Iterable[TargetCall] = ()) -> tuple[Part, ...]:
        drafted = self.drafter.parts(self.beams) if self.drafter else ()
        width = self.target.computed_width(self.width)
        return Part("target", width, 1), *(part for part in drafted if part.calls)

    def call_of(self, role: str) -> Callable:
        """Returns a function that calls a role's model once, for timing; see `Plan.call_of`."""
        model, slots = self.models()[role], self.slots

        def call(trees: Mapping[str, PyTree], tokens: Array, cache: Cache) -> tuple[Array, Cache]:
            tree = rooted(tokens[:, : self.beams], tokens.shape[1])
            path = jnp.zeros([len(tokens), self.beams, self.max_length], jnp.int32)
            view = view_of(tree, slice(None), path, cache.length // self.beams, slots)
            output, fed = decode_block(model, trees[role], tokens, cache, ancestors=view)
            return jnp.argmax(output.logits, axis=-1).astype(jnp.int32), fed

        return call

    def laid_out(self, rows: int) -> BeamPlan:
        """Returns this plan in the fastest layouts; `same_bits` leaves the target's unchanged."""
        laid = super().laid_out(rows)
        return laid.with_models({"target": self.target}) if self.same_bits else laid

    def alone(self) -> BeamPlan:
        """Returns the plan of the same search without a drafter."""
        return dataclasses.replace(self, drafter=None)

    def baseline(self) -> BeamPlan:
        """Returns `alone`, with which a search is compared."""
        return self.alone()

    def __str__(self) -> str:
        """Describes the plan in one line."""
        text = f"{self.beams} beams, {self.rule}"
        if self.drafter:
            text += f", drafts of {self.drafter.width} beams and {self.drafter.depth} steps"
        return text + (", best only" if self.best_only else "")


AnyPlan: TypeAlias = Plan | BeamPlan  # of decoding, or of a beam search
