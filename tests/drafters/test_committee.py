"""Drafters that vote: pytest tests/drafters/test_committee.py"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import PROBABILITIES

from specdec.checkpoints import tables
from specdec.decoding import prefill, row_keys
from specdec.drafters import Autoregressive, Committee, Hybrid, NGram, PromptLookup
from specdec.plan import Plan
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.types import Params, Request
from specdec.verifiers import Block

TARGET = TableTarget(6, classes=3)
TREE = TARGET.init(jax.random.key(0))
# Two tables of texts that say different things.
ONE, TWO = (
    jax.tree.map(jnp.asarray, tables.count(texts, 6, 2))
    for texts in ([[2, 3, 2, 3, 4]], [[5, 5, 2, 5, 4]])
)
INPUTS, KEYS = jnp.full([3, 4], 3), row_keys(0, jnp.arange(3))


def first_q(drafter, **trees):
    """[3, V] the distribution of the first token of a draft."""
    plan = Plan(TARGET, drafter, Block(), Fixed(2), Sampling(), 8)
    keys = jax.vmap(lambda key: jax.random.split(key, 2))(KEYS)

    @jax.jit
    def propose(params):
        state = prefill(params, KEYS, INPUTS, plan)
        request = Request(state.context(plan), keys, jnp.full([3], 2))
        return drafter.propose(params, request, state.drafter)[0]

    return np.asarray(propose(Params(TREE, **trees)).probs[:, 0])


def test_members_of_one_role_read_one_table():
    rule = Sampling()
    unigram, bigram = NGram(1, rule), NGram(2, rule)
    both = Committee((unigram, bigram), rule, (1.0, 3.0))
    expected = 0.25 * first_q(unigram, table=ONE) + 0.75 * first_q(bigram, table=ONE)
    np.testing.assert_allclose(first_q(both, table=ONE), expected, atol=PROBABILITIES)
    assert list(both.tables()) == ["table"]
    assert Hybrid(Hybrid(PromptLookup(), unigram), bigram).tables() == both.tables()


def test_members_of_other_roles_read_tables_of_their_own():
    """The remedy for two tables, and that for two models."""
    rule = Sampling()
    one, two = NGram(2, rule), NGram(2, rule, role="table_2")
    trees = {"table": ONE, "table_2": TWO}
    expected = (first_q(one, table=ONE) + first_q(two, table_2=TWO)) / 2
    np.testing.assert_allclose(
        first_q(Committee((one, two), rule), **trees), expected, atol=PROBABILITIES
    )
    model = Autoregressive(TARGET, rule)
    with pytest.raises(ValueError, match="several members of Committee own draft; give each its"):
        Committee((model, one, model), rule)
    assert Committee((model, Autoregressive(TARGET, Greedy(), role="draft_2")), rule).models()
