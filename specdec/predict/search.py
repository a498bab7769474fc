"""The search for the drafter, the draft lengths and the stopping rule that suit a pair best."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np

from specdec.common import hosts, progress, records, resources
from specdec.common.gin_text import statements
from specdec.common.records import Lines
from specdec.common.values import UsageError
from specdec.measure import opinions, recorded_texts
from specdec.measure.alphas import Accepted
from specdec.plan import Plan
from specdec.predict import predicted_speedup, schedule_replay, timed_costs, tuning
from specdec.predict.costs import Costs
from specdec.predict.draft_lengths import decoded, replayed
from specdec.predict.schedule_replay import Replayed
from specdec.predict.stored_costs import read
from specdec.predict.tuning import Candidate, Tried
from specdec.schedules import Fixed
from specdec.schedules.schedule import Schedule
from specdec.texts.measured_run import Run, Variant

TOKENS = 8_000
SAMPLES = 4  # of the coins, where texts are drawn
FEWEST = 20  # texts


class Prepared(NamedTuple):
    """A variant with its texts and costs."""

    variant: Variant  # the run
    texts: Sequence[Accepted]  # the recorded texts
    costs: Costs  # of its parts
    rows: int  # texts that are decoded together
    counted: dict[Schedule, Replayed]  # the calls of drafts with several paths, by schedule

    @property
    def run(self) -> Run:
        return self.variant.run

    @property
    def batches(self) -> int:
        """The number of full batches."""
        return len(self.texts) // self.rows

    @property
    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """The batches that decide, and those that are reported, [batches] bool."""
        even = np.arange(self.batches) % 2 == 0
        return even, ~even

    def alone(self) -> np.ndarray:
        """The seconds of the target alone, [batches]."""
        tokens = np.array([text.tokens for text in self.texts])
        longest = tokens[: self.batches * self.rows].reshape(-1, self.rows).max(axis=1)
        return self.costs.prefill_alone + longest * self.costs.step

    def replayed(self, plan: Plan) -> tuple[Replayed, Replayed]:
        """Returns the calls of each text by a plan, and of each batch."""
        if not plan.drafter.paths:
            found = replayed(self.run, plan, self.texts, SAMPLES)
        else:
            if plan.schedule not in self.counted:
                self.counted[plan.schedule] = decoded(self.run, plan, self.texts)
            found = self.counted[plan.schedule]
        return found, schedule_replay.grouped(found, len(self.texts), self.rows)

    def seconds(self, plan: Plan, by_batch: Replayed) -> np.ndarray | None:
        """Returns [batches], the seconds of a plan; None if a call's are not known."""
        found = predicted_speedup.seconds(plan, by_batch, self.costs, self.batches)
        if found is None or not plan.drafter.paths or plan.sampling.greedy:
            return found
        recorded = sum(text.tokens for text in self.texts)
        share = recorded / int(self.counted[plan.schedule].tokens.sum())
        return self.costs.prefill + share * (found - self.costs.prefill)

    def oracle(self, longest: int) -> np.ndarray:
        """Returns [batches], the seconds if every draft stopped just before its first rejection."""
        if self.run.plan.drafter.paths:
            *_, last = tuning.of_paths(longest)
            longest = last.schedule.gamma
        plan = dataclasses.replace(self.run.plan, schedule=Fixed(longest))
        costs = dict.fromkeys([None, *range(1, longest + 1)], self.costs)
        found = predicted_speedup.oracle_seconds(plan, self.replayed(plan)[1], costs, self.batches)
        assert found is not None, "costs of every width are known"
        return found


class Recommendation(NamedTuple):
    """The result of a search: the best of each variant, and the best of all."""

    results: list[tuple[Prepared, tuning.Result]]
    best: tuning.Result

    @property
    def pays(self) -> bool:
        """Whether any variant is faster than the target alone."""
        return _pays(self.best)

    def lines(self) -> Iterator[str]:
        """Yields the best settings and their predicted speed-up, as lines of text."""
        for one, result in self.results:
            if one.variant.name:
                yield f"\n{one.variant.name}"
            plan = one.run.plan
            yield f"{type(plan.drafter).__name__}, {plan.sampling}, {one.costs.source}"
            yield from tuning.lines(result)

    def write(self, folder: Path, files: Sequence[str]) -> str:
        """Writes the recommendation and a figure to a folder; returns the former as gin text."""
        about = f"# `specdec tune` of {', '.join(files)}: {self.best.in_words()}."
        text = f"{about}\n{settings_of(self.best)}"
        records.write(folder / "tuned.gin", text)
        try:
            from specdec.report import (
                surface,  # matplotlib, which nothing else here needs
            )
        except ModuleNotFoundError as error:
            print(f"tune: no figure, {error.name} is not installed", file=sys.stderr)
        else:
            surface.draw([result for _, result in self.results], folder / "surface.svg")
        return text


