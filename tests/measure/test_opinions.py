"""What a drafter would say along a text: pytest tests/measure/test_opinions.py"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import few
from tolerances import PROBABILITIES

from specdec.checkpoints import tables
from specdec.drafters import (
    Autoregressive,
    Committee,
    Drawing,
    EarlyExit,
    Hybrid,
    NGram,
    NoSource,
    PromptLookup,
)
from specdec.measure.opinions import (
    LENIENCE,
    MOST,
    Taught,
    _refused,
    of,
    opinions,
    recorded,
    teach,
    tossed,
)
from specdec.measure.recording import Texts, _rounded, measure
from specdec.plan import Plan
from specdec.sampling import Greedy, MinLength, Processed, Sampling
from specdec.schedules import Fixed
from specdec.testing import Constant, TableTarget
from specdec.types import Draft, Params
from specdec.verifiers import Coupled

V, T = 7, 4
TARGET = TableTarget(V, classes=3, num_layers=2)
PARAMS = Params(TARGET.init(jax.random.key(0)))
INPUTS = jnp.array([[2, 3, 0], [3, 4, 3]])
TEXTS = jnp.array([[0, 2, 3, 5, 1], [0, 4, 1, 0, 0]])  # start tokens first
LENGTHS = jnp.array([4, 2])


def asked(drafter, sampling=None, params=PARAMS, text=TEXTS):
    """Returns the target's view of the texts, and what the drafter says of them."""
    sampling = sampling or drafter.sampling
    plan = Plan(TARGET, drafter, Coupled(), Fixed(3), sampling, T)
    taught = teach(params, INPUTS, text[:, :-1], plan=plan)
    return taught, opinions(params, INPUTS, text, LENGTHS, taught, plan=plan)


def one_place(p, q, likely=None, believed=None, token=0, coin=0.0):
    """Calls `of` for one place of one text."""
    p, q, likely, believed = (
        None if x is None else jnp.asarray(x)[None, None] for x in (p, q, likely, believed)
    )
    taught = Taught(p, likely, jnp.zeros([1, 1, 3]), None)
    found = of(q, taught, jnp.full([1, 1], token), jnp.full([1, 1], coin), likely=believed)
    return jax.tree.map(lambda x: np.asarray(x)[0, 0].tolist(), found)


@pytest.mark.parametrize(
    "p, q, ratio",
    [
        ([0.5, 0.5], [0.25, 0.75], 0.5),
        ([0.25, 0.75], [0.5, 0.5], 2.0),
        ([0.0, 1.0], [1.0, 0.0], 1.0),  # it came out all the same, and was drafted
        ([0.0, 1.0], [0.5, 0.5], 1.0),
        ([0.0, 1.0], [0.0, 1.0], 0.0),  # or was not
        ([0.5, 0.5], [0.0, 0.0], 0.0),
        ([1e-9, 1.0], [1.0, 0.0], MOST),
    ],
)
def test_the_ratio_is_of_the_texts_own_token(p, q, ratio):
    assert one_place(p, q).ratio == ratio


def test_what_a_drawing_drafter_says():
    p, q = [0.1, 0.2, 0.7], [0.5, 0.3, 0.2]
    found = one_place(p, q, token=1)
    sums = [0.1 + 0.2 + 0.2, 0.2 + 0.3 + 0.2, 1 / 3 + 0.3 + 0.2, 1.0]
    assert found.rates == pytest.approx(sums) and len(sums) == len(LENIENCE)
    assert found.proposed == 0 and found.confidence == pytest.approx(0.3)
    assert found.entropy == pytest.approx(-sum(x * np.log(x) for x in q))
    assert found.top[:4] == pytest.approx([0.5, 0.3, 0.2, 0])
    # Of the first two tokens more is drafted than the target has: 0.4 and 0.1.
    refused = [one_place(p, q, coin=coin).refused for coin in (0.0, 0.79, 0.81, 0.99)]
    assert refused == pytest.approx([0.5, 0.5, 0.3, 0.3])
    assert one_place([0.7, 0.2, 0.1], [0.2, 0.3, 0.5]).refused == pytest.approx(0.3), "coin 0"


