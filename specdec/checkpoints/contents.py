"""Opens the arrays of a checkpoint, compares them with its model, and checks for damage."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from specdec.checkpoints import arrays, directory, huggingface, t5x_format, tree
from specdec.checkpoints.arrays import Opened, Stored
from specdec.checkpoints.checksums import checksum, damage
from specdec.checkpoints.directory import Found
from specdec.checkpoints.errors import CheckpointError, about
from specdec.checkpoints.text_model import text_model_from
from specdec.models import families
from specdec.models.contract.family import Config

CHECKED_IN_READING = {"t5x": "its compressed chunks have checksums"}


class Finding(NamedTuple):
    """The result of checking one component of a checkpoint."""

    what: str  # the component, such as "arrays"
    sound: bool  # whether the check succeeded
    note: str  # a fact about the component, or the error


def opened(checkpoint: Found, config: Config | None = None) -> list[Stored]:
    """Opens every array of a checkpoint; raises CheckpointError if they do not fit the model."""
    format, folder = checkpoint
    if format == "t5x":
        sources = t5x_format.native(folder)
    elif format == "t5x_orbax":
        sources = t5x_format.with_orbax(folder)
    elif format == "orbax":
        sources = arrays.ocdbt(folder / "params")
    else:
        sources = huggingface.sources(directory.disk(folder))
    if format in ("orbax", "huggingface"):
        config = config or directory.config_from(folder)
    opened_arrays = arrays.open_all(sources, folder)
    with about(folder):
        stored = _unstack(opened_arrays, config)
    if config is not None:
        shapes = {name: array.shape for array in stored for name in array.names}
        tree.check(shapes, config, f"checkpoint {folder}")
    return stored


def _unstack(opened: Mapping[str, Opened], config: Config | None) -> list[Stored]:
    """Returns the arrays with their parameters' names: an array may stack those of all layers."""
    name = families.DEFAULT if config is None else families.family_of(config).name
    scanned = families.named(name).scanned
    if scanned is None:
        return [Stored(data, (name,), data.shape) for name, data in opened.items()]

    def repeats(name: str, axis: int) -> bool:
        layers = arrays.fetch(opened[name])
        return bool((layers == layers.take([0], axis)).all())

    shapes = {name: tuple(data.shape) for name, data in opened.items()}
    stacks = scanned.stacks(shapes, config, repeats)
    return [Stored(opened[name], *stack) for name, stack in stacks.items()]


def examine(path: str | os.PathLike) -> Iterator[Finding]:
    """Reads all of a checkpoint, of any format, and yields a finding about each component."""
    checkpoint = directory.locate(path)
    yield Finding("format", True, f"{checkpoint.format}, in {checkpoint.directory}")
    yield _tried("model", lambda: _model(checkpoint))
    yield from _text(checkpoint)
    try:
        stored = opened(checkpoint, _config(checkpoint))
    except CheckpointError as error:
        yield Finding("arrays", False, str(error))
        return
    numbers = sum(math.prod(array.data.shape) for array in stored)
    yield Finding("arrays", True, f"{numbers:,} numbers in {len(stored)} arrays")
    yield from _data(checkpoint, stored)


def _tried(what: str, look) -> Finding:
    try:
        return Finding(what, True, look())
    except CheckpointError as error:
        return Finding(what, False, str(error))


def _model(checkpoint: Found) -> str:
    config = _config(checkpoint)
    return "not recorded, so names and shapes are not compared" if config is None else str(config)


def _config(checkpoint: Found) -> Config | None:
    """Returns the checkpoint's config, or None for a checkpoint of T5X that has none."""
    folder = checkpoint.directory
    files = (folder / directory.CONFIG, folder.parent / directory.CONFIG)
    return directory.config_from(folder) if any(file.is_file() for file in files) else None


def _text(checkpoint: Found) -> Iterator[Finding]:
    """Yields findings about the text side: vocabulary, added tokens, and generation settings."""
    try:
        text = text_model_from(checkpoint.directory)
        yield from (Finding(what, True, note) for what, note in text.lines())
    except CheckpointError as error:
        yield Finding("vocabulary", False, str(error))
        return
    with contextlib.suppress(CheckpointError):  # reported by `_model`
        if (config := _config(checkpoint)) is not None:
            size = families.model_of(config).vocab_size
            try:
                text.check_ids(size)
            except CheckpointError as error:
                yield Finding("ids", False, str(error))


def _data(checkpoint: Found, stored: list[Stored]) -> Iterator[Finding]:
    """Yields a finding for each damaged array, or a single one if no array is damaged."""
    recorded, bad, compared = directory.checksums_from(checkpoint.directory), 0, 0
    for array in stored:
        wrong = None
        try:
            data = arrays.fetch_named(array, checkpoint.directory)
            compared += array.names[0] in recorded
            wrong = damage(array.names[0], data, recorded) or _not_finite(array, data)
        except CheckpointError as error:
            wrong = str(error)
        if wrong:
            bad += 1
            yield Finding("data", False, wrong)
    if not bad:
        yield Finding("data", True, _compared(checkpoint.format, compared, len(stored)))


def _compared(format: str, compared: int, arrays: int) -> str:
    read = "all of it can be read, every number is finite"
    if compared:
        return f"{read}, {compared} of {arrays} arrays have the checksum they were saved with"
    if format in CHECKED_IN_READING:
        return f"{read}; {CHECKED_IN_READING[format]}"
    return f"{read}; no checksums are recorded, so altered numbers are not detected"


def _not_finite(array: Stored, data: np.ndarray) -> str | None:
    count = data.size - int(np.count_nonzero(np.isfinite(data)))
    if count:
        return f"{array.names[0]} has {count} numbers that are not finite"
    if count := arrays.overflows(data):
        return f"{array.names[0]} has {count} numbers that float32 cannot hold"
    return None


def record_checksums(path: str | os.PathLike) -> int:
    """Writes checksums of a checkpoint of our own format into its config.json; returns how many."""
    checkpoint = directory.locate(path)
    if checkpoint.format != "orbax":
        raise CheckpointError(
            f"checkpoint {checkpoint.directory} is of the format {checkpoint.format}, which "
            "stores no checksums; `specdec convert` makes a checkpoint that does"
        )
    stored = opened(checkpoint)
    checksums = {
        array.names[0]: checksum(arrays.fetch_named(array, checkpoint.directory))
        for array in stored
    }
    directory.amend(directory.disk(checkpoint.directory), crc32=checksums)
    return len(checksums)
