"""A target and heads that are trained together: pytest tests/training/test_headed.py"""

from __future__ import annotations

import dataclasses
import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import t5_in_numpy
from support import tiny_t5

from specdec import checkpoints, tasks, training
from specdec.models.heads import HeadedTarget, Heads, HeadsConfig
from specdec.models.t5 import T5Draft, T5DraftConfig, T5Target
from specdec.training import Adafactor, ExitHead, LearningRate, LookAhead, Pairs, TrainRun
from specdec.training.updates import Recipe, State, train_step

V, K = 259, 3
CONFIG = tiny_t5(V, 16, 24, decoder=2)
TARGET = T5Target(CONFIG)
HEADS = Heads(HeadsConfig(vocab_size=V, states_dim=16, heads=K, mlp_dim=8))
BOTH = HeadedTarget(TARGET, HEADS)
ALL, ONE = LookAhead(one_head=False), LookAhead(one_head=True)
ROUNDING = 4e-7  # of a parameter
LENGTHS = (9, 4, 1, 0)  # of the texts, the last one a row of padding


@functools.cache
def batch() -> tuple[Pairs, dict]:
    generator = np.random.default_rng(0)
    inputs = generator.integers(2, V, [4, 6]).astype(np.int32)
    targets = generator.integers(2, V, [4, 9]).astype(np.int32)
    targets *= np.arange(9) < np.array(LENGTHS)[:, None]
    inputs[3] = 0
    params = BOTH.init(jax.random.key(0))
    params["heads"]["wo"] *= 10
    return Pairs(inputs, targets), params


def nats() -> list[float]:
    """Of each place, from the target's own next token on."""
    (inputs, targets, *_), params = batch()
    inputs, targets = inputs[:3], targets[:3]
    params = t5_in_numpy.in_float64(params)
    fed = np.concatenate([np.zeros([3, 1], np.int32), targets[:, :-1]], axis=1)
    config = dataclasses.asdict(CONFIG)
    state = t5_in_numpy.hidden(params["target"], config, inputs, fed)
    heads, found = params["heads"], []
    for place in range(1 + K):
        x = state
        if place:
            wi, wo = heads["wi"][place - 1], heads["wo"][place - 1]
            x = state + np.maximum(state @ wi, 0) @ wo
        logits = x @ params["target"]["decoder"]["logits_dense"]["kernel"]
        logits -= np.log(np.exp(logits).sum(axis=2, keepdims=True))
        places = [(b, t) for b in range(3) for t in range(LENGTHS[b] - place)]
        right = [logits[b, t, targets[b, t + place]] for b, t in places]
        found.append(-sum(right))
    return found


@functools.cache
def gradient(objective: LookAhead):
    pairs, now = batch()[0], jnp.float32(0)
    return jax.jit(
        jax.grad(lambda tree, key: objective.loss(BOTH, tree, None, pairs, key, now).loss)
    )


def slopes(objective: LookAhead, key: int = 0) -> dict:
    return gradient(objective)(batch()[1], jax.random.key(key))


@pytest.mark.ci
def test_the_loss_is_of_the_targets_own_token_and_of_what_each_head_guesses():
    pairs, params = batch()
    expected = nats()
    measured = jax.jit(lambda tree: ALL.measure(BOTH, tree, None, pairs))(params)
    assert float(measured.loss) == pytest.approx(sum(expected), rel=1e-5)
    assert int(measured.tokens) == sum(max(n - k, 0) for n in LENGTHS for k in range(1 + K))
    of_one = jax.jit(lambda key: ONE.loss(BOTH, params, None, pairs, key, jnp.float32(0)))
    sums = [of_one(key) for key in jax.random.split(jax.random.key(0), 40)]
    found = {int(x.tokens): float(x.loss) for x in sums}
    counts = [sum(max(n - k, 0) for n in LENGTHS) for k in range(1 + K)]
    assert len({*counts}) == 1 + K
    assert found == {n: pytest.approx(x, rel=1e-5) for n, x in zip(counts, expected, strict=True)}


@pytest.mark.ci
def test_gradients_reach_the_target_and_the_heads():
    every = slopes(ALL)
    for leaf in jax.tree.leaves(every):
        assert jnp.any(leaf != 0)
    seen = set()
    for key in range(20):
        one = slopes(ONE, key)
        assert all(jnp.any(leaf != 0) for leaf in jax.tree.leaves(one["target"]))
        (seen_heads,) = {
            tuple(np.flatnonzero(np.any(np.asarray(leaf) != 0, axis=(1, 2))).tolist())
            for leaf in one["heads"].values()
        }
        seen.add(seen_heads)
    assert seen == {(), (0,), (1,), (2,)}  # none for the target's own token


