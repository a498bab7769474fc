"""The plan of a beam search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt, check_has, check_is
from specdec.decoding.beam_rules import BeamRule
from specdec.decoding.draft_beams import DraftBeams, rooted, view_of
from specdec.models.beam_tree import Slots
from specdec.models.model import Target, check_model
from specdec.plan import stop_ids_of
from specdec.types import Array, LogitsProcessor, Params, Part, PyTree, TargetCall


@dataclasses.dataclass(frozen=True)
class BeamPlan(Checked):
    """Everything static that decides about the beams of a text; hashable, for `jax.jit`.

    target: the model whose beams are wanted.
    beams: w, how many there are.
    rule: which library's bookkeeping.
    max_length: N, the longest output in tokens, with the stop id that ends it.
    drafter: what proposes the nodes of a tree; None for one step with each call.
    processors: what changes the log-probabilities of a token by the text before it, in order, as
      Hugging Face's beam search does.
    best_only: return the best text alone, and stop as soon as it cannot change.
    stop_ids: what ends a text; None for the target's own.

    Raises:
      ValueError: parts that do not go together.
    """

    target: Target
    beams: PositiveInt
    rule: BeamRule
    max_length: PositiveInt
    drafter: DraftBeams | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    best_only: bool = False
    stop_ids: tuple[int, ...] = None  # type: ignore[assignment]

    def __post_init__(self):
        super().__post_init__()
        check_model("BeamPlan.target", self.target)
        check_is("BeamPlan.rule", self.rule, BeamRule, "a rule, such as T5XBeams(0.6)")
        object.__setattr__(self, "processors", tuple(self.processors))
        for one in self.processors:
            remedy = "processors, such as NoRepeatNGram(3)"
            check_has("BeamPlan.processors", one, "process", remedy)
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
        """Whether anything is drafted."""
        return self.drafter is not None

    @property
    def depth(self) -> int:
        """gamma, the steps that are looked ahead."""
        return self.drafter.depth if self.drafter else 0

    @property
    def draft_beams(self) -> int:
        """u, the beams of the draft; 0 if nothing is drafted."""
        return self.drafter.width if self.drafter else 0

    @property
    def same_output(self) -> bool:
        """Whether the output is the target's own, token by token."""
        return self.exact

    @property
    def gamma(self) -> int | None:
        """The depth of a draft, None if nothing is drafted."""
        return self.depth or None

    @property
    def longest_draft(self) -> int:
        """The depth, which all drafts have."""
        return self.depth

    @property
    def width(self) -> int:
        """T, the tokens of a target call."""
        return self.beams + (self.drafter.nodes if self.drafter else 0)

    @property
    def slots(self) -> Slots:
        """The arrangement of a cache's row: N layers, and the nodes behind the last one."""
        return Slots(self.beams, self.draft_beams, self.capacity)

    @property
    def capacity(self) -> int:
        """Slots that a cache needs."""
        return self.beams * (self.max_length - 1) + self.width

    def models(self) -> dict[str, Any]:
        """Returns the models by role."""
        return {"target": self.target, **(self.drafter.models() if self.drafter else {})}

    def params(self, trees: Mapping[str, PyTree]) -> Params:
        """Returns the parameters of the models, by role."""
        return Params(**{role: trees[role] for role in self.models()})

    def parts(self, calls: Iterable[TargetCall] = ()) -> tuple[Part, ...]:
        """Returns the model calls of one iteration, which are the same for all calls; see
        `Plan.parts`."""
        drafted = self.drafter.parts(self.beams) if self.drafter else ()
        return Part("target", self.width, 1), *(part for part in drafted if part.calls)

    def holder(self, role: str) -> str:
        """Returns whose cache the calls of a part run on; see `Plan.holder`."""
        return role

    def call_of(self, role: str) -> Callable:
        """Returns a call of a part, for timing; see `Plan.call_of`. All tokens are of one layer."""
        model, slots = self.models()[role], self.slots

        def call(trees: Mapping[str, PyTree], tokens: Array, cache: Any) -> tuple[Array, Any]:
            tree = rooted(tokens[:, : self.beams], tokens.shape[1])
            path = jnp.zeros([len(tokens), self.beams, self.max_length], jnp.int32)
            view = view_of(tree, slice(None), path, cache.length // self.beams, slots)
            output, fed = model.decode(trees[role], tokens, cache, ancestors=view)
            return jnp.argmax(output.logits, axis=-1).astype(jnp.int32), fed

        return call

    def laid_out(self, rows: int) -> BeamPlan:
        """Returns this plan with its models in the layouts that this device reads fastest, in
        batches of `rows` texts; see `Model.laid_out`."""
        models = {}
        for role, model in self.models().items():
            calls = {rows * part.width: part.calls for part in self.parts() if part.role == role}
            models[role] = model.laid_out(calls)
        drafter = self.drafter
        if drafter:
            drafter = dataclasses.replace(drafter, model=models[drafter.role])
        return dataclasses.replace(self, target=models["target"], drafter=drafter)

    def alone(self) -> BeamPlan:
        """Returns the plan of the same beams without a drafter."""
        return dataclasses.replace(self, drafter=None)

    def __str__(self) -> str:
        """How it searches, in a line for people."""
        found = f"{self.beams} beams, {self.rule}"
        if self.drafter:
            found += f", drafts of {self.drafter.width} beams and {self.drafter.depth} steps"
        return found + (", best only" if self.best_only else "")
