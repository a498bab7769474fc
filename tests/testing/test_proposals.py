"""Drafters that report another q than they draw from: pytest tests/testing/test_proposals.py"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import decode, row_keys
from specdec.checkpoints import tables
from specdec.drafters import (
    Autoregressive,
    Committee,
    Hybrid,
    MultiPath,
    NGram,
    PromptLookup,
)
from specdec.drafters.drafter import Drafter
from specdec.models.contract.draft_tree import Nodes
from specdec.plan import Plan
from specdec.sampling import Sampling, draw
from specdec.schedules import Fixed
from specdec.testing import FALSE_ALARM, Bench, Constant, check_drafter, proposals, tally
from specdec.testing.excess import (
    ALL,
    COUNTS,
    DRAWS,
    LOWEST,
    RANKS,
    Tally,
    _counted,
    _LastDraft,
    by_rank,
    excess,
    seen,
    tail,
)
from specdec.types import Draft
from specdec.verifiers import SpeculativeSampling

BENCH = Bench.create(max_length=6)
STORED = [[0, *text, 1] for text in np.random.default_rng(0).integers(2, 6, [40, 4])]
COUNTED = {name: jnp.asarray(array) for name, array in tables.count(STORED, 6).items()}
PARAMS = BENCH.params | {"table": COUNTED}
ROWS = 512


@dataclasses.dataclass(frozen=True)
class Smoothed(Drafter):
    """Draws the token that another drafter copies with probability a half, else any token.

    After a token that was not the copied one, all tokens are equally likely.
    """

    drafter: Drafter

    def inner(self):
        return {"drafter": self.drafter}

    def init(self, params, context):
        return self.drafter.init(params, context)

    def propose(self, params, request, state):
        draft, state = self.drafter.propose(params, request, state)
        size, follows = request.context.vocab_size, jnp.ones(len(draft.tokens), bool)
        tokens, probs = [], []
        for place in range(draft.tokens.shape[1]):
            copied = jax.nn.one_hot(draft.tokens[:, place], size)
            weight = jnp.where(follows, 0.5, 0.0)[:, None]
            probs.append(weight * copied + (1 - weight) / size)
            tokens.append(jax.vmap(draw)(request.keys[:, place], probs[-1]))
            follows = tokens[-1] == draft.tokens[:, place]
        tokens, probs = (jnp.stack(x, axis=1) for x in (tokens, probs))
        return Draft(tokens, probs, draft.length), state


LIES = ("honest", "squared", "tempered", "shifted", "another key", "one-hot", "filtered")


@dataclasses.dataclass(frozen=True)
class Liar(Drafter):
    """Draws as another drafter, and reports a q of kind params["lie"] of `LIES`."""

    drafter: Drafter

    def inner(self):
        return {"drafter": self.drafter}

    @property
    def sources(self):
        return self.drafter.sources

    def init(self, params, context):
        return self.drafter.init(params, context)

    def propose(self, params, request, state):
        draft, after = self.drafter.propose(params, request, state)
        fold = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, 9)))
        other, _ = self.drafter.propose(params, request._replace(keys=fold(request.keys)), state)
        q = draft.probs
        told = {
            "honest": q,
            "squared": q**2,
            "tempered": q**0.6,
            "shifted": jnp.concatenate([q[:, 1:], q[:, :1]], axis=1),
            "another key": other.probs,
            "one-hot": jax.nn.one_hot(draft.tokens, q.shape[-1]),
            "filtered": jnp.where(q < 0.1, 0, q),
        }
        assert tuple(told) == LIES
        probs = jnp.stack([*told.values()])[params["lie"]]
        probs = probs / jnp.sum(probs, axis=-1, keepdims=True)
        return draft.replace(probs=probs), after


MODEL = Autoregressive(BENCH.target, Sampling())
COUNT = NGram(3, Sampling())
COPY = Smoothed(PromptLookup())
DRAFTERS = {
    "model": MODEL,
    "count": COUNT,
    "copy": COPY,
    "hybrid": Hybrid(COPY, MODEL),
    "committee": Committee((MODEL, COUNT), Sampling(0.7), (3.0, 1.0)),
    "paths": MultiPath(BENCH.target, Sampling(), paths=2),
}


def outcome(drafter, params=PARAMS, gamma=3, rows=ROWS):
    plan = Plan(
        BENCH.target, drafter, SpeculativeSampling(), Fixed(gamma), Sampling(), BENCH.max_length
    )
    keys = row_keys(3, jnp.arange(rows))
    return proposals([tally(params, keys, BENCH.inputs(rows), plan=plan)], plan.sources)


KINDS = ("model", "count", "copy", "hybrid")


@pytest.mark.planted
@pytest.mark.parametrize(
    "kind", [*KINDS, *(pytest.param(one, marks=pytest.mark.slow) for one in ("committee", "paths"))]
)
def test_liars_are_seen_and_honest_drafters_are_not(kind):
    found = {lie: outcome(Liar(DRAFTERS[kind]), PARAMS | {"lie": i}) for i, lie in enumerate(LIES)}
    assert found.pop("honest").p_value > 1e-3
    assert {lie: str(result) for lie, result in found.items() if result.passed} == {}


def test_the_page_has_the_liars():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "mistakes.md").read_text()
    table = page.split("## Drafters that report another distribution")[1].split("\n## ")[0]
    head, *rows = re.findall(r"^\| (.*) \|$", table, re.MULTILINE)
    assert head.split(" | ")[1:] == [*KINDS]
    assert [row.split(" | ") for row in rows] == [[lie, *["seen"] * 4] for lie in LIES[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "hybrid"])
def test_a_thousand_honest_runs_raise_no_alarm(kind):
    """The declared rate of `FALSE_ALARM` is a bound: of a thousand runs none comes near it."""
    plan = Plan(
        BENCH.target, DRAFTERS[kind], SpeculativeSampling(), Fixed(3), Sampling(), BENCH.max_length
    )
    p_values = []
    for seed in range(1000):
        keys = row_keys(seed, jnp.arange(16))
        counted = tally(PARAMS, keys, BENCH.inputs(16), plan=plan)
        p_values.append(proposals([counted], plan.sources).p_value)
    print(f"the lowest of {len(p_values)} bounds is {min(p_values):.2g}")
    assert min(p_values) > 1e-4


@pytest.mark.ci
def test_a_drafter_of_ones_own_that_lies_is_refused_at_once():
    @dataclasses.dataclass(frozen=True)
    class Squares(Autoregressive):
        def propose(self, *args):
            draft, state = super().propose(*args)
            q = draft.probs**2
            return draft.replace(probs=q / q.sum(axis=-1, keepdims=True)), state

    said = []
    with pytest.raises(AssertionError, match="draws from other distributions than it reports"):
        check_drafter(Squares(BENCH.target, Sampling()), BENCH.params["draft"], say=said.append)
    assert len(said) == 1 and said[0].endswith("its tokens and the distributions that it reports")


def test_excess_is_as_defined():
    """Against numbers worked out one token after the other, with ties."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.5] * 7, [2, 3]).astype(np.float32)
    probs[0, 0] = [0.25, 0, 0.25, 0.25, 0, 0.25, 0]
    tokens, other = rng.integers(0, 7, [2, 2, 3])
    tokens[0, 0] = 3
    found = [np.asarray(x) for x in excess(*map(jnp.asarray, (probs, tokens, other)))]
    assert found[0].shape == (2, 3, COUNTS + 1)
    for row, place in np.ndindex(2, 3):
        p, token = probs[row, place].astype(np.float64), tokens[row, place]
        order = sorted(range(7), key=lambda x: (-p[x], x))
        in_order = (order[:1], order[1:2], order[2:5], order[5:])
        groups = [set(ids) for ids in (*in_order, *(range(r, 7, 4) for r in range(4)))]
        values = [[float(x in group) for x in range(7)] for group in groups]
        with np.errstate(divide="ignore"):
            values.append(list(np.minimum(-np.log(p), LOWEST) / LOWEST))
        values.append([float(x == other[row, place]) for x in range(7)])
        for count, f in enumerate(np.array(values)):
            mean = (p * f).sum()
            spread = (p * (f - mean) ** 2).sum()
            # Sums of seven float32 numbers of at most 1.
            assert found[0][row, place, count] == pytest.approx(f[token] - mean, abs=1e-6)
            assert found[1][row, place, count] == pytest.approx(spread, abs=1e-6)  # likewise


