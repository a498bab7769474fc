"""A plan says what is decoded, and what that takes: pytest tests/test_plan.py"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import Cycle, StopAfterUnlikely

from specdec import Params, Plan, autoregressive_decode, decode, row_keys
from specdec.drafters import Autoregressive, Drafter, Hybrid, PromptLookup
from specdec.plan import Alone
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Disco, Fixed, Schedule
from specdec.testing import Constant, TableTarget
from specdec.types import Part, Table, TargetCall
from specdec.verifiers import (
    Coupled,
    GreedyMatch,
    SpeculativeSampling,
    SyntheticAcceptance,
    Verifier,
)

TARGET, DRAFT = TableTarget(5), TableTarget(5, scale=2.0)


def plan(drafter=None, verifier=None, schedule=None, sampling=None, **others):
    drafter = drafter or Autoregressive(DRAFT, Sampling())
    verifier, schedule = verifier or SpeculativeSampling(), schedule or Fixed(3)
    return Plan(TARGET, drafter, verifier, schedule, sampling or Sampling(), 8, **others)


@dataclasses.dataclass(frozen=True)
class Both(Drafter):
    """Two models, the second of which drafts only the first token."""

    one: TableTarget
    two: TableTarget

    def models(self):
        return {"one": self.one, "two": self.two}

    def with_models(self, models):
        return dataclasses.replace(self, **models)

    def parts(self, length, source=None):
        return Part("one", 1, length), Part("two", 2, min(length, 1))

    def propose(self, *arguments):
        raise NotImplementedError


def test_exactness_is_stated_and_never_inferred():
    @dataclasses.dataclass(frozen=True)
    class Silent(Verifier):
        def accept(self, draft, scores):
            return jnp.ones(draft.tokens.shape)

        residual = SpeculativeSampling.residual

    class Lossy(TableTarget):
        exact = False

    assert plan().exact and plan().alone().exact
    assert not plan(verifier=Silent()).exact, "who states nothing is not exact"
    assert not plan(verifier=SyntheticAcceptance(0.5)).exact
    assert not dataclasses.replace(plan(), target=Lossy(5)).exact
    assert not dataclasses.replace(plan(), target=Lossy(5)).alone().exact
    assert "NOT EXACT" in str(plan(verifier=Silent())) and "NOT" not in str(plan())


def test_the_same_output_takes_an_exact_plan_and_no_private_draws():
    assert plan(verifier=GreedyMatch(), sampling=Greedy()).same_output
    assert plan(verifier=Coupled()).same_output and not plan().same_output
    assert not plan(verifier=SyntheticAcceptance(0.5), sampling=Greedy()).same_output
    assert plan().alone().same_output


def test_parts_are_the_calls_of_an_iteration():
    assert set(plan().parts()) == {Part("target", 4, 1), Part("draft", 2, 1), Part("draft", 1, 2)}
    assert set(plan(schedule=Fixed(1)).parts()) == {Part("target", 2, 1), Part("draft", 2, 1)}
    assert plan(drafter=Constant(3)).parts() == (Part("target", 4, 1),)
    assert plan().alone(5).parts() == (Part("target", 5, 1),)
    both = plan(drafter=Both(TARGET, DRAFT)).parts()
    assert set(both) == {Part("target", 4, 1), Part("one", 1, 3), Part("two", 2, 1)}


def test_where_lengths_vary_parts_are_means_over_the_measured_ones():
    buckets = plan(schedule=Cycle((0, 2, 4)))
    found = {one[:2]: one.calls for one in buckets.parts(TargetCall.each([0, 1, 2, 4]))}
    assert found == {
        ("target", 1): 0.25,
        ("target", 3): 0.5,
        ("target", 5): 0.25,
        ("draft", 2): 0.75,  # a bucket of 0 asks nobody
        ("draft", 1): (0 + 1 + 3) / 4,  # drafting ends with what is wanted
    }
    stops = plan(schedule=StopAfterUnlikely(4))
    found = {one[:2]: one.calls for one in stops.parts(TargetCall.each([1, 3]))}
    assert found == {("target", 5): 1, ("draft", 2): 1, ("draft", 1): (0 + 2) / 2}
    asked = {one[:2]: one.calls for one in stops.parts([TargetCall(0)])}
    assert asked["draft", 2] == 1, "without a bucket of 0 the drafter is asked for nothing"
    ends = plan(schedule=Fixed(4, stop_at_end=True))
    assert (
        ends.parts(TargetCall.each([1, 3])) == stops.parts(TargetCall.each([1, 3]))
        and ends.gamma is None
    )
    assert stops.gamma is None and buckets.gamma is None and plan().gamma == 3
    assert plan().parts(TargetCall.each([1, 2])) == plan().parts(), "a fixed length is what it is"


def test_models_and_their_parameters_go_by_role():
    trees = {"target": "t", "draft": "d"}
    assert plan().params(trees) == Params("t", "d")
    learnt = plan(schedule=Disco(0.5, buckets=(3,)))
    assert learnt.params(trees | {"schedule": "s"}) == Params("t", "d", schedule="s")
    two = plan(drafter=Both(TARGET, DRAFT))
    trees = {"target": "t", "one": "1", "two": "2"}
    assert two.params(trees | {"more": "3"}) == Params("t", one="1", two="2")
    other = TableTarget(5, classes=2)
    assert two.with_models({"two": other}).models() == {
        "target": TARGET,
        "one": TARGET,
        "two": other,
    }
    assert plan(drafter=Constant(3)).params({"target": "t"}) == Params("t")
    assert plan().with_models({"target": other}).target == other


def test_a_plan_without_a_drafter_is_the_baseline():
    alone = Plan(TARGET, None, None, None, Sampling(), 8)
    assert not alone.drafts and alone.gamma is None and alone == plan().alone()
    assert dataclasses.replace(alone, sampling=Greedy()).drafter == Alone(1, greedy=True)
    params, keys = TARGET.init(jax.random.key(0)), row_keys(0, jnp.arange(5))
    inputs = jnp.ones([5, 2], jnp.int32)
    expected = autoregressive_decode(
        params, keys, inputs, target=TARGET, sampling=Sampling(), max_length=8
    )
    output = decode(Params(params), keys, inputs, alone)
    np.testing.assert_array_equal(output.tokens, expected.tokens)


def test_several_ids_end_a_text_and_none_is_special():
    """Of texts that nothing ends, each is cut behind its first stop id, drafted or not."""
    params = Params(TARGET.init(jax.random.key(0)), TARGET.init(jax.random.key(1)))
    keys, inputs = row_keys(0, jnp.arange(64)), jnp.ones([64, 2], jnp.int32)
    endless = decode(params, keys, inputs, plan(verifier=Coupled(), stop_ids=()))
    assert np.all(endless.length == 8)
    output = decode(params, keys, inputs, plan(verifier=Coupled(), stop_ids=(3, 0)))
    stops = np.isin(endless.tokens, (3, 0))
    length = np.where(stops.any(axis=1), stops.argmax(axis=1) + 1, 8)
    np.testing.assert_array_equal(output.length, length)
    within = np.arange(8)[None] < length[:, None]
    np.testing.assert_array_equal(output.tokens, np.where(within, endless.tokens, 0))
    drafted = np.asarray(output.trace.ended_in_draft)
    assert 0 < drafted.sum() < 64, "some texts end in a draft, some do not"


@pytest.mark.ci
def test_rows_that_are_not_active_stay_empty_and_change_no_other():
    params = Params(TARGET.init(jax.random.key(0)), TARGET.init(jax.random.key(1)))
    keys, inputs = row_keys(0, jnp.arange(6)), jnp.ones([6, 2], jnp.int32)
    active = jnp.array([True, False, True, True, False, True])
    whole = decode(params, keys, inputs, plan())
    output = decode(params, keys, inputs, plan(), active=active)
    assert not np.any(output.length[~active]) and not np.any(output.trace.calls[~active])
    np.testing.assert_array_equal(output.tokens[active], whole.tokens[active])
    with pytest.raises(ValueError, match=r"active is int32\[6\]; give bool \[6\]"):
        decode(params, keys, inputs, plan(), active=jnp.ones([6], jnp.int32))


def draft_view(inputs):
    return inputs["draft"]


def test_inputs_are_a_pytree_and_a_drafter_may_read_another_view():
    """The drafter's model is the target, so it has everything accepted where it reads the same."""

    class Reader(TableTarget):
        def start(self, inputs):
            return super().start(inputs["target"])

        def active(self, inputs):
            return super().active(inputs["target"])

        def prefill(self, params, inputs, capacity):
            return super().prefill(params, inputs["target"], capacity)

    target, model = Reader(5, classes=3), TableTarget(5, classes=3)
    drafter = Autoregressive(model, Greedy(), view=draft_view)
    made = Plan(target, drafter, GreedyMatch(), Fixed(3), Greedy(), 8, ())
    tree = model.init(jax.random.key(0))
    rows = jnp.array([[1, 1], [1, 2], [2, 2], [0, 0]], jnp.int32)  # of every class
    keys = row_keys(0, jnp.arange(4))

    def run(draft):
        return decode(Params(tree, tree), keys, {"draft": draft, "target": rows}, made)

    same, other = run(rows), run(rows + 1)
    np.testing.assert_array_equal(same.tokens, other.tokens)
    assert np.all(same.trace.accepted == same.trace.drafted)
    assert np.any(other.trace.accepted < other.trace.drafted)
    assert same.length.tolist() == [8, 8, 8, 0]


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"verifier": GreedyMatch()},
            r"GreedyMatch compares argmaxes but sampling is Sampling\(.*use SpeculativeSampling",
        ),
        ({"max_length": 0}, "max_length is 0; give a positive integer"),
        ({"max_length": "8"}, "max_length is '8'; give a positive integer"),
        ({"verifier": None}, "the plan has a drafter but its verifier is None; give one"),
        ({"schedule": None}, "the plan has a drafter but its schedule is None; give one"),
        ({"stop_ids": 1}, r"stop_ids is 1; give a tuple of token ids, as in \(1,\)"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(plan(), **change)


@dataclasses.dataclass(frozen=True)
class Renamed(Drafter, Schedule):
    """Another drafter or schedule whose table has this role."""

    role: str
    buckets = (3,)
    propose = None

    def tables(self):
        return {self.role: Table("ngram")}


@pytest.mark.parametrize("role", ["target", "alone", "target/1", "", None])
def test_no_part_takes_the_name_of_the_target(role):
    message = f"Autoregressive has the role {role!r}; give it one that does not name the target"
    named = Autoregressive(DRAFT, Greedy(), role=role)
    for drafter in (named, Hybrid(PromptLookup(), named)):
        with pytest.raises(ValueError, match=message.replace("Autoregressive", r"\w+")):
            plan(drafter=drafter)
    with pytest.raises(ValueError, match=f"has the role {role!r}"):
        plan(drafter=Renamed(role))
    with pytest.raises(ValueError, match=f"has the role {role!r}"):
        plan(schedule=Renamed(role))
    assert plan(drafter=Autoregressive(DRAFT, Greedy(), role="targeted")).models()["targeted"]


def test_drafter_and_schedule_have_parameters_of_their_own():
    drafter = Autoregressive(DRAFT, Greedy(), role="schedule")
    with pytest.raises(ValueError, match="Autoregressive and Disco both own schedule; give the dr"):
        plan(drafter=drafter, schedule=Disco(0.5, buckets=(3,)))
    with pytest.raises(ValueError, match="Renamed and Disco both own schedule"):
        plan(drafter=Renamed("schedule"), schedule=Disco(0.5, buckets=(3,)))


def test_who_does_not_say_what_ends_a_text_is_asked():
    class Silent(TableTarget):
        stop_ids = None

    with pytest.raises(ValueError, match="neither the plan nor Silent has stop ids"):
        Plan(Silent(5), None, None, None, Greedy(), 8)
    assert Plan(Silent(5), None, None, None, Greedy(), 8, stop_ids=[2]).stop_ids == (2,)


def test_a_plan_is_one_static_argument():
    assert hash(plan()) == hash(plan()) and plan() == plan()
    assert plan() != plan(schedule=Fixed(4))


def test_a_long_list_of_ids_is_a_number_in_the_line_of_a_plan():
    """A Whisper suppresses 88 ids, and its first token is one of 99."""

    @dataclasses.dataclass(frozen=True)
    class Named(Greedy):
        languages: tuple = (tuple(range(50259, 50358)), (7,))
        suppressed: tuple = tuple(range(1, 89))
        words: tuple = tuple((i, i + 1) for i in range(30))
        few: tuple = (5, 6)

    line = str(plan(sampling=Named()))
    assert "languages=((99 ids), (7,)), suppressed=(88 ids)" in line
    assert "words=(30 sequences), few=(5, 6)" in line
    many = tuple(range(1, 11))
    assert f"buckets={many}" in str(plan(schedule=Disco(0.5, buckets=many)))
