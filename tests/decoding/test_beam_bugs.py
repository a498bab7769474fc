"""Bugs planted in beam search, one at a time, and what sees them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from margins import margin
from support import forget_programs, load
from tolerances import SCORES

from specdec.decoding import beam_rules, beam_search, draft_beams
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import BeamRule, HuggingFaceBeams, T5XBeams
from specdec.decoding.draft_beams import DraftBeams
from specdec.models.contract.beam_tree import Slots
from specdec.models.contract.cache import KVCache
from specdec.testing import TableTarget
from specdec.types import Params

pytestmark = pytest.mark.planted

PLAIN = T5XBeams(0.6)
TABLE = TableTarget(vocab_size=9, classes=5, scale=2.0)
TEXTS = jnp.asarray([[2 + i % 7, 3, 1 + i // 7] for i in range(32)], jnp.int32)
LONGEST = 14


@functools.cache
def tables():
    params = TABLE.init(jax.random.key(0))
    noise = jax.random.normal(jax.random.key(1), params["logits"].shape)
    return Params(params, {"logits": params["logits"] + noise})


def plan(rule=PLAIN, drafter=True, stop_ids=(1,)):
    drafts = DraftBeams(TABLE, 8, 2) if drafter else None
    return BeamPlan(TABLE, 4, rule, LONGEST, drafts, stop_ids=stop_ids)


def search(plan, params=None):
    forget_programs()
    found = beam_search.beam_search(params or tables(), TEXTS, plan)
    return jax.tree.map(np.asarray, found)


@functools.cache
def right(rule, drafter, stop_ids):
    return search(plan(rule, drafter, stop_ids))


def differs(rule=PLAIN, drafter=True, stop_ids=(1,)) -> bool:
    """Whether ids or scores of a search are wrong. `right` must be asked before a bug is there."""
    good, found = right(rule, drafter, stop_ids), search(plan(rule, drafter, stop_ids))
    same = np.array_equal(good.tokens, found.tokens)
    return not (same and margin(good.scores, found.scores, **SCORES) <= 1)


def calls(drafter=True) -> int:
    return int(np.sum(search(plan(drafter=drafter)).trace.calls))


@pytest.fixture(autouse=True)
def cases():
    """The right outputs, before anything is planted; compiled programs are forgotten behind it."""
    for rule in (T5XBeams(0.6), HuggingFaceBeams()):
        for drafter in (False, True):
            right(rule, drafter, (1,))
    right(T5XBeams(0.6), True, ())
    yield
    forget_programs()


def test_a_penalty_without_the_stop_id(monkeypatch):
    wrong = lambda self, length: ((5.0 + length - 1) / 6.0) ** self.alpha  # noqa: E731
    monkeypatch.setattr(T5XBeams, "penalty", wrong)
    assert differs()


@pytest.mark.slow
def test_as_many_candidates_as_beams(monkeypatch):
    monkeypatch.setattr(BeamRule, "candidates", lambda self, beams, stop_ids: beams)
    assert differs()


@pytest.mark.parametrize("rule", [T5XBeams, HuggingFaceBeams])
def test_a_search_that_ends_with_the_first_text(monkeypatch, rule):
    monkeypatch.setattr(rule, "ended", lambda self, beams, hits, longest: jnp.any(beams.finished))
    assert differs(rule=rule())


@pytest.mark.slow
def test_slots_kept_one_off(monkeypatch):
    keep = KVCache.keep
    wrong = lambda self, start, kept, width: keep(self, start, kept + 1, width)  # noqa: E731
    monkeypatch.setattr(KVCache, "keep", wrong)
    assert differs()


def test_a_path_that_is_not_the_parents(monkeypatch):
    def wrong(path, parents, layer):
        here = jnp.arange(path.shape[2])[None, None] == layer[:, None, None]
        return jnp.where(here, parents[:, :, None], path)

    monkeypatch.setattr(beam_search, "_led", wrong)
    assert differs(drafter=False)


def test_siblings_that_are_seen(monkeypatch):
    placed = Slots.placed

    def wrong(self, nodes, layers):
        return placed(self, jnp.ones_like(nodes), layers)

    monkeypatch.setattr(Slots, "placed", wrong)
    assert differs()


@pytest.mark.slow
def test_a_child_found_by_its_token_alone(monkeypatch):
    def wrong(tree, parents, tokens):
        same = (tree.tokens[:, None] == tokens[:, :, None]) & (tree.depths[:, None] > 0)
        return jnp.where(jnp.any(same, axis=2), jnp.argmax(same, axis=2), -1).astype(jnp.int32)

    monkeypatch.setattr(beam_search, "_children", wrong)
    assert differs()


@pytest.mark.slow
def test_a_missing_beam_that_is_passed_over(monkeypatch):
    children = beam_search._children
    wrong = lambda *given: jnp.maximum(children(*given), 0)  # noqa: E731
    monkeypatch.setattr(beam_search, "_children", wrong)
    assert differs()


@pytest.mark.slow
def test_live_beams_in_the_wrong_order(monkeypatch):
    """Texts that never end show it: the live beams are returned."""
    best = BeamRule._best
    monkeypatch.setattr(BeamRule, "_best", lambda self, x, count: best(self, x, count)[::-1])
    assert differs(stop_ids=())


@pytest.mark.slow
def test_penalised_live_scores(monkeypatch):
    def wrong(rule, beams):
        good = beam_rules_best_first(rule, beams)
        return good.replace(scores=good.scores / rule.penalty(LONGEST))

    beam_rules_best_first = beam_rules.best_first
    monkeypatch.setattr(beam_search, "best_first", wrong)
    assert differs(stop_ids=())


def more_calls(monkeypatch, *planted) -> bool:
    """Whether a bug of the draft leaves the output alone, and takes more target calls."""
    good = calls()
    monkeypatch.setattr(*planted)
    assert not differs()
    return calls() > good


@pytest.mark.slow
def test_a_last_layer_that_is_not_fed_again(monkeypatch):
    """The slots of the last layer are masked instead, as if its keys had never been written."""
    first = DraftBeams._first

    def wrong(self, own, text, cache, slots, size):
        nothing = text.previous.replace(tokens=jnp.zeros_like(text.previous.tokens))
        return first(self, own, text.replace(previous=nothing), cache, slots, size)

    assert more_calls(monkeypatch, DraftBeams, "_first", wrong)


@pytest.mark.slow
def test_nodes_spent_on_stop_ids(monkeypatch):
    grow = DraftBeams.grow
    wrong = lambda self, *given: grow(self, *given[:-1], ())  # noqa: E731
    assert more_calls(monkeypatch, DraftBeams, "grow", wrong)


def test_reuse_of_stale_nodes(monkeypatch):
    found = draft_beams._found
    wrong = lambda *given: jnp.roll(found(*given), 1, axis=1)  # noqa: E731
    assert more_calls(monkeypatch, draft_beams, "_found", wrong)


@pytest.mark.slow
def test_a_draft_cache_that_is_not_moved(monkeypatch):
    assert more_calls(monkeypatch, DraftBeams, "keep", lambda self, cache, start, slots: cache)


@pytest.mark.slow
def test_wrong_positions(monkeypatch):
    """Tables know no positions; a T5 does."""
    target, params, golden = load("v1_1")
    inputs = jnp.asarray(golden["encoder_input_tokens"])[:2]
    searched = BeamPlan(target, 4, T5XBeams(0.6), 24, DraftBeams(target, 8, 2))
    both = Params(params, params)
    good = beam_search.beam_search(both, inputs, searched)
    positions = Slots.positions
    wrong = lambda self, layers: positions(self, layers) // 2  # noqa: E731
    monkeypatch.setattr(Slots, "positions", wrong)
    forget_programs()
    found = beam_search.beam_search(both, inputs, searched)
    assert found.tokens.tolist() != good.tokens.tolist()
