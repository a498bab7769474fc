"""The token loop on real (tiny) T5 models and on the table: pytest tests/decoding/test_loop.py"""

from __future__ import annotations

import dataclasses
import re
from typing import ClassVar

import by_definition
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import Cycle, StopAfterUnlikely, few, load, teacher_forced
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
from specdec.sampling import Greedy, Sampling, draw_shared
from specdec.schedules import Confidence, CostOptimal, Fixed
from specdec.testing import Bench, Constant, OneOf, TableTarget, hostile
from specdec.types import Draft
from specdec.verifiers import Coupled, GreedyMatch, SpeculativeSampling

FILTERED = Sampling(temperature=0.7, top_p=0.9)
N = 40


@dataclasses.dataclass(frozen=True)
class Pair:
    """A target, a drafter's model of other width and depth, and inputs that end at all lengths."""

    target: T5Target
    model: T5Target
    params: Params
    inputs: jax.Array

    def keys(self, rows=None):
        return row_keys(3, jnp.arange(len(self.inputs)) if rows is None else rows)

    def alone(self, sampling, rows=None, **options):
        rows = jnp.arange(len(self.inputs)) if rows is None else rows
        return autoregressive_decode(
            self.params["target"],
            self.keys(rows),
            self.inputs[rows],
            target=self.target,
            sampling=sampling,
            **{"max_length": N} | options,
        )

    def plan(self, sampling, verifier, schedule, drafter=None, max_length=N):
        drafter = drafter or Autoregressive(self.model, sampling)
        return Plan(self.target, drafter, verifier, schedule, sampling, max_length)

    def decode(
        self, *parts, rows=None, drafter=None, max_length=N, params=None, prefix=None, active=None
    ):
        rows = jnp.arange(len(self.inputs)) if rows is None else rows
        return decode(
            params or self.params,
            self.keys(rows),
            self.inputs[rows],
            self.plan(*parts, drafter=drafter, max_length=max_length),
            prefix=prefix,
            active=active,
        )


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


def slow(*values):
    """Cases that differ in nothing but a number from one that is always run."""
    return [
        pytest.param(*np.atleast_1d(value).tolist(), marks=pytest.mark.slow) for value in values
    ]


@pytest.mark.parametrize("gamma", [4, *slow(1, 2, 3, 5, 6, 7, 8, 15)])
def test_greedy_is_the_targets_own_output(pair, gamma):
    same(pair.decode(Greedy(), GreedyMatch(), Fixed(gamma)), pair.alone(Greedy()))


@pytest.mark.parametrize(
    "sampling, schedule",
    [
        pytest.param(Sampling(), Fixed(3), marks=pytest.mark.slow),
        pytest.param(FILTERED, StopAfterUnlikely(4), marks=pytest.mark.slow),
        pytest.param(Sampling(), Cycle((2, 5)), marks=pytest.mark.slow),
        pytest.param(Sampling(), Confidence(0.3), marks=pytest.mark.slow),
        pytest.param(FILTERED, CostOptimal(0.1, (1, 1.1, 1.2), (0, 2, 5)), marks=pytest.mark.slow),
        pytest.param(FILTERED, Fixed(3), marks=pytest.mark.slow),
        pytest.param(Sampling(), StopAfterUnlikely(4), marks=pytest.mark.slow),
        pytest.param(FILTERED, Cycle((2, 5)), marks=pytest.mark.slow),
    ],
)
def test_coupled_is_the_baseline_of_the_same_keys(pair, sampling, schedule):
    same(pair.decode(sampling, Coupled(), schedule), pair.alone(sampling))


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
def test_perfect_t5_drafter_has_everything_accepted(pair):
    params = Params(pair.params["target"], pair.params["target"])
    for sampling, verifier in ((Greedy(), GreedyMatch()), (Sampling(), SpeculativeSampling())):
        drafter = Autoregressive(pair.target, sampling)
        trace = pair.decode(sampling, verifier, Fixed(4), drafter=drafter, params=params).trace
        # Between two float32 programs a ratio p / q may come out just below 1.
        missed = int(trace.drafted.sum() - trace.accepted.sum())
        assert missed == 0 and int(trace.drafted.sum()) > 50


