"""Reads settings with gin as T5X does: files in order, then `--gin.NAME=VALUE`, which override."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import gin
from specdec import tasks
from specdec.cli import gin_files, gin_statements
from specdec.cli.gin_files import Own
from specdec.cli.gin_statements import REQUIRED, GinStatement
from specdec.common.records import Lines
from specdec.common.values import UsageError, did_you_mean

T = TypeVar("T")


def joined(argv: Sequence[str]) -> list[str]:
    """Rewrites `--gin.X=Y` as `--gin.NAME=X=Y`, because argparse needs flags of fixed names."""
    return [f"--gin.NAME={arg[6:]}" if arg.startswith("--gin.") else arg for arg in argv]


def path_in(folder: str, name: str) -> str:
    """Returns the path of a file in a folder. With it, gin files name a folder of data only once.

    Args:
      folder: the folder.
      name: the name of the file.
    """
    return os.path.join(folder, name)


# What gin, the modules that it imports, and the objects that it makes may raise.
_ERRORS = SyntaxError, ImportError, AttributeError, NameError, TypeError, ValueError


def build(
    cls: type[T],
    args: argparse.Namespace,
    overrides: Mapping[str, object],
    unneeded: Mapping[str, object] = MappingProxyType({}),
    needed: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Reads the gin files and flags, and constructs the `cls` that they describe.

    `overrides` are settings of separate flags, such as {"Data.limit": 3}; None keeps gin's value.
    `unneeded` has values for required macros that have no effect here, used if no file sets them.
    `needed` maps a class that a gin file must bind to the error if none does.
    """
    if not args.gin_file:
        raise UsageError(
            "nothing says what to run; give --gin_file=FILE, see configs/, or --target=DIR"
        )
    if args.tfds_data_dir:
        if "://" not in args.tfds_data_dir and not os.path.isdir(args.tfds_data_dir):
            raise UsageError(f"--tfds_data_dir {args.tfds_data_dir} is no folder; give one")
        tasks.use_tfds_data_dir(args.tfds_data_dir)
    statements = _read(args)
    _refuse_unread_macros(statements)
    for owner, message in needed.items():
        if not _bound(statements, owner):
            raise UsageError(message)
    _make_importable(args)
    values = {statement.macro: statement.value for statement in statements}
    for name, value in unneeded.items():
        if name in values and values[name] in (REQUIRED, None):
            statements.append(gin_statements.of_value(f"{name}/gin.macro.value", value))
    for key, value in overrides.items():
        if value is not None:
            statements.append(gin_statements.of_value(key, value))
    gin.clear_config()
    for statement in statements:
        _tell_gin(statement)
    _refuse_unset(statements)
    gin.finalize()
    return _construct(cls)


def binds(args: argparse.Namespace, owner: str) -> bool:
    """Returns whether the gin files bind fields of a class."""
    return _bound(_read(args), owner)


def _bound(statements: Iterable[GinStatement], owner: str) -> bool:
    return any(statement.owner == owner and statement.file for statement in statements)


def in_force() -> str:
    """Returns, as a gin file, the settings that the last `build` used."""
    return gin.operative_config_str()


def json_lines(path: str | None, in_force: str) -> Lines[Mapping[str, object]] | None:
    """Returns an empty file of JSON lines, None without a path; writes the settings next to it.

    Both files are made immediately, so that a missing folder is noticed.
    """
    if path is None:
        return None
    lines = Lines[Mapping[str, object]].of(Path(path), in_force)
    lines.replace(())
    return lines


def _read(args: argparse.Namespace) -> list[GinStatement]:
    """Returns the statements of a command's gin files, in order, and then those of its flags."""
    folders = _folders(args)
    paths = (gin_files.found(file, ["", *folders]) for file in args.gin_file)
    of_flags = (gin_statements.of_flag(binding) for binding in args.gin_bindings)
    try:
        of_files = [s for path in paths for s in gin_statements.of_file(path, folders)]
    except SyntaxError as error:
        raise UsageError(_message(error)) from error
    return [*of_files, *itertools.chain.from_iterable(of_flags)]


def files_of(args: argparse.Namespace) -> list[str]:
    """Returns the paths of the gin files of a command; none for a command without --gin_file."""
    folders, names = ["", *_search_paths(args)], vars(args).get("gin_file", [])
    return [path for name in names if (path := gin_files.path_of(name, folders)) is not None]


def _search_paths(args: argparse.Namespace) -> list[str]:
    return [*filter(None, vars(args).get("gin_search_paths", "").split(","))]


def _folders(args: argparse.Namespace) -> list[str]:
    """Returns the folders that are searched for included files before those of the package.

    The current folder is one of them only if the user names a gin file that is in it.
    """
    of_user = (path for path in files_of(args) if not isinstance(path, Own))
    is_here = any(os.path.dirname(os.path.abspath(path)) == os.getcwd() for path in of_user)
    return [*_search_paths(args), "."] if is_here else _search_paths(args)