@pytest.mark.ci
def test_the_target_learns_at_its_own_rate():
    pairs, params = batch()

    def moved(rate: float) -> dict:
        model = dataclasses.replace(BOTH, target_rate=rate)
        optimizer = Adafactor(LearningRate(warmup=1))
        begun = jax.tree.map(jnp.copy, params)  # the step gives them up
        state = State(begun, optimizer.transformation().init(params), jnp.int32(0))
        after, _ = train_step(state, pairs, recipe=Recipe(model, None, ALL, optimizer, 0, 9))
        return jax.tree.map(lambda new, old: np.asarray(new - old), after.params, params)

    whole, tenth, none = moved(1.0), moved(0.1), moved(0.0)
    for part, of in (("target", 0.1), ("heads", 1.0)):
        for fast, slow in zip(*(jax.tree.leaves(x[part]) for x in (whole, tenth)), strict=True):
            assert np.any(fast)
            # Differences of numbers up to about 1, in float32.
            np.testing.assert_allclose(slow, of * fast, rtol=1e-3, atol=ROUNDING)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(none["target"]))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(none["heads"]))


# Runs


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> TrainRun:
    """Of words that are to be copied, begun with a target."""
    folder = tmp_path_factory.mktemp("run")
    letters = random.Random(0)
    words = ["".join(letters.choices("abcd", k=letters.randint(1, 6))) for _ in range(300)]
    (folder / "train.tsv").write_text("".join(f"{word}\t{word}\n" for word in words))
    return TrainRun(
        model=BOTH,
        task=tasks.local_task("words", {"train": f"{folder}/train.tsv"}, tasks.Bytes()),
        lengths={"inputs": 8, "targets": 8},
        steps=12,
        batch_size=8,
        optimizer=Adafactor(LearningRate(warmup=2)),
        objective=ALL,
        initial_path={"target": str(folder / "target")},
        buckets=1,
        checkpoint_every=5,
    )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"objective": training.TeacherForced()}, "objective is TeacherForced, and the model is a"),
        ({"target": TARGET, "target_path": "x"}, "target is not read where the model is a Headed"),
        ({"initial_path": "x"}, "initial_path is 'x' and the model a HeadedTarget; give the"),
        ({"initial_path": {"draft": "x"}}, "initial_path is {'draft': 'x'} and the model a Headed"),
        (
            {"model": TARGET, "objective": training.TeacherForced()},
            ", and a T5Target has no parts; give",
        ),
        ({"model": lambda: HeadedTarget(3, HEADS)}, "HeadedTarget.target is 3; give a model"),
        ({"model": lambda: HeadedTarget(TARGET, TARGET)}, "HeadedTarget.heads is T5Target"),
        (
            {"model": lambda: HeadedTarget(TARGET, heads_of(states_dim=12))},
            "HeadedTarget.heads has states_dim 12 and its target 16; give states_dim = 16",
        ),
        (
            {"model": lambda: HeadedTarget(TARGET, heads_of(vocab_size=40))},
            "HeadedTarget.heads has vocab_size 40 and its target 259; give vocab_size = 259",
        ),
        (
            {"model": lambda: HeadedTarget(TARGET, HEADS, -1)},
            "HeadedTarget.target_rate is -1; give a number from 0 on",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(run, change, message):
    with pytest.raises(ValueError) as refused:
        dataclasses.replace(run, **{k: x() if callable(x) else x for k, x in change.items()})
    assert message in str(refused.value) and "\n" not in str(refused.value)


def heads_of(**fields) -> Heads:
    return Heads(dataclasses.replace(HEADS.config, **fields))


def test_a_head_without_some_ids_and_other_objectives_are_refused():
    some = T5Draft(T5DraftConfig.of(CONFIG, head_ids=tuple(range(V - 1))))
    with pytest.raises(ValueError, match=r"LookAhead trains on all tokens of texts, and the model"):
        ALL.check(HeadedTarget(some, HEADS), V)
    with pytest.raises(ValueError, match="ExitHead trains one head on a target's layer"):
        ExitHead(1).check(BOTH, V)


def test_a_target_that_is_not_there_is_refused(run, tmp_path):
    absent = dataclasses.replace(run, initial_path={"target": str(tmp_path / "absent")})
    with pytest.raises(checkpoints.CheckpointError, match="absent") as refused:
        training.train(absent, tmp_path / "out")
    assert "\n" not in str(refused.value)
