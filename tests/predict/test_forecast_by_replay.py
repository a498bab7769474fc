"""Calls by replay are the engine's: pytest tests/predict"""

from __future__ import annotations

import dataclasses
import functools
import gc
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from copying import Copying
from support import AfterAcceptance, Cycle, PromptTable, StatesTable, StopAfterUnlikely, TableHeads

from specdec import checkpoints, tasks
from specdec.checkpoints import tables
from specdec.common import demo
from specdec.decoding import decode, row_keys
from specdec.drafters import (
    Autoregressive,
    Blockwise,
    EarlyExit,
    Hybrid,
    InputCopy,
    Masked,
    NGram,
    PromptLookup,
    Retrieval,
    Uniform,
)
from specdec.measure import recording
from specdec.measure.alphas import Accepted
from specdec.measure.recording import measure
from specdec.plan import Plan
from specdec.predict import schedule_replay
from specdec.predict.schedule_replay import Replayed, replay
from specdec.sampling import (
    Greedy,
    MinLength,
    NoRepeatNGram,
    Processed,
    RepetitionPenalty,
    Sampling,
)
from specdec.schedules import (
    Confidence,
    CostOptimal,
    Disco,
    Entropy,
    Fixed,
    ForeseenCost,
    Heuristic,
    JointConfidence,
)
from specdec.testing import TableTarget
from specdec.types import DecodeOutput, Params
from specdec.verifiers import Block, GreedyMatch, SpeculativeSampling

replays: Any = sys.modules[replay.__module__]  # whose name is its function's too
V, N, ROWS = 12, 24, 40
TARGET = TableTarget(V, classes=2, scale=3.0, num_layers=2)
INPUTS = np.random.default_rng(0).integers(2, V, (ROWS, 6), np.int32)
GREEDY, DRAWN = Greedy(), Sampling()
MASKING = TableTarget(V + 8, classes=2, scale=3.0)  # whose last ids are masks
MODERN = StatesTable(V + 8, classes=2, scale=3.0)  # which reads the target's states
HEADS = TableHeads(V, heads=8)


def trees(seed: int = 0) -> dict[str, Any]:
    """A target, a draft that is like it, and a table of other texts."""
    target = TARGET.init(jax.random.key(seed))
    noise = jax.random.normal(jax.random.key(seed + 1), target["logits"].shape)
    texts = np.random.default_rng(seed).integers(1, V, (40, 9))
    with_start = np.pad(texts, ((0, 0), (1, 0)))
    known = {"table": tables.count(with_start, V), "store": tables.store(with_start)}
    draft = {"logits": target["logits"] + 0.8 * noise}
    keys = jax.random.split(jax.random.key(seed + 2), 2)
    known["filling"] = MASKING.init(jax.random.key(seed + 3))
    known["modern"] = MODERN.init(jax.random.key(seed + 4))
    known["heads"] = HEADS.init(jax.random.key(seed + 7))
    known["schedule"] = {
        "mean": np.zeros(12, np.float32),
        "scale": np.ones(12, np.float32),
        "hidden": jax.random.normal(keys[0], (12, 8)),
        "hidden_bias": np.zeros(8, np.float32),
        "out": jax.random.normal(keys[1], (8,)),
        "out_bias": np.zeros([], np.float32),
    }
    return {"target": target, "draft": draft, **jax.tree.map(jnp.asarray, known)}


TREES = trees()
MODEL = functools.partial(Autoregressive, TARGET)
DRAFTERS = {
    "model": MODEL,
    "copying": lambda rule: Copying(),
    "lookup": lambda rule: PromptLookup(),
    "input copy": lambda rule: InputCopy(),
    "retrieval": lambda rule: Retrieval(candidates=8),
    "bigram": functools.partial(NGram, 2),
    "trigram": functools.partial(NGram, 3),
    "uniform": lambda rule: Uniform(),
    "lookup, then a model": lambda rule: Hybrid(PromptLookup(), MODEL(rule)),
    "masks": lambda rule: Masked(MASKING, rule, masks=8, role="filling"),
    "masks and states": lambda rule: Masked(MODERN, rule, masks=8, role="modern"),
    "first layer": functools.partial(EarlyExit, 1),
    "heads": lambda rule: Blockwise(HEADS, rule, role="heads"),
    "lookup, then masks": lambda rule: Hybrid(
        PromptLookup(), Masked(MASKING, rule, masks=8, role="filling")
    ),
    "bigram, then a model": lambda rule: Hybrid(Copying(), NGram(2, rule)),
}
OFTEN = {"masks and states"}


