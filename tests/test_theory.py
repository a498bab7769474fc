"""Formulas against the papers' printed figures and exact arithmetic: pytest tests/test_theory.py"""

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import coupled_acceptance_rate

from specdec.common import theory

# Leviathan, table 1: alpha, gamma, factor of operations, factor of speed.
TABLE_1 = [
    (0.6, 2, "1.53", "1.96"),
    (0.7, 3, "1.58", "2.53"),
    (0.8, 2, "1.23", "2.44"),
    (0.8, 5, "1.63", "3.69"),
    (0.9, 2, "1.11", "2.71"),
    (0.9, 10, "1.60", "6.86"),
]

# Leviathan, tables 2 and 4: gamma, alpha, c; then our evaluation of the formula at these inputs,
# the best gamma and its value (the paper prints one decimal).
TABLE_4 = {
    "EnDe small T=0": (7, 0.75, 0.02, "3.16", 9, "3.20"),
    "EnDe base T=0": (7, 0.80, 0.04, "3.25", 9, "3.28"),
    "EnDe large T=0": (7, 0.82, 0.11, "2.50", 6, "2.51"),
    "EnDe small T=1": (7, 0.62, 0.02, "2.26", 6, "2.27"),
    "EnDe base T=1": (5, 0.68, 0.04, "2.35", 6, "2.35"),
    "EnDe large T=1": (3, 0.71, 0.11, "1.93", 4, "1.96"),
    "CNN/DM small T=0": (5, 0.65, 0.02, "2.40", 7, "2.43"),
    "CNN/DM base T=0": (5, 0.73, 0.04, "2.62", 7, "2.66"),
    "CNN/DM large T=0": (3, 0.74, 0.11, "2.02", 4, "2.08"),
    "CNN/DM small T=1": (5, 0.53, 0.02, "1.89", 5, "1.89"),
    "CNN/DM base T=1": (3, 0.55, 0.04, "1.80", 4, "1.82"),
    "CNN/DM large T=1": (3, 0.56, 0.11, "1.54", 3, "1.54"),
}

# The best gamma for c, at alpha 0.5, 0.6, 0.7, 0.8, 0.9 (points of Leviathan's figure 3).
OPTIMAL_GAMMA = {
    0.01: [5, 7, 9, 14, 24],
    0.02: [4, 6, 8, 11, 19],
    0.05: [3, 4, 6, 8, 13],
    0.10: [2, 3, 4, 6, 10],
}

DIGITS = 1e-14  # float64: probabilities of five tokens; measured 3e-16

rates = st.floats(0, 1)
costs = st.floats(0, 2)
# Zeros, equal and tiny probabilities are as likely as ordinary ones.
weights = st.lists(st.sampled_from([0, 0, 1e-30, 1e-6, 0.1, 0.5, 1, 1, 3]), min_size=5, max_size=5)
distributions = weights.filter(any).map(lambda w: np.asarray(w, float) / sum(w))


@pytest.mark.parametrize("alpha, gamma, operations, speed", TABLE_1)
def test_table_1_of_the_paper(alpha, gamma, operations, speed):
    assert f"{theory.operations_factor(alpha, gamma, 0.0):.2f}" == operations
    assert f"{theory.speedup(alpha, gamma, 0.0):.2f}" == speed


@pytest.mark.parametrize("gamma, alpha, c, value, best, best_value", TABLE_4.values(), ids=TABLE_4)
def test_table_4_of_the_paper(gamma, alpha, c, value, best, best_value):
    assert f"{theory.speedup(alpha, gamma, c):.2f}" == value
    assert theory.optimal_gamma(alpha, c, maximum=50) == best
    assert f"{theory.speedup(alpha, best, c):.2f}" == best_value


def test_optimal_gamma_over_a_grid():
    alphas = (0.5, 0.6, 0.7, 0.8, 0.9)
    for c, expected in OPTIMAL_GAMMA.items():
        assert [theory.optimal_gamma(alpha, c, maximum=50) for alpha in alphas] == expected


@pytest.mark.parametrize(
    "alpha, c, oracle, fixed", [(0.75, 0.02, 3.77, 3.20), (0.9, 0.05, 6.90, 4.67)]
)
def test_oracle_beats_the_best_fixed_gamma_by_the_known_margin(alpha, c, oracle, fixed):
    best = theory.optimal_gamma(alpha, c, maximum=50)
    assert round(theory.oracle_speedup(alpha, c), 2) == oracle
    assert round(theory.speedup(alpha, best, c), 2) == fixed


