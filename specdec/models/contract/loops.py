"""Loops that carry caches.

XLA divides an array of one row into heads for attention by leaving out the axis of rows. In a loop
that carries the array with that axis, its CPU compiler writes a cache twice, once in each form, and
copies it three times. So these loops carry the keys and values of one row without the axis, and
their functions see it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from specdec.models.contract.cache import KVCache
from specdec.types import PyTree

T = TypeVar("T")


def while_loop(goes_on: Callable[[T], Any], body: Callable[[T], T], state: T) -> T:
    """Returns the result of `jax.lax.while_loop`; any caches are in `state`."""

    @functools.wraps(body)
    def advance(carried: PyTree) -> PyTree:
        return _carried(body(_whole(carried)))

    return _whole(jax.lax.while_loop(lambda x: goes_on(_whole(x)), advance, _carried(state)))


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]], state: T, given: PyTree = None, **options: Any
) -> tuple[T, Any]:
    """Returns the result of `jax.lax.scan`; any caches are in `state`."""

    @functools.wraps(body)
    def advance(carried: PyTree, given: PyTree) -> tuple[PyTree, PyTree]:
        carried, found = body(_whole(carried), given)
        return _carried(carried), found

    carried, found = jax.lax.scan(advance, _carried(state), given, **options)
    return _whole(carried), found


def at_most_once(if_so: jax.Array, body: Callable[[T], T], state: T) -> T:
    """Returns `body` of the state if `if_so` [], else the state; a `jax.lax.cond` copies caches."""

    @functools.wraps(body)
    def once(loop: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
        return jax.numpy.bool_(False), body(loop[1])

    return while_loop(lambda loop: loop[0], once, (if_so, state))[1]


def _carried(tree: PyTree) -> PyTree:
    return _mapped(KVCache.as_carried, tree)


def _whole(tree: PyTree) -> PyTree:
    return _mapped(KVCache.as_used, tree)


def _mapped(change: Callable[[KVCache], KVCache], tree: PyTree) -> PyTree:
    def changed(leaf: Any) -> Any:
        return change(leaf) if isinstance(leaf, KVCache) else leaf

    return jax.tree.map(changed, tree, is_leaf=lambda leaf: isinstance(leaf, KVCache))
