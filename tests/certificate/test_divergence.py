"""The distance of an inexact run from its target, of known sums: pytest tests/certificate"""

from __future__ import annotations

import types

import numpy as np
import pytest

from specdec import certificate
from specdec.certificate.drawn import SAMPLES

# Of two texts, in each of four groups: how many tokens more than the target's law expects.
EXCESS = np.array([[3.0, -1.0, -2.0, 0.0], [1.0, -1.0, 0.0, 0.0]])
LENGTHS = np.array([10, 6])


class Known:
    """A subject whose comparisons give known sums."""

    def __init__(self, excess: np.ndarray, lengths: np.ndarray):
        sampling = types.SimpleNamespace(greedy=False)
        self.plan = types.SimpleNamespace(sampling=sampling, verifier="Guess()")
        self._found = excess, lengths

    def decode(self, plan, sample=0):
        return types.SimpleNamespace(tokens=None, length=None)

    def compared(self, *_):
        return self._found


@pytest.mark.parametrize("lossy", [True, False])
def test_the_distance_is_half_of_what_the_groups_differ_by(lossy):
    """|4| + |-2| + |-2| + |0| of 16 tokens are 8 / 16, and each is missing in another group."""
    check = certificate.divergence(Known(EXCESS, LENGTHS), lossy)  # type: ignore[arg-type]
    assert check.figures["distance"] == pytest.approx(0.25)
    assert check.figures["low"] <= 0.25 <= check.figures["high"]
    assert check.figures["tokens"] == SAMPLES * 16 and check.passed == lossy
    assert f"{SAMPLES * 16} drawn tokens are at least 0.2500 from the target's" in str(check)


def test_a_law_without_a_token_in_common_has_distance_one():
    far = Known(np.array([[8.0, -8.0, 0.0, 0.0]] * 2), np.array([8, 8]))
    found = certificate.divergence(far, lossy=True).figures  # type: ignore[arg-type]
    assert (found["low"], found["distance"], found["high"]) == (1, 1, 1)
