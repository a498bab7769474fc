"""Declares what users' values must be, and checks them.

A dataclass that is `Checked` declares its rules in the annotations of its fields:

  @dataclasses.dataclass(frozen=True)
  class Window(Checked):
      size: PositiveInt
      limit: PositiveInt | None = None

`Window(0)` raises ValueError: "Window.size is 0; give a positive integer". True is not accepted as
a number, though Python's bool is an int.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import math
import numbers
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeGuard,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
SEEDS = 2**32  # larger ones would draw what smaller ones draw: JAX keeps 32 bits


class UsageError(ValueError):
    """A user's input cannot work; the message is one line."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns '; did you mean X?' with the nearest of the known words, '' if none is near."""
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def is_integer(value: object, least: int) -> TypeGuard[int]:
    """Returns whether a value is an integer, and `least` or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a value is a finite number."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):  # NumPy's are Real too
        return False
    return value < math.inf and not value <= -math.inf


def is_word(value: object) -> TypeGuard[str]:
    """Returns whether a value is a text that is not empty."""
    return isinstance(value, str) and bool(value)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A condition on the values of a field, given in its annotation by `Annotated`."""

    # returns whether a value satisfies it; it accepts any object
    holds: Callable[[object], bool] = dataclasses.field(repr=False)
    remedy: str  # the values to give, in words

    def check(self, name: str, value: object, error: type[ValueError] = ValueError) -> None:
        """Raises an error unless the value satisfies the rule."""
        if not self.holds(value):
            raise error(f"{name} is {value!r}; give {self.remedy}")


def number(holds: Callable[[float], bool], remedy: str) -> Rule:
    """Returns a rule for finite numbers that satisfy `holds`."""
    return Rule(lambda value: is_number(value) and holds(value), remedy)


def one_of(words: Iterable[object]) -> Rule:
    """Returns a rule that allows only the given words or numbers."""
    known = [(type(word), word) for word in words]
    remedy = f"one of {', '.join(repr(word) for _, word in known)}"
    return Rule(lambda value: (type(value), value) in known, remedy)


def integers(least: int, most: int) -> Rule:
    """Returns a rule for integers from `least` to `most`."""
    remedy = f"an integer from {least} to {most}"
    return Rule(lambda value: is_integer(value, least) and value <= most, remedy)


def row_of(least: int, remedy: str, *, ascending: bool = False, empty: bool = False) -> Rule:
    """Returns a rule for tuples or lists of integers, each `least` or more."""

    def holds(value: object) -> bool:
        if not isinstance(value, list | tuple) or not (value or empty):
            return False
        row = all(is_integer(item, least) for item in value)
        return row and (not ascending or sorted(set(value)) == list(value))

    return Rule(holds, remedy)


Text = Annotated[str, Rule(lambda value: isinstance(value, str), "text")]
Word = Annotated[str, Rule(is_word, "a word")]
PositiveInt = Annotated[int, Rule(lambda value: is_integer(value, 1), "a positive integer")]
NonNegativeInt = Annotated[int, Rule(lambda value: is_integer(value, 0), "an integer from 0 on")]
Number = Annotated[float, Rule(is_number, "a number")]
PositiveFloat = Annotated[float, number(lambda x: x > 0, "a positive number")]
NonNegativeFloat = Annotated[float, number(lambda x: x >= 0, "a number from 0 on")]
Probability = Annotated[
    float, number(lambda x: 0 <= x <= 1, "a probability, from 0 to 1, as in 0.4")
]
PositiveShare = Annotated[float, number(lambda x: 0 < x <= 1, "a number above 0, up to 1")]
InsideUnit = Annotated[float, number(lambda x: 0 < x < 1, "a number between 0 and 1")]
Seed = Annotated[int, integers(0, SEEDS - 1)]
TokenIds = Annotated[tuple[int, ...], row_of(0, "token ids, as in (5, 7)")]


def check(name: str, value: object, kind: object, error: type[ValueError] = ValueError) -> None:
    """Raises an error unless a value is what a type declares, such as `PositiveInt | None`."""
    if (rule := rule_of(kind)) is not None:
        rule.check(name, value, error)