def test_oracle_at_the_ends():
    assert theory.oracle_speedup(0.0, 0.3) == 1
    assert theory.oracle_speedup(1.0, 0.25) == 4
    assert theory.oracle_speedup(1.0, 0.0) == math.inf


def test_mbsu_of_the_115m_drafter():
    assert round(theory.mbsu(2.3, 3, 0.0164), 2) == 2.19
    assert round(theory.mbsu(2.6, 5, 0.0164), 2) == 2.40


@given(rates, st.integers(0, 40))
def test_expected_tokens_is_the_closed_form_in_exact_arithmetic(alpha, gamma):
    a = Fraction(alpha)
    exact = gamma + 1 if a == 1 else (1 - a ** (gamma + 1)) / (1 - a)
    assert theory.expected_tokens(alpha, gamma) == pytest.approx(float(exact), rel=1e-14)


def test_expected_tokens_loses_no_digits_near_one():
    assert theory.expected_tokens(1.0, 7) == 8
    assert theory.expected_tokens(1 - 1e-15, 7) == pytest.approx(
        8, abs=1e-13
    )  # eight roundings of 9e-16


@given(rates, costs, st.integers(0, 12))
def test_optimal_gamma_is_the_best_by_exact_search(alpha, c, maximum):
    a, c_exact = Fraction(alpha), Fraction(c)
    speeds = [sum(a**i for i in range(g + 1)) / (g * c_exact + 1) for g in range(maximum + 1)]
    found = theory.optimal_gamma(alpha, c, maximum)
    assert float(speeds[found]) == pytest.approx(float(max(speeds)), rel=1e-14)


@given(st.floats(0.01, 0.99), costs)
def test_some_draft_pays_exactly_if_alpha_exceeds_cost(alpha, c):
    # Corollary 3.9; a difference below rounding decides nothing.
    if abs(alpha - c) > 1e-9:
        assert (theory.optimal_gamma(alpha, c, maximum=12) > 0) == (alpha > c)


@given(rates, costs)
def test_oracle_bounds_every_fixed_gamma(alpha, c):
    oracle = theory.oracle_speedup(alpha, c)
    for gamma in range(1, 12):
        assert theory.speedup(alpha, gamma, c) <= max(oracle, 1) * (1 + 1e-12)


def test_verify_cost_and_overhead_enter_the_denominator():
    assert theory.speedup(1.0, 3, 0.1, verify_cost=1.5, overhead=0.2) == pytest.approx(4 / 2.0)
    assert theory.speedup(1.0, 3, 0.1, verify_cost=lambda gamma: 1 + gamma / 6) == pytest.approx(
        4 / 1.8
    )


def test_optimal_gamma_counts_verify_cost_and_overhead():
    assert theory.optimal_gamma(0.8, 0.05, 20) == 8
    assert theory.optimal_gamma(0.8, 0.05, 20, verify_cost=lambda gamma: 1 + 0.2 * gamma) == 3
    # A kernel that is twice as slow from two tokens on makes longer drafts worth their while.
    assert theory.optimal_gamma(0.8, 0.05, 20, verify_cost=2.0) == 10
    assert theory.optimal_gamma(0.8, 0.05, 20, verify_cost=5.0) == 0
    assert theory.optimal_gamma(0.8, 0.05, 20, overhead=4.0) == 0


@given(distributions, distributions)
def test_coupled_acceptance_rate_lies_between_its_bounds(p, q):
    distance = np.abs(p - q).sum() / 2
    rate = coupled_acceptance_rate(p, q)
    assert (1 - distance) / (1 + distance) - DIGITS <= rate <= 1 - distance + DIGITS


@given(distributions, distributions)
def test_coupled_acceptance_rate_is_the_published_sum(p, q):
    both = np.flatnonzero((p > 0) & (q > 0))
    expected = sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in both)
    assert coupled_acceptance_rate(p, q) == pytest.approx(expected, rel=1e-12, abs=DIGITS)


# Row 0 makes three calls and stops with the target's own EOS; row 1 ends in an EOS it drafted;
# row 2 is padding, finished before it starts.
TRACE = SimpleNamespace(
    drafted=np.array([[4, 4, 2, 0], [4, 3, 0, 0], [0, 0, 0, 0]]),
    accepted=np.array([[1, 4, 0, 0], [0, 3, 0, 0], [0, 0, 0, 0]]),
    calls=np.array([3, 2, 0]),
    ended_in_draft=np.array([False, True, False]),
)


