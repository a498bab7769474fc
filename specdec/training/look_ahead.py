"""The objective of heads that look ahead, trained alone or together with their target."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specdec.models.contract.model import Weights
from specdec.models.heads import HeadedTarget, Heads
from specdec.training.loss import Frozen, Learner, Pairs, Sums, cross_entropy, shifted
from specdec.training.objectives import Objective, Smoothing
from specdec.types import Array


@dataclasses.dataclass(frozen=True)
class LookAhead(Objective):
    """Cross-entropy of the tokens that heads on the target's states predict (`drafters.Blockwise`).

    Stern et al. 2018 (1811.03115, section 6). `TrainRun.target` is not trained, so its outputs stay
    the same. The target of a `HeadedTarget` is trained together with the heads, on their tokens and
    on its own next token. Its outputs change.

    Args:
      one_head: whether an update trains one random head, as in the paper. Otherwise it trains all
        heads, which needs more memory for their logits.
      label_smoothing: 0 <= s < 1.
    """

    one_head: bool = True
    label_smoothing: Smoothing = 0.0

    def check(self, model: Weights, ids: int | None) -> None:
        """Raises ValueError unless the model is heads, or a target whose head has all ids."""
        if isinstance(model, HeadedTarget):
            super().check(model.target, ids)
        if not isinstance(model, Heads | HeadedTarget):
            raise ValueError(
                f"LookAhead trains heads on a target's states, and the model is a "
                f"{type(model).__name__}; give models.heads.Heads, or a HeadedTarget"
            )

    def sums(self, learner: Learner, pairs: Pairs, smoothing: float, key: Array | None) -> Sums:
        model, params, frozen = learner
        if isinstance(model, HeadedTarget):
            frozen = Frozen(model.target, params["target"])
        assert frozen is not None, "TrainRun asks for it"
        target = frozen.model
        weights = frozen.params
        targets: Array = jnp.asarray(pairs.targets)
        rows, longest = targets.shape
        cache = target.prefill(weights, pairs.inputs, longest)
        hidden = target.decode(weights, shifted(target, pairs), cache)[0].hidden  # of targets[t]
        further = jnp.asarray(model.places)
        drawn = key if self.one_head else None
        head = None if drawn is None else jax.random.randint(drawn, [], 0, further.shape[0])
        ahead = model.ahead(params, hidden, head)  # [B, T, heads, D]
        logits = target.logits(weights, ahead.reshape(rows, -1, ahead.shape[-1]))
        further = further if head is None else further[head][None]
        places = jnp.arange(longest)[:, None] + further[None]  # [T, heads]
        behind = jnp.take(targets, jnp.minimum(places, longest - 1), axis=1)
        behind = jnp.where(places < longest, behind, target.pad_id)
        return cross_entropy(logits, behind.reshape(rows, -1), target.pad_id, smoothing)
