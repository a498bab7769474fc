"""The commands of a study's rows, each a `specdec` command with a file of results."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specdec.common import demo
from specdec.plan import Plan
from specdec.predict.calls import Counted
from specdec.report.replicate import results
from specdec.report.replicate.results import GROWN, HERE, NOT_EXACT, SYNTHETIC, RowFigures, Step
from specdec.report.replicate.study import Study, StudyRow, found

START = 15.0  # seconds in which a command starts and compiles
# Seconds of a command, in passes of the target alone over all texts.
PASSES = {"acceptance": 1.0, "bench": 5.0, "forecast": 0.0, "eval": 1.5, "verify": 40.0}


@dataclasses.dataclass(frozen=True)
class Choices:
    """The choices of the user."""

    folder: Path  # where all files go
    use: Mapping[str, str] = dataclasses.field(default_factory=dict)  # paths by the names of needs
    topologies: Sequence[str] = ()  # to predict for
    flags: Sequence[str] = ()  # further flags of every run that is measured, such as gin settings
    tfds_data_dir: str | None = None  # the folder of TFDS's data sets; None for TFDS's own
    # the preset of the target that stands in for missing ones; None to run no such rows
    grown: str | None = None
    synthetic: bool = False  # whether draft tokens are kept with the published acceptance rate
    limit: int | None = None  # texts of every measurement; None for the study's
    certify: bool = False  # whether rows that sample get a certificate

    def grown_path(self, role: str, size: str) -> Path:
        """Returns the folder of a model of the embedded pair that has grown."""
        return self.folder / "grown" / f"{role}-{size}"


def found_of(study: Study, row: StudyRow, choices: Choices) -> RowFigures:
    """Returns a row with the flags of its run, or with what it lacks."""
    needs = {name: study.needs[name] for name in row.needs}
    flags = {
        name: found(need, choices.use.get(name), choices.tfds_data_dir)
        for name, need in needs.items()
    }
    one = RowFigures(row, [f"{x}: {needs[x].what}" for x, flag in flags.items() if flag is None])
    if not one.missing:
        one.flags = (*row.run, *filter(None, flags.values()), *choices.flags)
    elif choices.grown is None:
        pass
    elif row.grown is None:
        one.failures["run"] = "--grown has no stand-in for it"
    elif choices.synthetic and study.rate(row) is None:
        one.failures["run"] = "--synthetic needs a published alpha"
    else:
        one.marks = (GROWN, SYNTHETIC, NOT_EXACT) if choices.synthetic else (GROWN,)
        one.grown = {"target": choices.grown, "draft": row.grown.draft}
        target, draft = (str(choices.grown_path(*pair)) for pair in one.grown.items())
        settings = f"--gin.CHECKPOINT_PATH={target!r}", f"--gin.DRAFT_CHECKPOINT_PATH={draft!r}"
        one.flags = (*row.grown.run, *settings, *choices.flags)
    return one


def growth(one: RowFigures, choices: Choices) -> Iterator[Step]:
    """Yields the commands that make a row's grown models."""
    for role, size in one.grown.items():
        path = choices.grown_path(role, size)
        argv = "grow", f"--input={demo.path(role)}", f"--preset={size}", f"--output={path}"
        yield Step("", f"grow {path.name}", argv)


def compilation(row: StudyRow, choices: Choices, topology: str) -> Step:
    """Returns the command that compiles a row's program for a topology, which says its memory."""
    path = results.place_path(choices.folder, row, topology, "compile.json")
    argv = "compile", *row.compiled, f"--topology={topology}", "--whole_only"
    return Step(row.name, f"compile {topology}", (*argv, f"--output_file={path}"))


def measurement(
    study: Study, one: RowFigures, choices: Choices, plan: Plan, topologies: Sequence[str]
) -> Iterator[Step]:
    """Yields the commands that measure a row which can be run."""
    row, stem = one.row, choices.folder / one.row.name
    wanted = study.steps if row.steps is None else row.steps
    limit = study.limit if choices.limit is None else choices.limit
    texts = () if limit is None else (f"--limit={limit}",)
    # All recorded texts, unless the user limits them.
    recorded = () if study.tokens and choices.limit is None else texts
    cache = f"--compilation_cache_dir={choices.folder / 'cache'}"
    passes, lines = f"{stem}.alpha.jsonl", f"{stem}.jsonl"

    def step(name: str, *argv: str) -> Step:
        return Step(row.name, name, (name.partition(" ")[0], *one.flags, *argv))

    bench = step("bench", *texts, cache, f"--output_file={lines}")
    if SYNTHETIC in one.marks:
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
    """Returns roughly how long steps take here, if a target call takes as long as it reads."""
    step = counted.calls["target"].bytes / bandwidth
    passes = sum(PASSES.get(one.name.partition(" ")[0], 0.0) for one in steps)
    return (START * len(steps) + passes * texts * tokens * step) / 60
