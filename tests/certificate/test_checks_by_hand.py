"""Checks and certificates of outputs that no model has made: pytest tests/certificate

The figures, demands and words of each check are worked out by hand. What the checks find in runs of
models is tested in test_certificate.py.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_outputs import Made, output_of

from specdec import certificate, tasks, testing
from specdec.certificate import Check, Power, Subject, certifying, drawn, exactness
from specdec.certificate import subject as subjects
from specdec.certificate.outcome import agreement
from specdec.common.environment import environment, hardware
from specdec.decoding import row_keys
from specdec.sampling import Greedy, MinLength, Processed, Sampling
from specdec.testing import FALSE_ALARM, Constant, OneOf, Skipping
from specdec.testing.excess import COUNTS, RANKS, Tally, by_rank, excess, proposals, seen, tail
from specdec.texts.measured_run import Run, Variant
from specdec.verifiers import Coupled, SpeculativeSampling, Typical

hostile = importlib.import_module(f"{certificate.__name__}.hostile")  # its check has this name too
SHARE_OFF = "a group's share off by {:.3f}"


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a plan that checks read and replace."""

    drafter: Any = "drafter"
    verifier: Any = "verifier"
    sampling: Any = Sampling(0.5)
    shared_noise: bool = False
    sources: tuple[str, ...] = ()


class Given:
    """A subject of four texts in batches of two, whose outputs are given."""

    count, batch_size, mesh, seed, tolerance = 4, 2, None, 0, 1e-4
    drawn, greedy, params = Sampling(0.5), Greedy(), {"target": "weights"}

    def __init__(self, plan: Any = None, float32: bool = True, greedy_only: bool = False):
        self.plan, self.float32, self.greedy_only = plan or Parts(), float32, greedy_only
        self.asked: list[Any] = []

    def variant(self, sampling: Any, **parts: Any) -> Parts:
        return dataclasses.replace(self.plan, sampling=sampling, **parts)

    def batches(self, rows: int, sample: int = 0) -> list[tuple[Any, Any]]:
        self.asked.append((rows, sample))
        return [("keys", "first"), ("keys", "second")]


# Draws of the drafter and of the run.


def tallies(tokens: int) -> Tally:
    """Sums of one batch: ten of a group's tokens are too many, at a variance of 250."""
    more = np.zeros([1, 1, COUNTS])
    more[0, 0, 1] = 10
    return Tally(np.full([1, 1], tokens), more, np.full([1, 1, COUNTS], 250.0))


@pytest.mark.parametrize("tokens, samples", [(12_000, 2), (10_000, 2), (9_999, 3), (3, 16)])
def test_drafts_are_drawn_until_they_are_enough(monkeypatch, tokens, samples):
    """40,000 tokens are, or 16 samples of each text."""
    fetched = []

    class Program:
        def __init__(self, function, mesh):
            assert (function.func, mesh) == (drawn.tally, None)
            assert function.keywords["plan"] == Parts(sampling=Given.drawn)

        def fetch(self, params, *batch, everywhere):
            fetched.append((params, *batch))
            return tallies(tokens), 1.0

    monkeypatch.setattr(drawn, "Program", Program)
    subject: Any = Given()
    check = drawn.proposal(subject)
    batches = (Given.params, "keys", "first"), (Given.params, "keys", "second")
    assert fetched == [*batches] * samples
    assert subject.asked == [(4, sample) for sample in range(samples)]
    found = proposals([tallies(tokens)] * (2 * samples), ())
    assert check.figures == {
        "tokens": 2 * samples * tokens,
        "largest_share": pytest.approx(10 / tokens),
        "p_value": found.p_value,
        "temperature": found.temperature,
        "false_alarm": 1e-9,
    }
    assert check.demands == {"p_value": (">=", 1e-9), "tokens": (">=", 1)}
    assert check.note == f"{found}; 4 drafts for each call in {samples} samples of each text"
    assert check.power == Power.by(found.detectable, 4, 0.05, SHARE_OFF)


class Drawn(Given):
    """A subject whose draws are off by known sums in each text."""

    def decode(self, plan: Parts, sample: int) -> Any:
        self.asked.append((plan, sample))
        length, drafted = np.array([3, 2, 4, 1]), np.array([[2, 1], [1, 0], [3, 0], [0, 0]])
        return SimpleNamespace(tokens=sample, length=length, trace=SimpleNamespace(drafted=drafted))

    def compared(self, compare: Any, tokens: Any, length: Any) -> tuple[np.ndarray, np.ndarray]:
        assert compare.__wrapped__.func is drawn._standing
        more, variance = np.zeros([4, COUNTS], np.float32), np.ones([4, COUNTS], np.float32)
        more[:, 2], variance[3, -1] = [0.5, 0, 0.25, 0], 9
        more[:, 3] = [2**25, 0.25, -(2**25), 0]  # 0 if they are summed in float32
        return more, variance


