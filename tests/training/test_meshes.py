"""Training over eight CPU devices against one: pytest tests/training/test_meshes.py"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from support import tiny_t5

from specdec import training
from specdec.models import partitioning
from specdec.models.heads import HeadedTarget, Heads, HeadsConfig
from specdec.models.t5 import T5Target
from specdec.predict import hlo
from specdec.training import (
    Align,
    LookAhead,
    Pairs,
)
from specdec.training.division import Division
from specdec.training.optimizer import Adafactor, LearningRate
from specdec.training.updates import (
    Recipe,
    State,
    abstract_state,
    evaluate_step,
    state_of,
    train_step,
    update_program,
)

V, K, ROWS, UPDATES = 48, 2, 16, 20
CONFIG = tiny_t5(V, 16, 32, heads=8, head_dim=4, decoder=2)
TARGET = T5Target(dataclasses.replace(CONFIG, num_encoder_layers=2))
SMALL = T5Target(tiny_t5(V, 8, 24, heads=4, head_dim=4))  # eight devices do not divide 4 heads
HEADS = Heads(HeadsConfig(vocab_size=V, states_dim=16, heads=K, mlp_dim=8))
OPTIMIZER = Adafactor(LearningRate(peak=0.01, warmup=2), clip_norm=1.0)

# What is trained, and how.
CASES: dict[str, tuple[Any, training.Objective]] = {
    "aligned": (SMALL, Align({"forward_kl": (1.0, 0.5), "greedy": 0.1})),
    "heads together": (HeadedTarget(TARGET, HEADS, 0.1), LookAhead(one_head=False)),
}

# Sums over eight devices have another order: 4e-7 of a loss, which twenty updates amplify.
LOSS, PARAMETERS = 2e-5, 2e-4


class Trained(NamedTuple):
    """Host copies of a short run: its losses, the evaluation after it, and its parameters."""

    losses: list[float]
    measured: Any
    params: Any
    state: State  # on the devices
    programs: int


@functools.cache
def batches() -> list[Pairs]:
    generator = np.random.default_rng(0)
    found = []
    for _ in range(4):
        inputs = generator.integers(2, V, [ROWS, 6]).astype(np.int32)
        targets = generator.integers(2, V, [ROWS, 5]).astype(np.int32)
        targets *= np.arange(5) < generator.integers(1, 6, [ROWS, 1])
        inputs[-1], targets[-1] = 0, 0
        found.append(Pairs(inputs, targets))
    return found


@functools.cache
def target_params() -> Any:
    return jax.device_get(TARGET.init(jax.random.key(7)))


def recipe_of(name: str, partitions: int | None, **settings: Any) -> Recipe:
    """Returns the settings of a case, with its models divided over a mesh if there is one."""
    model, objective = CASES[name]
    divide = partitioning.Partitioner(num_partitions=partitions)
    layout = Division(divide.mesh())
    own, target = layout.divided(model, divide), layout.divided(TARGET, divide)
    return Recipe(own, target, objective, OPTIMIZER, 3, UPDATES, layout=layout, **settings)


def trained(name: str, partitions: int | None, **settings: Any) -> Trained:
    """Runs a case for some updates, on one device or over a mesh."""
    recipe = recipe_of(name, partitions, **settings)
    layout, target = recipe.layout, recipe.target
    with layout.entered():
        model, _ = CASES[name]
        params = layout.placed(model.init(jax.random.key(0)), recipe.model)
        frozen = layout.placed(target_params(), target)
        state = state_of(params, recipe)
        divided = jax.tree.map(lambda x: x.sharding, state)
        losses = []
        for step in range(UPDATES):
            placed = layout.rows(batches()[step % 4])
            state, sums = train_step(state, placed, frozen, recipe=recipe)
            losses.append(float(sums.loss / sums.tokens))
        measured = evaluate_step(state.params, layout.rows(batches()[0]), frozen, recipe=recipe)
        programs = update_program(recipe)._cache_size()
    for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(divided), strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
    return Trained(losses, jax.device_get(measured), jax.device_get(state.params), state, programs)


@pytest.mark.ci
def test_an_update_over_a_mesh_is_that_of_one_device():
    over, one = trained("heads together", 8), trained("heads together", None)
    assert over.programs == 1
    np.testing.assert_allclose(over.losses, one.losses, rtol=LOSS)
    np.testing.assert_allclose(over.measured.loss, one.measured.loss, rtol=LOSS)
    assert over.measured.tokens == one.measured.tokens
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=PARAMETERS),
        over.params,
        one.params,
    )


def lowered(partitions: int | None, name: str = "aligned", **settings: Any) -> Any:
    """The program of an update over a mesh, before it is compiled."""
    recipe = recipe_of(name, partitions, **settings)
    layout, target = recipe.layout, recipe.target
    with layout.entered():
        frozen = partitioning.abstract(target, layout.mesh)
        given = abstract_state(recipe), layout.rows(batches()[0]), frozen, ()
        return update_program(recipe).lower(*given)


@pytest.mark.ci
def test_no_array_of_the_target_is_gathered():
    module = hlo.read(lowered(4).compile().as_text())
    whole = {4 * leaf.size for leaf in jax.tree.leaves(target_params()) if leaf.ndim > 1}
    gathered = [one for one in module.collectives if one.opcode == "all-gather"]
    assert gathered, "the likeliest id of each device's part of the vocabulary"
    assert not whole & {one.bytes for one in gathered}


@pytest.mark.ci
def test_each_layer_is_computed_again():
    texts = [lowered(2, rematerialise=on).as_text() for on in (False, True)]
    layers = SMALL.config.num_encoder_layers + SMALL.config.num_decoder_layers
    assert [text.count("optimization_barrier") for text in texts] == [0, layers]
