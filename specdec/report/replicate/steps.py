"""Makes and runs the `specdec` commands that measure a study's rows.

Each command runs in a separate process, which frees its memory at its end, and writes a file. A
study can be continued after an interruption. If the parent of a process was killed, the process
ends immediately, and the next one waits until then, so that no two write to the same file.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from specdec.common import child, demo, resources
from specdec.common.records import Lines
from specdec.plan import Plan
from specdec.predict.roofline import Counted
from specdec.report.replicate import results
from specdec.report.replicate.results import GROWN, HERE, NOT_EXACT, SYNTHETIC, RowFigures, Step
from specdec.report.replicate.study import Study, StudyRow, flags_for

PATIENCE = 5.0  # seconds until an interrupted command is killed


class Ended(TypedDict):
    """A line of the journal: a command that has ended."""

    row: str
    step: str  # the command's name
    code: int  # the exit code
    said: str  # the last line of the output of a command that failed, else ''
    seconds: float
    argv: list[str]


class Journal:
    """The JSON lines of a study, one for each command that has ended."""

    def __init__(self, lines: Lines[Ended]):
        self.lines = lines
        self.ended: dict[tuple[str, str], Ended] = {
            (line["row"], line["step"]): line for line in lines
        }

    def run(self, step: Step) -> bool:
        """Runs a command unless it has succeeded before; returns whether it succeeded."""
        if self.has(step):
            return True
        log = self.lines.path.with_name(f"{step.row or 'shared'}.{_plain(step.name)}.log")
        begun = time.monotonic()
        code = _run(tuple(map(_of_package, step.argv)), log)
        line = Ended(
            row=step.row,
            step=step.name,
            code=code,
            said="" if code == 0 else _last(log),
            seconds=round(time.monotonic() - begun, 1),
            argv=list(step.argv),
        )
        self.lines.append(line)
        self.ended[step[:2]] = line
        return code == 0

    def has(self, step: Step) -> bool:
        """Returns whether the command has succeeded before, with the same arguments."""
        ended = self.ended.get(step[:2])
        return ended is not None and ended["code"] == 0 and ended["argv"] == list(step.argv)

    def failure(self, step: Step) -> str:
        """Returns the last line of output of a command that failed; '' if it did not fail."""
        ended = self.ended.get(step[:2])
        return "" if ended is None else ended["said"]


def _of_package(arg: str) -> str:
    """Returns the argument, with the full path of a gin file that ships with specdec."""
    flag, _, name = arg.partition("=")
    path = resources.gin_file(name) if flag == "--gin_file" else None
    return arg if path is None else f"{flag}={path}"


def _plain(name: str) -> str:
    return name.replace(" ", "_").replace(":", "_")


def _last(log: Path) -> str:
    """Returns the last line of a log, without the prefix "specdec: "."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    line = next((line for line in reversed(lines) if line.strip()), "ended without a word")
    return line.split("\r")[-1].removeprefix("specdec: ").strip()


def _run(argv: tuple[str, ...], log: Path) -> int:
    """Runs `specdec` with these arguments, with output to a file, and returns the exit code."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=child.command, args=(argv, str(log.resolve())))
    process.start()
    try:
        process.join()
    finally:
        if process.is_alive():  # this process was interrupted
            process.terminate()
            process.join(PATIENCE)
            process.kill()  # a compiler ignores signals, and commands write only complete lines
            process.join()
    return 1 if process.exitcode is None else process.exitcode


START = 15.0  # seconds for a command to start and compile
# The time of a command / the time of the target alone for all texts.
PASSES = {"acceptance": 1.0, "bench": 5.0, "forecast": 0.0, "eval": 1.5, "verify": 40.0}


@dataclasses.dataclass(frozen=True)
class Choices:
    """The user's choices for a replication, from flags of `specdec replicate`."""

    folder: Path  # the folder for all files
    use: Mapping[str, str] = dataclasses.field(default_factory=dict)  # name of a need -> path
    topologies: Sequence[str] = ()  # TPU topologies to predict for
    flags: Sequence[str] = ()  # further flags of every run that is measured, such as gin settings
    tfds_data_dir: str | None = None  # the folder of TFDS's data sets; None for TFDS's default
    # the preset to which the demo target is grown in place of missing ones; None to skip such rows
    grown: str | None = None
    synthetic: bool = False  # whether draft tokens are accepted at the published rate
    limit: int | None = None  # texts of every measurement; None for the study's limit
    certify: bool = False  # whether rows that sample get a certificate

    def grown_path(self, role: str, size: str) -> Path:
        """Returns the folder of the demo model of a role, grown to the preset `size`."""
        return self.folder / "grown" / f"{role}-{size}"


