"""The near-tie audit finds what differs, where, and by how much: pytest tests/testing"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import autoregressive_decode, row_keys
from specdec.decoding import token_key
from specdec.sampling import Greedy, MinLength, Processed, Sampling, gumbel
from specdec.testing import TableTarget, divergences, hostile, sequence_law

TARGET = TableTarget(7)
PARAMS = TARGET.init(jax.random.key(0))
KEYS = row_keys(0, jnp.arange(5))
INPUTS = jnp.ones([5, 2], jnp.int32)


@pytest.mark.parametrize("sampling", [Greedy(), Sampling(temperature=0.8, top_k=4)])
def test_gaps_are_those_of_the_scores_that_decide(sampling):
    plain = autoregressive_decode(
        PARAMS, KEYS, INPUTS, target=TARGET, sampling=sampling, max_length=6, eos_id=()
    ).tokens

    def audit(ours):
        return divergences(TARGET, PARAMS, KEYS, INPUTS, ours, plain, sampling=sampling)

    assert audit(plain) == []

    # Row 3 takes the runner-up at position 2 and goes elsewhere from there.
    fed = jnp.concatenate([jnp.zeros([1, 1], jnp.int32), plain[3:4, :-1]], axis=1)
    cache = TARGET.prefill(PARAMS, INPUTS[3:4], 6)
    scores = TARGET.decode(PARAMS, fed, cache)[0].logits[0, 2]
    if not sampling.greedy:
        noise = gumbel(token_key(KEYS[3], 2), 7)
        scores = jnp.log(sampling.probabilities(scores)) + noise
    second, first = np.argsort(scores)[-2:]
    assert plain[3, 2] == first
    (found,) = audit(plain.at[3, 2].set(second).at[3, 4].set(6).at[3, 5].set(6))
    assert (found.row, found.position) == (3, 2)
    assert found.gap == pytest.approx(
        float(scores[first] - scores[second]), abs=1e-6
    )  # float32, of 4
    assert found.gap > 1e-4


def test_stop_ids_are_the_targets_where_none_are_given():
    class EndsInTwo(TableTarget):
        stop_ids = (2,)

    target = EndsInTwo(4)
    tree, inputs = target.init(jax.random.key(0)), np.array([3])
    law = sequence_law(target, tree, inputs, sampling=Sampling(), max_length=2)
    assert [(law.tokens[:, 0] == token).sum() for token in range(4)] == [4, 4, 1, 4]
    assert {name for name in hostile(target, 4) if "stop id" in name} == {"stop id 2 spam"}
    text = jnp.array([[3, 3]])
    rule = Processed(Greedy(), (MinLength(2),))
    (found,) = divergences(
        target,
        tree,
        row_keys(0, jnp.arange(1)),
        inputs[None],
        text.at[0, 0].set(2),
        text,
        sampling=rule,
    )
    assert found.gap == np.inf, "2 is excluded"