@pytest.mark.parametrize("greedy_only", [False, True])
def test_shares_of_drawn_tokens(greedy_only):
    """Ten tokens in each of eight samples; 0.75 too many of a group in each are 6 of 80, and 0.25
    too many are 2."""
    subject: Any = Drawn(greedy_only=greedy_only)
    check = drawn.draws(subject)
    verifier = SpeculativeSampling() if greedy_only else "verifier"
    plan = Parts(sampling=Given.drawn, verifier=verifier)
    assert subject.asked == [(plan, sample) for sample in range(8)]
    more, variance = np.zeros(COUNTS), np.full(COUNTS, 8 * 4.0)
    more[2], more[3], variance[-1] = 6, 2, 8 * 12
    p_value = tail(more, variance, COUNTS).min()
    assert check.figures == {
        "tokens": 80,
        "drafted": 8 * 7,
        "excess_shares": pytest.approx([{2: 6, 3: 2}.get(i, 0) / 80 for i in range(COUNTS)]),
        "p_value": pytest.approx(p_value),
        "false_alarm": FALSE_ALARM,
    }
    assert check.demands == {"p_value": (">=", FALSE_ALARM), "tokens": (">=", 1)}
    by = f"{verifier}, in place of verifier, which draws nothing" if greedy_only else "verifier"
    assert check.note == (
        f"80 tokens drawn by the run's drafter and {by}: the shares of 9 counts are off by 0.0750 "
        f"at most (p = {p_value:.2g}, threshold 1e-09)"
    )
    # Of each text there are 20 tokens, with a variance of 8; the log-probability's is left out.
    power = check.power
    assert power is not None and (power.wanted, power.what) == (0.05, SHARE_OFF)
    assert power.deviation == pytest.approx(min(1, float(seen(32.0, COUNTS)) / 80))

    def share(texts: int) -> float:
        return float(seen(8.0 * texts, COUNTS)) / (20 * texts)

    assert share(power.texts) <= 0.05 < share(power.texts - 3)  # of counts that are 1.003 apart


PROBS = np.array(
    [[[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.3, 0.3, 0.4]], [[1, 0, 0], [0.2, 0.6, 0.2], [0, 1, 0]]],
    np.float32,
)
TOKENS, LENGTH = np.array([[1, 2, 0], [0, 1, 1]]), np.array([2, 1])


def test_only_tokens_of_a_text_count(monkeypatch):
    """Each count is a sum over the two tokens of one text, and over the one of the other."""

    @jax.jit
    def sums(probs: jax.Array, tokens: jax.Array, length: jax.Array) -> list:
        functions: Any = drawn._standing, drawn._excess, drawn._unlike
        scores = lambda *_, plan: (None, jnp.log(probs), probs)  # noqa: E731
        monkeypatch.setattr(drawn, "taught_scores", scores)
        found = [function(None, None, tokens, length, plan=None) for function in functions]
        return [*found, excess(probs, tokens), by_rank(probs, tokens)]

    (more, variance), (held, of_text), (wrong, tokens), parts, ranks = sums(PROBS, TOKENS, LENGTH)
    expected = *parts, ranks[..., 1] - ranks[..., 0]
    for found, each in zip((more, variance, held), map(np.asarray, expected), strict=True):
        np.testing.assert_allclose(found, [each[0, 0] + each[0, 1], each[1, 0]], rtol=1e-6)
    assert held.shape == (2, RANKS) and of_text.tolist() == tokens.tolist() == [2, 1]
    assert wrong.tolist() == [1, 0]


def test_the_share_of_tokens_that_are_not_chosen():
    """3 of 20 tokens, in two of four texts, and three texts are the target's own."""

    class Greedily(Given):
        def texts(self, plan):
            assert plan is self.plan
            return SimpleNamespace(tokens=np.array([[1, 0], [2, 9], [3, 8], [9, 4]]), length=None)

        def plain(self, sampling):
            assert sampling == Greedy()
            return SimpleNamespace(tokens=np.array([[1, 0], [2, 9], [3, 8], [9, 5]]))

        def compared(self, *_):
            return np.array([1, 0, 0, 2]), np.array([5, 5, 4, 6])

    subject: Any = Greedily(Parts(sampling=Greedy(), verifier="Guess()"))
    check = certificate.divergence(subject, lossy=False)
    low, high = check.figures.pop("low"), check.figures.pop("high")
    assert check.figures == {"share": 0.15, "same": 3, "texts": 4, "lossy": 0}
    assert 0 <= low < 0.15 < high <= 1 / 3 and check.demands == {"lossy": ("==", 1)}
    assert check.note == (
        "Guess() is NOT EXACT, which the run does not say: LOSSY = True does; 15.00% of the tokens "
        f"are not the target's choice (95 % interval {low:.2%} to {high:.2%}); 3 of 4 texts are "
        "the target's own"
    )


class Known(Given):
    """A subject whose comparisons give known sums."""

    def __init__(self, excess: Any, lengths: Any):
        super().__init__(Parts(verifier="Guess()"))
        self._found = np.array(excess), np.array(lengths)

    def decode(self, plan: Parts, sample: int = 0) -> Any:
        return SimpleNamespace(tokens=None, length=None)

    def compared(self, *_: Any) -> tuple[np.ndarray, np.ndarray]:
        return self._found


@pytest.mark.parametrize("lossy", [True, False])
def test_the_distance_is_half_of_what_the_groups_differ_by(lossy):
    """Two texts have, in each of four groups, more or fewer tokens than the target's law expects.

    |4| + |-2| + |-2| + |0| of 16 tokens are 8 / 16, and each is missing in another group.
    """
    subject: Any = Known([[3.0, -1.0, -2.0, 0.0], [1.0, -1.0, 0.0, 0.0]], [10, 6])
    check = certificate.divergence(subject, lossy)
    assert check.figures["distance"] == pytest.approx(0.25)
    assert check.figures["low"] <= 0.25 <= check.figures["high"]
    assert check.figures["tokens"] == drawn.SAMPLES * 16 and check.passed == lossy
    said = f"{drawn.SAMPLES * 16} drawn tokens are at least 0.2500 from the target's"
    assert said in str(check)
    nothing_in_common: Any = Known([[8.0, -8.0, 0.0, 0.0]] * 2, [8, 8])
    found = certificate.divergence(nothing_in_common, lossy=True).figures
    assert (found["low"], found["distance"], found["high"]) == (1, 1, 1)


