"""Previous outputs as drafts: pytest tests/drafters/test_previous_output.py"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import Plan, decode, row_keys
from specdec.decoding import prefill
from specdec.drafters import Hybrid, PreviousOutput, PromptLookup
from specdec.sampling import Sampling
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.types import Params, Request, Revised
from specdec.verifiers import Coupled

VOCABULARY, LONGEST, ROWS = 7, 14, 16
TARGET = TableTarget(VOCABULARY)
PARAMS = Params(TARGET.init(jax.random.key(0)))
INPUTS = jax.random.randint(jax.random.key(1), [ROWS, 4], 2, VOCABULARY)
KEYS = row_keys(0, jnp.arange(ROWS))
DRAFTER = PreviousOutput()


def plan_of(drafter=DRAFTER, gamma=4):
    return Plan(TARGET, drafter, Coupled(), Fixed(gamma), Sampling(), LONGEST, ())


@functools.cache
def alone():
    return decode(PARAMS, KEYS, INPUTS, plan_of().alone())


def decoded(previous, **of_plan):
    return decode(PARAMS, KEYS, Revised(INPUTS, jnp.asarray(previous)), plan_of(**of_plan))


def calls(start=0):
    """The calls that each text takes whose every token is drafted, but for padding at its end."""
    found = []
    for row in np.asarray(alone().tokens):
        end, at, number = np.flatnonzero(row)[-1] + 1, start, 0
        while at < LONGEST:
            at, number = at + min(4, max(end - at, 0)) + 1, number + 1
        found.append(number)
    return found


def distances(text, previous):
    """Levenshtein's distances of a text from each beginning of `previous`, cell by cell."""
    row = list(range(len(previous) + 1))
    for token in text:
        above, row = row, [row[0] + 1]
        for j, other in enumerate(previous):
            row.append(min(above[j + 1] + 1, row[j] + 1, above[j] + (token != other)))
    return row


def place(text, previous, longest):
    """The place in `previous` that a text has reached, as the class states it."""
    costs = []
    for j, edits in enumerate(distances(text, previous)):
        same = 0
        while same < min(j, len(text), longest) and previous[j - 1 - same] == text[-1 - same]:
            same += 1
        costs.append(2 * edits - same)
    return costs.index(min(costs))


def drafts_along(texts, previous, pieces, drafter=DRAFTER):
    """The draft after each piece of given texts [B, L], as if they had been committed."""
    plan = plan_of(drafter)
    state = prefill(PARAMS, KEYS, Revised(INPUTS, jnp.asarray(previous)), plan)
    context, of_drafter = plan.context(state), state.drafter
    tokens = jnp.asarray(np.pad(texts, ((0, 0), (1, 0))))
    keys = jax.vmap(lambda key: jax.random.split(key, 4))(KEYS)
    propose = jax.jit(drafter.propose)
    for end in pieces:
        length = jnp.full([ROWS], 1 + end, jnp.int32)
        now = context.replace(tokens=tokens, length=length)
        want = jnp.full([ROWS], 4, jnp.int32)
        draft, of_drafter = propose(PARAMS, Request(now, keys, want, None), of_drafter)
        yield end, draft


@pytest.mark.parametrize("longest", [4, 1])
def test_drafts_go_on_where_the_edit_distance_is_smallest(longest):
    rng = np.random.default_rng(longest)
    texts = rng.integers(2, VOCABULARY, [ROWS, LONGEST])
    previous = np.zeros([ROWS, LONGEST], np.int32)
    ends = rng.integers(0, LONGEST + 1, ROWS)
    for row, end in enumerate(ends):  # the texts, with a third of the tokens changed
        changed = np.where(
            rng.random(LONGEST) < 0.3, rng.integers(2, VOCABULARY, LONGEST), texts[row]
        )
        previous[row, :end] = np.roll(changed, rng.integers(-2, 3))[:end]
    drafted = 0
    for at, draft in drafts_along(
        texts, previous, (0, 1, 2, 3, 5, 6, 9, 13), PreviousOutput(longest)
    ):
        for row, end in enumerate(ends):
            before = previous[row, :end].tolist()
            found = place(texts[row, :at].tolist(), before, longest)
            length = int(draft.length[row])
            assert draft.tokens[row, :length].tolist() == before[found : found + 4]
            drafted += length
    assert drafted > 100


def test_an_output_that_stays_takes_one_call_for_each_draft():
    output = decoded(alone().tokens)
    np.testing.assert_array_equal(output.tokens, alone().tokens)
    np.testing.assert_array_equal(output.trace.calls, calls())


def test_a_text_without_a_previous_output_gets_no_draft():
    previous = np.array(alone().tokens)
    previous[::2] = TARGET.pad_id
    output = decoded(previous)
    np.testing.assert_array_equal(output.tokens, alone().tokens)
    assert output.trace.drafted[::2].sum() == 0
    assert np.all(output.trace.calls[::2] == LONGEST)
    other = decoded(previous, drafter=Hybrid(PreviousOutput(), PromptLookup()))
    np.testing.assert_array_equal(other.tokens, alone().tokens)
    assert other.trace.drafted[::2].sum() > 0


def test_a_prefix_moves_the_place():
    prefix = alone().tokens[:, :6]
    given = Revised(INPUTS, alone().tokens)
    output = decode(PARAMS, KEYS, given, plan_of(), prefix=prefix)
    np.testing.assert_array_equal(output.tokens, alone().tokens)
    np.testing.assert_array_equal(output.trace.calls, calls(start=6))


def test_previous_outputs_that_are_missing_are_asked_for():
    with pytest.raises(ValueError, match="PreviousOutput drafts from the previous outputs of the"):
        decode(PARAMS, KEYS, INPUTS, plan_of())
