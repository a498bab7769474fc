"""The commands of a study's rows, each a `specdec` command with a file of results."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specdec.common import demo
from specdec.instrument.compile.by_shapes import Counted
from specdec.instrument.replicate.study import Row, Study, found
from specdec.plan import Plan

HERE = "here"  # the costs of this device, next to topologies
GROWN, SYNTHETIC, NOT_EXACT = "GROWN", "SYNTHETIC", "NOT EXACT"
START = 15.0  # seconds in which a command starts and compiles
# Seconds of a command, in passes of the target alone over all texts.
PASSES = {"acceptance": 1.0, "bench": 5.0, "forecast": 0.0, "eval": 1.5, "verify": 40.0}


@dataclasses.dataclass(frozen=True)
class Choices:
    """The choices of the user.

    Attributes:
      folder: where all files go.
      use: paths by the names of needs.
      topologies: to predict for.
      flags: further flags of every run, such as gin settings.
      tfds_data_dir: the folder of TFDS's data sets; None for TFDS's own.
      grown: the preset of the target that stands in for missing ones; None to run no such rows.
      synthetic: whether draft tokens are kept with the published acceptance rate.
      limit: texts of every measurement; None for the study's.
      certify: whether rows that sample get a certificate.
    """

    folder: Path
    use: Mapping[str, str] = dataclasses.field(default_factory=dict)
    topologies: Sequence[str] = ()
    flags: Sequence[str] = ()
    tfds_data_dir: str | None = None
    grown: str | None = None
    synthetic: bool = False
    limit: int | None = None
    certify: bool = False


@dataclasses.dataclass(frozen=True)
class Step:
    """A command of a row.

    Attributes:
      row: the row's name, '' for what several rows share.
      name: the step's name.
      argv: the command line behind `specdec`.
    """

    row: str
    name: str
    argv: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        """The row and the step."""
        return self.row, self.name


@dataclasses.dataclass(frozen=True)
class Work:
    """A row, as far as it can be run.

    Attributes:
      row: the row.
      missing: what it lacks, in words; nothing of this can be measured.
      marks: what its measured figures say with them, such as GROWN.
      shape: the flags of the run that is compiled; () for none.
      flags: the flags of its run; () if it cannot be run.
      grown: preset -> the folder of the model, grown from the embedded `target` or `draft`.
    """

    row: Row
    missing: Sequence[str] = ()
    marks: Sequence[str] = ()
    shape: Sequence[str] = ()
    flags: Sequence[str] = ()
    grown: Mapping[str, tuple[str, Path]] = dataclasses.field(default_factory=dict)


def work_of(study: Study, row: Row, choices: Choices) -> Work:
    """Returns a row with the flags of its run, or with what it lacks."""
    needs = {name: study.needs[name] for name in row.needs}
    flags = {
        name: found(need, choices.use.get(name), choices.tfds_data_dir)
        for name, need in needs.items()
    }
    missing = [f"{name}: {needs[name].what}" for name, flag in flags.items() if flag is None]
    shape = tuple(row.run if row.shape is None else row.shape)
    more = () if choices.tfds_data_dir is None else (f"--tfds_data_dir={choices.tfds_data_dir}",)
    if not missing:
        given = (flag for flag in flags.values() if flag)
        return Work(row, shape=shape, flags=(*row.run, *given, *more, *choices.flags))
    if row.grown is None or choices.grown is None:
        return Work(row, missing, shape=shape)
    folder, sizes = choices.folder / "grown", (choices.grown, row.grown.draft)
    models = {f"{role}-{size}": (role, folder / f"{role}-{size}") for role, size in _roles(sizes)}
    paths = (path for _, path in models.values())
    names = "CHECKPOINT_PATH", "DRAFT_CHECKPOINT_PATH"
    settings = (f"--gin.{name}={str(path)!r}" for name, path in zip(names, paths, strict=True))
    marks = (GROWN, SYNTHETIC, NOT_EXACT) if choices.synthetic else (GROWN,)
    run = (*row.grown.run, *settings, *choices.flags)
    return Work(row, missing, marks, shape, run, models)


def _roles(sizes: tuple[str, str]) -> Iterator[tuple[str, str]]:
    yield from zip(("target", "draft"), sizes, strict=True)


def growth(work: Work) -> Iterator[Step]:
    """Yields the commands that make a row's grown models."""
    for name, (role, path) in work.grown.items():
        preset = name.partition("-")[2]
        argv = "grow", f"--input={demo.path(role)}", f"--preset={preset}", f"--output={path}"
        yield Step("", f"grow {name}", argv)


