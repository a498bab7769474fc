"""Ways to be silently wrong, each planted and seen: pytest tests/decoding/test_planted_bugs.py

The instruments are those that certify the engine: the chi-square test of 30,000 outputs against
the enumerated law (false-alarm rate 1e-9 each, so below 1e-6 for the whole suite; cells with an
expected count under 10 pooled; a distance of total variation 0.06 seen with probability 0.999),
and the perfect-drafter test. `test_control` shows that the same runs pass when nothing is planted.
"""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support
from support import AvoidsWhatWasUnlikely, StopAfterUnlikely, few

from specdec import verifiers
from specdec.decoding import loop, states
from specdec.decoding.keys import purpose_keys
from specdec.drafters import Autoregressive, Steps, draft_loop
from specdec.models.contract.cache import KVCache
from specdec.plan import Plan
from specdec.sampling import Sampling
from specdec.schedules import Confidence, Fixed
from specdec.testing import Bench, Constant, Skipping, check_everything_accepted, check_schedule
from specdec.types import Draft, Noise
from specdec.verifiers import SpeculativeSampling

pytestmark = pytest.mark.planted

BENCH = Bench.create()
FILTERED = Sampling(temperature=0.7, top_p=0.9)


def measure(
    bench=BENCH,
    verifier=SpeculativeSampling(),  # noqa: B008 (frozen)
    schedule=Fixed(3),  # noqa: B008
    sampling=Sampling(),  # noqa: B008
    right=None,
):
    """What is decoded, compared with the law of `right`, the sampling that was asked for."""
    output = bench.run(verifier, schedule, sampling)
    return bench.compare(output.tokens, right or sampling)


def assert_rejected(result):
    assert not result.passed, f"the planted bug was not seen: {result}"


@pytest.mark.parametrize("sampling", few([Sampling(), FILTERED]))
@pytest.mark.parametrize("schedule", few([Fixed(3), StopAfterUnlikely(3)]))
def test_control(sampling, schedule):
    result = measure(schedule=schedule, sampling=sampling)
    assert result.passed, str(result)
    assert result.degrees > 20 and result.detectable_tv < 0.06


def test_correction_drawn_from_p():
    @dataclasses.dataclass(frozen=True)
    class Wrong(SpeculativeSampling):
        def residual(self, draft, scores, n):
            return scores.probs[n]

    assert_rejected(measure(verifier=Wrong()))


@pytest.mark.slow
def test_bonus_drawn_from_the_residual_of_a_short_draft():
    @dataclasses.dataclass(frozen=True)
    class Lengthless(SpeculativeSampling):
        """Forgets that the draft may be shorter than its buffer."""

        def verdict(self, keys, draft, scores):
            whole = draft.replace(length=jnp.full_like(draft.length, draft.tokens.shape[0]))
            verdict = verifiers.verdict(SpeculativeSampling(), keys, whole, scores)
            n = jnp.minimum(verdict.num_accepted, draft.length)
            return verdict._replace(num_accepted=n)

    assert_rejected(measure(verifier=Lengthless()))


def test_draft_noise_reused_for_the_correction(plant):
    real = loop.noise

    def reused(*args, **kwargs):
        noise = real(*args, **kwargs)
        return noise._replace(correct=noise.correct.at[:-1].set(noise.draft))

    plant(loop, "noise", reused)
    assert_rejected(measure())


@pytest.mark.slow
def test_accept_noise_reused_within_the_iteration(plant):
    real = loop.noise

    def reused(*args, **kwargs):
        noise = real(*args, **kwargs)
        return noise._replace(accept=jnp.broadcast_to(noise.accept[0], noise.accept.shape))

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


@pytest.mark.slow
def test_filters_in_another_order_when_verifying():
    @dataclasses.dataclass(frozen=True)
    class FilterFirst(Sampling):
        def probabilities(self, logits, positions=None):
            kept = Sampling(top_p=self.top_p).probabilities(logits) > 0
            return jax.nn.softmax(jnp.where(kept, logits / self.temperature, -jnp.inf), axis=-1)

    wrong = FilterFirst(temperature=FILTERED.temperature, top_p=FILTERED.top_p)
    assert_rejected(measure(sampling=wrong, right=FILTERED))


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


@pytest.mark.slow
def test_position_keys_with_an_adaptive_length(plant):
    # A drafter without context proposes the same token again when it is given the same noise.
    table = BENCH.params["draft"]["logits"]
    unigram = {"logits": jnp.broadcast_to(table[:, :1, :1], table.shape)}
    bench = BENCH._replace(params=BENCH.params | {"draft": unigram})
    schedule = AvoidsWhatWasUnlikely(3)
    result = measure(bench, schedule=schedule)
    assert result.passed, str(result)

    real = loop.noise

    def by_position(keys, committed, *, width, shared):
        """Each purpose has keys of its own, but they depend on the position alone."""
        rows = [real(keys[i : i + 1], committed, width=width, shared=True) for i in (1, 2, 3)]
        return Noise(rows[0].draft, rows[1].accept, rows[2].correct)

    support.forget_programs()
    plant(loop, "noise", by_position)
    assert_rejected(measure(bench, schedule=schedule))


