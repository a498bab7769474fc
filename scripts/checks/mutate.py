"""Changes one operator or number at a time, and asks the tests whether they see it.

    python scripts/checks/mutate.py [--each 12] [--seed 0] [--only sampling] [--count 5]
    python scripts/checks/mutate.py --again          # those that survived: `ci` tests too
    python scripts/checks/mutate.py --sound          # the tests without any mutant
    python scripts/checks/mutate.py --table          # the table of docs/log/reliability-log.md

Of each package some places are drawn: one of each of its modules, then the second of each.
`mutate.toml` names the tests of a module. Those that kill most in their time run first, then the
short ones of each file. A mutant is killed if one of them fails. One whose tests do not end in time
is counted apart: in twice the processor time that they take without it, and a minute. The script
works on a copy and writes a line per mutant to `docs/results/mutants.jsonl`; given again, it
goes on. With `--sound` it runs the tests without a mutant: a test that fails then has killed none.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = ROOT / "docs" / "results" / "mutants.jsonl"
KEPT = Path(tempfile.gettempdir()) / "specdec.mutants"  # between calls
PROGRAMS = KEPT / "programs"  # compiled
TIMES = KEPT / "times.json"  # test -> [mutants that it killed, its seconds]
DEFAULT, MORE = "not slow and not planted and not ci", "not slow"  # which tests
IN_CI = ("training/", "models/")  # modules whose tests are mostly of `ci`
LIMIT = 600  # seconds of processor time, for tests whose own time is not known
TESTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {
    "minimum": "maximum",
    "maximum": "minimum",
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "argmax": "argmin",
    "argmin": "argmax",
}
RECORDS = {"strict"}  # arguments that only say what cannot happen


class Mutant(NamedTuple):
    """A module with one place changed."""

    module: str
    place: int  # its number among those that can be changed
    line: int
    before: str
    after: str
    source: str


def places(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    """What can be changed, and in which way: outside of annotations, decorators and what raises."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        without: list[ast.AST] = []
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.AnnAssign | ast.arguments):
            without = [node]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            without = [*node.decorator_list]
            if isinstance(node, ast.FunctionDef) and node.returns:
                without.append(node.returns)
        elif isinstance(node, ast.keyword) and node.arg in RECORDS:
            without = [node]
        skipped.update(id(part) for one in without for part in ast.walk(one))
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
            found.append((node, "op"))
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            found.append((node, "ops"))
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            found.append((node, "value"))
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            found.append((node, "attr"))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
            found.append((node, "operand"))
        elif isinstance(node, ast.Call) and len(node.args) == 3:
            if isinstance(node.func, ast.Attribute) and node.func.attr == "where":
                found.append((node, "args"))
    return found


def change(node: Any, way: str) -> None:
    if way == "op":
        node.op = SWAPS[type(node.op)]()
    elif way == "ops":
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif way == "value":
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif way == "attr":
        node.attr = NAMES[node.attr]
    elif way == "args":
        node.args[1:] = node.args[:0:-1]
    else:
        node.operand = ast.UnaryOp(node.op, node.operand)  # denied twice


def mutants(module: str, seed: int) -> Iterator[Mutant]:
    """All of a module's, in the order in which they are drawn."""
    source = (ROOT / "specdec" / module).read_text()
    total = len(places(ast.parse(source)))
    for place in random.Random(f"{seed} {module}").sample(range(total), total):
        tree = ast.parse(source)
        node, way = places(tree)[place]
        before, line = ast.unparse(node), node.lineno  # type: ignore[attr-defined]
        change(node, way)
        yield Mutant(module, place, line, before, ast.unparse(node), ast.unparse(tree))


def tests_of(module: str) -> list[str]:
    """Returns the tests of the longest beginning of a module's path that has some."""
    found = [name for name in TESTS if module.startswith(name)]
    return TESTS[max(found, key=len)] if found else []


def package(module: str) -> str:
    return module.split("/")[0].removesuffix(".py")


def of_package(modules: list[str], seed: int) -> Iterator[Mutant]:
    """One of every module of a package, then the next of each."""
    streams = [mutants(module, seed) for module in modules]
    while streams:
        following = [(stream, next(stream, None)) for stream in streams]
        yield from (mutant for _, mutant in following if mutant)
        streams = [stream for stream, mutant in following if mutant]


def drawn(each: int, seed: int, only: str) -> Iterator[Mutant]:
    """One of every package, then the next, until there are `each` of a package."""
    packages = collections.defaultdict(list)
    for file in sorted((ROOT / "specdec").rglob("*.py")):
        module = file.relative_to(ROOT / "specdec").as_posix()
        if only in module and tests_of(module):
            packages[package(module)].append(module)
    for modules in packages.values():
        random.Random(seed).shuffle(modules)
    streams = [of_package(modules, seed) for modules in packages.values()]
    for _ in range(each):
        for stream in streams:
            yield from (mutant for mutant in [next(stream, None)] if mutant)


