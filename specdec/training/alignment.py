"""Alignment of a drafter with its target: what is made small is the distance of their laws.

A token that a drafter draws from q is kept with probability alpha = sum min(p, q) = 1 - TV(p, q),
p the target's law. Cross-entropy on texts makes that large only in passing; see `DIVERGENCES` for
what does so, and for what starts where p and q have nothing in common yet.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp

from specdec import theory
from specdec.models.inputs import read
from specdec.training.loss import Frozen, Pairs, Sums, of_target, teacher_forced
from specdec.types import Array, PyTree, Target
from specdec.values import is_number

NOTHING = -1e4  # log q of ids that a drafter's head lacks; finite, so that 0 times it is 0


def forward_kl(p: Array, q: Array, real: Array) -> Array:
    """KL(p || q): the drafter covers what the target may say (Hinton et al. 2015, 1503.02531). The
    sum is over the ids that it can say: over all it would be infinite, and its gradient the same.
    """
    return _mean_under(p, jnp.where(q > NOTHING, p - q, 0))


def reverse_kl(p: Array, q: Array, real: Array) -> Array:
    """KL(q || p): the drafter says only what the target may say."""
    return _mean_under(q, q - p)


def jensen_shannon(p: Array, q: Array, real: Array) -> Array:
    """Both to their mean, halved; at most log 2."""
    mean = jnp.logaddexp(p, q) - math.log(2)
    return (_mean_under(p, p - mean) + _mean_under(q, q - mean)) / 2


def total_variation(p: Array, q: Array, real: Array) -> Array:
    """1 - alpha. Its gradient is next to nothing where p and q have little in common."""
    return 1 - jnp.exp(_log_alpha(p, q))


def total_variation_plus(p: Array, q: Array, real: Array) -> Array:
    """TVD++ (Goel et al. 2024, 2403.00858): the reward 1[p > q] less its mean, over its deviation.

    Mean and deviation are q's, over the batch. Expectations over q are whole sums, not draws, so
    that the mean changes nothing and the gradient is that of `total_variation` over the deviation.
    The value is no distance.
    """
    reward = (p > q).astype(q.dtype)
    weights = jnp.where(real[..., None], jnp.exp(q), 0) / jnp.maximum(real.sum(), 1)
    mean = jnp.sum(weights * reward)
    deviation = jnp.sqrt(jnp.sum(weights * jnp.square(reward - mean)))
    advantage = (reward - mean) / jnp.maximum(deviation, 1e-6)
    return -jnp.sum(jax.lax.stop_gradient(jnp.exp(q) * advantage) * q, axis=-1)


def log_acceptance(p: Array, q: Array, real: Array) -> Array:
    """-log alpha: the gradient of `total_variation` over alpha, which is there from the start
    (Samarin et al. 2026, 2602.23881)."""
    return -_log_alpha(p, q)


def adaptive(p: Array, q: Array, real: Array) -> Array:
    """KL where alpha is small, TV where it is not: lambda KL(p || q) + (1 - lambda) TV with
    lambda = exp(-3 alpha), which is not differentiated (2602.23881)."""
    alpha = jnp.exp(_log_alpha(p, q))
    share = jax.lax.stop_gradient(jnp.exp(-3 * alpha))
    return share * forward_kl(p, q, real) + (1 - share) * (1 - alpha)


def greedy(p: Array, q: Array, real: Array) -> Array:
    """Cross-entropy of the target's likeliest token; nothing where the drafter cannot say it."""
    best = jax.nn.one_hot(p.argmax(axis=-1), p.shape[-1], dtype=bool)
    return -jnp.where(best & (q > NOTHING), q, 0).sum(axis=-1)


GAMMAS = (3, 5)  # draft lengths that evaluations speak of, those of Goel et al.

# Each gives [B, T] of log-probabilities [B, T, V], of the target and of the drafter, and of which
# tokens [B, T] are there. The drafter's are NOTHING where its head has no such id.
DIVERGENCES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jensen_shannon": jensen_shannon,
    "total_variation": total_variation,
    "total_variation_plus": total_variation_plus,
    "log_acceptance": log_acceptance,
    "adaptive": adaptive,
    "greedy": greedy,
}


