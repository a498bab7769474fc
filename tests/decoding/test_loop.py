"""The token loop on real (tiny) T5 models and on the table: pytest tests/decoding/test_loop.py"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import by_definition
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import Cycle, StopAfterUnlikely, load, teacher_forced
from tolerances import LOGITS

from specdec import (
    Params,
    Plan,
    autoregressive_decode,
    decode,
    decoding,
    prefill,
    row_keys,
    score,
    step,
)
from specdec.decoding import loop
from specdec.decoding.keys import noise, purpose_keys
from specdec.drafters import Autoregressive, Drafter
from specdec.models.t5 import T5Target
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.testing import Constant, OneOf, TableTarget, hostile
from specdec.types import Draft
from specdec.verifiers import Coupled, GreedyMatch, SpeculativeSampling

N = 40


@dataclasses.dataclass(frozen=True)
class Pair:
    """A target, a drafter's model of other width and depth, and inputs that end at all lengths."""

    target: T5Target
    model: T5Target
    params: Params
    inputs: jax.Array

    def keys(self):
        return row_keys(3, jnp.arange(len(self.inputs)))

    def alone(self, sampling, **options):
        given = {"target": self.target, "sampling": sampling, "max_length": N} | options
        return autoregressive_decode(self.params["target"], self.keys(), self.inputs, **given)

    def plan(self, sampling, verifier, schedule, drafter=None):
        drafter = drafter or Autoregressive(self.model, sampling)
        return Plan(self.target, drafter, verifier, schedule, sampling, N)

    def decode(self, *parts, drafter=None, params=None, prefix=None):
        plan = self.plan(*parts, drafter=drafter)
        return decode(params or self.params, self.keys(), self.inputs, plan, prefix=prefix)


@pytest.fixture(scope="module")
def pair():
    target, params, golden = load("wide_heads")
    model, draft_params, _ = load("v1_0")
    inputs = np.array(golden["encoder_input_tokens"][:, :30])
    inputs = np.concatenate([inputs, inputs[:2, ::-1], np.zeros((1, 30), np.int32)])
    return Pair(target, model, Params(params, draft_params), jnp.asarray(inputs, jnp.int32))


def same(a, b):
    np.testing.assert_array_equal(a.tokens, b.tokens)
    np.testing.assert_array_equal(a.length, b.length)
    np.testing.assert_allclose(a.log_probs, b.log_probs, rtol=0, atol=LOGITS)


def test_greedy_is_the_targets_own_output(pair):
    """The last row is padding, and starts finished. The target's states are those of its text."""
    output = pair.decode(Greedy(), GreedyMatch(), Fixed(4))
    same(output, pair.alone(Greedy()))
    assert output.length[-1] == 0 and output.trace.calls[-1] == 0 and output.length[:-1].all()
    fed = jnp.pad(output.tokens[:, :-1], ((0, 0), (1, 0)))
    logits = teacher_forced(pair.target, pair.params["target"], pair.inputs, fed)
    expected = jax.nn.log_softmax(logits, axis=-1)
    expected = jnp.take_along_axis(expected, output.tokens[:, :, None], axis=2)[:, :, 0]
    within = np.arange(N)[None] < np.asarray(output.length)[:, None]
    np.testing.assert_allclose(output.log_probs, np.where(within, expected, 0), rtol=0, atol=LOGITS)
    given = pair.params["target"], pair.inputs, output.tokens
    for sampling in (None, Greedy()):
        scored = score(*given, target=pair.target, sampling=sampling)
        np.testing.assert_allclose(scored, output.log_probs, rtol=0, atol=LOGITS)


@pytest.mark.slow
def test_bfloat16_equals_the_baseline_of_the_same_width():
    """Same width, same program: equal also where a wider matrix product rounds differently."""
    target, params, golden = load("wide_heads", dtype="bfloat16")
    model, draft_params, _ = load("v1_0", dtype="bfloat16")
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), Params(params, draft_params))
    inputs = jnp.asarray(golden["encoder_input_tokens"])[:, :30]
    pair = Pair(target, model, half, inputs)
    ours = pair.decode(Greedy(), GreedyMatch(), Fixed(3))
    plain = pair.alone(Greedy(), width=4)
    np.testing.assert_array_equal(ours.tokens, plain.tokens)


