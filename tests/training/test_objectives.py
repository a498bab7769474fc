"""What training makes small: pytest tests/training/test_objectives.py"""

from __future__ import annotations

import dataclasses
import functools

import blocks_in_numpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny_t5

from specdec.drafters.block_drafts import mask_ids
from specdec.models.t5 import T5Draft, T5DraftConfig, T5Target
from specdec.training import ConfidenceHead, FillMasks, Pairs, TeacherForced
from specdec.training.fill_masks import _Blocks
from specdec.training.loss import Frozen

V, K = 30, 3
CONFIG = tiny_t5(
    V + K,
    16,
    24,
    decoder=2,
    mlp_activations=("gelu", "linear"),
    logits_via_embedding=False,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
)
MODEL = T5Target(CONFIG)
MODERN = T5Draft(T5DraftConfig.of(CONFIG, states_dim=16, markov_rank=4))
CONFIDENT = T5Draft(T5DraftConfig.of(MODERN.config, confidence_head=True))
TARGET = T5Target(dataclasses.replace(CONFIG, vocab_size=V))
LENGTHS = (9, 4, 1, 0)  # of the texts, the last one a row of padding


@functools.cache
def batch() -> tuple[Pairs, dict]:
    generator = np.random.default_rng(0)
    inputs = generator.integers(2, V, [4, 6]).astype(np.int32)
    targets = generator.integers(2, V, [4, 9]).astype(np.int32)
    targets *= np.arange(9) < np.array(LENGTHS)[:, None]
    inputs[3] = 0
    return Pairs(inputs, targets), MODEL.init(jax.random.key(0))


@functools.cache
def modern() -> tuple[Frozen, dict]:
    """A target, and a drafter that reads its states; neighbours matter."""
    params = MODERN.init(jax.random.key(6))
    params["decoder"]["markov_dense"]["kernel"] *= 20
    return Frozen(TARGET, TARGET.init(jax.random.key(7))), params


@pytest.mark.ci
def test_a_block_sees_the_text_before_it_and_itself():
    (pairs, _), (frozen, params), objective = batch(), modern(), FillMasks(K, blocks=3)

    @jax.jit
    def compute(params):
        blocks = _Blocks.of(objective, MODERN, pairs, jax.random.key(1), frozen)
        return blocks.starts, blocks.targets, blocks.logits(MODERN, params)

    starts, targets, logits = jax.device_get(compute(params))
    ids = np.asarray(mask_ids(V + K, K, objective.distinct))
    for row in range(3):
        for number, start in enumerate(starts[row].tolist()):
            assert 0 <= start < LENGTHS[row]
            text = np.concatenate([[0], pairs.targets[row, :start]]).astype(np.int32)
            behind = pairs.targets[row, start : start + K]
            exact = blocks_in_numpy.logits(
                params,
                MODERN.config,
                pairs.inputs[row : row + 1],
                text,
                ids,
                cached=objective.cached,
                previous=np.concatenate([text[-1:], behind[:-1]]),
                target=(frozen.params, TARGET.config),
            )
            found, expected = (x[: len(behind)] for x in (logits[row, number], exact))
            # Float32 sums of a few layers in another order.
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(exact).std())
            behind = np.pad(behind, (0, K - len(behind)))
            np.testing.assert_array_equal(targets[row, number], behind)


@pytest.mark.ci
def test_starts_are_as_likely_at_each_token_of_a_text():
    pairs, _ = batch()
    objective = FillMasks(K, blocks=4000)
    starts = np.asarray(_Blocks.of(objective, MODEL, pairs, jax.random.key(2), None).starts)
    for row, length in enumerate(LENGTHS[:3]):
        counts = np.bincount(starts[row], minlength=length)
        assert len(counts) == length
        expected = 4000 / length
        chi2 = ((counts - expected) ** 2 / expected).sum()
        assert chi2 < length - 1 + 6 * np.sqrt(2 * length)  # false alarms: below one in 10^6


def test_glancing_reveals_a_share_of_what_was_wrong():
    pairs, _ = batch()
    blocks = _Blocks.of(FillMasks(K, blocks=40), MODEL, pairs, jax.random.key(3), None)
    targets = np.asarray(blocks.targets)
    right = np.random.default_rng(1).random(targets.shape) < 0.3
    guess = np.where(right, targets, (targets + 1) % V)
    logits = jax.nn.one_hot(guess, V + K)
    seen = set()
    for share in (0.0, 0.4, 0.99):
        found = blocks.glanced_at(logits, jnp.float32(share), jax.random.key(4))
        fed, left = np.asarray(found.fed), np.asarray(found.targets)
        masks = np.asarray(blocks.fed)
        revealed = (fed != masks) & (targets > 0)
        wrong = ((guess != targets) & (targets > 0)).sum(axis=2)
        np.testing.assert_array_equal(revealed.sum(axis=2), np.floor(wrong * np.float32(share)))
        np.testing.assert_array_equal(fed[revealed], targets[revealed])
        np.testing.assert_array_equal(fed[~revealed], masks[~revealed])
        np.testing.assert_array_equal(left, np.where(revealed, 0, targets))
        seen |= {tuple(one) for one in revealed.reshape(-1, K).tolist()}
    assert len(seen) > K + 1  # other ones, not always the first


