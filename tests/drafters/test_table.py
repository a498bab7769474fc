"""Every drafter and every schedule, through the same checks: pytest tests/drafters/test_table.py

A new one is a row here.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import (
    AfterAcceptance,
    AvoidsWhatWasUnlikely,
    ConfidentTable,
    Cycle,
    StatesTable,
    StopAfterUnlikely,
    TableHeads,
)

from specdec import Plan, decode, row_keys
from specdec.certificate.exactness import _count
from specdec.checkpoints import tables
from specdec.drafters import (
    Autoregressive,
    Blockwise,
    Committee,
    EarlyExit,
    Hybrid,
    InputCopy,
    Masked,
    MultiPath,
    NGram,
    NoSource,
    PreviousOutput,
    PromptLookup,
    Retrieval,
    SuffixDecoding,
    Uniform,
)
from specdec.models.t5 import T5Draft, T5DraftConfig
from specdec.sampling import Greedy, Sampling
from specdec.schedules import (
    Confidence,
    CostOptimal,
    Disco,
    Entropy,
    Fixed,
    ForeseenCost,
    Guard,
    Heuristic,
    JointConfidence,
)
from specdec.testing import (
    Bench,
    Constant,
    OneOf,
    Skipping,
    TableTarget,
    check_drafter,
    check_everything_accepted,
    check_schedule,
    hostile,
)
from specdec.types import Params
from specdec.verifiers import GreedyMatch, SpeculativeSampling

TARGET = TableTarget(6, classes=3)
DEEP = dataclasses.replace(TARGET, num_layers=2)
OTHER = TARGET.init(jax.random.key(9))
WIDER, NARROWER = TableTarget(8, classes=3), TableTarget(4, classes=3)
MASKING = TableTarget(6 + 9, classes=3)  # whose last ids are masks
MODERN, HEADS = StatesTable(6 + 9, classes=3), TableHeads(6, heads=9)
CONFIDENT = ConfidentTable(6 + 9, classes=3)
SOME_IDS = T5Draft(
    T5DraftConfig(
        vocab_size=6,
        emb_dim=8,
        num_heads=1,
        head_dim=4,
        mlp_dim=8,
        num_encoder_layers=1,
        num_decoder_layers=1,
        head_ids=(1, 3, 4),
    )
)
FILLING = MASKING.init(jax.random.key(10))
KEY = jax.random.key(11)

HOSTILE = hostile(TARGET, 6)
CONSTANT = {name: one for name, one in HOSTILE.items() if isinstance(one, Constant)}
ANY = OneOf(tuple(CONSTANT.values()))  # one program for all that always propose the same

STORED = [[0, *text, 1] for text in np.random.default_rng(0).integers(2, 6, [40, 4])]
NGRAMS = {name: jnp.asarray(array) for name, array in tables.count(STORED, 6).items()}
STORE = {name: jnp.asarray(array) for name, array in tables.store(STORED).items()}

# name: (drafter, its parameters, the sampling under which it is perfect if given the target's)
DRAFTERS = {
    "autoregressive": (Autoregressive(TARGET, Sampling()), OTHER, Sampling()),
    "without the source": (Autoregressive(TARGET, Sampling(), NoSource()), OTHER, None),
    "autoregressive greedy": (Autoregressive(TARGET, Greedy()), OTHER, Greedy()),
    "autoregressive filtered": (
        Autoregressive(TARGET, Sampling(0.7, top_k=3, top_p=0.9)),
        OTHER,
        Sampling(0.7, top_k=3, top_p=0.9),
    ),
    "skipped at random": (Skipping(Autoregressive(TARGET, Sampling())), OTHER, Sampling()),
    "paths, skipped at random": (
        Skipping(MultiPath(TARGET, Sampling(), paths=3)),
        OTHER,
        Sampling(),
    ),
    "wider vocabulary": (Autoregressive(WIDER, Sampling()), WIDER.init(jax.random.key(9)), None),
    "narrower vocabulary": (
        Autoregressive(NARROWER, Sampling()),
        NARROWER.init(jax.random.key(9)),
        None,
    ),
    "a head of some ids": (
        Autoregressive(SOME_IDS, Sampling()),
        SOME_IDS.init(jax.random.key(13)),
        None,
    ),
    **{name: (drafter, (), None) for name, drafter in HOSTILE.items() if name not in CONSTANT},
    **{name: (ANY, {"number": jnp.int32(i)}, None) for i, name in enumerate(CONSTANT)},
    "certain of a constant": (Constant(1), (), None),
    "prompt lookup": (PromptLookup(), (), None),
    "input copy": (InputCopy(), (), None),
    "previous output": (PreviousOutput(), (), None),
    "suffix decoding": (SuffixDecoding(least=0.3), (), None),
    "trigram": (NGram(3, Sampling()), NGRAMS, None),
    "bigram, the likeliest": (NGram(2, Greedy()), NGRAMS, None),
    "retrieval": (Retrieval(candidates=8), STORE, None),
    "uniform": (Uniform(), (), None),
    "committee": (
        Committee(
            (Autoregressive(TARGET, Sampling()), NGram(2, Sampling())), Sampling(0.7), (3.0, 1.0)
        ),
        {"draft": OTHER, "table": NGRAMS},
        None,
    ),
    "adaptive committee, sometimes asked": (
        Skipping(
            Committee(
                (
                    Autoregressive(TARGET, Sampling()),
                    Autoregressive(WIDER, Sampling(), role="draft_2"),
                ),
                Sampling(),
                decay=0.8,
            )
        ),
        {"draft": OTHER, "draft_2": WIDER.init(jax.random.key(8))},
        None,
    ),
    "masked": (Masked(MASKING, Sampling(), masks=9), FILLING, None),
    "masked, greedy, sometimes asked": (
        Skipping(Masked(MASKING, Greedy(), masks=9, distinct=False)),
        FILLING,
        None,
    ),
    "masked, with the target's states, sometimes asked": (
        Skipping(Masked(MODERN, Sampling(), masks=9)),
        MODERN.init(jax.random.key(11)),
        None,
    ),
    "blockwise": (Blockwise(HEADS, Sampling()), HEADS.init(jax.random.key(12)), None),
    "blockwise, greedy": (Blockwise(HEADS, Greedy()), HEADS.init(jax.random.key(12)), None),
    "early exit": (EarlyExit(1, Sampling(0.7, top_k=4)), (), None),
    "early exit, sometimes asked": (Skipping(EarlyExit(1, Sampling())), (), None),
    "early exit, greedy": (EarlyExit(1, Greedy()), (), None),
    "all layers": (EarlyExit(2, Sampling()), (), Sampling()),
    "hybrid": (Hybrid(PromptLookup(), Autoregressive(TARGET, Sampling())), OTHER, None),
    "hybrid of a store, sometimes empty": (
        Hybrid(Skipping(Retrieval(candidates=8)), Autoregressive(TARGET, Sampling()), shortest=2),
        {"store": STORE, "draft": OTHER},
        None,
    ),
}

SCHEDULES = {
    "fixed": Fixed(3),
    "stop": StopAfterUnlikely(4),
    "avoid": AvoidsWhatWasUnlikely(3),
    "cycle": Cycle((4,)),
    "buckets": Cycle((1, 3)),
    "buckets with none": Cycle((0, 2)),
    "after acceptance": AfterAcceptance((2, 4)),
    "narrow where drafts end": Fixed(3, shorter=(0, 1)),
    "heuristic": Heuristic(2, (1, 3)),
    "confidence": Confidence(0.5, buckets=(1, 3)),
    "joint confidence": JointConfidence(0.3, buckets=(1, 3)),
    "entropy": Entropy(0.8, buckets=(1, 3)),
    "cost optimal": CostOptimal(0.05, (1.0, 1.1, 1.2), (0, 1, 3), prior=0.6, strength=1.0),
    "disco": Disco(0.4, buckets=(1, 3)),
    "foreseen cost": ForeseenCost(0.1, (1.0, 1.3, 1.8), buckets=(0, 1, 3)),
    "guarded": Guard(Fixed(3), 0.1, (1.0, 1.2), 1.2, 4),
}
# Of those that have parameters.
CLASSIFIER = {
    "mean": jnp.zeros(12),
    "scale": jnp.ones(12),
    "hidden": jax.random.normal(jax.random.key(5), (12, 4)),
    "hidden_bias": jnp.zeros(4),
    "out": jax.random.normal(jax.random.key(6), (4,)),
    "out_bias": jnp.zeros([]),
}


OFTEN = ("blockwise", "skipped at random")


def marked(names, *often):
    """Returns names for `parametrize`, of which all but those that `.ci/run` has are slow."""
    marks = [pytest.mark.ci if name in often else pytest.mark.slow for name in names]
    return [pytest.param(name, marks=mark) for name, mark in zip(names, marks, strict=True)]


@pytest.mark.parametrize("name", marked(DRAFTERS, *OFTEN))
def test_drafter(name):
    drafter, params, _ = DRAFTERS[name]
    check_drafter(drafter, params, gammas=(3,))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)  # tests/schedules has the laws of ours
def test_schedule(name):
    check_schedule(SCHEDULES[name], CLASSIFIER)


@pytest.mark.parametrize(
    "name", ["skipped at random", pytest.param("all layers", marks=pytest.mark.ci)]
)
def test_perfect_drafter_has_everything_accepted(name):
    drafter, _, sampling = DRAFTERS[name]
    check_everything_accepted(perfect(drafter), Fixed(5), sampling)


@pytest.mark.parametrize("name", marked(SCHEDULES, "stop"))
def test_perfect_drafter_has_everything_accepted_at_every_schedule(name):
    bench = perfect(Autoregressive(TARGET, Sampling()))
    bench = bench._replace(params=bench.params | {"schedule": CLASSIFIER})
    check_everything_accepted(bench, SCHEDULES[name], Sampling())


@pytest.mark.parametrize("odds", [np.nan, np.inf, -np.inf], ids=str)
def test_a_confidence_head_may_say_what_it_likes(odds):
    params = CONFIDENT.init(KEY)
    params["confidence"] = jnp.full_like(params["confidence"], odds)
    bench = Bench.create(max_length=8, rows=64)
    bench = bench._replace(
        drafter=Masked(CONFIDENT, Greedy(), masks=9), params=bench.params | {"draft": params}
    )
    ours = bench.run(GreedyMatch(), SCHEDULES["foreseen cost"], Greedy())
    np.testing.assert_array_equal(ours.tokens, bench.alone(Greedy()).tokens)
    if not np.isnan(odds):
        assert int(ours.trace.drafted[:, 0].max()) == (3 if odds > 0 else 0)


def test_each_draft_is_what_the_text_alone_leads_to():
    """Also where the drafter was not asked for some calls after one of its tokens was refused."""
    bench = Bench.create(max_length=40)
    drafter = Skipping(Autoregressive(bench.target, Greedy()))
    plan = Plan(bench.target, drafter, GreedyMatch(), Fixed(5), Greedy(), 40, ())
    inputs = jnp.ones([4, 1], jnp.int32)
    output = jax.device_get(decode(bench.params, row_keys(0, jnp.arange(4)), inputs, plan))
    table, refused = np.asarray(bench.params["draft"]["logits"])[1], 0
    for row in map(output.row, range(4)):
        done = 0
        for proposed, drafted, accepted in zip(*row[1:4], strict=True):
            text = [*row.tokens[:done]]
            for token in proposed[:drafted]:
                assert token == table[sum(text) % 6, text[-1] if text else 0].argmax()
                text.append(token)
            refused += accepted < drafted
            done += accepted + 1
    assert refused > 10


@pytest.mark.ci
def test_a_tree_of_drafts_is_what_the_text_alone_leads_to():
    """So too, by a comparison with a state that is made anew for each draft."""
    bench = Bench.create()
    drafter = MultiPath(bench.target, Greedy(), paths=2)
    plan = Plan(bench.target, drafter, GreedyMatch(), Fixed(3), Greedy(), 30, ())
    given = row_keys(0, jnp.arange(4)), jnp.arange(8, dtype=jnp.int32).reshape(4, 2)
    drafts, different = jax.jit(functools.partial(_count, plan=plan))(bench.params, *given)
    assert drafts > 30 and different == 0


def perfect(drafter):
    params = DEEP.init(jax.random.key(0))
    return Bench(DEEP, Params(params, params), drafter, max_length=25)


def test_a_draft_ends_where_the_schedule_stops_it():
    """Every token is less likely than 2, so that each draft has one."""
    bench = Bench.create(max_length=8)
    trace = bench.run(SpeculativeSampling(), StopAfterUnlikely(4, 2.0), Sampling(), rows=64).trace
    assert int(trace.drafted.max()) == 1


def test_check_schedule_sees_buckets_that_do_not_ascend():
    with pytest.raises(AssertionError, match=r"buckets is \(3, 2\); give ascending"):
        check_schedule(Cycle((3, 2)))


@pytest.mark.planted
@pytest.mark.parametrize(
    "name, wrong",
    [
        ("autoregressive", lambda probs: jnp.roll(probs, 1, axis=-1)),
        # The head lacks three ids, which are never drawn.
        (
            "a head of some ids",
            lambda probs: 0.7 * probs + jnp.asarray([[[1, 0, 1, 0, 0, 1]]]) / 10,
        ),
    ],
)
def test_check_drafter_sees_a_q_that_was_not_drawn_from(name, wrong):
    @dataclasses.dataclass(frozen=True)
    class Misreporting(Autoregressive):
        def propose(self, *args):
            draft, state = super().propose(*args)
            return draft.replace(probs=wrong(draft.probs)), state

    drafter, params, _ = DRAFTERS[name]
    with pytest.raises(AssertionError, match="draws from other distributions"):
        check_drafter(Misreporting(drafter.model, Sampling()), params, gammas=(2,))


@dataclasses.dataclass(frozen=True)
class Later(Fixed):
    """Wants nothing in the first calls, then gamma tokens."""

    calls: int = 6

    def init(self, batch):
        return jnp.zeros([batch], jnp.int32)

    def want(self, state):
        return jnp.where(state < self.calls, 0, self.gamma)

    def update(self, state, draft, verdict):
        return state + 1


def test_a_drafter_knows_of_a_prefix_what_it_would_know_had_the_text_been_written():
    """Six tokens: given, or written by the target in six calls. Every draft is the same."""
    drafter, params, _ = DRAFTERS["blockwise, greedy"]
    params, rows = Params(DEEP.init(jax.random.key(0)), params), 12
    inputs = jax.random.randint(jax.random.key(3), [rows, 3], 2, 6)
    plan = Plan(DEEP, drafter, GreedyMatch(), Later(3), Greedy(), 12, ())
    written = decode(params, row_keys(0, jnp.arange(rows)), inputs, plan)
    prefix = written.tokens[:, :6].at[0, 2:].set(0)  # the first row's has two tokens at most
    at_once = dataclasses.replace(plan, schedule=Later(3, calls=0))
    given = decode(params, row_keys(0, jnp.arange(rows)), inputs, at_once, prefix=prefix)
    np.testing.assert_array_equal(given.tokens, written.tokens)
    whole = np.asarray(prefix[:, 5] != 0)
    assert whole.sum() > 6
    drafts = [x[whole] for x in (given.trace.proposed[:, :-6], written.trace.proposed[:, 6:])]
    np.testing.assert_array_equal(*drafts)
    assert len(np.unique(drafts[0])) > 2


def test_the_worst_drafter_costs_no_target_call():
    params = Params(TARGET.init(jax.random.key(0)))
    bench = Bench(TARGET, params, HOSTILE["always wrong"], max_length=20, rows=64)
    plain, ours = bench.alone(Greedy()), bench.run(GreedyMatch(), Fixed(3), Greedy())
    assert bool((ours.tokens == plain.tokens).all())
    assert bool((ours.trace.calls == plain.trace.calls).all())
    assert int(ours.trace.accepted.sum()) == 0
