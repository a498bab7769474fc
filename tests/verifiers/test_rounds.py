"""Several paths, by enumeration: pytest tests/verifiers/test_rounds.py"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from tolerances import FLOAT64

from specdec.sampling import Sampling
from specdec.testing import accepted_law, adversarial_trees, broken_trees, rounds_law
from specdec.verifiers import Block, SpeculativeSampling


def assert_close(found, expected, case):
    np.testing.assert_allclose(found, expected, rtol=0, atol=FLOAT64, err_msg=case)


def tokens(kept):
    return float(kept @ np.arange(len(kept)))


@pytest.mark.parametrize("verifier", [Block(), SpeculativeSampling()], ids=str)
@pytest.mark.parametrize("size, gamma, paths", [(2, 1, 3), (2, 2, 3)])
def test_the_law_is_the_targets_and_no_path_lowers_the_number_of_tokens(
    verifier, size, gamma, paths
):
    with jax.enable_x64(True):
        for name, trees in adversarial_trees(size, size, gamma, Sampling()).items():
            if trees.certain:
                continue
            before = tokens(accepted_law(verifier, trees, gamma))
            for count in {1, paths}:
                found = rounds_law(verifier, trees, gamma, count)
                assert_close(found.emitted, trees.joint, f"{name}, {count} paths")
                assert tokens(found.kept) >= before - FLOAT64, (name, count)
                if count == 1:
                    assert tokens(found.kept) == pytest.approx(before, abs=FLOAT64)
                before = tokens(found.kept)


def test_the_law_is_right_for_short_drafts_and_broken_ones():
    with jax.enable_x64(True):
        cases = broken_trees(0, 3, 2, Sampling()) | {"short": None}
        for name, trees in cases.items():
            length = 2 if trees else 1
            trees = trees or adversarial_trees(0, 3, 2, Sampling())["random"]
            found = rounds_law(Block(), trees, length, 2)
            assert_close(found.emitted, trees.joint, name)
