"""Initial parameters that are taken from another model: table, head and layers of the target."""

from __future__ import annotations

import os

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from specdec import checkpoints
from specdec.training.training_error import TrainingError
from specdec.types import Array, PyTree


def begun_with(
    params: PyTree, path: str | os.PathLike, head_ids: tuple[int, ...] | None = None
) -> PyTree:
    """Returns parameters with those arrays of a checkpoint that have the same name and shape.

    Vocabularies, and the ids of heads, may differ: shared ids are taken. A shallow decoder of its
    target's width therefore begins with the target's first layers.
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
            f"nothing of {path} has the shape of the model that is trained; give a model as wide, "
            "or do not begin with that checkpoint"
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
