"""Objectives that align a drafter with its target: pytest tests/training/test_alignment.py"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import t5_in_numpy
from support import tiny_t5

from specdec.models.t5 import T5Draft, T5DraftConfig, T5Target
from specdec.sampling import Processed, Sampling, SuppressTokens
from specdec.testing import TableTarget
from specdec.testing.law import compare, sequence_law
from specdec.training import Align, Frozen, Pairs, TrainRun, alignment

V = 12
CONFIG = tiny_t5(V, 16, 24)
TARGET, MODEL = (
    T5Target(CONFIG),
    T5Target(dataclasses.replace(CONFIG, emb_dim=8, vocab_size=V + 3)),
)
LENGTHS = (5, 3, 1, 0)  # of the texts, the last one a row of padding
FORWARD = {"forward_kl": 1.0}


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def overlap(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return np.minimum(p, q).sum(-1)


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    mean = (p + q) / 2
    return ((p * np.log(p / mean)).sum(-1) + (q * np.log(q / mean)).sum(-1)) / 2


# By their definitions, of probabilities. The two with a factor that is not differentiated are made
# of these in `expected`.
RIGHT = {
    "forward_kl": lambda p, q: (p * np.log(p / q)).sum(-1),
    "reverse_kl": lambda p, q: (q * np.log(q / p)).sum(-1),
    "jensen_shannon": jensen_shannon,
    "total_variation": lambda p, q: np.abs(p - q).sum(-1) / 2,
    "log_acceptance": lambda p, q: -np.log(overlap(p, q)),
    "greedy": lambda p, q: -np.log(np.take_along_axis(q, p.argmax(-1)[..., None], -1)[..., 0]),
}


@functools.cache
def laws() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of both, near and far from each other, and which tokens are there."""
    generator = np.random.default_rng(0)
    p, noise = generator.normal(size=(2, 3, 4, V)) * 2
    q = p * np.array([1, 0.5, -2.0])[:, None, None] + noise / 2
    return p, q, np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]], bool)


def slopes(value, logits: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """By central differences."""
    found = np.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        moved = np.zeros_like(logits)
        moved[place] = step
        found[place] = (value(logits + moved) - value(logits - moved)) / (2 * step)
    return found


def gradient(name: str) -> np.ndarray:
    """Of the sum over what is there."""
    p, q, real = laws()

    def total(logits):
        nats = alignment.DIVERGENCES[name](
            jax.nn.log_softmax(p), jax.nn.log_softmax(logits), jnp.asarray(real)
        )
        return jnp.where(real, nats, 0).sum()

    with jax.enable_x64(True):
        found = jax.grad(total)(jnp.asarray(q))
        assert found.dtype == jnp.float64
        return np.asarray(found)


def expected(name: str) -> np.ndarray:
    p, q, real = laws()
    if name == "adaptive":
        share = np.exp(-3 * overlap(softmax(p), softmax(q)))
        parts = (share, "forward_kl"), (1 - share, "total_variation")
        return sum(weight[..., None] * expected(part) for weight, part in parts)
    if name == "total_variation_plus":
        weights = softmax(q)[real]
        better = softmax(p)[real] > weights
        mean = (weights * better).sum() / real.sum()
        return expected("total_variation") / math.sqrt(mean - mean**2)
    return slopes(lambda logits: RIGHT[name](softmax(p), softmax(logits))[real].sum(), q)


@pytest.mark.parametrize("name", alignment.DIVERGENCES)
def test_gradients_are_finite_differences(name):
    np.testing.assert_allclose(
        gradient(name), expected(name), rtol=1e-5, atol=1e-8
    )  # central, float64


def test_the_adaptive_loss_is_a_mean_of_two():
    p, q, real = laws()
    found = alignment.DIVERGENCES["adaptive"](*map(jax.nn.log_softmax, (p, q)), real)
    p, q = softmax(p), softmax(q)
    share = np.exp(-3 * overlap(p, q))
    right = share * RIGHT["forward_kl"](p, q) + (1 - share) * RIGHT["total_variation"](p, q)
    np.testing.assert_allclose(found, right, rtol=1e-5)  # float32


@functools.cache
def batch() -> tuple[Pairs, Frozen, dict]:
    generator = np.random.default_rng(0)
    inputs = generator.integers(2, V, [4, 6]).astype(np.int32)
    targets = generator.integers(2, V, [4, 5]).astype(np.int32)
    targets *= np.arange(5) < np.array(LENGTHS)[:, None]
    targets[0, LENGTHS[0] - 1] = 1  # the end of a text counts
    inputs[3] = 0
    frozen = Frozen(TARGET, TARGET.init(jax.random.key(0)))
    return Pairs(inputs, targets), frozen, MODEL.init(jax.random.key(1))


def probabilities(model: T5Target, tree: dict, temperature: float) -> np.ndarray:
    pairs = batch()[0]
    fed = np.concatenate([np.zeros([4, 1], np.int32), pairs.targets[:, :-1]], axis=1)
    states = t5_in_numpy.hidden(tree, dataclasses.asdict(model.config), pairs.inputs, fed)
    logits = states @ np.asarray(tree["decoder"]["logits_dense"]["kernel"], float)
    return softmax(logits[..., :V] / temperature)


@pytest.mark.ci
def test_the_loss_is_of_both_models_over_what_is_there():
    """At a temperature, weights on their way; ids of the drafter that no text has do not count."""
    pairs, frozen, params = batch()
    real = pairs.targets > 0
    p, q = (probabilities(*x, 0.5) for x in ((TARGET, frozen.params), (MODEL, params)))
    objective = Align({"forward_kl": (1.0, 0.0), "total_variation": (0.0, 2.0)}, temperature=0.5)
    key, progress = jax.random.key(0), jnp.float32(0.25)
    sums = jax.jit(lambda tree: objective.loss(MODEL, tree, frozen, pairs, key, progress))(params)
    right = 0.75 * RIGHT["forward_kl"](p, q) + 0.5 * RIGHT["total_variation"](p, q)
    np.testing.assert_allclose(sums.loss, right[real].sum(), rtol=1e-4)
    assert sums.tokens == real.sum()
    measured = jax.jit(lambda tree: objective.measure(MODEL, tree, frozen, pairs))(params)
    np.testing.assert_allclose(
        1 - measured.loss / measured.tokens, overlap(p, q)[real].mean(), rtol=1e-4
    )
    assert measured.correct == (p.argmax(-1) == q.argmax(-1))[real].sum()


def test_an_evaluation_says_what_a_draft_would_be_worth():
    """Alpha of a half: 1 + 1/2 + 1/4 + 1/8 tokens in the time of 1 + 3 / 10; greedily 1."""
    found = Align(FORWARD).figures((0.5, 1.0), 0.1)
    assert (found["alpha"], found["alpha_greedy"]) == (0.5, 1.0)
    assert found["tokens_per_call_3"] == 1.875
    assert found["mbsu_3"] == pytest.approx(1.875 / 1.3)
    assert found["tokens_per_call_5_greedy"] == 6
    assert found["mbsu_5_greedy"] == pytest.approx(6 / 1.5)
    for loss, alpha in ((1 + 1e-7, 0), (-1e-7, 1)):  # as rounding may have it
        assert Align(FORWARD).figures((loss, 0.0), 0.1)["alpha"] == alpha


@pytest.mark.ci
def test_the_target_is_not_trained():
    pairs, frozen, params = batch()

    def loss(tree):
        given = Frozen(TARGET, tree)
        return (
            Align(FORWARD).loss(MODEL, params, given, pairs, jax.random.key(0), jnp.float32(0)).loss
        )

    assert not any(leaf.any() for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))(frozen.params)))


