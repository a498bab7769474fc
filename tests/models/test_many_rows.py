"""A cache's rows in a loop, as on a TPU: pytest tests/models/test_many_rows.py"""

import jax
import jax.numpy as jnp
import numpy as np

from specdec.models.contract import cache

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
