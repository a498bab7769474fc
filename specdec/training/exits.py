"""Objectives for predictions before the last layer (Schuster et al. 2022, 2207.07061).

The paper is "Confident Adaptive Language Modeling", sections 3.3 and 3.5. `AllExits` trains a whole
model, and `ExitHead` and `ExitClassifier` each train an addition to a model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from specdec.common.values import PositiveInt, one_of
from specdec.models.contract.inputs import Exits
from specdec.models.contract.model import LayeredTarget, Target, Weights
from specdec.models.heads import Heads
from specdec.training.loss import Learner, Pairs, Sums, cross_entropy, shifted
from specdec.training.objectives import Objective, Smoothing
from specdec.types import Array, ModelOutput, PyTree

WEIGHTS = {"linear": lambda layer: layer, "uniform": lambda layer: 1, "doubling": lambda i: 2**i}


@dataclasses.dataclass(frozen=True)
class AllExits(Objective):
    """The weighted mean of the cross-entropies after several layers, each with the model's head.

    It trains a target for `drafters.EarlyExit` or `models.t5.Calm`.

    Args:
      exits: the layers, counted from 1; None for all. The last layer is always included.
      weights: the weight of each exit's cross-entropy. 'linear' is the layer's number, as in
        Schuster et al. 2022, section 3.5. 'doubling' is twice the weight of the exit before.
        'uniform' is 1.
      label_smoothing: 0 <= s < 1.
    """

    exits: Exits | None = None
    weights: Annotated[str, one_of(WEIGHTS)] = "linear"
    label_smoothing: Smoothing = 0.1

    def check(self, model: Weights, ids: int | None) -> None:
        """Raises ValueError unless the model can exit after these layers, with all ids."""
        _check_layers("AllExits", model, self.exits)
        super().check(model, ids)

    def sums(self, learner: Learner, pairs: Pairs, smoothing: float, key: Array | None) -> Sums:
        """Returns the weighted loss; `correct` counts the last layer's correct tokens."""
        model, params, frozen = learner
        exits = exits_of(model, self.exits)
        weigh = WEIGHTS[self.weights]
        weights = [weigh(i if self.weights == "doubling" else x) for i, x in enumerate(exits)]
        loss, sums = 0.0, None
        for weight, output in zip(weights, outputs(model, params, pairs, exits), strict=True):
            sums = cross_entropy(output.logits, pairs.targets, model.pad_id, smoothing)
            loss += weight / sum(weights) * sums.loss
        assert sums is not None, "the last layer is an exit"
        return sums._replace(loss=loss)


@dataclasses.dataclass(frozen=True)
class ExitHead(Objective):
    """Cross-entropy of a head on one layer of the target, which is not trained.

    It trains the head of `drafters.EarlyExit`.

    Args:
      layers: the drafter's number of layers.
      label_smoothing: 0 <= s < 1.
    """

    layers: PositiveInt
    label_smoothing: Smoothing = 0.0

    def check(self, model: Weights, ids: int | None) -> None:
        """Raises ValueError unless the model is a single head."""
        if not isinstance(model, Heads) or model.config.heads != 1:
            raise ValueError(
                f"ExitHead trains one head on a target's layer, and the model is {model}; give "
                "models.heads.Heads with heads = 1"
            )

    def sums(self, learner: Learner, pairs: Pairs, smoothing: float, key: Array | None) -> Sums:
        model, params, frozen = learner
        assert frozen is not None, "TrainRun asks for it"
        target: Any = frozen.model
        _check_layers("ExitHead", target, (self.layers,))
        first = (0, self.layers)
        cache = target.prefill(frozen.params, pairs.inputs, pairs.targets.shape[1])
        hidden = target.decode(frozen.params, shifted(target, pairs), cache, layers=first)[0].hidden
        logits = target.logits(frozen.params, model.ahead(params, hidden)[:, :, 0])
        return cross_entropy(logits, pairs.targets, target.pad_id, smoothing)


@dataclasses.dataclass(frozen=True)
class ExitClassifier(Objective):
    """Cross-entropy of the classifier of whether a layer's prediction equals the last layer's.

    `models.t5.Calm` uses the classifier with confidence 'classifier'. Only the classifier is
    trained (section 3.3). A layer's loss is the average of two means: over tokens with equal
    predictions, and over all others. The loss is the mean over layers.

    Args:
      exits: the layers, counted from 1; None for all but the last one.
    """

    exits: Exits | None = None

    def check(self, model: Weights, ids: int | None) -> None:
        """Raises ValueError unless the model has a classifier."""
        _check_layers("ExitClassifier", model, self.exits)
        if not (isinstance(model, Target) and model.has_exit_classifier):
            raise ValueError(
                "ExitClassifier trains the classifier of a model that has none; give it "
                "exit_classifier = True"
            )

    def sums(self, learner: Learner, pairs: Pairs, smoothing: float, key: Array | None) -> Sums:
        """Returns the loss; `correct` counts predictions that are right at a threshold of 0.5."""
        model, params, frozen = learner
        exits = exits_of(model, self.exits)
        *early, last = outputs(model, jax.lax.stop_gradient(params), pairs, exits)
        real = jnp.asarray(pairs.targets) != model.pad_id
        tokens = real.sum()
        loss, right = jnp.float32(0), jnp.float32(0)
        for output in early:
            agrees = output.logits.argmax(-1) == last.logits.argmax(-1)
            nats, correct = _balanced(model.exit_logits(params, output.hidden), agrees, real)
            loss += nats / len(early)
            right += correct / len(early)
        return Sums(loss * tokens, right.astype(jnp.int32), tokens)


def _balanced(logits: Array, label: Array, real: Array) -> tuple[Array, Array]:
    """Returns the cross-entropy, a mean of both labels' means, and the number of hits."""
    nats = jax.nn.softplus(jnp.where(label, -logits, logits))

    def mean(where: Array) -> Array:
        return jnp.where(where, nats, 0).sum() / jnp.maximum(where.sum(), 1)

    loss = (mean(real & label) + mean(real & ~label)) / 2
    return loss, jnp.sum(((logits > 0) == label) & real)


def exits_of(model: LayeredTarget, exits: tuple[int, ...] | None) -> tuple[int, ...]:
    """Returns the layers after which the model predicts, counted from 1, including the last one."""
    last = model.num_layers
    return tuple(range(1, last + 1)) if exits is None else tuple(sorted({*exits, last}))


def outputs(
    model: LayeredTarget, params: PyTree, pairs: Pairs, exits: tuple[int, ...]
) -> Iterator[ModelOutput]:
    """Yields the head's logits [B, T, V] and states after each layer in `exits`, teacher-forced."""
    text = shifted(model, pairs)
    cache = model.prefill(params, pairs.inputs, text.shape[1])
    length, stream = cache.length, None
    for layers in zip((0, *exits), exits, strict=False):
        resume = {} if stream is None else {"resume": stream}
        output, cache = model.decode(params, text, cache, layers=layers, **resume)
        cache, stream = cache.rewind(length), output.stream
        yield output


def _check_layers(who: str, model: Weights, exits: tuple[int, ...] | None) -> None:
    if not isinstance(model, LayeredTarget):
        raise ValueError(
            f"{who} needs a model whose layers can run separately, and those of "
            f"{type(model).__name__} cannot; give a T5"
        )
    if (deepest := max(exits or (1,))) > model.num_layers:
        raise ValueError(
            f"{who} has an exit at layer {deepest} and the model has {model.num_layers} layers; "
            f"give layers from 1 to {model.num_layers}"
        )