def figures_of(study: Study, row: StudyRow, choices: Choices) -> RowFigures:
    """Returns a row with the flags of its run, or with the checkpoints and data that it lacks."""
    needs = {name: study.needs[name] for name in row.needs}
    flags = {
        name: flags_for(need, choices.use.get(name), choices.tfds_data_dir)
        for name, need in needs.items()
    }
    missing = [f"{x}: {needs[x].what}" for x, flag in flags.items() if flag is None]
    figures = RowFigures(row, missing)
    if not figures.missing:
        figures.flags = (*row.run, *filter(None, flags.values()), *choices.flags)
    elif choices.grown is None:
        pass
    elif row.grown is None:
        figures.failures["run"] = "--grown has no stand-in for this row"
    elif choices.synthetic and study.rate(row) is None:
        figures.failures["run"] = "--synthetic needs a published alpha"
    else:
        figures.marks = (GROWN, SYNTHETIC, NOT_EXACT) if choices.synthetic else (GROWN,)
        figures.grown = {"target": choices.grown, "draft": row.grown.draft}
        target, draft = (str(choices.grown_path(*pair)) for pair in figures.grown.items())
        settings = f"--gin.CHECKPOINT_PATH={target!r}", f"--gin.DRAFT_CHECKPOINT_PATH={draft!r}"
        figures.flags = (*row.grown.run, *settings, *choices.flags)
    return figures


def growth(figures: RowFigures, choices: Choices) -> Iterator[Step]:
    """Yields the `specdec grow` commands that make a row's stand-in models."""
    for role, size in figures.grown.items():
        path = choices.grown_path(role, size)
        argv = "grow", f"--input={demo.path(role)}", f"--preset={size}", f"--output={path}"
        yield Step("", f"grow {path.name}", argv)


def compilation(row: StudyRow, choices: Choices, topology: str) -> Step:
    """Returns the `specdec compile` command that finds a row's memory on a topology."""
    path = results.place_path(choices.folder, row, topology, "compile.json")
    argv = "compile", *row.compiled, f"--topology={topology}", "--whole_only"
    return Step(row.name, f"compile {topology}", (*argv, f"--output_file={path}"))


def measurement(
    study: Study, figures: RowFigures, choices: Choices, plan: Plan, topologies: Sequence[str]
) -> Iterator[Step]:
    """Yields the commands that measure a row; its run must have flags."""
    row, stem = figures.row, choices.folder / figures.row.name
    wanted = study.steps if row.steps is None else row.steps
    limit = study.limit if choices.limit is None else choices.limit
    texts = () if limit is None else (f"--limit={limit}",)
    # All recorded texts, unless the user limits them.
    recorded = () if study.tokens and choices.limit is None else texts
    cache = f"--compilation_cache_dir={choices.folder / 'cache'}"
    passes, lines = f"{stem}.alpha.jsonl", f"{stem}.jsonl"

    def step(name: str, *argv: str) -> Step:
        return Step(row.name, name, (name.partition(" ")[0], *figures.flags, *argv))

    bench = step("bench", *texts, cache, f"--output_file={lines}")
    if SYNTHETIC in figures.marks:
        drawn = f"--synthetic_alpha={study.rate(row):g}"
        yield bench._replace(argv=(*bench.argv, drawn))
        return
    if "acceptance" in wanted:
        tables = ("--tables",) if row.tables else ()
        size = (f"--tokens={study.tokens}",) if study.tokens else ()
        yield step("acceptance", *recorded, cache, *tables, *size, f"--output_file={passes}")
    if "bench" in wanted:
        yield bench
    if "forecast" in wanted:
        for name in (HERE, *topologies):
            written = results.place_path(choices.folder, row, name, "jsonl")
            costs = lines if name == HERE else written.with_suffix(".costs.json")
            read = f"--passes={passes}", f"--gammas={plan.longest_draft}", f"--costs={costs}"
            yield step(f"forecast {name}", *recorded, *read, f"--output_file={written}")
    if "eval" in wanted:
        yield step("eval", *row.more, *texts, cache, "--compare", f"--output_dir={stem}.eval")
    if choices.certify and plan.exact and not plan.sampling.greedy:
        yield step("verify", *texts, cache, f"--output_file={stem}.verify.json")


def minutes(
    steps: Sequence[Step], counted: Counted, tokens: int, texts: int, bandwidth: float
) -> float:
    """Estimates the minutes of steps, as if a target call took the time to read its bytes."""
    step = counted.calls["target"].bytes / bandwidth
    passes = sum(PASSES.get(step.name.partition(" ")[0], 0.0) for step in steps)
    return (START * len(steps) + passes * texts * tokens * step) / 60
