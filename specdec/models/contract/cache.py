"""The functional KV cache.

K/V is valid for positions < length. Later slots are garbage: a reader masks them, and the next
write overwrites them. Rolling back rejected tokens therefore changes one integer per row:

  slots     0   1   2   3   4   5   6          a, b committed; x, y, z rejected
  holds     a   b   x   y   z   .   .
  length    2                                  rewind(2): x, y, z stay, and are masked
  write     a   b   c   d   .   .   .          the next block goes over them
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from specdec.models.contract import blocks
from specdec.models.contract.blocks import View
from specdec.models.layers.layers import constrain
from specdec.types import Array, AxisRules

Self = TypeVar("Self", bound="KVCache")

# Up to this number, rows are written one by one, in place; more rows in a loop. One write of all is
# a scatter, for which a TPU's compiler copies each cache to another layout and back.
ONE_BY_ONE = 16


class KVCache(struct.PyTreeNode):
    """A decoder's attention keys and values, one array per layer, and any encoder output.

    Arrays are never stacked over layers: slicing a stacked array inside a loop copies it. Heads
    come before slots, so that a step's attention reads each head's rows in place. On a CPU this is
    7 times faster than slots first. A loop that carries a cache is one of
    `specdec.models.contract.loops`, so that no array is copied there.
    """

    keys: tuple[Array, ...]  # each [B, H, C, head_dim]
    values: tuple[Array, ...]  # each [B, H, C, head_dim]
    length: Array  # [B] int32
    encoded: Array = struct.field(default=())  # [B, S, D] the encoder's output
    inputs_mask: Array = struct.field(default=())  # [B, S] bool, True where the input is a token
    cross_keys: tuple[Array, ...] = ()  # each [B, H, head_dim, S], computed once; see `sharing`
    cross_values: tuple[Array, ...] = ()  # each [B, H, S, head_dim]
    axis_rules: Any = struct.field(pytree_node=False, default=())  # of the model, AxisRules
    # Slots after `capacity`, for the tokens that are added to a call by `Target.computed_width`.
    spare: int = struct.field(pytree_node=False, default=0)

    @classmethod
    def create(
        cls: type[Self],
        batch: int,
        capacity: int,
        *,
        layers: int,
        heads: int,
        head_dim: int,
        dtype,
        **others,
    ) -> Self:
        """Returns an empty cache of B rows with C slots each; `others` are further fields."""
        shape = (batch, heads, capacity, head_dim)
        cache = cls(
            keys=tuple(jnp.zeros(shape, dtype) for _ in range(layers)),
            values=tuple(jnp.zeros(shape, dtype) for _ in range(layers)),
            length=jnp.zeros([batch], jnp.int32),
            axis_rules=tuple(nn.get_logical_axis_rules()),
            **others,
        )
        return cache.placed()

    @property
    def slot_count(self) -> int:
        """The number of slots of each row's arrays."""
        return self.keys[0].shape[2]

    @property
    def capacity(self) -> int:
        """C, the number of slots of each row that hold a text."""
        return self.slot_count - self.spare

    def view(self, width: int, ancestors: Array | View | None = None) -> View:
        """Returns the `View` of the next `width` tokens; a given one is extended to spare slots."""
        if isinstance(ancestors, View) and self.spare:
            return blocks.widened(ancestors, self.slot_count)
        return blocks.view(self.length, self.slot_count, width, ancestors)

    def slots(self, positions: Array) -> Array:
        """Returns [B] int32, the slots of the positions [B]; here both are the same numbers."""
        return positions

    def write(self: Self, layer: int, key: Array, value: Array) -> Self:
        """Overwrites the slots from that of `length` on with keys and values [B, T, H, head_dim].

        The length does not change: every layer of one call writes to the same slots. The caller
        must ensure length + T <= capacity, because `dynamic_update_slice` silently shifts a write
        beyond the end.

        NaN and infinity are written as 0. A masked slot has weight 0, and 0 times NaN is NaN, so a
        rejected token would spoil a text that does not contain it. A token of the text shows its
        NaN in its own logits.
        """
        key, value = (jnp.where(jnp.isfinite(x), x, 0) for x in (key, value))
        keys, values = list(self.keys), list(self.values)
        start = self.slots(self.length)
        keys[layer] = _placed(write_rows(keys[layer], key, start, _placed))
        values[layer] = _placed(write_rows(values[layer], value, start, _placed))
        return self.replace(keys=tuple(keys), values=tuple(values))

    def placed(self: Self) -> Self:
        """Returns the cache with the sharding and the memory layout that all programs use.

        Over a mesh, keys and values are divided by rows and heads. On a TPU, slots come last in
        memory, where the 64 numbers of a head would be padded to 128. Without a fixed layout, a
        TPU's compiler chooses one for each block width, and copies the arrays between them in every
        loop.
        """
        names = ("keys", "values", "cross_values")
        placed = {name: tuple(map(_placed, getattr(self, name))) for name in names}
        axes = ("batch", "heads", "kv", "length")
        cross = (constrain(keys, *axes, tpu_order=(0, 1, 2, 3)) for keys in self.cross_keys)
        return self.replace(**placed, cross_keys=tuple(cross))

    def as_carried(self: Self) -> Self:
        """Returns the cache as `loops` carry it: the arrays of one row are [H, C, head_dim]."""
        if self.length.shape[0] != 1:
            return self
        return self._arrays(lambda array: _placed_row(array[0]))

    def as_used(self: Self) -> Self:
        """Returns the cache with the axis of rows that `as_carried` removes."""
        if self.length.shape[0] != 1:
            return self
        return self._arrays(lambda array: _placed(array[None]))

    def _arrays(self: Self, change: Callable[[Array], Array]) -> Self:
        with nn.logical_axis_rules(self.axis_rules):
            keys, values = (tuple(map(change, of)) for of in (self.keys, self.values))
        return self.replace(keys=keys, values=values)

    def sharing(self: Self, inputs: Self) -> Self:
        """Returns this cache of B * T rows with the cross-attention arrays of the cache `inputs`,
        which has B rows; T rows read each of them."""
        names = ("inputs_mask", "cross_keys", "cross_values") if inputs.cross_keys else ()
        return self.replace(**{name: getattr(inputs, name) for name in names})

    def keep(self: Self, start: Array, offsets: Array, width: int) -> Self:
        """Copies the slots at positions start + offsets [B, K] to the K slots from `start` [B] on.

        Offsets are below `width`. Only `width` slots are read, because a TPU's compiler would copy
        a whole array to another layout. The length does not change. The caller must ensure start +
        width <= capacity.
        """

        def moved(array: Array) -> Array:
            return _placed(moved_rows(array, start, offsets, width))

        start = self.slots(start)
        return self._arrays(moved)

    def rewind(self: Self, length: Array) -> Self:
        """Returns the cache with `length` [B]; the slots from there on become garbage."""
        return self.replace(length=length.astype(jnp.int32))


