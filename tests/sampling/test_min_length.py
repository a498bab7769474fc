"""A shortest output: pytest tests/sampling/test_min_length.py"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import few

from specdec import Params, Plan, autoregressive_decode, decode, row_keys
from specdec.drafters import Autoregressive
from specdec.sampling import Greedy, MinLength, Processed, Sampling, unprocessed
from specdec.schedules import Fixed
from specdec.testing import Law, TableTarget, compare
from specdec.types import History
from specdec.verifiers import Coupled, GreedyMatch, SpeculativeSampling

EOS, SIZE, LONGEST, SHORTEST = 1, 4, 4, 2
TARGET = TableTarget(SIZE)
PARAMS = Params(TARGET.init(jax.random.key(0)), TARGET.init(jax.random.key(1)))
# EOS is likely: half of the outputs would be shorter.
PARAMS["target"]["logits"] = PARAMS["target"]["logits"].at[..., EOS].add(1)


def shortest(sampling, length=SHORTEST):
    return Processed(sampling, (MinLength(length),))


def test_eos_is_the_only_token_that_goes_and_only_at_the_beginning():
    logits = jnp.log(jnp.array([[0.1, 0.6, 0.2, 0.1]] * 3))
    history = History(jnp.zeros([3, 9], jnp.int32), 1 + jnp.arange(3), (EOS,))
    probs = shortest(Sampling()).probabilities(logits, history=history)
    np.testing.assert_allclose(probs[:2], [[0.25, 0, 0.5, 0.25]] * 2, rtol=1e-6)
    np.testing.assert_allclose(probs[2], [0.1, 0.6, 0.2, 0.1], rtol=1e-6)
    best_of_the_others = shortest(Sampling(top_k=1)).probabilities(logits, history=history)
    assert best_of_the_others[0].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("stop_ids", [(3,), (0, 2)])
def test_the_stop_ids_are_those_that_are_given(stop_ids):
    logits = jnp.log(jnp.array([[0.1, 0.6, 0.2, 0.1]] * 2))
    history = History(jnp.zeros([2, 9], jnp.int32), 1 + jnp.arange(2), stop_ids)
    probs = shortest(Sampling(), 1).probabilities(logits, history=history)
    assert [i for i in range(4) if probs[0, i] == 0] == list(stop_ids)
    assert np.all(probs[1] > 0)


def run(sampling, verifier, rows):
    drafter = Autoregressive(TARGET, unprocessed(sampling))
    plan = Plan(TARGET, drafter, verifier, Fixed(3), sampling, LONGEST, (EOS,))
    inputs = jnp.ones([rows, 1], jnp.int32)
    return decode(PARAMS, row_keys(0, np.arange(rows)), inputs, plan)


def alone(sampling, rows):
    return autoregressive_decode(
        PARAMS["target"],
        row_keys(0, np.arange(rows)),
        jnp.ones([rows, 1], jnp.int32),
        target=TARGET,
        sampling=sampling,
        max_length=LONGEST,
        eos_id=EOS,
    )


def law():
    """By definition: every output, without EOS among the first SHORTEST tokens."""
    table = np.asarray(PARAMS["target"]["logits"], np.float64)[0]
    found = {}
    for tokens in itertools.product(range(SIZE), repeat=LONGEST):
        prob, total, last = 1.0, 0, 0
        for i, token in enumerate(tokens):
            weights = np.exp(table[total, last])
            weights[EOS] *= i >= SHORTEST
            prob *= weights[token] / weights.sum()
            total, last = (total + token) % SIZE, token
            if token == EOS:
                tokens = (*tokens[: i + 1], *[0] * (LONGEST - i - 1))
                break
        found[tokens] = prob
    keep = {tokens: prob for tokens, prob in found.items() if prob > 0}
    return Law(np.array(list(keep)), np.array(list(keep.values())))


def test_speculation_keeps_the_law_though_the_drafter_does_not_know_the_length():
    tokens = run(shortest(Sampling()), SpeculativeSampling(), 20000).tokens
    outcome = compare(law(), tokens)
    assert outcome.passed, outcome


@pytest.mark.parametrize("verifier", few([Coupled(), SpeculativeSampling(), GreedyMatch()]))
def test_greedy_outputs_are_those_of_the_target_alone(verifier):
    assert alone(Greedy(), 1).length[0] <= SHORTEST
    rule = shortest(Greedy())
    expected = alone(rule, 1)
    assert expected.length[0] > SHORTEST
    assert run(rule, verifier, 1).tokens.tolist() == expected.tokens.tolist()
