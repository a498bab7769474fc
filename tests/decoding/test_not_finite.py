"""Drafters and targets whose numbers are NaN or infinite: pytest tests/decoding/test_not_finite.py

The laws under broken drafts are in tests/verifiers/test_verifiers.py.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from support import tiny_t5
from tolerances import SMALL_LOGITS

from specdec.decoding import (
    NonFiniteLogits,
    autoregressive_decode,
    decode,
    naming_texts,
    row_keys,
    score,
)
from specdec.decoding.finite import check_finite, check_scores
from specdec.decoding.states import trim
from specdec.drafters import Autoregressive
from specdec.models.contract.cache import KVCache
from specdec.models.t5 import T5Target
from specdec.plan import Plan
from specdec.sampling import Greedy, Sampling, SuppressTokens, with_processors
from specdec.schedules import Fixed
from specdec.testing import BROKEN, FALSE_ALARM, Bench, Constant, broken_rows
from specdec.types import Draft, LogitsProcessor, Params
from specdec.verifiers import Block, Coupled
from specdec.verifiers.decide import usable_tokens

SIZE, ROWS, STOP = 6, 64, 1
BENCH = Bench.create(max_length=7)
KEYS, INPUTS = row_keys(0, jnp.arange(ROWS)), BENCH.inputs(ROWS)


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("place", [0, 2])
def test_a_draft_ends_before_a_token_that_was_drawn_from_no_distribution(kind, place):
    right = jnp.full([2, 3, SIZE], 1 / SIZE, jnp.float32)
    wrong = broken_rows(right)[kind]
    probs = right.at[0, place].set(wrong[0, place])
    draft = trim(Draft(jnp.full([2, 3], 2), probs, jnp.full([2], 3)), jnp.full([2], 3), SIZE, ())
    assert draft.length.tolist() == [place, 3] and draft.broken.tolist() == [True, False]
    assert draft.tokens[0].tolist() == [2] * place + [0] * (3 - place)


def test_beliefs_of_a_greedy_drafter_are_distributions_too():
    beliefs = jnp.full([1, 2, SIZE], 1 / SIZE, jnp.float32).at[0, 1, 0].set(jnp.nan)
    draft = Draft(jnp.full([1, 2], 2), None, jnp.array([2]), beliefs=beliefs)
    assert trim(draft, jnp.array([2]), SIZE, ()).length.tolist() == [1]


def test_a_token_needs_both_probabilities_and_beliefs_that_are_distributions():
    sound, broken = [0.5, 0.5], [0.5, 0.6]
    probs, beliefs = jnp.array([[sound, broken, sound]]), jnp.array([[sound, sound, broken]])
    draft = Draft(jnp.zeros([1, 3], jnp.int32), probs, jnp.array([3]), beliefs=beliefs)
    assert usable_tokens(draft).tolist() == [[True, False, False]]


def test_a_draft_that_has_ended_before_is_not_counted_as_broken():
    probs = jnp.full([3, 3, SIZE], jnp.nan).at[:, :1].set(1 / SIZE)
    draft = Draft(jnp.array([[STOP, 2, 2], [2, 2, 2], [2, 2, 2]]), probs, jnp.array([3, 3, 1]))
    cut = trim(draft, jnp.array([3, 1, 3]), SIZE, (STOP,))
    assert cut.length.tolist() == [1, 1, 1] and not cut.broken.any()
    assert trim(draft, jnp.array([2, 2, 2]), SIZE, ()).broken.tolist() == [True, True, False]


def with_nan_after(token, params=BENCH.params["target"]):
    """The table whose logits behind one token are NaN."""
    return {"logits": params["logits"].at[:, :, token].set(jnp.nan)}


def test_broken_drafts_are_counted_and_change_nothing():
    sampling = Sampling()
    params = Params(BENCH.params["target"], with_nan_after(4, BENCH.params["draft"]))
    drafter, verifier = Autoregressive(BENCH.target, sampling), Coupled()
    plan = Plan(BENCH.target, drafter, verifier, Fixed(3), sampling, 7)
    output = decode(params, KEYS, INPUTS, plan)
    alone = decode(params, KEYS, INPUTS, plan.alone())
    assert (output.tokens == alone.tokens).all()
    assert output.trace.broken_drafts.sum() > 0 and not output.trace.failed.any()
    assert (output.trace.broken_drafts <= output.trace.calls).all()
    assert decode(BENCH.params, KEYS, INPUTS, plan).trace.broken_drafts.sum() == 0


def traced(params, plan, keys=KEYS, inputs=INPUTS):
    """What `decode` gives where it cannot raise."""
    return jax.jit(functools.partial(decode, plan=plan))(params, keys, inputs)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_target_without_logits_is_an_error_that_names_row_and_token(value):
    logits = BENCH.params["target"]["logits"]
    broken = {"logits": logits.at[:, :, 2].set(value)}
    run = functools.partial(
        autoregressive_decode, target=BENCH.target, sampling=Sampling(), max_length=7
    )
    right = run(BENCH.params["target"], KEYS, INPUTS)
    first_two = jnp.argmax(right.tokens == 2, axis=1)
    (row, *_) = np.flatnonzero(((right.tokens == 2).any(axis=1)) & (first_two < 6))
    with pytest.raises(NonFiniteLogits, match="logits of TableTarget are NaN or infinite") as error:
        run(broken, KEYS, INPUTS)
    assert (error.value.row, error.value.position) == (row, first_two[row] + 1)
    assert f"output token {first_two[row] + 2} of row {row + 1};" in str(error.value)


def test_the_error_names_the_first_row_that_failed_and_where():
    """Or the text, where its index is known. An excluded token has a score."""
    trace = types.SimpleNamespace(failed=jnp.array([False, True, False]))
    output = types.SimpleNamespace(trace=trace, made=[4, 2, 1].__getitem__)
    with pytest.raises(NonFiniteLogits, match="for output token 3 of row 2;") as error:
        check_finite(output, BENCH.target)
    other = error.value.of_text(7)
    assert (other.row, other.position) == (1, 2) and "output token 3 of text 7;" in str(other)
    scores = np.array([[0, -np.inf, 0], [0, 0, np.nan]])
    with pytest.raises(NonFiniteLogits, match="for output token 3 of row 2;"):
        check_scores(scores, BENCH.target)
    check_scores(scores[:1], BENCH.target)
    jax.eval_shape(lambda traced: check_scores(traced, BENCH.target), scores)  # nothing is known


@dataclasses.dataclass(frozen=True)
class Divides(LogitsProcessor):
    """A processor that makes NaN of what it is given."""

    def process(self, logits, history):
        return logits / 0 * 0


def test_single_excluded_tokens_are_no_error_and_broken_processors_are():
    logits = BENCH.params["target"]["logits"].at[..., 3].set(-jnp.inf)
    run = functools.partial(autoregressive_decode, target=BENCH.target, max_length=5)
    output = run({"logits": logits}, KEYS, INPUTS, sampling=Sampling())
    assert not (output.tokens == 3).any()
    broken = with_processors(Sampling(), (Divides(),))
    with pytest.raises(NonFiniteLogits, match="output token 1 of row 1"):
        run(BENCH.params["target"], KEYS, INPUTS, sampling=broken)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_processors_do_not_hide_logits_that_are_not_finite(value):
    """Where they exclude every token the text ends; a row of NaN is no such row."""
    logits = BENCH.params["target"]["logits"].at[..., 5].set(value)
    sampling = with_processors(Greedy(), (SuppressTokens((3, 4)),))
    alone = {"target": BENCH.target, "max_length": 5, "sampling": sampling}
    with pytest.raises(NonFiniteLogits, match="output token 1 of row 1"):
        autoregressive_decode({"logits": logits}, KEYS, INPUTS, **alone)
    plan = Plan(
        BENCH.target, Autoregressive(BENCH.target, sampling), Coupled(), Fixed(2), sampling, 5
    )
    output = decode(Params(BENCH.params["target"], {"logits": logits}), KEYS, INPUTS, plan)
    assert output.trace.broken_drafts.sum() > 0 and output.trace.drafted.sum() == 0


def test_only_texts_that_reach_the_token_fail_and_they_end_there():
    """The target's logits behind token 2 are NaN, and the drafter proposes nothing else."""
    sampling = Sampling()
    params = Params(with_nan_after(2))
    plan = Plan(BENCH.target, Constant(2), Coupled(), Fixed(3), sampling, 7)
    ours, alone = traced(params, plan), traced(params, plan.alone())
    assert (ours.tokens == alone.tokens).all() and (ours.length == alone.length).all()
    assert (ours.trace.failed == alone.trace.failed).all()
    assert 0 < alone.trace.failed.sum() < ROWS
    beyond = jnp.arange(3)[None, None] >= ours.trace.drafted[:, :, None]
    assert not jnp.any(jnp.where(beyond, ours.trace.proposed, 0))
    last = jnp.take_along_axis(ours.tokens, ours.length[:, None] - 1, axis=1)[:, 0]
    assert (last[ours.trace.failed] == 2).all()