class PromptCache(KVCache):
    """The keys and values of prompts, and of the outputs after them.

    One array of keys and values per layer holds the prompt and then the output, without a hole.
    The prompt's last token is the start token. It has position 0 of the decoder input, so that the
    length and the capacity of a cache are the output's alone:

      slots      0   1   2   3   4   5   6   7       prompts "a b c d" and "e f", output "x y"
      row 0      a   b   c   d   x   y   .   .       base 3
      row 1      e   f   x   y   .   .   .   .       base 1

    Prompts are padded at the end. Entries of the padding lie after the prompt, where they are
    masked until the output overwrites them. So no mask is stored.
    """

    # [B] int32, the tokens of each prompt before its last one
    base: Array = struct.field(default=())
    # The largest base that there is room for: the arrays have as many slots more than `capacity`.
    room: int = struct.field(pytree_node=False, default=0)

    @property
    def capacity(self) -> int:
        """C, the number of slots of each row's output, with its start token."""
        return super().capacity - self.room

    def slots(self, positions: Array) -> Array:
        """Returns [B] int32, the slots that hold these positions [B]."""
        return self.base + positions

    def view(self, width: int, ancestors: Array | View | None = None) -> View:
        """Returns the `View` of the next `width` tokens; a given `View` is one of outputs alone."""
        slots = self.slot_count
        if not isinstance(ancestors, View):
            return blocks.view(self.slots(self.length), slots, width, ancestors)
        position = jnp.arange(slots, dtype=jnp.int32)[None] - self.base[:, None]
        inside = (position >= 0) & (position < self.capacity)
        index = jnp.clip(position, 0, self.capacity - 1)[:, None]
        seen = inside[:, None] & jnp.take_along_axis(ancestors.visible, index, axis=2)
        queries = ancestors.queries + self.base[:, None]
        return View(queries, jnp.arange(slots)[None], seen | (position < 0)[:, None])


class NoKeys(struct.PyTreeNode):
    """A cache that holds only its length."""

    length: Array  # [B] int32
    capacity: int = struct.field(pytree_node=False)  # C

    def rewind(self, length: Array) -> NoKeys:
        return self.replace(length=length.astype(jnp.int32))

    def keep(self, start: Array, offsets: Array, width: int) -> NoKeys:
        """Returns the cache unchanged, as there is nothing to copy."""
        return self


def kv_bytes(
    shape: tuple[int, int, int, int],
    dtype: str,
    axis_rules: AxisRules,
    mesh: Mapping[str, int] | None,
) -> int:
    """Returns the bytes of one layer's keys and values [B, H, C, head_dim] on one device of a mesh,
    which is given by the sizes of its axes."""
    over = dict(reversed(axis_rules))  # of two rules for an axis the first one counts
    rows, heads, *rest = shape
    rows //= (mesh or {}).get(over.get("batch") or "", 1)
    heads //= (mesh or {}).get(over.get("heads") or "", 1)
    return 2 * math.prod((rows, heads, *rest)) * jnp.dtype(dtype).itemsize