# The target as its own drafter, its argmax, and its bits.


def trace(drafted: list, accepted: list, **more: Any) -> Any:
    counts = {"drafted": np.array(drafted), "accepted": np.array(accepted)}
    return SimpleNamespace(trace=SimpleNamespace(**counts), **more)


class Own(Given):
    """A subject whose target drafts for itself: one run accepts all, the other all but some."""

    lost, drafted = 1, 100

    def itself(self, sampling: Any) -> tuple[Parts, str]:
        return self.variant(sampling), f"params of {sampling}"

    def decode(self, plan: Parts, params: str) -> Any:
        self.asked.append((plan, params))
        if isinstance(plan.drafter, Skipping):
            return trace([[50, 0], [50, 0]], [[50, 0], [50, 0]])
        return trace([[self.drafted, 4]], [[self.drafted - self.lost, 4]])


@pytest.mark.parametrize("float32", [True, False])
@pytest.mark.parametrize("greedy_only, shared", [(False, False), (False, True), (True, False)])
def test_all_drafts_of_the_target_itself_are_accepted(float32, greedy_only, shared):
    """Nine lost tokens of 204 are one rejection, which is excused in float32, and 95.6 % kept."""
    subject: Any = Own(Parts(shared_noise=shared), float32, greedy_only)
    subject.lost = 9
    check = exactness.perfect(subject)
    plain, drawn_with = Greedy(), Greedy() if greedy_only else Given.drawn
    verifier = "verifier" if greedy_only or shared else SpeculativeSampling()
    kept = dataclasses.replace(subject.plan, sampling=plain)
    skipping = dataclasses.replace(
        subject.plan, drafter=Skipping("drafter"), verifier=verifier, sampling=drawn_with
    )
    assert subject.asked == [
        (kept, "params of " + str(plain)),
        (skipping, f"params of {drawn_with}"),
    ]
    figures = {"drafted": 204, "accepted": 195, "rejections": 1, "acceptance": 195 / 204}
    assert check.figures == figures and check.passed
    known = "195 of 204 draft tokens of the target itself accepted, "
    what = "a loss of {:.1%} of the draft tokens"
    if float32:
        assert check.demands == {"drafted": (">=", 1), "rejections": ("<=", 1)}
        assert check.note == f"{known}1 drafts cut short (threshold 1, for a near-tie)"
        assert check.power == Power.of_cases(204, 4, 0.02, what, 1e-4)
    else:
        assert check.demands == {"drafted": (">=", 1), "acceptance": (">=", 0.95)}
        assert check.note == f"{known}0.9559 (at least 0.95)"
        assert check.power == Power.of_cases(204, 4, 0.15, what, 1 - 0.95)


def test_one_rejection_in_ten_thousand_is_excused():
    subject: Any = Own()
    subject.drafted = 39_896  # with 104 others
    check = exactness.perfect(subject)
    assert check.figures["drafted"] == 40_000 and check.demands["rejections"] == ("<=", 4)


def test_the_audit_has_the_largest_differences():
    taught = SimpleNamespace(
        gap=np.array([[0, 5e-5, 0], [0, 0, 2e-5]]),
        log_probs=np.array([[-1.0, -2.0, 0], [-3.0, -0.5, -0.25]]),
        largest=np.array([7.5, 6.0]),
    )
    log_probs = taught.log_probs + np.array([[0, 0, 0], [2e-6, -8e-6, 0]])
    output = SimpleNamespace(log_probs=log_probs, length=np.array([2, 3]))
    subject: Any = SimpleNamespace(speculated=output, taught=taught, tolerance=1e-4, count=2)
    check = exactness.audit(subject)
    assert check.figures == {
        "tokens": 5,
        "not_argmax": 2,
        "largest_gap": 5e-5,
        "log_prob_error": pytest.approx(8e-6),
        "largest_logit": 7.5,
    }
    assert check.demands == {"largest_gap": ("<=", 1e-4), "log_prob_error": ("<=", 1e-4)}
    assert check.note == (
        "5 tokens teacher-forced: at most 5e-05 below the argmax, log-probabilities off by 8.0e-06 "
        "(threshold 0.0001 nats)"
    )
    assert check.passed and check.power == Power.of_texts(2)
    output.log_probs = taught.log_probs + 2e-4
    assert not exactness.audit(subject).passed


class Parting(Given):
    """A subject whose target alone writes zeros, and whose second text parts at a gap."""

    def __init__(self, gap: float, same_bits: bool = False, float32: bool = True):
        super().__init__(SimpleNamespace(same_bits=same_bits, width=None), float32)
        self._gap = gap

    def plain(self, sampling: Any) -> Any:
        self.asked.append(sampling)
        return SimpleNamespace(tokens=np.zeros([5, 3], int))

    def gap(self, row: int, ours: Any, plain: Any, sampling: Any) -> float:
        assert (row, ours.tolist(), plain.tolist()) == (1, [0, 7, 0], [0, 0, 0])
        self.asked.append(sampling)
        return self._gap


