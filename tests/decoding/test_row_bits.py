"""Rows with the same bits in calls of every width: pytest tests/decoding/test_row_bits.py"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny_t5

from specdec import certificate, cli
from specdec.certificate import Subject, exactness
from specdec.decoding import decode, row_keys
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import T5XBeams
from specdec.decoding.row_bits import (
    NotTheSameBits,
    RowPlace,
    check_same_beams,
    check_same_bits,
    compared,
    made_up,
    widths_of,
)
from specdec.drafters import Autoregressive, MultiPath
from specdec.engine import Engine, Placement
from specdec.engine.beam_engine import beam_plan
from specdec.models.bases.stack import StackModel
from specdec.models.layers.attention import MASKED, AttentionPolicy, attend_grouped
from specdec.models.placement.layouts import Layout
from specdec.models.t5 import T5Target
from specdec.plan import Plan
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed, Heuristic
from specdec.testing import TableTarget
from specdec.types import Params
from specdec.verifiers import Block, Coupled, GreedyMatch

GAMMA, N = 3, 12


@dataclasses.dataclass(frozen=True)
class Uneven(TableTarget):
    """A target whose last row in a call has other bits, from calls on `wide` tokens on.

    If `every`, all rows have.
    """

    wide: int = 2
    every: bool = False

    def decode(self, params, tokens, cache, **others):
        output, fed = super().decode(params, tokens, cache, **others)
        width = tokens.shape[1]
        if width < self.wide:
            return output, fed
        changed = (jnp.arange(width)[None, :, None] == width - 1) | self.every
        logits = jnp.where(changed, 1.001 * output.logits, output.logits)
        return output._replace(logits=logits), fed


def plan_of(target, sampling=Greedy(), **parts) -> Plan:  # noqa: B008
    verifier = GreedyMatch() if sampling.greedy else Coupled()
    drafter = Autoregressive(target, sampling)
    given = {"schedule": Fixed(GAMMA), "max_length": N, "same_bits": True, **parts}
    return Plan(target, drafter, verifier, sampling=sampling, **given)


def params_of(target):
    return target.init(jax.random.key(0))


@pytest.mark.parametrize("sampling", [Greedy(), Sampling(0.7)])
def test_rows_of_a_table_have_the_same_bits(sampling):
    plan = plan_of(TableTarget(9), sampling)
    found = compared(plan, params_of(plan.target), 2, 5, range(2, GAMMA + 2))
    assert found == (2 + 3 + 4, [])
    check_same_bits(plan, params_of(plan.target), 2, 5)


def test_rows_that_are_made_to_differ_are_found_and_refused():
    plan = plan_of(Uneven(9, wide=3))
    places, differ = compared(plan, params_of(plan.target), 1, 5, range(2, GAMMA + 2))
    slots = plan.capacity
    assert (places, differ) == (9, [RowPlace(3, 2, slots), RowPlace(4, 3, slots)])
    with pytest.raises(NotTheSameBits, match=r"token 4 of a call on 4 has other bits than in a"):
        check_same_bits(plan, params_of(plan.target), 1, 5)


@dataclasses.dataclass(frozen=True)
class UnevenAt(TableTarget):
    """A target whose calls have other bits where the cache or the text has a length."""

    capacity: int | None = None
    text: int | None = None

    def decode(self, params, tokens, cache, **others):
        output, fed = super().decode(params, tokens, cache, **others)
        if self.capacity is not None and cache.capacity != self.capacity:
            return output, fed
        at = cache.length[:, None] + jnp.arange(tokens.shape[1])[None]
        there = jnp.full(at.shape, True) if self.text is None else at >= self.text
        wide = tokens.shape[1] > 1
        changed = jnp.where(there[..., None] & (wide or self.text is None), 1.01, 1.0)
        return output._replace(logits=changed * output.logits), fed


@pytest.mark.parametrize(
    "target, length, index",
    [
        (UnevenAt(9, capacity=N), N, 0),  # that of the target alone
        (UnevenAt(9, text=24), 40, 0),  # a text of 24 tokens is before the row
        (UnevenAt(9, text=25), 40, None),  # and no more of them
    ],
)
def test_rows_are_compared_with_other_caches_and_behind_a_text(target, length, index):
    """The place is that of the first row of a call on two that has other bits."""
    plan = plan_of(target, max_length=length, schedule=Fixed(1))
    places, differ = compared(plan, params_of(target), 1, 5, (2,))
    assert places == 2 and all(place.capacity == length + 1 for place in differ)
    assert [place.index for place in differ] == ([] if index is None else [0, 1])


@dataclasses.dataclass(frozen=True)
class Turned(Sampling):
    """Rolls the probabilities by the index of the output token; `uneven` says in which calls they
    have other bits."""

    uneven: int = 99

    def probabilities(self, logits, positions=None, history=None):
        assert positions is not None
        changed = 1.01 if logits.shape[-2] == self.uneven else 1.0
        index = jnp.arange(logits.shape[-1])[None, None] - positions[..., None]
        turned = jnp.take_along_axis(logits, index % logits.shape[-1], axis=-1)
        return super().probabilities(changed * turned)


def test_probabilities_are_compared_and_not_only_logits():
    """Each row has the position of its token in the text, in whatever place of a call it is."""
    for rule, found in ((Turned(), []), (Turned(uneven=2), [0, 1])):
        plan = plan_of(TableTarget(9), rule, schedule=Fixed(1))
        places, differ = compared(plan, params_of(plan.target), 1, 5, (2,))
        assert places == 2 and [place.index for place in differ] == found


def test_inputs_and_texts_are_made_up_of_all_ids():
    draw = np.random.default_rng(3)
    inputs, tokens = made_up(TableTarget(9), 2, 5, 12, seed=3)
    assert inputs.tolist() == draw.integers(0, 9, [2, 5]).tolist()
    assert tokens.tolist() == draw.integers(0, 9, [2, 12]).tolist()


def test_the_widths_are_those_that_are_computed():
    plain = T5Target(tiny_t5(16, 8, 8, heads=2, decoder=1))
    assert widths_of(plan_of(plain, schedule=Heuristic(1, (0, 1, 4)))) == (2, 5)
    assert widths_of(plan_of(TableTarget(9), schedule=Heuristic(1, (0, 1, 4)))) == (1, 2, 5)


def test_the_setting_outlasts_a_layout():
    target = T5Target(tiny_t5(16, 8, 8, heads=2, decoder=1))
    plan = plan_of(target)
    assert plan.target == target.in_layout(least_width=2)
    other = target.in_layout(storage="out_in", orders=((4, "kernel_first"),))
    assert plan.with_models({"target": other}).target == plan.target
    assert plan.laid_out(1).target == plan.alone().target == plan.baseline().target == plan.target
    searched = plan.target.same_bits(9, in_order=True)
    assert searched.layout == Layout(least_width=9, in_order=True)
    assert searched.same_bits() == searched != plan.target


def test_several_paths_are_refused():
    drafter = MultiPath(TableTarget(9), Greedy(), paths=2)
    with pytest.raises(ValueError, match="same_bits is True and MultiPath drafts 2 paths"):
        Plan(TableTarget(9), drafter, Block(), Fixed(2), Greedy(), N, same_bits=True)


@pytest.mark.ci
def test_texts_in_bfloat16_are_bitwise_those_of_the_target_alone():
    """Tokens and log-probabilities, where this device has the same bits."""
    target = T5Target(tiny_t5(64, 32, 48, heads=2, decoder=2, dtype="bfloat16"))
    plan = plan_of(target, Sampling(), stop_ids=())
    params = jax.tree.map(lambda x: 2 * x, params_of(target))
    try:
        check_same_bits(plan, params, 1, 8)
    except NotTheSameBits as error:
        pytest.skip(str(error))
    roles = Params(params, params)
    inputs = np.random.default_rng(0).integers(2, 64, [12, 1, 8]).astype(np.int32)
    for index, text in enumerate(inputs):
        keys = row_keys(0, jnp.array([index]))
        found, alone = (decode(roles, keys, text, one) for one in (plan, plan.alone()))
        np.testing.assert_array_equal(found.tokens, alone.tokens)
        np.testing.assert_array_equal(found.log_probs, alone.log_probs)


def test_an_engine_measures_when_it_reads_parameters(monkeypatch):
    plan, trees = plan_of(Uneven(9)), params_of(Uneven(9))
    monkeypatch.setattr(Placement, "read", lambda *_: trees)
    paths = dict.fromkeys(plan.owned(), "a path")
    with pytest.raises(NotTheSameBits, match="SAME_BITS is True, but on this device"):
        _ = Engine(plan, None, paths).params  # type: ignore[arg-type]
    without = dataclasses.replace(plan, same_bits=False)
    assert Engine(without, None, paths).params["target"] is trees  # type: ignore[arg-type]


def subject_of(target) -> Subject:
    trees = params_of(target)
    inputs = np.random.default_rng(1).integers(2, 9, [6, 5]).astype(np.int32)
    return Subject(plan_of(target), Params(trees, trees), inputs)


def test_the_certificate_has_a_check():
    found = exactness.bits(subject_of(TableTarget(9)))
    assert found.passed and found.figures["places"] == 9
    found = exactness.bits(subject_of(Uneven(9, wide=4)))
    assert not found.passed and found.figures["differing"] == 1
    names = [check.__name__ for check in certificate.CHECKS]
    assert names[4] == "bits"


@pytest.mark.parametrize("same_bits, passed", [(True, False), (False, True)])
def test_the_certificate_excuses_no_near_tie(same_bits, passed, monkeypatch):
    subject = subject_of(TableTarget(9))
    plan = dataclasses.replace(subject.plan, same_bits=same_bits)
    subject = dataclasses.replace(subject, plan=plan)
    output = subject.plain(Greedy())
    other = output._replace(tokens=np.array(output.tokens))
    other.tokens[1, 0] += 1
    monkeypatch.setattr(Subject, "gap", lambda *_: 1e-6)
    check = certificate.outcome.agreement("greedy", subject, Greedy(), other)
    assert check.passed is passed and check.figures["identical"] == 5


def beams_of(target, **parts) -> BeamPlan:
    plan = beam_plan(plan_of(target, **parts), 2, T5XBeams(), width=3)
    assert plan.same_bits and plan.width == 2 + 3 * 2
    return plan


def test_beams_alone_are_computed_as_wide_as_a_tree():
    plan = beams_of(T5Target(tiny_t5(16, 8, 8, heads=2, decoder=1)))
    assert plan.laid_out(1).alone().laid_out(1).target == plan.target
    assert plan.target.layout.least_width == plan.width
    assert [tuple(part) for part in plan.alone().parts()] == [("target", plan.width, 1)]
    assert plan.target.layout.in_order and plan.alone().capacity == plan.capacity


@pytest.mark.parametrize("groups", [4, 2])
def test_attention_has_the_same_bits_wherever_its_slots_are(groups):
    """As in a tree, where hidden slots lie between those of a node's path."""
    draw = np.random.default_rng(0)
    slots, seen, tokens, sizes = 96, 41, 3, (4, 16)
    query = jnp.asarray(draw.normal(size=(1, tokens, *sizes)), jnp.float32)
    numbers = draw.normal(size=(2, 1, groups, seen, sizes[1]))

    @jax.jit
    def attended(places):
        keys, values = (
            jnp.full([1, groups, slots, sizes[1]], 9.0).at[:, :, places].set(x) for x in numbers
        )
        bias = jnp.full([1, 1, tokens, slots], MASKED).at[..., places].set(0.0)
        keys, values = (x.astype(query.dtype) for x in (keys, values))
        return attend_grouped(query, keys, values, bias, AttentionPolicy(in_order=True))

    found = [attended(np.sort(draw.choice(slots, seen, replace=False))) for _ in range(3)]
    for other in found[1:]:
        assert jnp.array_equal(other, found[0])


