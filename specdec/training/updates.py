"""The compiled step of training, an update or an evaluation of a batch, and its initial state."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from specdec import checkpoints
from specdec.common.values import one_line
from specdec.models import partitioning
from specdec.models.contract.model import Model
from specdec.models.heads import HeadedTarget
from specdec.models.layers.layers import rematerialised
from specdec.training.division import Division, micro_batches
from specdec.training.loss import Frozen, Pairs, Sums
from specdec.training.objectives import Objective
from specdec.training.optimizer import Adafactor
from specdec.training.training_error import TrainingError
from specdec.training.training_run import TrainRun
from specdec.types import Array, PyTree


def begun_with(
    params: PyTree, path: str | os.PathLike, head_ids: tuple[int, ...] | None = None
) -> PyTree:
    """Returns parameters in which a checkpoint's arrays replace those of equal name and shape.

    Vocabularies, and the ids of heads, may differ: rows of shared ids are replaced. A shallow
    decoder of its target's width therefore begins with the target's first layers.
    """
    new: dict[tuple[str, ...], PyTree] = dict(traverse_util.flatten_dict(params))
    others: dict[tuple[str, ...], PyTree] = dict(traverse_util.flatten_dict(checkpoints.load(path)))
    heads = head_ids, _head_ids(path)
    taken = {
        name: _with_shared(leaf, others[name], name, heads)
        for name, leaf in new.items()
        if name in others
    }
    if not any(taken[name] is not new[name] for name in taken):
        raise TrainingError(
            f"no array of {path} has the name and shape of one of the trained model; give a model "
            "of that width, or do not begin with that checkpoint"
        )
    return traverse_util.unflatten_dict(new | taken)


def _head_ids(path: str | os.PathLike) -> tuple[int, ...] | None:
    """Returns the ids that the head of a checkpoint has, None for all."""
    try:
        return checkpoints.model_from(path).head_ids
    except checkpoints.CheckpointError:  # T5X's have no config, and whole heads
        return None


def _with_shared(
    new: Array,
    other: Array,
    name: tuple[str, ...],
    heads: tuple[tuple[int, ...] | None, tuple[int, ...] | None],
) -> Array:
    """Returns `new` with the shared entries of `other`, including those along a vocabulary's axis.

    If the shapes do not fit, `new` is returned unchanged.
    """
    module = name[-2] if len(name) > 1 else ""
    axis = {"token_embedder": 0, "logits_dense": 1}.get(module)
    if axis is None or (new.shape == other.shape and heads[0] == heads[1]):
        return jnp.asarray(other, new.dtype) if new.shape == other.shape else new
    if any(new.shape[i] != other.shape[i] for i in range(new.ndim) if i != axis):
        return new
    head_ids = heads if module == "logits_dense" else (None, None)
    new_ids, other_ids = (
        np.arange(x.shape[axis]) if ids is None else np.asarray(ids)
        for ids, x in zip(head_ids, (new, other), strict=True)
    )
    _, at, of = np.intersect1d(new_ids, other_ids, return_indices=True)
    shared = jnp.asarray(jnp.take(other, of, axis), new.dtype)
    return new.at[(slice(None),) * axis + (at,)].set(shared)


class State(NamedTuple):
    """The state that training changes.

    `step` counts the updates, and is the index of the next batch.
    """

    params: PyTree
    optimizer: PyTree
    step: PyTree  # [] int32, or its shape


class Recipe(NamedTuple):
    """The static settings of an update: those of a run, except its data."""

    model: Model | HeadedTarget
    target: Model | None
    objective: Objective
    optimizer: Adafactor
    seed: int
    steps: int
    micro_batches: int = 1
    rematerialise: bool = False
    layout: Division = Division()

    @classmethod
    def of(cls, run: TrainRun) -> Recipe:
        """Returns the settings of a run that `over_devices` returned."""
        *settings, _ = cls._fields
        fields = {name: getattr(run, name) for name in settings}
        return cls(**fields, layout=Division(run.placement.mesh))

    def frozen(self, params: PyTree, reference: PyTree = ()) -> Frozen | None:
        """Returns the target with its parameters, if there is one."""
        return None if self.target is None else Frozen(self.target, params, reference)


def over_devices(run: TrainRun) -> TrainRun:
    """Returns the run with its mesh, if it has one, and its models divided over it."""
    placement = run.placement
    with one_line(kind=TrainingError):
        mesh = placement.mesh or placement.partitioner.mesh()
        if mesh is None:
            return run
        partitioning.check_batch(run.batch_size // run.micro_batches, mesh)
    layout, divide = Division(mesh), placement.partitioner
    target = None if run.target is None else layout.divided(run.target, divide)
    model = layout.divided(run.model, divide)
    return dataclasses.replace(run, model=model, target=target, placement=placement.over(mesh))


def init(run: TrainRun) -> State:
    """Returns the state before the first step, on the devices of the run."""
    recipe = Recipe.of(run)
    params = run.model.init(jax.random.key(run.seed, impl="threefry2x32"))
    model, begun = run.model, run.initial_path
    if isinstance(begun, Mapping):
        assert isinstance(model, HeadedTarget), "TrainRun asks for it"
        for name, path in begun.items():
            params |= {name: begun_with(params[name], path, model.parts[name].head_ids)}
    elif begun is not None:
        params = begun_with(params, begun, model.head_ids)
    return state_of(recipe.layout.placed(params, recipe.model), recipe)


def state_of(params: PyTree, recipe: Recipe) -> State:
    """Returns the state of parameters that lie on the devices, before the first step."""
    init, step = recipe.optimizer.transformation().init, jnp.zeros([], jnp.int32)
    if recipe.layout.mesh is None:
        return State(params, init(params), step)
    divided = shardings(recipe)
    optimizer = jax.jit(init, out_shardings=divided.optimizer)(params)
    return State(params, optimizer, jax.device_put(step, divided.step))


def abstract_state(recipe: Recipe) -> State:
    """Returns the shapes and dtypes of a state; over a mesh also the shardings."""
    params = recipe.model.parameter_shapes()
    optimizer = jax.eval_shape(recipe.optimizer.transformation().init, params)
    state = State(params, optimizer, jax.ShapeDtypeStruct([], jnp.int32))
    if recipe.layout.mesh is None:
        return state
    return jax.tree.map(lambda leaf, where: leaf.update(sharding=where), state, shardings(recipe))


@functools.lru_cache(maxsize=8)
def shardings(recipe: Recipe) -> State:
    """Returns the sharding of each array of a state; needs a mesh."""
    layout, optimizer = recipe.layout, recipe.optimizer.transformation()
    params = recipe.model.parameter_shapes()
    state = jax.eval_shape(optimizer.init, params)
    divided = layout.like_parameters(state, optimizer, recipe.model)
    return State(layout.shardings(recipe.model), divided, layout.whole)


def train_step(
    state: State,
    pairs: Pairs,
    target_params: PyTree = (),
    reference: PyTree = (),
    *,
    recipe: Recipe,
) -> tuple[State, Sums]:
    """Makes one update by the mean loss per token; the memory of `state` is reused.

    Args:
      state: the state before the update.
      pairs: the batch.
      target_params: the target's parameters, if it is used.
      reference: a reference drafter's parameters, if one is used.
      recipe: the static settings.

    Returns:
      The state after the update, and the sums of the loss.
    """
    return update_program(recipe)(state, pairs, target_params, reference)


@functools.lru_cache(maxsize=8)
def update_program(recipe: Recipe) -> Callable[[State, Pairs, PyTree, PyTree], tuple[State, Sums]]:
    """Returns the jitted function (state, pairs, target_params, reference) -> (state, sums)."""
    divided = None
    if (layout := recipe.layout).mesh is not None:
        divided = shardings(recipe), partitioning.whole(layout.mesh)
    return jax.jit(
        functools.partial(_update, recipe=recipe), donate_argnums=0, out_shardings=divided
    )


def _update(
    state: State, pairs: Pairs, target_params: PyTree, reference: PyTree, *, recipe: Recipe
) -> tuple[State, Sums]:
    gradient, sums = _gradient(state, pairs, recipe.frozen(target_params, reference), recipe)
    return applied(state, gradient, recipe=recipe), sums


def applied(state: State, gradient: PyTree, *, recipe: Recipe) -> State:
    """Returns the state after an update by a gradient; the second half of `train_step`."""
    optimizer = recipe.optimizer.transformation()
    updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
    if isinstance(recipe.model, HeadedTarget):
        updates = recipe.model.at_rates(updates)
    params = optax.apply_updates(state.params, updates)
    return State(params, optimizer_state, state.step + 1)


def _gradient(
    state: State, pairs: Pairs, frozen: Frozen | None, recipe: Recipe
) -> tuple[PyTree, Sums]:
    """Returns the gradient of the mean loss per token, and the sums of the loss."""
    key = jax.random.fold_in(jax.random.key(recipe.seed, impl="threefry2x32"), state.step)
    progress, count = state.step / recipe.steps, recipe.micro_batches

    def loss(params: PyTree, pairs: Pairs, key: Array) -> tuple[Array, Sums]:
        with rematerialised(recipe.rematerialise):
            sums = recipe.objective.loss(recipe.model, params, frozen, pairs, key, progress)
        return sums.loss / (jnp.maximum(sums.tokens, 1) if count == 1 else 1), sums

    gradient_of = jax.grad(loss, has_aux=True)
    if count == 1:
        return gradient_of(state.params, pairs, key)

    def add(total: PyTree, part: tuple[Pairs, Array]) -> tuple[PyTree, None]:
        pairs, number = part
        gradients = gradient_of(state.params, pairs, jax.random.fold_in(key, number))
        gradient, sums = jax.tree.map(jnp.add, total, gradients)
        return (recipe.layout.kept(gradient, recipe.model), sums), None

    nothing = Sums(jnp.float32(0), jnp.int32(0), jnp.int32(0))
    begun = jax.tree.map(jnp.zeros_like, state.params), nothing
    parts = micro_batches(pairs, count), jnp.arange(count)
    (gradient, sums), _ = jax.lax.scan(add, begun, parts)
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(sums.tokens, 1), gradient), sums


@functools.partial(jax.jit, static_argnames="recipe")
def evaluate_step(
    params: PyTree, pairs: Pairs, target_params: PyTree = (), *, recipe: Recipe
) -> Sums:
    """Returns the objective's sums of an evaluation batch: loss without smoothing, and accuracy."""
    sums = recipe.objective.measure(recipe.model, params, recipe.frozen(target_params), pairs)
    return recipe.layout.replicated(sums)