def _divided(axis: str) -> bool:
    """Returns whether a logical axis is divided over the current mesh."""
    mesh, over = jax.sharding.get_abstract_mesh(), dict(reversed(nn.get_logical_axis_rules()))
    return mesh.shape.get(over.get(axis) or "", 1) > 1


def _placed(array: Array) -> Array:
    return constrain(array, "batch", "heads", "length", "kv", tpu_order=(0, 1, 3, 2))


def _placed_row(array: Array) -> Array:
    return constrain(array, "heads", "length", "kv", tpu_order=(0, 2, 1))


def write_rows(
    array: Array, block: Array, start: Array, put: Callable[[Array], Array] = lambda x: x
) -> Array:
    """Writes array[b, :, start[b]:start[b]+T] = block[b], for [B, H, C, E] and [B, T, H, E].

    `put` returns the array in its memory layout, which a loop over rows must keep.
    """
    block = block.swapaxes(1, 2).astype(array.dtype)
    if not _one_by_one(array):
        loop = functools.partial(_written_in_a_loop, place=put)
        return _on_tpus(loop, _written_together, array, block, start)
    zero = jnp.zeros([], start.dtype)
    if array.shape[0] == 1:  # without the axis of rows, see `loops`
        return jax.lax.dynamic_update_slice(array[0], block[0], (zero, start[0], zero))[None]
    for row in range(array.shape[0]):
        at = (zero + row, zero, start[row], zero)
        array = jax.lax.dynamic_update_slice(array, block[row : row + 1], at)
    return array


def moved_rows(array: Array, start: Array, offsets: Array, width: int) -> Array:
    """Writes array[b, :, start[b]+k] = array[b, :, start[b]+offsets[b, k]] of [B, H, C, E].

    Offsets [B, K] are below `width`, the number of slots that are read.
    """
    if not _one_by_one(array):
        loop = functools.partial(_moved_in_a_loop, width=width)
        together = functools.partial(_moved_together, width=width)
        return _on_tpus(loop, together, array, start, offsets)
    slots = zip(array, start, strict=True)
    rows = [jax.lax.dynamic_slice_in_dim(row, first, width, axis=1) for row, first in slots]
    return _with_kept(array, jnp.stack(rows), start, offsets)


def _one_by_one(array: Array) -> bool:
    """Whether the rows of a cache are read and written one after the other."""
    return array.shape[0] <= ONE_BY_ONE and not _divided("batch")


def _on_tpus(loop: Callable[..., Array], together: Callable[..., Array], *arrays: Array) -> Array:
    """Calls `loop` on a TPU, if rows are not divided over devices, and otherwise `together`."""
    if _divided("batch"):
        return together(*arrays)
    return jax.lax.platform_dependent(*arrays, tpu=loop, default=together)


def _written_together(array: Array, block: Array, start: Array) -> Array:
    zero = jnp.zeros([], start.dtype)
    update = jax.vmap(lambda a, b, s: jax.lax.dynamic_update_slice(a, b, (zero, s, zero)))
    return update(array, block, start)


def _written_in_a_loop(
    array: Array, block: Array, start: Array, place: Callable[[Array], Array]
) -> Array:
    zero = jnp.zeros([], start.dtype)

    def put(array: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, None]:
        row, update, first = inputs
        array = jax.lax.dynamic_update_slice(array, update[None], (row, zero, first, zero))
        return place(array), None

    rows = jnp.arange(array.shape[0], dtype=start.dtype)
    return jax.lax.scan(put, place(array), (rows, block, start))[0]


def _moved_together(array: Array, start: Array, offsets: Array, width: int) -> Array:
    read = jax.vmap(lambda row, first: jax.lax.dynamic_slice_in_dim(row, first, width, axis=1))
    return _with_kept(array, read(array, start), start, offsets)


def _with_kept(array: Array, block: Array, start: Array, offsets: Array) -> Array:
    block = jnp.take_along_axis(block, offsets[:, None, :, None], axis=2)
    return write_rows(array, block.swapaxes(1, 2), start, _placed)


def _moved_in_a_loop(array: Array, start: Array, offsets: Array, width: int) -> Array:
    """Moves slots row by row; the loop also writes, as one that only reads copies the array."""

    def move(array: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, None]:
        row, first, slots = inputs
        zero = jnp.zeros([], start.dtype)
        _, heads, _, size = array.shape
        block = jax.lax.dynamic_slice(array, (row, zero, first, zero), (1, heads, width, size))
        block = jnp.take(block, slots, axis=2)
        return _placed(jax.lax.dynamic_update_slice(array, block, (row, zero, first, zero))), None

    rows = jnp.arange(array.shape[0], dtype=start.dtype)
    return jax.lax.scan(move, _placed(array), (rows, start, offsets))[0]