@pytest.mark.ci
def test_beams_in_bfloat16_are_bitwise_those_of_the_target_alone():
    target = T5Target(tiny_t5(64, 32, 48, heads=2, decoder=2, dtype="bfloat16"))
    params, plan = jax.tree.map(lambda x: 2 * x, params_of(target)), beams_of(target)
    try:
        check_same_beams(plan, Params(params, params), 1, 8)
    except NotTheSameBits as error:
        pytest.skip(str(error))
    certificate.refuse(plan)  # which says nothing against this number format


@pytest.mark.ci
def test_a_run_is_refused_in_one_line(capsys, monkeypatch):
    """Rows of the embedded pair are made to differ: the last one of a call on several tokens."""
    real = StackModel._fed

    def uneven(self, params, tokens, *given):
        output, fed = real(self, params, tokens, *given)
        last = jnp.arange(tokens.shape[1])[None, :, None] == 4
        return output._replace(logits=jnp.where(last, 1.0001, 1) * output.logits), fed

    monkeypatch.setattr(StackModel, "_fed", uneven)
    flags = ["--gin_file=demo.gin", "--gin.SAME_BITS=True", "--limit=1", "--gamma=4"]
    assert cli.main(["decode", "--compilation_cache_dir=", *flags]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "SAME_BITS is True, but on this device (cpu) token 5 of a call on 5 has other" in line
