"""Reads JSON, which may be damaged or come from any source, as a value of a declared kind.

A kind is a type that `msgspec` knows, such as `list[int]` or a `TypedDict`. An object keeps fields
that its kind does not have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias, TypedDict, TypeVar, cast, get_type_hints

T = TypeVar("T")

# An object from a file; the code that uses a value checks it.
JsonObject: TypeAlias = Mapping[str, Any]


def parsed(content: str | bytes, kind: type[T] = dict[str, Any], *, nan: bool = False) -> T:
    """Returns the value of a JSON text; raises ValueError unless it is JSON and of `kind`."""
    constant, number = (None, None) if nan else (_finite, _finite)
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        value = json.loads(text, parse_constant=constant, parse_float=number)
    except RecursionError as error:
        raise ValueError("is not JSON (too many brackets inside each other)") from error
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from error
    check_kind(value, kind)
    return value


def check_kind(value: object, kind: object) -> None:
    """Raises ValueError unless a JSON value is of a kind."""
    converted(value, cast(type, kind))


def converted(value: object, kind: type[T]) -> T:
    """Converts a JSON value to a kind, which may contain dataclasses; raises ValueError."""
    import msgspec  # slow to import

    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).replace("`", "").partition(" - at $")
        where = f"has a wrong {path.lstrip('.')}" if path else "is no such JSON object"
        raise ValueError(f"{where}: {message[:1].lower()}{message[1:]}") from error
    except RecursionError as error:
        raise ValueError("has too many brackets inside each other") from error


def record_of(kind: type[T], fields: Mapping[str, object], **replaced: object) -> T:
    """Makes a dataclass or NamedTuple from JSON fields, checked, and from `replaced` fields."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name in fields.keys() - replaced.keys():
            check_kind({name: fields[name]}, TypedDict("_Kind", {name: hint}))  # pyright: ignore
    return kind(**{**fields, **replaced})


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text[:20]}")
    return number
