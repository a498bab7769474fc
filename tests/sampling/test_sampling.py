"""The one function from logits to probabilities: pytest tests/sampling/test_sampling.py"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tolerances import FLOAT64, PROBABILITIES

from specdec.sampling import (
    Greedy,
    Sampling,
    draw,
    draw_shared,
    fit_vocabulary,
    is_distribution,
)
from specdec.sampling.drawing import _invert
from specdec.sampling.standard import _nucleus_threshold
from specdec.testing import FALSE_ALARM, Law, compare

logits_rows = st.lists(st.floats(-8, 8, width=16), min_size=2, max_size=9)


probabilities = jax.jit(lambda sampling, logits: sampling.probabilities(logits), static_argnums=0)
inverted = jax.jit(_invert)


def by_definition(logits, temperature, top_k, top_p):
    """Temperature, then top-k, then top-p, token by token in float64."""
    p = np.exp(np.float64(logits) / temperature)
    p /= p.sum()
    if top_k is not None:
        p = np.where(p >= np.sort(p)[::-1][min(top_k, len(p)) - 1], p, 0)
        p /= p.sum()
    if top_p is not None:
        order = np.argsort(-p, kind="stable")
        kept = 0.0
        for index in order:
            if kept >= top_p:
                break
            kept += p[index]
            least = p[index]
        p = np.where(p >= least, p, 0)
        p /= p.sum()
    return p


@given(
    logits=logits_rows,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([None, 1, 2, 3, 50]),
    top_p=st.sampled_from([None, 0.05, 0.37, 0.9, 1.0]),
)
def test_probabilities_follow_the_definition(logits, temperature, top_k, top_p):
    with jax.enable_x64(True):
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        ours = np.asarray(probabilities(sampling, jnp.asarray(logits, jnp.float64)))
    expected = by_definition(logits, temperature, top_k, top_p)
    # A nucleus may end on either side of a token where the mass equals top_p up to rounding.
    if top_p is not None and np.any(np.abs(np.cumsum(-np.sort(-expected)) - top_p) < 1e-9):
        return
    np.testing.assert_allclose(ours, expected, atol=FLOAT64)


def test_order_of_the_filters_matters_and_is_temperature_first():
    logits = jnp.log(jnp.array([0.5, 0.3, 0.2]))
    # At temperature 0.5 the first token has 0.66 of the mass, at 1 it has 0.5.
    kept = Sampling(temperature=0.5, top_p=0.6).probabilities(logits)
    assert np.array_equal(kept > 0, [True, False, False])
    # top-k first leaves 0.625 and 0.375, of which the first alone is a nucleus of 0.6.
    kept = Sampling(top_k=2, top_p=0.6).probabilities(logits)
    assert np.array_equal(kept > 0, [True, False, False])


@pytest.mark.parametrize("top_k, kept", [(1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3])])
def test_as_many_tokens_are_kept_as_top_k_says(top_k, kept):
    probs = jnp.array([0.1, 0.4, 0.2, 0.3])
    found = Sampling(top_k=top_k).probabilities(jnp.log(probs))
    right = np.where(np.isin(np.arange(4), kept), probs, 0)
    np.testing.assert_allclose(found, right / right.sum(), atol=PROBABILITIES)


def test_a_nucleus_of_everything_keeps_the_least_likely_token():
    assert Sampling(top_p=1.0).probabilities(jnp.array([0.0, -60.0]))[1] > 0


def test_ties_are_kept_together():
    logits = jnp.array([1.0, 2.0, 2.0, 0.0])
    assert np.array_equal(Sampling(top_k=1).probabilities(logits), [0, 0.5, 0.5, 0])
    assert np.array_equal(Sampling(top_p=0.1).probabilities(logits), [0, 0.5, 0.5, 0])


def test_a_nucleus_that_has_exactly_the_mass_is_enough():
    probs = jnp.array([0.25, 0.5, 0.125, 0.125])
    for mass, least in ((0.5, 0.5), (0.75, 0.25), (0.76, 0.125)):
        assert _nucleus_threshold(probs, mass).tolist() == [least]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sampling", [Greedy(), Sampling(0.7, top_k=5, top_p=0.8)])
def test_dtype_is_kept_and_rows_are_distributions(sampling, dtype):
    with jax.enable_x64(True):
        logits = jax.random.normal(jax.random.key(0), (3, 4, 300), dtype)
        probs = probabilities(sampling, logits)
        assert probs.dtype == dtype and probs.shape == logits.shape
        np.testing.assert_allclose(probs.sum(axis=-1), 1, atol=1e-6)  # float32 sums of 300


def test_greedy_takes_the_first_of_equals():
    probs = Greedy().probabilities(jnp.array([0.0, 3.0, 3.0, 1.0]))
    assert np.array_equal(probs, [0, 1, 0, 0])


def test_ids_that_a_vocabulary_lacks_have_no_probability():
    narrow, none = jnp.array([[[-1.0, -2.0]]]), -np.inf
    assert fit_vocabulary(narrow, 4).tolist() == [[[-1, -2, none, none]]]
    assert fit_vocabulary(narrow, 2).tolist() == [[[-1, -2]]]
    assert fit_vocabulary(narrow, 1).tolist() == [[[-1]]]


@pytest.mark.parametrize("draw_one", [draw, draw_shared])
@pytest.mark.parametrize("size", [4, 50])  # `draw` has blocks of 2, and of 8 with padding
def test_draws_follow_the_probabilities_and_need_no_normalisation(draw_one, size):
    places = np.array([0, size // 2, size - 1])
    probs = np.zeros(size, np.float32)
    probs[places] = 7 * np.array([0.1, 0.55, 0.35])
    keys = jax.random.split(jax.random.key(0), 30_000)
    tokens = np.asarray(jax.jit(jax.vmap(lambda key: draw_one(key, jnp.asarray(probs))))(keys))
    law = Law(places[:, None], np.array([0.1, 0.55, 0.35]))
    result = compare(law, tokens[:, None])
    assert result.passed and result.degrees == 2, str(result)
    shifted = Law(law.tokens, np.array([0.13, 0.53, 0.34]))
    assert compare(shifted, tokens[:, None]).p_value < FALSE_ALARM


def test_a_draw_never_takes_what_has_no_probability():
    last = np.float32(1 - 2**-24)  # no uniform number is larger
    weights = jnp.array([0, 0.3, 0, 0.7, 0])
    assert int(inverted(jnp.float32(0), weights)) == 1
    assert int(inverted(last, weights)) == 3
    assert int(inverted(jnp.float32(1), weights)) == 3, "where a product is rounded up"
    assert int(inverted(jnp.float32(0.5), jnp.array([0.5, 0.5]))) == 1, "each has half of [0, 1)"
    key, drawn = jax.random.key(0), jax.jit(draw)
    for size in (1, 2, 3, 30):
        for place in range(size):
            assert int(drawn(key, np.eye(size, dtype=np.float32)[place])) == place
    for hopeless in (jnp.zeros(30), jnp.full(30, jnp.nan)):  # still an id that exists
        assert 0 <= int(drawn(key, hopeless)) < 30


def test_a_sum_that_grows_by_rounding_draws_nothing():
    """Sums over a tree are not those of one weight after the other: of some 500 weights, as many as
    blocks of mT5's vocabulary, they grow also where a weight is zero."""
    random, grew = np.random.default_rng(0), 0
    for _ in range(50):
        weights = random.exponential(size=500).astype(np.float32)
        weights[random.random(500) < 0.5] = 0
        sums = np.asarray(jnp.cumsum(weights))
        for i in 1 + np.flatnonzero((np.diff(sums) > 0) & (weights[1:] == 0)):
            uniform = np.float32(sums[i - 1] / sums[-1])
            if sums[i - 1] <= np.float32(uniform * sums[-1]) < sums[i]:
                grew += 1
                assert weights[int(inverted(jnp.float32(uniform), jnp.asarray(weights)))] > 0
    assert grew > 10


