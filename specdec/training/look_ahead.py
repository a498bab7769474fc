"""Heads that look ahead: the objective of those of a target, alone or together with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specdec.models.heads import HeadedTarget, Heads
from specdec.models.model import Target
from specdec.training.loss import Frozen, Pairs, Sums, cross_entropy, shifted
from specdec.training.objectives import check_head, check_smoothing
from specdec.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class LookAhead:
    """Cross-entropy of the tokens that heads on the target's states guess: what
    `drafters.Blockwise` drafts with.

    Stern et al. 2018 (1811.03115, section 6). The target of a run is not trained: its next token
    stays what it was. That of a `HeadedTarget` is, by all that is guessed from its states, its own
    next token too, as one head more: it becomes another target.

    one_head: whether an update is of one head at random, as there, or of all: as many logits more.
    label_smoothing: 0 <= s < 1.
    """

    one_head: bool = True
    label_smoothing: float = 0.0

    def __post_init__(self):
        check_smoothing(self)

    def check(self, model: Any, ids: int | None) -> None:
        """Only heads can be trained so, and a target whose head has all ids."""
        if isinstance(model, HeadedTarget):
            check_head(self, model.target)
        if not isinstance(model, Heads | HeadedTarget):
            raise ValueError(
                f"LookAhead trains heads on a target's states, and the model is a "
                f"{type(model).__name__}; give models.heads.Heads, or a HeadedTarget"
            )

    def loss(
        self,
        model: Target,
        params: PyTree,
        frozen: Frozen | None,
        pairs: Pairs,
        key: Array,
        progress: Array,
    ) -> Sums:
        drawn = key if self.one_head else None
        return self._sums(model, params, frozen, pairs, drawn, self.label_smoothing)

    def measure(self, model: Target, params: PyTree, frozen: Frozen | None, pairs: Pairs) -> Sums:
        return self._sums(model, params, frozen, pairs, None, 0.0)

    def _sums(
        self,
        model: Any,
        params: PyTree,
        frozen: Frozen | None,
        pairs: Pairs,
        key: Array | None,
        smoothing: float,
    ) -> Sums:
        """Of one head at random, or, without a key, of all."""
        if isinstance(model, HeadedTarget):
            frozen = Frozen(model.target, params["target"])
        assert frozen is not None, "TrainRun asks for it"
        target: Any = frozen.model
        own = frozen.params
        targets: Array = jnp.asarray(pairs.targets)
        rows, longest = targets.shape
        cache = target.prefill(own, pairs.inputs, longest)
        hidden = target.decode(own, shifted(target, pairs), cache)[0].hidden  # of targets[t]
        further = jnp.asarray(model.places)
        one = None if key is None else jax.random.randint(key, [], 0, further.shape[0])
        ahead = model.ahead(params, hidden, one)  # [B, T, heads, D]
        logits = target.logits(own, ahead.reshape(rows, -1, ahead.shape[-1]))
        further = further if one is None else further[one][None]
        places = jnp.arange(longest)[:, None] + further[None]  # [T, heads]
        behind = jnp.take(targets, jnp.minimum(places, longest - 1), axis=1)
        behind = jnp.where(places < longest, behind, 0)
        return cross_entropy(logits, behind.reshape(rows, -1), smoothing)
