"""What training makes small. A new objective is a frozen dataclass that inherits `Objective`."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import jax

from specdec.common.values import Checked, number
from specdec.training.loss import Frozen, Learner, Pairs, Sums, cross_entropy, teacher_forced
from specdec.types import Array, PyTree

Smoothing = Annotated[float, number(lambda s: 0 <= s < 1, "a number from 0 on, below 1")]


class Objective(Checked, abc.ABC):
    """A loss of a model on a batch, as sums over the tokens that it is about.

    reads_target: whether it needs the target although the model reads nothing of it; a run without
      a target is then refused.
    label_smoothing: of updates, 0 <= s < 1, see `cross_entropy`; a field where there may be some.
    top, keep: see `Align`.
    """

    reads_target: ClassVar[bool] = False
    label_smoothing: float = 0.0
    top: int | None = None
    keep: float | None = None

    def check(self, model: Any, ids: int | None) -> None:
        """Refuses a model that cannot be trained so: by default one for whom some tokens are
        impossible, where the loss would be infinite.

        ids: of the vocabulary; None if they are not known.

        Raises:
          ValueError: with one line for the user.
        """
        if (known := model.head_ids) is not None:
            raise ValueError(
                f"{type(self).__name__} is of all tokens of the texts, and the model's head has "
                f"{len(known)} of {model.vocab_size} ids (head_ids); give Align, or trim it "
                "afterwards"
            )

    def loss(
        self,
        model: Any,
        params: PyTree,
        frozen: Frozen | None,
        pairs: Pairs,
        key: Array,
        progress: Array,
    ) -> Sums:
        """Returns the sums of an update; `progress` [] is the share of all updates so far."""
        return self.update(Learner(model, params, frozen), pairs, key, progress)

    def measure(self, model: Any, params: PyTree, frozen: Frozen | None, pairs: Pairs) -> Sums:
        """Returns the sums without smoothing, and without chance: batches of one text are measured
        alike always."""
        return self.sums(Learner(model, params, frozen), pairs, 0.0, None)

    def update(self, learner: Learner, pairs: Pairs, key: Array, progress: Array) -> Sums:
        """Returns the sums of an update, see `loss`."""
        return self.sums(learner, pairs, self.label_smoothing, key)

    @abc.abstractmethod
    def sums(self, learner: Learner, pairs: Pairs, smoothing: float, key: Array | None) -> Sums:
        """Returns the sums over a batch; without a key nothing is drawn."""

    def figures(self, means: tuple[float, float], parameter_ratio: float) -> dict[str, float]:
        """Returns what evaluations log besides loss and accuracy, see `Align`."""
        return {}


@dataclasses.dataclass(frozen=True)
class TeacherForced(Objective):
    """Cross-entropy of each token behind those before it.

    label_smoothing: 0 <= s < 1, see `cross_entropy`.
    view: what the model reads of the inputs, if not all: a drafter's `NoSource()`.
    """

    label_smoothing: Smoothing = 0.1
    view: Callable[[Array], Array] | None = None

    def sums(self, learner: Learner, pairs: Pairs, smoothing: float, key: Array | None) -> Sums:
        model, params, frozen = learner
        seen = pairs if self.view is None else pairs._replace(inputs=self.view(pairs.inputs))
        logits = teacher_forced(model, params, seen, frozen)
        return cross_entropy(logits, pairs.targets, smoothing)


def fixed_key() -> Array:
    """Returns the key of what is drawn in a measurement, always the same."""
    return jax.random.key(0, impl="threefry2x32")
