"""What is kept of a draft before the target sees it: pytest tests/decoding/test_states.py"""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.decoding import states
from specdec.types import Draft

SIZE, STOP = 6, 3


@pytest.mark.parametrize(
    "tokens, length, want, kept",
    [
        ((5, 0, 2, 4), 4, 4, 4),  # the last id there is, and the first
        ((2, SIZE, 2, 2), 4, 4, 1),  # one more than the last
        ((SIZE, 2, 2, 2), 4, 4, 0),
        ((2, 2, -1, 2), 4, 4, 2),
        ((2, STOP, 2, 2), 4, 4, 2),  # the stop id itself stays
        ((2, 2, 2, STOP), 3, 4, 3),
        ((2, 2, 2, 2), 3, 4, 3),
        ((2, 2, 2, 2), 4, 1, 1),
        ((2, 2, 2, 2), 4, 0, 0),
        ((2, SIZE, STOP, 2), 4, 4, 1),
        ((STOP, SIZE, 2, 2), 4, 4, 1),
    ],
)
def test_a_draft_is_cut_to_what_can_be_verified(tokens, length, want, kept):
    draft = Draft(jnp.array([tokens], jnp.int32), None, jnp.array([length], jnp.int32))
    cut = states.trim(draft, jnp.array([want], jnp.int32), SIZE, (STOP,))
    assert cut.length.tolist() == [kept]
    assert cut.tokens.tolist() == [[*tokens[:kept], *[0] * (4 - kept)]]


def test_rows_are_cut_on_their_own():
    tokens = jnp.array([[2, 2], [SIZE, 2], [STOP, 2]], jnp.int32)
    draft = Draft(tokens, None, jnp.full([3], 2, jnp.int32))
    cut = states.trim(draft, jnp.full([3], 2, jnp.int32), SIZE, (STOP,))
    assert cut.length.tolist() == [2, 0, 1]
    assert np.array_equal(cut.tokens, [[2, 2], [0, 0], [STOP, 0]])