def test_figures_of_a_trace_counted_by_hand():
    assert theory.emitted_tokens(TRACE).tolist() == [2 + 5 + 1, 1 + 3, 0]
    assert theory.block_efficiency(theory.emitted_tokens(TRACE), TRACE.calls) == 12 / 5
    # Tested: 2 + 4 + 1 and 1 + 3 drafts. Over all 17 drafted the ratio would be 0.47.
    assert theory.empirical_alpha(TRACE.accepted, TRACE.drafted) == 8 / 11


def test_empirical_alpha_of_independent_acceptances_is_alpha():
    # In expectation, exactly: a call accepts n with probability alpha^n (1 - alpha), or all gamma.
    alpha, gamma = 0.7, 5
    chance = [alpha**n * (1 - alpha) for n in range(gamma)] + [alpha**gamma]
    copies = np.round(np.array(chance) * 1e5).astype(int)
    accepted = np.repeat(np.arange(gamma + 1), copies)
    drafted = np.full_like(accepted, gamma)
    assert theory.empirical_alpha(accepted, drafted) == pytest.approx(
        alpha, abs=1e-5
    )  # of rounded copies
    assert accepted.sum() / drafted.sum() < 0.4  # the ratio that counts untested drafts


def test_rates_by_position():
    """Equal rates are one alpha's; a hazard at one depth is felt from there on."""
    for gamma in range(8):
        equal = theory.expected_tokens_by_position([0.7] * 8, gamma)
        assert equal == pytest.approx(theory.expected_tokens(0.7, gamma))
    assert theory.expected_tokens_by_position([1, 1, 0, 1], 4) == 3
    assert theory.expected_tokens_by_position([0.5, 0.8, 0.25], 3) == 1 + 0.5 + 0.4 + 0.1


def test_figures_of_a_run_without_drafts_or_calls_are_nan():
    assert math.isnan(theory.empirical_alpha(np.zeros((2, 3)), np.zeros((2, 3))))
    assert math.isnan(theory.block_efficiency([0, 0], [0, 0]))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: theory.expected_tokens(1.5, 2), r"alpha is 1\.5; give a probability"),
        (lambda: theory.expected_tokens(math.nan, 2), r"alpha is nan; give a probability"),
        (lambda: theory.expected_tokens(0.5, -1), r"gamma is -1; give a whole number"),
        (lambda: theory.expected_tokens_by_position([0.5, 2], 2), r"rate 2 is 2\.0; give a prob"),
        (lambda: theory.expected_tokens_by_position([0.5], 2), r"shape \[1\] and gamma is 2; give"),
        (lambda: theory.speedup(0.5, 2.5, 0.1), r"gamma is 2\.5; give a whole number"),
        (lambda: theory.speedup(0.5, 2, -0.1), r"cost_ratio is -0\.1; give a number, 0 or more"),
        (lambda: theory.speedup(0.5, 2, 0.1, overhead=-1), r"overhead is -1; give a number"),
        (lambda: theory.speedup(0.5, 2, 0.1, verify_cost=0), r"verify_cost is 0 at gamma 2; give"),
        (lambda: theory.operations_factor(0.5, 2, -1), r"ops_ratio is -1; give a number"),
        (lambda: theory.optimal_gamma(2, 0.1, 5), r"alpha is 2; give a probability"),
        (lambda: theory.optimal_gamma(0.5, -1, 0), r"cost_ratio is -1; give a number"),
        (lambda: theory.optimal_gamma(0.5, 0.1, -5), r"maximum is -5; give a whole number"),
        (lambda: theory.oracle_speedup(-0.1, 0.1), r"alpha is -0\.1; give a probability"),
        (lambda: theory.oracle_speedup(0.1, -0.1), r"cost_ratio is -0\.1; give a number"),
        (lambda: theory.mbsu(-1, 2, 0.1), r"tau is -1; give a number"),
        (lambda: theory.mbsu(1, 2, -0.1), r"parameter_ratio is -0\.1; give a number"),
        (lambda: theory.empirical_alpha([1, 5], [4, 4]), r"accepted is 5 in a call that drafted 4"),
    ],
)
def test_bad_input_is_named_with_its_value_and_remedy(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
