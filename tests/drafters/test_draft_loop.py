"""How tokens are drawn, one by one or as a block: pytest tests/drafters/test_draft_loop.py"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import ByPosition, context_of
from tolerances import PROBABILITIES

from specdec.drafters import Uniform
from specdec.drafters.draft_loop import _one_by_one, draft_block, draft_loop
from specdec.sampling import (
    ForcedTokens,
    Greedy,
    NoRepeatNGram,
    Processed,
    Sampling,
    draw,
    draw_shared,
)
from specdec.types import Request, Stop

V, K = 8, 4
LOGITS = jax.random.normal(jax.random.key(0), [3, K, V])
KEYS = jax.vmap(lambda key: jax.random.split(key, K))(jax.random.split(jax.random.key(1), 3))
TEXT = [[0, 2], [0, 3], [0, 2]]
WANT = jnp.array([4, 2, 0])


def in_turn(logits, request, sampling):
    return draft_loop(_one_by_one(logits), request, sampling)[0]


each_way = pytest.mark.parametrize("drafted", [draft_block, in_turn])


@each_way
@pytest.mark.parametrize("shared, size", [(False, 6), (True, 10)])
def test_each_token_is_drawn_with_its_own_key(drafted, shared, size):
    """Logits are cut to the vocabulary, or filled up to it with ids that are never drawn."""
    context = context_of(TEXT, vocab_size=size, shared_noise=shared)
    given, sampling = (KEYS, WANT, None), Sampling(0.7)
    draft = drafted(LOGITS, Request(context, *given), sampling)
    fitted = LOGITS[..., :size]
    probs = np.zeros([3, K, size], np.float32)
    probs[..., : fitted.shape[-1]] = jax.nn.softmax(fitted / 0.7)
    np.testing.assert_allclose(draft.probs, probs, atol=PROBABILITIES)
    draw_one = jax.vmap(jax.vmap(draw_shared if shared else draw))
    np.testing.assert_array_equal(draft.tokens, draw_one(KEYS, draft.probs))
    assert draft.length.tolist() == WANT.tolist() and draft.beliefs is None


def test_a_uniform_draft_is_drawn_from_the_whole_vocabulary():
    request = Request(context_of(TEXT, vocab_size=V), KEYS, WANT)
    draft, _ = Uniform().propose({}, request, ())
    assert draft.probs.shape == (3, K, V) and np.all(draft.probs == 1 / V)
    np.testing.assert_array_equal(draft.tokens, jax.vmap(jax.vmap(draw))(KEYS, draft.probs))
    assert draft.length.tolist() == WANT.tolist()


@each_way
def test_a_greedy_draft_says_what_it_holds_likely_if_that_is_read(drafted):
    given, sampling = (KEYS, WANT, None), Greedy()
    for read in (False, True):
        draft = drafted(
            LOGITS, Request(context_of(TEXT, vocab_size=V, beliefs=read), *given), sampling
        )
        np.testing.assert_array_equal(draft.tokens, LOGITS.argmax(axis=2))
        assert draft.probs is None and (draft.beliefs is not None) == read
    np.testing.assert_allclose(draft.beliefs, jax.nn.softmax(LOGITS), atol=PROBABILITIES)


@each_way
@pytest.mark.parametrize(
    "stops, lengths",
    [
        (lambda index, probs, tokens: tokens == 5, [3, 2, 0]),  # after the token, which is kept
        (lambda index, probs, tokens: tokens == 3, [1, 1, 0]),
        (lambda index, probs, tokens: index + 0 * tokens == 1, [2, 2, 0]),
        (lambda index, probs, tokens: probs[:, 6] > 0.5, [2, 2, 0]),  # softmax of a greedy draft
        (lambda index, probs, tokens: probs.max(axis=1) > 0.9, [4, 2, 0]),  # and no one-hot
        (lambda index, probs, tokens: tokens < 0, [4, 2, 0]),
    ],
    ids=["third token", "first token", "index", "probabilities", "certainty", "never"],
)
def test_a_rule_ends_a_draft_after_a_token(drafted, stops, lengths):
    tokens = jnp.broadcast_to(jnp.array([3, 6, 5, 4]), [3, K])
    stop = Stop((), lambda carry, *seen: (carry, stops(*seen)))
    given, sampling = (KEYS, WANT, stop), Greedy()
    request = Request(context_of(TEXT, vocab_size=V), *given)
    draft = drafted(3 * jax.nn.one_hot(tokens, V), request, sampling)
    assert draft.length.tolist() == lengths
    for row, length in zip(draft.tokens, lengths, strict=True):
        np.testing.assert_array_equal(row[:length], tokens[0, :length])


@each_way
def test_a_rule_carries_what_it_has_seen(drafted):
    """Each row ends where the sum of its tokens passes 8."""
    tokens = jnp.array([[3, 6, 5, 4], [4, 4, 1, 1], [7, 1, 1, 1]])

    def ask(total, index, probs, drawn):
        return total + drawn, total + drawn > 8

    given = KEYS, jnp.full(3, K), Stop(jnp.zeros(3, jnp.int32), ask)
    context = context_of(TEXT, vocab_size=V)
    draft = drafted(9 * jax.nn.one_hot(tokens, V), Request(context, *given), Greedy())
    assert draft.length.tolist() == [2, 3, 3]


@pytest.mark.parametrize("taught", [False, True])
def test_a_processor_sees_the_text_and_the_draft_or_what_is_taught(taught):
    """No token comes twice. An opinion of a text is behind the text's own tokens."""
    sampling = Processed(Sampling(), (NoRepeatNGram(1),))
    own = jnp.array([[3, 4, 5, 6], [7, 6, 5, 4], [1, 3, 4, 5]])
    room = np.pad(TEXT, ((0, 0), (0, K)), constant_values=7)  # behind a text is garbage
    context = context_of(room, [2, 2, 2], vocab_size=V, taught=own if taught else None)
    given, sampling = (KEYS, WANT, None), sampling
    draft = draft_block(LOGITS, Request(context, *given), sampling)
    behind = own if taught else draft.tokens
    for row, text in enumerate(TEXT):
        for place in range(K):
            before = [*text, *behind[row, :place].tolist()]
            left = LOGITS[row, place].at[jnp.array(before)].set(-jnp.inf)
            right = jax.nn.softmax(left)
            np.testing.assert_allclose(draft.probs[row, place], right, atol=PROBABILITIES)