@pytest.mark.parametrize(
    "lengths, message",
    [
        (
            [N],
            rf"the prefix has {N} tokens, which leaves no room in outputs of {N}; give a shorter",
        ),
        ([3, N], f"the prefix has {N} tokens, which leaves no room"),
        ([2, N + 3], f"the prefix has {N + 3} tokens but outputs hold {N}: prefix is int32"),
    ],
)
def test_a_prefix_that_fills_the_output_of_a_row_is_refused(pair, lengths, message):
    longest = [*lengths, *[1] * len(pair.inputs)][: len(pair.inputs)]
    prefix = jnp.where(jnp.arange(max(longest))[None] < jnp.array(longest)[:, None], 7, 0)
    for run in (pair.alone, lambda *args, **kw: pair.decode(*args, GreedyMatch(), Fixed(4), **kw)):
        with pytest.raises(ValueError, match=message):
            run(Greedy(), prefix=prefix.astype(jnp.int32))
    with pytest.raises(ValueError, match=rf"prefix is float32\[.*; give int32 \[{len(longest)}"):
        pair.alone(Greedy(), prefix=prefix.astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class Scripted(Drafter):
    """Proposes the text in `params["draft"]`, whatever happens."""

    def propose(self, params, request, state):
        context, keys, want = request.context, request.keys, request.want
        script = jnp.pad(params["draft"], (0, keys.shape[1]))
        index = context.length[:, None] - 1 + jnp.arange(keys.shape[1])[None]
        return Draft(script[index], None, want), state


@pytest.mark.parametrize("place", range(7))
def test_eos_at_every_place_of_a_draft(place):
    """The target's text is known, ends at `place`, and is drafted with wrong tokens behind EOS."""
    text = [2, 3, 4, 2, 3, 4, 2, 3][:place] + [1]
    target = TableTarget(5)
    table = np.zeros((1, 5, 5, 5), np.float32)
    total = last = 0
    for token in text:
        table[0, total, last, token] = 9
        total, last = (total + token) % 5, token
    script = jnp.pad(jnp.array([*text, 4, 4], jnp.int32), (0, 10 - len(text)))
    params = Params({"logits": jnp.asarray(table)}, script)
    inputs = jnp.ones([1, 2], jnp.int32)
    for gamma in (1, 3):
        plan = Plan(target, Scripted(), GreedyMatch(), Fixed(gamma), Greedy(), max_length=12)
        output = decode(params, row_keys(0, jnp.arange(1)), inputs, plan)
        assert output.tokens[0, : len(text)].tolist() == text
        assert int(output.length[0]) == len(text) and not output.tokens[0, len(text) :].any()
        calls = -(-len(text) // (gamma + 1))
        assert int(output.trace.calls[0]) == calls
        drafted_eos = len(text) % (gamma + 1) != 0
        assert bool(output.trace.ended_in_draft[0]) == drafted_eos


def test_a_second_call_compiles_nothing_and_moves_nothing(pair, caplog):
    """New prompts of the bucket, new keys: no compilation, one dispatch, no host transfer."""

    def run(shift):
        inputs = jnp.roll(pair.inputs, shift, axis=1)
        keys = row_keys(shift, jnp.arange(len(inputs)))
        jax.block_until_ready((inputs, keys))
        with jax.transfer_guard("disallow"):
            target, model = T5Target(pair.target.config), T5Target(pair.model.config)
            drafter = Autoregressive(model, Sampling())
            plan = Plan(target, drafter, SpeculativeSampling(), Fixed(3), Sampling(), N)
            return jax.block_until_ready(decode(pair.params, keys, inputs, plan))

    run(1)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        decode_before = loop._decode._cache_size()
        inputs = jnp.roll(pair.inputs, 2, axis=1)
        keys = row_keys(2, jnp.arange(len(inputs)))
        caplog.clear()
        run(2)
    compiled = [r.getMessage() for r in caplog.records if "Finished XLA comp" in r.getMessage()]
    assert not compiled, compiled
    assert loop._decode._cache_size() == decode_before
    jaxpr = jax.make_jaxpr(
        lambda keys, inputs: decode(
            pair.params, keys, inputs, pair.plan(Sampling(), SpeculativeSampling(), Fixed(3))
        )
    )(keys, inputs)
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["jit"], "decode is one dispatch"


@dataclasses.dataclass(frozen=True)
class Watched(TableTarget):
    """Tells the widths of its calls, as the program runs."""

    seen: ClassVar[list[int]] = []

    def decode(self, params, tokens, cache):
        width = tokens.shape[1]
        jax.debug.callback(lambda _: self.seen.append(width), tokens[0, 0], ordered=False)
        return super().decode(params, tokens, cache)


def widths(target, drafter, schedule, max_length=30, stop_ids=(1,)):
    """What one row drafts in each call, and the widths of the calls of who is watched."""
    Watched.seen.clear()
    tables = [TableTarget(6).init(jax.random.key(i)) for i in range(2)]
    plan = Plan(target, drafter, GreedyMatch(), schedule, Greedy(), max_length, stop_ids)
    inputs = jnp.ones([1, 2], jnp.int32)
    trace = decode(Params(*tables), row_keys(0, jnp.arange(1)), inputs, plan).trace
    jax.effects_barrier()
    return trace.drafted[0, : int(trace.calls[0])].tolist(), Watched.seen.copy()


def test_the_targets_call_is_as_wide_as_what_was_drafted():
    schedule = StopAfterUnlikely(5, 0.4, shorter=(1, 3))
    drafter = Autoregressive(TableTarget(6), Greedy())
    drafted, calls = widths(Watched(6), drafter, schedule, stop_ids=())
    assert calls == [next(b for b in (1, 3, 5) if b >= n) + 1 for n in drafted]
    assert len(set(calls)) == 3, "every bucket is used"


def test_a_drafter_is_asked_for_no_more_than_is_wanted():
    """Its first step is two tokens wide, and in a bucket of 0 there is none."""
    drafter = Autoregressive(Watched(6), Greedy())
    for schedule in (Cycle((0, 2, 5)), StopAfterUnlikely(5, 0.5)):
        drafted, calls = widths(TableTarget(6), drafter, schedule, stop_ids=())
        may_be_empty = 0 in schedule.buckets
        assert not may_be_empty or drafted[:6] == [0, 1, 2, 3, 4, 5]
        assert calls.count(2) == sum(n > 0 or not may_be_empty for n in drafted)
        assert calls.count(1) == sum(max(n - 1, 0) for n in drafted)


def test_drafting_ends_with_the_text():
    """The drafter proposes a stop id sooner or later; a fixed length goes on behind it."""
    drafter, schedule = (
        Autoregressive(Watched(6), Greedy()),
        StopAfterUnlikely(12, -1.0, shorter=(4,)),
    )
    drafted, calls = widths(TableTarget(6), drafter, schedule, stop_ids=(1, 4))
    assert calls.count(1) == sum(max(n - 1, 0) for n in drafted)
    cut, whole = widths(TableTarget(6), drafter, Fixed(12), stop_ids=(1, 4))
    assert cut == drafted and whole.count(1) == 11 * len(cut) > calls.count(1)


def call(**changes):
    target = TableTarget(5)
    arguments = {
        "params": Params(target.init(jax.random.key(0))),
        "keys": row_keys(0, jnp.arange(2)),
        "inputs": jnp.ones([2, 3], jnp.int32),
        "target": target,
        "drafter": Constant(3),
        "verifier": SpeculativeSampling(),
        "schedule": Fixed(2),
        "sampling": Sampling(),
        "max_length": 4,
    } | changes
    fields = {field.name for field in dataclasses.fields(Plan)} & arguments.keys()
    plan = Plan(**{name: arguments.pop(name) for name in fields})
    return decode(plan=plan, **arguments)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"keys": jnp.zeros([2, 2], jnp.uint32)}, "keys have dtype uint32; give typed keys"),
        (
            {"keys": jax.random.split(jax.random.key(0, impl="rbg"), 2)},
            r"keys are rbg keys, .* impl='threefry2x32'",
        ),
        ({"keys": row_keys(0, jnp.arange(3))}, r"shape \[3\] but inputs have 2 rows"),
        ({"inputs": jnp.ones([2, 3])}, r"inputs are float32\[2, 3\]; give int32"),
        ({"inputs": jnp.ones([2], jnp.int32)}, r"inputs are int32\[2\]; give int32"),
        ({"prefix": jnp.ones([2, 5], jnp.int32)}, r"int32\[2, 5\]; .*\[2, at most max_length 4\]"),
        ({"prefix": jnp.ones([2, 2])}, r"prefix is float32\[2, 2\]; give int32"),
    ],
)
def test_what_cannot_work_is_refused(changes, message):
    assert call().tokens.shape == (2, 4)
    with pytest.raises(ValueError, match=message):
        call(**changes)