def _refuse_unread_macros(statements: Sequence[GinStatement]) -> None:
    """Raises UsageError for a macro that no statement reads, such as a misspelt one.

    Macros that specdec's own files set are exempt, because not every drafter reads all of them.
    """
    read = {name for statement in statements for name in statement.macros()}
    for statement in statements:
        name = statement.macro
        if name is None or name in read or isinstance(statement.file, Own):
            continue
        hint = did_you_mean(name, read) or "; include the gin file that reads it"
        if file := gin_files.setting(name):
            hint = f"; include the gin file that reads it, {file}"
        raise UsageError(f"{statement.where}{name} is read by nothing{hint}")


def _make_importable(args: argparse.Namespace) -> None:
    """Lets a gin file of the user import the modules next to it, for example a drafter."""
    for path in files_of(args):
        folder = os.path.dirname(os.path.abspath(path))
        if not isinstance(path, Own) and folder not in sys.path:
            sys.path.append(folder)


def _tell_gin(statement: GinStatement) -> None:
    """Passes one statement to gin; raises a UsageError that names the statement's file and line."""
    try:
        if statement.source:
            gin.parse_config([*statement.imports, statement.source])
        else:
            gin.bind_parameter(statement.key, statement.value)
    except SyntaxError as error:  # of an imported module
        raise UsageError(_message(error)) from error
    except _ERRORS as error:
        message = _message(error)
        if isinstance(error, ModuleNotFoundError):
            message = f"{_own_message(error)}; check the name, or install it"
        elif isinstance(error, ValueError) and not _are_registered(statement):
            unknown = _own_message(error).removesuffix(".")
            message = f"{unknown}; check the name, and that a gin file imports its module"
        raise UsageError(f"{statement.where}{message}") from error


def _are_registered(statement: GinStatement) -> bool:
    """Returns whether gin knows every class and function that a statement names."""
    names = [reference.name for reference in statement.references()]
    try:
        for name in (*names, statement.owner):
            gin.get_configurable(name)
    except ValueError:
        return False
    return True


def _refuse_unset(statements: Sequence[GinStatement]) -> None:
    """Raises UsageError for a macro that is read but never set, and for a missing value."""
    bindings = [statement for statement in statements if statement.owner]
    names = {statement.macro for statement in bindings}
    for statement in bindings:
        for name in statement.macros():
            if name not in names and not _is_constant(name) and _is_in_force(statement):
                raise UsageError(
                    f"%{name} is read but never set; set it in a gin file or with "
                    f"--gin.{name}=VALUE"
                )
    for statement in bindings:
        if statement.value == REQUIRED and _is_in_force(statement):
            name = statement.name
            raise UsageError(f"{name} is required; set it in a gin file or with --gin.{name}=VALUE")


def _is_constant(name: str) -> bool:
    with contextlib.suppress(ValueError):
        gin.query_parameter(name)
        return True
    return False


def _is_in_force(statement: GinStatement) -> bool:
    """Returns whether no later statement has replaced the value of this one."""
    options = {"resolve_references": False, "inherit_scopes": False}
    values = gin.get_bindings(statement.owner, **options)
    return repr(values.get(statement.field)) == repr(statement.value)


# Python's error about a call without some arguments.
_MISSING = re.compile(r"(\w+)\.__init__\(\) missing \d+ required (?:positional|keyword)(.*)")


def _construct(cls: type[T]) -> T:
    missing = "the gin files describe no {}; include the command's skeleton, such as decode.gin"
    try:
        configured = gin.get_configurable(cls)
    except ValueError as error:
        raise UsageError(missing.format(cls.__name__)) from error
    try:
        return configured()
    except UsageError as error:
        raise UsageError(_own_message(error)) from error
    except _ERRORS as error:
        if match := _MISSING.match(str(error)):
            owner, fields = match[1], re.findall(r"'(\w+)'", match[2])
            selector = re.search(rf"@(?:\w+/)*([\w.]*\b{owner})\b", gin.config_str())
            text = missing.format(owner)
            if selector:  # a class that a gin file names, such as a drafter of the user
                lines = " and ".join(f"{selector[1]}.{field} = VALUE" for field in fields)
                text = f"no gin line gives {owner} its {' and '.join(fields)}; add {lines}"
            raise UsageError(text) from error
        scope = "" if isinstance(error, SyntaxError) else _scope(error)
        raise UsageError(f"{scope}{_message(error)}") from error


def _scope(error: Exception) -> str:
    """Returns the scope of the innermost gin call that failed, such as "draft: "; or ''."""
    scope = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals["__name__"] == gin.configurable.__module__:
            scope = frame.f_locals.get("scope_str", scope)
    return f"{scope}: " if scope else ""


def _own_message(error: BaseException) -> str:
    """Returns an error's message without the lines in which gin lists the calls.

    Gin replaces an error by one of a subclass with the same name.
    """
    while (cause := error.__context__) and (
        type(error).__base__ is type(cause) and type(error).__qualname__ == type(cause).__qualname__
    ):
        error = cause
    return str(error)


def _message(error: Exception) -> str:
    """Returns the message of an error as one line, with a remedy."""
    line = _own_message(error)
    if isinstance(error, SyntaxError):
        line = f"{error.filename}, line {error.lineno}: {error.msg}".replace("\n", " ")
    return line if "; " in line else f"{line.removesuffix('.')}; correct it"