@pytest.mark.ci
def test_the_law_is_that_of_the_target_alone_where_texts_fail():
    """Texts that fail are outcomes as others are; `Block` decides about drafts as a whole."""
    rows = 30_000
    keys, inputs = row_keys(1, jnp.arange(rows)), BENCH.inputs(rows)
    params = BENCH.params | {"target": with_nan_after(2)}
    plan = Plan(BENCH.target, BENCH.drafter, Block(), Fixed(2), Sampling(), 3)
    counts = []
    for one in (plan, plan.alone()):
        output = traced(params, one, keys, inputs)
        code = output.tokens @ jnp.array([SIZE**2, SIZE, 1])
        counts.append(np.bincount(code, minlength=SIZE**3))
    ours, alone = (x[np.add(*counts) >= 20] for x in counts)
    statistic = np.sum((ours - alone) ** 2 / (ours + alone))
    # Where drafts go on behind token 2 it is 1,093 for 92 outcomes, p = 2e-171.
    assert stats.chi2.sf(statistic, len(ours) - 1) > FALSE_ALARM, statistic


TINY = tiny_t5(24, decoder=2)


def test_a_rejected_token_spoils_nothing_that_is_cached():
    """The embedding of token 9 is NaN, the target never chooses it, and it is always drafted."""
    target = T5Target(TINY)
    params = target.init(jax.random.key(3))
    embedding = params["token_embedder"]["embedding"].at[9].set(jnp.nan)
    params["token_embedder"]["embedding"] = embedding
    sampling = with_processors(Greedy(), (SuppressTokens((9,)),))
    inputs = jnp.array([[3, 5, 7, 1], [4, 4, 1, 0]])
    plan = Plan(target, Constant(9), Block(), Fixed(3), sampling, 8)
    ours = decode(Params(params), row_keys(0, jnp.arange(2)), inputs, plan)
    alone = decode(Params(params), row_keys(0, jnp.arange(2)), inputs, plan.alone())
    assert (ours.tokens == alone.tokens).all() and (alone.length == 8).any()
    np.testing.assert_allclose(ours.log_probs, alone.log_probs, atol=SMALL_LOGITS)


