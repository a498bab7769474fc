"""Rules of beam searches, and what a draft's nodes see, by hand: pytest tests/decoding"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from specdec.decoding import draft_beams
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import HuggingFaceBeams, T5XBeams
from specdec.decoding.draft_beams import Continued, DraftBeams, rooted
from specdec.models.contract.beam_tree import Slots
from specdec.testing import TableTarget


class OfOutput(T5XBeams):
    """A rule that does not count a prefix."""

    counts_prefix = False


@pytest.mark.parametrize(
    "rule, penalty, of_seven, given_three, may_finish",
    [
        (T5XBeams(0.5), (10 / 6) ** 0.5, 7, 7, [True] * 4),
        (OfOutput(0.0), 1.0, 7, 4, [True] * 4),
        (HuggingFaceBeams(2.0), 25.0, 7, 4, [True, True, False, False]),
        (HuggingFaceBeams(0.0, opened=1), 1.0, 6, 3, [True, True, False, False]),
    ],
)
def test_what_a_rule_counts(rule, penalty, of_seven, given_three, may_finish):
    assert rule.penalty(5) == pytest.approx(penalty)
    seven = jnp.int32(7)
    assert (int(rule.counted(seven)), int(rule.counted(seven, 3))) == (of_seven, given_three)
    assert rule.may_finish(4, 2).tolist() == may_finish
    assert [rule.candidates(3, stops) for stops in (0, 1, 2)] == [6, 6, 9]
    beams: Any = SimpleNamespace(live_scores=jnp.array([-3.0, -1.0]))
    assert float(rule.best_live(beams)) == (-3.0 if isinstance(rule, HuggingFaceBeams) else -1.0)


def test_no_text_has_fewer_tokens_than_none():
    assert int(HuggingFaceBeams(opened=2).counted(jnp.int32(4), 3)) == 0


# Two beams of two rows. The first row has one committed layer, whose beams the pending ones
# continue crosswise. The second row has none.
SLOTS = Slots(beams=2, width=2, capacity=10)
PENDING = SimpleNamespace(
    tokens=jnp.array([[3, 4], [5, 6]]), path=jnp.array([[[1, 0], [0, 0]], [[0, 0], [0, 0]]])
)
PREVIOUS = SimpleNamespace(
    tokens=jnp.array([[7, 8], [0, 0]]), path=jnp.array([[[0, 0], [0, 0]], [[0, 0], [0, 0]]])
)
TEXT: Any = Continued(
    PENDING, PREVIOUS, layers=jnp.array([1, 0]), scores=jnp.zeros([2, 2]), last=None
)


class Rewound:
    """A cache that says to where it was rewound."""

    def rewind(self, start):
        return start


LOGITS = np.random.default_rng(0).standard_normal([2, 4, 9]).astype(np.float32)


def called(monkeypatch, call: Any) -> tuple[list, np.ndarray]:
    """Returns what the draft's model is given in a call, and the log-probabilities after it."""

    @jax.jit
    def run():
        fed: list = []

        def decode_block(model, own, tokens, at, ancestors):
            fed.extend((tokens, at, ancestors.visible, ancestors.queries))
            return SimpleNamespace(logits=jnp.asarray(LOGITS[:, : tokens.shape[1]])), "fed"

        monkeypatch.setattr(draft_beams, "decode_block", decode_block)
        draft = DraftBeams(TableTarget(9), width=2, depth=2)
        log_probs, after = call(draft, "own", Rewound())
        assert after == "fed"
        return fed, log_probs

    (tokens, at, visible, queries), log_probs = run()
    seen = [[np.flatnonzero(token).tolist() for token in row] for row in visible]
    return [tokens.tolist(), at.tolist(), seen, queries.tolist()], np.asarray(log_probs)


def test_the_last_layer_and_the_pending_tokens_are_fed(monkeypatch):
    """A layer is fed with itself alone, and pending tokens also see the beam that they continue."""
    fed, log_probs = called(
        monkeypatch, lambda draft, own, cache: draft._first(own, TEXT, cache, SLOTS, 9)
    )
    assert fed == [
        [[7, 8, 3, 4], [5, 6, 5, 6]],
        [0, 0],
        [[[0], [1], [1, 2], [0, 3]], [[0], [1], [2], [3]]],
        [[0, 0, 1, 1]] * 2,
    ]
    expected = np.stack([LOGITS[0, 2:], LOGITS[1, :2]])
    np.testing.assert_allclose(log_probs, log_softmax(expected, axis=-1), rtol=1e-5)  # float32


def test_drafted_nodes_see_their_own_branch(monkeypatch):
    """The first child is of the first pending token, and the second one of the other."""
    parents, ids = jnp.array([[0, 1], [1, 1]]), jnp.array([[1, 2], [7, 8]])

    def call(draft, own, cache):
        tree = draft_beams._grown(rooted(PENDING.tokens, 6), 2, parents, ids, 1)
        return draft._feed(own, tree, 2, TEXT, cache, SLOTS, 9)

    fed, log_probs = called(monkeypatch, call)
    assert fed == [
        [[1, 2], [7, 8]],
        [4, 2],
        [[[1, 2, 4], [0, 3, 5]], [[1, 2], [1, 3]]],
        [[2, 2], [1, 1]],
    ]
    np.testing.assert_allclose(log_probs, log_softmax(LOGITS[:, :2], axis=-1), rtol=1e-5)


def test_scores_that_are_no_numbers_are_never_drafted():
    logits = jnp.array([[0.0, jnp.nan, 1.0], [0.0, -jnp.inf, 1.0]])
    found = np.asarray(jax.jit(draft_beams.usable, static_argnums=1)(logits, 2))
    assert np.isneginf(found[0]).all() and found[1].tolist() == [0.0, -np.inf]


def test_a_timed_call_is_of_beams_that_do_not_see_each_other():
    """Three equal tokens have equal logits; one after the other, their sum would grow."""
    model = TableTarget(7, classes=3, scale=2.0)
    tree, inputs = model.init(jax.random.key(5)), jnp.array([[2, 3]])
    plan = BeamPlan(model, 3, T5XBeams(), 6)
    cache = model.prefill(tree, inputs, plan.slots.capacity)
    found, _ = plan.call_of("target")({"target": tree}, jnp.full([1, 3], 4), cache)
    best = np.argmax(tree["logits"][5 % 3, :, 4], axis=1).tolist()
    assert found.tolist() == [[best[4]] * 3] and len({best[4], best[8 % 7], best[12 % 7]}) == 3


def test_a_search_in_one_line():
    model = TableTarget(7)
    plan = BeamPlan(model, 3, T5XBeams(0.6), 6, DraftBeams(model, 4, 2), best_only=True)
    rule = str(T5XBeams(0.6))
    assert str(plan) == f"3 beams, {rule}, drafts of 4 beams and 2 steps, best only"
    assert str(dataclasses.replace(plan, drafter=None, best_only=False)) == f"3 beams, {rule}"
