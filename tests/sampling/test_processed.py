"""Processors through the loop: laws by enumeration, the target's own texts, and bugs that are seen:
pytest tests/sampling/test_processed.py"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from specdec import Plan, autoregressive_decode, decode, row_keys
from specdec.drafters import Autoregressive
from specdec.sampling import (
    ForcedEOS,
    ForcedTokens,
    FrequencyPenalty,
    Greedy,
    MinLength,
    NoBadWords,
    NoRepeatNGram,
    Opening,
    PresencePenalty,
    Processed,
    RepetitionPenalty,
    Sampling,
    SuppressTokens,
    SuppressTokensAtBegin,
)
from specdec.schedules import Confidence, Fixed
from specdec.testing import Bench, Law, check_processor, compare
from specdec.types import LogitsProcessor
from specdec.verifiers import (
    Block,
    Coupled,
    GreedyMatch,
    Lenient,
    SpeculativeCascade,
    SpeculativeSampling,
    TopBeta,
)

PROCESSORS = {
    "no repeat 1": NoRepeatNGram(1),
    "no repeat 2": NoRepeatNGram(2),
    "repetition": RepetitionPenalty(1.7),
    "frequency": FrequencyPenalty(0.8),
    "presence": PresencePenalty(1.0),
    "bad words": NoBadWords(((3, 2), (2, 2, 4), (5,))),
    "shortest": MinLength(2),
    "forced": ForcedTokens((3,), 1),
    "forced end": ForcedEOS(3),
    "suppressed": SuppressTokens((2,)),
    "not first": SuppressTokensAtBegin((2, 3)),
    "opening": Opening(((4, 2), (3,))),
}

ALL = (
    *(NoRepeatNGram(2), RepetitionPenalty(1.7), FrequencyPenalty(0.8), PresencePenalty(1.0)),
    *(NoBadWords(((3, 2), (2, 2, 4), (5,))), MinLength(2), ForcedEOS(4)),
    SuppressTokensAtBegin((2,)),
)


SETS = {name: (one,) for name, one in PROCESSORS.items()} | {"all": ALL}
BENCH = Bench.create(vocab_size=6, rows=20_000, max_length=4)


STOPPING = Confidence(0.3, buckets=(4,))


def bench_of(sampling, drafts=None, **parts):
    drafter = Autoregressive(BENCH.target, drafts or sampling)
    return BENCH._replace(drafter=drafter, **parts)


@pytest.mark.ci
@pytest.mark.parametrize(
    "temperature, knows, verifier",
    [(0.7, True, SpeculativeSampling()), (1.0, False, Block())],
)
def test_speculation_keeps_the_law(temperature, knows, verifier):
    """Of drafts that know of the processors, and of such that do not."""
    sampling = Processed(Sampling(temperature), ALL)
    bench = bench_of(sampling, None if knows else Sampling(temperature))
    result = bench.compare(bench.run(verifier, Fixed(3), sampling).tokens, sampling)
    assert result.passed, result
    assert result.degrees > 10, "there is a law to test"


def by_definition(params, sampling_of):
    """The law of outputs of 4 tokens, with what a function (text, logits) -> logits leaves."""
    table, found = np.asarray(params["logits"], np.float64)[4 % 3], {}

    def walk(text, prob):
        if len(text) == 5 or text[-1] == 1 and len(text) > 1:
            out = (*text[1:], *[0] * (5 - len(text)))
            found[out] = found.get(out, 0) + prob
            return
        weights = np.exp(sampling_of(text, table[sum(text) % 6, text[-1]].copy()))
        for token, share in enumerate(weights / weights.sum()):
            if share:
                walk((*text, token), prob * share)

    walk((0,), 1.0)
    return Law(np.array(list(found), np.int32), np.array(list(found.values())))


def test_the_law_is_the_definitions():
    """Without anything of the package: a penalty and a ban by hand."""

    def left(text, logits):
        for token in set(text):
            logits[token] *= 1.7 if logits[token] < 0 else 1 / 1.7
        for i in range(len(text) - 1):
            if text[i] == text[-1]:
                logits[text[i + 1]] = -np.inf
        return logits

    sampling = Processed(Sampling(), (RepetitionPenalty(1.7), NoRepeatNGram(2)))
    bench = bench_of(sampling, rows=30_000)
    tokens = np.asarray(bench.run(SpeculativeSampling(), Fixed(3), sampling).tokens)
    result = compare(by_definition(bench.params["target"], left), tokens)
    assert result.passed and result.degrees > 100, result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all", "no repeat 2"])
def test_texts_are_those_of_the_target_alone(name):
    """Greedy, and drawn with the same noise; in a batch and by itself."""
    for base, verifier in ((Greedy(), GreedyMatch()), (Sampling(0.8), Coupled())):
        sampling = Processed(base, SETS[name])
        for drafts in (sampling, base):
            bench = bench_of(sampling, drafts)
            ours = bench.run(verifier, STOPPING, sampling, 2_000)
            assert bool((ours.tokens == bench.alone(sampling, 2_000).tokens).all())
            one = bench.run(verifier, STOPPING, sampling, 1, first=7)
            assert one.tokens[0].tolist() == ours.tokens[7].tolist()
        assert len(np.unique(ours.tokens, axis=0)) > 20 or sampling.greedy


@pytest.mark.parametrize(
    "verifier, base",
    [
        (TopBeta(6, 100.0), Greedy()),
        (Lenient(0.1), Sampling()),
        pytest.param(SpeculativeCascade("token", 1.0), Sampling(), marks=pytest.mark.ci),
    ],
    ids=lambda one: type(one).__name__,
)
def test_no_verifier_keeps_what_is_excluded(verifier, base):
    """Not even one that keeps almost anything, of a drafter that knows of no processor."""
    sampling = Processed(base, (SuppressTokens((2, 4)), MinLength(3)))
    tokens = np.asarray(bench_of(sampling, base).run(verifier, Fixed(3), sampling, 3_000).tokens)
    assert not np.isin(tokens, (2, 4)).any() and not (tokens[:, :3] == 1).any()
    if not base.greedy:
        plain = np.asarray(bench_of(base).run(verifier, Fixed(3), base, 3_000).tokens)
        assert np.isin(plain, (2, 4)).any() and (plain[:, :3] == 1).any()


def test_a_prefix_is_of_the_text():
    sampling = Processed(Greedy(), (NoRepeatNGram(1), MinLength(3)))
    prefix = jnp.array([[3, 2], [4, 0]], jnp.int32)  # the second row's has one token
    inputs = jnp.tile(jnp.array([[3, 1]], jnp.int32), (2, 1))
    keys = row_keys(0, jnp.arange(2))
    plan = Plan(
        BENCH.target, Autoregressive(BENCH.target, sampling), Block(), Fixed(3), sampling, 6
    )
    ours = decode(BENCH.params, keys, inputs, plan, prefix=prefix)
    alone = autoregressive_decode(
        BENCH.params["target"],
        keys,
        inputs,
        target=BENCH.target,
        sampling=sampling,
        max_length=6,
        prefix=prefix,
    )
    assert ours.tokens.tolist() == alone.tokens.tolist()
    for row in ours.tokens.tolist():
        text = row[: row.index(1)] if 1 in row else row
        assert len(set(text)) == len(text) >= 3 and 0 not in text


@dataclasses.dataclass(frozen=True)
class NoEcho(LogitsProcessor):
    """Excludes the token before the newest; with the bug, one that is not there yet."""

    beyond: int = 0

    def process(self, logits, history):
        at = jnp.minimum(history.length - 2 + self.beyond, len(history.tokens) - 1)
        here = jnp.arange(len(logits)) == history.tokens[jnp.maximum(at, 0)]
        return jnp.where(here & (history.length > 1), -jnp.inf, logits)


@pytest.mark.slow
def test_a_processor_of_ones_own_is_checked():
    check_processor(NoEcho())
    with pytest.raises(AssertionError, match="NoEcho.beyond=2.: .* outputs differ"):
        check_processor(NoEcho(2))