def test_what_a_greedy_drafter_says():
    """The proposal is judged by the target's logits, and its confidence is the drafter's."""
    p, likely = [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]
    q, believed = [0.0, 1.0, 0.0], [0.3, 0.6, 0.1]
    found = one_place(p, q, likely, believed, token=2)
    assert found.rates == [0, 1, 1, 1], "0.3 is at least half of 0.5"
    assert found.proposed == 1 and found.confidence == pytest.approx(0.6)
    assert found.ratio == 0 and found.top[:3] == pytest.approx([0.6, 0.3, 0.1])
    exactly_half = one_place(p, q, [0.25, 0.25, 0.5], believed)
    assert exactly_half.rates == [0, 1, 1, 1]
    assert one_place(p, q, [0.2, 0.2, 0.6], believed).rates == [0, 0, 1, 1]
    assert one_place([1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.1, 0.9]).rates == [0, 1, 1, 1], "a tie"
    nothing = one_place(p, [0.0] * 3, likely, believed)
    assert nothing.proposed == -1 and nothing.rates == [0, 0, 0, 0]


@pytest.mark.parametrize("row", [[np.nan, 0.5, 0.5], [0.5, 0.5, 0.5], [1.5, -0.5, 0.0]])
def test_a_row_that_is_no_distribution_is_no_proposal(row):
    """It is what a drafter draws from, or what a greedy one holds likely."""
    p, certain = [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]
    for found in (one_place(p, row), one_place(p, certain, likely=p, believed=row)):
        assert found.proposed == -1 and found.rates == [0, 0, 0, 0]
        assert found.ratio == 0 and found.refused == 0
        assert found.confidence == 0 and found.entropy == 0 and not any(found.top)


@pytest.mark.parametrize("sampling", few([Greedy(), Sampling(0.7)]), ids=["greedy", "drawn"])
def test_all_layers_of_the_target_say_what_it_says(sampling):
    """It is asked again and again, each time with the cache of the text so far."""
    taught, found = asked(EarlyExit(2, sampling))
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(found.rates[row, :length, 0], 1, atol=PROBABILITIES)
        own = taught.p[row, :length].argmax(axis=1)
        np.testing.assert_array_equal(found.proposed[row, :length], own)
        if sampling.greedy:
            sure = taught.likely[row, :length].max(axis=1)
            np.testing.assert_allclose(found.confidence[row, :length], sure, atol=PROBABILITIES)


@dataclasses.dataclass(frozen=True)
class Reports(Drawing):
    """Drafts a block of what it is given: of the texts so far, and of the texts themselves."""

    block: ClassVar[int] = 6
    reads_hidden: ClassVar[bool] = True
    sampling: ClassVar[Greedy] = Greedy()

    def init(self, params, context):
        return context.length  # 1: nothing but the start token

    def propose(self, params, request, state):
        context, keys, want, stop = request.context, request.keys, request.want, request.stop
        pending = context.length[:, None] - 1
        last = jnp.take_along_axis(context.tokens, pending, axis=1)
        behind = jnp.arange(1 + T)[None] > pending
        sums = jnp.sum(jnp.where(behind, context.tokens + context.hidden[:, :, 2], 0), axis=1)
        states = jnp.take_along_axis(context.hidden, pending[:, :, None], axis=1)[:, 0]
        given = [
            context.cache.length,
            state + 1 - context.length,  # how often it was asked before, from where it began
            context.active,
            last[:, 0] + sums,
            states[:, 1],  # of the target that produced the pending token: the sum before it
            context.taught[:, 1],
        ]
        tokens = jnp.stack([x.astype(jnp.int32) for x in given], axis=1)
        assert keys.shape == (2, 6) and context.taught.shape == (2, 6) and stop is None
        assert context.stop_ids == (1,)
        assert context.cache.capacity >= T + self.block, "a whole block fits behind any place"
        return Draft(tokens, None, want), state + 1


