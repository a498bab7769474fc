"""Opens the runs that are measured: the run of a command's flags, or its variants."""

from __future__ import annotations

import argparse
import copy
import re
import sys
from collections.abc import Callable, Iterator, Sequence

from specdec.cli import run as runs
from specdec.cli import shorthands
from specdec.cli.run import DecodeRun
from specdec.common import progress
from specdec.common.values import PositiveInt, UsageError, check
from specdec.predict import stored_costs
from specdec.predict.costs import Costs
from specdec.texts.measured_run import Run, Variant


def variant(
    args: argparse.Namespace,
    name: str = "",
    *,
    lines: str | None = None,
    unmarked: bool = False,
    drafts: bool = False,
    change: Callable[[DecodeRun], DecodeRun] = lambda run: run,
) -> Variant:
    """Opens the run of the flags, with the gin files and settings of one variant."""
    run = runs.opened(_with(args, name), unmarked, change)
    (runs.require_drafter if drafts else runs.require_baseline)(run)
    return ready(run, name, lines)


def ready(run: Run, name: str = "", lines: str | None = None) -> Variant:
    """Returns an open run together with its settings in force."""
    return Variant(name, run, runs.in_force(run, lines))


def variants(
    args: argparse.Namespace,
    file: str | None = None,
    *,
    lines: str,
    change: Callable[[DecodeRun], DecodeRun] = lambda run: run,
) -> Iterator[Variant]:
    """Opens and yields the variants of `--variant`; without any, the run of the other flags."""
    names = args.variant or [""]
    _refuse_twice(names, file)
    return (variant(args, name, lines=lines, change=change) for name in names)


def _refuse_twice(names: Sequence[str], file: str | None) -> None:
    paths: dict[str | None, str] = {}
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UsageError(f"--variant={name} is given twice; give each once")
        other = paths.setdefault(path_of(file, name), name)
        if file and other != name:
            raise UsageError(
                f"--variant={other} and --variant={name} would both be written to "
                f"{path_of(file, name)}; leave one out, or put it in a gin file of another name"
            )


def path_of(file: str | None, name: str) -> str | None:
    """Returns the output file of a variant: for GAMMA=3, out.jsonl becomes out_GAMMA=3.jsonl."""
    if file is None or not name:
        return file
    folder, slash, base = file.rpartition("/")
    stem, dot, suffix = base.partition(".")
    plain = re.sub(r"[^\w=-]+", "-", name)
    return f"{folder}{slash}{stem}_{plain}{dot}{suffix}"


def costs_of(args: argparse.Namespace) -> Costs | None:
    """Reads the file of costs that --costs names; returns None if they are to be measured."""
    check("--batch_size", args.batch_size, PositiveInt | None, UsageError)
    if args.topology and not args.costs:
        raise UsageError(f"--topology is {args.topology} without --costs; give that file")
    if rows_of(args) > 1 and args.costs:
        raise UsageError(
            f"--costs are of one text at a time and --batch_size is {args.batch_size}; leave one "
            "of them out"
        )
    return stored_costs.read(args.costs, args.topology) if args.costs else None


def rows_of(args: argparse.Namespace) -> int:
    """Returns the number of texts decoded together, for which a speed-up is predicted."""
    return args.batch_size or 1


def _with(args: argparse.Namespace, name: str) -> argparse.Namespace:
    """Returns the flags with the gin files and settings of a variant appended."""
    changed, items = copy.copy(args), [item for item in name.split(";") if item]
    for kind in shorthands.FRAGMENTS:
        chosen = getattr(args, kind, None)
        if chosen and any(item.startswith(f"{kind}s/") for item in items):
            raise UsageError(
                f"--variant={name} chooses a {kind}, and --{kind}={chosen} overrides it; leave "
                f"--{kind} out"
            )
    for item in items:
        if not item.endswith(".gin") and "=" not in item:
            raise UsageError(
                f"--variant={name}: {item} has no value; give --variant={item}=VALUE, or a gin file"
            )
    changed.gin_file = [*args.gin_file, *(item for item in items if item.endswith(".gin"))]
    changed.gin_bindings = [*args.gin_bindings, *(x for x in items if not x.endswith(".gin"))]
    return changed


def say(line: str) -> None:
    """Prints a line immediately."""
    print(line, flush=True)


def announce(name: str) -> None:
    """Prints on stderr which check begins, unless progress shows it."""
    if not progress.is_shown():
        print(f"specdec: checking {name} ...", file=sys.stderr, flush=True)