def test_a_state_of_another_schedule_is_refused():
    target = TableTarget(5)
    params = Params(target.init(jax.random.key(0)))
    keys, inputs = row_keys(0, jnp.arange(2)), jnp.ones([2, 3], jnp.int32)
    plan = Plan(target, Constant(3), Coupled(), Fixed(2), Sampling(), max_length=4)
    state = prefill(params, keys, inputs, plan)
    with pytest.raises(ValueError, match="holds 6 positions but max_length 4 .* draft 5 need 9"):
        step(params, state, dataclasses.replace(plan, schedule=Fixed(5)))


def test_a_width_that_is_none_is_refused(pair):
    with pytest.raises(ValueError, match="Alone.width is 0; give a positive integer"):
        pair.alone(Greedy(), width=0)


def test_row_keys_are_functions_of_seed_example_and_sample():
    def data(*arguments):
        return jax.random.key_data(row_keys(*arguments))

    examples = jnp.array([0, 5, 9])
    assert len(np.unique(data(0, examples), axis=0)) == 3
    np.testing.assert_array_equal(data(0, examples)[1], data(0, jnp.array([5]))[0])
    assert not np.array_equal(data(0, examples), data(1, examples))
    assert not np.array_equal(data(0, examples), data(0, examples, 1))
    fold = jax.random.fold_in
    expected = fold(fold(jax.random.key(7, impl="threefry2x32"), 5), 2)
    np.testing.assert_array_equal(data(7, jnp.array([5]), 2)[0], jax.random.key_data(expected))
    np.testing.assert_array_equal(
        data(7, jnp.array([5, 5]), jnp.array([0, 2]))[1], jax.random.key_data(expected)
    )