def plan(drafter: Any, schedule: Any, rule: Any = GREEDY, verifier: Any = None) -> Plan:
    verifier = verifier or (GreedyMatch() if rule.greedy else SpeculativeSampling())
    return Plan(TARGET, drafter, verifier, schedule, rule, N)


def decoded(plan: Plan, rows: int = ROWS, sample: int = 0, given=INPUTS) -> DecodeOutput:
    inputs = jnp.asarray(np.resize(given, (rows, given.shape[1])))
    keys = row_keys(0, jnp.arange(rows), sample)
    return jax.device_get(decode(plan.params(TREES), keys, inputs, plan))


def passes(plan: Plan, rows: int = ROWS, given=INPUTS) -> list[Accepted]:
    """Returns the passes of a plan, which are the same for each schedule."""
    inputs = np.resize(given, (rows, given.shape[1]))
    return _passes(dataclasses.replace(plan, schedule=Fixed(1)), rows, inputs.tobytes())


@functools.cache
def _passes(plan: Plan, rows: int, inputs: bytes) -> list[Accepted]:
    batches = [(np.arange(rows), np.frombuffer(inputs, np.int32).reshape(rows, -1))]
    params = plan.params(TREES)
    texts = recording.generate(plan, params["target"], batches, seed=1, tokens=10**9)
    return list(measure(plan, params, texts, tables=False))


def replayed(plan: Plan, given: list[Accepted], **options: Any) -> Replayed:
    needed = {role: TREES[role] for role in schedule_replay.needed(plan)}
    return replay(plan, given, vocab_size=V, tables=needed, **options)


def same(found: Replayed, output: DecodeOutput) -> bool:
    """Whether the loop made just these calls."""
    trace = output.trace
    pairs = [(found.calls, trace.calls), (found.accepted, trace.accepted)]
    pairs += [(found.source, trace.source)] if trace.source is not None else []
    return all(np.array_equal(ours, its) for ours, its in pairs)


@pytest.mark.parametrize(
    "schedule", [pytest.param(Fixed(4), marks=pytest.mark.slow), AfterAcceptance((1, 2, 5))]
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN))
        for name in DRAFTERS
        if name != "uniform"
    ],
)
@pytest.mark.ci
def test_calls_of_greedy_texts_are_the_loops(name, schedule):
    """Text by text and call by call, for each drafter and schedule."""
    one = plan(DRAFTERS[name](GREEDY), schedule)
    found, output = replayed(one, passes(one)), decoded(one)
    assert same(found, output)
    assert found.accepted.sum() > 0
    np.testing.assert_array_equal(found.tokens, output.length)


class PadsWithNothing(PromptTable):
    """A decoder-only target whose padding is no token, while 0 is one."""

    pad_id = -1


@pytest.mark.ci
@pytest.mark.parametrize("drafter", [PromptLookup(), InputCopy()], ids=str)
def test_calls_after_prompts_are_the_loops(drafter):
    prompts = np.where(np.arange(6) < 3 + np.arange(ROWS)[:, None] % 4, INPUTS % 4, np.int32(-1))
    one = dataclasses.replace(
        plan(drafter, Fixed(4)), target=PadsWithNothing(V, classes=2, scale=3.0), stop_ids=()
    )
    found = replayed(one, passes(one, given=prompts))
    assert same(found, decoded(one, given=prompts))
    assert found.accepted.sum() > 0


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", [pytest.param("lookup, then a model", marks=pytest.mark.slow), "masks and states"]
)
def test_calls_are_the_loops_where_processors_look_back(name):
    """What a drafter would have proposed depends on the text, as what the target takes does."""
    rule = Processed(GREEDY, (RepetitionPenalty(1.5), NoRepeatNGram(2), MinLength(5)))
    one = plan(DRAFTERS[name](rule), Fixed(4), rule)
    output = decoded(one)
    assert same(replayed(one, passes(one)), output)
    assert not np.array_equal(output.tokens, decoded(plan(DRAFTERS[name](GREEDY), Fixed(4))).tokens)