def test_texts_are_drawn_from_the_drafter():
    """By their law, of every text that there may be; padding is never drawn."""
    model, rows, longest = TableTarget(4), 20_000, 3
    tree, inputs = model.init(jax.random.key(3)), np.full([rows, 2], 2, np.int32)
    pairs = Pairs(inputs, np.ones([rows, longest], np.int32))
    texts = alignment.drawn(model, tree, pairs, jax.random.key(4), temperature=1.5)
    rule = Processed(Sampling(1.5), (SuppressTokens((0,)),))
    law = sequence_law(model, tree, inputs[0], sampling=rule, max_length=longest)
    found = compare(law, np.asarray(texts))
    assert found.passed and found.degrees > 10, found


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_on_policy_texts_are_the_drafters_own(share):
    pairs, frozen, params = batch()
    key, now = jax.random.key(7), jnp.float32(0)
    mixed = Align(FORWARD, on_policy=share).loss(MODEL, params, frozen, pairs, key, now)
    own, which = jax.random.split(key)
    texts = alignment.drawn(MODEL, params, pairs, own, 1.0, frozen)
    rows = (np.asarray(jax.random.uniform(which, [4, 1])) < share) & (pairs.inputs[:, :1] > 0)
    assert rows.any() and texts.max() < V
    right = pairs._replace(targets=jnp.where(rows, texts, pairs.targets))
    given = Align(FORWARD).loss(MODEL, params, frozen, right, key, now)
    np.testing.assert_allclose(mixed.loss, given.loss, rtol=1e-6)
    assert mixed.tokens == given.tokens
    untouched = Align(FORWARD).loss(MODEL, params, frozen, pairs, key, now)
    assert abs(mixed.loss - untouched.loss) > 1e-3


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: Align({}), r"Align.divergences is \{\}; give weights"),
        (lambda: Align({"kl": 1.0}), "has 'kl'; give some of forward_kl, reverse_kl"),
        (lambda: Align({"greedy": -1}), "gives 'greedy' the weight -1; give a positive number"),
        (lambda: Align({"greedy": (0.0, 0.0)}), "a positive number, or"),
        (
            lambda: Align(FORWARD, temperature=0),
            "Align.temperature is 0; give a number from 0.01 on",
        ),
        (lambda: Align(FORWARD, on_policy=1.5), "Align.on_policy is 1.5; give a probability"),
        (
            lambda: Align(FORWARD).check(T5Draft(T5DraftConfig.of(CONFIG, states_dim=16)), V),
            "this one reads its target's states",
        ),
        (
            lambda: TrainRun(MODEL, "any", {}, 1, 1, objective=Align(FORWARD)),
            "objective is Align, which reads a target; give that target, and target_path",
        ),
        (
            lambda: Align(FORWARD).measure(
                TARGET, batch()[1].params, Frozen(MODEL, batch()[2]), batch()[0]
            ),
            "the drafter has 12 ids and its target 15; give it as many",
        ),
    ],
)
def test_mistakes(make, says):
    with pytest.raises(ValueError, match=says):
        make()
