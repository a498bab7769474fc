"""What a model begins with that another one has: table, head and layers of its target."""

from __future__ import annotations

import os
from typing import Any

import jax.numpy as jnp
from flax import traverse_util

from specdec import checkpoints
from specdec.training.errors import TrainingError
from specdec.types import Array, PyTree


def begun_with(params: PyTree, path: str | os.PathLike) -> PyTree:
    """Parameters with the arrays of a checkpoint in the place of those of the same name and shape.

    Vocabularies may have different sizes: what both have is taken. So a shallow decoder of its
    target's width begins with the target's first layers.

    Raises:
      TrainingError: nothing of it fits.
      checkpoints.CheckpointError: there is no checkpoint that can be read.
    """
    own: dict[tuple[str, ...], Any] = dict(traverse_util.flatten_dict(params))
    others: dict[tuple[str, ...], Any] = dict(traverse_util.flatten_dict(checkpoints.load(path)))
    taken = {
        name: _with_shared(leaf, others[name], name) for name, leaf in own.items() if name in others
    }
    if not any(taken[name] is not own[name] for name in taken):
        raise TrainingError(
            f"nothing of {path} has the shape of the model that is trained; give a model as wide, "
            "or do not begin with that checkpoint"
        )
    return traverse_util.unflatten_dict(own | taken)


def _with_shared(own: Array, other: Array, name: tuple[str, ...]) -> Array:
    """What both have, along the axis of a vocabulary too; `own` itself if the shapes are others."""
    if own.shape == other.shape:
        return jnp.asarray(other, own.dtype)
    axis = {"token_embedder": 0, "logits_dense": 1}.get(name[-2])
    rest = [i for i in range(own.ndim) if i != axis]
    if axis is None or any(own.shape[i] != other.shape[i] for i in rest):
        return own
    both = tuple(slice(min(sizes)) for sizes in zip(own.shape, other.shape, strict=True))
    return own.at[both].set(jnp.asarray(other[both], own.dtype))