@pytest.mark.ci
def test_what_is_recorded_of_blocks_are_numbers_to_the_end():
    """Also behind the last token of a text that has as many as there may be."""
    endless = dataclasses.replace(plan(DRAFTERS["masks"](DRAWN), Fixed(4), DRAWN), stop_ids=())
    texts = passes(endless, rows=8)
    assert all(text.tokens == N for text in texts)
    for text in texts:
        for by_kind in text.drafts.values():
            assert all(np.isfinite(values).all() for values in by_kind.values())


@pytest.mark.slow
def test_a_schedule_that_skips_is_replayed_too():
    one = plan(MODEL(GREEDY), Cycle((0, 1, 3)))
    assert same(replayed(one, passes(one)), decoded(one))


STOPPING = {
    "confidence": Confidence(0.5, buckets=(2, 6)),
    "joint confidence": JointConfidence(0.3, buckets=(2, 6)),
    "entropy": Entropy(1.2, buckets=(6,)),
    "heuristic": Heuristic(3),
    "cost optimal": CostOptimal(0.1, (1.05, 1.1, 1.12), (1, 3, 7)),
    "to the end": Fixed(6, shorter=(0, 2)),
    "disco": Disco(0.5, buckets=(2, 6)),
}


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.slow] * (x != "confidence")) for x in STOPPING],
)
@pytest.mark.parametrize(
    "drafter",
    [
        "model",
        pytest.param("lookup, then a model", marks=pytest.mark.slow),
        pytest.param("masks", marks=pytest.mark.ci),
    ],
)
def test_calls_of_every_schedule_are_the_loops(name, drafter):
    """Also where it stops by what the drafter thinks; what is drafted for nothing is a guess."""
    one = plan(DRAFTERS[drafter](GREEDY), STOPPING[name])
    found, output = replayed(one, passes(one)), decoded(one)
    assert same(found, output)
    whole = output.trace.accepted == output.trace.drafted
    assert np.array_equal(found.drafted[whole], output.trace.drafted[whole])
    assert len(np.unique(output.trace.drafted)) > 2 + (drafter != "masks")


@pytest.mark.slow
@pytest.mark.parametrize("name", STOPPING)
@pytest.mark.parametrize("verifier", [SpeculativeSampling(), Block()])
def test_tokens_per_call_of_every_schedule_are_the_loops_of_drawn_texts(name, verifier):
    one, rows = plan(MODEL(DRAWN), STOPPING[name], DRAWN, verifier), 3000
    found, output = replayed(one, passes(one, rows)), decoded(one, rows)
    ours = found.tokens.sum() / found.calls.sum()
    assert ours == pytest.approx(output.length.sum() / output.trace.calls.sum(), rel=0.03)


@pytest.mark.slow
def test_what_a_rule_sees_of_a_refused_token_is_not_of_the_texts():
    """Behind a refused token drafting goes on or it does not: as often as in the loop. With the
    text's own token in its place, which the drafter finds less likely, it goes on too seldom."""
    one, rows = plan(MODEL(DRAWN), Confidence(0.3, buckets=(6,)), DRAWN), 3000
    given, trace = passes(one, rows), decoded(one, rows).trace
    refused = np.minimum(trace.accepted, trace.proposed.shape[2] - 1)[..., None]
    ends = np.take_along_axis(trace.proposed, refused, axis=2)[..., 0] == 1  # drafting ends there
    right = ends_there(trace.drafted, np.where(ends, 99, trace.accepted), trace.calls)

    def ours(given: list[Accepted]) -> float:
        found = replayed(one, given)
        return ends_there(found.drafted, found.accepted, found.calls)

    # Shares of some thousand places each: 0.03 apart here.
    assert ours(given) == pytest.approx(right, abs=0.06)
    drafts = [text.drafts["Autoregressive"] for text in given]
    wrong = [{"Autoregressive": x | {"refused": x["confidence"]}} for x in drafts]
    of_texts = [x._replace(drafts=y) for x, y in zip(given, wrong, strict=True)]
    assert ours(of_texts) > right + 0.06


