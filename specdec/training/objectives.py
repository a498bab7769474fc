"""Objectives, which training makes small. A new one is a frozen dataclass with these methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Protocol

from specdec.models.model import Target
from specdec.training.loss import Frozen, Pairs, Sums, cross_entropy, teacher_forced
from specdec.types import Array, PyTree
from specdec.values import Checked, number

Smoothing = Annotated[float, number(lambda s: 0 <= s < 1, "a number from 0 on, below 1")]


class Objective(Protocol):
    """A loss of a model on a batch, as sums over the tokens that it is about.

    One that needs the target although the model reads nothing of it sets `reads_target`; a run
    without a target is then refused. One whose loss and accuracy speak of acceptance has
    `figures(means, parameter_ratio)`, see `Align`, which evaluations log besides.
    """

    def check(self, model: Any, ids: int | None) -> None:
        """Raises ValueError for a model that cannot be trained so.

        ids: of the vocabulary; None if that is not known.
        """
        ...

    def loss(
        self,
        model: Target,
        params: PyTree,
        frozen: Frozen | None,
        pairs: Pairs,
        key: Array,
        progress: Array,
    ) -> Sums:
        """Returns the loss of an update; `progress` [] is the share of updates that were made."""
        ...

    def measure(self, model: Target, params: PyTree, frozen: Frozen | None, pairs: Pairs) -> Sums:
        """Without smoothing, and without chance: batches of one text are measured alike always."""
        ...


@dataclasses.dataclass(frozen=True)
class TeacherForced(Checked):
    """Cross-entropy of each token behind those before it.

    label_smoothing: 0 <= s < 1, see `cross_entropy`.
    view: what the model reads of the inputs, if not all: a drafter's `NoSource()`.
    """

    label_smoothing: Smoothing = 0.1
    view: Callable[[Array], Array] | None = None

    def check(self, model: Any, ids: int | None) -> None:
        """Any model can be whose head has all ids."""
        check_head(self, model)

    def loss(
        self,
        model: Target,
        params: PyTree,
        frozen: Frozen | None,
        pairs: Pairs,
        key: Array,
        progress: Array,
    ) -> Sums:
        logits = teacher_forced(model, params, self._seen(pairs), frozen)
        return cross_entropy(logits, pairs.targets, self.label_smoothing)

    def measure(self, model: Target, params: PyTree, frozen: Frozen | None, pairs: Pairs) -> Sums:
        logits = teacher_forced(model, params, self._seen(pairs), frozen)
        return cross_entropy(logits, pairs.targets)

    def _seen(self, pairs: Pairs) -> Pairs:
        return pairs if self.view is None else pairs._replace(inputs=self.view(pairs.inputs))


def check_head(objective: Any, model: Any) -> None:
    """Refuses a model for whom some tokens are impossible, where the loss would be infinite."""
    if (known := getattr(model.config, "head_ids", None)) is not None:
        raise ValueError(
            f"{type(objective).__name__} is of all tokens of the texts, and the model's head has "
            f"{len(known)} of {model.vocab_size} ids (head_ids); give Align, or trim it afterwards"
        )