def test_keys_and_values_that_are_not_finite_are_written_as_zero():
    cache = KVCache.create(1, 4, layers=1, heads=1, head_dim=2, dtype=jnp.float32)
    block = jnp.array([[[[jnp.nan, 1.0]], [[jnp.inf, -jnp.inf]]]])
    cache = cache.write(0, block, 2 * block)
    np.testing.assert_array_equal(cache.keys[0][0, 0], [[0, 1], [0, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(cache.values[0][0, 0], [[0, 2], [0, 0], [0, 0], [0, 0]])


@pytest.mark.parametrize("sampling", [None, Greedy(), Sampling(0.7)])
def test_scores_of_a_target_without_logits_are_an_error(sampling):
    targets = jnp.array([[3, 4, 1], [2, 3, 1]])
    run = functools.partial(score, target=BENCH.target, sampling=sampling)
    inputs = BENCH.inputs(2)
    assert np.isfinite(run(BENCH.params["target"], inputs, targets)).all()
    with pytest.raises(NonFiniteLogits) as error:
        run(with_nan_after(2), inputs, targets)
    assert (error.value.row, error.value.position) == (1, 1)


def test_infinite_logits_have_no_scores_either():
    """One +inf gives the others a log-probability of -inf, which is no NaN."""
    logits = BENCH.params["target"]["logits"].at[..., 5].set(jnp.inf)
    with pytest.raises(NonFiniteLogits):
        score({"logits": logits}, BENCH.inputs(1), jnp.array([[3, 1]]), target=BENCH.target)


@pytest.mark.ci
def test_rows_that_fail_do_not_depend_on_their_batch():
    params = BENCH.params | {"target": with_nan_after(2)}
    plan = dataclasses.replace(BENCH.plan(Block(), Fixed(2), Sampling()), max_length=7)
    output = traced(params, plan)
    for row in np.flatnonzero(output.trace.failed)[:2]:
        one = traced(params, plan, KEYS[row : row + 1], INPUTS[:1])
        assert one.trace.failed[0] and (one.tokens[0] == output.tokens[row]).all()


def test_an_error_about_a_batch_names_the_text():
    with pytest.raises(NonFiniteLogits, match="output token 3 of text 7;"), naming_texts([5, 7]):
        raise NonFiniteLogits(cast(Any, None), 1, 2)