def test_every_bit_of_seed_example_and_sample_counts():
    """None is cut to fewer bits than the contract gives it."""
    numbers = [0, 1, 2**8, 2**15, 2**16, 2**24, 2**31 - 1]
    keys = [row_keys(seed, jnp.array(numbers)) for seed in numbers]
    keys += [row_keys(0, jnp.array(numbers), sample) for sample in numbers[1:]]
    found = np.concatenate([jax.random.key_data(each) for each in keys])
    assert len(np.unique(found, axis=0)) == len(found)


def test_keys_of_an_iteration_follow_the_contract():
    """T(t) = fold(fold(r, 0), t) and P(s, n, j) = fold(fold(fold(r, s), n), j)."""
    fold, data = jax.random.fold_in, jax.random.key_data
    row = jax.random.key(11)
    keys = purpose_keys(row)
    np.testing.assert_array_equal(data(decoding.token_key(row, 9)), data(fold(fold(row, 0), 9)))
    shared = noise(keys, jnp.int32(6), width=3, shared=True)
    private = noise(keys, jnp.int32(6), width=3, shared=False)
    for j in range(4):
        token = fold(fold(row, 0), 6 + j)
        np.testing.assert_array_equal(data(shared.correct[j]), data(token))
        for purpose, keys in ((1, private.draft), (2, private.accept), (3, private.correct)):
            if j < len(keys):
                expected = fold(fold(fold(row, purpose), 6), j)
                np.testing.assert_array_equal(data(keys[j]), data(expected))
    np.testing.assert_array_equal(data(shared.draft), data(shared.correct[:3]))


def test_texts_are_as_defined():
    """One token after the other, by position, history, prompt and key, with rows that fail."""
    by_definition.check_plain()


@pytest.mark.slow
def test_coupled_text_does_not_depend_on_the_drafter(pair):
    expected = pair.alone(Sampling())
    hostiles = hostile(pair.target, 128)
    constant = [one for one in hostiles.values() if isinstance(one, Constant)]
    others = [one for one in hostiles.values() if not isinstance(one, Constant)]
    cases = [(one, pair.params) for one in (*others, Autoregressive(pair.model, Greedy()))]
    for number in range(len(constant)):  # one program for them all
        params = Params(pair.params["target"], number=jnp.int32(number))
        cases.append((OneOf(tuple(constant)), params))
    for drafter, params in cases:
        output = pair.decode(Sampling(), Coupled(), Fixed(3), drafter=drafter, params=params)
        same(output, expected)
        assert np.all(output.trace.calls <= expected.trace.calls)


@pytest.mark.slow
def test_vocabularies_padded_to_other_widths(pair):
    """Drafter ids beyond the target's are never proposed; missing ones have no probability."""
    config = pair.model.config
    for extra in (16, -16):
        model = T5Target(dataclasses.replace(config, vocab_size=config.vocab_size + extra))
        resized = dict(pair.params["draft"])
        table = resized["token_embedder"]["embedding"]
        padding = 100 * jnp.ones([max(extra, 0), table.shape[1]])
        table = jnp.concatenate([table, padding])[: config.vocab_size + extra]
        params = pair.params | {"draft": resized | {"token_embedder": {"embedding": table}}}
        for sampling, verifier in ((Greedy(), GreedyMatch()), (Sampling(), Coupled())):
            output = pair.decode(
                sampling,
                verifier,
                Fixed(3),
                drafter=Autoregressive(model, sampling),
                params=params,
            )
            same(output, pair.alone(sampling))
