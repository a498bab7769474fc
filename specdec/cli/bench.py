"""`specdec bench`: how fast speculation is on a run's texts, one text at a time."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from tqdm import tqdm

from specdec import benchmark, tasks
from specdec.cli import run as runs
from specdec.cli import settings
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.cli.timings import File, Record
from specdec.models.t5 import T5Target
from specdec.standins import SyntheticAcceptance
from specdec.types import PyTree

LIMIT = 32
FORECAST_TEXTS = 64  # at least; few texts say little about the acceptance of others
# What variants of one benchmark may differ in: not the target alone, nor the texts.
VARYING = {"drafter", "draft", "draft_checkpoint_path", "draft_vocabulary", "verifier", "schedule"}


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "bench",
        help="measure the speed-up",
        description="Times a target alone and with a drafter, by turns in one process, one text at "
        "a time whatever BATCH_SIZE and BUCKETS say, and the models' parts on their own. Takes the "
        f"gin files of `specdec decode`. Measures {LIMIT} texts unless there is a limit. A "
        "measurement that was interrupted goes on when the command is given again.",
        allow_abbrev=False,
    )
    runs.add_flags(parser)
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="of each text (default: %(default)s)"
    )
    parser.add_argument(
        "--variant",
        action="append",
        metavar="NAME=VALUE;...",
        help="gin settings, or gin files, of one of several drafters, draft lengths or verifiers, "
        "which take turns text by text, as in --variant=GAMMA=3 --variant=verifiers/coupled.gin; "
        "each has an output file of its own, FILE with the variant before its suffix; may repeat",
    )
    parser.add_argument(
        "--synthetic_alpha",
        type=float,
        metavar="A",
        help="NOT EXACT: accept each draft token with this probability, whatever the models think, "
        "and let no text end before its longest length; for the speed of a pair one has no "
        "weights of",
    )
    parser.add_argument(
        "--forecast_split",
        metavar="NAME",
        help=f"also decode {FORECAST_TEXTS} texts of this split, or as many as are timed if those "
        "are more, untimed, and say what their acceptance and the parts' costs promise",
    )
    parser.add_argument(
        "--output_file",
        metavar="FILE",
        help="write JSON lines, one object per generation or timing of a part, the figures to "
        "FILE.summary.json, and the settings in force to FILE.gin",
    )
    parser.add_argument(
        "--profile_dir",
        metavar="DIR",
        help="also write an xprof trace of one text's generations, after the measurement",
    )
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> None:
    if args.repeats < 1:
        raise UsageError(f"--repeats is {args.repeats}; give a positive number")
    variants = list(_variants(args))
    runs.refuse_unwritable(args.output_file)
    # All that can be wrong has been looked at; from here on it takes long.
    first = variants[0].run
    texts = _texts(variants[0].batches, first.split)
    others = {}
    if split := args.forecast_split:
        if split == first.split:
            raise UsageError(
                f"--forecast_split is {split!r}, the split that is timed; a forecast is made of "
                "other texts, name another split"
            )
        limit = max(first.limit or LIMIT, FORECAST_TEXTS)
        others = _texts(dataclasses.replace(first, split=split, limit=limit).batches(), split)
    files = [File(one.path, one.in_force) for one in variants]
    trees: dict[Any, Any] = {}
    measurements = [
        Measurement(one, file, texts, args.repeats, trees)
        for one, file in zip(variants, files, strict=True)
    ]
    for one in measurements:
        one.decode_elsewhere(others, args.forecast_split)
    total = sum(2 * (args.repeats * len(texts) - len(one.file.done)) for one in measurements)
    units = [one.by_text() for one in measurements]
    with tqdm(total=total, unit="generation", leave=False, disable=not sys.stderr.isatty()) as bar:
        for turn in itertools.zip_longest(*units):
            for one, records in zip(measurements, turn, strict=True):
                for record in records or ():
                    one.file.write(record)
                    bar.update(isinstance(record, benchmark.Generation))
    for one in measurements:
        if len(variants) > 1:
            print(f"\n{one.variant.name}")
        print(*benchmark.lines(one.conclude(args.forecast_split)), sep="\n")
    if args.profile_dir:
        measurements[0].profile(args.profile_dir)


class Variant:
    """A drafter, draft length and verifier for the run's texts."""

    def __init__(self, name: str, run: DecodeRun, in_force: str, path: str | None):
        self.name, self.run, self.path, self.in_force = name, run, path, in_force
        eos_id = runs.vocabulary_of(run).eos_id
        if isinstance(run.verifier, SyntheticAcceptance):
            eos_id = -1  # where its texts end means nothing
        self.subject = benchmark.Subject(
            target=run.target,
            drafter=runs.drafter_of(run),
            verifier=run.verifier,
            schedule=run.schedule,
            sampling=run.rule(eos_id),
            max_length=run.max_length,
            eos_id=eos_id,
            alone=run.alone,
        )
        self.batches = run.batches()
        try:
            shapes = self.trees(run.shape)
            self.lowered = benchmark.lower(self.subject, shapes, run.lengths["inputs"])
        except ValueError as error:
            raise UsageError(str(error)) from error

    def trees(self, tree_of: Callable[[T5Target, str], PyTree]) -> dict[str, PyTree]:
        """The parameters by role, `tree_of(model, checkpoint)`."""
        models = {"alone": (self.run.alone, self.run.checkpoint_path)} | self.run.models()
        return {role: tree_of(*model) for role, model in models.items()}


