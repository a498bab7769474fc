"""Changes one place of a module at a time, and asks the tests whether they notice.

    python scripts/checks/mutate.py --only tasks/media.py  # the mutants of one module
    python scripts/checks/mutate.py --each 20              # up to 20 of every module
    python scripts/checks/mutate.py --again                # those that survived, once more
    python scripts/checks/mutate.py --cover [TESTS]        # first: which test runs which line
    python scripts/checks/mutate.py --page                 # only docs/reference/mutants.md

`--cover` runs the default suite and the tests marked `ci`, or those of the given files, under
coverage (`pip install pytest-cov`). A mutant is then tried by the tests that run its line, and
after them by those that run its function: tests that noticed other mutants first, then quick ones,
`--seconds` of processor time in all. Each has a line in `docs/results/mutants.jsonl`. Started
again, the script goes on; it drops lines whose place or test is gone. A survivor that changes
nothing gets a reason by hand: `"reason": "..."` in its line.

The process imports libraries, but nothing of specdec, and forks for each mutant. The child compiles
the module with the change when a test imports it. Tests run in a copy of the checkout.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import collections
import contextlib
import copy
import difflib
import fcntl
import functools
import hashlib
import importlib.machinery
import itertools
import json
import os
import re
import resource
import runpy
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LINES = ROOT / "docs" / "results" / "mutants.jsonl"
PAGE = ROOT / "docs" / "reference" / "mutants.md"
KEPT = Path(os.environ.get("SPECDEC_MUTANTS", Path(tempfile.gettempdir()) / "specdec.mutants"))
COVERAGE = KEPT / "coverage"  # a folder for each run: which test runs which line, and the sources
TIMES = KEPT / "times.json"  # test -> [mutants that it killed, its seconds]
OWN = KEPT / f"process.{os.getpid()}"  # the copy of the checkout, and temporary files
SINCE = "2a02fc98"  # lines that are newer come first
LIBRARIES = (  # imported once. What starts threads when it is imported cannot be here.
    "pytest jax flax.linen flax.struct optax orbax.checkpoint tensorstore scipy.stats sentencepiece"
    " tokenizers matplotlib.pyplot hypothesis jinja2 soundfile soxr PIL.Image sacrebleu jsonschema"
).split()
IMPORTED = "(when it is imported)"  # in place of a test
MEMORY = 10 * 2**30  # bytes that a mutant may take
LARGE = 1000  # numbers from this on are doubled, as one more is lost in figures that are rounded
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {"minimum": "maximum", "min": "max", "any": "all", "argmax": "argmin", "floor": "ceil"}
NAMES |= {other: name for name, other in NAMES.items()}
# Arguments that are words for people, or only say what cannot happen.
RECORDS = {"strict", "repr", "help", "metavar", "description"}


class Mutant(NamedTuple):
    """A changed place. It is known by its function and its text, so that lines may move."""

    module: str
    function: str
    before: str
    after: str
    nth: int  # of the same changes in this function


class Site(NamedTuple):
    """A place of the source that can be changed: `owner.field` becomes `value`."""

    owner: Any
    field: str
    value: Any
    shown: Any  # the node or nodes whose text says what is changed
    function: str  # where it is, with the classes around it
    statement: ast.stmt


def sites(tree: ast.Module) -> Iterator[Site]:
    """Yields what can be changed, outside of annotations, decorators and statements that raise."""

    def visit(node: Any, parent: Any, field: str, function: str, statement: Any) -> Iterator[Site]:
        def site(field: str, value: Any, shown: Any = None) -> Site:
            return Site(node, field, value, shown or [node], function, statement)

        def instead(value: ast.AST) -> Site:
            old = getattr(parent, field)
            if isinstance(old, list):
                value = [value if one is node else one for one in old]  # type: ignore[assignment]
            return Site(parent, field, value, None, function, statement)

        match node:
            case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom() | ast.Global():
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.BinOp() | ast.BoolOp() if type(node.op) in SWAPS:
                yield site("op", SWAPS[type(node.op)]())
                if isinstance(node.op, ast.Add | ast.Sub) and isinstance(node, ast.BinOp):
                    yield instead(node.left)
            case ast.Compare(ops=[op, *others]) if type(op) in SWAPS:
                yield site("ops", [SWAPS[type(op)](), *others])
            case ast.Constant(value=bool()):
                yield site("value", not node.value)
            case ast.Constant(value=int() | float() as number):
                yield site("value", number + 1 if abs(number) < LARGE else 2 * number)
            case ast.Attribute(attr=name) if name in NAMES:
                yield site("attr", NAMES[name])
            case ast.Call(func=ast.Name(id=name)) if name in NAMES:
                yield site("func", ast.Name(NAMES[name], ast.Load()))
            case ast.Call(func=ast.Attribute(attr="where"), args=[condition, x, y]):
                yield site("args", [condition, y, x])
            case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub()):
                yield instead(node.operand)
            case ast.JoinedStr():
                places = [i for i, x in enumerate(node.values) if isinstance(x, ast.FormattedValue)]
                for i, j in zip(places, places[1:], strict=False):
                    values = list(node.values)
                    values[i], values[j] = values[j], values[i]
                    yield site("values", values)
        if isinstance(node, ast.Call):
            for word in node.keywords:
                if word.arg and word.arg not in RECORDS:
                    yield site("keywords", [one for one in node.keywords if one is not word])
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                yield site("test", ast.UnaryOp(ast.Not(), node.test), [node.test])
        inside = function
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{function}.{node.name}".lstrip(".")
        for name, value in ast.iter_fields(node):
            if name in ("decorator_list", "returns", "annotation", "format_spec", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.keyword) and child.arg in RECORDS:
                    continue
                if isinstance(child, ast.AST):
                    within = child if isinstance(child, ast.stmt) else statement
                    yield from visit(child, node, name, inside, within)
            if isinstance(value, list) and name in ("body", "orelse", "finalbody"):
                if isinstance(node, ast.Module | ast.ClassDef):
                    continue
                for i, (one, two) in enumerate(zip(value, value[1:], strict=False)):
                    if bound(one, two):
                        swapped = [*value[:i], two, one, *value[i + 2 :]]
                        yield Site(node, name, swapped, [one, two], inside, one)

    yield from visit(tree, None, "", "", None)


SIMPLE = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr


def bound(one: Any, two: Any) -> bool:
    """Whether the order of two statements can matter: names that both use, or two that act."""
    if not (isinstance(one, SIMPLE) and isinstance(two, SIMPLE)):
        return False

    def names(node: ast.AST, kinds: Any) -> set[str]:
        places = [x for x in ast.walk(node) if isinstance(x, ast.Name | ast.Attribute)]
        return {ast.unparse(x) for x in places if isinstance(x.ctx, kinds)}

    stored = names(one, ast.Store), names(two, ast.Store)
    loaded = names(one, ast.Load), names(two, ast.Load)
    if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
        return False  # a docstring
    act = isinstance(one, ast.Expr) and isinstance(two, ast.Expr)
    return bool(act or stored[0] & (stored[1] | loaded[1]) or stored[1] & loaded[0])


def changed(tree: ast.Module) -> Iterator[tuple[Site, str, str]]:
    """Yields the tree with one change after the other, and the text before and after it."""
    for site in list(sites(tree)):
        shown = [getattr(site.owner, site.field)] if site.shown is None else site.shown
        old = getattr(site.owner, site.field)
        if site.shown is None:  # a node in place of another one
            both = (old, site.value)
            if isinstance(old, list):
                both = next((x, y) for x, y in zip(old, site.value, strict=True) if x is not y)
            before, after = map(ast.unparse, both)
        else:
            before = "\n".join(map(ast.unparse, shown))
            after = ast.unparse(site.value) if site.field == "test" else ""
        setattr(site.owner, site.field, site.value)
        if site.shown is not None and not after:
            if isinstance(shown[0], ast.stmt):
                shown = shown[::-1]
            after = "\n".join(map(ast.unparse, shown))
        if before != after:  # two values of a text may be the same
            yield site, before, after
        setattr(site.owner, site.field, old)


def mutants(source: str, module: str) -> dict[Mutant, Site]:
    found: dict[Mutant, Site] = {}
    counts: collections.Counter[Any] = collections.Counter()
    for site, before, after in changed(ast.parse(source)):
        key = (module, site.function, before, after)
        found[Mutant(*key, counts[key])] = site
        counts[key] += 1
    return found


def code(source: str, wanted: Mutant, path: str) -> Any:
    """Returns the compiled module with the change."""
    tree, nth = ast.parse(source), 0
    for site, before, after in changed(tree):
        if (wanted.module, site.function, before, after) == wanted[:4]:
            if nth == wanted.nth:
                return compile(ast.fix_missing_locations(copy.deepcopy(tree)), path, "exec")
            nth += 1
    raise ValueError(f"{wanted} is not there")


# Which of them, and in which order.


def drawn(module: str, each: int, seed: int) -> list[Mutant]:
    """Returns the mutants that are tried: those in new lines first, in a random order."""
    found = mutants((ROOT / "specdec" / module).read_text(), module)
    new = new_lines().get(module, set())

    def rank(one: Mutant) -> tuple[bool, str]:
        return found[one].statement.lineno not in new, digest(seed, *one)

    return sorted(found, key=rank)[:each]


def digest(*what: Any) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()


@functools.cache
def new_lines() -> dict[str, set[int]]:
    """Returns the lines of each module that are newer than `SINCE`."""
    command = ["git", "diff", "-U0", "-M", SINCE, "--", "specdec"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    found: dict[str, set[int]] = {}
    for part in re.split(r"^diff --git ", text, flags=re.M)[1:]:
        name = re.search(r"^\+\+\+ b/specdec/(.*\.py)$", part, re.M)
        hunks = re.findall(r"^@@ .*?\+(\d+)(?:,(\d+))? @@", part, re.M)
        if name:
            found[name[1]] = {
                int(first) + i for first, count in hunks for i in range(int(count or 1))
            }
    return found


class Tests:
    """Which tests run a line, as coverage saw it in the sources of that time."""

    def __init__(self) -> None:
        import coverage

        self._runs = []
        for folder in sorted(COVERAGE.glob("*")):
            data = coverage.CoverageData(str(folder / "data"))
            data.read()
            files = [name for name in data.measured_files() if "/specdec/" in name]
            self._runs.append((data, {x.rsplit("/specdec/", 1)[1]: x for x in files}, folder))
        if not self._runs:
            raise SystemExit(f"{COVERAGE} has no run of the tests; --cover makes one")

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def _lines(self, module: str) -> dict[int, set[tuple[str, str]]]:
        """Returns (test, phase) by line of today's source."""
        source = (ROOT / "specdec" / module).read_text().splitlines()
        found: dict[int, set[Any]] = collections.defaultdict(set)
        for data, files, folder in self._runs:
            old = folder / "specdec" / module
            if module not in files or not old.exists():
                continue
            before = old.read_text().splitlines()
            contexts = data.contexts_by_lineno(files[module])
            same = difflib.SequenceMatcher(None, before, source, False).get_matching_blocks()
            for i, j, size in same:
                for k in range(1, size + 1):
                    named = [x for x in contexts.get(i + k, []) if "|" in x]
                    found[j + k].update(tuple(x.rsplit("|", 1)) for x in named)
        return found

    def of(self, module: str, site: Site, tree: ast.Module) -> list[set[str]]:
        """Returns sets of tests: those of the line before those of the function or the module."""
        lines = self._lines(module)
        functions = [x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef)]
        within = [range(x.body[0].lineno, (x.end_lineno or 0) + 1) for x in functions]

        def over(numbers: Any, phases: tuple[str, ...] = ("run", "setup", "teardown")) -> set[str]:
            return {test for n in numbers for test, phase in lines.get(n, ()) if phase in phases}

        here = site.statement.lineno
        holding = [x for x in within if here in x]
        if not holding:  # names that a module or class has: the tests of functions that use them
            names = bindings(tree, here)
            using = {test for at in self._using(names, module) for test in at}
            return [using, over(n for one in within for n in one)]
        last = site.statement.end_lineno or here
        if isinstance(site.statement, ast.If | ast.For | ast.While | ast.With | ast.Try):
            last = max(here, site.statement.body[0].lineno - 1)
        statement = range(here, last + 1)
        prepared = {test.split("::")[0] for test in over(statement, ("setup",))}
        inner = min(holding, key=len)
        first, later = over(statement), over(inner)
        if first:
            later |= {
                x for x in over(n for one in within for n in one) if x.split("::")[0] in prepared
            }
        return [first, later if first else set()]

    def _using(self, names: set[str], module: str) -> Iterator[set[str]]:
        """Yields the tests of lines inside of functions that have one of the names."""
        words = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
        folder = ROOT / "specdec"
        stem = Path(module).stem
        for file in sorted(folder.rglob("*.py")):
            other = file.relative_to(folder).as_posix()
            source = file.read_text()
            if other != module and not (re.search(rf"\b{stem}\b", source) and words.search(source)):
                continue
            lines = source.splitlines()
            inside = {
                n
                for x in ast.walk(ast.parse(source))
                if isinstance(x, ast.FunctionDef)
                for n in range(x.body[0].lineno, (x.end_lineno or 0) + 1)
            }
            used_at = [n for n in inside if words.search(lines[n - 1])]
            if used_at:
                found = self._lines(other)
                yield {test for n in used_at for test, _ in found.get(n, ())}


