"""Rows of a running batch that get new texts."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specdec.types import Array, DecodeState, PyTree


class Refills(NamedTuple):
    """R texts for rows of a batch that are finished.

    A program has one R. With fewer texts than R, the others are not `live`: their rows stay
    finished.
    """

    rows: Array  # [R] int32, different rows of the batch
    keys: Array  # [R] the texts' random keys
    inputs: PyTree  # of R rows
    live: Array  # [R] bool
    left: Array  # [] int32, the number of unfinished rows to stop at


def vacant(shapes: DecodeState) -> DecodeState:
    """Returns a state in which every row is finished.

    Args:
      shapes: the shapes and dtypes of the state.
    """

    def zeros(leaf: jax.ShapeDtypeStruct) -> Array:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.zeros(leaf.shape, leaf.dtype)
        return jax.random.split(jax.random.key(0, impl="threefry2x32"), leaf.shape)

    state = jax.tree.map(zeros, shapes)
    return state.replace(length=jnp.ones_like(state.length))


def replaced(state: DecodeState, new: DecodeState, rows: Array) -> DecodeState:
    """Returns the state with some rows replaced by the rows of another state, in place.

    The number of target calls is that of the whole batch, and goes on.

    Args:
      state: the state of B rows.
      new: the state of R rows.
      rows: [R], the rows that are replaced.

    Raises:
      ValueError: an array has no rows.
    """
    new = new.replace(trace=new.trace.replace(steps=()))
    old = state.replace(trace=state.trace.replace(steps=()))
    _check_rows(old, new, len(state.length), len(rows))

    def put(index: Array, state: DecodeState) -> DecodeState:
        def put_row(old: Array, new: Array) -> Array:
            row = jax.lax.dynamic_slice_in_dim(new, index, 1)
            return jax.lax.dynamic_update_slice_in_dim(old, row, rows[index], 0)

        return jax.tree.map(put_row, state, new)

    state_of_rows = jax.lax.fori_loop(0, len(rows), put, old)
    return state_of_rows.replace(trace=state_of_rows.trace.replace(steps=state.trace.steps))


def _check_rows(old: DecodeState, new: DecodeState, batch: int, count: int) -> None:
    """Raises ValueError unless each array has B rows in one state and R in the other."""
    leaves = jax.tree_util.tree_leaves_with_path(old)
    for (path, of_old), of_new in zip(leaves, jax.tree.leaves(new), strict=True):
        if of_old.shape[:1] != (batch,) or of_new.shape != (count, *of_old.shape[1:]):
            raise ValueError(
                f"the state{jax.tree_util.keystr(path)} is {of_old.dtype}{list(of_old.shape)} for "
                f"{batch} rows, so that rows cannot be refilled; leave out REFILL, or let its "
                "first axis be the rows"
            )
