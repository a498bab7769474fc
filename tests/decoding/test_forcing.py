"""Given tokens through a target in one call: pytest tests/decoding/test_forcing.py"""

from __future__ import annotations

from typing import ClassVar

import by_definition
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import PROBABILITIES

from specdec import score
from specdec.decoding.forcing import given_lengths, unpadded
from specdec.sampling import Greedy, MinLength, Processed, Sampling, SuppressTokens
from specdec.testing import TableTarget

V = 7
INPUTS = jnp.array([[2, 3], [3, 3]])
TEXTS = jnp.array([[3, 5, 2, 1], [4, 1, 5, 5]])  # the second is filled up with 5


class Other(TableTarget):
    """A target that is not T5's in what it starts from and what fills up a text."""

    pad_id: ClassVar[int] = 5
    stop_ids: ClassVar[tuple[int, ...]] = (1, 2)

    def start(self, inputs):
        return jnp.full(inputs.shape[0], 6, jnp.int32)


TARGET = Other(V, classes=3)
TREE = TARGET.init(jax.random.key(0))


def logits() -> np.ndarray:
    """Looks up [B, T, V] by the sum of the inputs, the sum of the text, and its last token."""
    fed = np.concatenate([[[6], [6]], TEXTS[:, :-1]], axis=1)
    classes = np.sum(INPUTS, axis=1, keepdims=True) % 3
    return np.array(TREE["logits"])[classes, np.cumsum(fed, axis=1) % V, fed]


def expected(scores) -> np.ndarray:
    """Picks the scores of the texts' tokens, 0 behind the last one."""
    own = np.take_along_axis(np.asarray(scores), np.asarray(TEXTS)[:, :, None], axis=2)[:, :, 0]
    return np.where(np.arange(4)[None] < np.array([[4], [2]]), own, 0)


@pytest.mark.parametrize("pad_id, lengths", [(5, [3, 0, 4, 4]), (0, [4, 4, 1, 4])])
def test_a_text_ends_with_its_last_token_that_is_not_padding(pad_id, lengths):
    class Pads(TableTarget):
        pass

    Pads.pad_id = pad_id
    tokens = jnp.array([[2, 5, 3, 5], [5, 5, 5, 5], [2, 0, 0, 0], [0, 0, 5, 2]])
    assert given_lengths(Pads(V), tokens).tolist() == lengths
    kept = np.arange(4) < np.array(lengths)[:, None]
    np.testing.assert_array_equal(unpadded(Pads(V), tokens), np.where(kept, tokens, 0))


@pytest.mark.parametrize("base", [Sampling(0.7), Greedy()], ids=["drawn", "greedy"])
@pytest.mark.parametrize("stop_ids", [None, (1,), (3,)])
def test_scores_are_of_what_the_sampling_leaves(base, stop_ids):
    """No stop id among the first two tokens: the target's own, or others that are given."""
    sampling = Processed(base, (MinLength(2), SuppressTokens((0,))))
    left = logits()
    left[:, :2, list(TARGET.stop_ids if stop_ids is None else stop_ids)] = -np.inf
    left[:, :, 0] = -np.inf
    right = expected(jax.nn.log_softmax(left / (1 if base.greedy else 0.7)))
    found = score(TREE, INPUTS, TEXTS, target=TARGET, sampling=sampling, stop_ids=stop_ids)
    np.testing.assert_allclose(found, right, atol=PROBABILITIES)
    assert np.isneginf(found).any()


def test_scores_are_as_defined():
    """After prompts, by position, and an error for the first token whose logits are NaN."""
    by_definition.check_scoring()
