"""What both models thought of each draft token: pytest tests/decoding/test_replay.py"""

from __future__ import annotations

import functools

import by_definition
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.decoding import Decided, replay


@pytest.mark.ci
def test_probabilities_are_as_defined():
    """Rows have different prefixes, and some are full before others."""
    by_definition.check_replay()


@pytest.mark.ci
def test_nothing_is_known_behind_a_token_that_the_drafter_proposes_no_more():
    plan = by_definition.PLAIN
    output = by_definition.traced(by_definition.params(0), plan, None)
    trace = output.trace
    other = (trace.proposed[:, 0, 1] + 1) % by_definition.V
    changed = Decided(
        output.tokens,
        trace.proposed.at[:, 0, 1].set(other),
        trace.drafted,
        trace.accepted.at[:, 0].min(1),
    )
    again = jax.jit(functools.partial(replay, plan=plan))
    given = by_definition.params(0), by_definition.KEYS, jnp.asarray(by_definition.PROMPTS)
    unknown = np.isnan(again(*given, changed).q[:, 0])
    whole = np.asarray(trace.drafted[:, 0]) == 3
    assert whole.sum() > 5
    np.testing.assert_array_equal(unknown[whole], [[False, False, True]] * whole.sum())
