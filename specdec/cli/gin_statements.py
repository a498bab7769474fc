"""Parses gin text into statements with their values and their places in files."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tokenize
from collections.abc import Iterator, Mapping, Sequence

from gin import config_parser
from specdec.cli import gin_files
from specdec.cli.gin_files import Own
from specdec.common.values import UsageError


@dataclasses.dataclass(frozen=True, repr=False)
class Reference:
    """The gin value `@name`, or `@name()` if gin calls it; `name` includes its scopes."""

    name: str
    is_called: bool

    def __repr__(self) -> str:
        return f"@{self.name}{'()' if self.is_called else ''}"


@dataclasses.dataclass(frozen=True, repr=False)
class Macro:
    """The gin value `%name`."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


REQUIRED = Macro("gin.REQUIRED")


@dataclasses.dataclass(frozen=True)
class GinStatement:
    """One statement of gin text: a binding or an import."""

    source: str  # its gin text on one line; '' if only `value` is known
    where: str = ""  # "FILE, line N: ", '' for a flag
    file: str = ""  # the path of its file, '' for a flag
    imports: tuple[str, ...] = ()  # the imports above it in its file
    owner: str = ""  # a binding's class or function with its scopes, 'NAME/gin.macro' for a macro
    field: str = ""
    value: object = None

    @property
    def macro(self) -> str | None:
        """The name, with scopes, of the macro that the statement sets; None if it sets no macro."""
        name, slash, kind = self.owner.rpartition("/")
        return name if slash and kind == "gin.macro" else None

    @property
    def key(self) -> str:
        """The field that the statement sets, as gin names it: `owner.field`."""
        return f"{self.owner}.{self.field}"

    @property
    def name(self) -> str:
        """The field that the statement sets, as users name it: a macro's name, or `key`."""
        return self.macro or self.key

    def macros(self) -> Iterator[str]:
        """Yields the names of the macros in the statement's value."""
        return (part.name for part in _parts(self.value) if isinstance(part, Macro))

    def references(self) -> Iterator[Reference]:
        """Yields the references in the statement's value."""
        return (part for part in _parts(self.value) if isinstance(part, Reference))


def of_file(
    path: str, folders: Sequence[str], within: tuple[str, ...] = ()
) -> Iterator[GinStatement]:
    """Yields the statements of a gin file and of the files that it includes."""
    imports: tuple[str, ...] = ()
    with _readable(path), open(path, encoding="utf-8") as text:
        for parsed in config_parser.ConfigParser(text, _Values()):
            where = f"{path}, line {parsed.location.line_num}: "
            if isinstance(parsed, config_parser.ImportStatement):
                yield GinStatement(parsed.format(), where, path, imports)
                imports = (*imports, parsed.format())
            elif isinstance(parsed, config_parser.BindingStatement):
                yield _binding(parsed, where, path, imports)
            elif isinstance(parsed, config_parser.IncludeStatement):
                name = Own(parsed.filename) if isinstance(path, Own) else parsed.filename
                included = gin_files.found(name, folders, where)
                if included in (*within, path):
                    raise UsageError(
                        f"{where}{parsed.filename} includes itself; leave that line out"
                    )
                yield from of_file(included, folders, (*within, path))


def of_value(key: str, value: object) -> GinStatement:
    """Returns the statement that sets a field to a value."""
    owner, _, field = key.rpartition(".")
    return GinStatement("", owner=owner, field=field, value=value)


def of_flag(binding: str) -> list[GinStatement]:
    """Returns the statements of a flag `--gin.BINDING`."""
    name, _, value = binding.partition("=")
    try:
        parsed = list(config_parser.ConfigParser(binding, _Values()))
        bindings = [s for s in parsed if isinstance(s, config_parser.BindingStatement)]
        if not bindings or len(bindings) < len(parsed):
            raise ValueError("only bindings can be flags")
        return list(map(_binding, bindings))
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        quotes, what = "strings need quotes that reach gin", f"{value or 'nothing'} is not a value"
        remedy = f"{quotes}: --gin.{name}=\"'{value}'\""
        if not value:
            remedy = f"give one, as in --gin.{name}=VALUE; {quotes}"
        elif value[0] in "([{":
            remedy = f"close its brackets; {quotes}"
        raise UsageError(f"--gin.{binding}: {what}; {remedy}") from error


def _binding(
    parsed: config_parser.BindingStatement,
    where: str = "",
    path: str = "",
    imports: tuple[str, ...] = (),
) -> GinStatement:
    owner = "/".join(filter(None, (parsed.scope, parsed.selector)))
    source = f"{owner}{'.' * bool(parsed.arg_name)}{parsed.arg_name} = {_source(parsed.value)}"
    target = (owner, parsed.arg_name) if parsed.arg_name else (f"{owner}/gin.macro", "value")
    return GinStatement(source, where, path, imports, *target, parsed.value)


class _Values(config_parser.ParserDelegate):
    """Makes the values of references and macros, so that no module has to be imported."""

    def configurable_reference(self, scoped_configurable_name, evaluate):
        return Reference(scoped_configurable_name, evaluate)

    def macro(self, macro_name):
        return Macro(macro_name)


def _source(value: object) -> str:
    """Returns a value in gin's syntax, in which infinity is 1e999 because it has no name."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_source(k)}: {_source(x)}" for k, x in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{_source(item)}, " for item in value) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(_source, value)) + "]"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return repr(value)


def _parts(value: object) -> Iterator[object]:
    """Yields the elements of nested tuples, lists and dicts, or a single value."""
    if isinstance(value, Mapping):
        value = (*value.keys(), *value.values())
    if isinstance(value, tuple | list):
        for part in value:
            yield from _parts(part)
    else:
        yield value


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """Raises a UsageError with the path for a file that is not UTF-8 or leaves a bracket open."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text; give a gin file in UTF-8") from error
    except tokenize.TokenError as error:
        raise UsageError(f"{path}: a bracket or quote is never closed; close it") from error
