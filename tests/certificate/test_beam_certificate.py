"""The certificate of beams passes what is sound and fails what is not."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from support import few, forget_programs, teacher_forced

from specdec.certificate import BeamSubject, certify, refuse
from specdec.certificate import beam_checks as beams
from specdec.decoding import beam_search
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import T5XBeams
from specdec.decoding.draft_beams import DraftBeams
from specdec.drafters import Autoregressive
from specdec.models.contract.beam_tree import Slots
from specdec.models.contract.cache import KVCache
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.testing.drafters import HARMS, HarmfulModel
from specdec.types import Params
from specdec.verifiers import GreedyMatch

TABLE = TableTarget(vocab_size=9, classes=5, scale=2.0)
TEXTS = np.array([[2 + i % 7, 3, 1 + i // 7] for i in range(24)], np.int32)
LONGEST = 12
SEARCH = BeamPlan(TABLE, 4, T5XBeams(0.6), LONGEST, DraftBeams(TABLE, 8, 2), best_only=True)


@functools.cache
def tables() -> Params:
    params = TABLE.init(jax.random.key(0))
    noise = jax.random.normal(jax.random.key(1), params["logits"].shape)
    return Params(params, {"logits": params["logits"] + noise})


def subject(params: Params | None = None, search: BeamPlan = SEARCH) -> BeamSubject:
    drafter = Autoregressive(TABLE, Greedy())
    plan = Plan(TABLE, drafter, GreedyMatch(), Fixed(2), Greedy(), LONGEST)
    return BeamSubject(plan, params or tables(), TEXTS, batch_size=12, search=search)


@pytest.mark.slow
def test_a_sound_search_is_certified():
    seen = []
    checks = list(certify(subject(), seen.append))
    assert seen == [check.name for check in checks]
    assert seen == ["beams", "best", "perfect", "hostile", "audit"]
    assert all(check.passed for check in checks), "\n".join(map(str, checks))
    figures = {check.name: check.figures for check in checks}
    assert figures["beams"]["identical"] == len(TEXTS)
    assert figures["beams"]["calls"] < figures["beams"]["steps"]
    assert len(figures["hostile"]["cases"]) == 5
    assert figures["audit"]["beams"] > 2 * len(TEXTS)
    again = certify(subject(), seen.append, known={check.name: check for check in checks})
    assert list(again) == checks and len(seen) == 5


def found(scores=0.0, tokens=0, steps=0) -> beams.Check:
    """Returns the first check of outputs whose first text has these errors."""
    made = jax.tree.map(np.zeros_like, output())
    trace = made.trace.replace(steps=made.trace.steps + 1, calls=made.trace.calls + LONGEST)
    made = made._replace(length=made.length + 3, trace=trace)
    ours = jax.tree.map(np.copy, made)
    ours.scores[0, 0] += scores
    ours.tokens[0, 1, 0] += tokens
    ours.trace.steps[0, 0] += steps
    one = subject()
    one.__dict__.update(plain_beams=made, drafted_beams=ours)
    return beams.beams(one)


@functools.cache
def output():
    shapes = jax.eval_shape(
        functools.partial(beam_search._search, plan=subject().all_beams, active=None, prefix=None),
        tables(),
        jnp.asarray(TEXTS),
    )
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


def test_a_beam_a_score_or_a_step_that_differs_fails(monkeypatch):
    """A gap that is no near-tie is what the audit of a mistake finds."""
    monkeypatch.setattr(beams, "_gap", lambda *given: 0.1)
    assert found().passed and found().figures["identical"] == len(TEXTS)
    for wrong in ({"scores": 1e-3}, {"scores": np.nan}, {"tokens": 1}, {"steps": 1}):
        assert not found(**wrong).passed, wrong
    monkeypatch.setattr(beams, "_gap", lambda *given: np.inf)
    assert not found(tokens=1).passed
    monkeypatch.setattr(beams, "_gap", lambda *given: 1e-6)
    assert found(tokens=1).passed and found(tokens=1).figures["identical"] == len(TEXTS) - 1


def test_searches_of_the_checks(monkeypatch):
    """A draft of the target itself does not reuse scores, and hostile drafts have eight texts."""
    asked: list = []

    def searched(self, plan, params=None, rows=None):
        asked.append((plan, params, rows))
        return jax.tree.map(lambda x: x[:rows], output())

    monkeypatch.setattr(BeamSubject, "searched", searched)
    monkeypatch.setattr(
        beams, "slowdowns", lambda _, runs: {name: len(runs[name]()[0]) for name in runs}
    )
    one, target = subject(), tables()["target"]
    power = beams.perfect(one).power
    assert power is not None and power.wanted == 0.15
    ((plan, params, rows),) = asked
    assert plan == dataclasses.replace(one.all_beams, drafter=DraftBeams(TABLE, 4, 2, reuse=False))
    assert params["target"] is params[plan.drafter.role] is target and rows is None
    asked.clear()
    check = beams.hostile(one)
    assert check.figures["slowdown"] == dict.fromkeys(["alone", *HARMS], 8)
    assert {rows for plan, _, rows in asked if plan != one.all_beams.alone()} == {8}
    assert {plan.drafter for plan, *_ in asked} - {None} == {
        DraftBeams(HarmfulModel(TABLE, harm, SEARCH.stop_ids), 8, 2) for harm in HARMS
    }


def test_the_audit_scores_beams_by_their_tokens():
    """The log-probabilities of a table's tokens, over ((5 + n) / 6)^0.6 for a finished beam."""
    rng, made = np.random.default_rng(0), output()
    tokens = rng.integers(2, 9, made.tokens.shape).astype(np.int32)
    length = rng.integers(1, LONGEST + 1, made.length.shape).astype(np.int32)
    finished = rng.random(made.finished.shape) < 0.5
    rows, width = length.shape
    inputs = np.repeat(TEXTS, width, axis=0)
    flat = tokens.reshape(rows * width, LONGEST)
    fed = np.concatenate([TABLE.start(jnp.asarray(inputs))[:, None], flat[:, :-1]], axis=1)
    logits = np.asarray(teacher_forced(TABLE, tables()["target"], inputs, fed), np.float64)
    log_probs = np.take_along_axis(log_softmax(logits, axis=-1), flat[:, :, None], 2)[:, :, 0]
    total = np.where(np.arange(LONGEST) < length.reshape(-1, 1), log_probs, 0).sum(axis=1)
    scores = total.reshape(length.shape)
    scores = np.where(finished, scores / ((5 + length) / 6) ** 0.6, scores)
    order = np.argsort(-scores, axis=1)
    tokens, length, finished, scores = (
        np.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), axis=1)
        for x in (tokens, length, finished, scores.astype(np.float32))
    )
    one = subject()
    one.__dict__["drafted_beams"] = made._replace(
        tokens=tokens, length=length, finished=finished, scores=scores
    )
    check = beams.audit(one)
    assert check.passed and check.figures["beams"] == rows * width, str(check)
    scores[5, 3] -= 0.5
    check = beams.audit(one)
    assert not check.passed and check.figures["score_error"] == pytest.approx(0.5, rel=1e-4)
    scores[5] = scores[5, ::-1]
    assert beams.audit(one).figures["out_of_order"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("change, passes", [(0.3, False), (3e-6, True)])
def test_texts_that_differ_are_near_ties_or_mistakes(change, passes):
    """The ids 3 and 4 have almost the same logits, and their order is reversed in the parameters of
    the search with a draft. No text ends, so the last token of two beams is one of the two."""
    logits = tables()["target"]["logits"]
    tied = logits.at[..., 4].set(logits[..., 3] + change)
    turned = logits.at[..., 4].set(logits[..., 3] - change)
    endless = dataclasses.replace(SEARCH, stop_ids=())
    one = subject(tables() | {"target": {"logits": tied}}, endless)
    params = tables() | {"target": {"logits": turned}}
    output = one.searched(one.all_beams, params)
    check = beams._agreement("beams", one, one.all_beams, output, params)
    assert check.figures["identical"] < len(TEXTS)
    assert check.passed == passes, check


def test_what_cannot_be_certified_is_refused():
    with pytest.raises(ValueError, match="the plan drafts nothing, so there is nothing to certify"):
        refuse(SEARCH.alone())
    half = dataclasses.replace(SEARCH, target=Half(9))
    with pytest.raises(ValueError, match="the target computes in bfloat16, .*in float32"):
        refuse(half)


class Half(TableTarget):
    dtype = "bfloat16"  # type: ignore[assignment]


def wrong_path(path, parents, layer):
    here = jnp.arange(path.shape[2])[None, None] == layer[:, None, None]
    return jnp.where(here, parents[:, :, None], path)


def by_token_alone(tree, parents, tokens):
    same = (tree.tokens[:, None] == tokens[:, :, None]) & (tree.depths[:, None] > 0)
    return jnp.where(jnp.any(same, axis=2), jnp.argmax(same, axis=2), -1).astype(jnp.int32)


def first_without_the_last_layer(self, own, text, *given, right=DraftBeams._first):
    nothing = text.previous.replace(tokens=jnp.zeros_like(text.previous.tokens))
    return right(self, own, text.replace(previous=nothing), *given)


KEEP, PLACED, CHILDREN = KVCache.keep, Slots.placed, beam_search._children
GROW = DraftBeams.grow
PLANTED = {  # what is wrong, where, and the check that sees it
    "slots kept one off": (
        (KVCache, "keep", lambda self, start, kept, width: KEEP(self, start, kept + 1, width)),
        beams.beams,
    ),
    "siblings that are seen": (
        (Slots, "placed", lambda self, nodes, layers: PLACED(self, jnp.ones_like(nodes), layers)),
        beams.beams,
    ),
    "a child found by its token alone": (
        (beam_search, "_children", by_token_alone),
        beams.beams,
    ),
    "a missing beam that is passed over": (
        (beam_search, "_children", lambda *given: jnp.maximum(CHILDREN(*given), 0)),
        beams.beams,
    ),
    "a missing beam of a hostile draft": (
        (beam_search, "_children", lambda *given: jnp.maximum(CHILDREN(*given), 0)),
        beams.hostile,
    ),
    "a path that is not the parents'": ((beam_search, "_led", wrong_path), beams.audit),
    "a draft cache that is not moved": (
        (DraftBeams, "keep", lambda self, cache, start, slots: cache),
        beams.perfect,
    ),
    "a last layer that is not fed again": (
        (DraftBeams, "_first", first_without_the_last_layer),
        beams.perfect,
    ),
    "nodes spent on stop ids": (
        (DraftBeams, "grow", lambda self, *given: GROW(self, *given[:-1], ())),
        beams.perfect,
    ),
}


@pytest.mark.planted
@pytest.mark.parametrize("name", few(PLANTED))
def test_a_planted_bug_is_caught(monkeypatch, name):
    planted, check = PLANTED[name]
    monkeypatch.setattr(*planted)
    forget_programs()
    try:
        found = check(subject())
    finally:
        monkeypatch.undo()
        forget_programs()
    assert not found.passed, str(found)
