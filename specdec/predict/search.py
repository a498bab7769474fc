"""`specdec tune`: searches for the fastest drafter, draft length and stopping rule."""

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
from specdec.common.values import UsageError, fields_of, one_line
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
SAMPLES = 4  # replays with other random numbers, if a drafter samples
FEWEST = 20  # batches of recorded texts


class Prepared(NamedTuple):
    """A variant with its recorded texts and costs."""

    variant: Variant
    texts: Sequence[Accepted]
    costs: Costs  # of model calls of every width
    rows: int  # the batch size
    counted: dict[Schedule, Replayed]  # decoded calls by schedule, for drafts with several paths

    @property
    def run(self) -> Run:
        return self.variant.run

    @property
    def batches(self) -> int:
        """The number of full batches."""
        return len(self.texts) // self.rows

    @property
    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """The batches by which settings are chosen, and the rest to report, [batches] bool each."""
        even = np.arange(self.batches) % 2 == 0
        return even, ~even

    def alone(self) -> np.ndarray:
        """Returns the predicted seconds of the target alone, [batches]."""
        tokens = np.array([text.tokens for text in self.texts])
        longest = tokens[: self.batches * self.rows].reshape(-1, self.rows).max(axis=1)
        return self.costs.prefill_alone + longest * self.costs.step

    def replayed(self, plan: Plan) -> tuple[Replayed, Replayed]:
        """Returns the target calls with a plan, of each text and of each batch."""
        if not plan.drafter.paths:
            calls = replayed(self.run, plan, self.texts, SAMPLES)
        else:
            if plan.schedule not in self.counted:
                self.counted[plan.schedule] = decoded(self.run, plan, self.texts)
            calls = self.counted[plan.schedule]
        return calls, schedule_replay.grouped(calls, len(self.texts), self.rows)

    def seconds(self, plan: Plan, by_batch: Replayed) -> np.ndarray | None:
        """Returns [batches], the predicted seconds; None if the cost of a call is not known."""
        seconds = predicted_speedup.seconds(plan, by_batch, self.costs, self.batches)
        if seconds is None or not plan.drafter.paths or plan.sampling.greedy:
            return seconds
        recorded = sum(text.tokens for text in self.texts)
        share = recorded / int(self.counted[plan.schedule].tokens.sum())
        return self.costs.prefill + share * (seconds - self.costs.prefill)

    def oracle(self, longest: int) -> np.ndarray:
        """Returns [batches], the seconds if every draft stopped before its first rejected token."""
        if self.run.plan.drafter.paths:
            *_, last = tuning.of_paths(longest)
            longest = last.schedule.gamma
        plan = dataclasses.replace(self.run.plan, schedule=Fixed(longest))
        costs = dict.fromkeys([None, *range(1, longest + 1)], self.costs)
        _, by_batch = self.replayed(plan)
        seconds = predicted_speedup.oracle_seconds(plan, by_batch, costs, self.batches)
        assert seconds is not None, "costs of every width are known"
        return seconds


NEXT_STEPS = (
    "next     decode without --draft on this machine; or give a smaller drafter, which `specdec "
    "distill` makes; or measure where the target is larger or memory is slower"
)


class Recommendation(NamedTuple):
    """The fastest settings that `specdec tune` found, of each `--variant` and of all of them."""

    results: list[tuple[Prepared, tuning.Result]]  # of each variant
    best: tuning.Result  # of the fastest variant

    @property
    def pays(self) -> bool:
        """Whether the best settings are faster than the target alone."""
        return _pays(self.best)

    def lines(self) -> Iterator[str]:
        """Yields the printed lines: for each variant, its best settings and their speed-up."""
        for prepared, result in self.results:
            if prepared.variant.name:
                yield f"\n{prepared.variant.name}"
            plan = prepared.run.plan
            yield f"{type(plan.drafter).__name__}, {plan.sampling}, {prepared.costs.source}"
            yield from tuning.lines(result)
        if not self.pays:
            yield NEXT_STEPS

    def write(self, folder: Path, files: Sequence[str]) -> str:
        """Writes tuned.gin and surface.svg to a folder, and returns the text of tuned.gin."""
        about = f"# `specdec tune` of {', '.join(files)}: {self.best.in_words()}."
        text = f"{about}\n{settings_of(self.best)}"
        records.write(folder / "tuned.gin", text)
        try:
            from specdec.report import surface  # needs matplotlib, which may be missing
        except ModuleNotFoundError as error:
            print(f"tune: no figure, as {error.name} is not installed", file=sys.stderr)
        else:
            surface.draw([result for _, result in self.results], folder / "surface.svg")
        return text