@pytest.mark.parametrize(
    "sampling, limit",
    [
        (Greedy(), 1e-4),
        (Sampling(1.5), 1e-4),
        (Sampling(0.5), 2e-4),
        (Processed(Sampling(0.25), (MinLength(3),)), 4e-4),
    ],
)
def test_only_near_ties_are_excused(sampling, limit):
    """Rounding may reverse more as the temperature falls."""
    output: Any = SimpleNamespace(tokens=np.array([[0] * 3, [0, 7, 0], [0] * 3, [0] * 3]))
    for gap, passed in ((0.9 * limit, True), (1.1 * limit, False), (np.nan, False)):
        subject: Any = Parting(gap)
        check = agreement("seeds", subject, sampling, output)
        assert check.passed == passed and subject.asked == [sampling] * 2
        figures = {"texts": 4, "identical": 3, "largest_gap": gap}
        assert str(check.figures) == str(figures)  # NaN is not equal to itself
        assert check.demands == {"largest_gap": ("<=", pytest.approx(limit))}
        assert check.power == Power.of_texts(4) and check.note == (
            "3 of 4 outputs identical to the target alone, the others part at a gap of at most "
            f"{gap:.1e} nats (threshold {limit:.2g} nats)"
        )
    same: Any = Parting(0.0, same_bits=True)
    found = agreement("seeds", same, sampling, output)
    assert found.demands["identical"] == ("==", 4) and not found.passed
    # In bfloat16 rounding may put a token on the other side of top-k.
    assert agreement("seeds", Parting(np.inf, float32=False), sampling, output).passed  # type: ignore[arg-type]


class Coarse(Given):
    """A subject in bfloat16 whose target alone writes the width of its calls."""

    def plain(self, sampling: Any, width: int = 1) -> Any:
        self.asked.append(width)
        return SimpleNamespace(tokens=np.full([5, 2], width))

    def gap(self, *given: Any) -> float:
        return 0.0


def test_in_bfloat16_texts_are_those_of_calls_of_the_same_width():
    output: Any = SimpleNamespace(tokens=np.array([[3, 3], [3, 3], [3, 3], [1, 1]]))
    subject: Any = Coarse(SimpleNamespace(same_bits=False, width=3), float32=False)
    check = agreement("greedy", subject, Greedy(), output)
    assert subject.asked == [1, 3] and not check.passed
    assert (check.figures["identical"], check.figures["identical_at_same_width"]) == (1, 3)
    assert check.demands["identical_at_same_width"] == ("==", 4)


def test_outputs_with_shared_noise_are_compared_with_the_same_keys(monkeypatch):
    monkeypatch.setattr(exactness, "agreement", lambda *given: given)
    monkeypatch.setattr(Given, "texts", lambda self, plan: ("texts", plan), raising=False)
    subject: Any = Given()
    plan = Parts(sampling=Given.drawn, verifier=Coupled())
    assert exactness.seeds(subject) == ("seeds", subject, Given.drawn, ("texts", plan))


@pytest.mark.parametrize("differ, passed", [([], True), ([(1, 2)], False)])
def test_bits_are_compared_in_calls_of_all_widths(monkeypatch, differ, passed):
    asked = []
    monkeypatch.setattr(exactness, "compared", lambda *given: asked.append(given) or (12, differ))
    plan = SimpleNamespace(longest_draft=3)
    subject: Any = Given(plan)
    subject.inputs = np.zeros([4, 7], np.int32)
    check = exactness.bits(subject)
    assert asked == [(plan, "weights", 2, 7, range(2, 5))] and check.passed == passed
    count = 12 - len(differ)
    assert check.figures == {"places": 12, "differing": len(differ), "widths": [2, 3, 4]}
    assert check.demands == {"places": (">=", 2), "differing": ("==", 0)}
    words = f"a row has the same bits in {count} of 12 places of calls on 2 to 4 tokens"
    assert check.note == f"{words} (all must be)"


@pytest.mark.parametrize(
    "float32, drafts, different, limit",
    [(True, 100, 1, 1), (True, 30_000, 3, 3), (False, 100, 10, 10), (False, 5, 2, 1)],
)
def test_drafts_of_a_new_state_may_differ_at_near_ties(
    monkeypatch, float32, drafts, different, limit
):
    counts = iter([((drafts - 1, different - 1), 0.5), ((1, 1), 0.5)])

    class Program:
        def __init__(self, function, mesh):
            assert function.keywords["plan"] == Parts(sampling=Greedy(), drafter=drafter)

        def fetch(self, params, *batch, everywhere):
            return next(counts)

    (check_afresh,) = (check for check in certificate.CHECKS if check.__name__ == "afresh")
    monkeypatch.setitem(check_afresh.__globals__, "Program", Program)
    drafter = Constant(2)
    subject: Any = Given(Parts(drafter=drafter), float32)
    check = check_afresh(subject)
    assert check.name == "afresh" and subject.asked == [(8, 0)]
    assert check.figures == {"drafts": drafts, "different": different}
    assert check.demands == {"different": ("<=", limit)} and check.passed == (different <= limit)
    assert check.note == (
        f"{different} of {drafts} drafts of Constant differ from those of a state made anew "
        f"(threshold {limit}, for a near-tie)"
    )
    what = "a difference in {:.0%} of the drafts"
    share = 1e-4 if float32 else 0.1
    assert check.power == Power.of_cases(drafts, 4, 0.3, what, share)