def bindings(tree: ast.Module, line: int) -> set[str]:
    """Returns the names of a module that depend on what is bound in a line outside of functions."""
    bound = {}
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            targets = {statement.name}
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = {
                x.id
                for x in ast.walk(statement)
                if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
            }
        else:
            continue
        used = {x.id for x in ast.walk(statement) if isinstance(x, ast.Name)} - targets
        here = statement.lineno <= line <= (statement.end_lineno or 0)
        bound[frozenset(targets)] = used, here
    names = {name for targets, (_, here) in bound.items() if here for name in targets}
    while (
        more := {name for targets, (used, _) in bound.items() if used & names for name in targets}
        - names
    ):
        names |= more
    return names


def seconds_of(test: str) -> list[float]:
    return times.get(test, [0, 0.5])


def order(groups: list[set[str]]) -> list[str]:
    """Returns tests: of each group those that kill most in their time, then others in turn."""
    ordered: dict[str, None] = {}
    for group in groups:
        counts: collections.Counter[str] = collections.Counter()
        ranks = {}
        for test in sorted(group, key=lambda x: (seconds_of(x)[1], x)):
            killed, seconds = seconds_of(test)
            name = test.split("[")[0]
            ranks[test] = (-killed / (seconds + 1), (seconds + 0.05) * (1 + counts[name]))
            counts[name] += 1
        ordered |= dict.fromkeys(sorted(ranks, key=ranks.__getitem__))
    return list(ordered)


