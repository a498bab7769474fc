"""Drafts as long as a trained classifier expects the target to accept."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from specdec.common.values import Probability
from specdec.schedules.stopping import Signals, Stopping
from specdec.types import Array, Params, PyTree, Table


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


def logit(params: PyTree, features: Any) -> Array:
    """Returns [...], the log odds that a token is accepted.

    Args:
      params: mean, scale [F]; hidden [F, H], hidden_bias [H]; out [H], out_bias [].
      features: [..., F] float32.
    """
    rows = features.reshape(-1, features.shape[-1])
    seen = (rows - params["mean"][None]) / params["scale"][None]
    hidden = jax.nn.relu(seen @ params["hidden"] + params["hidden_bias"][None])
    return (hidden @ params["out"] + params["out_bias"]).reshape(features.shape[:-1])
