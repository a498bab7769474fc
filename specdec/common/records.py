"""Output files that a command can resume after it was killed: settings, and lines of JSON.

A written file is complete or does not exist. An appended file may have an incomplete last line,
which readers leave out and a resumed command removes.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import math
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import filelock

from specdec.common.gin_text import FINGERPRINT as FINGERPRINT  # for `cli.run`, as the next two
from specdec.common.gin_text import FORMAT as FORMAT
from specdec.common.gin_text import VERSION as VERSION
from specdec.common.gin_text import first_difference
from specdec.common.json_values import parsed

T = TypeVar("T")
R = TypeVar("R", bound=Mapping[str, object])


class RecordsError(ValueError):
    """An output file cannot be used or resumed; the message is one line with the remedy."""


# Outputs and locks of this process, by lock file.
_held: dict[Path, tuple[Path, contextlib.ExitStack]] = {}


@contextlib.contextmanager
def holding() -> Iterator[None]:
    """Unlocks, at its end, the output files that `hold` locked inside it."""
    before = set(_held)
    try:
        yield
    finally:
        for file in _held.keys() - before:
            output, lock = _held.pop(file)
            if not output.exists():  # the command ended before it wrote anything
                file.unlink(missing_ok=True)
            lock.close()


def hold(output: Path, instead: str = "--output_file", parts: str | None = None) -> None:
    """Locks an output file for this process until `holding` ends, unless it is locked already.

    `Lines` locks its own file. A command that writes several files, or writes at its end, locks one
    of them at its beginning. `instead` is the flag that errors name.
    """
    lock = Path(os.path.realpath(output.parent)) / f".{output.name}.lock"
    if lock in _held or not output.parent.is_dir():  # the writer reports a missing folder
        return
    parts = f"{glob.escape(output.name)}.*" if parts is None else parts
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(output, lock, instead, parts))
        _held[lock] = output.absolute(), stack.pop_all()


class Lines(Generic[R]):
    """A file of JSON objects, one per line, each with the fields of a record's type."""

    def __init__(self, path: Path, kind: type[R] = dict[str, object]):
        self.path, self.kind = path, kind

    @classmethod
    def of(
        cls, path: Path, settings: str, suffix: str = ".gin", kind: type[R] = dict[str, object]
    ) -> Lines[R]:
        """Returns the lines of `path`; writes or compares the settings in the file next to it."""
        beside = Path(f"{path}{suffix}")
        for step in (lambda: None, lambda: hold(path)):  # a foreign file gets no lock next to it
            step()
            if path.exists():
                claim(path, beside, settings, begun=path, instead="--output_file")
        write(beside, settings)
        return cls(path, kind)

    def __iter__(self) -> Iterator[R]:
        """Yields the objects in the file, except an incomplete last line."""
        if self.path.exists():
            with self.path.open("rb") as file:
                complete = (line for line in file if line.endswith(b"\n"))
                for number, line in enumerate(complete, start=1):
                    yield self._object(line, number)

    def map(self, function: Callable[[R], T], command: str) -> Iterator[T]:
        """Yields `function` of each object; converts its errors to RecordsError with the line."""
        for number, record in enumerate(self, start=1):
            try:
                yield function(record)
            except ValueError as error:
                raise self.damaged(number, str(error)) from error
            except TypeError as error:
                raise self.damaged(number, f"is not of `specdec {command}`") from error

    def replace(self, records: Iterable[Mapping[str, object]]) -> None:
        """Replaces all lines by those of `records`, which may come from this file."""
        hold(self.path)
        write(self.path, "".join(map(_line, records)))

    def append(self, record: Mapping[str, object]) -> None:
        """Appends one object as a line."""
        hold(self.path)
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(_line(record))

    def damaged(self, number: int, what: str) -> RecordsError:
        """Returns the error about a damaged line; `what` says what is wrong."""
        return RecordsError(
            f"{self.path}, line {number}, {what}; delete that line and those after it, which "
            "are then made again"
        )

    def _object(self, line: bytes, number: int) -> R:
        try:
            return parsed(line, self.kind)
        except ValueError as error:
            raise self.damaged(number, str(error)) from error


@contextlib.contextmanager
def locked(output: Path, file: Path, instead: str, parts: str) -> Iterator[None]:
    """Locks an output against other processes, and removes leftover parts, until the block ends."""
    lock = filelock.FileLock(file, blocking=False)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout as error:
        raise RecordsError(
            f"{output} is being written by another process; wait for it, or give another {instead}"
        ) from error
    except NotImplementedError:  # the file system has no locks
        pass
    except OSError as error:
        raise RecordsError(f"{instead} {output} cannot be used: {error.strerror}") from error
    for part in file.parent.glob(f"{parts}.part") if lock.is_locked else ():
        part.unlink(missing_ok=True)
    try:
        yield
    finally:
        lock.release()


def claim(output: Path, file: Path, settings: str, *, begun: Path | None, instead: str) -> None:
    """Writes an output's settings, gin text or JSON, or raises RecordsError if other ones exist."""
    if not file.exists():
        if begun is not None:
            raise RecordsError(f"{begun} has no {file.name} next to it; give another {instead}")
        write(file, settings)
    elif differs := _difference(file, settings):
        name, old, new = differs
        raise RecordsError(
            f"{output} was begun with {name} = {old}, and now it is {new}; take the settings of "
            f"{file}, or give another {instead}"
        )


def _difference(file: Path, settings: str) -> tuple[str, object, object] | None:
    """Returns the first difference between the settings in a file and `settings`, if any."""
    try:
        return first_difference(file.read_text(encoding="utf-8"), settings)
    except ValueError as error:
        raise RecordsError(f"{file} {error}; restore it, or delete what it belongs to") from error


def write(path: Path, contents: str | bytes) -> None:
    """Writes a file completely or not at all, even if several hosts do it."""
    data = contents if isinstance(contents, bytes) else contents.encode()
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        with naming(path), part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def complete_folder(path: Path) -> Iterator[Path]:
    """Yields a folder's path to make and fill; it is renamed to `path` when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        folder = staging / path.name
        with naming(path):
            yield folder
        try:
            folder.rename(path)
        except OSError as error:
            if not path.exists():
                raise
            raise RecordsError(
                f"{path} was made by another process meanwhile; use it, or give another folder"
            ) from error
        shutil.rmtree(staging, ignore_errors=True)
    except BaseException:
        _remove(staging)
        raise


def _remove(folder: Path) -> None:
    """Removes a folder into which threads of a library may still write after one of them failed.

    It never raises, because its caller has an error to report, and gives up after 10 seconds.
    """
    end, missing = time.monotonic() + 10, 0
    while missing < 2 and time.monotonic() < end:
        shutil.rmtree(folder, ignore_errors=True)
        missing = 0 if folder.exists() else missing + 1
        time.sleep(0.05)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds `path` to an OSError inside it, because errors of a write have no file name."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # Python or NumPy wrote fewer bytes
            raise OSError(errno.EIO, str(error), str(path)) from error
        error.filename = str(path)
        raise
    except Exception as error:
        if not (code := re.search(r"os_error_code='(\d+)'", str(error))):
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def as_json(value: object, *, indent: int | None = None) -> str:
    """Returns a value as JSON, in which NaN and infinity become null."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(record: Mapping[str, object]) -> str:
    return f"{as_json(record)}\n"
