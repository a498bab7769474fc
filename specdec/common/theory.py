"""The papers' predictions of speed, and the figures of runs to compare with them.

Letters are those of Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
Decoding" (2211.17192), here "Leviathan":

  alpha  probability that a drafted token is accepted, averaged over prefixes
  gamma  drafted tokens per target call
  c      seconds of one draft step / seconds of one target step of one token
  v      seconds of the target on gamma + 1 tokens / seconds of the target on one (1 if free)
  o      everything else in one iteration, in target steps

This is plain Python and numpy, which does not start JAX. Array arguments may be JAX arrays.
"""

import math
import numbers
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Predictions from alpha.


def expected_tokens(alpha: float, gamma: int) -> float:
    """Returns the tokens emitted per target call if acceptances are independent.

      (1 - alpha^(gamma+1)) / (1 - alpha) = 1 + alpha + ... + alpha^gamma

    Leviathan, section 3.1, equation 1.

    >>> round(expected_tokens(0.8, 5), 2)
    3.69
    """
    _check_rate("alpha", alpha)
    _check_count("gamma", gamma)
    # The sum, because the quotient cancels near alpha = 1.
    return math.fsum(alpha**i for i in range(gamma + 1))


def expected_tokens_by_position(rates: ArrayLike, gamma: int) -> float:
    """Returns the tokens emitted per target call if acceptance depends only on a token's position.

      1 + sum over d = 1 .. gamma of a_1 a_2 .. a_d

    with a_d = rates[d - 1], the probability that draft token d is accepted if those before it were.
    With equal rates it is `expected_tokens`. Rates differ if acceptances cluster, or texts end.

    >>> expected_tokens_by_position([0.5, 0.8], 2)
    1.9
    """
    _check_count("gamma", gamma)
    rates = np.asarray(rates, np.float64)
    if rates.ndim != 1 or rates.size < gamma:
        raise ValueError(
            f"rates have shape {list(rates.shape)} and gamma is {gamma}; give one for each position"
        )
    for depth, rate in enumerate(rates[:gamma], start=1):
        _check_rate(f"rate {depth}", rate)
    return 1 + math.fsum(np.cumprod(rates[:gamma]))


def speedup(
    alpha: float,
    gamma: int,
    cost_ratio: float,
    verify_cost: float | Callable[[int], float] = 1.0,
    overhead: float = 0.0,
) -> float:
    """Returns the factor by which speculation shortens the wall time of a long generation.

      expected_tokens(alpha, gamma) / (gamma * c + v(gamma) + o)

    Leviathan, section 3.3, theorem 3.8, has v = 1 and o = 0, which no real device reaches.

    >>> round(speedup(alpha=0.75, gamma=7, cost_ratio=0.05), 2)
    2.67
    """
    tokens = expected_tokens(alpha, gamma)
    _check_nonnegative("cost_ratio", cost_ratio)
    _check_nonnegative("overhead", overhead)
    verify = verify_cost(gamma) if callable(verify_cost) else verify_cost
    if not verify > 0:
        raise ValueError(
            f"verify_cost is {verify} at gamma {gamma}; give T(gamma + 1) / T(1), which is positive"
        )
    return tokens / (gamma * cost_ratio + verify + overhead)


def operations_factor(alpha: float, gamma: int, ops_ratio: float) -> float:
    """Returns the factor by which speculation increases the arithmetic per emitted token.

      (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)

    with c_hat = `ops_ratio`, operations per token of the drafter over those of the target.
    Leviathan, section 3.4, theorem 3.11.
    """
    _check_nonnegative("ops_ratio", ops_ratio)
    return (gamma * ops_ratio + gamma + 1) / expected_tokens(alpha, gamma)


def optimal_gamma(
    alpha: float,
    cost_ratio: float,
    maximum: int,
    verify_cost: float | Callable[[int], float] = 1.0,
    overhead: float = 0.0,
) -> int:
    """Returns the draft length in 0 .. maximum with the greatest `speedup`, the shortest among
    equals.

    0 means that no draft pays off: it stands for plain decoding, which has speed-up 1 and neither
    `verify_cost` nor `overhead`. Leviathan, section 3.5.
    """
    _check_rate("alpha", alpha)
    _check_nonnegative("cost_ratio", cost_ratio)
    _check_count("maximum", maximum)

    def gain(gamma: int) -> float:
        return speedup(alpha, gamma, cost_ratio, verify_cost, overhead) if gamma else 1.0

    return max(range(maximum + 1), key=gain)