@pytest.mark.slow
def test_discarding_a_token_by_its_value():
    @dataclasses.dataclass(frozen=True)
    class Choosy(Autoregressive):
        def propose(self, *args):
            draft, state = super().propose(*args)
            drawn = jnp.take_along_axis(draft.probs, draft.tokens[:, :, None], axis=2)[:, :, 0]
            kept = jnp.sum(jnp.cumprod(drawn > 0.4, axis=1), axis=1)
            return draft.replace(length=jnp.minimum(draft.length, kept)), state

    assert_rejected(measure(BENCH._replace(drafter=Choosy(BENCH.target, Sampling()))))


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


@pytest.mark.slow
def test_a_length_that_peeks_at_the_targets_noise(plant):
    real = loop.propose

    def peeking(params, keys, state, plan):
        draft, drafter = real(params, keys, state, plan)
        uniforms = jax.vmap(jax.vmap(jax.random.uniform))(keys.accept)
        before = jnp.sum(jnp.cumprod(uniforms < 0.5, axis=1), axis=1)  # those that likely pass
        return draft.replace(length=jnp.minimum(draft.length, before)), drafter

    plant(loop, "propose", peeking)
    assert_rejected(measure())


@pytest.mark.slow
def test_a_length_by_the_clock():
    """No law sees it: the same keys give another text on another day."""
    clock = itertools.count()

    @dataclasses.dataclass(frozen=True)
    class Slow(Fixed):
        def want(self, state):
            late = jax.ShapeDtypeStruct([], jnp.int32)
            late = jax.pure_callback(lambda _: np.int32(next(clock) % 3), late, state[0])
            return state - late

    assert measure(schedule=Slow(3)).passed
    with pytest.raises(AssertionError, match="a row depends on its batch"):
        check_schedule(Slow(3))


@pytest.mark.slow
def test_shared_noise_with_the_ratio_rule():
    @dataclasses.dataclass(frozen=True)
    class Shared(SpeculativeSampling):
        shared_noise = True

    assert_rejected(measure(verifier=Shared()))


@dataclasses.dataclass(frozen=True)
class NarrowFirstStep(Autoregressive):
    """Feeds only the pending token, one wide: full acceptance leaves a hole in the cache."""

    def propose(self, params, request, state):
        context = request.context
        pending = context.length - 1
        token = jnp.take_along_axis(context.tokens, pending[:, None], axis=1)
        output, cache = self.model.decode(params["draft"], token, state.cache.rewind(pending))

        def advance(cache, tokens):
            output, cache = self.model.decode(params["draft"], tokens[:, None], cache)
            return output.logits[:, 0], cache

        steps = Steps(output.logits[:, 0], advance, cache)
        draft, cache = draft_loop(steps, request, self.sampling)
        return draft, state.replace(cache=cache)


@dataclasses.dataclass(frozen=True)
class NoCatchUp(Autoregressive):
    """Repairs one token but not the several that are missing after it was skipped."""

    def _catch_up(self, params, context, cache, until, width):
        return cache.rewind(until)


def with_perfect(drafter):
    params = BENCH.params | {"draft": BENCH.params["target"]}
    return BENCH._replace(params=params, drafter=drafter, max_length=12)


@pytest.mark.slow
def test_missing_two_wide_first_step():
    bench = with_perfect(NarrowFirstStep(BENCH.target, Sampling()))
    assert measure(bench._replace(max_length=4)).passed, "no output test can see it"
    with pytest.raises(AssertionError, match="accepted only"):
        check_everything_accepted(bench, Fixed(3), Sampling())


def test_missing_catch_up():
    check_everything_accepted(
        with_perfect(NoCatchUp(BENCH.target, Sampling())), Fixed(3), Sampling()
    )
    with pytest.raises(AssertionError, match="accepted only"):
        skipped = Skipping(NoCatchUp(BENCH.target, Sampling()))
        check_everything_accepted(with_perfect(skipped), Fixed(3), Sampling())


@pytest.mark.slow
def test_a_drafter_that_keeps_unverified_tokens():
    @dataclasses.dataclass(frozen=True)
    class Lengthened(Autoregressive):
        """Claims more tokens than it drew: the rest of its buffer is zeros drawn from nothing."""

        def propose(self, params, request, state):
            keys = request.keys
            draft, state = super().propose(params, request, state)
            fake = jnp.arange(keys.shape[1])[None] >= 1
            tokens = jnp.where(fake, 0, draft.tokens)
            return Draft(tokens, draft.probs, draft.length), state

    assert_rejected(measure(BENCH._replace(drafter=Lengthened(BENCH.target, Sampling()))))
