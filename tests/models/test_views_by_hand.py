"""Arrangements of tokens, sums of rows, and what is computed in parts: pytest tests/models"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import SMALL_LOGITS

from specdec.models.contract import cache, loops
from specdec.models.contract.blocks import View, filled_up, view, widened
from specdec.models.contract.cache import KVCache, PromptCache
from specdec.models.layers import attention, rowwise
from specdec.models.layers.attention import attend, attend_to_all

TREE = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], bool)  # two tokens follow the first


def test_a_block_is_filled_up_with_tokens_that_see_themselves():
    expected = np.array(
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]], bool
    )
    assert filled_up(None, 2) is None
    np.testing.assert_array_equal(filled_up(TREE, 2), expected)
    both = filled_up(np.stack([TREE, np.tri(3, dtype=bool)]), 2)
    np.testing.assert_array_equal(both[0], expected)
    np.testing.assert_array_equal(both[1, :3, :3], np.tri(3))
    np.testing.assert_array_equal(both[1, 3:], expected[3:])
    assert both.shape == (2, 5, 5) and both.dtype == bool


def test_a_view_is_filled_up_with_its_last_token():
    visible = np.array([[[1, 0, 0, 1], [1, 1, 0, 0]], [[0, 0, 1, 0], [0, 1, 0, 1]]], bool)
    given = View(jnp.array([[4, 5], [7, 6]]), jnp.array([[0, 1, 2, 3]]), jnp.array(visible))
    found = filled_up(given, 2)
    assert found.queries.tolist() == [[4, 5, 5, 5], [7, 6, 6, 6]]
    assert found.keys.tolist() == [[0, 1, 2, 3]]
    for row in range(2):
        assert found.visible[row].tolist() == [
            *visible[row].tolist(),
            *[visible[row, 1].tolist()] * 2,
        ]


def test_a_view_is_widened_by_slots_that_no_token_sees():
    visible = np.array([[[1, 0, 1], [0, 1, 1]]], bool)
    given = View(jnp.array([[4, 5]]), jnp.array([[7, 8, 9]]), jnp.array(visible))
    found = widened(given, 5)
    assert found.queries.tolist() == [[4, 5]] and found.keys.tolist() == [[7, 8, 9, 0, 0]]
    expected = [[True, False, True, False, False], [False, True, True, False, False]]
    assert found.visible.tolist() == [expected]


def test_positions_and_slots_of_a_tree():
    found = view(jnp.array([2, 1]), 6, 3, TREE)
    assert found.queries.tolist() == [[2, 3, 3], [1, 2, 2]]
    assert found.keys.tolist() == [[0, 1, 2, 3, 3, 5], [0, 1, 2, 2, 4, 5]]
    for row, before in enumerate((2, 1)):
        expected = np.zeros([3, 6], bool)
        expected[:, :before] = True
        expected[:, before : before + 3] = TREE
        np.testing.assert_array_equal(found.visible[row], expected)
    text = view(jnp.array([2, 1]), 6, 2)
    assert text.queries.tolist() == [[2, 3], [1, 2]] and text.keys.tolist() == [[*range(6)]]
    assert text.visible.sum(axis=2).tolist() == [[3, 4], [2, 3]]
    assert view(jnp.array([2]), 6, 2, found) is found


OF_ONE_LAYER = {"layers": 1, "heads": 1, "head_dim": 1, "dtype": "float32"}


def test_the_view_of_a_cache_with_spare_slots():
    """A text sees none of them, as they come after it."""
    visible = jnp.array([[[1, 0, 1]]], bool)
    given = View(jnp.array([[2]]), jnp.array([[0, 1, 2]]), visible)
    for spare in (0, 2):
        empty = KVCache.create(1, 3 + spare, **OF_ONE_LAYER, spare=spare)
        assert empty.view(1, given).visible.tolist() == [[[True, False, True, *[False] * spare]]]
        assert empty.view(2).queries.tolist() == [[0, 1]]
        assert empty.view(2).visible.sum(axis=2).tolist() == [[1, 2]]


def test_the_view_of_outputs_lies_behind_each_prompt():
    """Prompts of three tokens and of one; four slots of outputs, and none behind them is seen."""
    empty = PromptCache.create(2, 7, **OF_ONE_LAYER, base=jnp.array([3, 1]), room=3)
    visible = jnp.array([[[1, 0, 1, 1]], [[1, 1, 0, 1]]], bool)
    found = empty.view(1, View(jnp.array([[2], [1]]), jnp.arange(4)[None], visible))
    assert found.queries.tolist() == [[5], [2]] and found.keys.tolist() == [[*range(7)]]
    assert found.visible.astype(int).tolist() == [[[1, 1, 1, 1, 0, 1, 1]], [[1, 1, 1, 0, 1, 0, 0]]]


@pytest.mark.parametrize("asked", [False, True])
def test_what_is_asked_for_is_done_once(monkeypatch, asked):
    def while_loop(goes_on, body, state):
        rounds = 0
        while goes_on(state):
            state, rounds = body(state), rounds + 1
            assert rounds < 3, "it goes on"
        return state

    monkeypatch.setattr(loops, "while_loop", while_loop)
    assert loops.at_most_once(jnp.bool_(asked), lambda x: 2 * x, 5) == (10 if asked else 5)


@pytest.mark.parametrize("shape", [(1, 5), (2, 3, 5), (32, 4), (33, 4), (2, 40, 3), (3,)])
def test_sums_of_rows_of_any_number(shape):
    given = np.random.default_rng(0).integers(-50, 50, shape).astype(np.float32)
    found = rowwise.sums(jnp.array(given))
    np.testing.assert_array_equal(found, given.sum(axis=-1, keepdims=True))


def test_rows_are_two_at_least():
    assert rowwise.at_least_two(jnp.ones([1, 3])).tolist() == [[1, 1, 1], [0, 0, 0]]
    assert rowwise.at_least_two(jnp.ones([2, 3])).shape == (2, 3)


def test_the_softmax_of_rows():
    given = np.array([[0, 1, 2], [-120, 0, -np.inf], [300, 301, 100]], np.float32)
    weights = np.exp(given.astype(np.float64) - given.max(axis=1, keepdims=True))
    weights[given - given.max(axis=1, keepdims=True) < -100] = 0
    expected = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(rowwise.softmax(jnp.array(given)), expected, rtol=1e-6)


# A cache's rows in a loop, as on a TPU.

ROWS, HEADS, SLOTS, SIZE, WIDTH, KEPT = 18, 2, 7, 3, 4, 2
KEYS = jax.random.split(jax.random.key(0), 4)
ARRAY = jax.random.normal(KEYS[0], [ROWS, HEADS, SLOTS, SIZE])
START = jax.random.randint(KEYS[1], [ROWS], 0, SLOTS - WIDTH + 1)


def test_rows_are_written_in_a_loop_as_together():
    block = jax.random.normal(KEYS[2], [ROWS, HEADS, WIDTH, SIZE])
    given = ARRAY, block, START
    found = cache._written_in_a_loop(*given, place=lambda x: x)
    np.testing.assert_array_equal(found, cache._written_together(*given))
    assert ROWS > cache.ONE_BY_ONE
    np.testing.assert_array_equal(found, cache.write_rows(ARRAY, block.swapaxes(1, 2), START))


def test_kept_slots_are_moved_in_a_loop_as_together():
    kept = jnp.sort(jax.random.randint(KEYS[3], [ROWS, KEPT], 0, WIDTH), axis=1)
    given = ARRAY, START, kept, WIDTH
    found = cache._moved_in_a_loop(*given)
    np.testing.assert_array_equal(found, cache._moved_together(*given))
    few = slice(cache.ONE_BY_ONE)
    alone = cache.moved_rows(ARRAY[few], START[few], kept[few], WIDTH)
    np.testing.assert_array_equal(found[few], alone)


# Attention over all positions, in blocks of heads.

ATTENDED = 3, 20, 6, 8  # rows, positions, heads and their size


def given() -> list[jax.Array]:
    """Returns queries, keys and values [B, S, H, head_dim]."""
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, ATTENDED) for key in keys]


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6])
def test_blocks_of_heads_are_the_attention(heads, monkeypatch):
    """Four heads are no divisor of six, so three are computed at a time."""
    monkeypatch.setattr(attention, "BLOCK_BYTES", heads * 4 * 20**2)
    query, keys, values = given()
    found = jax.jit(attend_to_all)(query, keys, values)
    expected = attend(query, keys.swapaxes(1, 2), values.swapaxes(1, 2), jnp.zeros([1, 1, 1, 1]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=SMALL_LOGITS)


def test_a_row_has_the_same_bits_in_each_batch(monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_BYTES", 2 * 4 * 20**2)
    together = attend_to_all(*given())
    for row in range(3):
        alone = attend_to_all(*(x[row : row + 1] for x in given()))
        np.testing.assert_array_equal(alone[0], together[row])
