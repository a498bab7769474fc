"""Rows, seeds and samples draw independently: pytest tests/decoding/test_keys.py

20,000 pairs each; a correlation within 5.2 / sqrt(20,000) = 0.037 passes, which is a false-alarm
rate of 2e-7 for each pair of neighbours, and a correlation of 0.06 is seen with probability 0.999.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.decoding import keys, row_keys

COUNT = 20_000
EXAMPLES = jnp.arange(COUNT)


@jax.jit
def uniforms(rows):
    """[B, 3, 2] of each row's keys: tokens 0 and 1, and both kinds of private draws likewise."""

    def of_row(row):
        purposes = keys.purpose_keys(row)
        folds = [jax.random.fold_in(purpose, t) for purpose in purposes[:3] for t in (0, 1)]
        return jnp.stack([jax.random.uniform(key) for key in folds]).reshape(3, 2)

    return jax.vmap(of_row)(rows)


DRAWN = uniforms(row_keys(0, EXAMPLES))
NEIGHBOURS = {
    "examples": lambda: (DRAWN[:-1], DRAWN[1:]),
    "examples 256 apart": lambda: (DRAWN[:-256], DRAWN[256:]),
    "seeds": lambda: (DRAWN, uniforms(row_keys(1, EXAMPLES))),
    "samples": lambda: (DRAWN, uniforms(row_keys(0, EXAMPLES, 1))),
    "an example and a sample": lambda: (DRAWN[1:], uniforms(row_keys(0, EXAMPLES[:-1], 1))),
    "tokens": lambda: (DRAWN[:, :, 0], DRAWN[:, :, 1]),
    "purposes": lambda: (DRAWN[:, 0], DRAWN[:, 1]),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbours_are_uncorrelated(name):
    ours, theirs = (np.reshape(x, (len(x), -1)) for x in NEIGHBOURS[name]())
    for column in range(ours.shape[1]):
        found = np.corrcoef(ours[:, column], theirs[:, column])[0, 1]
        assert abs(found) < 5.2 / np.sqrt(len(ours)), f"{name}: correlation {found:.3f}"