def tested(
    tests: list[str], copy: Path, limit: int | None, marks: str = DEFAULT
) -> tuple[str, float]:
    """What tests say of a copy: 'survived', 'killed' or 'endless'; and their processor time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "mutate"]
    command += ["-m", marks, *tests]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(copy), str(Path(__file__).parent)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        # A mutant changes few of the programs; the others need not be compiled again.
        "JAX_COMPILATION_CACHE_DIR": str(PROGRAMS),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    begin = seconds_of_children()
    code = subprocess.run(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))),
    ).returncode
    seconds = round(seconds_of_children() - begin, 1)
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        if marks == MORE:
            raise SystemExit(f"{tests} have none that are {marks!r}")
        return tested(tests, copy, limit, MORE)
    if code == pytest.ExitCode.USAGE_ERROR:
        raise SystemExit(f"{tests} are not all there")
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "endless", seconds
    return "killed" if code else "survived", seconds


def seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts tests first that kill most in their time, and then short ones of each file."""
    times = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    files = {path: place for place, path in enumerate(dict.fromkeys(x.path for x in items))}

    def rank(item: pytest.Item) -> tuple[float, int, float]:
        killed, seconds = times.get(item.nodeid, (0, 0.0))
        return -killed / (seconds + 1), files[item.path], seconds

    items.sort(key=rank)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    times = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    killed, seconds = times.get(report.nodeid, (0, report.duration))
    if report.when == "call":
        times[report.nodeid] = killed + report.failed, round(min(seconds, report.duration), 2)
        TIMES.write_text(json.dumps(times))


def read() -> list[dict[str, Any]]:
    return list(map(json.loads, LINES.read_text().splitlines())) if LINES.exists() else []


def write(**line: Any) -> None:
    with LINES.open("a") as file:
        file.write(f"{json.dumps(line)}\n")
    print(*line.values(), flush=True)


def outcomes() -> dict[tuple[str, int], list[str]]:
    """(module, place) -> what was seen, in order: a survivor may be tried again."""
    seen = collections.defaultdict(list)
    for line in read():
        if "place" in line:
            seen[line["module"], line["place"]].append(line["outcome"])
    return seen


def table() -> str:
    """Mutants by folder."""
    rows = collections.defaultdict(collections.Counter)
    for (module, _), (first, *later) in outcomes().items():
        final = "since" if first == "survived" and "killed" in later else first
        for name in (package(module), "all"):
            rows[name].update(["drawn", final])
    rows["all"] = rows.pop("all")
    lines = [
        "| | mutants | killed | tests did not end | killed by more tests | survive |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        counts = (row[x] for x in ("drawn", "killed", "endless", "since", "survived"))
        name = "**all**" if name == "all" else f"`{name}`"
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def try_out(todo: list[Mutant], copy: Path, marks: str) -> None:
    """A line for each mutant."""
    usual = {line["tests"]: line["seconds"] for line in read() if "tests" in line}
    for mutant in todo:
        tests, file = tests_of(mutant.module), copy / "specdec" / mutant.module
        known = [usual.get(one) for one in tests]
        limit = LIMIT if None in known or marks != DEFAULT else int(2 * sum(known) + 60)
        sound = file.read_text()
        file.write_text(mutant.source)
        of_ci = mutant.module.startswith(IN_CI)
        outcome, seconds = tested(tests, copy, limit, MORE if of_ci else marks)
        file.write_text(sound)
        what = mutant._asdict()
        del what["source"]
        write(outcome=outcome, **what, seconds=seconds)


def sound(todo: list[str], copy: Path) -> None:
    """A line for each file of tests, which must pass."""
    for one in todo:
        in_ci = one.startswith(tuple(f"tests/{folder}" for folder in IN_CI))
        outcome, seconds = tested([one], copy, None, MORE if in_ci else DEFAULT)
        if outcome != "survived":
            raise SystemExit(f"{one} fails as it is")
        write(tests=one, seconds=seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=12, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="modules whose path has this")
    parser.add_argument("--count", type=int, help="end after so many; given again, it goes on")
    parser.add_argument("--again", action="store_true", help="those that survived, with more tests")
    parser.add_argument("--sound", action="store_true", help="run the tests without any mutant")
    parser.add_argument("--table", action="store_true", help="print what was seen so far")
    args = parser.parse_args()
    if args.table:
        print(table())
        return
    seen, measured = outcomes(), {line.get("tests") for line in read()}
    mutants_left = [
        mutant
        for mutant in drawn(args.each, args.seed, args.only)
        if seen.get(mutant[:2], ["survived"])[-1] == "survived"
        and args.again == (mutant[:2] in seen)
    ]
    files_left = sorted({one for tests in TESTS.values() for one in tests} - measured)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", "results"))
        if args.sound:
            sound(files_left[: args.count], copy)
        else:
            try_out(mutants_left[: args.count], copy, MORE if args.again else DEFAULT)


if __name__ == "__main__":
    main()
