"""Changes the rows of a state: new texts, several samples of a text, longer inputs."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from specdec.models.contract.cache import KVCache
from specdec.types import Array, DecodeState, PyTree

UNROLLED = 16  # rows that are replaced without a loop


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

    `trace.steps`, which counts the iterations of the whole batch, does not change.
    """
    new = new.replace(trace=new.trace.replace(steps=()))
    old = state.replace(trace=state.trace.replace(steps=()))
    _check_rows(old, new, len(state.length), len(rows))

    def put(index: Array, state: DecodeState) -> DecodeState:
        def put_row(old: Array, new: Array) -> Array:
            row = jax.lax.dynamic_slice_in_dim(new, index, 1)
            return jax.lax.dynamic_update_slice_in_dim(old, row, rows[index], 0)

        return jax.tree.map(put_row, state, new)

    # A TPU's compiler copies the state of a loop to another layout. Unrolled, there is no loop.
    state_of_rows = jax.lax.fori_loop(0, len(rows), put, old, unroll=min(len(rows), UNROLLED))
    return state_of_rows.replace(trace=state_of_rows.trace.replace(steps=state.trace.steps))


def repeated(state: DecodeState, times: int, *, shared: bool = True) -> DecodeState:
    """Returns the state with `times` adjacent copies of each row."""
    if times == 1:
        return state
    rows = state.replace(trace=state.trace.replace(steps=()))
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
        if leaf.shape[:1] != state.length.shape:
            raise ValueError(
                f"{_said(path, leaf, len(state.length))}, so that several samples of a text cannot "
                "be decoded together; give SAMPLES_TOGETHER = 1, or let its first axis be the rows"
            )

    def repeat(node: PyTree) -> PyTree:
        copies = jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), node)
        return copies.sharing(node) if shared and isinstance(node, KVCache) else copies

    rows = jax.tree.map(repeat, rows, is_leaf=lambda node: isinstance(node, KVCache))
    return rows.replace(trace=rows.trace.replace(steps=state.trace.steps))


def widened(new: DecodeState, shapes: DecodeState, pad_id: int) -> DecodeState:
    """Returns the state of rows with short inputs, padded to the shapes for longer inputs.

    Added elements are masked, or will be overwritten.

    Args:
      new: the state after a prefill.
      shapes: the state of a batch, of any number of rows, with longer inputs.
      pad_id: the id that inputs are padded with.
    """

    def pad(x: Array, like: Array, fill: int = 0) -> Array:
        more = [(0, 0), *((0, n - m) for m, n in zip(x.shape[1:], like.shape[1:], strict=True))]
        return x if not any(map(any, more)) else jnp.pad(x, more, constant_values=fill)

    inputs = jax.tree.map(functools.partial(pad, fill=pad_id), new.inputs, shapes.inputs)
    # The pytrees differ in the static sizes of a cache.
    leaves, (wide, tree) = jax.tree.leaves(new), jax.tree.flatten(shapes)
    rows = [pad(x, like) if like.shape else x for x, like in zip(leaves, wide, strict=True)]
    return jax.tree.unflatten(tree, rows).replace(inputs=inputs)


def _check_rows(old: DecodeState, new: DecodeState, batch: int, count: int) -> None:
    """Raises ValueError unless arrays have `batch` rows in one state and `count` in the other."""
    leaves = jax.tree_util.tree_leaves_with_path(old)
    for (path, of_old), of_new in zip(leaves, jax.tree.leaves(new), strict=True):
        if of_old.shape[:1] != (batch,) or of_new.shape != (count, *of_old.shape[1:]):
            raise ValueError(
                f"{_said(path, of_old, batch)}, so that rows cannot be refilled; leave out REFILL, "
                "or let its first axis be the rows"
            )


def _said(path: tuple, leaf: Array, rows: int) -> str:
    return (
        f"the state{jax.tree_util.keystr(path)} is {leaf.dtype}{list(leaf.shape)} for {rows} rows"
    )