# Hostile drafters.


def case(name: str, texts: int, identical: int, fails: int = 0) -> Check:
    return Check(name, {"texts": texts, "identical": identical, "x": fails}, {"x": ("==", 0)}, "n")


def test_the_worst_of_the_hostile_drafters_is_named():
    cases = [case("a", 8, 8), case("b", 8, 7, fails=1), case("c", 4, 4)]
    check = hostile.summary(cases, {"spam": 1.25, "wrong": 1.5, "nan": 0.9}, "same", "of alone")
    assert check.figures == {
        "drafters": 3,
        "failed_cases": 1,
        "outputs": 20,
        "identical": 19,
        "slowdown": {"spam": 1.25, "wrong": 1.5, "nan": 0.9},
        "largest_slowdown": 1.5,
        "cases": {one.name: one.record() for one in cases},
    }
    assert check.demands == {"failed_cases": ("==", 0)} and not check.passed
    assert check.note == (
        "19 of 20 same, 1 of 3 cases fail (threshold 0); at worst 1.50x of alone (wrong)"
    )
    assert check.power == Power.of_cases(20, 8, 0.15, "a fault in {:.0%} of the outputs")
    nothing = hostile.summary([], {"spam": 1.25}, "same", "of alone")
    assert nothing.figures["outputs"] == 0 and nothing.power and not nothing.power.enough


def test_a_slowdown_is_of_medians():
    times = {"alone": [1.0, 4.0, 2.0], "spam": [3.0, 5.0, 9.0], "nan": [1.0, 0.5, 1.5]}
    now, left = [0.0], {name: iter(values) for name, values in times.items()}

    def run(name: str) -> Any:
        return lambda: now.append(now.pop() + next(left[name]))

    subject: Any = SimpleNamespace(clock=lambda: now[0])
    found = hostile.slowdowns(subject, {name: run(name) for name in times})
    assert found == {"spam": 2.5, "nan": 0.5}


def test_a_case_counts_calls_and_lost_tokens(monkeypatch):
    """The second of three texts takes one more call, the last one differs and has lost a token.

    A call gives the tokens that it accepted and one more, but for one that ends inside its draft.
    """
    rows = [
        Made([2, 3, 4], [0.0] * 3, [2, 1], [1, 1]),
        Made([2, 3, 1], [0.0] * 3, [1, 1, 1], [0, 0, 0]),
        Made([2, 5, 1], [0.0] * 3, [2, 2], [1, 1]),
    ]
    output = output_of(*rows)
    ended = np.array([True, False, False])
    output = output._replace(trace=output.trace.replace(ended_in_draft=ended))
    alone = [Made([2, 3, 4], [], [0] * 3, [0] * 3), Made([2, 3, 1], [], [0] * 2, [0] * 2)]
    plain = output_of(*alone, Made([2, 4, 1], [], [0], [0]), Made([2, 3, 3]))
    checked = Check("name", {"texts": 3}, {"texts": ("==", 3)}, "note")
    monkeypatch.setattr(hostile, "agreement", lambda *given: checked)
    subject: Any = SimpleNamespace(plain=lambda sampling: plain)
    found = hostile._case("name", subject, Greedy(), output)
    assert found.figures == {"texts": 3, "texts_with_more_calls": 1, "texts_with_lost_tokens": 1}
    assert found.demands == {
        "texts": ("==", 3),
        "texts_with_more_calls": ("==", 0),
        "texts_with_lost_tokens": ("==", 0),
    }


class Harmed(Given):
    """A subject of twelve texts, with two stop ids, that notes what it decodes."""

    count, vocab_size = 12, 9

    def alone(self, sampling: Any) -> tuple:
        return "alone", sampling

    def variant(self, sampling: Any, drafter: Any = None, verifier: Any = None) -> Any:
        return drafter, sampling, verifier

    def decode(self, plan: tuple, params: Any = None, rows: int | None = None) -> Any:
        self.asked.append((plan, params, rows))
        return plan


def test_each_hostile_drafter_runs_greedily_and_drawn(monkeypatch):
    """On eight texts, timed next to the target alone; constant drafters share one program."""
    target = testing.TableTarget(9)
    subject: Any = Harmed(SimpleNamespace(target=target, stop_ids=(1, 7), verifier="own"))
    timed: dict[str, Any] = {}
    monkeypatch.setattr(hostile, "slowdowns", lambda _, runs: timed.update(runs) or {"x": 1.0})
    cases = lambda name, subject, sampling, output: case(name, 8, 8)  # noqa: E731
    monkeypatch.setattr(hostile, "_case", cases)
    check = hostile.hostile(subject)
    drafters = testing.hostile(target, 9, (1, 7))
    several = OneOf(tuple(x for x in drafters.values() if isinstance(x, Constant)))
    expected, numbers = [], itertools.count()
    for drafter in drafters.values():
        params: Any = Given.params
        if isinstance(drafter, Constant):
            drafter, params = several, params | {"number": np.int32(next(numbers))}
        expected.append(((drafter, Greedy(), "own"), params, 8))
        expected.append(((drafter, Given.drawn, Coupled()), params, 8))
    assert [*map(str, subject.asked)] == [*map(str, expected)]  # NaN is not equal to itself
    assert [*check.figures["cases"]] == [
        f"{x}, {how}" for x in drafters for how in ("greedy", "drawn")
    ]
    assert [*timed] == ["alone", *drafters]
    subject.asked.clear()
    for run in timed.values():
        run()
    again = [(("alone", Greedy()), None, 8), *expected[::2]]
    assert [*map(str, subject.asked)] == [*map(str, again)]
    assert check.note == (
        "144 of 144 outputs identical under 9 hostile drafters, 0 of 18 cases fail (threshold 0); "
        "at worst 1.00x the target's time alone (x)"
    )


