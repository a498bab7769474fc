"""What training makes small. A new objective is a frozen dataclass with these methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from specdec.models.model import Target
from specdec.training.loss import Frozen, Pairs, Sums, cross_entropy, teacher_forced
from specdec.types import Array, PyTree
from specdec.values import is_number


class Objective(Protocol):
    """A loss of a model on a batch, as sums over the tokens that it is about.

    One that needs the target although the model reads nothing of it sets `reads_target`; a run
    without a target is then refused. One whose loss and accuracy speak of acceptance has
    `figures(means, parameter_ratio)`, see `Align`, which evaluations log besides.
    """

    def check(self, model: Any, ids: int | None) -> None:
        """Raises ValueError for a model that cannot be trained so.

        ids: of the vocabulary; None if nobody knows.
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
        """Of an update; `progress` [] is the share of all updates that have been made."""
        ...

    def measure(self, model: Target, params: PyTree, frozen: Frozen | None, pairs: Pairs) -> Sums:
        """Without smoothing, and without chance: batches of one text are measured alike always."""
        ...


@dataclasses.dataclass(frozen=True)
class TeacherForced:
    """Cross-entropy of each token behind those before it.

    label_smoothing: 0 <= s < 1, see `cross_entropy`.
    view: what the model reads of the inputs, if not all: a drafter's `NoSource()`.
    """

    label_smoothing: float = 0.1
    view: Callable[[Array], Array] | None = None

    def __post_init__(self):
        check_smoothing(self)

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
    if (known := model.head_ids) is not None:
        raise ValueError(
            f"{type(objective).__name__} is of all tokens of the texts, and the model's head has "
            f"{len(known)} of {model.vocab_size} ids (head_ids); give Align, or trim it afterwards"
        )


def check_smoothing(objective: Any) -> None:
    value = objective.label_smoothing
    if not is_number(value) or not 0 <= value < 1:
        name = type(objective).__name__
        raise ValueError(f"{name}.label_smoothing is {value!r}; give 0 <= s < 1")
