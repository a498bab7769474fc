"""`specdec bench`: how fast speculation is on a run's texts, one text at a time."""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from specdec import benchmark, records
from specdec.benchmark import File, Measurement, Workload
from specdec.cli import machine, output, shorthands
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.common.environment import hardware
from specdec.engine import parameter_counts
from specdec.models import device as devices
from specdec.models.products import described
from specdec.types import PyTree
from specdec.values import PositiveInt, check
from specdec.verifiers import SyntheticAcceptance

LIMIT = 32
FORECAST_TEXTS = 64  # at least; few texts say little about the acceptance of others


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


class Variant(NamedTuple):
    """A drafter, draft length and verifier for the texts of a benchmark."""

    name: str
    run: DecodeRun
    workload: Workload
    path: str | None  # of its output file
    settings: str  # in force

    def measurement(
        self, texts: Mapping[int, Any], file: File, repeats: int, read: dict[Any, PyTree]
    ) -> Measurement:
        """Reads the checkpoints, but for what has been `read` for others, and compiles."""
        trees = trees_of(self.run, functools.partial(self.run.placement.read, trees=read))
        seed = self.run.data.seed
        return Measurement(self.workload, trees, texts, file, seed=seed, repeats=repeats)

    def about(self, repeats: int) -> dict[str, Any]:
        """What was measured, for the report."""
        data, models = self.run.data, self.run.plan.models()
        device = devices.this()
        return {
            "dtype": {role: model.dtype for role, model in models.items()},
            "layouts": _layouts(self.run),
            "products": device and device.milliseconds,
            "parameters": parameter_counts(models),
            "lengths": self.run.lengths,
            "split": data.split,
            "seed": data.seed,
            "limit": data.limit,
            "repeats": repeats,
            "variant": self.name,
        }


def trees_of(run: DecodeRun, tree_of: Callable[[Any, str], PyTree]) -> dict[str, PyTree]:
    """The parameters by role, as `benchmark.Workload` takes them."""
    return {"alone": tree_of(run.alone.target, run.checkpoint_path), **run.trees(tree_of)}


def _command(args: argparse.Namespace) -> None:
    check("--repeats", args.repeats, PositiveInt, UsageError)
    output.check(args)
    machine.refuse_unwritable_folder("--profile_dir", args.profile_dir)
    variants = list(_variants(args))
    # All that can be wrong has been looked at; from here on it takes long.
    first = variants[0].run
    texts, others = texts_of(first), _texts_elsewhere(first, args.forecast_split)
    files = [File(one.path, one.settings) for one in _held(variants, args.contexts)]
    read: dict[Any, PyTree] = {}
    measurements = [
        one.measurement(texts, file, args.repeats, read)
        for one, file in zip(variants, files, strict=True)
    ]
    if args.forecast_split:
        for one in measurements:
            one.decode_elsewhere(others, args.forecast_split)
    _take_turns(measurements)
    for variant, one in zip(variants, measurements, strict=True):
        if len(variants) > 1:
            print(f"\n{variant.name}")
        summary = one.conclude(variant.about(args.repeats), args.forecast_split)
        print(*benchmark.lines(summary), sep="\n")
        for role, layout in _layouts(variant.run).items():
            print(f"{'kernels, ' + role:20}  {layout}")
    if args.profile_dir:
        measurements[0].profile(args.profile_dir)


def _held(variants: Sequence[Variant], contexts: contextlib.ExitStack) -> Sequence[Variant]:
    """The variants, each with its output file locked until the contexts end."""
    for one in variants:
        if not one.path:
            continue
        path, beside = Path(one.path), Path(f"{one.path}.gin")
        if path.exists():  # nothing is left beside another measurement
            records.claim(path, beside, one.settings, begun=path, instead="--output_file")
        lock = path.with_name(f".{path.name}.lock")
        contexts.enter_context(records.locked(path, lock, "--output_file", f"{path.name}.*"))
    return variants


def _take_turns(measurements: Sequence[Measurement]) -> None:
    """Measures, text by text, under a bar if there is a terminal."""
    total = sum(one.left for one in measurements)
    hidden = not sys.stderr.isatty()
    with tqdm(total=total, unit="generation", leave=False, disable=hidden) as bar:
        for turn in itertools.zip_longest(*(one.by_text() for one in measurements), fillvalue=()):
            for record in itertools.chain.from_iterable(turn):
                bar.update(isinstance(record, benchmark.Generation))


def _variants(args: argparse.Namespace) -> Iterator[Variant]:
    """Each with its run; all of them of one target and the same texts."""
    synthetic, common = _synthetic(args.synthetic_alpha), None
    refuse_twice(args.variant or (), args.output_file)
    for name in args.variant or [""]:
        change = functools.partial(_one_text_at_a_time, warn=common is None)
        run, _ = runs.opened(with_variant(args, name), change=change)
        runs.require_baseline(run)
        common = common or _common(run)
        _refuse_another_baseline(name, common, _common(run))
        in_force = runs.in_force(run, "bench") + _machine(run)
        if synthetic:
            plan = dataclasses.replace(run.plan, verifier=synthetic, stop_ids=())
            run = dataclasses.replace(run, plan=plan)
            # No gin file reads this: who repeats the run by its settings alone is stopped.
            in_force += f"\nSYNTHETIC_ALPHA = {synthetic.alpha}  # --synthetic_alpha, NOT EXACT\n"
        _refuse_timed_split(run, args.forecast_split)
        yield Variant(name, run, _workload(run), _path_of(args.output_file, name), in_force)


def _machine(run: DecodeRun) -> str:
    """What times depend on, as comments that `records` compares."""
    found = hardware() | {"layouts": _layouts(run)}
    return "".join(f"{records.MACHINE}{name} = {value}\n" for name, value in found.items())


