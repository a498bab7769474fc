"""Drafters, verifiers, schedules and samplings with one another: pytest tests/test_combinations.py

By `ci` the cases of FEW are decoded, in which each value of each axis occurs. In SOME of the 2,816
cases each value of one axis meets each value of another one, but drafters need not meet all
verifiers; those that are not in FEW are slow.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import StatesTable, TableHeads

from specdec.checkpoints import tables
from specdec.decoding import decode, row_keys
from specdec.drafters import (
    Autoregressive,
    Blockwise,
    Committee,
    EarlyExit,
    Hybrid,
    Masked,
    NGram,
    PromptLookup,
    Retrieval,
)
from specdec.plan import Plan
from specdec.sampling import (
    Greedy,
    MinLength,
    NoRepeatNGram,
    Processed,
    RepetitionPenalty,
    Sampling,
)
from specdec.schedules import Confidence, CostOptimal, Disco, Fixed, Guard
from specdec.testing import Law, TableTarget, compare, sequence_law
from specdec.verifiers import (
    BigLittle,
    Block,
    Coupled,
    Distance,
    Ensemble,
    GreedyMatch,
    Lenient,
    MinimumBlock,
    SpeculativeCascade,
    SpeculativeSampling,
    TopBeta,
    TopK,
    Typical,
)

V, N, ROWS = 5, 4, 4000
TARGET = TableTarget(V, classes=3, num_layers=2)
MASKING = TableTarget(V + 3, classes=3)  # whose last ids are masks
MODERN = StatesTable(V + 3, classes=3)  # which reads the target's states
HEADS = TableHeads(V, heads=3)
TEXTS = [[0, *text, 1] for text in np.random.default_rng(0).integers(2, V, [40, 4])]
LOGITS = TARGET.init(jax.random.key(27))["logits"]  # whose outputs are long and of many kinds
TREES = {
    "target": {"logits": LOGITS},
    "draft": {"logits": LOGITS + 0.8 * jax.random.normal(jax.random.key(1), LOGITS.shape)},
    "filling": MASKING.init(jax.random.key(4)),
    "modern": MODERN.init(jax.random.key(5)),
    "heads": HEADS.init(jax.random.key(6)),
    "table": jax.tree.map(jnp.asarray, dict(tables.count(TEXTS, V))),
    "store": jax.tree.map(jnp.asarray, dict(tables.store(TEXTS))),
    "schedule": {
        "mean": jnp.zeros(12),
        "scale": jnp.ones(12),
        "hidden": jax.random.normal(jax.random.key(2), (12, 4)),
        "hidden_bias": jnp.zeros(4),
        "out": jax.random.normal(jax.random.key(3), (4,)),
        "out_bias": jnp.zeros([]),
    },
}
INPUTS = jnp.tile(jnp.array([[3, 1, 2]], jnp.int32), (ROWS, 1))
BEGINNING = (0, 4)

LOOKING_BACK = (RepetitionPenalty(1.4), NoRepeatNGram(2), MinLength(2))
RULES = {
    "greedy": Greedy(),
    "drawn": Sampling(0.7, top_k=4),
    "greedy, processed": Processed(Greedy(), LOOKING_BACK),
    "drawn, processed": Processed(Sampling(0.7), LOOKING_BACK),
}
MODEL = functools.partial(Autoregressive, TARGET)
DRAFTERS = {  # of the target's sampling
    "model": MODEL,
    "retrieval": lambda rule: Retrieval(candidates=8),
    "lookup, then a model": lambda rule: Hybrid(PromptLookup(), MODEL(rule)),
    "masks": lambda rule: Masked(MASKING, rule, masks=3, role="filling"),
    "masks and states": lambda rule: Masked(MODERN, rule, masks=3, role="modern"),
    "heads": lambda rule: Blockwise(HEADS, rule, role="heads"),
    "first layer": lambda rule: EarlyExit(1, rule),
    "committee": lambda rule: Committee((MODEL(rule), NGram(2, rule)), rule, decay=0.7),
}
VERIFIERS = {
    "match": GreedyMatch(),
    "ratio": SpeculativeSampling(),
    "block": Block(),
    "coupled": Coupled(),
    "lenient": Lenient(0.5),
    "top beta": TopBeta(3, 1.0),
    "top k": TopK(2),
    "typical": Typical(),
    "big little": BigLittle(0.4, 2.0),
    "distance": Distance(1),
    "minimum": MinimumBlock(SpeculativeSampling(), 1),
    "ensemble": Ensemble(0.6),
    "cascade": SpeculativeCascade("token", 0.3),
}
SCHEDULES = {
    "fixed": Fixed(3),
    "confidence": Confidence(0.4, buckets=(1, 3)),
    "cost": CostOptimal(0.3, (1.0, 1.5), (0, 3)),
    "guarded": Guard(Disco(0.4, buckets=(1, 3)), 0.3, (1.0, 1.2, 1.5), 1.2, 4),
}
AXES = {
    "drafter": DRAFTERS,
    "verifier": VERIFIERS,
    "schedule": SCHEDULES,
    "rule": RULES,
    "start": ("at once", "behind a prefix"),
}


def possible(case: tuple[str, ...]) -> bool:
    _, verifier, _, rule, _ = case
    return RULES[rule].greedy or not getattr(VERIFIERS[verifier], "greedy_only", False)


def values(case: tuple[str, ...]) -> set:
    """Returns the values of a case, each with its axis."""
    return set(enumerate(case))


def pairs(case: tuple[str, ...]) -> set:
    """Returns the pairs of values, but for those of a drafter and a verifier, which are many."""
    both = set(itertools.combinations(enumerate(case), 2))
    return {pair for pair in both if (pair[0][0], pair[1][0]) != (0, 1)}


def covering(cases: list[tuple[str, ...]], parts: Callable) -> list[tuple[str, ...]]:
    """Few of the cases that have all parts which any of them has."""
    having = {case: parts(case) for case in cases}
    chosen, missing = [], set().union(*having.values())
    while missing:
        chosen.append(max(cases, key=lambda case: len(having[case] & missing)))
        missing -= having[chosen[-1]]
    return chosen


ALL = [case for case in itertools.product(*AXES.values()) if possible(case)]
SOME = covering(ALL, pairs)
FEW = covering(SOME, values)
SLOW = pytest.mark.slow
MARKS = dict.fromkeys(FEW, ())


def test_some_cases_have_all_pairs():
    every = [(i, value) for i, axis in enumerate(AXES.values()) for value in axis]
    impossible = {
        ((1, name), (3, rule))
        for name, verifier in VERIFIERS.items()
        for rule, sampling in RULES.items()
        if getattr(verifier, "greedy_only", False) and not sampling.greedy
    }
    both = {pair for pair in itertools.combinations(every, 2) if pair[0][0] < pair[1][0]}
    both = {pair for pair in both if (pair[0][0], pair[1][0]) != (0, 1)}
    assert set().union(*map(pairs, SOME)) == both - impossible
    assert set().union(*map(values, FEW)) == set(every)


@functools.cache
def alone(rule: str, start: str) -> np.ndarray:
    plan = Plan(TARGET, None, None, None, RULES[rule], N)  # type: ignore[arg-type]
    return decoded(plan, start).tokens


@functools.cache
def law(rule: str, start: str) -> Law:
    """Of the target alone; behind a prefix, given that the text begins so."""
    sampling, given = RULES[rule], np.asarray(INPUTS[0])
    tokens, probs = sequence_law(TARGET, TREES["target"], given, sampling=sampling, max_length=N)
    if start == "behind a prefix":
        begins = np.all(tokens[:, : len(BEGINNING)] == BEGINNING, axis=1)
        tokens, probs = tokens[begins], probs[begins] / probs[begins].sum()
    return Law(tokens, probs)


def decoded(plan: Plan, start: str):
    prefix = jnp.tile(jnp.array([BEGINNING], jnp.int32), (ROWS, 1))
    keys = row_keys(0, jnp.arange(ROWS))
    prefix = prefix if start == "behind a prefix" else None
    return jax.device_get(decode(plan.params(TREES), keys, INPUTS, plan, prefix=prefix))


@pytest.mark.ci
@pytest.mark.parametrize(
    tuple(AXES),
    [pytest.param(*case, id=", ".join(case), marks=MARKS.get(case, SLOW)) for case in SOME],
)
def test_all_go_together(drafter, verifier, schedule, rule, start):
    sampling, decides = RULES[rule], VERIFIERS[verifier]
    plan = Plan(TARGET, DRAFTERS[drafter](sampling), decides, SCHEDULES[schedule], sampling, N)
    output = decoded(plan, start)
    for row in range(0, ROWS, ROWS // 20):
        check_that_calls_make_the_text(output.row(row), start)
    assert plan.exact == (verifier in ("match", "ratio", "block", "coupled"))
    if plan.same_output:
        np.testing.assert_array_equal(output.tokens, alone(rule, start))
    elif plan.exact:
        result = compare(law(rule, start), output.tokens)
        assert result.passed, result
    if sampling.greedy:
        assert len(np.unique(output.tokens, axis=0)) == 1, "a row depends on its neighbours"


def check_that_calls_make_the_text(row, start: str) -> None:
    """Each call gives what it kept of its draft, and one token more."""
    text = row.tokens[len(BEGINNING) if start == "behind a prefix" else 0 :]
    made: list[int] = []
    for proposed, drafted, accepted in zip(row.proposed, row.drafted, row.accepted, strict=True):
        assert accepted <= drafted <= 3
        assert text[len(made) : len(made) + accepted] == proposed[:accepted]
        made = text[: len(made) + accepted + 1]
    assert made == text
    assert 1 not in row.tokens[:-1]
    assert len(row.tokens) == N or row.tokens[-1] == 1
