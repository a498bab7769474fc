"""Verifiers that are not exact have the law that they state: pytest tests/verifiers"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import (
    big_little,
    chow,
    difference,
    emitted,
    lenient,
    linear,
    logits,
    mixture,
    optimal,
    outputs,
    typical,
)
from laws import token as token_rule
from tolerances import FLOAT64

from specdec import verifiers
from specdec.decoding import decode, row_keys
from specdec.drafters import Autoregressive
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.testing import Bench, Law, adversarial_trees, compare, output_law
from specdec.types import Draft, Noise, Scores
from specdec.verifiers import (
    BigLittle,
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
    Verifier,
)

DRAWN = {
    "lenient 0.5": (Lenient(0.5), lenient(0.5)),
    "lenient 0.1": (Lenient(0.1), lenient(0.1)),
    "typical": (Typical(), typical(0.09, 0.3)),
    "typical, strict": (Typical(0.4, 0.9), typical(0.4, 0.9)),
    "big little": (BigLittle(0.3, 2.0), big_little(0.3, 2.0)),
    "big little, no fallback": (BigLittle(0.0, 1.0), big_little(0.0, 1.0)),
    "ensemble": (Ensemble(0.7), mixture(linear(0.7))),
    "ensemble of logits": (Ensemble(0.3, logits=True), mixture(logits(0.3))),
    "token cascade": (SpeculativeCascade("token", 0.3), mixture(token_rule(0.3))),
    "chow": (SpeculativeCascade("chow", 0.5), mixture(chow(0.5))),
    "difference": (SpeculativeCascade("difference", 0.2), mixture(difference(0.2))),
    "optimal": (SpeculativeCascade("optimal", 0.4), mixture(optimal(0.4))),
}
LOSSY = [
    *(verifier for verifier, _ in DRAWN.values()),
    *(TopBeta(), TopK(2), Distance(1), MinimumBlock(SpeculativeSampling(), 1)),
]


@pytest.mark.parametrize("name", DRAWN)
def test_a_call_emits_the_stated_law(name):
    """For random and adversarial p and q, whole and shortened drafts, in float64."""
    verifier, rule = DRAWN[name]
    with jax.enable_x64(True):
        for gamma in (1, 2):
            for case, trees in adversarial_trees(0, 3, gamma, Sampling(1.3)).items():
                for length in range(gamma + 1):
                    right = emitted(rule, trees.p, trees.q, length)
                    law = output_law(verifier, trees, length)
                    name = f"{case}, gamma {gamma}, length {length}"
                    np.testing.assert_allclose(law, right, rtol=0, atol=FLOAT64, err_msg=name)


@pytest.mark.parametrize("lenience", [0.5, 0.1])
def test_lenience_is_bounded(lenience):
    """No token is emitted more than 1 / l times as often as the target would."""
    with jax.enable_x64(True):
        for trees in adversarial_trees(1, 4, 1, Sampling()).values():
            law = output_law(Lenient(lenience), trees, 1).sum(axis=1)
            assert np.all(law <= trees.p[0] / lenience + 1e-12)
            assert law.sum() == pytest.approx(1)


@pytest.mark.ci
def test_whole_outputs_have_the_stated_law():
    """Through the loop, call after call, against an enumeration that knows nothing of it."""
    verifier, rule = DRAWN["token cascade"]
    bench, sampling = Bench.create(), Sampling()
    output = bench.run(verifier, Fixed(2), sampling)
    inputs = int(np.sum(bench.inputs(1)))

    def next_of(params, classes):
        table = np.asarray(params["logits"])[inputs % classes]

        def given(text):
            last, total = (text[-1] if text else 0), sum(text) % len(table)
            return np.asarray(sampling.probabilities(table[total, last]), np.float64)

        return given

    classes = bench.target.classes
    p_of, q_of = (next_of(x, classes) for x in (bench.params["target"], bench.params["draft"]))
    found = outputs(rule, p_of, q_of, gamma=2, longest=bench.max_length, stop=1)
    tokens = np.zeros([len(found), bench.max_length], np.int32)
    for row, text in zip(tokens, found, strict=True):
        row[: len(text)] = text
    law = Law(tokens, np.array(list(found.values())))
    assert law.probs.sum() == pytest.approx(1)
    result = compare(law, output.tokens)
    assert result.passed, result
    assert not bench.compare(output.tokens, sampling).passed, "it is another law than the target's"


# What keeps a draft token, of a target's and a drafter's logits, and what comes in its place.
def argmax(p, q):
    return int(np.argmax(p))


def softmax(x):
    x = np.exp(np.asarray(x, np.float64) - np.max(x))
    return x / x.sum()


def chosen(pi):
    return lambda p, q: int(np.argmax(pi(softmax(p), softmax(q))))


def by_choice(choice):
    return (lambda p, q, x: x == choice(p, q)), choice


def likelier(p, x):
    return int(np.sum(p > p[x]))


GREEDY = {
    TopBeta(3, 1.0): (lambda p, q, x: likelier(p, x) < 3 and p.max() - p[x] <= 1.0, argmax),
    TopK(2): (lambda p, q, x: likelier(p, x) < 2, argmax),
    Distance(2, ordered=(2, 5)): (
        lambda p, q, x: (
            x == np.argmax(p) or (min(x, np.argmax(p)) >= 2 and abs(x - np.argmax(p)) <= 2)
        ),
        argmax,
    ),
    MinimumBlock(GreedyMatch(), 1): (None, argmax),
    SpeculativeCascade("token", 0.3): by_choice(chosen(token_rule(0.3))),
}


OFTEN = (TopBeta(3, 1.0), SpeculativeCascade("token", 0.3))


@pytest.mark.parametrize(
    "verifier",
    [pytest.param(v, marks=[pytest.mark.ci] * (v not in OFTEN)) for v in GREEDY],
    ids=str,
)
def test_greedy_texts_are_those_of_a_plain_loop(verifier):
    keeps, choice = GREEDY[verifier]
    gamma, longest, inputs = 3, 7, jnp.ones([1, 1], jnp.int32)
    differs = False
    for seed in range(12):
        bench = Bench.create(vocab_size=6, max_length=longest, seed=seed)
        bench = bench._replace(drafter=Autoregressive(bench.drafter.model, Greedy()))
        p, q = (
            np.asarray(params["logits"])[1]
            for params in (bench.params[role] for role in ("target", "draft"))
        )
        text, calls = [], 0
        while text[-1:] != [1] and len(text) < longest:
            calls += 1
            room = min(gamma, longest - len(text) - 1)
            for depth in range(room + 1):
                at = sum(text) % 6, text[-1] if text else 0
                if depth == room:
                    text.append(argmax(p[at], None))
                    break
                drafted = argmax(q[at], None)
                kept = depth < 1 if keeps is None else keeps(p[at], q[at], drafted)
                if keeps is None and not kept:
                    kept = drafted == argmax(p[at], None)
                text.append(drafted if kept else choice(p[at], q[at]))
                if not kept or drafted == 1:
                    break
        plan = bench.plan(verifier, Fixed(gamma), Greedy())
        output = of_one_row(bench, plan, inputs)
        assert output.tokens[0, : output.length[0]].tolist() == text
        assert int(output.trace.calls[0]) == calls
        alone = of_one_row(bench, plan.alone(), inputs)
        differs |= output.tokens.tolist() != alone.tokens.tolist()
    assert differs, "it is never lossy here, so nothing was tested"


def of_one_row(bench, plan, inputs):
    return jax.device_get(decode(bench.params, row_keys(0, jnp.arange(1)), inputs, plan))


@dataclasses.dataclass(frozen=True)
class Chosen(Verifier):
    """Keeps the first draft token, if it is said to, and goes on by a law of its own."""

    keeps: bool
    exact = False

    def accept(self, draft, scores):
        return jnp.array([float(self.keeps), 0.0])

    def residual(self, draft, scores, n):
        return R


P = jnp.array([0.3, 0.0, 0.25, 0.25, 0.2, 0.0])  # a processor excludes tokens 1 and 5
R = jnp.array([0.05, 0.4, 0.35, 0.05, 0.1, 0.05])
REPLACED = jnp.where(P > 0, R, 0) + 0.45 * P


@pytest.mark.parametrize(
    "verifier, tokens, kept, law",
    [
        (Chosen(False), [2, 3], 0, REPLACED),
        (Chosen(True), [2, 3], 1, REPLACED),
        (Chosen(True), [1, 3], 0, P),  # a kept token is excluded: there the target speaks
        (MinimumBlock(Chosen(False), 1), [2, 3], 1, REPLACED),
        # pi = q, of which nothing is left where the draft was refused, but of (q - pi)+ it goes on.
        (Ensemble(0.0), [1, 3], 0, P),
    ],
    ids=str,
)
def test_what_takes_the_place_of_an_excluded_token_is_drawn_from_p(verifier, tokens, kept, law):
    """Over many keys: what one draw has excluded must say nothing about the next one."""
    draws = 20_000
    logits = jnp.where(P > 0, jnp.log(jnp.where(P > 0, P, 1)), -jnp.inf)
    scores = Scores(jnp.tile(logits, (3, 1)), jnp.tile(P, (3, 1)), processed=True)
    draft = Draft(jnp.array(tokens), jnp.tile(R, (2, 1)), jnp.int32(2))
    keys = jax.vmap(lambda key: jax.random.split(key, 5))(row_keys(0, jnp.arange(draws)))
    noise = Noise(keys[:, :2], keys[:, :2], keys[:, 2:])
    decide = jax.jit(jax.vmap(lambda keys: verifiers.verdict(verifier, keys, draft, scores)))
    found = decide(noise)
    assert np.all(found.num_accepted == kept)
    counts = np.bincount(found.next_token, minlength=6)
    assert not counts[np.asarray(law) == 0].any()
    expected = draws * np.asarray(law)[np.asarray(law) > 0]
    chi2 = np.sum((counts[np.asarray(law) > 0] - expected) ** 2 / expected)
    assert chi2 < 25, "3 degrees of freedom; false alarm: 2e-5"


@pytest.mark.parametrize("verifier", LOSSY, ids=str)
def test_none_says_that_it_is_exact(verifier):
    assert verifier.exact is False
    assert (
        "NOT EXACT" in type(verifier).__doc__
        or "NOT the target's distribution" in type(verifier).__doc__
    )


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Lenient(0), "Lenient.lenience is 0"),
        (lambda: Lenient(1.5), "Lenient.lenience is 1.5"),
        (lambda: Lenient("x"), "Lenient.lenience is 'x'; give a number"),
        (lambda: Typical(True), "Typical.epsilon is True; give a probability"),
        (lambda: TopBeta(0), "TopBeta.beta is 0"),
        (lambda: TopBeta(2, math.nan), "TopBeta.tau is nan"),
        (lambda: TopBeta(2, None), "TopBeta.tau is None; give a gap in nats"),
        (lambda: TopK(0), "TopK.k is 0"),
        (lambda: Typical(2), "Typical.epsilon is 2"),
        (lambda: Distance(-1), "Distance.epsilon is -1"),
        (lambda: BigLittle(1.1, 5.0), "BigLittle.fallback is 1.1"),
        (lambda: BigLittle(0.6, -1.0), "BigLittle.rollback is -1"),
        (lambda: BigLittle(0.6, math.nan), "BigLittle.rollback is nan"),
        (lambda: Ensemble(-0.1), "Ensemble.weight is -0.1"),
        (
            lambda: SpeculativeCascade("tokens", 0.1),
            "SpeculativeCascade.deferral is 'tokens'; give",
        ),
        (lambda: SpeculativeCascade("chow", 2), "SpeculativeCascade.alpha is 2"),
        (lambda: MinimumBlock(GreedyMatch(), 0), "MinimumBlock.least is 0"),
        (lambda: MinimumBlock(verifiers.Block(), 1), "does not decide token by token"),
        (lambda: MinimumBlock(None, 1), "MinimumBlock.verifier"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_gap_may_be_without_end():
    assert TopBeta(2, math.inf).tau == BigLittle(0.6, math.inf).rollback == math.inf


def test_lenience_of_one_is_exact():
    with jax.enable_x64(True):
        for trees in adversarial_trees(0, 3, 2, Sampling()).values():
            ratio = output_law(SpeculativeSampling(), trees, 2)
            np.testing.assert_allclose(output_law(Lenient(1.0), trees, 2), ratio, atol=FLOAT64)


HALF, QUARTER = (float(-jnp.log(jnp.float32(x))) for x in (0.5, 0.25))


@pytest.mark.parametrize(
    "verifier, greedy, kept",
    [
        (Typical(0.25, 1.0), False, False),
        (BigLittle(0.5, QUARTER), False, True),
        (BigLittle(0.0, QUARTER), False, True),
        (TopK(2), True, True),
        (TopK(1), True, False),
        (TopBeta(2, HALF), True, True),
        (Lenient(0.5), True, True),
    ],
    ids=str,
)
def test_a_token_at_the_threshold(verifier, greedy, kept):
    """Token 0: the target gives it 1/4, which is half of the most, and the drafter 1/2."""
    p, q = jnp.array([[0.25, 0.5, 0.25]] * 2), jnp.array([[0.5, 0.25, 0.25]])
    scores = Scores(jnp.array([[0.0, HALF, 0.0]] * 2) - QUARTER, p, greedy)
    draft = Draft(jnp.array([0]), q, jnp.int32(1), beliefs=q)
    assert verifier.accept(draft, scores).tolist() == [kept]


@pytest.mark.parametrize("rule, alpha", [("token", 0.5), ("chow", 0.5), ("difference", 0.0)])
def test_a_cascade_keeps_the_drafters_law_at_the_threshold(rule, alpha):
    p, q = jnp.array([0.25, 0.5, 0.25]), jnp.array([0.5, 0.25, 0.25])
    assert SpeculativeCascade(rule, alpha).law(p, q).tolist() == q.tolist()


def test_as_many_tokens_are_kept_unseen_as_is_said():
    p, q = np.random.default_rng(0).dirichlet(np.ones(7), size=(2, 5))
    tokens = jnp.argmax(q[:4] / p[:4], axis=1)  # the ones that are accepted least
    draft = Draft(tokens, jnp.asarray(q[:4]), jnp.int32(4))
    scores = Scores(jnp.log(p), jnp.asarray(p))
    own = SpeculativeSampling().accept(draft, scores)
    assert np.all(own < 1)
    for least in (1, 2, 4):
        kept = MinimumBlock(SpeculativeSampling(), least).accept(draft, scores)
        np.testing.assert_array_equal(kept, [*np.ones(least), *own[least:]])