def test_a_drafter_is_asked_at_each_place_with_the_text_before_it():
    """Its drafts are recorded whole, behind a stop id too."""
    _, found = asked(Reports(), Greedy())
    proposed = np.asarray(found.proposed)
    assert proposed.shape == (2, T, 6) and found.rates.shape == (2, T, 6, len(LENIENCE))
    np.testing.assert_array_equal(proposed[:, :, 0], [range(T)] * 2)  # in the target's cache
    np.testing.assert_array_equal(proposed[:, :, 1], 1)
    np.testing.assert_array_equal(proposed[:, :, 2], [[1, 1, 1, 1], [1, 1, 0, 0]])
    np.testing.assert_array_equal(proposed[:, :, 3], TEXTS[:, :-1])  # and nothing behind it
    before = np.cumsum(TEXTS, axis=1)[:, :-2] % V
    np.testing.assert_array_equal(proposed[:, 1:, 4], before)
    np.testing.assert_array_equal(proposed[:, 0, 4], 0)
    np.testing.assert_array_equal(proposed[:, :-1, 5], TEXTS[:, 2:])  # the second of what is next
    np.testing.assert_array_equal(proposed[:, -1, 5], TEXTS[:, -1])  # or the last again


@dataclasses.dataclass(frozen=True)
class Known(Reports):
    """Drafts the text itself, or with `late` each token one place late."""

    late: int = 0
    block: ClassVar[int] = 3
    reads_hidden: ClassVar[bool] = False

    def init(self, params, context):
        return ()

    def propose(self, params, request, state):
        context, want = request.context, request.want
        return Draft(jnp.roll(context.taught, self.late, axis=1), None, want), state


def test_each_token_of_a_block_is_compared_with_the_text_in_its_place():
    """Behind the end it is the last place once more."""
    taught, found = asked(Known(), Sampling())
    own = np.take_along_axis(taught.p, TEXTS[:, 1:, None], axis=2)[:, :, 0]
    places = np.minimum(np.arange(T)[:, None] + np.arange(3)[None], T - 1)
    np.testing.assert_allclose(found.rates[..., 0], own[:, places], atol=PROBABILITIES)
    np.testing.assert_allclose(found.ratio, 1 / own[:, places], rtol=1e-5)
    np.testing.assert_array_equal(found.proposed, TEXTS[:, 1:][:, places])
    _, late = asked(Known(1), Sampling())
    assert late.ratio[0, 0].tolist() == [0, 0, 0], "all its tokens are different"


class PadsWithSix(TableTarget):
    """A target that fills inputs up with a token of its own; 0 is a token like any other."""

    pad_id: ClassVar[int] = 6


def test_what_is_kept_of_a_text():
    """The sums of a block's first places, the inputs up to their padding, and rounded figures."""
    target = PadsWithSix(V, classes=3)
    inputs = np.array([[2, 6, 0, 6], [6, 6, 6, 6], [3, 6, 6, 6]], np.int32)
    tokens = np.array([[0, 2, 3, 1], [0, 0, 0, 0], [0, 4, 0, 1]], np.int32)
    texts = Texts(np.array([4, -1, 5]), inputs, tokens, np.array([3, 0, 3]))
    plan = Plan(target, Known(), Coupled(), Fixed(3), Sampling(), 3)
    params = Params(target.init(jax.random.key(0)))
    found = list(measure(plan, params, [texts], tables=False))
    assert [one.index for one in found] == [4, 5]
    assert [one.inputs for one in found] == [[2, 6, 0], [3]]
    assert [one.output for one in found] == [[2, 3, 1], [4, 0, 1]]
    p = teach(params, inputs, tokens[:, :-1], plan=plan).p
    own = np.take_along_axis(p, tokens[:, 1:, None], axis=2)[:, :, 0]
    for one, row in zip(found, (0, 2), strict=True):
        assert one.tokens == one.proposes == 3
        assert one.accepted["model"][0] == pytest.approx(float(own[row].sum()), rel=1e-5)
        recording = one.drafts["Known"]
        assert recording.keys() == {"proposed", "confidence", "entropy", "top"}, "it is greedy"
        assert recording["proposed"][0] == one.output
        assert recording["confidence"][0] == [1, 1, 1]