@pytest.mark.parametrize("verifier", slow(SpeculativeSampling(), Coupled()))
def test_a_row_alone_is_the_row_in_a_batch(pair, verifier):
    together = pair.decode(FILTERED, verifier, Fixed(3))
    for row in range(len(pair.inputs)):
        alone = pair.decode(FILTERED, verifier, Fixed(3), rows=jnp.array([row]))
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
        np.testing.assert_array_equal(alone.trace.accepted[0], together.trace.accepted[row])
    order = jnp.array([5, 2, 7, 0, 3, 6, 1, 4])
    permuted = pair.decode(FILTERED, verifier, Fixed(3), rows=order)
    np.testing.assert_array_equal(permuted.tokens, together.tokens[order])


@pytest.mark.slow
def test_a_row_of_padding_starts_finished(pair):
    output = pair.decode(Greedy(), GreedyMatch(), Fixed(3))
    assert output.length[-1] == 0 and output.trace.calls[-1] == 0
    assert not np.any(output.tokens[-1]) and not np.any(output.log_probs[-1])
    nothing = pair.decode(Greedy(), GreedyMatch(), Fixed(3), rows=jnp.array([7, 7]))
    assert int(nothing.trace.steps) == 0


@pytest.mark.parametrize(
    "max_length, gamma",
    [(1, 4), *slow((5, 12), (9, 4), (1, 1), (1, 12), (2, 1), (2, 4), (2, 12), (5, 4), (9, 12))],
)
@pytest.mark.ci
def test_lengths_at_the_limit(pair, max_length, gamma):
    """Drafts longer than what is left; the last call starts anywhere up to the last position."""
    expected = pair.alone(Greedy(), max_length=max_length)
    same(pair.decode(Greedy(), GreedyMatch(), Fixed(gamma), max_length=max_length), expected)


@pytest.mark.slow
def test_the_width_of_the_baseline_changes_nothing(pair):
    same(pair.alone(Sampling(), width=4), pair.alone(Sampling()))


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


def test_log_probs_are_those_of_teacher_forcing(pair):
    output = pair.decode(FILTERED, SpeculativeSampling(), Fixed(3))
    fed = jnp.pad(output.tokens[:, :-1], ((0, 0), (1, 0)))
    logits = teacher_forced(pair.target, pair.params["target"], pair.inputs, fed)
    expected = jax.nn.log_softmax(logits, axis=-1)
    expected = jnp.take_along_axis(expected, output.tokens[:, :, None], axis=2)[:, :, 0]
    within = np.arange(N)[None] < np.asarray(output.length)[:, None]
    np.testing.assert_allclose(output.log_probs, np.where(within, expected, 0), rtol=0, atol=LOGITS)
    given = pair.params["target"], pair.inputs, output.tokens
    scored = score(*given, target=pair.target)
    np.testing.assert_allclose(scored, output.log_probs, rtol=0, atol=LOGITS)
    greedy = score(*given, target=pair.target, sampling=Greedy())
    np.testing.assert_allclose(greedy, scored, rtol=0, atol=LOGITS)


def test_token_t_is_drawn_with_the_noise_of_t(pair):
    """The first is token 0, as the contract says: a seed's text stays the same between versions."""
    output = pair.alone(Sampling())
    fed = jnp.pad(output.tokens[:, :-1], ((0, 0), (1, 0)))
    logits = teacher_forced(pair.target, pair.params["target"], pair.inputs, fed)
    for t in (0, 1, 6):
        keys = jax.vmap(decoding.token_key, (0, None))(pair.keys(), t)
        drawn = jax.vmap(draw_shared)(keys, jax.nn.softmax(logits[:, t]))
        written = np.asarray(output.length) > t
        assert written.sum() > 5
        np.testing.assert_array_equal(drawn[written], output.tokens[written, t])


def cut(tokens, lengths):
    """[B, P] the first `lengths` [B] of each row's tokens, then zeros."""
    tokens = jnp.where(jnp.arange(N)[None] < jnp.asarray(lengths)[:, None], tokens, 0)
    return tokens[:, : int(max(lengths))]


