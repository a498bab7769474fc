"""Verifiers, in algebra and draw by draw: pytest tests/verifiers/test_verifiers.py"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import coupled_acceptance_rate
from tolerances import FLOAT64

from specdec import verifiers
from specdec.sampling import Greedy, Sampling, draw
from specdec.testing import (
    Trees,
    accepted_law,
    adversarial_trees,
    broken_trees,
    check_verifier,
    law,
    output_law,
)
from specdec.types import Draft, Noise, Scores, Verdict
from specdec.verifiers import (
    Block,
    Coupled,
    GreedyMatch,
    Lenient,
    SpeculativeSampling,
    TopK,
    Verifier,
)
from specdec.verifiers.decide import gaps, ratio, token_probs

# The exact ones; a new one is a row.
VERIFIERS = (Block(), SpeculativeSampling(), GreedyMatch(), Coupled())


verdict = jax.jit(verifiers.verdict, static_argnums=0)


@pytest.mark.parametrize(
    "verifier",
    [
        pytest.param(v, marks=[pytest.mark.ci] * (v in (Coupled(), SpeculativeSampling())))
        for v in VERIFIERS
    ],
)
def test_the_law_of_the_output_is_the_target(verifier):
    """For random and adversarial p and q, whole and short drafts: in float64
    within 1e-12, and through the jitted loop within what a chi-square test sees."""
    some = {"samplings": (Sampling(1.2, top_k=3, top_p=0.7),), "gammas": (2,)}
    assert check_verifier(verifier, **some) == pytest.approx(0, abs=FLOAT64)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=str)
def test_the_law_is_right_whatever_is_wrong_with_the_draft(verifier):
    """For each kind of broken q at each place of the draft, in float64; seen to fail for `Block`
    where the draft goes on."""
    samplings = [Greedy()] if verifier == GreedyMatch() else [Sampling(0.7), Sampling(1.0)]
    with jax.enable_x64(True):
        for sampling in samplings:
            for name, trees in broken_trees(0, 3, 3, sampling).items():
                right = trees.p[0]
                for p in trees.p[1:]:
                    right = right[..., None] * p
                found, case = output_law(verifier, trees, 3), f"{name}, {sampling}"
                np.testing.assert_allclose(found, right, rtol=0, atol=FLOAT64, err_msg=case)


def test_a_draft_that_goes_on_beyond_a_broken_row_is_seen(monkeypatch):
    """By enumeration and through the loop: `Block` decides about a draft as a whole."""
    monkeypatch.setattr(law, "usable_tokens", lambda draft: jnp.ones(draft.tokens.shape, bool))
    law._decisions.clear_cache()
    with pytest.raises(AssertionError, match="emits a wrong distribution for NaN in q at 0"):
        check_verifier(Block(), samplings=(Sampling(),), gammas=(2,))
    law._decisions.clear_cache()


def test_the_law_of_shared_noise():
    """Its decisions are drawn otherwise; `accept` and `residual` are what they come to.

    Of four tokens top-k leaves two, so that either of two excluded tokens may be drafted.
    """
    with jax.enable_x64(True):
        for size, sampling in ((3, Sampling()), (4, Sampling(top_k=2))):
            for name, trees in adversarial_trees(0, size, 1, sampling).items():
                law, right = output_law(Coupled(), trees, 1), trees.p[0][:, None] * trees.p[1]
                np.testing.assert_allclose(law, right, rtol=0, atol=FLOAT64, err_msg=name)


@dataclasses.dataclass(frozen=True)
class ResidualIsP(SpeculativeSampling):
    def residual(self, draft, scores, n):
        return scores.probs[n]


@dataclasses.dataclass(frozen=True)
class RatioUpsideDown(SpeculativeSampling):
    def accept(self, draft, scores):
        p, q = token_probs(draft, scores)
        return jnp.minimum(jnp.where(p > 0, q / p, 0), 1)


@dataclasses.dataclass(frozen=True)
class ResidualOfTheNextPosition(SpeculativeSampling):
    def residual(self, draft, scores, n):
        return super().residual(draft, scores, jnp.minimum(n + 1, draft.tokens.shape[0] - 1))


@dataclasses.dataclass(frozen=True)
class SlightlyLenient(SpeculativeSampling):
    def accept(self, draft, scores):
        return jnp.minimum(super().accept(draft, scores) * (1 + 1e-9), 1)


@dataclasses.dataclass(frozen=True)
class WithoutTheCap(Block):
    """Credit that is not lost where a product exceeds 1."""

    def _reach(self, draft, scores):
        p, q = token_probs(draft, scores)
        return jnp.append(1.0, jnp.minimum(jnp.cumprod(p / q), 1))


@dataclasses.dataclass(frozen=True)
class FirstRefusalEnds(Block):
    rule = "first"


@dataclasses.dataclass(frozen=True)
class LastTestOfTheLongest(Block):
    """A shortened draft is judged as if it went on."""

    def accept(self, draft, scores):
        return super().accept(draft.replace(length=draft.tokens.shape[0]), scores)


@pytest.mark.parametrize(
    "wrong",
    [
        *(ResidualIsP(), RatioUpsideDown(), ResidualOfTheNextPosition(), SlightlyLenient()),
        *(WithoutTheCap(), FirstRefusalEnds(), LastTestOfTheLongest()),
    ],
)
def test_a_wrong_law_is_seen_by_the_algebra(wrong):
    with pytest.raises(AssertionError, match="emits a wrong distribution for .* off by"):
        check_verifier(wrong, samplings=(Sampling(),), gammas=(2,))


@pytest.mark.planted
def test_a_wrong_decision_is_seen_through_the_loop():
    @dataclasses.dataclass(frozen=True)
    class RightLawWrongCoin(SpeculativeSampling):
        def verdict(self, keys, draft, scores):
            same = keys._replace(accept=jnp.broadcast_to(keys.accept[0], keys.accept.shape))
            return verifiers.verdict(SpeculativeSampling(), same, draft, scores)

    with pytest.raises(AssertionError, match="chi2"):
        check_verifier(RightLawWrongCoin(), samplings=(Sampling(),), gammas=(1,))


def test_output_law_sums_to_one_and_knows_the_last_rule():
    """A verifier with rule 'last' and independent fair coins: P(n) is known in closed form."""

    @dataclasses.dataclass(frozen=True)
    class FairCoins(Verifier):
        rule = "last"

        def accept(self, draft, scores):
            return jnp.full(draft.tokens.shape, 0.5)

        def residual(self, draft, scores, n):
            return jax.nn.one_hot(0, scores.probs.shape[-1])

    # The draft is certain to be 2, 2; rejected positions emit 0; the target would emit 1.
    p = [np.broadcast_to(np.eye(3)[1], [3] * d + [3]) for d in range(3)]
    q = [np.broadcast_to(np.eye(3)[2], [3] * d + [3]) for d in range(2)]
    law = output_law(
        FairCoins(), Trees([np.array(x) for x in p], [np.array(x) for x in q]), length=2
    )
    assert law.sum() == pytest.approx(1)
    assert law[2, 2, 1] == 0.5  # the last coin passes, whatever the first did
    assert law[2, 0, 1] == 0.25
    assert law[0, 1, 1] == 0.25


def row(p, q, tokens, length=None, logits=None):
    """One row: p [K+1, V], q [K, V] or None, tokens [K]."""
    p = jnp.asarray(p, jnp.float32)
    draft = Draft(
        jnp.asarray(tokens, jnp.int32),
        None if q is None else jnp.asarray(q, jnp.float32),
        jnp.int32(len(tokens) if length is None else length),
    )
    return draft, Scores(jnp.log(p) if logits is None else jnp.asarray(logits), p)


def noise(longest, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3 * longest + 1)
    return Noise(keys[:longest], keys[longest : 2 * longest], keys[2 * longest :])


def always(value: float):
    """In place of `jax.random.uniform`."""
    return lambda key, shape=(), dtype=jnp.float32: jnp.full(shape, value, dtype)


def test_a_token_the_target_excludes_is_rejected_also_when_u_is_zero(monkeypatch):
    monkeypatch.setattr(jax.random, "uniform", always(0))
    verdict = jax.jit(lambda *given: verifiers.verdict(*given), static_argnums=0)  # traced anew
    impossible = row(p=[[0, 1, 0], [0, 0, 1]], q=[[0.5, 0.5, 0]], tokens=[0])
    assert verdict(SpeculativeSampling(), noise(1), *impossible) == (0, 1)
    possible = row(p=[[1e-30, 1, 0], [0, 0, 1]], q=[[0.5, 0.5, 0]], tokens=[0])
    assert verdict(SpeculativeSampling(), noise(1), *possible) == (1, 2)


def test_a_ratio_of_one_is_always_accepted(monkeypatch):
    monkeypatch.setattr(jax.random, "uniform", always(1 - 2**-24))
    verdict = jax.jit(lambda *given: verifiers.verdict(*given), static_argnums=0)  # traced anew
    equal = row(p=[[0.3, 0.7], [0, 1]], q=[[0.3, 0.7]], tokens=[0])
    assert verdict(SpeculativeSampling(), noise(1), *equal) == (1, 1)


@pytest.mark.parametrize("verifier", [Block(), SpeculativeSampling()])
@pytest.mark.parametrize("q", [[[np.nan] * 3], [[0.2, np.nan, 0.8]], [[0.0, 0.0, 0.0]]])
def test_a_q_that_is_no_distribution_is_never_trusted(q, verifier):
    draft, scores = row(p=[[0, 0, 1], [1, 0, 0]], q=q, tokens=[1])
    assert verdict(verifier, noise(1), draft, scores) == (0, 2)


@pytest.mark.parametrize("broken", [[np.nan] * 3, [0.2, np.nan, 0.8], [0.0, 0.0, 0.0]])
def test_a_block_of_which_a_later_q_is_none_is_not_trusted(broken):
    one_hot = [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    draft, scores = row(one_hot, [[0, 1, 0], broken], tokens=[1, 1])
    n, following = verdict(Block(), noise(2), draft, scores)
    assert (n, following) in ((1, 2), (0, 1)), "the target's own tokens, and nothing of the rest"
    draft, scores = row(one_hot, [broken, [0, 0, 1]], tokens=[0, 2])
    assert verdict(Block(), noise(2), draft, scores) == (0, 1)


@dataclasses.dataclass(frozen=True)
class Says(Verifier):
    """A verifier whose verdict is known beforehand."""

    num_accepted: int
    next_token: int
    exact: bool = False
    accept = residual = None

    def verdict(self, keys, draft, scores):
        return Verdict(jnp.int32(self.num_accepted), jnp.int32(self.next_token))


@pytest.mark.parametrize(
    "draft, said, right",
    [
        ((2, 1), (2, 3), (2, 3)),  # nothing of it is excluded
        ((2, 1), (1, 0), (1, 0)),
        ((2, 1), (2, 2), (2, 0)),  # the next token is: the target's own comes in its place
        ((2, 3), (2, 3), (1, 1)),  # the second draft token is
        ((1, 1), (2, 3), (0, 2)),  # the first is, and the second does not count any more
        ((1, 1), (2, 0), (0, 2)),  # what was to come after both is no longer the next token
        ((1, 1), (0, 3), (0, 3)),  # it was not kept anyway
    ],
)
def test_what_processors_exclude_ends_a_verdict_that_is_not_exact(draft, said, right):
    logits = jnp.array([[0, -jnp.inf, 3, 1], [0, 5, 1, -jnp.inf], [9, 0, -jnp.inf, 0]])
    scores = Scores(logits, Greedy().probabilities(logits), processed=True)
    draft = Draft(jnp.array(draft), None, jnp.int32(2))
    assert verdict(Says(*said), noise(2), draft, scores) == right
    assert verdict(Says(*said, exact=True), noise(2), draft, scores) == said
    unchanged = scores.replace(processed=False)
    assert verdict(Says(*said), noise(2), draft, unchanged) == said


@pytest.mark.parametrize("verifier", [SpeculativeSampling(), Says(2, 9), Lenient(0.5)])
def test_the_next_token_is_drawn_with_the_key_of_its_place(verifier):
    """Two tokens are accepted. A processor excludes the token that the second verifier names."""
    logits = jax.random.normal(jax.random.key(0), [3, 64]).at[2, 9].set(-jnp.inf)
    p = jax.nn.softmax(logits)
    draft, scores = row(p, p[:2], tokens=[5, 6], logits=logits)
    keys = noise(2)
    found = verdict(verifier, keys, draft, scores.replace(processed=True))
    assert found == (2, draw(keys.correct[2], p[2]))


def test_a_gap_is_between_two_logits_of_one_place():
    draft, scores = row(np.ones([3, 3]), None, [1, 2], logits=[[4, 1, 0], [9, 2, 3], [30, 0, 0]])
    assert gaps(draft, scores).tolist() == [3, 6]


def test_nothing_is_accepted_that_the_draft_cannot_have_drawn():
    p, q = jnp.array([0.2, 0.2, 0.0, 0.9]), jnp.array([0.0, 0.8, 0.0, 0.3])
    np.testing.assert_allclose(ratio(p, q), [0, 0.25, 0, 1])


def test_a_token_kept_by_rank_may_still_be_excluded():
    """Fewer than four tokens are likelier than any of four."""
    logits = jnp.array([[0, -jnp.inf, 3, 1], [0, 5, 1, 0], [9, 0, 0, 0]])
    scores = Scores(logits, Greedy().probabilities(logits), greedy=True, processed=True)
    draft = Draft(jnp.array([1, 1]), None, jnp.int32(2))
    assert verdict(TopK(4), noise(2), draft, scores) == (0, 2)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_tokens_beyond_the_length_do_not_count(verifier):
    one_hot = np.eye(4)[[2, 3, 1]]
    whole = row(one_hot, one_hot[:2], tokens=[2, 3])
    assert verdict(verifier, noise(2), *whole) == (2, 1)
    short = row(one_hot, one_hot[:2], tokens=[2, 3], length=1)
    assert verdict(verifier, noise(2), *short) == (1, 3)
    empty = row(one_hot, one_hot[:2], tokens=[2, 3], length=0)
    assert verdict(verifier, noise(2), *empty) == (0, 2)


def test_greedy_match_reads_logits_not_probabilities():
    logits = np.array([[0, 3, 1], [2, 1, 0.0]])
    uniform = np.full((2, 3), 1 / 3)
    assert verdict(GreedyMatch(), noise(1), *row(uniform, None, [1], logits=logits)) == (
        1,
        0,
    )


def test_coupled_accepts_as_often_as_the_closed_form_says():
    """Averaged over its drafts, `accept` is the agreement probability of the literature."""
    accepted = jax.jit(jax.vmap(Coupled().accept))
    with jax.enable_x64(True):
        for name, (p, q, _) in adversarial_trees(3, 6, 1, Sampling()).items():
            draft = Draft(jnp.arange(6)[:, None], jnp.tile(q[0], (6, 1, 1)), jnp.ones(6, int))
            scores = Scores(jnp.zeros([6, 2, 6]), jnp.tile(np.stack([p[0], p[1][0]]), (6, 1, 1)))
            accept = accepted(draft, scores)[:, 0]
            expected = coupled_acceptance_rate(p[0], q[0])
            assert float(np.sum(q[0] * accept)) == pytest.approx(expected, abs=FLOAT64), name


def test_greedy_probabilities_reduce_speculative_sampling_to_matching():
    logits = jax.random.normal(jax.random.key(0), (4, 7))
    probs = Greedy().probabilities(logits)
    best = jnp.argmax(logits, axis=-1)
    tokens = best[:3].at[2].set((best[2] + 1) % 7)
    draft = Draft(tokens, None, jnp.int32(3))
    expected = verdict(GreedyMatch(), noise(3), draft, Scores(logits, probs))
    assert expected == (2, best[2])
    for verifier in (Block(), SpeculativeSampling(), Coupled()):
        assert verdict(verifier, noise(3), draft, Scores(logits, probs)) == expected


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_a_block_keeps_at_least_as_much_as_the_ratio_rule_in_expectation(gamma):
    """For whole and shortened drafts; with two tokens or more it keeps more of a random draft."""
    with jax.enable_x64(True):
        for seed in range(3):
            for name, trees in adversarial_trees(seed, 3, gamma, Sampling()).items():
                for length in range(gamma + 1):
                    block, ratio = (
                        np.arange(gamma + 1) @ accepted_law(verifier, trees, length)
                        for verifier in (Block(), SpeculativeSampling())
                    )
                    assert block >= ratio - 1e-12, (name, length)
                    if name == "random" and length > 1:
                        assert block > ratio + 1e-4


def test_a_block_with_more_credit_than_it_needs_is_kept():
    """The target likes the second token so much more than the drafter that a first token which the
    ratio rule refuses in half the cases is always kept."""
    p = [[0.25, 0.75], [0.9, 0.1], [0.5, 0.5]]
    q = [[0.5, 0.5], [0.3, 0.7]]
    draft, scores = row(p, q, tokens=[0, 0])
    np.testing.assert_allclose(Block().accept(draft, scores), [0.15 / 0.65, 1.0], rtol=1e-6)
    np.testing.assert_allclose(SpeculativeSampling().accept(draft, scores), [0.5, 1.0], rtol=1e-6)