def compilation(study: Study, work: Work, choices: Choices) -> Step | None:
    """Returns the command that compiles a row's run for all topologies, None without one."""
    if not work.shape or not choices.topologies:
        return None
    alpha = work.row.published.get("alpha", study.alpha)
    known = () if alpha is None else (f"--alpha={alpha:g}",)
    chips = (f"--topology={name}" for name in choices.topologies)
    path = f"--output_file={choices.folder / work.row.name}.compile.json"
    argv = "compile", *work.shape, *known, *chips, path
    return Step(work.row.name, "compile", argv)


def measurement(
    study: Study, work: Work, choices: Choices, plan: Plan, topologies: Sequence[str]
) -> Iterator[Step]:
    """Yields the commands that measure a row which can be run.

    Args:
      study: the study.
      work: the row.
      choices: the user's.
      plan: of the row's run.
      topologies: those for which the row was compiled.
    """
    row, stem = work.row, choices.folder / work.row.name
    limit = study.limit if choices.limit is None else choices.limit
    some_texts = () if limit is None else (f"--limit={limit}",)
    all_texts = some_texts if choices.limit is not None or study.tokens is None else ()
    cache = f"--compilation_cache_dir={choices.folder / 'cache'}"
    passes, lines = f"{stem}.alpha.jsonl", f"{stem}.jsonl"
    bench = "bench", *work.flags, *some_texts, cache, f"--output_file={lines}"
    if SYNTHETIC in work.marks:
        yield Step(row.name, "bench", (*bench, f"--synthetic_alpha={row.published['alpha']:g}"))
        return
    if "acceptance" in row.steps:
        tables = ("--tables",) if row.tables else ()
        size = () if study.tokens is None else (f"--tokens={study.tokens}",)
        argv = "acceptance", *work.flags, *all_texts, cache, *tables, *size
        argv = *argv, f"--output_file={passes}"
        yield Step(row.name, "acceptance", argv)
    if "bench" in row.steps:
        yield Step(row.name, "bench", bench)
    if "forecast" in row.steps:
        replay = "forecast", *work.flags, *all_texts, f"--passes={passes}"
        replay = *replay, f"--gammas={plan.longest_draft}"
        costs = {HERE: (f"--costs={lines}",)}
        compiled = f"--costs={stem}.compile.json"
        costs |= {name: (compiled, f"--topology={name}") for name in topologies}
        for name, flags in costs.items():
            path = forecast_path(choices.folder, row, name)
            yield Step(row.name, f"forecast {name}", (*replay, *flags, f"--output_file={path}"))
    if "eval" in row.steps:
        argv = "eval", *work.flags, *row.more, *some_texts, cache, "--compare"
        yield Step(row.name, "eval", (*argv, f"--output_dir={stem}.eval"))
    if choices.certify and plan.exact and not plan.sampling.greedy:
        argv = "verify", *work.flags, "--limit=2", cache, f"--output_file={stem}.verify.json"
        yield Step(row.name, "verify", argv)


def forecast_path(folder: Path, row: Row, costs: str) -> Path:
    """Returns the file of a prediction from recorded texts, by the device of its costs."""
    return folder / f"{row.name}.{costs.replace(':', '_')}.jsonl"


def minutes(
    steps: Sequence[Step], counted: Counted, tokens: int, texts: int, bandwidth: float
) -> float:
    """Returns roughly how long steps take on this machine: each target call reads its parameters.

    Args:
      steps: the steps.
      counted: the bytes that a call reads.
      tokens: of an output.
      texts: that are decoded.
      bandwidth: bytes/s that this machine reads from its memory.
    """
    step = counted.calls["target"].bytes / bandwidth
    passes = sum(PASSES.get(one.name.partition(" ")[0], 0.0) for one in steps)
    return (START * len(steps) + passes * texts * tokens * step) / 60