def within(tests: list[str], seconds: float) -> list[str]:
    """Returns the tests that fit into this many seconds; importing a file counts half a second."""
    chosen, files, total = [], set(), 0.0
    for test in tests:
        file = test.split("::")[0]
        cost = seconds_of(test)[1] + 0.5 * (file not in files)
        if total + cost <= seconds:
            chosen.append(test)
            files.add(file)
            total += cost
    return chosen


# A child tries a mutant.


class Chosen:
    """A plugin of pytest that runs the chosen tests in their order, until the seconds are over."""

    def __init__(self, tests: list[str], seconds: float, write: Any) -> None:
        self._places = {test: i for i, test in enumerate(tests)}
        self._seconds, self._write = seconds, write
        self._begin = self._begin_of_test = 0.0

    def pytest_collection_modifyitems(self, session: Any, items: list[Any]) -> None:
        self._session = session
        items[:] = [x for x in items if x.nodeid in self._places]
        items.sort(key=lambda x: self._places[x.nodeid])
        self._begin = time.process_time()

    def pytest_runtest_logstart(self) -> None:
        self._begin_of_test = time.process_time()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed or report.when == "call":
            seconds = round(time.process_time() - self._begin_of_test, 2)
            self._write([report.nodeid, report.outcome, seconds])

    def pytest_runtest_logfinish(self) -> None:
        if time.process_time() - self._begin > self._seconds:
            self._session.shouldstop = "enough"