def test_groups_by_rank_break_ties_by_id():
    """Of eight tokens that are equally likely the first is the likeliest."""
    probs = jnp.full([1, 4, 8], 1 / 8, jnp.float32)
    held = by_rank(probs, jnp.array([[0, 3, 6, 7]]))
    assert jnp.argmax(held[0, :, :, 1], axis=-1).tolist() == [0, 2, 3, 3]
    np.testing.assert_allclose(held[0, 0, :, 0], [1 / 8, 1 / 8, 3 / 8, 3 / 8], rtol=1e-6)


def test_tails_and_what_is_seen_are_freedmans():
    assert tail(np.array(30.0), 40.0, 5) == pytest.approx(10 * math.exp(-900 / (2 * (40 + 10))))
    assert tail(np.array([0.0, -30.0]), np.array([0.0, 40.0]), 5)[0] == 1
    for variance in (0.0, 3.0, 5000.0):
        threshold = float(seen(variance, 7)) - 2.33 * math.sqrt(variance)
        assert tail(np.array(threshold), variance, 7) == pytest.approx(FALSE_ALARM)


Q = np.array([[0.5, 0.25, 0.125, 0.125], [0.125, 0.125, 0.25, 0.5]], np.float32)


def two(tokens, last, length=2, compares=True):
    """Counts of a draft of two tokens after token 2, compared with another draft."""
    draft = Draft(jnp.array([tokens], jnp.int32), jnp.asarray(Q)[None], jnp.array([length]))
    before = _LastDraft(jnp.array([last], jnp.int32), jnp.asarray(Q)[None], jnp.ones([1, 2], bool))
    drawn, counts = _counted(draft, jnp.array([2]), before, jnp.bool_(compares), 4)
    return drawn, *(np.asarray(x)[0] for x in counts)