class Measurement:
    """A variant, ready to be measured: its checkpoints read, its programs compiled."""

    def __init__(
        self,
        variant: Variant,
        file: File,
        texts: dict[int, Any],
        repeats: int,
        trees: dict[Any, Any],
    ):
        self.variant, self.file, self._texts, self._repeats = variant, file, texts, repeats
        self._trees = variant.trees(functools.partial(variant.run.read, trees=trees))
        self._programs, self._compile_seconds = benchmark.compiled(variant.lowered)

    def by_text(self) -> Iterator[Iterator[Record]]:
        """What has not been measured yet."""
        return benchmark.measure_by_text(
            self._programs,
            self._trees,
            self._texts,
            seed=self.variant.run.seed,
            repeats=self._repeats,
            skip=self.file.done,
        )

    def decode_elsewhere(self, texts: Mapping[int, Any], split: str | None) -> None:
        """What the forecast is made of, if there is to be one."""
        if split is None:
            return
        done = self.file.elsewhere
        new = {text: inputs for text, inputs in texts.items() if (split, text) not in done}
        for record in benchmark.decode_elsewhere(
            self._programs, self._trees, new, seed=self.variant.run.seed, split=split
        ):
            self.file.write(record)

    def profile(self, path: str) -> None:
        seed = self.variant.run.seed
        benchmark.profile(self._programs, self._trees, self._texts, seed=seed, path=path)

    def conclude(self, forecast_split: str | None) -> benchmark.Summary:
        """The figures, of all that was measured now and before; written if there is a file."""
        subject, run = self.variant.subject, self.variant.run
        read = run.alone.read_by_decode(self._trees["alone"])
        summary = benchmark.summarize(
            self.file.records(forecast_split),
            gamma=subject.gamma,
            same_output=subject.same_output,
            step_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(read)),
        )
        about = self._described() | {"variant": self.variant.name}
        self.file.conclude(summary, about, self._compile_seconds)
        return summary

    def _described(self) -> dict[str, Any]:
        """What was measured, for the report."""
        run, subject = self.variant.run, self.variant.subject
        return {
            "gamma": subject.gamma,
            "drafter": type(run.drafter).__name__,
            "schedule": repr(run.schedule),
            "verifier": repr(run.verifier),
            "sampling": repr(subject.sampling),
            "dtype": {role: model.config.dtype for role, (model, _) in run.models().items()},
            "layouts": {"alone": run.alone.layout}
            | {role: model.layout for role, (model, _) in run.models().items()},
            "parameters": runs.parameter_counts(run),
            "costs": benchmark.costs(self._programs),
            "lengths": dict(run.lengths),
            "split": run.split,
            "seed": run.seed,
            "limit": run.limit,
            "repeats": self._repeats,
        }


def _variants(args: argparse.Namespace) -> Iterator[Variant]:
    """Each with its run; all of them of one target and the same texts."""
    first, synthetic = None, None
    if args.synthetic_alpha is not None:
        try:
            synthetic = SyntheticAcceptance(args.synthetic_alpha)
        except ValueError as error:
            raise UsageError(f"--synthetic_alpha: {error}") from error
    for name in args.variant or [""]:
        own = copy.copy(args)
        settings_of = [item for item in name.split(";") if item]
        own.gin_file = [*args.gin_file, *(x for x in settings_of if x.endswith(".gin"))]
        own.gin_bindings = [
            *args.gin_bindings,
            *(x for x in settings_of if not x.endswith(".gin")),
        ]
        run = _one_text_at_a_time(runs.build(own), warn=first is None)
        if synthetic:
            run = dataclasses.replace(run, verifier=synthetic)
        first = first or run
        for field in dataclasses.fields(run):
            if field.name not in VARYING:
                theirs, ours = getattr(first, field.name), getattr(run, field.name)
                if theirs != ours:
                    raise UsageError(
                        f"--variant={name} has {field.name} {ours!r}, and the first variant "
                        f"{theirs!r}; only drafters, draft lengths and verifiers may vary"
                    )
        in_force = settings.in_force()
        if synthetic:
            # No gin file reads this: who repeats the run by its settings alone is stopped.
            in_force += f"\nSYNTHETIC_ALPHA = {synthetic.alpha}  # --synthetic_alpha, NOT EXACT\n"
        yield Variant(name, run, in_force, _path_of(args.output_file, name))


def _texts(batches: Iterator[tasks.Batch], split: str) -> dict[int, Any]:
    """Example index -> inputs [1, S]."""
    texts = {int(batch.index[0]): batch.inputs for batch in batches}
    if not texts:
        raise UsageError(f"split {split!r} has no examples; nothing to measure")
    return texts


def _one_text_at_a_time(run: DecodeRun, warn: bool) -> DecodeRun:
    if warn and (run.batch_size != 1 or run.buckets):
        print("bench: one text at a time, all padded to one length", file=sys.stderr)
    if run.decoder_prefix:
        raise UsageError(
            f"decoder_prefix is {run.decoder_prefix!r}; leave it out, whole outputs are measured"
        )
    limit = LIMIT if run.limit is None else run.limit
    try:
        return dataclasses.replace(run, batch_size=1, buckets=(), limit=limit).laid_out()
    except ValueError as error:  # a mesh that divides rows
        raise UsageError(str(error)) from error


def _path_of(file: str | None, variant: str) -> str | None:
    """out.jsonl of variant GAMMA=3 is out_GAMMA=3.jsonl."""
    if file is None or not variant:
        return file
    folder, slash, name = file.rpartition("/")
    stem, dot, suffix = name.partition(".")
    plain = re.sub(r"[^\w=-]+", "-", variant)
    return f"{folder}{slash}{stem}_{plain}{dot}{suffix}"
