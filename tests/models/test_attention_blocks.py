"""Attention over all positions, in blocks of heads: pytest tests/models/test_attention_blocks.py"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import SMALL_LOGITS

from specdec.models.layers import layers
from specdec.models.layers.layers import attend, attend_to_all

ROWS, LENGTH, HEADS, SIZE = 3, 20, 6, 8


def given() -> list[jax.Array]:
    """Returns queries, keys and values [B, S, H, head_dim]."""
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (ROWS, LENGTH, HEADS, SIZE)) for key in keys]


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6])
def test_blocks_of_heads_are_the_attention(heads, monkeypatch):
    """Four heads are no divisor of six, so three are computed at a time."""
    monkeypatch.setattr(layers, "BLOCK_BYTES", heads * 4 * LENGTH**2)
    query, keys, values = given()
    found = jax.jit(attend_to_all)(query, keys, values)
    expected = attend(query, keys.swapaxes(1, 2), values.swapaxes(1, 2), jnp.zeros([1, 1, 1, 1]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=SMALL_LOGITS)


def test_a_row_has_the_same_bits_in_each_batch(monkeypatch):
    monkeypatch.setattr(layers, "BLOCK_BYTES", 2 * 4 * LENGTH**2)
    together = attend_to_all(*given())
    for row in range(ROWS):
        alone = attend_to_all(*(x[row : row + 1] for x in given()))
        np.testing.assert_array_equal(alone[0], together[row])
