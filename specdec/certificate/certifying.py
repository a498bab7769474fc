"""The exactness certificate of a run."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import jax
import numpy as np

from specdec import certificate
from specdec.certificate import BeamSubject, Check, Power, Subject
from specdec.common import notebook, records
from specdec.common.environment import environment, hardware
from specdec.common.json_values import JsonObject, converted
from specdec.common.records import Lines
from specdec.common.values import UsageError, one_line
from specdec.testing.excess import DETECTED
from specdec.texts.measured_run import Run, Variant, parameter_counts
from specdec.texts.text_engine import TextEngine

LIMIT = 64


class CertificateRecord(TypedDict):
    """The fields of a certificate's JSON that other code reads."""

    passed: bool
    certified: bool
    texts: int
    checks: list[JsonObject]
    settings: str


class Certificate(NamedTuple):
    """The outcome of all checks."""

    checks: list[Check]  # the checks, in order
    lossy: bool  # whether the run's verifier is not exact, so that another one was checked instead
    record: CertificateRecord  # every figure, for JSON

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return self.record["passed"]

    @property
    def certified(self) -> bool:
        """Whether all checks passed, with enough texts for each of them."""
        return self.record["certified"]

    def write(self, path: Path) -> None:
        """Writes every figure as JSON."""
        records.write(path, records.as_json(self.record, indent=2) + "\n")

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        failed = [check.name for check in self.checks if not check.passed]
        if failed:
            return f"NOT CERTIFIED: {', '.join(failed)} failed"
        if self.lossy:
            return "LOSSY: the verifier diverges as measured, and all else is exact"
        passed = f"all {len(self.checks)} checks passed"
        if not self.powers:
            return f"CERTIFIED: {passed}"
        texts, weakest = self.record["texts"], self.powers[0]
        if not weakest.enough:
            return (
                f"NOT ENOUGH TEXTS: {passed}, but {texts} texts might not show {weakest.missed}; "
                f"give {max(power.texts for power in self.powers)}"
            )
        return (
            f"CERTIFIED: {passed}; {texts} texts would have shown {weakest.seen} with probability "
            f"{DETECTED}"
        )

    @property
    def powers(self) -> list[Power]:
        """The powers of the checks, the weakest one first."""
        powers = [check.power for check in self.checks if check.power]
        return sorted(powers, key=lambda power: power.deviation / power.wanted, reverse=True)

    def __repr__(self) -> str:
        return "\n".join([self.verdict, *map(str, self.checks)])

    def _repr_html_(self) -> str:
        return notebook.lines(self.verdict, map(str, self.checks))


def certify(
    variant: Variant,
    say: Callable[[str], None],
    started: Callable[[str], None],
    passed: Path | None = None,
) -> Certificate:
    """Certifies a run by all checks. Those in the file `passed`, JSON lines, are not run again."""
    run = _whole_outputs(variant.run)
    search = run.search
    with one_line():
        certificate.refuse(search.plan if search else run.plan)
    source = run.source(everywhere=True)
    TextEngine.open(run)  # raises for components that do not fit
    # All checks of the inputs are done; the long work begins.
    inputs = [
        jax.tree.map(operator.itemgetter(slice(len(batch.input_texts))), batch.inputs)
        for batch in source
    ]
    if not inputs:
        raise UsageError(f"split {run.data.split!r} has no examples; choose another one")
    engine, kind = run.engine, cast(Callable[..., Subject], Subject)
    if search:  # which has its own layouts, and measures its own calls
        plan = dataclasses.replace(run.plan.with_models(search.plan.models()), same_bits=False)
        engine = engine.with_plan(plan)
        kind = functools.partial(BeamSubject, search=search.plan)
    subject = kind(
        engine.plan,
        engine.params,
        jax.tree.map(lambda *parts: np.concatenate(parts), *inputs),
        seed=run.data.seed,
        batch_size=run.data.batch_size,
        mesh=run.placement.mesh,
    )
    verifier, checks = None if search else certificate.stand_in(run.plan), []
    if verifier is not None:
        say(f"NOT EXACT: {run.plan.verifier}; the checks of exactness use {verifier}")
    lines = passed and variant.lines(passed)
    known = known_checks(lines) if lines else {}
    for check in certificate.certify(subject, started, run.lossy, known):
        say(str(check))
        checks.append(check)
        if lines:
            keep(lines, check, known)
    record = _record(run, subject, checks, variant.settings)
    return Certificate(checks, verifier is not None, record)


def known_checks(lines: Lines) -> dict[str, Check]:
    """Returns the checks that passed on hardware like this, by name, and drops the other lines."""
    lines.replace([line for line in lines if line.get("hardware") == hardware()])
    known = lines.map(lambda line: converted(line, _Line)["check"], "verify")
    return {check.name: check for check in known}


class _Line(TypedDict):
    check: Check


def keep(lines: Lines, check: Check, known: Mapping[str, Check]) -> None:
    """Appends a check that passed to the lines, unless it is in `known`."""
    if check.passed and check.name not in known:
        lines.append({"hardware": hardware(), "check": check.record()})


def _whole_outputs(run: Run) -> Run:
    """Returns the run on the first texts of its split, all padded to one length."""
    if run.data.decoder_prefix:
        raise UsageError("a certificate is about whole outputs; leave decoder_prefix empty")
    limit = LIMIT if run.data.limit is None else run.data.limit
    data = dataclasses.replace(run.data, limit=limit, buckets=())
    return dataclasses.replace(run, data=data)


def _record(run: Run, subject: Subject, checks: list[Check], settings: str) -> CertificateRecord:
    models = run.plan.models()
    passed = all(check.passed for check in checks)
    record: Any = {
        "passed": passed,
        "certified": passed and all(check.power.enough for check in checks if check.power),
        "exact": run.decoder.plan.exact,
        **({"beams": str(run.search.plan)} if run.search else {}),
        "checks": [check.record() for check in checks],
        "texts": subject.count,
        "split": run.data.split,
        "lengths": run.lengths,
        "batch_size": run.data.batch_size,
        "seed": run.data.seed,
        "dtype": models["target"].dtype,
        **{f"{role}_parameters": count for role, count in parameter_counts(models).items()},
        "environment": environment(),
        "settings": settings,
    }
    return record
