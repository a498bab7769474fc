"""Alignment of a drafter with its target: training reduces the distance of their distributions.

A token that a drafter draws from q is kept with probability alpha = sum min(p, q) = 1 - TV(p, q),
where p is the target's distribution. Cross-entropy on texts increases alpha only indirectly.
`DIVERGENCES` has losses that increase alpha directly, and losses that work while p and q have
nothing in common.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp

from specdec.common import theory
from specdec.common.values import InsideUnit, PositiveInt, Probability, is_number, number
from specdec.models.contract.inputs import read
from specdec.models.contract.model import Target, Weights
from specdec.models.heads import HeadedTarget
from specdec.sampling import tempered
from specdec.training.divergences import DIVERGENCES, NOTHING, forward_kl, total_variation
from specdec.training.laws import coarse
from specdec.training.loss import (
    Frozen,
    Learner,
    Pairs,
    Sums,
    of_target,
    reads_target,
    shifted,
    teacher_forced,
)
from specdec.training.objectives import Objective, seen
from specdec.types import Array, Cache, PyTree

# The weight in all updates, or the weights in the first and in the last update.
_Weight: TypeAlias = float | tuple[float, float]
GAMMAS = (3, 5)  # draft lengths for which evaluations predict figures, as in Goel et al.


class Laws(NamedTuple):
    """The log-probabilities of target and drafter for a batch, and which tokens are real."""

    p: Array  # [B, T, V], or [B, T, m+1] of the target's likeliest ids and of all others together
    q: Array  # the same of the drafter, NOTHING for ids that its head lacks
    agreed: Array  # [B, T] bool, both have the same likeliest token
    real: Array  # [B, T] bool, no padding


@dataclasses.dataclass(frozen=True)
class Align(Objective):
    """The distance of a drafter's next-token distribution from that of its fixed target.

    Both models read the texts of the task, ideally texts that the target wrote at this temperature.
    A share `on_policy` of the texts of a batch is instead drawn from the drafter, so that it learns
    to continue after its own mistakes. This is on-policy distillation (Agarwal et al. 2023,
    2306.13649; DistillSpec, Zhou et al. 2023, 2310.08461).

    The loss of `measure` is 1 - alpha at this temperature. A token counts as correct if both models
    have the same likeliest token. On the given texts, 1 - loss is therefore alpha of sampled
    drafts, and the accuracy is alpha of greedy drafts. `figures` reports both, and the speed-up
    that they predict.

    Args:
      divergences: weights of losses, by their names in `DIVERGENCES`; the loss is the weighted sum.
        A weight is a number, or (first, last), between which it moves linearly over all updates.
      temperature: of both distributions, at least 0.01: below it, a token whose logit is 100 less
        than the highest would count as missing.
      on_policy: 0 <= share <= 1 of the texts.
      top: the number of the target's likeliest ids that updates use; all others are pooled. They
        are stored once for all texts, so that the target does not run in updates (see `laws`). None
        uses all ids and runs the target.
      keep: the share of a batch's tokens that an update uses; None for all. It uses those whose KL
        from the target exceeds a trained reference drafter's KL most (AdaSPEC, Hu et al. 2025,
        2510.19779; `TrainRun.reference_path`).
      view: turns the target's inputs into the drafter's, such as `NoSource()`; None for the same.
    """

    divergences: Mapping[str, _Weight] | tuple[tuple[str, _Weight], ...]
    temperature: Annotated[float, number(lambda x: x >= 0.01, "a number from 0.01 on")] = 1.0
    on_policy: Probability = 0.0
    top: PositiveInt | None = None
    keep: InsideUnit | None = None
    view: Callable[[PyTree], PyTree] | None = None
    reads_target: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        weights = self.divergences
        try:
            pairs = dict(weights)
        except (TypeError, ValueError):
            pairs = {}
        if not pairs:
            raise ValueError(
                f"Align.divergences is {weights!r}; give weights, as {{'forward_kl': 1.0}}"
            )
        for name, weight in pairs.items():
            if name not in DIVERGENCES:
                known = ", ".join(DIVERGENCES)
                raise ValueError(f"Align.divergences has {name!r}; give some of {known}")
            ends = _ends(weight)
            if len(ends) != 2 or not all(is_number(x) and x >= 0 for x in ends) or not any(ends):
                raise ValueError(
                    f"Align.divergences gives {name!r} the weight {weight!r}; give a positive "
                    "number, or (first, last)"
                )
        frozen = tuple((name, _ends(weight)) for name, weight in pairs.items())  # it is hashed
        object.__setattr__(self, "divergences", frozen)
        if self.top is not None and self.on_policy:
            raise ValueError(
                f"Align.top is {self.top} and on_policy {self.on_policy}, and for texts that the "
                "drafter draws no distributions are stored; give top or on_policy alone"
            )

    def check(self, model: Weights, ids: int | None) -> None:
        """Raises ValueError unless the model drafts token by token."""
        if model.states_dim is not None or isinstance(model, HeadedTarget):
            raise ValueError(
                "Align is for a drafter that drafts token by token from its own states, and this "
                "one reads its target's states; give a T5 without states_dim, or another objective"
            )

    def update(self, learner: Learner, pairs: Pairs, key: Array, progress: Array) -> Sums:
        model, params, frozen = learner
        if self.on_policy:
            pairs = self._partly_drawn(model, params, frozen, pairs, key)
        laws = self._laws(model, params, frozen, pairs)
        if self.keep is not None:
            assert frozen is not None, "TrainRun asks for it"
            reference = self._laws(model, frozen.reference, frozen, pairs)
            learnable = forward_kl(*laws[:2], laws.real) - forward_kl(*reference[:2], laws.real)
            laws = laws._replace(real=highest(learnable, laws.real, self.keep))
        nats = jnp.zeros(laws.real.shape, jnp.float32)
        for name, (first, last) in cast(
            tuple[tuple[str, tuple[float, float]], ...], self.divergences
        ):
            p, q = laws[:2]
            if name == "greedy" and pairs.laws is not None:
                p, q = p[..., :-1], q[..., :-1]  # the last entry, all other ids, is no token
            nats += (first + (last - first) * progress) * DIVERGENCES[name](p, q, laws.real)
        return _sums(nats, laws)

    def sums(self, learner: Learner, pairs: Pairs, smoothing: float, key: Array | None) -> Sums:
        model, params, frozen = learner
        laws = self._laws(model, params, frozen, pairs)
        return _sums(total_variation(laws.p, laws.q, laws.real), laws)

    def figures(self, means: tuple[float, float], parameter_ratio: float) -> dict[str, float]:
        """Returns predictions for drafts, by name, from a loss and an accuracy of `measure`.

        They are alpha of sampled and of greedy drafts, and for each length in `GAMMAS` the tokens
        per call and the memory-bound speed-up. The formulas, `theory.expected_tokens` and
        `theory.mbsu`, ignore that rejections cluster and that texts end.

        Args:
          means: the loss and the accuracy.
          parameter_ratio: the drafter's number of parameters divided by the target's.
        """
        figures = {}
        for suffix, alpha in (("", min(max(1 - means[0], 0.0), 1.0)), ("_greedy", means[1])):
            figures[f"alpha{suffix}"] = alpha
            for gamma in GAMMAS:
                tokens = theory.expected_tokens(alpha, gamma)
                figures[f"tokens_per_call_{gamma}{suffix}"] = tokens
                figures[f"mbsu_{gamma}{suffix}"] = theory.mbsu(tokens, gamma, parameter_ratio)
        return figures

    def _laws(self, model: Target, params: PyTree, frozen: Frozen | None, pairs: Pairs) -> Laws:
        assert frozen is not None, "TrainRun asks for it"
        cache = None
        if pairs.laws is None and reads_target(model):  # one cache, for drafter and target
            length = pairs.targets.shape[1]
            cache = frozen.model.prefill(frozen.params, pairs.inputs, length)
        ours = teacher_forced(model, params, seen(model, self.view, pairs), frozen, cache)
        ids = frozen.model.vocab_size
        if ours.shape[-1] < ids:
            raise ValueError(
                f"the drafter has {ours.shape[-1]} ids and its target {ids}; give it as many"
            )
        real = jnp.asarray(pairs.targets) != model.pad_id
        q = jax.nn.log_softmax(tempered(ours[..., :ids], self.temperature))
        q = jnp.where(jnp.isneginf(q), NOTHING, q)
        best = q.argmax(axis=-1)
        if pairs.laws is not None:
            top, p = map(jnp.asarray, pairs.laws)
            return Laws(p, coarse(q, top), top[..., 0] == best, real)
        if cache is None:
            target_logits = teacher_forced(frozen.model, frozen.params, pairs)
        else:
            target_logits = frozen.model.decode(frozen.params, shifted(frozen.model, pairs), cache)[
                0
            ].logits
        target_logits = jax.lax.stop_gradient(target_logits)
        p = jax.nn.log_softmax(tempered(target_logits, self.temperature))
        return Laws(p, q, p.argmax(axis=-1) == best, real)

    def _partly_drawn(
        self, model: Target, params: PyTree, frozen: Frozen | None, pairs: Pairs, key: Array
    ) -> Pairs:
        key, which = jax.random.split(key)
        texts = drawn(model, jax.lax.stop_gradient(params), pairs, key, self.temperature, frozen)
        rows = jax.random.uniform(which, [len(texts), 1]) < self.on_policy
        there = (frozen.model if frozen else model).active(pairs.inputs)[:, None]
        return pairs._replace(targets=jnp.where(rows & there, texts, pairs.targets))


def drawn(
    model: Target,
    params: PyTree,
    pairs: Pairs,
    key: Array,
    temperature: float = 1.0,
    frozen: Frozen | None = None,
) -> Array:
    """Returns [B, T] int32, texts drawn from a model token by token for the inputs of `pairs`.

    They have at most T tokens, as the targets of `pairs`, and padding after the stop id.
    """
    inputs, shape = pairs.inputs, pairs.targets.shape
    ids = (frozen.model if frozen else model).vocab_size
    from_target, _ = of_target(model, inputs, jnp.zeros(shape, jnp.int32), frozen)
    cache = read(model, params, inputs, shape[1], from_target)
    there = jnp.arange(ids) != model.pad_id

    def write(
        carry: tuple[Array, Array, Cache], key: Array
    ) -> tuple[tuple[Array, Array, Cache], Array]:
        token, ended, cache = carry
        output, cache = model.decode(params, token[:, None], cache)
        logits = jnp.where(there, output.logits[:, 0, :ids], -jnp.inf)
        token = jnp.where(
            ended, model.pad_id, jax.random.categorical(key, tempered(logits, temperature))
        )
        return (token, ended | jnp.isin(token, jnp.array(model.stop_ids)), cache), token

    begun = model.start(inputs), jnp.zeros(shape[:1], bool), cache
    texts = jax.lax.scan(write, begun, jax.random.split(key, shape[1]))[1]
    return texts.T.astype(jnp.int32)


def _ends(weight: _Weight) -> tuple[float, ...]:
    return tuple(weight) if isinstance(weight, tuple | list) else (weight, weight)


def highest(values: Array, real: Array, share: float) -> Array:
    """Returns [B, T] bool, True for the `share` of real tokens with the highest values [B, T]."""
    count = jnp.ceil(share * real.sum()).astype(jnp.int32)
    ordered = jnp.sort(jnp.where(real, values, -jnp.inf), axis=None, descending=True)
    return real & (values >= ordered[jnp.maximum(count - 1, 0)])


def _sums(nats: Array, laws: Laws) -> Sums:
    agreed = laws.agreed & laws.real
    return Sums(jnp.where(laws.real, nats, 0).sum(), agreed.sum(), laws.real.sum())
