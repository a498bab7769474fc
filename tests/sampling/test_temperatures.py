"""Temperatures near 0 and beyond float32: pytest tests/sampling/test_temperatures.py"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import PROBABILITIES

from specdec import cli
from specdec.drafters import Committee, Uniform
from specdec.drafters.committee import VoteRecord
from specdec.sampling import Sampling, draw, is_distribution
from specdec.training import Align

LOGITS = np.random.default_rng(0).normal(size=(4, 5, 11)).astype(np.float32) * 8
NEAR_ZERO = (1e-8, 1e-9, 1e-10, 1e-30, 1e-38, 1e-42, 1e-300)
FILTERS = ({}, {"top_k": 3}, {"top_p": 0.9})
ALONE = "--gin.DRAFTER=None"
DEMO = "Drei Bäcker müssen eine leckere Kirsche, die klein ist, kochen."


@jax.jit
def drawn(logits):
    """Returns tokens and probabilities for each temperature and filter, from one program.

    Compiled code may compute a logit twice, with different roundings.
    """
    found = []
    for temperature in (1e-9, 1e-10, 1e-42):
        for more in FILTERS:
            probs = Sampling(temperature, **more).probabilities(logits)
            keys = jax.random.split(jax.random.key(0), logits.shape[:-1])
            found.append((jax.vmap(jax.vmap(draw))(keys, probs), probs))
    return found


@pytest.mark.parametrize("scale", [1.0, 1e30], ids="{:g}".format)
def test_near_zero_only_the_likeliest_token_is_left(scale):
    """1e30 / 1e-10 is more than float32 holds."""
    best = LOGITS.argmax(-1)
    for tokens, probs in drawn(LOGITS * np.float32(scale)):
        np.testing.assert_array_equal(tokens, best)
        assert np.asarray(is_distribution(probs)).all()
        np.testing.assert_array_equal(probs, np.eye(11)[best])


def test_near_zero_equal_tokens_share_the_probability_and_excluded_ones_have_none():
    logits = jnp.array([3.0, -jnp.inf, 5.0, 5.0])
    for temperature in NEAR_ZERO:
        assert Sampling(temperature).probabilities(logits).tolist() == [0, 0, 0.5, 0.5]


@pytest.mark.parametrize("temperature", [1e37, 1e39, 1e300])
def test_at_very_high_temperatures_excluded_tokens_are_still_excluded(temperature):
    found = jax.jit(Sampling(temperature).probabilities)(jnp.array([3.0, -jnp.inf, 5.0]))
    np.testing.assert_allclose(found, [0.5, 0, 0.5], atol=PROBABILITIES)


def test_the_votes_of_a_committee_near_zero_go_to_the_best_member():
    record = VoteRecord(jnp.array([[-3.0, -2.0], [0.0, -9.0]]), *[None] * 4)
    for temperature in NEAR_ZERO:
        members = (Uniform(), Uniform())
        own = Committee(members, Sampling(), decay=0.9, temperature=temperature)
        weights = jnp.concatenate(jax.jit(own._weights)(record), axis=1)
        assert weights.tolist() == [[0, 1], [1, 0]]


def test_training_has_a_least_temperature():
    assert Align({"forward_kl": 1.0}, 0.01).temperature == 0.01
    with pytest.raises(ValueError, match=r"Align.temperature is 0.0099; give a number from 0.01 o"):
        Align({"forward_kl": 1.0}, 0.0099)


@pytest.mark.ci  # each compiles a program
@pytest.mark.parametrize("flags", [["--temperature=1e-8"], ["--temperature=1e-10", ALONE]], ids=len)
def test_the_demo_writes_its_greedy_text_near_zero(flags, capsys):
    flags = ["--gin_file=demo.gin", "--limit=1", "--verifier=block", *flags]
    assert cli.main(["decode", *flags]) == 0
    assert capsys.readouterr().out == f"{DEMO}\n"