def ends_there(drafted: np.ndarray, accepted: np.ndarray, calls: np.ndarray) -> float:
    """The share of refused tokens behind which nothing was drafted."""
    made = np.arange(drafted.shape[1])[None] < calls[:, None]
    refused = made & (accepted < drafted)
    return float(np.mean((drafted == accepted + 1)[refused]))


@pytest.mark.parametrize(
    "schedule", [StopAfterUnlikely(4), ForeseenCost(0.1, (1.0,), buckets=(4,))]
)
def test_a_rule_that_nobody_recorded_is_not_replayed(schedule):
    stops = plan(MODEL(GREEDY), schedule)
    with pytest.raises(ValueError, match="stops by other signals than recorded; measure it"):
        replayed(stops, passes(stops))
    one = plan(MODEL(GREEDY), Confidence(0.5))
    drafts = {"Autoregressive": {"proposed": passes(one)[0].drafts["Autoregressive"]["proposed"]}}
    before = [passes(one)[0]._replace(drafts=drafts)]
    with pytest.raises(ValueError, match="text 0 has no recording 'confidence' of Autoregressive"):
        replayed(one, before)


@pytest.mark.parametrize(
    "output, message",
    [
        ([5] * 4, f"text 7 ends with 4 tokens and no stop id, but outputs hold {N}; replay the"),
        ([5, 1, 5, 1], "text 7 goes on after the stop id 1; replay the texts of this run"),
        ([5] * (N + 1), f"text 7 has {N + 1} tokens but outputs hold {N}; replay the texts"),
        ([], f"text 7 ends with 0 tokens and no stop id, but outputs hold {N}; replay"),
    ],
)
def test_a_text_that_this_plan_would_have_ended_elsewhere_is_refused(output, message):
    one = plan(MODEL(GREEDY), Fixed(2))
    drafts = {"Autoregressive": {"proposed": output}}
    text = Accepted(7, len(output), {}, [3], output, drafts)
    with pytest.raises(ValueError, match=message):
        replayed(one, [text])


@pytest.mark.parametrize(
    "gamma", [1, 5, *(pytest.param(gamma, marks=pytest.mark.slow) for gamma in (2, 3, 8))]
)
def test_calls_are_those_of_a_simulation_of_agreement(gamma):
    """In NumPy, of agreement alone: a call keeps what agrees up to the first that does not."""
    one = plan(MODEL(GREEDY), Fixed(gamma))
    given = passes(one)
    calls = []
    for text in given:
        agrees = np.array(text.output) == np.array(text.drafts["Autoregressive"]["proposed"])
        at, count = 0, 0
        while at < len(agrees):
            room = N - 1 - at  # the target's own token fits as well
            draft = agrees[at : at + min(gamma, room)]
            kept = len(draft) if draft.all() else int(np.argmin(draft))
            at, count = at + kept + 1, count + 1
        calls.append(count)
    assert replayed(one, given).calls.tolist() == calls


@pytest.mark.planted
def test_a_recording_that_is_a_token_late_is_seen(monkeypatch):
    one = plan(MODEL(GREEDY), Fixed(3))
    given, right = passes(one), replays._Replaying.row

    def late(*args):
        row = right(*args)
        rolled = jax.tree.map(lambda array: np.roll(array, 1), row.recordings)
        return row._replace(recordings=rolled)

    monkeypatch.setattr(replays._Replaying, "row", late)
    assert not same(replayed(one, given), decoded(one))


def test_a_text_that_is_not_written_again_is_an_error(monkeypatch):
    one, right = plan(MODEL(GREEDY), Fixed(3)), replays._Replaying.row
    given = passes(one)

    def stopped(*args):
        row = right(*args)
        return row._replace(tokens=np.r_[replays.STOPS, row.tokens[1:]])

    monkeypatch.setattr(replays._Replaying, "row", stopped)
    with pytest.raises(RuntimeError, match="has not written its text"):
        replayed(one, given)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("gamma", [1, 8])