def rule_of(kind: object) -> Rule | None:
    """Returns the rule that a type declares, if any; it accepts None if the type does."""
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    annotated = [get_args(part)[1:] for part in parts if get_origin(part) is Annotated]
    rules = [rule for metadata in annotated for rule in metadata if isinstance(rule, Rule)]
    rules += [one_of(get_args(part)) for part in parts if get_origin(part) is Literal]
    if not rules:
        return None
    [rule] = rules
    classes = tuple(x for x in parts if isinstance(x, type) and x is not types.NoneType)
    if classes:
        names = ", ".join(f"a {each.__name__}" for each in classes)
        rule = _either(rule, lambda value: isinstance(value, classes), names)
    return _either(rule, lambda value: value is None, "None") if types.NoneType in parts else rule


def _either(rule: Rule, holds: Callable[[object], bool], remedy: str) -> Rule:
    """Returns a rule that a value satisfies by `rule` or by `holds`."""
    return Rule(lambda value: holds(value) or rule.holds(value), f"{rule.remedy}, or {remedy}")


class Checked:
    """Base of a dataclass whose annotations declare the rules of its fields.

    A subclass with its own `__post_init__` calls this one. Lists become tuples in fields that have
    a rule, because gin and JSON give lists, and frozen values must be hashable.
    """

    error: ClassVar[type[ValueError]] = ValueError  # the class of errors

    def __post_init__(self):
        for name, rule in _declared(type(self)).items():
            value = getattr(self, name)
            rule.check(f"{type(self).__name__}.{name}", value, self.error)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))


def fields_of(
    value: DataclassInstance, kind: type[DataclassInstance] | None = None
) -> dict[str, Any]:
    """Returns the fields of a dataclass, or only those of its base `kind`, by name."""
    fields = dataclasses.fields(kind or value)
    return {field.name: getattr(value, field.name) for field in fields}


@functools.cache
def _declared(cls: type) -> dict[str, Rule]:
    """Returns the rules of a dataclass, by field."""
    hints = get_type_hints(cls, include_extras=True)
    rules = {name: rule_of(kind) for name, kind in hints.items()}
    return {name: rule for name, rule in rules.items() if rule is not None}


def from_plain(kind: type[T], value: object, name: str) -> T:
    """Converts a value of TOML or JSON to a dataclass; `name` begins the errors."""
    return cast(T, _from_plain(kind, value, name))


def _from_plain(kind: object, value: object, name: str) -> object:
    if (rule := rule_of(kind)) is not None:
        rule.check(name, value)
        return value
    if get_origin(kind) in (Union, types.UnionType):
        kind = get_args(kind)[0]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind, include_extras=True)
        for each in value.keys() - hints:
            hint = did_you_mean(each, hints) or f"; give some of {', '.join(hints)}"
            raise ValueError(f"{name} has {each!r}, which nothing reads{hint}")
        for each in dataclasses.fields(kind):
            if each.default is each.default_factory and each.name not in value:  # both are MISSING
                raise ValueError(f"{name} has no {each.name!r}; give it")
        return kind(**{k: _from_plain(hints[k], x, f"{name}.{k}") for k, x in value.items()})
    origin, *parts = get_origin(kind) or kind, *get_args(kind)
    if origin is Mapping and isinstance(value, dict):
        return {k: _from_plain(parts[1], x, f"{name}.{k}") for k, x in value.items()}
    if origin is Sequence and isinstance(value, list):
        return [_from_plain(parts[0], x, f"{name}[{i}]") for i, x in enumerate(value)]
    if type(value) is origin or (origin is float and is_number(value)):
        return value
    words = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
    words |= {Sequence: "a list"}
    raise ValueError(f"{name} is {value!r}; give {words.get(origin, 'a table')}")


def check_is(name: str, value: object, kind: type, remedy: str) -> None:
    """Raises ValueError unless a value is an instance of `kind`; `remedy` ends the error."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r}; give {remedy}")


def check_has(name: str, value: object, methods: str, remedy: str) -> None:
    """Raises ValueError unless a value has the attributes in `methods`, separated by spaces."""
    if not all(hasattr(value, method) for method in methods.split()):
        raise ValueError(f"{name} is {value!r}; give {remedy}")


@contextlib.contextmanager
def one_line(prefix: str = "", kind: type[ValueError] = UsageError) -> Iterator[None]:
    """Converts a ValueError inside it to a `kind`, with a prefix before the message."""
    try:
        yield
    except ValueError as error:
        raise kind(f"{prefix}{error}") from error
