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
from specdec.models.t5 import T5Draft, T5DraftConfig, T5Target
from specdec.predict import hlo
from specdec.training import (
    Align,
    AllExits,
    ConfidenceHead,
    ExitClassifier,
    ExitHead,
    FillMasks,
    LookAhead,
    Pairs,
    TeacherForced,
)
from specdec.training.division import Division, micro_batches
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
MESHES = {"8x1": 1, "4x2": 2, "2x4": 4, "1x8": 8}
CONFIG = tiny_t5(V, 16, 32, heads=8, head_dim=4, decoder=2)
TARGET = T5Target(dataclasses.replace(CONFIG, num_encoder_layers=2))
SMALL = T5Target(tiny_t5(V, 8, 24, heads=4, head_dim=4))  # eight devices do not divide 4 heads
ADDED = functools.partial(T5DraftConfig.of, dataclasses.replace(CONFIG, vocab_size=V + 8))
SHARED = T5Draft(T5DraftConfig.of(CONFIG, num_encoder_layers=0, encoded_dim=16))
HEADS = Heads(HeadsConfig(vocab_size=V, states_dim=16, heads=K, mlp_dim=8))
OPTIMIZER = Adafactor(LearningRate(peak=0.01, warmup=2), clip_norm=1.0)
DIVERGENCES = ("reverse_kl", "total_variation", "log_acceptance", "adaptive")

# What is trained, and how.
CASES: dict[str, tuple[Any, training.Objective]] = {
    "teacher forced": (SMALL, TeacherForced()),
    "aligned": (SMALL, Align({"forward_kl": (1.0, 0.5), "greedy": 0.1})),
    **{name: (SMALL, Align({name: 1.0})) for name in DIVERGENCES},
    "aligned with the encoder": (SHARED, Align({"jensen_shannon": 1.0})),
    "drawn texts": (SMALL, Align({"forward_kl": 1.0}, on_policy=0.5)),
    "masks": (T5Draft(ADDED()), FillMasks(K, blocks=2)),
    "masks and states": (T5Draft(ADDED(states_dim=16, markov_rank=4)), FillMasks(K, blocks=2)),
    "confidence": (
        T5Draft(ADDED(states_dim=16, markov_rank=4, confidence_head=True)),
        ConfidenceHead(FillMasks(K, blocks=2)),
    ),
    "look ahead": (HEADS, LookAhead(one_head=True)),
    "look ahead together": (HeadedTarget(TARGET, HEADS, 0.1), LookAhead(one_head=False)),
    "all exits": (TARGET, AllExits()),
    "exit head": (
        Heads(HeadsConfig(vocab_size=V, states_dim=16, heads=1, mlp_dim=8)),
        ExitHead(1),
    ),
    "exit classifier": (T5Draft(T5DraftConfig.of(CONFIG, exit_classifier=True)), ExitClassifier()),
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


@functools.cache
def alone(name: str) -> Trained:
    return trained(name, None)


QUICK = {("look ahead together", "1x8")}


def marked(name: str, mesh: str) -> Any:
    mark = pytest.mark.ci if (name, mesh) in QUICK else pytest.mark.slow
    return pytest.param(name, mesh, marks=mark, id=f"{name}, {mesh}")


@pytest.mark.parametrize("name, mesh", [marked(name, mesh) for name in CASES for mesh in MESHES])
def test_an_update_over_a_mesh_is_that_of_one_device(name, mesh):
    over, one = trained(name, MESHES[mesh]), alone(name)
    check(over, one)
    assert over.programs == 1


def check(over: Trained, one: Trained) -> None:
    np.testing.assert_allclose(over.losses, one.losses, rtol=LOSS)
    np.testing.assert_allclose(over.measured.loss, one.measured.loss, rtol=LOSS)
    assert over.measured.tokens == one.measured.tokens
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=PARAMETERS),
        over.params,
        one.params,
    )


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [None, 2], ids=["one device", "4x2"])
def test_micro_batches_and_rematerialisation_change_memory_only(partitions):
    saving = trained("aligned", partitions, micro_batches=4, rematerialise=True)
    check(saving, alone("aligned"))


def test_micro_batches_have_the_rows_of_each_device():
    (pairs, *_), count = batches(), 4
    parts = micro_batches(pairs, count)
    for number in range(count):
        np.testing.assert_array_equal(parts.inputs[number], pairs.inputs[number::count])
        np.testing.assert_array_equal(parts.targets[number], pairs.targets[number::count])


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


@pytest.mark.slow
def test_a_target_whose_encoder_is_shared_reads_its_inputs_once():
    """XLA sees by itself on one device that two encoders are one, and over a mesh it does not."""
    both = (lowered(count, "aligned with the encoder").compile() for count in (None, 2))
    alone, part = (program.cost_analysis()["flops"] for program in both)
    assert 8 * part < 1.1 * alone  # 1.18 where it reads them twice, 1.04 here
