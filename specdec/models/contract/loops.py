"""Loops whose state contains KV caches.

At batch 1, XLA removes the axis of rows inside attention. If a loop carries keys and values with
this axis, XLA's CPU compiler writes a cache twice, once in each form, and copies it three times.
So these loops carry the arrays of one row without the axis, and add it for the caller's functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from specdec.models.contract.cache import KVCache
from specdec.types import Array, PyTree

T = TypeVar("T")


def while_loop(goes_on: Callable[[T], Array], body: Callable[[T], T], state: T) -> T:
    """Returns the result of `jax.lax.while_loop`, for a state with caches."""

    @functools.wraps(body)
    def advance(carried: PyTree) -> PyTree:
        return _carried(body(_used(carried)))

    return _used(jax.lax.while_loop(lambda loop: goes_on(_used(loop)), advance, _carried(state)))


def scan(
    body: Callable[[T, PyTree], tuple[T, PyTree]],
    state: T,
    items: PyTree = None,
    length: int | None = None,
) -> tuple[T, PyTree]:
    """Returns the result of `jax.lax.scan`, for a state with caches."""

    @functools.wraps(body)
    def advance(carried: PyTree, item: PyTree) -> tuple[PyTree, PyTree]:
        state, result = body(_used(carried), item)
        return _carried(state), result

    carried, results = jax.lax.scan(advance, _carried(state), items, length)
    return _used(carried), results


def at_most_once(if_so: Array, body: Callable[[T], T], state: T) -> T:
    """Returns `body` of the state if `if_so` [], else the state.

    It is a loop, because a `jax.lax.cond` copies caches.
    """

    @functools.wraps(body)
    def once(loop: tuple[Array, T]) -> tuple[Array, T]:
        return jnp.bool_(False), body(loop[1])

    return while_loop(lambda loop: loop[0], once, (if_so, state))[1]


def _carried(tree: PyTree) -> PyTree:
    return _changed(KVCache.as_carried, tree)


def _used(tree: PyTree) -> PyTree:
    return _changed(KVCache.as_used, tree)


def _changed(change: Callable[[KVCache], KVCache], tree: PyTree) -> PyTree:
    def of(leaf: PyTree) -> PyTree:
        return change(leaf) if isinstance(leaf, KVCache) else leaf

    return jax.tree.map(of, tree, is_leaf=lambda leaf: isinstance(leaf, KVCache))