@pytest.mark.parametrize("verifier", [SpeculativeSampling(), Block()])
def test_tokens_per_call_of_drawn_texts_are_the_loops(name, gamma, verifier):
    """Within 3 %, of 3,000 texts each: one in hundreds of standard errors of 0.5 % or so."""
    one, rows = plan(DRAFTERS[name](DRAWN), Fixed(gamma), DRAWN, verifier), 3000
    found, output = replayed(one, passes(one, rows)), decoded(one, rows)
    ours = found.tokens.sum() / found.calls.sum()
    assert ours == pytest.approx(output.length.sum() / output.trace.calls.sum(), rel=0.03)


@pytest.mark.planted
def test_a_block_is_no_row_of_tokens():
    """Replayed by the ratio rule it is off by more than the 3 % above."""
    model = Autoregressive(TARGET, Sampling(2.0))
    block, ratio = (plan(model, Fixed(8), DRAWN, x) for x in (Block(), SpeculativeSampling()))
    given = passes(block, 500)
    right, wrong = (replayed(one, given).calls.sum() for one in (block, ratio))
    assert wrong > 1.04 * right


@pytest.mark.planted
def test_coins_that_always_fall_are_seen():
    one = plan(MODEL(DRAWN), Fixed(8), DRAWN)
    given = passes(one, 500)
    certain = [
        text._replace(drafts={"Autoregressive": {"ratio": [1.0] * text.tokens}}) for text in given
    ]
    right, wrong = (replayed(one, x).calls.sum() for x in (given, certain))
    assert wrong < 0.9 * right


def test_a_drafter_that_is_certain_needs_one_sample():
    one = plan(Copying(), Fixed(2), DRAWN)
    assert len(replayed(one, passes(one)).calls) == ROWS
    drawing = plan(MODEL(DRAWN), Fixed(2), DRAWN)
    assert len(replayed(drawing, passes(drawing), samples=3).calls) == 3 * ROWS


@pytest.mark.slow
def test_the_embedded_pair_is_replayed_text_by_text():
    """40 sentences, by its model and by copying."""
    models = {role: checkpoints.model_from(demo.path(role)) for role in ("target", "draft")}
    read = {r: checkpoints.load(demo.path(r), config=m.config) for r, m in models.items()}
    batches = list(
        tasks.batches(
            tasks.synthetic_task("specdec_ende"),
            "test",
            {"inputs": 48, "targets": 48},
            batch_size=ROWS,
            limit=ROWS,
        )
    )
    (batch,) = batches
    model: Any = Autoregressive(models["draft"], GREEDY)
    one = Plan(models["target"], model, GreedyMatch(), Fixed(7), GREEDY, 48, (1,))
    params = one.params(read)
    texts = recording.generate(
        one, params["target"], [(batch.index, batch.inputs)], seed=0, tokens=10**9
    )
    given = list(measure(one, params, texts, tables=False))
    for drafter, gamma in [(model, 1), (model, 4), (model, 10), (Copying(), 4)]:
        used = dataclasses.replace(one, drafter=drafter, schedule=Fixed(gamma))
        own = used.params(read) if used.models().keys() > {"target"} else Params(read["target"])
        keys = row_keys(0, jnp.arange(ROWS))
        output = jax.device_get(decode(own, keys, jnp.asarray(batch.inputs), used))
        vocab_size = models["target"].vocab_size
        assert same(replay(used, given, vocab_size=vocab_size, length=48), output)


def test_a_search_leaves_no_programs_behind():
    """Hundreds of them would fill the memory maps that a process may have."""
    one = plan(MODEL(GREEDY), Fixed(2))
    given, left = passes(one), []
    gc.freeze()  # what other tests have left is not looked through
    for threshold in (0.11, 0.22, 0.33):
        replayed(plan(MODEL(GREEDY), Confidence(threshold, buckets=(2,))), given)
        gc.collect()
        left.append(len(jax.devices()[0].client.live_executables()))
    gc.unfreeze()
    assert left[1] == left[2]