def test_the_next_draw_is_compared_as_far_as_the_tokens_before_are_the_same():
    cross = slice(ALL - RANKS, ALL)
    _, more, variance = two([0, 2], [0, 1])
    np.testing.assert_allclose(more[0, cross], [0.5, -0.25, -0.25, 0])
    np.testing.assert_allclose(more[1, cross], [-0.5, 0.75, -0.25, 0])
    np.testing.assert_allclose(variance[1, cross], [0.25, 3 / 16, 3 / 16, 0])
    _, more, variance = two([0, 2], [1, 2])  # the second token follows another one
    assert more[0, cross].any() and not more[1, cross].any() and not variance[1, cross].any()
    assert not two([0, 2], [0, 1], compares=False)[1][:, cross].any()
    drawn, more, variance = two([0, 2], [0, 1], length=1)
    assert not more[1].any() and not variance[1].any() and more[0].any()
    assert drawn.there.tolist() == [[True, False]]


def test_a_token_is_counted_if_it_repeats_the_one_before():
    _, more, variance = two([2, 2], [3, 3])
    # After the pending token 2, of which q says an eighth, and after the draft's 2, of a quarter.
    np.testing.assert_allclose(more[:, COUNTS], [7 / 8, 3 / 4])
    np.testing.assert_allclose(variance[:, COUNTS], [7 / 64, 3 / 16])


def test_the_node_of_a_path_is_counted_if_it_repeats_its_parent_or_the_node_before():
    tokens = jnp.array([[1, 3, 1, 3]], jnp.int32)  # two paths, 1 1 and 3 3
    q = jnp.full([1, 4, 4], 0.25)
    parents = jnp.array([[-1, -1, 0, 1]], jnp.int32)
    draft = Draft(tokens, q, jnp.array([2]), nodes=Nodes(parents, jnp.ones([1, 4], bool), 2))
    none = _LastDraft(tokens, q, jnp.zeros([1, 4], bool))
    _, (more, _) = _counted(draft, jnp.array([3]), none, jnp.bool_(False), 4)
    own = np.asarray(more)[0, :, COUNTS : COUNTS + 2]
    np.testing.assert_allclose(own, [[-0.25, -0.25], [0.75, -0.25], [0.75, -0.25], [0.75, -0.25]])


def test_sums_are_by_source_and_depth_and_over_all_depths():
    tokens = np.array([[100, 50], [900, 450]])
    more, variance = np.zeros([2, 2, ALL]), np.zeros([2, 2, ALL])
    variance[:, :, 1] = 9.0
    variance[0, :, COUNTS - 1] = 4.0
    more[1, 1, 0], variance[1, 1, 0] = -90.0, 100.0
    found = proposals([Tally(tokens, more, variance)] * 2, ("copies", "model"))
    assert found.tokens == 3000 and found.where == "depth 1 of model" and not found.passed
    assert found.share == pytest.approx(180 / 900) and found.tests == 2 * 3 * ALL
    assert found.p_value == pytest.approx(2 * found.tests * math.exp(-(180**2) / (2 * (200 + 60))))
    assert found.variance == 200  # of the first rank, of both sources and depths
    assert found.detectable(np.ones(1)) == pytest.approx(seen(200.0, found.tests) / 3000)
    twice = float(seen(400.0, found.tests)) / 6000
    assert found.detectable(np.array([2.0])) == pytest.approx(twice)
    assert found.temperature == pytest.approx(float(seen(16.0, found.tests)) / (LOWEST * 16))
    more[1, 0, 0], variance[1, 0, 0] = -90.0, 100.0
    found = proposals([Tally(tokens, more, variance)], ())
    assert found.where == "all depths" and found.share == pytest.approx(180 / 1350)


def test_a_batch_has_sums_of_each_source_depth_and_count():
    """Groups by rank and id, the log-probability, two tokens before, the next draw by rank."""
    plan = Plan(BENCH.target, COUNT, SpeculativeSampling(), Fixed(3), Sampling(), 6)
    keys = row_keys(3, jnp.arange(2))
    found = jax.eval_shape(functools.partial(tally, plan=plan), PARAMS, keys, BENCH.inputs(2))
    shapes = [(x.shape, str(x.dtype)) for x in found]
    assert shapes == [((1, 3), "int32"), ((1, 3, 15), "float32"), ((1, 3, 15), "float32")]


@pytest.mark.ci
def test_the_drafter_is_asked_for_every_text_that_a_call_continues():
    plan = Plan(BENCH.target, Constant(3), SpeculativeSampling(), Fixed(3), Sampling(), 6)
    keys = row_keys(3, jnp.arange(8))
    trace = decode(PARAMS, keys, BENCH.inputs(8), plan).trace
    counted = tally(PARAMS, keys, BENCH.inputs(8), plan=plan)
    assert int(counted.tokens.sum()) == DRAWS * int(trace.drafted.sum()) > 0
    assert not counted.excess.any() and not counted.variance.any()  # a certain draft
