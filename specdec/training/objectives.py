"""Training objectives. A new objective is a frozen dataclass that inherits `Objective`."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Annotated, ClassVar

import jax

from specdec.common.values import Checked, number
from specdec.models.contract.model import Target, Weights
from specdec.models.contract.views import read_by
from specdec.training.loss import Frozen, Learner, Pairs, Sums, cross_entropy, teacher_forced
from specdec.types import Array, PyTree

Smoothing = Annotated[float, number(lambda s: 0 <= s < 1, "a number from 0 on, below 1")]


class Objective(Checked, abc.ABC):
    """A loss of a model on a batch, as sums over the tokens that count.

    Attributes:
      reads_target: whether the objective needs the target even if the model does not read its
        outputs; a run without a target is then refused.
      label_smoothing: of updates, 0 <= s < 1, see `cross_entropy`; a field if the objective has it.
      top: the number of the target's likeliest ids that are stored, see `Align`; None for none.
      keep: the share of the tokens that an update uses, see `Align`; None for all.
    """

    reads_target: ClassVar[bool] = False
    label_smoothing: float = 0.0
    top: int | None = None
    keep: float | None = None

    def check(self, model: Weights, ids: int | None) -> None:
        """Raises ValueError for a model that this objective cannot train.

        By default, this is a model whose head lacks ids, because the loss would be infinite.

        Args:
          model: the model.
          ids: the vocabulary's number of ids; None if it is not known.
        """
        if (known := model.head_ids) is not None:
            assert isinstance(model, Target)
            raise ValueError(
                f"{type(self).__name__} trains on all tokens of texts, and the model's head has "
                f"{len(known)} of {model.vocab_size} ids (head_ids); give Align, or trim the head "
                "after training"
            )

    def loss(
        self,
        model: Weights,
        params: PyTree,
        frozen: Frozen | None,
        pairs: Pairs,
        key: Array,
        progress: Array,
    ) -> Sums:
        """Returns the sums of an update.

        Args:
          model: the model that is trained.
          params: its parameters.
          frozen: the target, if there is one.
          pairs: the batch.
          key: the key of random numbers.
          progress: [], the share of all updates so far.
        """
        return self.update(Learner(model, params, frozen), pairs, key, progress)

    def measure(self, model: Weights, params: PyTree, frozen: Frozen | None, pairs: Pairs) -> Sums:
        """Returns the sums of an evaluation, without smoothing and with fixed random numbers."""
        return self.sums(Learner(model, params, frozen), pairs, 0.0, None)

    def update(self, learner: Learner, pairs: Pairs, key: Array, progress: Array) -> Sums:
        """Returns the sums of an update, see `loss`."""
        return self.sums(learner, pairs, self.label_smoothing, key)

    @abc.abstractmethod
    def sums(self, learner: Learner, pairs: Pairs, smoothing: float, key: Array | None) -> Sums:
        """Returns the sums over a batch; without a key, random numbers are fixed."""

    def figures(self, means: tuple[float, float], parameter_ratio: float) -> dict[str, float]:
        """Returns further figures of an evaluation by name, from its mean loss and accuracy."""
        return {}


@dataclasses.dataclass(frozen=True)
class TeacherForced(Objective):
    """Cross-entropy of each token given the tokens before it.

    Args:
      label_smoothing: 0 <= s < 1, see `cross_entropy`.
      view: turns the target's inputs into the model's, such as `NoSource()`; None for the same.
    """

    label_smoothing: Smoothing = 0.1
    view: Callable[[PyTree], PyTree] | None = None

    def sums(self, learner: Learner, pairs: Pairs, smoothing: float, key: Array | None) -> Sums:
        model, params, frozen = learner
        logits = teacher_forced(model, params, seen(model, self.view, pairs), frozen)
        return cross_entropy(logits, pairs.targets, model.pad_id, smoothing)


def seen(model: Target, view: Callable[[PyTree], PyTree] | None, pairs: Pairs) -> Pairs:
    """Returns a batch with the inputs that the model reads; unchanged without a view."""
    if view is None:
        return pairs
    return pairs._replace(inputs=read_by(model, view)(pairs.inputs))


def fixed_key() -> Array:
    """Returns the key of random numbers in all evaluations."""
    return jax.random.key(0, impl="threefry2x32")
