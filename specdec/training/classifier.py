"""The classifier of `schedules.Disco`, fitted to recorded texts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import ArrayLike

from specdec.schedules.schedule import Signals
from specdec.schedules.stopping import features, logit
from specdec.types import Array, PyTree

HIDDEN = 32
LEARNING_RATE = 3e-3
SHOWN = 200  # steps between two lines of progress


class Examples(NamedTuple):
    """Draft tokens, and the probability that they are accepted."""

    features: np.ndarray  # [E, F] float32
    label: np.ndarray  # [E] float32, the probability that the target accepts it
    weight: np.ndarray  # [E] float32, the probability that all draft tokens before it are accepted


class Recording(TypedDict):
    """The signals of a drafter's proposal at each token of a text of T tokens."""

    confidence: ArrayLike  # [T]
    entropy: ArrayLike  # [T]
    top: ArrayLike  # [T, TOP]
    accepted: ArrayLike  # [T], the probability that the target accepts the proposal


def examples(recordings: Sequence[Recording], longest: int) -> Examples:
    """Returns the tokens of drafts of `longest` tokens, one draft from each token of some texts.

    After a rejected token, a draft's prefix is not the text's. A token's weight is therefore the
    probability that the tokens before it in the draft are accepted.
    """
    drafts = []
    for recording in recordings:
        accepted = np.asarray(recording["accepted"], np.float32)
        index = np.arange(len(accepted))[:, None] + np.arange(longest)[None]
        inside = index < len(accepted)
        index = np.minimum(index, len(accepted) - 1)
        label = accepted[index]
        reached = np.cumprod(np.pad(label[:, :-1], ((0, 0), (1, 0)), constant_values=1), axis=1)
        depth = np.broadcast_to(np.arange(longest), index.shape)
        names = ("confidence", "entropy", "top")
        signals = {k: np.asarray(recording[k], np.float32)[index] for k in names}
        seen = np.asarray(features(Signals(**signals, index=depth)))
        counts = inside & (reached > 0)
        drafts.append((seen[counts], label[counts], reached[counts]))
    return Examples(*(np.concatenate(parts) for parts in zip(*drafts, strict=True)))


def fit(
    training: Examples,
    held_out: Examples,
    *,
    steps: int = 2000,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, np.ndarray]:
    """Returns the parameters of `stopping.logit` by name, which Adam fits to the training examples.

    The loss is the mean cross-entropy. The parameters with the smallest held-out loss are returned.
    """
    width = training.features.shape[1]
    keys = jax.random.split(jax.random.key(seed), 2)
    scale = np.maximum(np.std(training.features, axis=0), 1e-3)
    constants = {"mean": np.mean(training.features, axis=0), "scale": scale}
    params = {
        "hidden": jax.random.normal(keys[0], (width, HIDDEN)) / np.sqrt(width),
        "hidden_bias": jnp.zeros(HIDDEN),
        "out": jax.random.normal(keys[1], (HIDDEN,)) / np.sqrt(HIDDEN),
        "out_bias": jnp.zeros([]),
    }
    rule = optax.adam(LEARNING_RATE)

    def loss_of(params: PyTree, of: Examples) -> Array:
        each = optax.sigmoid_binary_cross_entropy(logit(constants | params, of.features), of.label)
        return jnp.sum(of.weight * each) / jnp.sum(of.weight)

    @functools.partial(jax.jit, static_argnames="count")
    def advance(params: PyTree, state: PyTree, count: int) -> tuple[PyTree, PyTree, Array, Array]:
        def step(carry: tuple[PyTree, PyTree], _: None) -> tuple[tuple[PyTree, PyTree], Array]:
            params, state = carry
            loss, slope = jax.value_and_grad(loss_of)(params, training)
            updates, state = rule.update(slope, state, params)
            return (optax.apply_updates(params, updates), state), loss

        (params, state), losses = jax.lax.scan(step, (params, state), length=count)
        return params, state, losses[-1], loss_of(params, held_out)

    state, best, least = rule.init(params), params, np.inf
    for start in range(0, steps, SHOWN):
        count = min(SHOWN, steps - start)
        params, state, loss, held = advance(params, state, count)
        say(f"step {start + count:,} of {steps:,}, loss {loss:.4f}, held out {held:.4f}")
        if held < least:
            best, least = params, held
    return {k: np.asarray(v, np.float32) for k, v in (constants | best).items()}


def separation(score: np.ndarray, of: Examples) -> float:
    """Returns the weighted area under the ROC curve; nan unless tokens of both kinds exist.

    It is the probability that, of an accepted and a rejected draft token, the accepted one has the
    higher score.
    """
    order = np.argsort(score, kind="stable")
    _, tied = np.unique(score[order], return_inverse=True)
    accepted = np.bincount(tied, (of.weight * of.label)[order])
    refused = np.bincount(tied, (of.weight * (1 - of.label))[order])
    below = np.cumsum(refused) - refused
    pairs = accepted.sum() * refused.sum()
    return float(np.sum(accepted * (below + refused / 2)) / pairs) if pairs else float("nan")
