"""Larger models that compute the same, in NumPy: pytest tests/models/test_growing_by_hand.py"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import t5_in_numpy
from support import tiny_t5

from specdec.models import families
from specdec.models.sizes.growing import Difference, Stream, alike, key_of_streams, opposed
from specdec.models.t5 import T5Config, T5Draft, T5Target


def test_twins_have_equal_entries_or_entries_that_cancel():
    """An odd one is the twin of the first, which gives up what the odd one adds."""
    x = jnp.array([10.0, 11, 12, 13, 14, 15, 16])
    assert alike(x, 3, 0).tolist() == [10, 11, 12, 13, 13, 15, 15]
    assert opposed(x, 3, 0).tolist() == [10, 11, 12, 13, -13, 15, -15]
    assert alike(x[:6], 3, 0).tolist() == [10, 11, 12, 13, 13, 10]
    assert opposed(x[:6], 3, 0).tolist() == [10 - 15, 11, 12, 13, -13, 15]
    assert alike(x, 7, 0).tolist() == opposed(x, 7, 0).tolist() == x.tolist()
    rows = jnp.stack([x[:4], 2 * x[:4]])
    assert alike(rows, 2, 1).tolist() == [[10, 11, 12, 12], [20, 22, 24, 24]]
    assert opposed(rows, 1, 1).tolist() == [[10 - 13, 11, -11, 13], [20 - 26, 22, -22, 26]]


def test_a_wider_stream_keeps_products_and_means_of_squares():
    """R^T R is D'/D, so what reads after what writes is the same product as before."""
    stream = Stream.create(jax.random.key(0), 3, 7)
    assert stream.origin.tolist() == [0, 1, 2, 0, 1, 2, 0] and stream.ratio == 3 / 7
    r = np.zeros([7, 3])
    r[np.arange(7), stream.origin] = stream.weight
    np.testing.assert_allclose(r.T @ r, 7 / 3 * np.eye(3), atol=1e-6)  # rounded to float32
    kernel = np.arange(6.0).reshape(3, 2) + 1
    x = jnp.asarray(kernel, jnp.float32)
    np.testing.assert_allclose(stream.widen(x, 0), 3 / 7 * r @ kernel, rtol=1e-6)
    np.testing.assert_allclose(stream.widen(x.T, 1), kernel.T @ r.T, rtol=1e-6)
    np.testing.assert_allclose(stream.of(x.T), kernel.T @ r.T, rtol=1e-6)
    assert stream.widen(x[:, 0], 0).tolist() == [1, 3, 5, 1, 3, 5, 1]
    key = jax.random.key(5)
    assert (key_of_streams(key) == jax.random.split(key, 3)[0]).all()


def test_a_difference_in_words():
    found = Difference.between(jnp.array([1.0, 3.0]), jnp.array([1.5, 2.0]), "states")
    assert found == (1.0, 1.0, "states")
    assert str(Difference(0.25, 2.0)) == (
        "logits of random texts differ by at most 0.25, which is 0.12 of their standard deviation"
    )


SMALL = tiny_t5(11, 6, 5, head_dim=3, mlp_activations=("relu",), logits_via_embedding=True)
LARGE = dataclasses.replace(
    SMALL, emb_dim=13, num_heads=3, head_dim=6, mlp_dim=8, num_encoder_layers=2, vocab_size=14
)


def drawn(config: T5Config, seed: int) -> Any:
    """Parameters of NumPy; scales of norms are not 1, as they would be in the beginning."""
    draw = np.random.default_rng(seed)

    def values(path: Any, leaf: Any) -> Any:
        numbers = draw.standard_normal(leaf.shape)
        scaled = 1 + 0.3 * numbers if path[-1].key == "scale" else 0.6 * numbers
        return np.asarray(scaled, np.float32)

    shapes = T5Target(config).parameter_shapes()
    return jax.tree_util.tree_map_with_path(values, shapes)


def test_a_grown_t5_has_the_logits_of_the_small_one(monkeypatch):
    """All sizes grow. An added id has a mean of the others' logits, and is never the largest."""
    params = drawn(SMALL, 0)
    # Nothing is drawn by JAX, whose programs for it take seconds to compile.
    monkeypatch.setattr(T5Draft, "init", lambda self, key: drawn_again)
    drawn_again = jax.tree.map(jnp.asarray, drawn(LARGE, 1))
    growth = families.growth_of(SMALL)
    grown = jax.jit(growth.grow, static_argnums=(1, 2))(params, SMALL, LARGE, jax.random.key(3))
    assert jax.tree.map(jnp.shape, grown) == jax.tree.map(
        jnp.shape, T5Target(LARGE).parameter_shapes()
    )
    assert all(np.abs(leaf).min() > 1e-9 for leaf in jax.tree.leaves(grown))
    inputs = np.array([[5, 9, 2, 7, 0], [3, 3, 10, 1, 8]])
    tokens = np.array([[0, 4, 6, 2], [0, 10, 1, 7]])
    small, large = (
        t5_in_numpy.logits(tree, dataclasses.asdict(config), inputs, tokens)
        for tree, config in ((params, SMALL), (grown, LARGE))
    )
    # Twins cancel up to the rounding of float32 weights: 5e-6 of a standard deviation of 1.
    atol = 1e-4 * small.std()
    np.testing.assert_allclose(large[..., :11], small, rtol=0, atol=atol)
    assert (large[..., 11:].max(axis=-1) < large[..., :11].max(axis=-1)).all()
    assert np.abs(large[..., 11] - large[..., 12]).max() > 0.01  # new ids differ from each other


@pytest.mark.parametrize(
    "before, after, says",
    [
        ({}, {"dtype": "bfloat16"}, None),
        ({}, {"mlp_dim": 4}, "mlp_dim is 5 and would become 4; a model only grows"),
        ({}, {"num_decoder_layers": 2}, None),
        ({"head_dim": 1}, {"mlp_dim": 6}, None),
        ({"head_dim": 1}, {"num_heads": 3}, "head_dim is 1, and twins in an added head need two"),
        ({"head_dim": 1}, {"num_encoder_layers": 2}, "head_dim is 1, and twins"),
        ({"head_dim": 1}, {"num_encoder_layers": 2, "head_dim": 2}, None),
        ({"mlp_dim": 1}, {"num_heads": 3}, None),
        ({"mlp_dim": 1}, {"num_decoder_layers": 2}, "mlp_dim is 1, and twins in an added layer"),
    ],
)
def test_what_is_added_has_twins(before, after, says):
    config = dataclasses.replace(SMALL, **before)
    to = dataclasses.replace(config, **after)
    with pytest.raises(ValueError, match=says) if says else contextlib.nullcontext():
        families.growth_of(config).check_growth(config, to)