@pytest.mark.ci
def test_the_loss_is_of_what_is_still_masked():
    pairs, params = batch()
    objective, given = FillMasks(K, blocks=2, glancing=(0.99, 0.0)), (pairs, jax.random.key(5))
    early, late = (
        jax.jit(objective.loss, static_argnums=(0, 2))(MODEL, params, None, *given, progress)
        for progress in (0.0, 1.0)
    )
    plain = dataclasses.replace(objective, glancing=(0, 0))
    unaided = jax.jit(plain.loss, static_argnums=(0, 2))(MODEL, params, None, *given, 0.5)
    assert 0 < int(early.tokens) < int(late.tokens) == int(unaided.tokens)
    np.testing.assert_allclose(late.loss, unaided.loss, rtol=1e-6)


@pytest.mark.parametrize("objective", [FillMasks(K, blocks=2), TeacherForced()])
def test_padding_counts_for_nothing_and_measuring_is_repeatable(objective):
    pairs, params = batch()
    cut = Pairs(*(x[:3] for x in pairs[:2]))
    measure = jax.jit(lambda pairs: objective.measure(MODEL, params, None, pairs))
    sums = [measure(x) for x in (pairs, pairs)]
    assert [x.tolist() for x in sums[0]] == [x.tolist() for x in sums[1]]
    if isinstance(objective, TeacherForced):  # others draw by row
        found = measure(cut)
        np.testing.assert_allclose(found.loss, sums[0].loss, rtol=1e-5)
        assert int(found.tokens) == sum(LENGTHS)


@functools.cache
def confident() -> tuple[Pairs, Frozen, dict, ConfidenceHead]:
    """Of texts that the drafter has right here and there."""
    pairs, frozen = batch()[0], modern()[0]
    params = CONFIDENT.init(jax.random.key(6))
    params["decoder"]["confidence_head"]["weight"] = jax.random.normal(jax.random.key(2), [16])
    objective, targets = ConfidenceHead(FillMasks(K, blocks=12)), np.array(pairs.targets)

    @jax.jit
    def guessed(targets):
        pairs = Pairs(batch()[0].inputs, targets)
        blocks = _Blocks.of(objective.of, CONFIDENT, pairs, KEY, frozen)
        return blocks.starts, blocks.logits(CONFIDENT, params)[..., :V].argmax(axis=-1)

    for place in range(9):  # as the drafter writes them behind every K-th token
        starts, guess = jax.device_get(guessed(targets))
        for row, number in np.argwhere(starts == place - place % K):
            if place < LENGTHS[row] and guess[row, number, place % K] > 1:
                targets[row, place] = guess[row, number, place % K]
    return pairs._replace(targets=targets), frozen, params, objective


KEY = jax.random.key(0, impl="threefry2x32")


@pytest.mark.ci
def test_a_place_counts_if_those_before_it_were_kept():
    pairs, frozen, params, objective = confident()
    blocks = _Blocks.of(objective.of, CONFIDENT, pairs, KEY, frozen)
    logits = jax.jit(lambda tree: blocks.logits(CONFIDENT, tree))(params)
    guess = np.asarray(logits).argmax(axis=-1)
    ids, loss, right, places = np.asarray(mask_ids(V + K, K, True)), 0.0, 0, [0] * K
    for row in range(3):
        for number, start in enumerate(np.asarray(blocks.starts[row]).tolist()):
            text = np.concatenate([[0], pairs.targets[row, :start]]).astype(np.int32)
            given = pairs.inputs[row : row + 1], text, ids, (frozen.params, TARGET.config)
            kept = blocks_in_numpy.confidence(params, CONFIDENT.config, *given)
            for place, token in enumerate(pairs.targets[row, start : start + K]):
                if token == 0:
                    break
                places[place] += 1
                agrees = guess[row, number, place] == token
                loss -= np.log(kept[place] if agrees else 1 - kept[place])
                right += (kept[place] > 0.5) == agrees
                if not agrees:
                    break
    assert places[0] > places[1] > 0
    sums = jax.jit(lambda tree: objective.measure(CONFIDENT, tree, frozen, pairs))(params)
    np.testing.assert_allclose(sums.loss, loss, rtol=1e-4)
    assert (int(sums.correct), int(sums.tokens)) == (right, sum(places))


def test_a_head_that_is_not_there_is_not_trained():
    with pytest.raises(ValueError, match="has none; give it confidence_head = True"):
        ConfidenceHead(FillMasks(K)).check(MODERN, V)
    with pytest.raises(ValueError, match="ConfidenceHead.of is 3; give a FillMasks"):
        ConfidenceHead(3)  # type: ignore[arg-type]


def test_masks_need_ids_that_no_text_has():
    FillMasks(K, glancing=(0, 0.5)).check(MODEL, V)
    FillMasks(K, distinct=False).check(MODEL, V + K - 1)
    with pytest.raises(ValueError, match=r"33 ids and the vocabulary 31.* vocab_size = 34"):
        FillMasks(K).check(MODEL, V + 1)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"masks": 0}, "masks is 0"),
        ({"blocks": True}, "blocks is True"),
        ({"cached": False}, "blocks is 4, and cached is False; give 1"),
        ({"glancing": 0.5}, "glancing is 0.5; give two shares"),
        ({"glancing": (0.5, 1.0)}, "glancing is .*; give two shares"),
        ({"label_smoothing": 1}, "FillMasks.label_smoothing is 1"),
    ],
)
def test_a_mistake_says_what_to_do(fields, message):
    with pytest.raises(ValueError, match=message):
        FillMasks(**fields)
