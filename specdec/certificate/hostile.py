"""The check with harmful drafters."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable

import numpy as np

from specdec import testing
from specdec.certificate.outcome import WANTED_TEXTS, Check, Power, agreement
from specdec.certificate.subject import Subject
from specdec.common.timer import interleaved
from specdec.drafters.drafter import Drafter
from specdec.testing import Constant, OneOf
from specdec.types import DecodeOutput, Params, SamplingRule
from specdec.verifiers import Coupled

TEXTS, REPEATS = 8, 3


def hostile(subject: Subject) -> Check:
    """Checks that harmful drafters change no output, and take no more calls than the target."""
    rows = min(TEXTS, subject.count)
    cases = []
    runs = {"alone": functools.partial(subject.decode, subject.alone(subject.greedy), rows=rows)}
    for name, (drafter, params) in _drafters(subject).items():
        for sampling, verifier in (
            (subject.greedy, subject.plan.verifier),
            (subject.drawn, Coupled()),
        ):
            plan = subject.variant(sampling, drafter=drafter, verifier=verifier)
            run = functools.partial(subject.decode, plan, params, rows)
            case = f"{name}, {'greedy' if sampling.greedy else 'drawn'}"
            cases.append(_case(case, subject, sampling, run()))
            if sampling.greedy:
                runs[name] = run
    identical = f"outputs identical under {len(runs) - 1} hostile drafters"
    return summary(cases, slowdowns(subject, runs), identical, "the target's time alone")


def summary(cases: list[Check], slowdown: dict[str, float], same: str, alone: str) -> Check:
    """Returns the check of all cases; its note has the words of `same` and `alone`."""
    texts = max((case.figures["texts"] for case in cases), default=0)
    worst = max(slowdown, key=slowdown.__getitem__)
    failed = sum(not case.passed for case in cases)
    outputs = sum(case.figures["texts"] for case in cases)
    identical = sum(case.figures["identical"] for case in cases)
    figures = {
        "drafters": len(slowdown),
        "failed_cases": failed,
        "outputs": outputs,
        "identical": identical,
        "slowdown": slowdown,
        "largest_slowdown": slowdown[worst],
        "cases": {case.name: case.record() for case in cases},
    }
    return Check(
        "hostile",
        figures,
        {"failed_cases": ("==", 0)},
        f"{identical} of {outputs} {same}, {failed} of {len(cases)} cases fail (threshold 0); at "
        f"worst {slowdown[worst]:.2f}x {alone} ({worst})",
        power=Power.of_cases(outputs, texts, WANTED_TEXTS, "a fault in {:.0%} of the outputs"),
    )


def _case(name: str, subject: Subject, sampling: SamplingRule, output: DecodeOutput) -> Check:
    """Checks that outputs agree, and that equal outputs take no more calls and lose no token."""
    check = agreement(name, subject, sampling, output)
    plain, rows = subject.plain(sampling), len(output.tokens)
    same = (output.tokens == plain.tokens[:rows]).all(axis=1)
    trace = output.trace
    slower = int(np.sum(same & (trace.calls > plain.trace.calls[:rows])))
    emitted = trace.accepted.sum(axis=1) + trace.calls - trace.ended_in_draft
    lost = int(np.sum(emitted != output.length))
    return dataclasses.replace(
        check,
        figures=check.figures | {"texts_with_more_calls": slower, "texts_with_lost_tokens": lost},
        demands=check.demands
        | {"texts_with_more_calls": ("==", 0), "texts_with_lost_tokens": ("==", 0)},
    )


def _drafters(subject: Subject) -> dict[str, tuple[Drafter, Params]]:
    """Returns the hostile drafters by name, with their parameters."""
    plan = subject.plan
    drafters = testing.hostile(plan.target, subject.vocab_size, plan.stop_ids or ())
    constant = {name: d for name, d in drafters.items() if isinstance(d, Constant)}
    several = OneOf(tuple(constant.values()))
    with_params: dict[str, tuple[Drafter, Params]] = {
        name: (drafter, subject.params) for name, drafter in drafters.items()
    }
    for number, name in enumerate(constant):
        with_params[name] = several, subject.params | {"number": np.int32(number)}
    return with_params


def slowdowns(subject: Subject, runs: dict[str, Callable]) -> dict[str, float]:
    """Returns the median time of each compiled run divided by that of the run 'alone'."""
    ready = {name: functools.partial(lambda run: run, run) for name, run in runs.items()}
    seconds = interleaved(ready, REPEATS, clock=subject.clock)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {name: medians[name] / medians["alone"] for name in runs if name != "alone"}
