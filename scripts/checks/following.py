"""How far a reader walks who follows the arguments of a command through the code.

The walk starts at the function of a command, in the order of the source, and goes into each
function of the package that is given the arguments: the flags, or one of them, alone or inside a
plain expression. A function that returns the flags passes them on; the result of another function
is no argument any more. Each function is entered once. A stay is what lies between two changes of
the file: going into a function of another file ends one, and so does coming back from it.

Not followed are methods of objects, and what a base class or a decorator does.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).resolve().parents[2]
FLAGS = "argparse.Namespace"
MADE_BY = "__init__", "__post_init__"


class Walk(NamedTuple):
    """A walk through files, in which neighbours differ."""

    files: tuple[str, ...]

    @property
    def counts(self) -> tuple[int, int, int]:
        """The stays, the files, and the returns to a file that was left before."""
        stays, files = len(self.files), len(set(self.files))
        return stays, files, stays - files


class Module:
    """A file of the package, with what its names stand for."""

    def __init__(self, path: Path):
        self.path = path
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.defined = {
            node.name: node
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        self.imported = {
            name.asname or name.name: f"{node.module}.{name.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for name in node.names
        }


Found: TypeAlias = tuple[Module, ast.FunctionDef, Sequence[str]]  # with its parameters


@functools.cache
def module_of(name: str) -> Module | None:
    """Returns the module of a dotted name, None for other names."""
    path = ROOT.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((Module(file) for file in files if file.is_file()), None)


def found(module: Module, names: Sequence[str]) -> Found | None:
    """Returns the function that a dotted name stands for in a module; of a class what makes it."""
    first, *rest = names
    if first in module.imported:
        whole = module.imported[first]
        if (inner := module_of(whole)) is not None:
            return found(inner, rest) if rest else None
        outer = module_of(whole.rpartition(".")[0])
        return outer and found(outer, [whole.rpartition(".")[2], *rest])
    node = module.defined.get(first)
    if isinstance(node, ast.ClassDef):
        methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
        wanted = rest[:1] or [name for name in MADE_BY if name in methods][:1]
        method = methods.get(wanted[0]) if wanted else None
        return method and (module, method, parameters(method)[1:])
    return (module, node, parameters(node)) if node is not None and not rest else None


def parameters(function: ast.FunctionDef) -> list[str]:
    """Returns the names of a function's parameters."""
    given = function.args
    return [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def dotted(node: ast.expr) -> list[str]:
    """Returns the parts of a dotted name; none of another expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = dotted(node.value) if isinstance(node, ast.Attribute) else []
    return [*before, node.attr] if before and isinstance(node, ast.Attribute) else []


class Follower:
    """Walks from a function on."""

    def __init__(self):
        self._entered: set[tuple[Path, int]] = set()

    def files(self, module: Module, function: ast.FunctionDef, given: set[str]) -> Iterator[Path]:
        """Yields the file of each place of a walk.

        Args:
          module: of the function.
          function: in which it starts.
          given: the names of its parameters that have the arguments.
        """
        self._entered.add((module.path, function.lineno))
        yield module.path
        for call in calls(function.body):
            called = found(module, names) if (names := dotted(call.func)) else None
            inside = called and self._given(module, call, called[2], given)
            if called and inside and (called[0].path, called[1].lineno) not in self._entered:
                yield from self.files(called[0], called[1], inside)
                yield module.path

    def _given(
        self, module: Module, call: ast.Call, names: Sequence[str], given: set[str]
    ) -> set[str]:
        """Returns the parameters of a called function that get the arguments."""
        values = list(zip(names, call.args, strict=False))
        values += [(one.arg or "**", one.value) for one in call.keywords]
        return {name for name, value in values if self._has(module, value, given)}

    def _has(self, module: Module, node: ast.AST, given: set[str]) -> bool:
        """Returns whether an expression has the arguments."""
        if isinstance(node, ast.Name):
            return node.id in given
        if isinstance(node, ast.Call) and (names := dotted(node.func)):
            called = found(module, names)
            returned = called and called[1].returns
            if called and (returned is None or ast.unparse(returned) != FLAGS):
                return False
        return any(self._has(module, child, given) for child in ast.iter_child_nodes(node))


def calls(body: Sequence[ast.AST]) -> Iterator[ast.Call]:
    """Yields the calls of some statements in the order of evaluation, without inner functions."""
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from calls(list(ast.iter_child_nodes(node)))
            if isinstance(node, ast.Call):
                yield node


def followed(command: str) -> Walk:
    """Returns the walk of a command of `specdec.cli`."""
    module = module_of(f"specdec.cli.{command}")
    assert module is not None
    start = module.defined["command"]
    assert isinstance(start, ast.FunctionDef)
    walk: list[str] = []
    for path in Follower().files(module, start, {"args"}):
        name = path.relative_to(ROOT).as_posix()
        walk += [name] if walk[-1:] != [name] else []
    return Walk(tuple(walk))


if __name__ == "__main__":
    import sys

    for one in sys.argv[1:]:
        print(one, *followed(one).counts)
        print(*followed(one).files, sep="\n")