def test_figures_are_rounded_to_six_digits():
    assert _rounded([[1 / 3, 2.0], [1e-7]]) == [[0.333333, 2.0], [0.0]]


def test_the_target_is_judged_behind_its_processors():
    """What they exclude is not likely either, where a lenient target would take it."""
    rule = Processed(Greedy(), (MinLength(2),))
    plan = Plan(TARGET, Known(), Coupled(), Fixed(3), rule, T)
    taught = teach(PARAMS, INPUTS, TEXTS[:, :-1], plan=plan)
    assert not taught.likely[:, :2, 1].any() and taught.likely[:, 2:, 1].all()
    np.testing.assert_allclose(taught.likely.sum(axis=2), 1, atol=PROBABILITIES)
    np.testing.assert_array_equal(taught.p.argmax(axis=2), taught.likely.argmax(axis=2))


def test_a_model_is_asked_in_one_call_as_it_drafts():
    """The model reads its own inputs, and its processors know the position of each token."""
    rule = Processed(Sampling(0.7), (MinLength(2),))
    drafter = Autoregressive(TARGET, rule, view=NoSource())
    params = PARAMS | {"draft": PARAMS["target"]}
    taught, found = asked(drafter, Sampling(), params)
    fed = TEXTS[:, :-1]
    logits = PARAMS["target"]["logits"][1, jnp.cumsum(fed, axis=1) % V, fed]  # of an input [1]
    logits = logits.at[:, :2, 1].set(-jnp.inf)
    q = jax.nn.softmax(logits / 0.7)
    np.testing.assert_array_equal(found.proposed, q.argmax(axis=2))
    confidence = np.take_along_axis(q, TEXTS[:, 1:, None], axis=2)[:, :, 0]
    np.testing.assert_allclose(found.confidence, confidence, atol=PROBABILITIES)
    refused = _refused(q, taught.p, tossed(TEXTS[:, 1:]))
    np.testing.assert_allclose(found.refused, refused, atol=PROBABILITIES)


def test_a_model_that_votes_with_a_table_is_not_asked_alone():
    """The model is the target: alone, every token of it would be accepted."""
    members = Autoregressive(TARGET, Sampling()), NGram(1, Sampling())
    table = {name: jnp.asarray(x) for name, x in tables.count([[0, 3, 4, 1]], V, order=1).items()}
    params = PARAMS | {"draft": PARAMS["target"], "table": table}
    _, found = asked(Committee(members, Sampling()), Sampling(), params)
    assert (found.rates[:, :, 0] < 0.99).all()


def test_where_nothing_is_drafted_nothing_is_proposed():
    _, found = asked(Constant(2, length=0), Sampling())
    assert (found.proposed == -1).all() and not found.rates.any()


@pytest.mark.parametrize("size", [V - 1, V + 2])
def test_an_id_that_a_model_or_the_target_lacks_has_no_probability(size):
    model = TableTarget(size, classes=3)
    params = PARAMS | {"draft": model.init(jax.random.key(1))}
    taught, found = asked(Autoregressive(model, Sampling(0.7)), Sampling(), params)
    fed, classes = TEXTS[:, :-1], jnp.sum(INPUTS, axis=1, keepdims=True) % 3
    logits = params["draft"]["logits"][classes, jnp.cumsum(fed, axis=1) % size, fed]
    q = np.zeros([2, T, V], np.float32)
    q[:, :, : min(size, V)] = jax.nn.softmax(logits[:, :, :V] / 0.7)
    right = np.minimum(taught.p, q).sum(axis=2)
    np.testing.assert_allclose(found.rates[:, :, 0], right, atol=PROBABILITIES)
    np.testing.assert_array_equal(found.proposed, q.argmax(axis=2))


def test_drafters_are_recorded_by_where_they_are():
    model, other = Autoregressive(TARGET, Greedy()), PromptLookup()
    assert list(recorded(model)) == [("Autoregressive", model)]
    assert list(recorded(other)) == []
    inner = Hybrid(other, model)
    assert list(recorded(inner)) == [("second Autoregressive", model)]
    nested = Hybrid(other, inner)
    assert list(recorded(nested)) == [("second second Autoregressive", model)]
