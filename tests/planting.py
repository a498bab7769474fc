"""Plants a bug: runs with a few characters of a module's source changed."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from support import forget_programs


@contextlib.contextmanager
def planted(module: ModuleType, before: str, after: str) -> Iterator[None]:
    """Runs with one place of a module's source changed; no compiled program is reused.

    Functions get new code and stay the same objects, so that every module which has imported them
    runs the bug. Decorators, defaults and constants outside of functions cannot be changed so.

    Args:
      module: the module.
      before: its source at one place; it must not occur twice, so that no plant rots unseen.
      after: what stands there instead.
    """
    source = inspect.getsource(module)
    assert source.count(before) == 1, f"{before!r} is {source.count(before)} times in {module}"
    with swapped(module, source.replace(before, after)):
        yield


@contextlib.contextmanager
def swapped(module: ModuleType, source: str) -> Iterator[None]:
    """Runs with the code of a module's functions from another source of it."""
    file = inspect.getsourcefile(module) or module.__name__
    codes = dict(codes_of(compile(source, file, "exec")))
    own = functions_of(module)
    old = {name: own[name].__code__ for name in codes if name in own}
    new = {name: codes[name] for name, code in old.items() if _body(codes[name]) != _body(code)}
    assert new, "no function's code is another one"
    forget_programs()
    try:
        for name, code in new.items():
            own[name].__code__ = code
        yield
    finally:
        for name in new:
            own[name].__code__ = old[name]
        forget_programs()


def codes_of(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Yields the functions and methods of a module, by their qualified names."""
    for one in code.co_consts:
        if isinstance(one, CodeType) and "<locals>" not in one.co_qualname:
            yield one.co_qualname, one
            yield from codes_of(one)


def functions_of(module: ModuleType) -> dict[str, FunctionType]:
    """Returns the functions and methods that a module defines, without their decorators."""
    values = list(vars(module).values())
    classes = [x for x in values if isinstance(x, type) and x.__module__ == module.__name__]
    values += [value for one in classes for value in vars(one).values()]
    functions = filter(None, map(_function, values))
    return {x.__qualname__: x for x in functions if x.__module__ == module.__name__}


def _function(value: Any) -> FunctionType | None:
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    elif isinstance(value, classmethod | staticmethod):
        value = value.__func__
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, FunctionType) else None


def _body(code: CodeType) -> tuple[Any, ...]:
    """Returns what a function does, without the lines on which it stands."""
    consts = [
        _body(one) if isinstance(one, CodeType) else (type(one), one) for one in code.co_consts
    ]
    return code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars
