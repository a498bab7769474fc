"""Objectives of exits: pytest tests/training/test_exits.py"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import t5_in_numpy

from specdec.models.heads import Heads, HeadsConfig
from specdec.models.t5 import T5Draft, T5DraftConfig
from specdec.training import AllExits, ExitClassifier, ExitHead, Pairs, TeacherForced
from specdec.training.loss import Frozen

V = 30
CONFIG = T5DraftConfig(
    vocab_size=V,
    emb_dim=16,
    num_heads=2,
    head_dim=8,
    mlp_dim=24,
    num_encoder_layers=1,
    num_decoder_layers=4,
    exit_classifier=True,
)
MODEL = T5Draft(CONFIG)
HEAD = Heads(HeadsConfig(vocab_size=V, states_dim=16, heads=1, mlp_dim=8))
LENGTHS = (9, 4, 1, 0)  # of the texts, the last one a row of padding


@functools.cache
def batch() -> tuple[Pairs, dict]:
    generator = np.random.default_rng(0)
    inputs = generator.integers(2, V, [4, 6]).astype(np.int32)
    targets = generator.integers(2, V, [4, 9]).astype(np.int32)
    targets *= np.arange(9) < np.array(LENGTHS)[:, None]
    inputs[3] = 0
    params = MODEL.init(jax.random.key(0))
    params["decoder"]["exit_classifier"]["weight"] = jax.random.normal(jax.random.key(2), [16])
    return Pairs(inputs, targets), params


def state_of(layers: int) -> tuple[np.ndarray, np.ndarray]:
    """[B, T, D] float64 states, and [B, T, V] logits, of the network that ends there."""
    (inputs, targets, *_), params = batch()
    shallow = MODEL.first(layers)
    tree, config = shallow.part_of(params), dataclasses.asdict(shallow.config)
    fed = np.concatenate([np.zeros([4, 1], np.int32), targets[:, :-1]], axis=1)
    state = t5_in_numpy.hidden(tree, config, inputs, fed)
    return state, state @ np.asarray(params["decoder"]["logits_dense"]["kernel"], float)


def nats(logits: np.ndarray) -> np.ndarray:
    """[B, T] of the right tokens."""
    targets = batch()[0].targets
    logits = logits - logits.max(axis=-1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]


@pytest.mark.ci
@pytest.mark.parametrize(
    "exits, weights, right",
    [((1, 3), "doubling", {1: 1, 3: 2, 4: 4})],
)
def test_all_exits_are_weighed(exits, weights, right):
    pairs, params = batch()
    real = pairs.targets > 0
    measure = jax.jit(lambda own: AllExits(exits, weights).measure(MODEL, own, None, pairs))
    sums = measure(params)
    by_exit = {layers: state_of(layers)[1] for layers in right}
    loss = sum(weight * nats(by_exit[layers])[real].sum() for layers, weight in right.items())
    np.testing.assert_allclose(sums.loss, loss / sum(right.values()), rtol=1e-5)
    assert sums.correct == ((by_exit[4].argmax(-1) == pairs.targets) & real).sum()
    assert sums.tokens == real.sum()


@pytest.mark.ci
def test_an_exit_at_the_end_only_is_teacher_forcing():
    pairs, params = batch()
    key = jax.random.key(0)
    ours = AllExits((4,)).loss(MODEL, params, None, pairs, key, jnp.float32(0))
    theirs = TeacherForced().loss(MODEL, params, None, pairs, key, jnp.float32(0))
    np.testing.assert_allclose(ours.loss, theirs.loss, rtol=1e-6)


@pytest.mark.ci
@pytest.mark.parametrize("layers", [1])
def test_a_head_is_on_the_states_of_its_exit(layers):
    pairs, params = batch()
    head = HEAD.init(jax.random.key(1))
    head |= {"wo": 10 * head["wo"]}
    sums = ExitHead(layers).measure(HEAD, head, Frozen(MODEL, params), pairs)
    state, _ = state_of(layers)
    wi, wo = (np.asarray(head[name][0], float) for name in ("wi", "wo"))
    state = state + np.maximum(state @ wi, 0) @ wo
    logits = state @ np.asarray(params["decoder"]["logits_dense"]["kernel"], float)
    real = pairs.targets > 0
    np.testing.assert_allclose(sums.loss, nats(logits)[real].sum(), rtol=1e-5)
    assert sums.correct == ((logits.argmax(-1) == pairs.targets) & real).sum()


@pytest.mark.ci
def test_both_answers_of_a_classifier_count_alike():
    pairs, params = batch()
    real, own = pairs.targets > 0, params["decoder"]["exit_classifier"]
    says, means, right = state_of(4)[1].argmax(-1), [], []
    for layers in (1, 3):
        state, logits = state_of(layers)
        score = state @ np.asarray(own["weight"], float) + float(own["bias"])
        same = logits.argmax(-1) == says
        loss = np.log1p(np.exp(np.where(same, -score, score)))
        both = [loss[real & label].mean() for label in (same, ~same) if (real & label).any()]
        means.append(sum(both) / 2)
        right.append(((score > 0) == same)[real].sum())
    sums = ExitClassifier((1, 3)).measure(MODEL, params, None, pairs)
    np.testing.assert_allclose(sums.loss / sums.tokens, np.mean(means), rtol=1e-4)
    assert sums.correct == int(np.mean(right))


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: AllExits(weights="most"), "AllExits.weights is 'most'; give one of 'linear', "),
        (lambda: AllExits((0,)), r"AllExits.exits is \(0,\); give layers from 1 on"),
        (lambda: AllExits((9,)).check(MODEL, V), "exit at layer 9 and the model has 4"),
        (lambda: AllExits().check(HEAD, V), "whose layers can run separately, and those of Heads"),
        (lambda: ExitHead(0), "ExitHead.layers is 0; give a positive integer"),
        (lambda: ExitHead(1).check(MODEL, V), "trains one head on a target's layer"),
        (
            lambda: ExitClassifier().check(
                T5Draft(dataclasses.replace(CONFIG, exit_classifier=False)), V
            ),
            "the classifier of a model that has none; give it exit_classifier = True",
        ),
    ],
)
def test_mistakes(make, says):
    with pytest.raises(ValueError, match=says):
        make()
