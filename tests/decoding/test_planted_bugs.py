"""Ways to be silently wrong, each planted and seen: pytest tests/decoding/test_planted_bugs.py

The instruments are those that certify the engine: the chi-square test of 30,000 outputs against
the enumerated law (false-alarm rate 1e-9 each, so below 1e-6 for the whole suite; cells with an
expected count under 10 pooled; a distance of total variation 0.06 seen with probability 0.999),
and the perfect-drafter test. `test_control` shows that the same runs pass when nothing is planted.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import support

from specdec.decoding import loop, states
from specdec.decoding.keys import purpose_keys
from specdec.drafters import Autoregressive
from specdec.models.contract.cache import KVCache
from specdec.plan import Plan
from specdec.sampling import Sampling
from specdec.schedules import Confidence, Fixed
from specdec.testing import Bench, Constant, Skipping, check_everything_accepted
from specdec.verifiers import SpeculativeSampling

pytestmark = pytest.mark.planted

BENCH = Bench.create()


def measure(
    bench=BENCH,
    verifier=SpeculativeSampling(),  # noqa: B008 (frozen)
    schedule=Fixed(3),  # noqa: B008
):
    """Decoded texts are compared with the target's distribution."""
    return bench.compare(bench.run(verifier, schedule, Sampling()).tokens, Sampling())


def assert_rejected(result):
    assert not result.passed, f"the planted bug was not seen: {result}"


def test_control():
    result = measure()
    assert result.passed, str(result)
    assert result.degrees > 20 and result.detectable_tv < 0.06


def test_correction_drawn_from_p():
    @dataclasses.dataclass(frozen=True)
    class Wrong(SpeculativeSampling):
        def residual(self, draft, scores, n):
            return scores.probs[n]

    assert_rejected(measure(verifier=Wrong()))


def test_draft_noise_reused_for_the_correction(plant):
    real = loop.noise

    def reused(*args, **kwargs):
        noise = real(*args, **kwargs)
        return noise._replace(correct=noise.correct.at[:-1].set(noise.draft))

    plant(loop, "noise", reused)
    assert_rejected(measure())


def test_q_from_another_temperature():
    @dataclasses.dataclass(frozen=True)
    class Misreporting(Autoregressive):
        def propose(self, *args):
            draft, state = super().propose(*args)
            other = draft.probs**0.7
            return draft.replace(probs=other / jnp.sum(other, axis=-1, keepdims=True)), state

    drafter = Misreporting(BENCH.target, Sampling())
    assert_rejected(measure(BENCH._replace(drafter=drafter)))


def test_tokens_past_eos(plant):
    real = states.trim
    plant(states, "trim", lambda draft, want, size, stop_ids: real(draft, want, size, ()))
    assert_rejected(measure())


def test_no_rewind(plant):
    plant(KVCache, "rewind", lambda self, n: self.replace(length=jnp.maximum(self.length, n)))
    assert_rejected(measure())


def test_capacity_without_room_for_the_draft(plant):
    bench = BENCH._replace(drafter=Constant(3))
    plant(Plan, "capacity", property(lambda plan: plan.max_length))
    assert_rejected(measure(bench))


def test_one_key_for_the_whole_batch(plant):
    real = loop.noise
    same = purpose_keys(jax.random.key(7))
    plant(loop, "noise", lambda keys, *rest, **options: real(same, *rest, **options))
    assert_rejected(measure())


def test_a_stop_that_drops_the_token_it_saw(plant):
    schedule = Confidence(0.4, buckets=(1, 3))
    result = measure(schedule=schedule)
    assert result.passed, str(result)
    real = states.trim

    def dropping(draft, *args):
        draft = real(draft, *args)
        last = jnp.maximum(draft.length - 1, 0)[:, None]
        token = jnp.take_along_axis(draft.tokens, last, axis=1)
        probs = jnp.take_along_axis(draft.probs, last[:, :, None], axis=1)[:, 0]
        unsure = jnp.take_along_axis(probs, token, axis=1)[:, 0] < schedule.threshold
        return draft.replace(length=draft.length - (unsure & (draft.length > 0)))

    support.forget_programs()
    plant(states, "trim", dropping)
    assert_rejected(measure(schedule=schedule))


def test_a_length_that_peeks_at_the_targets_noise(plant):
    real = loop.propose

    def peeking(params, keys, state, plan):
        draft, drafter = real(params, keys, state, plan)
        uniforms = jax.vmap(jax.vmap(jax.random.uniform))(keys.accept)
        before = jnp.sum(jnp.cumprod(uniforms < 0.5, axis=1), axis=1)  # those that likely pass
        return draft.replace(length=jnp.minimum(draft.length, before)), drafter

    plant(loop, "propose", peeking)
    assert_rejected(measure())


@dataclasses.dataclass(frozen=True)
class NoCatchUp(Autoregressive):
    """Repairs one token but not the several that are missing after it was skipped."""

    def _catch_up(self, params, context, cache, until, width):
        return cache.rewind(until)


def with_perfect(drafter):
    params = BENCH.params | {"draft": BENCH.params["target"]}
    return BENCH._replace(params=params, drafter=drafter, max_length=12)


def test_missing_catch_up():
    check_everything_accepted(
        with_perfect(NoCatchUp(BENCH.target, Sampling())), Fixed(3), Sampling()
    )
    with pytest.raises(AssertionError, match="accepted only"):
        skipped = Skipping(NoCatchUp(BENCH.target, Sampling()))
        check_everything_accepted(with_perfect(skipped), Fixed(3), Sampling())