@pytest.mark.parametrize(
    "sampling, verifier",
    [
        pytest.param(Greedy(), GreedyMatch(), marks=pytest.mark.ci),
        pytest.param(FILTERED, Coupled(), marks=pytest.mark.slow),
    ],
)
def test_a_prefix_of_the_own_output_changes_nothing_but_the_calls(pair, sampling, verifier):
    whole = pair.alone(sampling)
    given = np.minimum(np.arange(len(pair.inputs)) * 3, np.maximum(whole.length - 1, 0))
    assert given[0] == 0 and len(set(given.tolist())) > 3
    prefix = cut(whole.tokens, given)
    plain = pair.alone(sampling, prefix=prefix)
    same(plain, whole)
    same(pair.decode(sampling, verifier, Fixed(3), prefix=prefix), whole)
    np.testing.assert_array_equal(plain.trace.calls, whole.trace.calls - given)


def test_a_prefix_is_kept_and_continued_by_the_target(pair):
    other = jnp.roll(pair.alone(Greedy()).tokens, 1, axis=0)  # another row's text
    prefix = cut(jnp.where(other == 1, 5, other), [6] * len(pair.inputs))
    plain = pair.alone(Greedy(), prefix=prefix)
    given = np.asarray(prefix) != 0
    assert given.sum() > 20
    np.testing.assert_array_equal(plain.tokens[:, :6][given], prefix[given])
    same(pair.decode(Greedy(), GreedyMatch(), Fixed(3), prefix=prefix), plain)
    scored = score(pair.params["target"], pair.inputs, plain.tokens, target=pair.target)
    np.testing.assert_allclose(plain.log_probs, scored, rtol=0, atol=LOGITS)


@pytest.mark.ci
def test_a_perfect_drafter_knows_the_prefix(pair):
    params = Params(pair.params["target"], pair.params["target"])
    prefix = cut(jnp.full((len(pair.inputs), N), 7), range(1, 1 + len(pair.inputs)))
    drafter = Autoregressive(pair.target, Greedy())
    trace = pair.decode(
        Greedy(), GreedyMatch(), Fixed(4), drafter=drafter, params=params, prefix=prefix
    ).trace
    assert int(trace.drafted.sum()) == int(trace.accepted.sum()) > 50


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


