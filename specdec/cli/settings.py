"""Gin, in T5X's manner: files in order, then `--gin.NAME=VALUE`; what comes later overrides."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO, TypeVar

import gin
from gin import config as gin_config
from gin import config_parser
from specdec import resources, tasks
from specdec.cli import gin_files
from specdec.cli.suggest import did_you_mean

T = TypeVar("T")


class UsageError(ValueError):
    """What the user gave cannot work; the message is one line."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that `build` reads."""
    parser.add_argument(
        "--gin_file",
        action="append",
        default=[],
        metavar="FILE",
        help="settings to read; may repeat, later files override earlier ones",
    )
    parser.add_argument(
        "--gin_search_paths",
        default=".",
        metavar="DIR,...",
        help="where gin files are looked for, before specdec's own (default: %(default)s)",
    )
    parser.add_argument(
        "--gin.NAME",
        dest="gin_bindings",
        action="append",
        default=[],
        metavar="VALUE",
        help="one setting, such as --gin.GAMMA=5 or --gin.module.Class.field=VALUE; "
        "strings need quotes that reach gin: --gin.SPLIT=\"'test'\"",
    )
    parser.add_argument(
        "--tfds_data_dir",
        metavar="DIR",
        help="where TFDS data sets have been prepared (default: $TFDS_DATA_DIR, or else "
        "~/tensorflow_datasets)",
    )


def joined(argv: Sequence[str]) -> list[str]:
    """Rewrites `--gin.X=Y` as the one flag that argparse can know, `--gin.NAME=X=Y`."""
    return [f"--gin.NAME={arg[6:]}" if arg.startswith("--gin.") else arg for arg in argv]


def path_in(folder: str, name: str) -> str:
    """A path in two parts, so that gin files name a folder of data once."""
    return os.path.join(folder, name)


def build(
    cls: type[T],
    args: argparse.Namespace,
    overrides: Mapping[str, Any],
    unneeded: Mapping[str, Any] = MappingProxyType({}),
) -> T:
    """Reads the gin files and flags, and constructs the `cls` that they describe.

    Args:
      cls: a dataclass that some gin file binds.
      args: has what `add_flags` adds.
      overrides: settings that flags of their own make, as {"Data.limit": 3}; None leaves what gin
        says.
      unneeded: values of macros that gin files require but that make no difference, if not set.

    Raises:
      UsageError: gin, or a constructor that it calls, objects to something.
    """
    if not args.gin_file:
        raise UsageError("nothing says what to run; give --gin_file=FILE, see configs/")
    if args.tfds_data_dir:
        tasks.use_tfds_data_dir(args.tfds_data_dir)
    folders = [*args.gin_search_paths.split(","), *_own_folders()]
    gin.clear_config()
    for folder in folders:
        gin.add_config_file_search_path(folder)
    try:
        _refuse_unread_macros(args.gin_file, args.gin_bindings, folders)
        _make_importable(args.gin_file, folders)
        with _quiet_logging(), _no_stumbling_over_folders():
            for file in args.gin_file:
                gin.parse_config_file(file)
        gin.parse_config(args.gin_bindings)
        for name, value in unneeded.items():
            if str(gin.query_parameter(f"%{name}")) in ("%gin.REQUIRED", "None"):
                gin.bind_parameter(f"%{name}", value)
        for name, value in overrides.items():
            if value is not None:
                gin.bind_parameter(name, value)
        gin.finalize()
        return gin.get_configurable(cls)()
    except UsageError:
        raise
    except (SyntaxError, ImportError, AttributeError, NameError, TypeError, ValueError) as error:
        raise UsageError(_explain(error)) from error


def in_force() -> str:
    """The settings that took part in what was built, as a gin file."""
    return gin.operative_config_str()


def json_lines(path: str | None, in_force: str) -> contextlib.AbstractContextManager[TextIO | None]:
    """An output file, None for none; the settings in force are put beside it."""
    if path is None:
        return contextlib.nullcontext()
    Path(f"{path}.gin").write_text(in_force, encoding="utf-8")
    return open(path, "w", encoding="utf-8")


def _own_folders() -> list[str]:
    return [str(resources.folder(name)) for name in ("gin", "configs")]


