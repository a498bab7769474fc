"""Reads JSON, which may be damaged or come from any source, as a value of a declared kind.

A kind is a type that `msgspec` knows, such as `list[int]` or a `TypedDict`. An object may have more
names than its kind, and keeps them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias, TypedDict, TypeVar, get_type_hints

T = TypeVar("T")

# It was read from a file, and a reader checks the values that it uses.
JsonObject: TypeAlias = Mapping[str, Any]


def parsed(content: str | bytes, kind: type[T] = dict[str, Any], *, nan: bool = False) -> T:
    """Returns the value of a JSON text.

    Args:
      content: the text; bytes are UTF-8.
      kind: what the value has to be.
      nan: whether NaN and infinity, which are no JSON, are read as Python writes them.

    Raises:
      ValueError: it is not JSON, or not of this kind. The message has no subject, as in "has a
        wrong layers[2]: expected int, got str".
    """
    constant, number = (None, None) if nan else (_finite, _finite)
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        found = json.loads(text, parse_constant=constant, parse_float=number)
    except RecursionError as error:
        raise ValueError("is not JSON (too many brackets inside each other)") from error
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from error
    check_kind(found, kind)
    return found


def check_kind(value: object, kind: object) -> None:
    """Raises ValueError, as `parsed`, unless a value of JSON is of a kind."""
    import msgspec  # not before a file is read

    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        said, _, place = str(error).replace("`", "").partition(" - at $")
        where = f"has a wrong {place.lstrip('.')}" if place else "is no such JSON object"
        said = re.sub("^[A-Z]", lambda first: first[0].lower(), said)
        raise ValueError(f"{where}: {said}") from error
    except RecursionError as error:
        raise ValueError("has too many brackets inside each other") from error


def record_of(kind: type[T], fields: Mapping[str, object], **made: object) -> T:
    """Returns an object of a dataclass or a NamedTuple.

    Args:
      kind: the class.
      fields: its arguments by name.
      **made: arguments in place of some of these, which are not checked.

    Raises:
      ValueError: an argument is of another type than its field.
      TypeError: there is no such field, or one is missing.
    """
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name in fields.keys() - made.keys():
            check_kind({name: fields[name]}, TypedDict("_Kind", {name: hint}))  # pyright: ignore
    return kind(**{**fields, **made})


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text[:20]}")
    return number