class Search(NamedTuple):
    """A search in a folder, which stores texts, costs and candidates."""

    folder: Path
    variants: Sequence[Variant]  # the runs
    tokens: int  # of the recorded texts
    longest: int  # the longest draft
    rows: int  # texts that are decoded together
    given: Costs | None  # the costs, None to measure them here

    @classmethod
    def of(
        cls,
        variants: Iterable[Variant],
        folder: Path,
        *,
        tokens: int = TOKENS,
        longest: int | None = None,
        rows: int = 1,
        given: Costs | None = None,
    ) -> Search:
        """Returns a search that may begin, or be resumed."""
        chosen = []
        for one in variants:
            _refuse(one.run)
            chosen.append(one)
            if chosen[0].run.plan.drafter.paths:
                raise UsageError(
                    f"DRAFTER drafts {chosen[0].run.plan.drafter.paths} paths, and texts are "
                    "recorded with one; begin with --variant=drafters/autoregressive.gin"
                )
            recorded_texts.refuse_another(
                one.name, recorded_texts.key(chosen[0].run), recorded_texts.key(one.run)
            )
        found = min(_longest(longest, one.run.plan) for one in chosen)
        folder.mkdir(parents=True, exist_ok=True)
        names = [one.name for one in chosen]
        about = {
            "--tokens": tokens,
            "--batch_size": rows,
            "--longest": found,
            "--variant": names if any(names) else None,
            "--costs": given and given.record(),
        }
        records.hold(folder / "tune.json", "--output_dir")
        begun = folder / "tried.jsonl"
        records.claim(
            folder,
            folder / "tune.json",
            records.as_json(about),
            begun=begun if begun.exists() else None,
            instead="--output_dir",
        )
        return cls(folder, chosen, tokens, found, rows, given)

    def run(self) -> Recommendation:
        """Returns the best; texts, costs and candidates are written immediately."""
        prepared: list[Prepared] = []
        for one in self.variants:
            texts = self._texts(prepared, one)
            costs = self.given or self._costs(len(prepared), one.run, texts)
            prepared.append(Prepared(one, texts, costs, self.rows, {}))
        tried = list(self._tried(prepared))
        results = []
        for one in prepared:
            name = one.variant.name
            own = [x for x in tried if x.variant == name]
            others = one.alone(), one.oracle(self.longest)
            results.append((one, tuning.Result.of(name, own, *others, *one.halves)))
        of_all = (result for _, result in results)
        return Recommendation(results, max(of_all, key=lambda one: one.speedup(one.best).value))

    def _texts(self, before: Sequence[Prepared], variant: Variant) -> Sequence[Accepted]:
        """Returns the recorded texts of a variant.

        A drafter that only copies needs no recording of its own, so it reuses the first variant's.
        One of several paths has none.
        """
        run, path = variant.run, self.folder / "passes.jsonl"
        if before:
            if run.plan.drafter.paths or not dict(opinions.recorded(run.plan.drafter)):
                return before[0].texts
            path = self.folder / f"passes_{len(before)}.jsonl"
        batches = recorded_texts.batches_of(run, "tune on")
        lines = Lines.of(path, recorded_texts.with_record(variant))
        texts = list(recorded_texts.record(variant, batches, self.tokens, lines))
        if len(texts) < (least := FEWEST * self.rows):
            raise UsageError(
                f"{path} has {len(texts)} texts; raise --limit or --tokens, {least} are needed"
            )
        return texts

    def _costs(self, number: int, run: Run, texts: Sequence[Accepted]) -> Costs:
        """Returns the costs of calls of every width, in the layout of the longest drafts."""
        path = self.folder / (f"costs_{number}.json" if number else "costs.json")
        if path.exists():
            return read(str(path), None)
        if run.plan.drafter.paths:
            own = self._costs_of_paths(run, texts)
        else:
            shorter = tuple(range(self.longest))
            every = dataclasses.replace(run.plan, schedule=Fixed(self.longest, shorter=shorter))
            own = timed_costs.of_run(run, texts, {None: every}, self.rows)[None]
        found = Costs.of_record(hosts.exchanged(own.record())[0])  # all hosts replay with the same
        records.write(path, records.as_json(found.record(), indent=1))
        return found

    def _costs_of_paths(self, run: Run, texts: Sequence[Accepted]) -> Costs:
        """Returns the costs of drafts of every length with several paths; lengths cannot vary."""
        lengths = range(1, self.longest + 1)
        plans = {x: dataclasses.replace(run.plan, schedule=Fixed(x)) for x in lengths}
        found = timed_costs.of_run(run, texts, plans, self.rows)
        calls = {key: value for one in found.values() for key, value in one.calls.items()}
        return found[self.longest]._replace(calls=calls)

    def _tried(self, prepared: Sequence[Prepared]) -> Iterator[Tried]:
        """Yields every candidate; earlier results are read."""
        lines = Lines(self.folder / "tried.jsonl", _TriedLine)
        known = {(one["variant"], one["schedule"]): one for one in lines}
        lines.replace(known.values())
        for one in prepared:
            first, found = list(self._candidates(one)), []
            with progress.bar("replaying", len(first), "schedule") as bar:
                for candidate in first:
                    found.append(_one(lines, known, one, candidate))
                    bar.update()
            yield from found
            for candidate in tuning.shorter(found, one.halves[0], self.longest):
                yield _one(lines, known, one, candidate)

    def _candidates(self, one: Prepared) -> Iterator[Candidate]:
        """Returns the schedules that are tried first."""
        if one.run.plan.drafter.paths:
            return tuning.of_paths(self.longest)
        varying = tuning.varying(one.run.plan, one.costs, self.longest, one.texts)
        return itertools.chain(tuning.fixed(self.longest), varying)


