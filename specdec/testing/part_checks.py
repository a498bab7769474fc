"""Checks for verifiers, drafters, schedules and processors, also for those outside the package.

A check raises AssertionError with the figure that failed. Checks decode with a `TableTarget`, whose
output distribution is known exactly. Each statistical test has the false-alarm rate `FALSE_ALARM`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

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
from specdec.testing.excess import Proposals, proposals, tally
from specdec.testing.law import (
    BROKEN,
    Comparison,
    adversarial_trees,
    broken_trees,
    compare,
    output_law,
    rounds_law,
    sequence_law,
)
from specdec.testing.table_target import TableTarget
from specdec.types import (
    Array,
    DecodeOutput,
    LogitsProcessor,
    Params,
    PyTree,
    Revised,
    SamplingRule,
)
from specdec.verifiers import Block, Coupled, GreedyMatch, SpeculativeSampling
from specdec.verifiers.decide import Verifier

SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(temperature=1.4, top_k=2),
    Sampling(temperature=0.7, top_p=0.8),
    Sampling(temperature=1.2, top_k=3, top_p=0.7),
)
SAMPLES = 8  # samples of each example, so that rows without a key of their own would be equal
ASKED_EVERYWHERE = (
    "; `accept` is called for every token and must not return NaN: where q is 0, p / q is not a "
    "number, so write jnp.where(q > 0, p / jnp.where(q > 0, q, 1), 1) for the ratio"
)
PROPOSAL_ROWS = 512
EQUAL_ROWS = 4_000  # rows in tests of equal outputs; tests of distributions need `Bench.rows`


class Bench(NamedTuple):
    """A target, a drafter, and the sizes of a test run with them."""

    target: TableTarget
    params: Params
    drafter: Drafter
    max_length: int = 4
    rows: int = 30_000

    @classmethod
    def create(cls, vocab_size: int = 6, seed: int = 0, **sizes) -> Bench:
        """Returns a bench with a random target, and an autoregressive drafter with another table.

        The drafter's logits have a larger scale, which makes reused random numbers most visible.
        The target has two layers, so that a drafter may use the first one.
        """
        target = TableTarget(vocab_size, classes=3, num_layers=2)
        keys = jax.random.split(jax.random.key(seed), 2)
        surer = dataclasses.replace(target, scale=2.0)
        params = Params(target.init(keys[0]), surer.init(keys[1]))
        return cls(target, params, Autoregressive(target, Sampling()), **sizes)

    def inputs(self, rows: int) -> jax.Array:
        """Returns one input repeated in all rows [rows, 2], so that outputs are identically
        distributed."""
        return jnp.tile(jnp.array([[3, 1]], jnp.int32), (rows, 1))

    def plan(self, verifier: Verifier, schedule: Schedule, sampling: SamplingRule) -> Plan:
        """Returns a plan with the bench's target and drafter."""
        return Plan(self.target, self.drafter, verifier, schedule, sampling, self.max_length)

    def run(
        self,
        verifier: Verifier,
        schedule: Schedule,
        sampling: SamplingRule,
        rows: int = 0,
        first: int = 0,
    ) -> DecodeOutput:
        """Decodes rows first, first + 1, .. with the bench's target and drafter.

        Row n is sample n % 8 of example n // 8, independently of the other rows.

        Args:
          verifier: the plan's verifier.
          schedule: the plan's schedule.
          sampling: the plan's sampling rule.
          rows: the number of rows; 0 for `self.rows`.
          first: the number of the first row.
        """
        return self._decode(self.plan(verifier, schedule, sampling), rows or self.rows, first)

    def broken(self) -> Bench:
        """Returns the bench with a drafter whose q is not a distribution after even tokens.

        The rows use the kinds of invalid q in `BROKEN` in rotation.
        """
        kinds = jnp.arange(self.rows, dtype=jnp.int32) % len(BROKEN)
        params = self.params | {"broken": kinds}
        return self._replace(drafter=Broken(self.drafter), params=params)

    def alone(self, sampling: SamplingRule, rows: int = 0) -> DecodeOutput:
        """Decodes the first `rows` rows with the target alone."""
        alone = Alone()
        return self._decode(self.plan(alone, alone, sampling).alone(), rows or self.rows, 0)

    def given(self, plan: Plan, rows: int, first: int = 0) -> tuple[Array, PyTree]:
        """Returns the keys [rows] and the inputs of the rows that `run` decodes.

        Args:
          plan: the plan.
          rows: the number of rows.
          first: the number of the first row.
        """
        index = jnp.arange(first, first + rows)
        keys = row_keys(1, index // SAMPLES, index % SAMPLES)
        inputs = self.inputs(rows)
        if plan.reads_previous:  # previous outputs of the maximum length, different in each row
            numbers = index[:, None] + jnp.arange(self.max_length)[None]
            previous = 1 + numbers % (self.target.vocab_size - 1)
            inputs = Revised(inputs, previous.astype(jnp.int32))
        return keys, inputs

    def _decode(self, plan: Plan, rows: int, first: int) -> DecodeOutput:
        return decode(self.params, *self.given(plan, rows, first), plan)

    def compare(self, tokens: jax.Array, sampling: SamplingRule) -> Comparison:
        """Returns the chi-square test of output tokens [R, N] against the exact distribution."""
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
    """Checks that a verifier's output has the target's distribution.

    (a) The exact `output_law` is computed in float64 for `adversarial_trees` and, for drafts of at
    most two tokens, `broken_trees`. (b) Outputs of the jitted `decode` are tested against the exact
    distribution, for each sampling rule. (c) As (b), with a drafter whose q is not a distribution
    after some tokens (`Broken`).

    Args:
      verifier: the verifier to check.
      samplings: the sampling rules; `Greedy()` is added.
      gammas: draft lengths.
      vocab_size: V.
      seed: the seed of random cases.
      tolerance: the largest error allowed in (a).

    Returns:
      The largest error of (a).
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
                    f"{verifier} emits a wrong distribution for {case}: off by {error:.3g}"
                    f"{ASKED_EVERYWHERE if np.isnan(error) else ''}"
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
    """Yields (case, error): the largest error of a probability in a verifier's `output_law`.

    Args:
      verifier: the verifier to check.
      sampling: the sampling rule.
      gammas: draft lengths.
      vocab_size: V.
      seed: the seed of random cases.
    """
    for gamma in gammas:
        cases = adversarial_trees(seed, vocab_size, gamma, sampling)
        if gamma <= 2:
            cases |= broken_trees(seed, vocab_size, gamma, sampling)
        for name, trees in cases.items():
            for length in {gamma, gamma - 1, 0}:
                case = f"{name} p and q under {sampling}, gamma {gamma}, draft length {length}"
                yield case, float(np.max(np.abs(output_law(verifier, trees, length) - trees.joint)))


def rounds_errors(
    verifier: Verifier,
    sampling: SamplingRule,
    paths: int = 3,
    gammas: tuple[int, ...] = (1, 2),
    vocab_size: int = 3,
    seed: int = 0,
) -> Iterator[tuple[str, float]]:
    """Yields (case, error): the largest error of a probability in `rounds_law`, for several paths.

    Args:
      verifier: the verifier to check.
      sampling: the sampling rule.
      paths: the number of paths.
      gammas: draft lengths.
      vocab_size: V.
      seed: the seed of random cases.
    """
    for gamma in gammas:
        cases = adversarial_trees(seed, vocab_size, gamma, sampling)
        cases |= broken_trees(seed, vocab_size, gamma, sampling)
        for name, trees in cases.items():
            if not trees.certain:  # as a one-hot q draws no different paths
                emitted = rounds_law(verifier, trees, gamma, paths).emitted
                yield name, float(np.max(np.abs(emitted - trees.joint)))


def check_drafter(
    drafter: Drafter,
    drafter_params: PyTree = (),
    *,
    perfect: SamplingRule | None = None,
    vocab_size: int = 6,
    gammas: tuple[int, ...] = (1, 2, 5),
    schedules: tuple[Schedule, ...] = (),
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> None:
    """Checks that a drafter does not change the output, and draws from the q that it reports.

    Draft tokens must follow the reported q (`proposals`). For each gamma and each schedule, greedy
    and `Coupled` outputs must equal those of the target alone token by token, with no more target
    calls. (`Coupled` is left out for drafters with several paths.) `SpeculativeSampling` outputs
    must follow the exact distribution, and a row alone must equal the same row in a batch.

    Args:
      drafter: the drafter to check.
      drafter_params: the drafter's parameters; by role if it has several roles.
      perfect: a sampling rule under which the drafter draws from the target's distribution if it
        has the target's parameters. If given, these replace `drafter_params`, and every draft token
        must be accepted. Only this test detects a bad drafter, as the verifier corrects its output.
      vocab_size: V.
      gammas: draft lengths.
      schedules: further schedules.
      seed: the seed of the target.
      say: called with the name of each check before it runs; they take a minute or two.
    """
    bench = Bench.create(vocab_size=vocab_size, seed=seed, max_length=5)
    target, roles = bench.params["target"], list(drafter.owned())
    if perfect is not None:
        trees = dict.fromkeys(roles, target)
    else:
        trees = {roles[0]: drafter_params} if len(roles) == 1 else dict(drafter_params)
    bench = bench._replace(params=Params(target, **trees), drafter=drafter)
    schedules = (*map(Fixed, gammas), *schedules)
    say(f"{drafter}: its tokens and the distributions that it reports")
    result = check_proposals(bench, Fixed(max(gammas)), Sampling())
    assert result.passed, f"{drafter} draws from other distributions than it reports: {result}"
    for number, schedule in enumerate(schedules, 1):
        say(f"{drafter}: outputs with {schedule}, {number} of {len(schedules)}")
        output = _check_outputs(bench, schedule, f"{drafter} with {schedule}")
        if schedule is schedules[-1]:
            _check_rows_alone(bench, schedule, output, f"{drafter}")
        if perfect is not None:
            check_everything_accepted(bench, schedule, perfect)


def check_proposals(
    bench: Bench, schedule: Schedule, sampling: SamplingRule, rows: int = PROPOSAL_ROWS
) -> Proposals:
    """Returns the test of whether draft tokens follow the distributions that the drafter reports.

    Args:
      bench: the target and the drafter.
      schedule: the schedule.
      sampling: the sampling rule.
      rows: the number of rows.
    """
    plan = bench.plan(SpeculativeSampling(), schedule, sampling)
    keys, inputs = bench.given(plan, rows)
    return proposals([tally(bench.params, keys, inputs, plan=plan)], plan.sources)


def check_schedule(schedule: Schedule, schedule_params: PyTree = (), *, seed: int = 0) -> None:
    """Checks that the draft lengths that a schedule chooses do not change the output.

    Args:
      schedule: the schedule to check.
      schedule_params: the parameters of its table, if it has one.
      seed: the seed of the target.
    """
    buckets = schedule.buckets
    assert list(buckets) == sorted(set(buckets)) and buckets[0] >= 0 and buckets[-1] >= 1, (
        f"{schedule}.buckets is {buckets}; give ascending draft lengths, the last at least 1"
    )
    bench = Bench.create(seed=seed, max_length=5)
    bench = bench._replace(params=bench.params | dict.fromkeys(schedule.tables(), schedule_params))
    output = _check_outputs(bench, schedule, f"{schedule}")
    _check_rows_alone(bench, schedule, output, f"{schedule}")


def check_processor(processor: LogitsProcessor, *, seed: int = 0) -> None:
    """Checks that speculation has the same output as the target alone, both with this processor.

    Sampled outputs must follow the exact distribution, and greedy and `Coupled` outputs must be
    equal. If the drafter is the target with the processor, all draft tokens must be accepted. A
    processor that reads tokens beyond its history fails.

    Args:
      processor: the processor to check.
      seed: the seed of the target.
    """
    bench = Bench.create(seed=seed, max_length=5)
    rules = [Processed(base, (processor,)) for base in (Greedy(), Sampling(), Sampling(0.7))]
    for sampling in rules:
        for drafts in (sampling, sampling.sampling):
            drafted = bench._replace(drafter=Autoregressive(bench.target, drafts))
            exact = GreedyMatch() if sampling.greedy else Coupled()
            plain, ours = drafted.alone(sampling, 512), drafted.run(exact, Fixed(3), sampling, 512)
            differ = int(jnp.sum(jnp.any(ours.tokens != plain.tokens, axis=1)))
            assert not differ, f"{processor}: {differ} of 512 outputs differ under {exact}"
        if not sampling.greedy:
            result = drafted.compare(drafted.run(Block(), Fixed(3), sampling).tokens, sampling)
            assert result.passed, f"{processor}: {result}"
        knows = drafted._replace(
            drafter=Autoregressive(bench.target, sampling),
            params=Params(bench.params["target"], bench.params["target"]),
        )
        check_everything_accepted(knows, Fixed(3), sampling)


def check_everything_accepted(
    bench: Bench, schedule: Schedule, sampling: SamplingRule, rows: int = 256
) -> None:
    """Checks that all draft tokens are accepted if the drafter has the target's distributions.

    Args:
      bench: the target and the drafter.
      schedule: the schedule.
      sampling: the sampling rule.
      rows: the number of rows.
    """
    first = GreedyMatch() if sampling.greedy else SpeculativeSampling()
    for verifier in (first,) if bench.drafter.paths else (first, Coupled()):
        trace = bench.run(verifier, schedule, sampling, rows).trace
        accepted, drafted = int(trace.accepted.sum()), int(trace.drafted.sum())
        assert accepted == drafted > 0, (
            f"{bench.drafter} equals the target, but {type(verifier).__name__} accepted only "
            f"{accepted} of {drafted} draft tokens with {schedule} under {sampling}"
        )


def _check_outputs(bench: Bench, schedule: Schedule, what: str) -> DecodeOutput:
    same = [(GreedyMatch(), Greedy()), (Coupled(), SAMPLINGS[3])]
    for verifier, sampling in same[:1] if bench.drafter.paths else same:
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
        same = all(bool((values[0] == batch[row]).all()) for values, batch in pairs)
        assert same, f"{what}: a row depends on its batch"