def test_a_processor_sees_all_ids_of_the_vocabulary():
    """One that the drafter's model lacks is forced."""
    sampling = Processed(Sampling(), (ForcedTokens((6, 5), 1),))
    context = context_of(np.pad(TEXT, ((0, 0), (0, K))), [2, 2, 2], vocab_size=V)
    given, sampling = (KEYS, WANT, None), sampling
    draft = draft_block(LOGITS[..., :4], Request(context, *given), sampling)
    assert draft.tokens[:, :2].tolist() == [[6, 5]] * 3
    np.testing.assert_array_equal(draft.probs[:, 0], jax.nn.one_hot([6] * 3, V))


@each_way
@pytest.mark.parametrize("stops", [False, True])
def test_a_sampling_rule_is_told_the_position_of_each_token(drafted, stops):
    stop = Stop((), lambda carry, index, probs, tokens: (carry, tokens < 0)) if stops else None
    context = context_of(np.pad(TEXT, ((0, 0), (0, 2))), [2, 1, 4], vocab_size=V)
    given, sampling = (KEYS, jnp.full(3, K), stop), ByPosition()
    draft = drafted(LOGITS, Request(context, *given), sampling)
    assert draft.tokens.tolist() == [[1, 2, 3, 4], [0, 1, 2, 3], [3, 4, 5, 6]]
    np.testing.assert_array_equal(draft.probs, jax.nn.one_hot(draft.tokens, V))