def test_shared_noise_draws_the_same_token_from_similar_distributions():
    keys = jax.random.split(jax.random.key(0), 1000)
    p = jax.nn.softmax(jax.random.normal(jax.random.key(1), (50,)))
    q = p.at[0].mul(1.5)
    same = jax.vmap(lambda key: draw_shared(key, p) == draw_shared(key, q))(keys)
    assert np.mean(same) > 0.98  # independent draws agree in some 5 %


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"temperature": 0.0}, r"temperature is 0.0; .* or use Greedy\(\) for temperature 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0; give a positive integer, or None"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"top_p": 0.0}, r"top_p is 0.0; give a number above 0, up to 1, or None"),
        ({"top_p": 1.5}, "top_p is 1.5"),
    ],
)
def test_wrong_values_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**fields)


UNIT = 2.0**-23  # float32's relative precision


@pytest.mark.parametrize(
    "row, is_one",
    [
        ([0.5, 0.5], True),
        ([1, 0], True),
        ([0.5, 0.5 + 1000 * UNIT], True),
        ([0.5, 0.5 - 1000 * UNIT], True),
        ([0.5, 0.5 + 1050 * UNIT], False),
        ([0.5, 0.5 - 1050 * UNIT], False),
        ([1.5, -0.5], False),
        ([0, 0], False),
        ([np.nan, 1], False),
        ([np.inf, 0], False),
    ],
)
def test_what_is_a_distribution(row, is_one):
    assert bool(is_distribution(jnp.array(row, jnp.float32))) == is_one


def test_the_sum_of_a_bfloat16_row_is_not_rounded_to_bfloat16():
    row = jnp.array([0.5, 0.5 + 2**-8], jnp.bfloat16)
    assert float(row.sum()) == 1 and not is_distribution(row)


def test_the_sum_of_a_float64_row_has_to_be_as_exact_as_float64():
    with jax.enable_x64(True):
        assert is_distribution(jnp.array([[0.5, 0.5], [0.5, 0.5 + UNIT]])).tolist() == [True, False]