def oracle_speedup(alpha: float, cost_ratio: float) -> float:
    """Returns `speedup` if every draft stopped just before its first rejection (v = 1, o = 0).

      (1 / (1 - alpha)) / (c * alpha / (1 - alpha) + 1) = 1 / (1 - alpha + c * alpha)

    It bounds every schedule that adapts the draft length, and is infinite for a perfect and free
    drafter. Leviathan, section 3.5, has it for c = 0.
    """
    _check_rate("alpha", alpha)
    _check_nonnegative("cost_ratio", cost_ratio)
    steps_per_token = 1 - alpha + cost_ratio * alpha
    return 1 / steps_per_token if steps_per_token else math.inf


def mbsu(tau: float, gamma: int, parameter_ratio: float) -> float:
    """Returns the memory-bound speed-up: `speedup` if a step takes the time to read its parameters.

      tau / (1 + gamma * rho)

    with tau the `block_efficiency` and rho = `parameter_ratio`, the drafter's parameters over the
    target's. Goel et al., "Direct Alignment of Draft Model for Speculative Decoding with
    Chat-Fine-Tuned LLMs" (2403.00858).
    """
    _check_nonnegative("tau", tau)
    _check_count("gamma", gamma)
    _check_nonnegative("parameter_ratio", parameter_ratio)
    return tau / (1 + gamma * parameter_ratio)


# Figures measured from a decoding trace.


class CountedTrace(Protocol):
    """The fields of a `types.Trace` from which tokens are counted."""

    @property
    def accepted(self) -> ArrayLike: ...  # [B, N]
    @property
    def calls(self) -> ArrayLike: ...  # [B]
    @property
    def ended_in_draft(self) -> ArrayLike: ...  # [B] bool


def emitted_tokens(trace: CountedTrace) -> NDArray[np.int64]:
    """Returns the tokens that each row emitted, `[B]`, from a `types.Trace`.

    A call emits its accepted draft tokens and one token of the target. The last call of a row whose
    text ended in a drafted EOS emits no further token.
    """
    accepted = np.asarray(trace.accepted).sum(-1, dtype=np.int64)
    return accepted + np.asarray(trace.calls) - np.asarray(trace.ended_in_draft)


def block_efficiency(emitted: ArrayLike, calls: ArrayLike) -> float:
    """Returns tau, the tokens per target call over all rows together: from 1 to gamma + 1.

    The last call of a text counts even if EOS or the length limit cut it, so short texts stay below
    `expected_tokens` at the same alpha.

    >>> block_efficiency([12, 9], [4, 3])
    3.0
    """
    return _ratio(np.sum(emitted), np.sum(calls))


def empirical_alpha(accepted: ArrayLike, drafted: ArrayLike) -> float:
    """Returns the alpha of a run: accepted draft tokens over *tested* draft tokens.

      tested = accepted + [accepted < drafted]        per target call

    Draft tokens after a rejection were never tested; dividing by all drafted tokens would
    understate alpha. For independent acceptances it is the maximum-likelihood estimate.

    >>> empirical_alpha(accepted=[4, 2, 0], drafted=[4, 4, 4])
    0.75
    """
    accepted, drafted = np.asarray(accepted), np.asarray(drafted)
    if (accepted > drafted).any():
        raise ValueError(
            f"accepted is {accepted[accepted > drafted][0]} in a call that drafted "
            f"{drafted[accepted > drafted][0]}; pass accepted first, then drafted"
        )
    rejections = np.count_nonzero(accepted < drafted)
    return _ratio(accepted.sum(), accepted.sum() + rejections)


def acceptance_by_position(
    accepted: ArrayLike, drafted: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the shares of draft tokens that are accepted, by their position in the draft.

    The first array [positions] counts tokens after accepted tokens only, the second counts all.

        >>> conditional, joint = acceptance_by_position(accepted=[3, 1, 0, 1], drafted=[3, 3, 3, 1])
        >>> conditional.tolist(), [round(float(x), 3) for x in joint]
        ([0.75, 0.5, 1.0], [0.75, 0.333, 0.333])

    """
    accepted, drafted = np.ravel(accepted), np.ravel(drafted)
    at = np.arange(drafted.max(initial=0))[:, None]
    there, right = drafted[None] > at, accepted[None] > at
    totals = right.sum(1), (there & (accepted[None] >= at)).sum(1), there.sum(1)
    conditional = [_ratio(*pair) for pair in zip(totals[0], totals[1], strict=True)]
    joint = [_ratio(*pair) for pair in zip(totals[0], totals[2], strict=True)]
    return np.array(conditional), np.array(joint)


def _ratio(numerator: np.integer | int, denominator: np.integer | int) -> float:
    return float(numerator) / float(denominator) if denominator else math.nan


def _check_rate(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; give a probability, from 0 to 1")


def _check_count(name: str, value: int) -> None:
    if not isinstance(value, numbers.Integral) or value < 0:
        raise ValueError(f"{name} is {value}; give a whole number, 0 or more")


def _check_nonnegative(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} is {value}; give a number, 0 or more")