def child(tests: list[str], seconds: float, path: Path, compiled: Any, write: Any) -> int:
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (int(2 * seconds) + 60, int(2 * seconds) + 65))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sound = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: Any, name: str) -> Any:
        return compiled if compiled and loader.path == str(path) else sound(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers", *files]
    return pytest.main(arguments, plugins=[Chosen(tests, seconds, write)])


def tried(
    tests: list[str], seconds: float, path: Path, compiled: Any = None
) -> tuple[str, str, list[list[Any]]]:
    """Returns 'killed', 'survived' or 'endless', the test that failed, and the reports of tests."""
    reading, writing = os.pipe()
    temporary = Path(os.environ["TMPDIR"])
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    sys.stdout.flush()
    process = os.fork()
    if not process:
        status = 70
        try:
            os.setpgid(0, 0)
            os.close(reading)
            out = os.open(OWN / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(out, stream)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

            def write(line: Any) -> None:
                os.write(writing, f"{json.dumps(line)}\n".encode())

            status = int(child(tests, seconds, path, compiled, write))
        finally:
            os._exit(status)
    os.close(writing)
    text, limit = b"", time.monotonic() + 6 * seconds + 240  # others may use the processor
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, limit - time.monotonic()))
        part = os.read(reading, 2**16) if ready else b""
        text += part
        if not part:
            break
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL) if time.monotonic() >= limit else None
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # what tests have started
    reports = [json.loads(line) for line in text.decode().splitlines() if line.endswith("]")]
    failed = [name for name, outcome, _ in reports if outcome == "failed"]
    if failed:
        return "killed", failed[0], reports
    if os.WIFSIGNALED(status):
        late = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return ("endless" if late else "killed"), "", reports
    code, output = os.WEXITSTATUS(status), (OWN / "output").read_bytes()
    if code in (0, 5) or (code == 2 and b"Interrupted: enough" in output):  # 5: none are left
        return "survived", "", reports
    if code == 4 and b"while loading conftest" in output:
        return "killed", IMPORTED, reports
    if code == 4:
        raise SystemExit(f"{OWN / 'output'} has an error of pytest's")
    return "killed", IMPORTED, reports


