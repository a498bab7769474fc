"""The near-tie audit finds what differs, where, and by how much: pytest tests/testing"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import context_of

from specdec import autoregressive_decode, row_keys
from specdec.decoding import token_key
from specdec.sampling import Greedy, MinLength, Processed, Sampling, gumbel
from specdec.testing import Constant, TableTarget, divergences, hostile, sequence_law
from specdec.testing.drafters import Broken
from specdec.types import Request

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


def test_drafters_that_repeat_a_token_claim_what_their_names_say():
    found = {name: x for name, x in hostile(TableTarget(4), 4).items() if isinstance(x, Constant)}
    assert str(found) == str(
        {
            "stop id 1 spam": Constant(1),
            "id beyond the vocabulary": Constant(11),
            "negative id": Constant(-3, 0.25),
            "NaN probabilities": Constant(0, float("nan")),
            "zero probabilities": Constant(0, 0.0),
            "length too long": Constant(0, length=1_000_000),
            "negative length": Constant(0, length=-5),
        }
    )


def test_a_broken_drafter_reports_no_distribution_after_even_tokens():
    """Drafts of 2, 2 and 2 after a 3, one for each kind: all tokens but the first follow a 2."""
    wrong = [
        [np.nan] * 4,
        [np.inf] * 4,
        [-np.inf] * 4,
        [2.25, -1.75, 0.25, 0.25],
        [0.0] * 4,
        [0.5] * 4,
        [0.2525] * 4,
        [np.nan, 0.25, 0.25, 0.25],
        [np.inf, 0.25, 0.25, 0.25],
    ]
    context = context_of([[0, 2, 3]] * 9, vocab_size=4)
    request = Request(context, jax.random.split(KEYS[0], (9, 3)), jnp.full(9, 3))
    params = {"broken": jnp.arange(9)}
    draft, _ = Broken(Constant(2, 0.25)).propose(params, request, None)  # type: ignore[arg-type]
    expected = [[[0.25] * 4, row, row] for row in wrong]
    np.testing.assert_allclose(draft.probs, expected, rtol=1e-6)  # of float32


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
