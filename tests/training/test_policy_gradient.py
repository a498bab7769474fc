"""Policy gradients, against enumeration: pytest tests/training/test_policy_gradient.py

A table of V = 4 ids writes at most three tokens, which makes 40 outputs. The expected reward of all
of them, and its gradient, are sums.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import PROBABILITIES

from specdec.drafters import Autoregressive
from specdec.plan import Plan
from specdec.sampling import Sampling
from specdec.schedules import Fixed
from specdec.testing import FALSE_ALARM, TableTarget, Trees, output_law
from specdec.training import Align, Drawn, FineTuning, Pairs, PolicyGradient, leave_one_out
from specdec.training.loss import Learner
from specdec.types import Params
from specdec.verifiers import Block, Coupled, SpeculativeSampling

V, N, STOP = 4, 3, 1
MODEL = TableTarget(V)
PARAMS = Params(MODEL.init(jax.random.key(0)), MODEL.init(jax.random.key(1)))


def texts(count: int) -> Pairs:
    return Pairs(np.full([count, 2], 2, np.int32), np.full([count, 2], 3, np.int32))


def plan(verifier) -> Plan:
    return Plan(MODEL, Autoregressive(MODEL, Sampling()), verifier, Fixed(2), Sampling(), N)


def reward(target: list[int], output: list[int]) -> float:
    return output.count(target[0]) + 2.0 * (output[:1] == [2]) - 0.5 * len(output)


@functools.cache
def outputs() -> list[tuple[int, ...]]:
    texts = itertools.product(range(V), repeat=N)
    return sorted({text[: (*text, STOP).index(STOP) + 1] for text in texts})


def log_probs_of(params) -> list[list[jax.Array]]:
    """Returns the log-probability of each token of each output, by the table."""
    laws = jax.nn.log_softmax(params["logits"][0])
    found = []
    for text in outputs():
        before = [0, *text]
        found.append([laws[sum(before[: t + 1]) % V, before[t], x] for t, x in enumerate(text)])
    return found


def expected_reward(params) -> jax.Array:
    probs = jnp.stack([jnp.exp(sum(tokens)) for tokens in log_probs_of(params)])
    return probs @ jnp.array([reward([3], list(text)) for text in outputs()])


@functools.cache
def exact() -> np.ndarray:
    return np.ravel(jax.grad(expected_reward)(PARAMS["target"])["logits"])


def gradient(pairs: Pairs) -> np.ndarray:
    """Returns the gradient that an update ascends by, of outputs with equal weights."""

    def loss(params):
        sums = PolicyGradient().sums(Learner(MODEL, params, None), pairs, 0.0, None)
        return -sums.loss / sums.tokens

    return np.ravel(jax.jit(jax.grad(loss))(PARAMS["target"])["logits"])


def right(drawn: Drawn, tokens: np.ndarray) -> Drawn:
    return drawn


def of_draft(drawn: Drawn, tokens: np.ndarray) -> Drawn:
    """A bug: log-probabilities of the draft instead of the target."""
    found = {text: x for text, x in zip(outputs(), log_probs_of(PARAMS["draft"]), strict=True)}
    rows = [found[tuple(row[:n])] for row, n in zip(tokens.tolist(), drawn.lengths, strict=True)]
    return drawn._replace(log_probs=filled(rows))


def next_token(drawn: Drawn, tokens: np.ndarray) -> Drawn:
    """A bug: the log-probability of the token after."""
    return drawn._replace(log_probs=np.roll(drawn.log_probs, -1, axis=1))


def no_baseline_of_its_own(drawn: Drawn, tokens: np.ndarray) -> Drawn:
    """A bug: the output's own reward is in the baseline."""
    return drawn._replace(advantages=drawn.advantages / 2)


BUGS = (right, of_draft, next_token, no_baseline_of_its_own)


def filled(rows) -> np.ndarray:
    return np.array([[*map(float, row), *[0.0] * (N - len(row))] for row in rows], np.float32)


@functools.cache
def law(verifier) -> np.ndarray:
    """Returns the probability that speculation writes each of the outputs, by enumeration."""
    tables = []
    for role in ("target", "draft"):
        probs = np.asarray(jax.nn.softmax(PARAMS[role]["logits"][0]), np.float64)
        rows = [np.zeros([V] * d + [V]) for d in range(N)]
        for d, row in enumerate(rows):
            for text in itertools.product(range(V), repeat=d):
                row[text] = probs[sum(text) % V, (0, *text)[-1]]
        tables.append(rows)
    joint = output_law(verifier, Trees(tables[0], tables[1][: N - 1]), N - 1)
    return np.array([joint[text].sum() for text in outputs()])