def prepare() -> Path:
    """Imports the libraries, and returns the copy in which tests run."""
    place = OWN / "copy"
    atexit.register(shutil.rmtree, OWN, ignore_errors=True)
    shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(".git", "site"))
    (KEPT / "programs").mkdir(exist_ok=True)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ |= {
        "PYTHONPATH": str(place),
        # A mutant changes few of the programs; the others need not be compiled again.
        "JAX_COMPILATION_CACHE_DIR": str(KEPT / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    os.chdir(place)
    sys.path[:] = [str(place), *(x for x in sys.path if Path(x).resolve() != Path(__file__).parent)]
    tests = str(place / "tests")
    sys.path.insert(0, tests)
    made = runpy.run_path(f"{tests}/conftest.py")["RUN"]  # JAX reads what it sets
    sys.path.remove(tests)
    sys.modules.pop("margins", None)
    shutil.rmtree(made, ignore_errors=True)
    os.environ["TMPDIR"], tempfile.tempdir = str(OWN / "temporary"), None
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import gc

    gc.freeze()
    return place


# The lines of the results, and their page.


def read() -> dict[Mutant, dict[str, Any]]:
    """Returns the last line of each mutant."""
    lines = map(json.loads, LINES.read_text().splitlines()) if LINES.exists() else []
    found: dict[Mutant, dict[str, Any]] = {}
    for line in lines:
        key = Mutant(*(line[x] for x in Mutant._fields))
        found[key] = found.pop(key, {}) | line
    return found


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Keeps another process from the file of lines."""
    with (KEPT / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_there(test: str) -> bool:
    """Returns whether a test is there, or another reason why a mutant was noticed."""
    file, _, name = test.partition("::")
    name = re.escape(name.split("[")[0].split("::")[-1])
    source = ROOT / file
    return not name or source.exists() and bool(re.search(rf"def {name}\b", source.read_text()))


def tidy() -> dict[Mutant, dict[str, Any]]:
    """Drops lines whose place or test is no more, sorts the others, and returns them."""
    with locked():
        lines = {}
        for module, own in itertools.groupby(sorted(read().items()), lambda x: x[0].module):
            file = ROOT / "specdec" / module
            there = mutants(file.read_text(), module) if file.exists() else {}
            for key, line in own:
                if key in there and is_there(line["by"]):
                    lines[key] = line | {"line": there[key].statement.lineno}
        ordered = sorted(lines.values(), key=lambda x: (x["module"], x["line"]))
        LINES.write_text("".join(f"{json.dumps(line)}\n" for line in ordered))
    return lines


def page(lines: dict[Mutant, dict[str, Any]]) -> str:
    """Returns the page with a row for each module, and what survives."""
    rows: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    left = []
    for key, line in sorted(lines.items()):
        kind = line["outcome"]
        if kind == "survived":
            kind = "equal" if line.get("reason") else "open" if line["tests"] else "without"
            left.append((key, line))
        for name in (key.module, "all"):
            rows[name].update(["tried", kind])
    rows["all"] = rows.pop("all", collections.Counter())
    table = [
        "| | mutants | noticed | without end | equal | survive | no test runs it | noticed |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        counts = [row[x] for x in ("tried", "killed", "endless", "equal", "open", "without")]
        changing = row["tried"] - row["equal"]
        part = f"{100 * (row['killed'] + row['endless']) / changing:.0f} %" if changing else ""
        name = "**all**" if name == "all" else f"`{name}`"
        table.append(f"| {name} | {' | '.join(map(str, counts))} | {part} |")
    survivors = ["| | before | after | why |", "|---|---|---|---|"]
    for key, line in left:
        reason = line.get("reason") or ("" if line["tests"] else "no test runs it")
        before, after = (
            short(x, other) for x, other in ((key.before, key.after), (key.after, key.before))
        )
        where = f"`{key.module}`, `{key.function or 'module'}`"
        survivors.append(f"| {where} | `{before}` | `{after}` | {reason} |")
    head = PAGE.read_text().split("\n## ")[0].rstrip() if PAGE.exists() else "# Mutants"
    return "\n".join(
        [head, "", "## Modules", "", *table, "", "## What survives", "", *survivors, ""]
    )


def short(text: str, other: str, size: int = 60) -> str:
    """Returns the part of a text that differs from another one, in one line of a table."""
    same = len(os.path.commonprefix([text, other]))
    begin = max(0, same - size // 3) if len(text) > size else 0
    cut = text[begin : begin + size]
    cut = "..." * (begin > 0) + cut + "..." * (begin + size < len(text))
    return re.sub(r"\s+", " ", cut.replace("\n", "; ")).replace("|", "\\|").replace("`", "'")


def cover(tests: list[str]) -> None:
    """Runs tests under coverage, and reads how long each of them takes."""
    if not tests:
        shutil.rmtree(COVERAGE, ignore_errors=True)
    folder = COVERAGE / f"{1 + max((int(x.name) for x in COVERAGE.glob('*')), default=-1):03}"
    shutil.copytree(ROOT / "specdec", folder / "specdec")
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "--durations=0"]
    command += ["--cov=specdec", "--cov-context=test", "--cov-report=", *tests]
    command += ["-m", "not slow and not planted"]
    command += ["-n", "1" if tests else "2"]  # contexts are kept by pytest-xdist's workers only
    environment = os.environ | {"COVERAGE_FILE": str(folder / "data"), "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    print(result.stdout[-30000:])
    with remembered():
        for seconds, test in re.findall(r"^([\d.]+)s \w+ +(\S.*\S)\s*$", result.stdout, re.M):
            times.setdefault(test, [0, 0.0])[1] += float(seconds)


times: dict[str, list[Any]] = {}  # see `TIMES`


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Reads the times of tests, and writes them with their changes."""
    with locked():
        times.update(json.loads(TIMES.read_text()) if TIMES.exists() else {})
        yield
        TIMES.write_text(json.dumps(times))


def listed(only: list[str]) -> list[str]:
    """Returns the modules whose path begins with one of `only`; those with most new lines first."""
    lines = {
        file.relative_to(ROOT / "specdec").as_posix(): len(file.read_text().splitlines())
        for file in sorted((ROOT / "specdec").rglob("*.py"))
    }
    modules = sorted(lines, key=lambda x: -len(new_lines().get(x, ())) / max(lines[x], 1))
    return list(dict.fromkeys(x for part in only for x in modules if x.startswith(part)))


class Trial:
    """Tries mutants, and writes their lines."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._tests, self._place = seconds, Tests(), prepare()
        self._sound: dict[str, bool] = {}  # whether a test passes without a mutant

    def __call__(self, mutant: Mutant) -> dict[str, Any]:
        """Returns the line of a mutant."""
        path = self._place / "specdec" / mutant.module
        source = path.read_text()
        site = mutants(source, mutant.module)[mutant]
        groups = self._tests.of(mutant.module, site, ast.parse(source))
        tests = [x for x in order(groups) if self._sound.get(x, True)]
        tests = [x for x in tests if (self._place / x.split("::")[0]).exists()]
        chosen = within(tests, self._seconds) if groups[0] or groups[1] else []
        outcome, killer, reports = "survived", "", []
        begin = used()
        if chosen:
            compiled = code(source, mutant, str(path))
            outcome, killer, reports = tried(chosen, self._seconds, path, compiled)
        seconds = round(used() - begin, 1)
        if killer and not self._passes(killer, chosen):
            return self(mutant)
        with remembered():
            for test, what, spent in reports:
                old = times.setdefault(test, [0, spent])
                if what != "failed":
                    old[1] = round((old[1] + spent) / 2, 2)
                elif killer == test:
                    old[0] += 1
        line = {"outcome": outcome, **mutant._asdict(), "line": site.statement.lineno}
        line |= {"tests": sum(what != "skipped" for _, what, _ in reports)}
        return line | {"by": killer, "seconds": seconds}

    def _passes(self, killer: str, chosen: list[str]) -> bool:
        """Returns whether a test that failed passes without a mutant, after the same others."""
        if killer == IMPORTED:
            before, seconds = list({x.split("::")[0]: x for x in chosen}.values()), 0.0
        else:
            before, seconds = chosen[: chosen.index(killer) + 1], self._seconds
        key = killer if killer != IMPORTED else " ".join(sorted(x.split("::")[0] for x in before))
        if key not in self._sound:
            outcome, failed, _ = tried(before, seconds, self._place)
            self._sound[key] = outcome == "survived"
            if failed == IMPORTED:
                raise SystemExit(f"{key} cannot be imported; {OWN / 'output'} says why")
            if failed:
                print(f"{failed} fails without a mutant", flush=True)
                self._sound[failed] = False
        return self._sound[key]


def used() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="modules whose path begins so")
    parser.add_argument("--each", type=int, default=12, help="mutants of each module")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for a mutant")
    parser.add_argument(
        "--again", action="store_true", help="those that survived, but for a reason"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cover", nargs="*", help="run tests under coverage: all, or these files")
    parser.add_argument("--part", default="1/1", help="2/3: the second of three processes")
    parser.add_argument("--page", action="store_true", help="only write the page")
    args = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    if args.cover is not None:
        cover(args.cover)
        return
    lines = tidy()
    with remembered():
        pass
    if not args.page:
        trial = Trial(args.seconds)
        part, parts = map(int, args.part.split("/"))
        for module in listed(args.only)[part - 1 :: parts]:
            for mutant in drawn(module, args.each, args.seed):
                line = lines.get(mutant)
                retried = line and line["outcome"] == "survived" and not line.get("reason")
                if line is None and not args.again or retried and args.again:
                    line = trial(mutant)
                    with locked(), LINES.open("a") as file:
                        file.write(f"{json.dumps(line)}\n")
                    print(*line.values(), flush=True)
        lines = tidy()
    PAGE.write_text(page(lines))


if __name__ == "__main__":
    main()