# The law of a table.


class Laws:
    """A bench that has drawn 40 rows, of which one in 16 is another one in a small batch."""

    params: Mapping = {}

    def __init__(self, asked: list):
        self._asked = asked

    def run(self, verifier, schedule, sampling, rows=40):
        self._asked.append((verifier, schedule, sampling, rows))
        tokens = np.arange(2 * rows).reshape(rows, 2)
        tokens[5, 1] += rows == 16
        broken = np.where(np.arange(rows) % len(testing.BROKEN) == 1, 0, 1)
        return SimpleNamespace(tokens=tokens, trace=SimpleNamespace(broken_drafts=broken))

    def broken(self):
        self._asked.append("broken")
        return self

    def compare(self, tokens, sampling):
        return testing.Comparison(3.5, 4, 0.25, 0, len(tokens), 0.0125)


@pytest.mark.parametrize("greedy_only", [False, True])
def test_the_law_of_a_table_in_figures(monkeypatch, greedy_only):
    asked: list = []
    own = SimpleNamespace(drafter=None, verifier="own", schedule="schedule")
    subject: Any = Given(own, greedy_only=greedy_only)
    monkeypatch.setattr(exactness, "_bench", lambda subject: Laws(asked))
    verifier = SpeculativeSampling() if greedy_only else "own"
    run = verifier, "schedule", Given.drawn
    check = exactness.law(subject)
    assert asked == [(*run, 16), (*run, 40)]
    comparison = testing.Comparison(3.5, 4, 0.25, 0, 40, 0.0125)
    words = f"{Given.drawn}: {comparison}"
    if greedy_only:
        words += f"; by {verifier}, because own has one possible output and so no law"
    figures = dataclasses.asdict(comparison) | {"sampling": str(Given.drawn), "false_alarm": 1e-9}
    figures |= {"verifier": str(verifier)}
    demands = {"p_value": (">=", 1e-9), "impossible": ("==", 0), "degrees": (">=", 1)}
    power = Power(0.0125, 0.05, 0, "a distance of {:.3f} in total variation")
    assert check.figures == figures | {"rows_unlike_their_batch": 1} and check.power == power
    assert check.demands == demands | {"rows_unlike_their_batch": ("==", 0)} and not check.passed
    assert check.note == f"{words}; 1 of 16 rows depend on their batch"

    asked.clear()
    check, kinds = exactness.broken(subject), len(testing.BROKEN)
    assert asked == ["broken", (*run, 40)]
    drafts = sum(i % kinds != 1 for i in range(40))
    assert check.figures == figures | {"broken_drafts": drafts, "kinds_missed": 1}
    assert check.demands == demands | {"kinds_missed": ("==", 0)} and not check.passed
    words = f"{drafts} drafts ended early, of {kinds - 1} of {kinds} broken kinds; {words}"
    assert check.note == words and check.power == power


@pytest.mark.parametrize("paths", [0, 3])
def test_the_bench_has_the_paths_and_the_tables_of_the_run(paths):
    plan = SimpleNamespace(
        drafter=SimpleNamespace(paths=paths), schedule=SimpleNamespace(tables=lambda: ["costs"])
    )
    subject: Any = Given(plan)
    subject.params = {"target": 1, "costs": 2}
    bench = exactness._bench(subject)
    assert bench.rows == 200_000 and bench.params["costs"] == 2
    assert (bench.drafter.paths or 0) == paths
    assert isinstance(bench.drafter, exactness.MultiPath) == bool(paths)


@pytest.mark.parametrize(
    "paths, same_bits, exact, names",
    [
        (0, False, True, ["algebra", "seeds"]),
        (0, True, True, ["algebra", "seeds", "bits"]),
        (2, False, True, ["algebra"]),
        (2, True, False, ["algebra", "bits", "divergence"]),
    ],
)
def test_checks_that_a_plan_has_nothing_for_are_left_out(
    monkeypatch, paths, same_bits, exact, names
):
    """Several paths share no noise, and only a plan with the same bits states them."""
    seen = []

    def named(name: str) -> Any:
        def check(subject: Any) -> Check:
            seen.append((name, subject.plan.verifier))
            return Check(name, {}, {}, "")

        check.__name__ = name
        return check

    stubs = {name: named(name) for name in ("algebra", "seeds", "bits")}
    for name, stub in stubs.items():
        monkeypatch.setattr(certificate, name, stub)
    monkeypatch.setattr(certificate, "CHECKS", tuple(stubs.values()))
    measured = lambda subject, lossy: named("divergence")(subject)  # noqa: E731
    monkeypatch.setattr(certificate, "divergence", measured)

    @dataclasses.dataclass(frozen=True)
    class Whole:
        verifier: Any
        drafter: Any
        target: Any
        same_bits: bool
        drafts: bool = True
        sampling: Any = Sampling()

    @dataclasses.dataclass(frozen=True)
    class Certified:
        plan: Whole
        clock: Any = lambda: 0.0

    own = SimpleNamespace(exact=exact)
    plan = Whole(own, SimpleNamespace(paths=paths), SimpleNamespace(exact=True), same_bits)
    assert [one.name for one in certificate.certify(Certified(plan))] == names  # type: ignore
    by = own if exact else SpeculativeSampling()
    assert seen == [(name, own if name == "divergence" else by) for name in names]


