"""Checks of output files before any long work: no file of the user is overwritten."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

import jax

from specdec.cli import settings
from specdec.common import records
from specdec.common.json_values import parsed
from specdec.common.values import UsageError
from specdec.models.contract.model import Model, PyTree


def check_new(args: argparse.Namespace) -> None:
    """Raises UsageError unless --output_file can be made and does not exist."""
    if args.output_file is None:
        return
    for file in (args.output_file, f"{args.output_file}.gin"):
        if os.path.isfile(file):
            raise UsageError(f"--output_file: {file} exists; delete it, or give another file")
    check(args)


def check(args: argparse.Namespace, inputs: Iterable[str] = (), holding: str | None = None) -> None:
    """Locks --output_file by `records.hold`; raises UsageError unless the file can be written.

    If `holding` is set, an existing file is replaced only if its JSON has this field.
    """
    path = args.output_file
    if path is None:
        return
    if os.path.isdir(path):
        raise UsageError(f"--output_file {path} cannot be written, it is a folder; give a file")
    folder = Path(path).parent
    if not folder.is_dir() or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UsageError(f"--output_file {path} cannot be written; its folder must exist")
    read = {os.path.realpath(file) for file in (*inputs, *settings.files_of(args))}
    for written in (path, f"{path}.gin", f"{path}.md", f"{path}.summary.json"):
        if os.path.realpath(written) in read:
            raise UsageError(f"--output_file: {written} is what the command reads; give another")
    if holding and os.path.isfile(path) and not _holds(path, holding):
        raise UsageError(
            f"--output_file: {path} exists and is of another kind; delete it, or give another file"
        )
    flags = vars(args)
    if os.path.exists(path) and not holding and not os.path.exists(f"{path}.gin"):
        return  # not ours: the command refuses it, and leaves no lock file
    if not flags.get("dry_run") and flags.get("distributed") is None:  # the first host holds it
        records.hold(Path(path))


def settle_paths(args: argparse.Namespace) -> None:
    """Sets `args.input` and `args.output` from flags or words; each must be given exactly once."""
    for name in ("input", "output"):
        flag, word = getattr(args, name), getattr(args, f"{name}_word")
        if flag is None and word is None:
            raise UsageError(f"the {name} is missing; give --{name}=DIR")
        if flag is not None and word is not None:
            raise UsageError(f"{word} and --{name}={flag} are both the {name}; give one of them")
        setattr(args, name, word if flag is None else flag)


def model_line(params: PyTree, model: Model) -> str:
    """Describes a model in one line: its number of parameters, and its sizes."""
    sizes = ", ".join(f"{name} {size}" for name, size in model.sizes.items())
    return f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters ({sizes})"


def _holds(path: str, field: str) -> bool:
    try:
        return field in parsed(Path(path).read_bytes())
    except ValueError:
        return False