def test_the_trace_accounts_for_every_token(pair):
    output = pair.decode(FILTERED, SpeculativeSampling(), Fixed(3))
    trace = jax.device_get(output.trace)
    for row in range(len(pair.inputs)):
        tokens, position = np.asarray(output.tokens[row]), 0
        for call in range(trace.calls[row]):
            accepted, drafted = trace.accepted[row, call], trace.drafted[row, call]
            assert 0 <= accepted <= drafted <= 3
            proposed = trace.proposed[row, call]
            assert not proposed[drafted:].any()
            np.testing.assert_array_equal(proposed[:accepted], tokens[position:][:accepted])
            last = call == trace.calls[row] - 1
            position += accepted + (not (last and trace.ended_in_draft[row]))
        assert position == output.length[row]
        assert not tokens[position:].any()
        for column in (trace.accepted, trace.drafted):
            assert not column[row, trace.calls[row] :].any()
    assert trace.steps == trace.calls.max()


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
    for gamma in (1, 2, 3, 8):
        plan = Plan(target, Scripted(), GreedyMatch(), Fixed(gamma), Greedy(), max_length=12)
        output = decode(params, row_keys(0, jnp.arange(1)), inputs, plan)
        assert output.tokens[0, : len(text)].tolist() == text
        assert int(output.length[0]) == len(text) and not output.tokens[0, len(text) :].any()
        calls = -(-len(text) // (gamma + 1))
        assert int(output.trace.calls[0]) == calls
        drafted_eos = len(text) % (gamma + 1) != 0
        assert bool(output.trace.ended_in_draft[0]) == drafted_eos


@pytest.mark.ci
def test_step_by_step_equals_the_whole_loop(pair):
    plan = pair.plan(FILTERED, SpeculativeSampling(), Cycle((1, 3)))
    state = prefill(pair.params, pair.keys(), pair.inputs, plan)
    while bool(state.active.any()):
        previous = state
        state = step(pair.params, state, plan)
        emitted = state.length - previous.length
        assert np.all((emitted > 0) == previous.active) and np.all(emitted <= 4)
    stepped = decoding.output(state)
    whole = decode(pair.params, pair.keys(), pair.inputs, plan)
    jax.tree.map(np.testing.assert_array_equal, stepped, whole)


def test_no_more_is_drafted_than_a_schedule_wants():
    """Here 0 tokens in the first call, then 1, then 2."""
    drafted = Bench.create(max_length=8).run(GreedyMatch(), Cycle((2,)), Greedy(), rows=64).trace
    most = np.max(drafted.drafted, axis=0)
    assert most[:3].tolist() == [0, 1, 2]


@pytest.mark.slow
def test_buckets_run_the_smallest_program_that_fits(pair):
    """A bucket of 0 is a plain step; the widths seen by the target are those of the wants."""
    widths = []

    @dataclasses.dataclass(frozen=True)
    class Watching(T5Target):
        def decode(self, params, tokens, cache, **options):
            widths.append(tokens.shape[1])
            return super().decode(params, tokens, cache, **options)

    watching = dataclasses.replace(pair, target=Watching(pair.target.config))
    output = watching.decode(Greedy(), GreedyMatch(), Cycle((0, 1, 4)), max_length=11)
    assert {1, 2, 5} <= set(widths)
    same(output, pair.alone(Greedy(), max_length=11))


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


@pytest.mark.parametrize(
    "schedule, shorter",
    [
        (StopAfterUnlikely(5, 0.4, shorter=(1, 3)), (1, 3)),
        pytest.param(Cycle((0, 2, 5)), (0, 2), marks=pytest.mark.slow),
    ],
)
def test_the_targets_call_is_as_wide_as_what_was_drafted(schedule, shorter):
    drafter = Autoregressive(TableTarget(6), Greedy())
    drafted, calls = widths(Watched(6), drafter, schedule, stop_ids=())
    assert calls == [next(b for b in (*shorter, 5) if b >= n) + 1 for n in drafted]
    assert len(set(calls)) == 3, "every bucket is used"


def test_a_drafter_is_asked_for_no_more_than_is_wanted():
    """Its first step is two tokens wide, and in a bucket of 0 there is none."""
    drafter = Autoregressive(Watched(6), Greedy())
    for schedule in (Cycle((0, 2, 5)), StopAfterUnlikely(5, 0.5)):
        drafted, calls = widths(TableTarget(6), drafter, schedule, stop_ids=())
        nobody = 0 in schedule.buckets
        assert calls.count(2) == sum(n > 0 or not nobody for n in drafted)
        assert calls.count(1) == sum(max(n - 1, 0) for n in drafted)


@pytest.mark.parametrize(
    "schedule",
    few(
        [
            StopAfterUnlikely(12, -1.0, shorter=(4,)),
            Fixed(12, stop_at_end=True),
            StopAfterUnlikely(12, -1.0),
        ]
    ),
)
def test_drafting_ends_with_the_text(schedule):
    """The drafter proposes a stop id sooner or later; a fixed length goes on behind it."""
    drafter = Autoregressive(Watched(6), Greedy())
    drafted, calls = widths(TableTarget(6), drafter, schedule, stop_ids=(1, 4))
    assert calls.count(1) == sum(max(n - 1, 0) for n in drafted)
    cut, whole = widths(TableTarget(6), drafter, Fixed(12), stop_ids=(1, 4))
    assert cut == drafted and whole.count(1) == 11 * len(cut) > calls.count(1)


@pytest.mark.slow
def test_the_fixed_draft_loop_is_a_scan(pair):
    """K draws: one from the two-wide first step, then a scan of K - 1 one-token steps."""
    jaxpr = jax.make_jaxpr(lambda p: pair.decode(Greedy(), GreedyMatch(), Fixed(5), params=p))(
        pair.params
    )
    lengths = [int(n) for n in re.findall(r"length=(\d+)", str(jaxpr))]
    assert 4 in lengths


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
        ({"max_length": 0}, "max_length is 0; give a positive integer"),
        (
            {"verifier": GreedyMatch()},
            r"GreedyMatch compares argmaxes but sampling is Sampling\(.*use SpeculativeSampling",
        ),
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


@pytest.mark.parametrize("gamma", [0, -1, 2.0, "3"])
def test_a_draft_length_that_is_none_is_refused(gamma):
    with pytest.raises(ValueError, match=f"Fixed.gamma is {gamma!r}; give a positive integer"):
        Fixed(gamma)


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