# The certificate of a run.


@dataclasses.dataclass(frozen=True)
class Texts:
    """The texts of a run, in batches of two."""

    asked: list
    limit: int | None = None
    buckets: tuple[int, ...] = (4, 8)
    decoder_prefix: str = ""
    batch_size: int = 2
    seed: int = 5
    split: str = "test"
    lengths: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"inputs": 3})

    def source(self, share, rows, vocabulary, target) -> list[tasks.Batch]:
        self.asked.append((tuple(share)[:2], rows, self.limit, self.buckets))
        batches = (["a", "b"], [[0, 0], [1, 1]]), (["c"], [[2, 2], [-1, -1]])
        given = [(np.array(ids, np.int32), texts) for texts, ids in batches]
        return [tasks.Batch(ids, ids, ids[:, 0], texts, None, None) for ids, texts in given]


def of_run(monkeypatch, asked: list, **parts: Any) -> tuple[Any, list]:
    """Returns a run of a table, and what is asked of it; no check is run."""
    target = testing.TableTarget(5)
    models = {"target": target, "draft": testing.TableTarget(4)}
    verifier = parts.pop("verifier", SpeculativeSampling())
    plan = SimpleNamespace(
        target=target,
        drafts=True,
        verifier=verifier,
        sampling=Sampling(),
        max_length=6,
        exact=verifier.exact,
        models=lambda: models,
    )
    engine: Any = SimpleNamespace(
        plan=plan, params="params", vocabulary=None, placement=SimpleNamespace(mesh=None)
    )
    run = Run(engine, Texts(asked), **parts)  # type: ignore[arg-type]
    monkeypatch.setattr(certifying.TextEngine, "open", lambda run: asked.append("opened"))
    return run, asked


CHECKS = [
    Check("greedy", {"x": 1}, {"x": ("==", 1)}, "fine", power=Power.of_texts(40)),
    Check("draws", {"x": 1}, {"x": ("==", 1)}, "good", power=Power.of_texts(3)),
    Check("law", {"x": 1}, {"x": ("==", 1)}, "none"),
]


def test_a_certificate_is_of_the_runs_texts(monkeypatch):
    """All of them in one length, whichever host feeds them, without rows that only pad."""
    run, asked = of_run(monkeypatch, [], lossy=True)
    subjects: list[Any] = []

    def certified(*given: Any) -> Iterator[Check]:
        subjects.append(given)
        yield from CHECKS

    monkeypatch.setattr(certificate, "certify", certified)
    said: list[str] = []
    found = certifying.certify(Variant("", run, "settings"), said.append, print)
    assert asked == [((0, 1), 2, 64, ()), "opened"] and said == [*map(str, CHECKS)]
    ((subject, started, lossy, known),) = subjects
    assert (started, lossy, known) == (print, True, {}) and subject.plan is run.plan
    assert subject.inputs.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert (subject.params, subject.seed, subject.batch_size, subject.mesh) == (
        "params",
        5,
        2,
        None,
    )
    assert found.record.pop("environment") == environment()  # type: ignore[typeddict-item]
    count = [np.prod([*x.shape]) for x in jax.tree.leaves(run.plan.target.parameter_shapes())]
    of_draft = run.plan.models()["draft"].parameter_shapes()
    assert found.record == {
        "passed": True,
        "certified": False,
        "exact": True,
        "checks": [check.record() for check in CHECKS],
        "texts": 3,
        "split": "test",
        "lengths": {"inputs": 3, "targets": 6},
        "batch_size": 2,
        "seed": 5,
        "dtype": "float32",
        "target_parameters": sum(count),
        "draft_parameters": sum(np.prod([*x.shape]) for x in jax.tree.leaves(of_draft)),
        "settings": "settings",
    }
    assert found.passed and not found.certified and not found.lossy
    assert found.verdict.startswith("NOT ENOUGH TEXTS: all 3 checks passed, but 3 texts might not")
    monkeypatch.setattr(certificate, "certify", lambda *_: iter([CHECKS[0], CHECKS[2]]))
    enough = certifying.certify(Variant("", run, ""), said.append, print)
    assert enough.certified and enough.record["certified"]
    fails = dataclasses.replace(CHECKS[0], figures={"x": 2})
    monkeypatch.setattr(certificate, "certify", lambda *_: iter([fails, CHECKS[2]]))
    failed = certifying.certify(Variant("", run, ""), said.append, print)
    assert not failed.passed and not failed.certified


def test_another_verifier_stands_in_for_one_that_is_not_exact(monkeypatch):
    run, _ = of_run(monkeypatch, [], verifier=Typical())
    monkeypatch.setattr(certificate, "certify", lambda *_: iter(CHECKS))
    said: list[str] = []
    found = certifying.certify(Variant("", run, ""), said.append, print)
    assert found.lossy and not found.record["exact"]  # type: ignore[typeddict-item]
    verifier = run.plan.verifier
    assert said[0] == (
        f"NOT EXACT: {verifier}; the checks of exactness use {SpeculativeSampling()}"
    )


