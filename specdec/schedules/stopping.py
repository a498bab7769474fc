"""Schedules that stop when the drafter is unsure, and their common base."""

from __future__ import annotations

import abc
import dataclasses
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from specdec.common.values import Probability, number
from specdec.schedules.schedule import Signals, UpToLongest, signals
from specdec.types import Array, Params, PyTree, Table, Values


@dataclasses.dataclass(frozen=True)
class Stopping(UpToLongest):
    """Wants the longest draft, and stops after a token according to its signals.

    The token itself is kept and verified, because dropping it by its value would bias the output.
    Drafters that copy give no signals, so their drafts are not stopped.
    """

    @property
    def stops_within(self) -> bool:
        return True

    @property
    def replayable(self) -> bool:
        return True

    @abc.abstractmethod
    def stops(self, params: Params, signals: Signals) -> Array:
        """Returns [...] bool, whether to stop after tokens with these signals."""

    def stop(
        self, params: Params, carry: PyTree, index: Array, probs: Array, tokens: Array
    ) -> tuple[PyTree, Array]:
        index = jnp.broadcast_to(index, tokens.shape)
        return carry, self.stops(params, signals(probs, tokens, index))


@dataclasses.dataclass(frozen=True)
class Confidence(Stopping):
    """Stops after a token whose probability under the draft is below a threshold.

    This is the training-free rule of Mamou et al. 2024 (2405.04304). Hugging Face's assisted
    generation uses a threshold of 0.4.

    Args:
      threshold: from 0 (never stops) to 1. The probability is the one that the token was drawn
        with; a greedy draft uses its softmax.
      buckets: static ascending draft lengths, see `Schedule`.
    """

    threshold: Probability

    def stops(self, params: Params, signals: Signals) -> Values:
        return signals.confidence < self.threshold


@dataclasses.dataclass(frozen=True)
class JointConfidence(Stopping):
    """Stops after a token at which the probability of the whole draft falls below a threshold.

    A token can be used only if all tokens before it are accepted. `Confidence` compares the
    probability of one token; this rule compares the product over the draft.

    Args:
      threshold: from 0 (never stops) to 1.
      buckets: static ascending draft lengths, see `Schedule`.
    """

    threshold: Probability

    def init(self, batch: int) -> tuple[Array, Array]:
        """Returns the longest draft [B], and the probability of an empty draft [B]."""
        return super().init(batch), jnp.ones([batch], jnp.float32)

    def want(self, state: PyTree) -> Array:
        return state[0]

    def stop(
        self, params: Params, carry: PyTree, index: Array, probs: Array, tokens: Array
    ) -> tuple[PyTree, Array]:
        longest, joint = carry
        joint = joint * signals(probs, tokens, index).confidence
        return (longest, joint), joint < self.threshold

    def stops(self, params: Params, signals: Signals) -> Array:
        return jnp.cumprod(signals.confidence, axis=-1) < self.threshold


@dataclasses.dataclass(frozen=True)
class Entropy(Stopping):
    """Stops after a token that was drawn from a distribution with an entropy above a threshold.

    Agrawal et al. 2024 (2410.18351) bound acceptance by the entropy of the draft. The entropy
    measures the drafter's certainty independently of the token that was drawn, unlike `Confidence`.

    Args:
      threshold: in nats, from 0 to log V (never stops). A greedy draft uses its softmax.
      buckets: static ascending draft lengths, see `Schedule`.
    """

    threshold: Annotated[float, number(lambda x: x >= 0, "a number of nats from 0 on, as in 1.5")]

    def stops(self, params: Params, signals: Signals) -> Values:
        return signals.entropy > self.threshold


@dataclasses.dataclass(frozen=True)
class Disco(Stopping):
    """Stops after a token that a two-layer classifier expects to be rejected.

    Dynamic speculation lookahead (Mamou et al. 2024, 2405.04304, section 3). The classifier reads
    the draft's greatest probabilities, its entropy, and the number of tokens drafted before.
    `specdec train --table=classifier` trains one (`training.classifier`). Its parameters have the
    role "schedule".

    Args:
      threshold: the probability of acceptance below which drafting stops, from 0 (never) to 1.
      buckets: static ascending draft lengths, see `Schedule`.
    """

    threshold: Probability
    role: ClassVar[str] = "schedule"

    def tables(self) -> dict[str, Table]:
        return {self.role: Table("classifier")}

    def stops(self, params: Params, signals: Signals) -> Array:
        return jax.nn.sigmoid(logit(params[self.role], features(signals))) < self.threshold


def features(signals: Signals) -> Array:
    """Returns [..., TOP + 2] float32, the classifier's inputs."""
    others = jnp.stack([signals.entropy, signals.index], axis=-1)
    return jnp.concatenate([signals.top, others], axis=-1).astype(jnp.float32)


def logit(params: PyTree, features: Values) -> Array:
    """Returns [...], the log odds that a token with these features [..., F] is accepted.

    The parameters are mean, scale [F]; hidden [F, H], hidden_bias [H]; out [H], out_bias [].
    """
    rows = features.reshape(-1, features.shape[-1])
    seen = (rows - params["mean"][None]) / params["scale"][None]
    hidden = jax.nn.relu(seen @ params["hidden"] + params["hidden_bias"][None])
    return (hidden @ params["out"] + params["out_bias"]).reshape(features.shape[:-1])