class Search(NamedTuple):
    """A search whose recorded texts, costs and tried schedules are stored in a folder."""

    folder: Path
    variants: Sequence[Variant]
    tokens: int  # the number of tokens of the recorded texts
    longest: int  # the longest draft
    rows: int  # the batch size
    costs: Costs | None  # None to measure the costs on this machine

    @classmethod
    def of(
        cls,
        variants: Iterable[Variant],
        folder: Path,
        *,
        tokens: int = TOKENS,
        longest: int | None = None,
        rows: int = 1,
        costs: Costs | None = None,
    ) -> Search:
        """Returns a search that `run` begins or resumes; raises UsageError for unfit variants."""
        accepted: list[Variant] = []
        for variant in variants:
            _refuse(variant.run)
            accepted.append(variant)
            first = accepted[0].run
            if paths := first.plan.drafter.paths:
                raise UsageError(
                    f"DRAFTER drafts {paths} paths, and texts are recorded with one; put "
                    "--variant=drafters/autoregressive.gin first"
                )
            keys = recorded_texts.key(first), recorded_texts.key(variant.run)
            recorded_texts.refuse_another(variant.name, *keys)
        room = min(_longest(longest, variant.run.plan) for variant in accepted)
        folder.mkdir(parents=True, exist_ok=True)
        names = [variant.name for variant in accepted]
        about = {
            "--tokens": tokens,
            "--batch_size": rows,
            "--longest": room,
            "--variant": names if any(names) else None,
            "--costs": costs and costs.record(),
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
        return cls(folder, accepted, tokens, room, rows, costs)

    def run(self) -> Recommendation:
        """Returns the best settings; all intermediate results are stored as soon as they exist."""
        prepared: list[Prepared] = []
        for variant in self.variants:
            texts = self._texts(prepared, variant)
            costs = self.costs or self._costs(len(prepared), variant.run, texts)
            prepared.append(Prepared(variant, texts, costs, self.rows, {}))
        tried = list(self._tried(prepared))
        results = []
        for ready in prepared:
            name = ready.variant.name
            of_variant = [x for x in tried if x.variant == name]
            bounds = ready.alone(), ready.oracle(self.longest)
            results.append((ready, tuning.Result.of(name, of_variant, *bounds, *ready.halves)))
        of_all = (result for _, result in results)
        return Recommendation(results, max(of_all, key=lambda x: x.speedup(x.best).value))

    def _texts(self, before: Sequence[Prepared], variant: Variant) -> Sequence[Accepted]:
        """Returns recorded texts: the first variant's, if no proposals must be recorded."""
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
                f"{path} has {len(texts)} texts and {least} are needed; raise --limit or --tokens"
            )
        return texts

    def _costs(self, number: int, run: Run, texts: Sequence[Accepted]) -> Costs:
        """Returns the costs of calls of every width, stored ones if the folder has them."""
        path = self.folder / (f"costs_{number}.json" if number else "costs.json")
        if path.exists():
            return read(str(path), None)
        if run.plan.drafter.paths:
            of_host = self._costs_of_paths(run, texts)
        else:
            shorter = tuple(range(self.longest))
            every = dataclasses.replace(run.plan, schedule=Fixed(self.longest, shorter=shorter))
            of_host = timed_costs.of_run(run, texts, {None: every}, self.rows)[None]
        # All hosts replay with the costs of the first one.
        costs = Costs.of_record(hosts.exchanged(of_host.record())[0])
        records.write(path, records.as_json(costs.record(), indent=1))
        return costs

    def _costs_of_paths(self, run: Run, texts: Sequence[Accepted]) -> Costs:
        lengths = range(1, self.longest + 1)
        plans = {x: dataclasses.replace(run.plan, schedule=Fixed(x)) for x in lengths}
        by_length = timed_costs.of_run(run, texts, plans, self.rows)
        calls = {key: x for costs in by_length.values() for key, x in costs.calls.items()}
        return by_length[self.longest]._replace(calls=calls)

    def _tried(self, prepared: Sequence[Prepared]) -> Iterator[Tried]:
        """Yields every candidate with its predicted seconds; stored ones are not replayed again."""
        lines = Lines(self.folder / "tried.jsonl", _TriedLine)
        known = {(line["variant"], line["schedule"]): line for line in lines}
        lines.replace(known.values())
        for ready in prepared:
            first, tried = list(self._candidates(ready)), []
            with progress.bar("replaying", len(first), "schedule") as bar:
                for candidate in first:
                    tried.append(_try(lines, known, ready, candidate))
                    bar.update()
            yield from tried
            for candidate in tuning.shorter(tried, ready.halves[0], self.longest):
                yield _try(lines, known, ready, candidate)

    def _candidates(self, prepared: Prepared) -> Iterator[Candidate]:
        """Returns the schedules to try first, before shorter drafts of the best ones."""
        plan = prepared.run.plan
        if plan.drafter.paths:
            return tuning.of_paths(self.longest)
        varying = tuning.varying(plan, prepared.costs, self.longest, prepared.texts)
        return itertools.chain(tuning.fixed(self.longest), varying)