@pytest.mark.parametrize("bug", BUGS)
def test_the_expected_gradient_is_that_of_the_expected_reward(bug):
    """Over all pairs of outputs of a text, with the probabilities of speculation."""
    pairs = np.array(list(itertools.product(range(len(outputs())), repeat=2)))
    weights = law(Block())[pairs].prod(axis=1)
    tokens = np.array([[*text, *[0] * (N - len(text))] for text in outputs()])[pairs.ravel()]
    rewards = np.array([reward([3], list(text)) for text in outputs()])[pairs.ravel()]
    advantages = leave_one_out(rewards, 2) * np.repeat(weights, 2) * len(pairs)
    lengths = np.array([len(text) for text in outputs()])[pairs.ravel()]
    of_target = filled(log_probs_of(PARAMS["target"]))[pairs.ravel()]
    drawn = bug(Drawn(of_target, lengths, advantages.astype(np.float32)), tokens)
    inputs = np.full([len(tokens), 2], 2, np.int32)
    found = gradient(Pairs(inputs, tokens, drawn=drawn))
    if bug is right:
        np.testing.assert_allclose(found, exact(), rtol=0, atol=PROBABILITIES)
    else:
        assert np.abs(found - exact()).max() > PROBABILITIES
    assert np.abs(exact()).max() > 0.1


ROWS = 8_000  # pairs of outputs


@functools.cache
def rolled_out():
    """Returns the tokens of pairs of outputs, and what is recorded about them."""
    tuning = FineTuning(plan(SpeculativeSampling()), steps=1, samples=2)
    inputs, output, _ = tuning.roll_out(PARAMS, texts(ROWS), 0)
    pairs = tuning.pairs(inputs, output, tuning.rewards(texts(ROWS), output, reward))
    return pairs.targets, pairs.drawn


@pytest.mark.ci
@pytest.mark.parametrize("bug", BUGS[:2])
def test_roll_outs_estimate_the_gradient(bug):
    """By a z-test of each entry, with one false alarm in `FALSE_ALARM` of all together."""
    from scipy import special

    tokens, drawn = rolled_out()
    drawn = bug(drawn, tokens)

    def of_one(tokens, drawn):
        def loss(params):
            pairs = Pairs(jnp.full([2, 2], 2), tokens, drawn=drawn)
            return -PolicyGradient().sums(Learner(MODEL, params, None), pairs, 0.0, None).loss / 2

        return jnp.ravel(jax.grad(loss)(PARAMS["target"])["logits"])

    by_pair = jax.tree.map(lambda x: x.reshape(ROWS, 2, *x.shape[1:]), (tokens, drawn))
    found = np.asarray(jax.jit(jax.vmap(of_one))(*by_pair), np.float64)
    error = found.mean(axis=0) - exact()
    deviation = np.maximum(found.std(axis=0) / np.sqrt(ROWS), 1e-9)
    z = np.abs(error / deviation).max()
    assert (z < -special.ndtri(FALSE_ALARM / 2 / error.size)) == (bug is right), z


@pytest.mark.ci
def test_a_shared_noise_makes_the_same_update():
    """`Coupled` draws what the target alone draws, so speculation changes no number of training."""
    found = []
    for own in (plan(Coupled()), plan(Coupled()).alone()):
        tuning = FineTuning(own, steps=2)
        policy, first = tuning.update(tuning.begin(PARAMS), texts(1), reward)
        policy, second = tuning.update(policy, texts(1), reward)
        assert first.same == second.same == 1
        assert (policy.params["draft"]["logits"] == PARAMS["draft"]["logits"]).all()
        found.append(((first.reward, second.reward), policy.params["target"]["logits"]))
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1], found[1][1], atol=PROBABILITIES)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: FineTuning(plan(Block()), 1, samples=1), "samples is 1; give a whole number from"),
        (
            lambda: FineTuning(
                Plan(MODEL, Autoregressive(MODEL, Sampling()), Block(), Fixed(2), Sampling(0.5), N),
                steps=1,
            ),
            r"plan.sampling is Sampling\(temperature=0.5, .*those of temperature 1; give Sampling",
        ),
        (
            lambda: FineTuning(plan(Block()).alone(), 1, align=Align({"forward_kl": 1.0})),
            "plan has no draft model that align could change; leave align out",
        ),
    ],
)
def test_mistakes(make, says):
    with pytest.raises(ValueError, match=says):
        make()