@dataclasses.dataclass(frozen=True)
class Align:
    """The distance of a drafter's next-token law from its target's, which is not trained.

    Both read the texts of the task, best what the target wrote at this temperature. `on_policy` of
    the texts of a batch are drawn anew from the drafter instead (on-policy distillation: Agarwal et
    al. 2023, 2306.13649; DistillSpec, Zhou et al. 2023, 2310.08461): there it learns what to say
    behind its own mistakes.

    divergences: weight of each of `DIVERGENCES`, or (first, last) between which it moves linearly
      over all updates. The sum of these is made small.
    temperature: of both laws, > 0.
    on_policy: 0 <= share <= 1 of the texts.

    `measure` gives 1 - alpha for a loss, at this temperature, and counts as correct where both have
    the same likeliest token. So 1 - loss is alpha of draws, and the accuracy alpha of greedy
    drafts, on the given texts. `figures` says so, and what would come of it.
    """

    divergences: Mapping[str, Any] | tuple[tuple[str, Any], ...]
    temperature: float = 1.0
    on_policy: float = 0.0
    reads_target: ClassVar[bool] = True

    def __post_init__(self):
        own = self.divergences
        try:
            pairs = dict(own)
        except (TypeError, ValueError):
            pairs = {}
        if not pairs:
            raise ValueError(
                f"Align.divergences is {own!r}; give weights, as {{'forward_kl': 1.0}}"
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
        if not is_number(self.temperature) or self.temperature <= 0:
            raise ValueError(f"Align.temperature is {self.temperature!r}; give a positive number")
        if not is_number(self.on_policy) or not 0 <= self.on_policy <= 1:
            raise ValueError(f"Align.on_policy is {self.on_policy!r}; give a share from 0 to 1")

    def check(self, model: Any, ids: int | None) -> None:
        """Only models that draft token by token can be."""
        if getattr(model, "reads_states", False) or hasattr(model, "ahead"):
            raise ValueError(
                "Align is for a drafter that writes token by token from what it has read, and this "
                "one reads its target's states; give a T5 without states_dim, or another objective"
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
        if self.on_policy:
            pairs = self._partly_drawn(model, params, frozen, pairs, key)
        p, q, real = self._laws(model, params, frozen, pairs)
        nats = jnp.zeros(real.shape, jnp.float32)
        for name, (first, last) in cast(Any, self.divergences):
            nats += (first + (last - first) * progress) * DIVERGENCES[name](p, q, real)
        return _sums(nats, p, q, real)

    def measure(self, model: Target, params: PyTree, frozen: Frozen | None, pairs: Pairs) -> Sums:
        p, q, real = self._laws(model, params, frozen, pairs)
        return _sums(total_variation(p, q, real), p, q, real)

    def figures(self, means: tuple[float, float], parameter_ratio: float) -> dict[str, float]:
        """What a loss and an accuracy of `measure` say of drafts, by name.

        Alpha at this temperature and greedy; and of each, for drafts of so many tokens, the tokens
        of a call (block efficiency) and the memory-bound speed-up, both by formulas that know
        neither that refusals cluster nor that texts end: `theory.expected_tokens`, `theory.mbsu`.

        parameter_ratio: the drafter's parameters over the target's.
        """
        found = {}
        for suffix, alpha in (("", min(max(1 - means[0], 0.0), 1.0)), ("_greedy", means[1])):
            found[f"alpha{suffix}"] = alpha
            for gamma in GAMMAS:
                tokens = theory.expected_tokens(alpha, gamma)
                found[f"tokens_per_call_{gamma}{suffix}"] = tokens
                found[f"mbsu_{gamma}{suffix}"] = theory.mbsu(tokens, gamma, parameter_ratio)
        return found

    def _laws(
        self, model: Target, params: PyTree, frozen: Frozen | None, pairs: Pairs
    ) -> tuple[Array, Array, Array]:
        """Log-probabilities [B, T, V] of target and drafter, and which tokens are there."""
        assert frozen is not None, "TrainRun asks for it"
        theirs = jax.lax.stop_gradient(teacher_forced(frozen.model, frozen.params, pairs))
        ours = teacher_forced(model, params, pairs, frozen)
        ids = theirs.shape[-1]
        if ours.shape[-1] < ids:
            raise ValueError(
                f"the drafter has {ours.shape[-1]} ids and its target {ids}; give it as many"
            )
        p, q = (jax.nn.log_softmax(x[..., :ids] / self.temperature) for x in (theirs, ours))
        q = jnp.where(jnp.isneginf(q), NOTHING, q)
        return p, q, jnp.asarray(pairs.targets) > 0

    def _partly_drawn(
        self, model: Target, params: PyTree, frozen: Frozen | None, pairs: Pairs, key: Array
    ) -> Pairs:
        own, which = jax.random.split(key)
        texts = drawn(model, jax.lax.stop_gradient(params), pairs, own, self.temperature, frozen)
        rows = jax.random.uniform(which, [len(texts), 1]) < self.on_policy
        there = jnp.asarray(pairs.inputs)[:, :1] > 0
        return pairs._replace(targets=jnp.where(rows & there, texts, pairs.targets))


def drawn(
    model: Any,
    params: PyTree,
    pairs: Pairs,
    key: Array,
    temperature: float = 1.0,
    frozen: Frozen | None = None,
) -> Array:
    """[B, T] int32 texts for the inputs of `pairs`, as long as its targets at most, drawn from a
    model token by token; 0 behind their ends."""
    inputs, shape = jnp.asarray(pairs.inputs), pairs.targets.shape
    ids = cast(Any, frozen.model if frozen else model).vocab_size
    given, _ = of_target(model, inputs, jnp.zeros(shape, jnp.int32), frozen)
    cache = read(model, params, inputs, shape[1], given)
    there = jnp.arange(ids) != model.pad_id

    def write(carry: tuple[Array, Array, Any], key: Array) -> tuple[Any, Array]:
        token, ended, cache = carry
        output, cache = model.decode(params, token[:, None], cache)
        logits = jnp.where(there, output.logits[:, 0, :ids] / temperature, -jnp.inf)
        token = jnp.where(ended, 0, jax.random.categorical(key, logits))
        return (token, ended | jnp.isin(token, jnp.array(model.stop_ids)), cache), token

    begun = model.start(inputs), jnp.zeros(shape[:1], bool), cache
    texts = jax.lax.scan(write, begun, jax.random.split(key, shape[1]))[1]
    return texts.T.astype(jnp.int32)


def _ends(weight: Any) -> tuple[Any, ...]:
    return tuple(weight) if isinstance(weight, tuple | list) else (weight, weight)


def _log_alpha(p: Array, q: Array) -> Array:
    return jax.nn.logsumexp(jnp.minimum(p, q), axis=-1)


def _mean_under(p: Array, values: Array) -> Array:
    return jnp.sum(jnp.exp(p) * values, axis=-1)


def _sums(nats: Array, p: Array, q: Array, real: Array) -> Sums:
    agreed = (p.argmax(-1) == q.argmax(-1)) & real
    return Sums(jnp.where(real, nats, 0).sum(), agreed.sum(), real.sum())
