"""A cache catches up with a text: pytest tests/drafters/test_feeding.py"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from specdec.drafters import feeding
from specdec.drafters.feeding import catch_up
from specdec.types import Array

SLOTS, WIDTH = 12, 3
TOKENS = 10 * jnp.arange(1, 4)[:, None] + jnp.arange(SLOTS)[None]
HIDDEN = TOKENS[..., None] / 8
NEVER = -1.0


class Fed(struct.PyTreeNode):
    """A cache that keeps the token last written to each slot, and counts the calls."""

    length: Array  # [B] int32
    slots: Array  # [B, SLOTS] float32, `NEVER` where nothing was
    calls: Array  # [] int32

    def rewind(self, length: Array) -> Fed:
        return self.replace(length=length)


class Remembering:
    """A model whose cache remembers what it was fed: tokens, or the target's states of them."""

    def decode(
        self, params: Any, tokens: Array, cache: Fed, states: Array | None = None
    ) -> tuple[None, Fed]:
        fed = tokens.astype(jnp.float32) if states is None else states[..., 0]
        write = jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice(row, new, (at,)))
        slots = write(cache.slots, fed, cache.length)
        length = cache.length + tokens.shape[1]
        return None, Fed(length, slots, cache.calls + 1)


def test_no_call_is_made_after_the_last_missing_token(monkeypatch):
    """The loop runs in Python, and is refused a third call."""

    def at_most_two(more, body, cache):
        for _ in range(2):
            cache = body(cache) if more(cache) else cache
        assert not more(cache)
        return cache

    monkeypatch.setattr(feeding.loops, "while_loop", at_most_two)
    cache: Any = Fed(jnp.array([2, 5, 9]), jnp.full([3, SLOTS], NEVER), jnp.int32(0))
    model: Any = Remembering()
    found: Any = catch_up(model, {}, TOKENS, cache, until=jnp.array([7, 7, 4]), width=WIDTH)
    assert found.length.tolist() == [7, 7, 4] and found.calls == 2


@pytest.mark.parametrize("hidden", [None, HIDDEN])
@pytest.mark.parametrize(
    ("length", "until", "calls"),
    [
        ([2, 5, 9], [7, 7, 4], 2),  # two calls for one row, one for the next; one is too long
        ([0, 0, 0], [1, 3, 0], 1),
        ([7, 3, 4], [7, 3, 1], 0),
    ],
)
def test_every_slot_below_the_bound_is_filled_once(hidden, length, until, calls):
    cache = Fed(jnp.array(length), jnp.full([3, SLOTS], NEVER), jnp.int32(0))
    model: Any = Remembering()
    given = {"until": jnp.array(until), "width": WIDTH, "hidden": hidden}
    found: Any = catch_up(model, {}, TOKENS, cache, **given)
    assert found.length.tolist() == until and found.calls == calls
    text = TOKENS if hidden is None else HIDDEN[..., 0]
    for row, (first, bound) in enumerate(zip(length, until, strict=True)):
        np.testing.assert_array_equal(found.slots[row, first:bound], text[row, first:bound])
        assert np.all(found.slots[row, : min(first, bound)] == NEVER), "known tokens are not fed"
