"""Declares what values that users give must be, and checks them.

A dataclass that is `Checked` declares it in the annotations of its fields:

    @dataclasses.dataclass(frozen=True)
    class Window(Checked):
        size: PositiveInt
        limit: PositiveInt | None = None

`Window(0)` raises ValueError: "Window.size is 0; give a positive integer". True is no number here,
though Python's bool is an int.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import math
import numbers
import types
from collections.abc import Callable, Iterable, Iterator
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

SEEDS = 2**32  # larger ones would draw what smaller ones draw: JAX keeps 32 bits


class UsageError(ValueError):
    """What the user gave cannot work; the message is one line."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns '; did you mean X?' with the nearest of the known words, '' if none is near."""
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def is_integer(value: Any, least: int) -> TypeGuard[int]:
    """Whether it is an integer, and `least` or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)  # NumPy's too
    given: Any = value
    return real and -math.inf < given < math.inf


def is_word(value: Any) -> TypeGuard[str]:
    """Whether it is text with something in it."""
    return isinstance(value, str) and bool(value)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A condition on values, for `Annotated`.

    holds: whether a value fulfils it; it takes any object.
    remedy: what an error tells to give.
    """

    holds: Callable[[Any], bool] = dataclasses.field(repr=False)
    remedy: str

    def check(self, name: str, value: Any, error: type[ValueError] = ValueError) -> None:
        """Raises an error unless the value fulfils it."""
        if not self.holds(value):
            raise error(f"{name} is {value!r}; give {self.remedy}")


def number(holds: Callable[[float], bool], remedy: str) -> Rule:
    """Returns a rule of finite numbers."""
    return Rule(lambda value: is_number(value) and holds(value), remedy)


def one_of(words: Iterable[Any]) -> Rule:
    """Returns a rule of words, or numbers, that are known: that of `Literal` as well."""
    known = [(type(word), word) for word in words]
    remedy = f"one of {', '.join(repr(word) for _, word in known)}"
    return Rule(lambda value: (type(value), value) in known, remedy)


def row_of(least: int, remedy: str, *, ascending: bool = False, empty: bool = False) -> Rule:
    """Returns a rule of tuples of integers, `least` or more each; a list is one as well.

    ascending: they must be so, and each one comes once.
    empty: whether there may be none.
    """

    def holds(value: Any) -> bool:
        if not isinstance(value, list | tuple) or not (value or empty):
            return False
        row = all(is_integer(one, least) for one in value)
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
Seed = Annotated[
    int,
    Rule(lambda value: is_integer(value, 0) and value < SEEDS, f"an integer from 0 to {SEEDS - 1}"),
]
TokenIds = Annotated[tuple[int, ...], row_of(0, "token ids, as in (5, 7)")]


def check(name: str, value: Any, kind: Any, error: type[ValueError] = ValueError) -> None:
    """Raises an error unless a value is what a type declares, such as `PositiveInt | None`."""
    if (rule := rule_of(kind)) is not None:
        rule.check(name, value, error)


def rule_of(kind: Any) -> Rule | None:
    """Returns the rule that a type declares, which holds of None where the type allows it."""
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    annotated = [part.__metadata__ for part in parts if get_origin(part) is Annotated]
    rules = [one for metadata in annotated for one in metadata if isinstance(one, Rule)]
    rules += [one_of(get_args(part)) for part in parts if get_origin(part) is Literal]
    if not rules:
        return None
    [rule] = rules
    if types.NoneType not in parts:
        return rule
    return Rule(lambda value: value is None or rule.holds(value), f"{rule.remedy}, or None")


class Checked:
    """Base of a dataclass whose annotations declare what its fields must be.

    A subclass with a `__post_init__` of its own calls this one. Lists become tuples in fields that
    have a rule: gin and JSON give lists, and what is frozen must be hashable.

    error: what is raised.
    """

    error: ClassVar[type[ValueError]] = ValueError

    def __post_init__(self):
        for name, rule in _declared(type(self)).items():
            value = getattr(self, name)
            rule.check(f"{type(self).__name__}.{name}", value, self.error)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))


def fields_of(value: Any, kind: Any = None) -> dict[str, Any]:
    """Returns the fields of a dataclass by name, as they are; of those, the ones that `kind` has,
    a class that it inherits."""
    fields = dataclasses.fields(kind or value)
    return {field.name: getattr(value, field.name) for field in fields}


@functools.cache
def _declared(cls: type) -> dict[str, Rule]:
    """Returns the rules of a dataclass, by field."""
    hints = get_type_hints(cls, include_extras=True)
    rules = {name: rule_of(kind) for name, kind in hints.items()}
    return {name: rule for name, rule in rules.items() if rule is not None}


def check_is(name: str, value: Any, kind: type, remedy: str) -> None:
    """Raises ValueError unless a part is of its kind; `remedy` is what to give."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r}; give {remedy}")


def check_has(name: str, value: Any, methods: str, remedy: str) -> None:
    """Raises ValueError unless a part has the attributes, divided by spaces, that tell its kind."""
    if not all(hasattr(value, method) for method in methods.split()):
        raise ValueError(f"{name} is {value!r}; give {remedy}")


@contextlib.contextmanager
def one_line(prefix: str = "") -> Iterator[None]:
    """Raises what goes wrong with a user's values as a UsageError, behind a prefix."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{prefix}{error}") from error