def _refuse(run: Run) -> None:
    """Raises UsageError if recorded texts do not determine the run's target calls."""
    recorded_texts.refuse_other_than_plain(run, paths=True)
    plan = run.plan
    if not plan.exact:
        raise UsageError(f"VERIFIER is {plan.verifier}, which is not exact; give an exact one")
    if not plan.drafter.paths:
        with one_line():
            schedule_replay.check(plan, ())


def _longest(asked: int | None, plan: Plan) -> int:
    """Returns the longest draft to try: the length asked for, or else at most `LONGEST`."""
    room = schedule_replay.longest(plan)
    if asked is not None and asked > room:
        raise UsageError(
            f"--longest is {asked} but {schedule_replay.bound(plan)}; give a shorter length"
        )
    return min(asked or tuning.LONGEST, room)


class _TriedLine(TypedDict):
    variant: str
    kind: str
    setting: float | None
    schedule: str
    tokens_per_call: float
    seconds: list[float]


def _try(
    lines: Lines[_TriedLine],
    known: Mapping[tuple[str, str], _TriedLine],
    prepared: Prepared,
    candidate: Candidate,
) -> Tried:
    name, schedule = prepared.variant.name, repr(candidate.schedule)
    line = known.get((name, schedule))
    if line is None:
        plan = dataclasses.replace(prepared.run.plan, schedule=candidate.schedule)
        by_text, by_batch = prepared.replayed(plan)
        seconds = prepared.seconds(plan, by_batch)
        if seconds is None:
            raise UsageError(f"--costs lack a call of {plan}; measure costs with `specdec bench`")
        line = _TriedLine(
            variant=name,
            kind=candidate.kind,
            setting=candidate.setting,
            schedule=schedule,
            tokens_per_call=round(float(by_text.tokens.sum() / by_text.calls.sum()), 4),
            seconds=[float(f"{x:.6g}") for x in seconds],
        )
        lines.append(line)
    return Tried(name, candidate, line["tokens_per_call"], np.array(line["seconds"]))


def _pays(result: tuning.Result) -> bool:
    return result.speedup(result.best).value > 1


def settings_of(best: tuning.Result) -> str:
    """Returns the best settings as gin text, to be appended to the run's settings."""
    if not _pays(best):
        return "DRAFTER = None\n"
    items = [item for item in best.variant.split(";") if item]
    schedule, kind = best.best.candidate.schedule, best.best.candidate.kind
    file = f"schedules/{kind}.gin"
    fragment = statements((resources.folder("gin") / file).read_text(encoding="utf-8"))
    # The fragment's macros are set, because some of them have no default.
    macros = {x.field: x.value[1:] for x in fragment if x.value.startswith("%")}
    name, fields = f"schedules.{type(schedule).__name__}", fields_of(schedule)
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