def _layouts(run: DecodeRun) -> dict[str, str]:
    """How kernels are kept and multiplied with here, by role."""
    models = {"alone": run.alone.target, **run.plan.models()}
    return {role: described(model.layout, model.orders) for role, model in models.items()}


def refuse_twice(variants: Sequence[str], file: str | None = None) -> None:
    """Raises UsageError for a variant that is given twice, and for two that would be written to one
    file."""
    paths: dict[str | None, str] = {}
    for number, name in enumerate(variants):
        if name in variants[:number]:
            raise UsageError(f"--variant={name} is given twice; give each once")
        other = paths.setdefault(_path_of(file, name), name)
        if file and other != name:
            raise UsageError(
                f"--variant={other} and --variant={name} would both be written to "
                f"{_path_of(file, name)}; leave one out, or put it in a gin file of another name"
            )


def _synthetic(alpha: float | None) -> SyntheticAcceptance | None:
    try:
        return None if alpha is None else SyntheticAcceptance(alpha)
    except ValueError as error:
        raise UsageError(f"--synthetic_alpha: {error}") from error


def with_variant(args: argparse.Namespace, variant: str) -> argparse.Namespace:
    """The flags, and the gin files and settings of a variant behind them."""
    own, items = copy.copy(args), [item for item in variant.split(";") if item]
    for kind in shorthands.FRAGMENTS:
        chosen = getattr(args, kind, None)
        if chosen and any(item.startswith(f"{kind}s/") for item in items):
            raise UsageError(
                f"--variant={variant} chooses a {kind}, and --{kind}={chosen} overrides it; leave "
                f"--{kind} out"
            )
    own.gin_file = [*args.gin_file, *(item for item in items if item.endswith(".gin"))]
    own.gin_bindings = [*args.gin_bindings, *(x for x in items if not x.endswith(".gin"))]
    return own


def _one_text_at_a_time(run: DecodeRun, warn: bool) -> DecodeRun:
    data = run.data
    if warn and (data.batch_size != 1 or data.buckets):
        print("bench: one text at a time, all padded to one length", file=sys.stderr)
    if data.decoder_prefix:
        raise UsageError(
            f"decoder_prefix is {data.decoder_prefix!r}; leave it out, whole outputs are measured"
        )
    limit = LIMIT if data.limit is None else data.limit
    data = dataclasses.replace(data, batch_size=1, buckets=(), limit=limit)
    return dataclasses.replace(run, data=data)


def _common(run: DecodeRun) -> dict[str, Any]:
    """Returns what variants of one benchmark have in common: the target alone, the texts and the
    devices, by the names of settings."""
    alone, data, placement = run.alone, run.data, run.placement
    rules = dataclasses.replace(placement.partitioner, draft_logical_axis_rules=())
    placement = dataclasses.replace(placement, partitioner=rules)
    data = dataclasses.replace(data, draft_vocabulary=None)
    of_texts = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    return {
        "target": alone.target,
        "sampling": alone.sampling,
        "max_length": alone.max_length,
        **of_texts,
        "checkpoint_path": run.checkpoint_path,
        "placement": placement,
    }


def _refuse_another_baseline(
    variant: str, common: Mapping[str, Any], ours: Mapping[str, Any]
) -> None:
    for setting, value in ours.items():
        for name, own, first in _differing(setting, value, common[setting]):
            raise UsageError(
                f"--variant={variant} has {name} {own!r}, and the first variant {first!r}; only "
                "drafters, draft lengths and verifiers may vary"
            )


def _differing(name: str, ours: Any, others: Any) -> Iterator[tuple[str, Any, Any]]:
    """The name and both values where two values differ; of a dataclass, those of its fields."""
    if ours == others:
        return
    inside = dataclasses.is_dataclass(ours) and type(ours) is type(others)
    for field in dataclasses.fields(ours) if inside else ():
        values = (getattr(one, field.name) for one in (ours, others))
        yield from _differing(f"{name}.{field.name}", *values)
    yield name, ours, others


def _workload(run: DecodeRun) -> Workload:
    """What is timed, traced, so that what cannot be decoded shows."""
    workload = Workload.of(run.plan, run.alone, run.placement.mesh)
    try:
        workload.check(trees_of(run, run.placement.shape), run.data.lengths["inputs"])
    except ValueError as error:
        raise UsageError(str(error)) from error
    return workload


def texts_of(run: DecodeRun) -> dict[int, Any]:
    """Example index -> inputs [1, S]."""
    texts = {int(batch.index[0]): batch.inputs for batch in run.batches()}
    if not texts:
        raise UsageError(f"split {run.data.split!r} has no examples; nothing to measure")
    return texts


def _refuse_timed_split(run: DecodeRun, split: str | None) -> None:
    if split == run.data.split:
        raise UsageError(
            f"--forecast_split is {split!r}, the split that is timed; a forecast is made of "
            "other texts, name another split"
        )


def _texts_elsewhere(run: DecodeRun, split: str | None) -> dict[int, Any]:
    """Those that a forecast is made of."""
    if split is None:
        return {}
    limit = max(run.data.limit or LIMIT, FORECAST_TEXTS)
    data = dataclasses.replace(run.data, split=split, limit=limit)
    return texts_of(dataclasses.replace(run, data=data))


def _path_of(file: str | None, variant: str) -> str | None:
    """out.jsonl of variant GAMMA=3 is out_GAMMA=3.jsonl."""
    if file is None or not variant:
        return file
    folder, slash, name = file.rpartition("/")
    stem, dot, suffix = name.partition(".")
    plain = re.sub(r"[^\w=-]+", "-", variant)
    return f"{folder}{slash}{stem}_{plain}{dot}{suffix}"
