"""Small parts of drafters and of the loop, by values worked out by hand:
pytest tests/drafters/test_parts_by_hand.py"""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specdec.decoding import forcing, program
from specdec.decoding.keys import row_keys
from specdec.decoding.refilling import Refilled
from specdec.drafters import Drafter, Hybrid, PromptLookup
from specdec.drafters.feeding import catch_up
from specdec.drafters.matching import matches
from specdec.types import Context, Draft, Request
from specdec.verifiers.decide import Verifier


def test_matches_of_the_newest_tokens():
    tokens, newest = jnp.array([[5, 6, 5, 6, 7]]), jnp.array([[6, 5]])
    everywhere = jnp.ones([1, 5], bool)
    np.testing.assert_array_equal(matches(tokens, newest, everywhere), [[0, 2, 0, 2, 0]])
    without = everywhere.at[0, 0].set(False)
    np.testing.assert_array_equal(matches(tokens, newest, without), [[0, 1, 0, 2, 0]])


def test_the_id_0_matches_nothing_before_the_text_or_left_out():
    tokens, newest = jnp.array([[6, 0, 6]]), jnp.array([[6, 0]])
    np.testing.assert_array_equal(matches(tokens, newest, tokens == 6), [[1, 0, 1]])


class Written(struct.PyTreeNode):
    """A cache that holds the tokens themselves."""

    tokens: jax.Array
    length: jax.Array

    def rewind(self, length):
        return self.replace(length=length)


class Writer:
    """A model that writes the tokens that it is fed."""

    def decode(self, params, tokens, cache):
        def one(row, block, start):
            return jax.lax.dynamic_update_slice(row, block, (start,))

        fed = jax.vmap(one)(cache.tokens, tokens, cache.length)
        return None, Written(fed, cache.length + tokens.shape[1])


def test_a_cache_catches_up_in_every_row():
    tokens = jnp.arange(1, 17).reshape(2, 8)
    cache = Written(jnp.zeros([2, 10], int), jnp.array([4, 1]))
    writer, until = Writer(), jnp.array([3, 6])
    fed = catch_up(writer, None, tokens, cache, until=until, width=2)  # type: ignore[arg-type]
    np.testing.assert_array_equal(fed.length, [3, 6])
    np.testing.assert_array_equal(fed.tokens[1, 1:6], tokens[1, 1:6])


def context(length, **others):
    tokens = jnp.zeros([len(length), 9], jnp.int32)
    return Context(tokens, jnp.array(length), tokens[:, :4], None, None, None, **others)


@dataclasses.dataclass(frozen=True)
class Wanted(Drafter):
    """Drafts what is wanted, `most` tokens at the most, and remembers it."""

    most: int

    def init(self, params, context):
        return jnp.full(context.length.shape, -1)

    def propose(self, params, request, state):
        rows, longest = request.keys.shape
        draft = Draft(
            jnp.full([rows, longest], self.most), None, jnp.minimum(request.want, self.most)
        )
        return draft, request.want


def proposed(want, first, second, **fields):
    hybrid, of_text = Hybrid(Wanted(first), Wanted(second), **fields), context([1, 1])
    request = Request(of_text, jnp.zeros([2, 5]), jnp.array(want))
    return hybrid.propose({}, request, hybrid.init({}, of_text))  # type: ignore[arg-type]


def test_the_second_drafter_is_asked_where_the_first_has_too_little():
    draft, (_, wanted) = proposed([2, 5], 3, 4, shortest=4)
    np.testing.assert_array_equal(wanted, [0, 5])
    np.testing.assert_array_equal(draft.length, [2, 4])
    np.testing.assert_array_equal(draft.source, [0, 1])


def test_the_second_drafter_is_not_asked_for_nothing():
    _, (_, wanted) = proposed([2, 3], 3, 4, shortest=4)
    np.testing.assert_array_equal(wanted, [-1, -1])


def test_inner_drafters_are_replaced():
    hybrid, other = Hybrid(Wanted(1), Wanted(2)), PromptLookup()
    assert hybrid.with_inner({"first": other}) == Hybrid(other, Wanted(2))
    assert other.with_inner({}) is other


def test_what_a_context_and_a_verifier_are_by_default():
    plain = context([1])
    assert not plain.shared_noise and not plain.beliefs and plain.stop_ids == ()
    assert (plain.previous, plain.taught, plain.vocab_size, plain.pad_id) == (None, None, None, 0)
    target = SimpleNamespace(prompt=lambda inputs: None)
    assert len(jax.tree.leaves(context([1], target=target, stop_ids=(1,)))) == 3
    switches = "exact", "shared_noise", "greedy_only", "reads_beliefs", "several_paths"
    assert not any(getattr(Verifier, name) for name in switches) and Verifier.rule == "first"


def test_keys_are_those_of_the_first_sample():
    first, second = (row_keys(5, jnp.array([3]), sample) for sample in (0, 1))
    assert (row_keys(5, jnp.array([3])) == first).all() and (first != second).all()


def test_padding_after_a_row_is_0():
    target = SimpleNamespace(pad_id=9)
    tokens = jnp.array([[3, 9, 4, 9, 9], [9, 9, 9, 9, 9]])
    unpadded = forcing.unpadded(target, tokens)  # type: ignore[arg-type]
    np.testing.assert_array_equal(unpadded, [[3, 9, 4, 0, 0], [0, 0, 0, 0, 0]])


def test_a_search_gets_the_prefix(monkeypatch):
    monkeypatch.setattr(program, "beam_search", lambda *given, **how: (given, how))
    result = program.search("params", "keys", "inputs", plan="plan", prefix="prefix")  # type: ignore
    assert result == (("params", "inputs", "plan"), {"prefix": "prefix"})


def test_seconds_of_refilled_rows_are_of_both_programs():
    parts = SimpleNamespace(_begin=SimpleNamespace(seconds=2.0), _loop=SimpleNamespace(seconds=0.5))
    assert Refilled.seconds.fget(parts) == 2.5  # type: ignore[attr-defined]
    parts._loop = None
    assert Refilled.seconds.fget(parts) == 2.0  # type: ignore[attr-defined]
