"""Gin, used as in T5X: files in order, then `--gin.NAME=VALUE`; later settings override."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import gin
from gin import config as gin_config
from gin import config_parser
from specdec import tasks
from specdec.cli import gin_files
from specdec.cli.gin_files import Own
from specdec.common import resources
from specdec.common.records import Lines
from specdec.common.values import UsageError, did_you_mean

T = TypeVar("T")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `build` reads."""
    parser.add_argument(
        "--gin_file",
        action="append",
        default=[],
        metavar="FILE",
        help="settings to read; may repeat, later files override earlier ones",
    )
    parser.add_argument(
        "--gin_search_paths",
        default="",
        metavar="DIR,...",
        help="where gin files are looked for, before specdec's own; what they include is looked "
        "for in the current folder only if one of them is there",
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
    """Returns the path of a file in a folder, so that gin files name a folder of data once.

    Args:
      folder: the folder.
      name: the name of the file.
    """
    return os.path.join(folder, name)


def build(
    cls: type[T],
    args: argparse.Namespace,
    overrides: Mapping[str, object],
    unneeded: Mapping[str, object] = MappingProxyType({}),
    needed: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Reads the gin files and flags, and constructs the `cls` that they describe.

    `overrides` are settings of separate flags, such as {"Data.limit": 3}; None keeps gin's value.
    `unneeded` are values of macros that gin files require and that have no effect here. `needed`
    has the errors about classes that no gin file binds.
    """
    if not args.gin_file:
        raise UsageError(
            "nothing says what to run; give --gin_file=FILE, see configs/, or --target=DIR"
        )
    if args.tfds_data_dir:
        if "://" not in args.tfds_data_dir and not os.path.isdir(args.tfds_data_dir):
            raise UsageError(f"--tfds_data_dir {args.tfds_data_dir} is no folder; give one")
        tasks.use_tfds_data_dir(args.tfds_data_dir)
    folders = _folders(args)
    gin.clear_config()
    try:
        _refuse_unread_macros(args.gin_file, args.gin_bindings, folders)
        for name, says in needed.items():
            if not binds(args, name):
                raise UsageError(says)
        _make_importable(args.gin_file, folders)
        with _finding(folders):
            for file in args.gin_file:
                gin_config.parse_config_file(file)
        gin.parse_config(args.gin_bindings)
        for name, value in unneeded.items():
            if str(gin.query_parameter(f"%{name}")) in ("%gin.REQUIRED", "None"):
                gin.bind_parameter(f"%{name}", value)
        for name, value in overrides.items():
            if value is not None:
                gin.bind_parameter(name, value)
        gin.finalize()
        return gin.get_configurable(cls)()
    except UsageError as error:  # gin adds lines to what a function raises that it calls
        raise UsageError(str(error).partition("\n")[0]) from error
    except (SyntaxError, ImportError, AttributeError, NameError, TypeError, ValueError) as error:
        raise UsageError(_with_remedy(_explain(error))) from error


def binds(args: argparse.Namespace, name: str) -> bool:
    """Returns whether the gin files bind fields of a class."""
    folders, recorder = _folders(args), _Recorder()
    return any(
        isinstance(statement, config_parser.BindingStatement) and statement.selector == name
        for file in args.gin_file
        for statement in _statements(file, folders, recorder)
    )


def in_force() -> str:
    """Returns the settings that took part in what was built, as a gin file."""
    return gin.operative_config_str()


def json_lines(path: str | None, in_force: str) -> Lines[Mapping[str, object]] | None:
    """Returns an output file, None for none; the settings in force are written next to it.

    It is opened for each line, so that a missing folder is noticed immediately.
    """
    if path is None:
        return None
    lines = Lines[Mapping[str, object]].of(Path(path), in_force)
    lines.replace(())
    return lines


def files_of(args: argparse.Namespace) -> list[str]:
    """Returns the paths of the gin files of a command, which may read none."""
    folders, names = _folders(args), vars(args).get("gin_file", [])
    return [path for file in names if (path := _path(file, ["", *folders])) is not None]


def _own_folders() -> list[str]:
    return [str(resources.folder(name)) for name in ("gin", "configs")]


def _folders(args: argparse.Namespace) -> list[str]:
    """Returns where included files are looked for, before specdec's own folders.

    The current folder is none of them, unless the user named a gin file of it.
    """
    folders = [*filter(None, vars(args).get("gin_search_paths", "").split(","))]
    found = [_path(file, ["", *folders]) for file in vars(args).get("gin_file", [])]
    theirs = (path for path in found if path is not None and not isinstance(path, Own))
    here = any(os.path.dirname(os.path.abspath(path)) == os.getcwd() for path in theirs)
    return [*folders, "."] if here else folders


@contextlib.contextmanager
def _finding(folders: Sequence[str]) -> Iterator[None]:
    """Makes gin find files as `_found` does.

    Gin itself would begin in the current folder, and import Python packages in search of files.
    """
    within: list[str] = []

    def parse(name: str, skip_unknown: bool = False, *_: object) -> object:
        path = _included(name, within[-1], folders) if within else _found(name, ["", *folders])
        within.append(path)
        with open(path, encoding="utf-8") as text:
            includes, imports = gin_config.parse_config(text, skip_unknown)
        within.pop()
        return gin_config.ParsedConfigFileIncludesAndImports(name, imports, includes)

    before, gin_config.parse_config_file = gin_config.parse_config_file, parse
    try:
        yield
    finally:
        gin_config.parse_config_file = before


_Statement: TypeAlias = (
    config_parser.BindingStatement
    | config_parser.BlockDeclaration
    | config_parser.ImportStatement
    | config_parser.IncludeStatement
)


class _Recorder(config_parser.ParserDelegate):
    """Replaces gin while a file is examined."""

    def __init__(self):
        self.read: set[str] = set()

    def configurable_reference(self, scoped_configurable_name, evaluate):
        return None

    def macro(self, macro_name):
        self.read.add(macro_name)


def _refuse_unread_macros(
    files: Sequence[str], bindings: Sequence[str], folders: Sequence[str]
) -> None:
    """Raises UsageError for a misspelt macro, which gin would accept without effect.

    Macros of our own files may have no reader, because the run decides which drafter reads them.
    """
    recorder = _Recorder()
    statements = [s for file in files for s in _statements(file, folders, recorder)]
    statements += [_binding(binding, recorder) for binding in bindings]
    for statement in statements:
        if not isinstance(statement, config_parser.BindingStatement) or statement.arg_name:
            continue
        if os.path.realpath(statement.location.filename or "").startswith(_inside_own()):
            continue
        name = "/".join(filter(None, (statement.scope, statement.selector)))
        if name not in recorder.read:
            hint = did_you_mean(name, recorder.read) or "; include the gin file that reads it"
            if file := gin_files.setting(name):
                hint = f"; include the gin file that reads it, {file}"
            raise UsageError(f"{_place(statement.location)}{name} is read by nothing{hint}")


def _make_importable(files: Sequence[str], folders: Sequence[str]) -> None:
    """Lets a gin file of the user import the modules next to it, for example a drafter."""
    for file in files:
        path = _found(file, ["", *folders])
        folder = os.path.dirname(os.path.abspath(path))
        if not isinstance(path, Own) and folder not in sys.path:
            sys.path.append(folder)


def _path(file: str, folders: Sequence[str]) -> str | None:
    """Returns the path of a gin file, None if there is none; specdec's own folders come last."""
    for folder in () if isinstance(file, Own) else folders:
        if os.path.isfile(path := os.path.join(folder, file)):
            return Own(path) if os.path.realpath(path).startswith(_inside_own()) else path
    own = resources.gin_file(file)
    return None if own is None else Own(own)


def _inside_own() -> tuple[str, ...]:
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in _own_folders())


def _found(file: str, folders: Sequence[str], place: str = "") -> str:
    """Returns the path of a gin file."""
    path = _path(file, folders)
    if path is None:
        searched = (folder or "." for folder in (*folders, *_own_folders()))
        looked_in = ", ".join(dict.fromkeys(searched))
        raise UsageError(
            f"{place}gin file {file} not found in {looked_in}"
            + (
                gin_files.did_you_mean(file)
                or "; check the name, or add its folder with --gin_search_paths"
            )
        )
    return path


def _included(name: str, within: str, folders: Sequence[str], place: str = "") -> str:
    """Returns the path of a file that another one includes."""
    return _found(Own(name) if isinstance(within, Own) else name, folders, place)


def _statements(
    file: str, folders: Sequence[str], recorder: _Recorder, within: tuple[str, ...] = ()
) -> Iterator[_Statement]:
    """Yields the statements of a gin file and of those it includes."""
    path = file if within else _found(file, ["", *folders])
    with _readable(path), open(path, encoding="utf-8") as text:
        for statement in config_parser.ConfigParser(text, recorder):
            if isinstance(statement, config_parser.IncludeStatement):
                place = _place(statement.location)
                included = _included(statement.filename, path, folders, place)
                if included in (*within, path):
                    raise UsageError(
                        f"{place}{statement.filename} includes itself; leave that line out"
                    )
                yield from _statements(included, folders, recorder, (*within, path))
            else:
                yield statement


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """Raises UsageError, with its name, for a file that is not gin's."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text; give a gin file in UTF-8") from error
    except tokenize.TokenError as error:
        raise UsageError(f"{path}: a bracket or quote is never closed; close it") from error


def _binding(binding: str, recorder: _Recorder) -> _Statement:
    name, _, value = binding.partition("=")
    try:
        return next(config_parser.ConfigParser(binding, recorder))
    except (SyntaxError, StopIteration, tokenize.TokenError) as error:
        quotes, what = "strings need quotes that reach gin", f"{value or 'nothing'} is not a value"
        remedy = f"{quotes}: --gin.{name}=\"'{value}'\""
        if not value:
            remedy = f"give one, as in --gin.{name}=VALUE; {quotes}"
        elif value[0] in "([{":
            remedy = f"close its brackets; {quotes}"
        raise UsageError(f"--gin.{binding}: {what}; {remedy}") from error


def _place(location: config_parser.Location) -> str:
    return f"{location.filename}, line {location.line_num}: " if location.filename else ""


def _explain(error: Exception) -> str:
    """Returns gin's message as one line: where, and what is wrong."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}".replace("\n", " ")
    text = str(error)
    head = text.partition("\n  In ")[0]  # gin's own lines
    match = None
    for pattern, remedy in _REMEDIES.items():
        if match := re.match(pattern, head):
            head = remedy.format(*match.groups())
            break
    if place := re.search(r'In file "(.+)", line (\d+)', text):
        return f"{place[1]}, line {place[2]}: {head}"
    scope = re.search(r"In call to configurable .* in scope '(.+)'", text)
    return f"{scope[1]}: {head}" if scope and not match else head


def _with_remedy(line: str) -> str:
    return line if "; " in line else f"{line.removesuffix('.')}; correct it"


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
    r"(\w+)\.__init__\(\) missing \d+ required positional arguments?": (
        "the gin files describe no {0}; include specdec's skeleton of the command"
    ),
    r"(No configurable matching.*?)\.?$": (
        "{0}; check the name, and that a gin file imports its module"
    ),
    r"(No module named .*)": "{0}; check the name, or install it",
}
