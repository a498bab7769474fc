"""Checks for verifiers, drafters, schedules and processors, the project's own and yours.

Each raises AssertionError with the figure that failed. They run on `TableTarget`, where the law of
the output is known exactly; every statistical test has the false-alarm rate `FALSE_ALARM`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.decoding import decode, row_keys
from specdec.drafters import Autoregressive
from specdec.drafters.drafter import Drafter
from specdec.plan import Alone, Plan
from specdec.sampling import Greedy, Processed, Sampling
from specdec.schedules import Fixed
from specdec.schedules.schedule import Schedule
from specdec.testing.drafters import Broken
from specdec.testing.law import (
    BROKEN,
    Comparison,
    adversarial_trees,
    broken_trees,
    compare,
    output_law,
    sequence_law,
)
from specdec.testing.table_target import TableTarget
from specdec.types import DecodeOutput, LogitsProcessor, Params, PyTree, SamplingRule
from specdec.verifiers import Block, Coupled, GreedyMatch, SpeculativeSampling
from specdec.verifiers.decide import Verifier

SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(temperature=1.4, top_k=2),
    Sampling(temperature=0.7, top_p=0.8),
    Sampling(temperature=1.2, top_k=3, top_p=0.7),
)
SAMPLES = 8  # of each example: rows that forget which sample they are would be equal
EQUAL_ROWS = 4_000  # where each output must be the baseline's; a law takes the bench's rows


class Bench(NamedTuple):
    """A target, something to draft with, and the sizes of a run on them."""

    target: TableTarget
    params: Params
    drafter: Drafter
    max_length: int = 4
    rows: int = 30_000

    @classmethod
    def create(cls, vocab_size: int = 6, seed: int = 0, **sizes) -> Bench:
        """A random target, and an autoregressive drafter over another random table.

        The drafter is the surer of the two, which is when noise that is used twice shows most. The
        target has two layers, so that it may draft with the first one.
        """
        target = TableTarget(vocab_size, classes=3, num_layers=2)
        keys = jax.random.split(jax.random.key(seed), 2)
        surer = dataclasses.replace(target, scale=2.0)
        params = Params(target.init(keys[0]), surer.init(keys[1]))
        return cls(target, params, Autoregressive(target, Sampling()), **sizes)

    def inputs(self, rows: int) -> jax.Array:
        """One input for all rows, so that they are draws of one law."""
        return jnp.tile(jnp.array([[3, 1]], jnp.int32), (rows, 1))

    def plan(self, verifier: Verifier, schedule: Schedule, sampling: SamplingRule) -> Plan:
        """The bench's target and drafter with these."""
        return Plan(self.target, self.drafter, verifier, schedule, sampling, self.max_length)

    def run(
        self,
        verifier: Verifier,
        schedule: Schedule,
        sampling: SamplingRule,
        rows: int = 0,
        first: int = 0,
    ) -> DecodeOutput:
        """Decodes `rows` rows (default: the bench's), from number `first` of the endless batch.

        Row n is sample n % 8 of example n // 8.
        """
        return self._decode(self.plan(verifier, schedule, sampling), rows or self.rows, first)

    def broken(self) -> Bench:
        """Returns the bench with a drafter whose probabilities are not distributions after half of
        the tokens; the rows claim one kind of `BROKEN` after the other."""
        kinds = jnp.arange(self.rows, dtype=jnp.int32) % len(BROKEN)
        params = self.params | {"broken": kinds}
        return self._replace(drafter=Broken(self.drafter), params=params)

    def alone(self, sampling: SamplingRule, rows: int = 0) -> DecodeOutput:
        """Decodes the first `rows` rows by the target alone."""
        alone: Any = Alone()
        return self._decode(self.plan(alone, alone, sampling).alone(), rows or self.rows, 0)

    def _decode(self, plan: Plan, rows: int, first: int) -> DecodeOutput:
        index = jnp.arange(first, first + rows)
        keys = row_keys(1, index // SAMPLES, index % SAMPLES)
        return decode(self.params, keys, self.inputs(rows), plan)

    def compare(self, tokens: jax.Array, sampling: SamplingRule) -> Comparison:
        """The chi-square test of output tokens [R, N] against the enumerated law."""
        law = sequence_law(
            self.target,
            self.params["target"],
            np.asarray(self.inputs(1)[0]),
            sampling=sampling,
            max_length=self.max_length,
        )
        return compare(law, np.asarray(tokens))


def check_verifier(
    verifier: Verifier,
    *,
    samplings: tuple[SamplingRule, ...] = SAMPLINGS,
    gammas: tuple[int, ...] = (1, 2, 4),
    vocab_size: int = 3,
    seed: int = 0,
    tolerance: float = 1e-12,
) -> float:
    """The law of what is emitted is the target's: in algebra, and through the jitted loop.

    (a) `output_law` in float64 on `adversarial_trees` and, for drafts of at most two tokens, on
    `broken_trees`, for whole and shortened drafts; (b) for the
    coin tosses: outputs of `decode` against the enumerated law for each sampling; (c) the same with
    a drafter whose probabilities are not distributions after some tokens (`Broken`).

    Returns:
      The largest error of (a), at most `tolerance`.
    """
    if verifier.greedy_only:
        samplings = (Greedy(),)
    else:
        samplings = (*samplings, Greedy())
    worst = 0.0
    with jax.enable_x64(True):
        for sampling in samplings:
            for case, error in law_errors(verifier, sampling, gammas, vocab_size, seed):
                assert error <= tolerance, (
                    f"{verifier} emits a wrong law for {case}: off by {error:.3g}"
                )
                worst = max(worst, error)
    bench = Bench.create(seed=seed)
    for sampling in samplings:
        result = bench.compare(bench.run(verifier, Fixed(2), sampling).tokens, sampling)
        assert result.passed, f"{verifier} under {sampling}: {result}"
    broken = bench.broken().run(verifier, Fixed(2), samplings[0])
    result = bench.compare(broken.tokens, samplings[0])
    assert result.passed, f"{verifier} with broken drafts under {samplings[0]}: {result}"
    return worst


def law_errors(
    verifier: Verifier,
    sampling: SamplingRule,
    gammas: tuple[int, ...] = (1, 2, 4),
    vocab_size: int = 3,
    seed: int = 0,
) -> Iterator[tuple[str, float]]:
    """Yields cases by which a verifier's law is checked, and by how much the emitted law is off."""
    for gamma in gammas:
        cases = adversarial_trees(seed, vocab_size, gamma, sampling)
        if gamma <= 2:
            cases |= broken_trees(seed, vocab_size, gamma, sampling)
        for name, trees in cases.items():
            right = trees.p[0]
            for p in trees.p[1:]:
                right = right[..., None] * p
            for length in {gamma, gamma - 1, 0}:
                case = f"{name} p and q under {sampling}, gamma {gamma}, draft length {length}"
                yield case, float(np.max(np.abs(output_law(verifier, trees, length) - right)))


def check_drafter(
    drafter: Drafter,
    drafter_params: PyTree = (),
    *,
    perfect: SamplingRule | None = None,
    vocab_size: int = 6,
    gammas: tuple[int, ...] = (1, 2, 5),
    schedules: tuple[Schedule, ...] = (),
    seed: int = 0,
) -> None:
    """No draft changes the output, and every q is what the token was drawn from.

    For each gamma, and each of the schedules: greedy and `Coupled` outputs equal the baseline's
    token by token, with no more target calls; `SpeculativeSampling` outputs follow the enumerated
    law; a row alone is the same row in a batch. Output tests cannot see a drafter that is merely
    bad (the verifier repairs it). Therefore `perfect`: for a drafter that, given the target's
    parameters as its own, draws from the target's distributions under this sampling; everything
    must then be accepted (`drafter_params` are ignored).
    """
    bench = Bench.create(vocab_size=vocab_size, seed=seed, max_length=5)
    target, roles = bench.params["target"], list(drafter.owned())
    if perfect is not None:
        trees = dict.fromkeys(roles, target)
    else:
        trees = {roles[0]: drafter_params} if len(roles) == 1 else dict(drafter_params)
    bench = bench._replace(params=Params(target, **trees), drafter=drafter)
    schedules = (*map(Fixed, gammas), *schedules)
    for schedule in schedules:
        output = _check_outputs(bench, schedule, f"{drafter} with {schedule}")
        if schedule is schedules[-1]:
            _check_rows_alone(bench, schedule, output, f"{drafter}")
        if perfect is not None:
            check_everything_accepted(bench, schedule, perfect)


def check_schedule(schedule: Schedule, schedule_params: PyTree = (), *, seed: int = 0) -> None:
    """Whatever lengths the schedule chooses, the output is unchanged, and so is a row alone."""
    buckets = schedule.buckets
    assert list(buckets) == sorted(set(buckets)) and buckets[0] >= 0 and buckets[-1] >= 1, (
        f"{schedule}.buckets is {buckets}; give ascending draft lengths, the last at least 1"
    )
    bench = Bench.create(seed=seed, max_length=5)
    bench = bench._replace(params=bench.params | dict.fromkeys(schedule.tables(), schedule_params))
    output = _check_outputs(bench, schedule, f"{schedule}")
    _check_rows_alone(bench, schedule, output, f"{schedule}")


def check_processor(processor: LogitsProcessor, *, seed: int = 0) -> None:
    """Speculation changes nothing of what a processor makes of the target, with any drafter.

    Outputs follow the enumerated law, those that are greedy or drawn with the target's noise are
    its own, and a drafter that equals the target, processor included, is never refused. A processor
    that looks at what is behind its history fails.
    """
    bench = Bench.create(seed=seed, max_length=5)
    rules = [Processed(base, (processor,)) for base in (Greedy(), Sampling(), Sampling(0.7))]
    for sampling in rules:
        for drafts in (sampling, sampling.sampling):
            given = bench._replace(drafter=Autoregressive(bench.target, drafts))
            exact = GreedyMatch() if sampling.greedy else Coupled()
            plain, ours = given.alone(sampling, 512), given.run(exact, Fixed(3), sampling, 512)
            differ = int(jnp.sum(jnp.any(ours.tokens != plain.tokens, axis=1)))
            assert not differ, f"{processor}: {differ} of 512 outputs differ under {exact}"
        if not sampling.greedy:
            result = given.compare(given.run(Block(), Fixed(3), sampling).tokens, sampling)
            assert result.passed, f"{processor}: {result}"
        knows = given._replace(
            drafter=Autoregressive(bench.target, sampling),
            params=Params(bench.params["target"], bench.params["target"]),
        )
        check_everything_accepted(knows, Fixed(3), sampling)


def check_everything_accepted(
    bench: Bench, schedule: Schedule, sampling: SamplingRule, rows: int = 256
) -> None:
    """Every token is accepted of a drafter that computes the target's own distributions."""
    for verifier in (GreedyMatch() if sampling.greedy else SpeculativeSampling(), Coupled()):
        trace = bench.run(verifier, schedule, sampling, rows).trace
        accepted, drafted = int(trace.accepted.sum()), int(trace.drafted.sum())
        assert accepted == drafted > 0, (
            f"{bench.drafter} equals the target, but {type(verifier).__name__} accepted only "
            f"{accepted} of {drafted} draft tokens with {schedule} under {sampling}"
        )


def _check_outputs(bench: Bench, schedule: Schedule, what: str) -> DecodeOutput:
    for verifier, sampling in ((GreedyMatch(), Greedy()), (Coupled(), SAMPLINGS[3])):
        plain = bench.alone(sampling, EQUAL_ROWS)
        ours = bench.run(verifier, schedule, sampling, EQUAL_ROWS)
        differ = int(jnp.sum(jnp.any(ours.tokens != plain.tokens, axis=1)))
        assert not differ, f"{what}: {differ} of {EQUAL_ROWS} outputs differ under {verifier}"
        slower = int(jnp.sum(ours.trace.calls > plain.trace.calls))
        assert not slower, f"{what}: {slower} of {EQUAL_ROWS} outputs took more target calls"
    output = bench.run(SpeculativeSampling(), schedule, Sampling())
    result = bench.compare(output.tokens, Sampling())
    assert result.passed, f"{what}: {result}"
    return output


def _check_rows_alone(bench: Bench, schedule: Schedule, output: DecodeOutput, what: str) -> None:
    for row in range(8):
        alone = bench.run(SpeculativeSampling(), schedule, Sampling(), rows=1, first=row)
        pairs = [(alone.tokens, output.tokens), (alone.trace.drafted, output.trace.drafted)]
        same = all(bool((one[0] == batch[row]).all()) for one, batch in pairs)
        assert same, f"{what}: a row depends on its batch"