def _refuse(run: Run) -> None:
    """Raises UsageError for a run that cannot be tuned."""
    recorded_texts.refuse_other_than_plain(run, paths=True)
    plan = run.plan
    if not plan.exact:
        raise UsageError(f"VERIFIER is {plan.verifier}, which is not exact; give one that is")
    try:
        if not plan.drafter.paths:
            schedule_replay.check(plan, ())
    except ValueError as error:
        raise UsageError(str(error)) from error


def _longest(asked: int | None, plan: Plan) -> int:
    """Returns the longest draft that is tried."""
    room = schedule_replay.longest(plan)
    if asked is not None and asked > room:
        raise UsageError(
            f"--longest is {asked} but {schedule_replay.bound(plan)}; give a shorter one"
        )
    return min(asked or tuning.LONGEST, room)


class _TriedLine(TypedDict):
    variant: str
    kind: str
    setting: float | None
    schedule: str
    tokens_per_call: float
    seconds: list[float]


def _one(
    lines: Lines[_TriedLine],
    known: Mapping[tuple[str, str], _TriedLine],
    one: Prepared,
    candidate: Candidate,
) -> Tried:
    name, said = one.variant.name, repr(candidate.schedule)
    line = known.get((name, said))
    if line is None:
        plan = dataclasses.replace(one.run.plan, schedule=candidate.schedule)
        by_text, by_batch = one.replayed(plan)
        seconds = one.seconds(plan, by_batch)
        if seconds is None:
            raise UsageError(f"--costs lack the calls of {plan}; measure them with `specdec bench`")
        line = _TriedLine(
            variant=name,
            kind=candidate.kind,
            setting=candidate.setting,
            schedule=said,
            tokens_per_call=round(float(by_text.tokens.sum() / by_text.calls.sum()), 4),
            seconds=[float(f"{x:.6g}") for x in seconds],
        )
        lines.append(line)
    return Tried(name, candidate, line["tokens_per_call"], np.array(line["seconds"]))


def _pays(result: tuning.Result) -> bool:
    return result.speedup(result.best).value > 1


def settings_of(best: tuning.Result) -> str:
    """Returns the best settings as gin text, to be put after the run's own."""
    if not _pays(best):
        return "DRAFTER = None\n"
    items = [item for item in best.variant.split(";") if item]
    value, kind = best.best.candidate.schedule, best.best.candidate.kind
    file = f"schedules/{kind}.gin"
    fragment = (resources.folder("gin") / file).read_text(encoding="utf-8")
    found = [one for one in statements(fragment) if one.value.startswith("%")]
    macros = {one.field: one.value[1:] for one in found}  # some are required
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    name = f"schedules.{type(value).__name__}"
    lines = [
        "from __gin__ import dynamic_registration",
        "",
        "from specdec import schedules",
        "",
        *(f"include {item!r}" for item in items if item.endswith(".gin")),
        f"include {file!r}",
        "",
        *(item.replace("=", " = ", 1) for item in items if not item.endswith(".gin")),
        *(f"{macros.get(x, f'{name}.{x}')} = {value!r}" for x, value in fields.items()),
    ]
    return "\n".join(lines) + "\n"