@dataclasses.dataclass(frozen=True)
class Decoding:
    """A plan that knows in which layouts its models are."""

    target: Any
    layouts: str = "of decoding"
    max_length: int = 6
    same_bits: bool = True
    exact: bool = True

    def models(self) -> dict[str, Any]:
        return {"target": self.target}

    def with_models(self, models: Any) -> Any:
        return dataclasses.replace(self, layouts=models)


def test_a_search_is_certified_with_its_own_layouts(monkeypatch):
    """And without the same bits of decoding; a search measures its own calls."""
    run, _ = of_run(monkeypatch, [])
    run.engine.plan = plan = Decoding(run.plan.target)
    run.engine.with_plan = lambda plan: SimpleNamespace(plan=plan, params="own params")
    beams = SimpleNamespace(models=lambda: "of the search", max_length=6, exact=True)
    search = SimpleNamespace(plan=beams)
    run = dataclasses.replace(run, beams=SimpleNamespace(engine=lambda engine: search))
    asked: list[Any] = []
    monkeypatch.setattr(certificate, "refuse", asked.append)
    monkeypatch.setattr(certifying, "BeamSubject", lambda *given, **how: (given, how))
    monkeypatch.setattr(certifying, "_record", lambda *given: {"passed": True})
    monkeypatch.setattr(certificate, "certify", lambda *given: asked.append(given) or iter(CHECKS))
    certifying.certify(Variant("", run, ""), str, print)
    assert asked[0] is beams and asked[1][1:] == (print, False, {})
    (own, params, inputs), how = asked[1][0]
    assert own == dataclasses.replace(plan, layouts="of the search", same_bits=False)
    assert params == "own params" and inputs.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert how == {"search": beams, "seed": 5, "batch_size": 2, "mesh": None}


def test_checks_that_passed_are_known_on_the_same_hardware(monkeypatch, tmp_path):
    run, _ = of_run(monkeypatch, [])
    fails = dataclasses.replace(CHECKS[1], figures={"x": 2})
    known: list[Any] = []

    def certified(subject: Any, started: Any, lossy: bool, passed: Any) -> Iterator[Check]:
        known.append(dict(passed))
        yield from (CHECKS[0], fails)

    monkeypatch.setattr(certificate, "certify", certified)
    path = tmp_path / "passed.jsonl"
    for _ in range(2):
        certifying.certify(Variant("", run, "settings"), str, print, path)
    assert known[0] == {} and [*known[1]] == ["greedy"]
    assert str(known[1]["greedy"]) == str(CHECKS[0]) and known[1]["greedy"].passed
    (line,) = path.read_text().splitlines()
    assert json.loads(line) == {
        "hardware": hardware(),
        "check": json.loads(json.dumps(CHECKS[0].record())),
    }
    monkeypatch.setattr(certifying, "hardware", lambda: {"device": "another"})
    certifying.certify(Variant("", run, "settings"), str, print, path)
    assert known[2:] == [{}] and '"another"' in path.read_text()


def test_the_rounding_that_a_subject_allows():
    """In bfloat16 a share of the largest logit: 2**-6, four units in its last place."""
    tolerance = Subject.tolerance.func  # type: ignore[attr-defined]
    taught = SimpleNamespace(largest=np.array([3.0, 8.0]))
    assert tolerance(SimpleNamespace(float32=True)) == 1e-4
    assert tolerance(SimpleNamespace(float32=False, taught=taught)) == 8 / 64


def test_the_rows_of_a_batch_are_filled_up():
    subject: Any = SimpleNamespace(batch_size=3)
    array = np.arange(20).reshape(5, 2, 2)
    block = Subject._block(subject, array, 3, 9)
    np.testing.assert_array_equal(block, [*array[3:], np.full([2, 2], 9)])
    assert Subject._block(subject, array[:, 0, 0], 0, 9).tolist() == [0, 4, 8]


def test_texts_are_decoded_on_the_devices_of_the_subject(monkeypatch):
    meshes: list[Any] = []

    class Program:
        def __init__(self, plan, mesh):
            meshes.append((plan, mesh))

        def fetch(self, params, keys, inputs, everywhere):
            return [np.full(2, len(meshes))]

    monkeypatch.setattr(subjects, "DecodeProgram", Program)
    subject: Any = Subject("plan", "params", np.zeros([3, 4], np.int32), batch_size=2, mesh="mesh")  # type: ignore
    monkeypatch.setattr(Subject, "batches", lambda *given: [([0, 1], "inputs")])
    for plan in ("plan", "other", "plan"):
        subject.decode(plan, "params", 2)
    assert meshes[:2] == [("plan", "mesh"), ("other", "mesh")]


def test_keys_of_rows_have_one_kind_and_begin_with_the_first_sample():
    index = np.array([0, 3])
    with jax.default_prng_impl("rbg"):  # as a user may prefer
        keys = row_keys(7, index)
    assert str(jax.random.key_impl(keys)) == "threefry2x32"
    data = jax.random.key_data(keys)
    np.testing.assert_array_equal(data, jax.random.key_data(row_keys(7, index, 0)))
    assert not np.array_equal(data, jax.random.key_data(row_keys(7, index, 1)))