@contextlib.contextmanager
def _quiet_logging():
    """Gin logs an error for each folder that does not hold a file, also when the next one does."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _no_stumbling_over_folders():
    """Gin looks for a file in Python packages too, and fails where a folder that is none has the
    name: `tasks` in the folder that a user works in, for example."""
    readers: Any = gin_config._FILE_READERS
    before = list(readers)
    readers[:] = [(read, functools.partial(_exists, check)) for read, check in before]
    try:
        yield
    finally:
        readers[:] = before


def _exists(check: Callable[[str], bool], path: str) -> bool:
    try:
        return check(path)
    except TypeError:  # a namespace package has no file
        return False


class _Recorder(config_parser.ParserDelegate):
    """Takes the place of gin while a file is looked through."""

    def __init__(self):
        self.read: set[str] = set()

    def configurable_reference(self, scoped_configurable_name, evaluate):
        return None

    def macro(self, macro_name):
        self.read.add(macro_name)


def _refuse_unread_macros(
    files: Sequence[str], bindings: Sequence[str], folders: Sequence[str]
) -> None:
    """A misspelt macro would otherwise be a new one, silently without effect. What our own files
    set may have no reader: which drafter reads it, the run decides."""
    recorder = _Recorder()
    statements = [s for file in files for s in _statements(file, folders, recorder)]
    statements += [_binding(binding, recorder) for binding in bindings]
    for statement in statements:
        if not isinstance(statement, config_parser.BindingStatement) or statement.arg_name:
            continue
        if str(statement.location.filename).startswith(tuple(_own_folders())):
            continue
        name = "/".join(filter(None, (statement.scope, statement.selector)))
        if name not in recorder.read:
            hint = did_you_mean(name, recorder.read) or "; include the gin file that reads it"
            if file := gin_files.setting(name):
                hint = f"; include the gin file that reads it, {file}"
            raise UsageError(f"{_place(statement.location)}{name} is read by nothing{hint}")


def _make_importable(files: Sequence[str], folders: Sequence[str]) -> None:
    """Lets a gin file import the modules that lie beside it: one's own drafter, for example."""
    for file in files:
        folder = os.path.dirname(os.path.abspath(_found(file, folders)))
        if folder not in (*sys.path, *_own_folders()):
            sys.path.append(folder)


def _found(file: str, folders: Sequence[str], place: str = "") -> str:
    """The path of a gin file."""
    candidates = [file, *(os.path.join(folder, file) for folder in folders)]
    path = next(filter(os.path.isfile, candidates), None)
    if path is None:
        raise UsageError(
            f"{place}gin file {file} not found in {', '.join(folders)}"
            + (
                gin_files.did_you_mean(file)
                or "; check the name, or add its folder with --gin_search_paths"
            )
        )
    return path


def _statements(file: str, folders: Sequence[str], recorder: _Recorder, place="") -> Iterator[Any]:
    """The statements of a gin file and of those it includes."""
    with open(_found(file, folders, place), encoding="utf-8") as text:
        for statement in config_parser.ConfigParser(text, recorder):
            if isinstance(statement, config_parser.IncludeStatement):
                place = _place(statement.location)
                yield from _statements(statement.filename, folders, recorder, place)
            else:
                yield statement


def _binding(binding: str, recorder: _Recorder) -> Any:
    name, _, value = binding.partition("=")
    try:
        return next(config_parser.ConfigParser(binding, recorder))
    except (SyntaxError, StopIteration) as error:
        raise UsageError(
            f"--gin.{binding}: {value or 'nothing'} is not a value; strings need quotes that "
            f"reach gin: --gin.{name}=\"'{value}'\""
        ) from error


def _place(location: config_parser.Location) -> str:
    return f"{location.filename}, line {location.line_num}: " if location.filename else ""


def _explain(error: Exception) -> str:
    """Gin's message as one line: where, and what is wrong."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}".replace("\n", " ")
    text = str(error)
    head = text.partition("\n")[0]
    for pattern, remedy in _REMEDIES.items():
        if match := re.match(pattern, head):
            return remedy.format(*match.groups())
    if place := re.search(r'In file "(.+)", line (\d+)', text):
        return f"{place[1]}, line {place[2]}: {head}"
    scope = re.search(r"In call to configurable .* in scope '(.+)'", text)
    return f"{scope[1]}: {head}" if scope else head


_REMEDIES = {
    r"(.+?)(?:/macro\.value)? set to `%gin\.REQUIRED`": (
        "{0} is required; set it in a gin file or with --gin.{0}=VALUE"
    ),
    r"No bindings specified for '(.+)/gin\.macro'": (
        "%{0} is read but never set; set it in a gin file or with --gin.{0}=VALUE"
    ),
    r"Could not find <class '(?:\w+\.)*(\w+)'> in the Gin registry": (
        "the gin files describe no {0}; include specdec's skeleton of the command"
    ),
}
