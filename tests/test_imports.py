"""What an import costs, who may import whom, what a wheel holds: pytest tests/test_imports.py"""

import ast
import functools
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "specdec"

# From top to bottom: a module imports from rows below its own, never from its own row or above.
ROWS = (
    ("cli",),
    ("integrations",),
    ("report.replicate", "training.distillation"),
    ("predict",),
    ("report",),
    ("measure",),
    ("certificate", "training"),
    ("texts", "predict.costs"),
    ("engine",),
    ("decoding.refilling",),
    ("decoding.program", "checkpoints.tables"),
    ("checkpoints", "models.partitioning", "testing"),
    ("decoding",),
    ("plan",),
    ("drafters",),
    ("verifiers", "schedules"),
    ("sampling", "models", "tasks", "common.decoded"),
    ("types",),
    ("common",),
)
ROW = {module: row for row, modules in enumerate(ROWS) for module in modules}

# The loop takes any drafter, verifier and schedule, and so does a plan: they name none. Of
# `verifiers` the loop uses the function that all verifiers share.
LOOPS = {"decoding", "plan"}
SEAMS = {"drafters", "verifiers", "schedules"}
BASES = {"Drafter", "Schedule", "Verifier"}  # which a plan may name, from where they are defined

# Packages that few modules may import, and which.
ONLY = {
    "gin": {"cli"},
    "seqio": {"tasks"},
    "tensorflow": {"tasks"},
    "tensorflow_datasets": {"tasks"},
    "tensorstore": {"checkpoints"},
    "orbax": {"checkpoints", "training"},
    "optax": {"training"},
    "matplotlib": {"report"},
    "jinja2": {"report", "tasks"},
    "PIL": {"tasks"},
    "soundfile": {"tasks"},
    "soxr": {"tasks"},
    "torch": {"checkpoints"},
    "tokenizers": {"tasks"},
    "huggingface_hub": {"checkpoints"},
}


def python(*arguments: str) -> str:
    """What a fresh interpreter prints; fails with its error output if it fails."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def module_of(path: str) -> str:
    """The name in ROWS that a file belongs to: the file itself, or a package that it lies in."""
    return part_of(path.removesuffix(".py").removesuffix("/__init__").split("/")[1:])


def part_of(names: Sequence[str]) -> str:
    """The longest beginning of a dotted name that is in ROWS; the first name, if none is."""
    beginnings = (".".join(names[:count]) for count in range(len(names), 0, -1))
    return next((name for name in beginnings if name in ROW), names[0] if names else "")


@functools.cache
def imported_names(path: str, source: str) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of every import in the file, also inside functions."""
    package = path.split("/")[:-1]
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module or "").split(".")]
            prefix = ".".join(part for part in base if part)
            found += [(node.lineno, f"{prefix}.{alias.name}") for alias in node.names]
    return found


def violations(path: str, source: str) -> list[str]:
    """One line for each import that breaks the layering; `path` is relative to the root."""
    module = module_of(path)
    if module not in ROW:
        return [f"{path}: {module} is in no row; add it to DESIGN's layout and to ROWS here"]
    found = []
    for line, name in imported_names(path, source):
        top, *rest = name.split(".")
        part = part_of(rest)
        if top == "specdec":
            problem = package_problem(module, part, *rest)
        elif module.split(".")[0] not in ONLY.get(top, {module.split(".")[0]}):
            problem = f"only {', '.join(sorted(ONLY[top]))} may"
        else:
            problem = None
        if problem:
            found.append(f"{path}:{line}: {module} imports {name}; {problem}")
    return found


def package_problem(module: str, part: str, *rest: str) -> str | None:
    """What is wrong with `module` importing `specdec.<part>`, if anything."""
    if part == module:
        return None  # files of one package may share
    if part not in ROW:
        return "import from the module that defines it, not from the package's front door"
    if ROW[part] <= ROW[module]:
        return "imports go strictly down the rows"
    if module in LOOPS and part in SEAMS - {"verifiers"} and rest[-1] not in BASES:
        return "the loop takes these as arguments and names none"
    return None


@functools.cache
def all_files() -> dict[str, str]:
    """Path and source of every file of the package."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}


def package_files() -> dict[str, str]:
    """Path and source of every file that is in a row."""
    exempt = ("specdec/__init__.py", "specdec/__main__.py")
    return {name: text for name, text in all_files().items() if name not in exempt}


def circles(files: dict[str, str]) -> list[list[str]]:
    """The files that import each other, also through others, for types or inside functions.

    A module whose package is imported first imports no more than itself.
    """

    def file_of(name: str) -> str | None:
        parts = name.split(".")
        paths = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
        known = (f"{path}{end}" for path in paths for end in (".py", "/__init__.py"))
        return next((path for path in known if path in files), None)

    found = {
        path: {one for _, name in imported_names(path, source) if (one := file_of(name))} - {path}
        for path, source in files.items()
    }

    def reached(path: str) -> set[str]:
        seen: set[str] = set()
        waiting = [path]
        while waiting:
            new = found[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    after = {path: reached(path) for path in files}
    rings = {path: sorted(one for one in after[path] if path in after[one]) for path in files}
    return [ring for path, ring in rings.items() if ring[:1] == [path]]


def test_no_files_import_each_other():
    """Inside a folder neither: what two files need stands in a third one."""
    assert circles(all_files()) == []


@pytest.mark.parametrize(
    "first",
    [
        "from specdec.two import f",
        "import specdec.two",
        "def f():\n    from specdec import two",
        "if TYPE_CHECKING:\n    from .two import f",
    ],
)
def test_a_circle_is_seen(first):
    files = {
        "specdec/__init__.py": "from specdec.three import f",
        "specdec/one.py": first,
        "specdec/two.py": "from specdec import three",
        "specdec/three.py": "from specdec.one import f",
        "specdec/four.py": "from specdec.one import f",
    }
    assert circles(files) == [["specdec/one.py", "specdec/three.py", "specdec/two.py"]]
    assert circles(files | {"specdec/two.py": "import jax"}) == []


def classes(source: str) -> set[str]:
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def names(source: str) -> set[str]:
    """Every identifier the source mentions: imported, plain or as an attribute."""
    mentioned = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.alias):
            mentioned.add(node.name.split(".")[-1])
        elif isinstance(node, ast.Name):
            mentioned.add(node.id)
        elif isinstance(node, ast.Attribute):
            mentioned.add(node.attr)
    return mentioned


def test_imports_go_strictly_down():
    found = [line for path, source in package_files().items() for line in violations(path, source)]
    assert not found, "\n" + "\n".join(found)


def commands_imported(files: dict[str, str]) -> list[str]:
    """One line for each import of a command by another module than the front door of `cli`."""
    defined = {
        Path(path).stem
        for path, source in files.items()
        if module_of(path) == "cli" and re.search(r"^def command\(", source, re.MULTILINE)
    }
    return [
        f"{path}:{line}: {name}"
        for path, source in files.items()
        if module_of(path) == "cli" and not path.endswith("__init__.py")
        for line, name in imported_names(path, source)
        if name.startswith("specdec.cli.") and name.split(".")[2] in defined
    ]


def test_a_command_imports_no_command():
    found = commands_imported(package_files())
    assert not found, "\n" + "\n".join(found)


def test_an_import_of_a_command_is_seen():
    command = "def command(args):\n    pass\n"
    both = {"specdec/cli/one.py": command, "specdec/cli/two.py": "from specdec.cli import one"}
    assert commands_imported(both) == ["specdec/cli/two.py:1: specdec.cli.one"]


def test_the_loop_names_no_concrete_drafter_verifier_or_schedule():
    files = package_files()
    concrete = set().union(
        *(classes(source) for path, source in files.items() if module_of(path) in SEAMS)
    )
    concrete -= BASES
    assert {"Autoregressive", "GreedyMatch", "Fixed"} <= concrete
    for path, source in files.items():
        if module_of(path) in LOOPS:
            assert not names(source) & concrete, f"{path} names {names(source) & concrete}"


@pytest.mark.parametrize(
    "source",
    [
        "from specdec.verifiers import GreedyMatch",
        "from specdec import verifiers\nverifiers.GreedyMatch()",
        "def f(x):\n    return isinstance(x, GreedyMatch)",
    ],
)
def test_a_mention_of_a_class_is_seen(source):
    assert "GreedyMatch" in names(source)


@pytest.mark.parametrize(
    "path, source, message",
    [
        ("specdec/common/statistics.py", "import specdec.decoding", "strictly down"),
        ("specdec/common/statistics.py", "from specdec import decoding", "strictly down"),
        ("specdec/common/statistics.py", "from specdec.decoding import step", "strictly down"),
        ("specdec/common/statistics.py", "from .. import decoding", "strictly down"),
        ("specdec/common/statistics.py", "from ..decoding import step", "strictly down"),
        ("specdec/models/t5/network.py", "from ...decoding import step", "strictly down"),
        ("specdec/models/t5/network.py", "from ... import decoding", "strictly down"),
        (
            "specdec/common/statistics.py",
            "def f():\n    from specdec import decoding",
            ":2: .*strictly down",
        ),
        ("specdec/plan.py", "from specdec.decoding import step", "strictly down"),
        ("specdec/types.py", "from specdec import sampling", "strictly down"),
        ("specdec/decoding.py", "from specdec.drafters import Autoregressive", "names none"),
        ("specdec/decoding.py", "from specdec import schedules", "names none"),
        ("specdec/drafters/lookup.py", "from specdec import decode", "front door"),
        ("specdec/drafters/lookup.py", "import specdec", "front door"),
        (
            "specdec/measure/output_metrics.py",
            "def f():\n    import gin.tf",
            "only cli may",
        ),
        ("specdec/cli.py", "from seqio import utils", "only tasks may"),
        ("specdec/extra.py", "", "extra is in no row"),
    ],
)
def test_a_wrong_import_is_reported(path, source, message):
    (line,) = violations(path, source)
    assert re.search(message, line)


@pytest.mark.parametrize(
    "path, source",
    [
        ("specdec/cli.py", "import gin\nfrom specdec import tasks"),
        ("specdec/decoding.py", "import jax\nfrom specdec.sampling import Greedy"),
        ("specdec/drafters/__init__.py", "from specdec.drafters.lookup import PromptLookup"),
        ("specdec/drafters/lookup.py", "from . import loop\nfrom ..types import Draft"),
        ("specdec/models/t5/network.py", "from specdec.models import contract, layers"),
    ],
)
def test_a_right_import_is_not(path, source):
    assert violations(path, source) == []


@pytest.mark.ci
def test_importing_the_package_is_cheap():
    """A third of what JAX and Flax take at most, the least of three; and none of the packages that
    only some tasks need."""
    heavy = sorted({*ONLY, "tensorflow_text"})
    program = (
        "import sys, time; start = time.perf_counter(); import jax, flax.linen;"
        "between = time.perf_counter(); import specdec; specdec.decode; end = time.perf_counter();"
        "print((end - between) / (between - start));"
        f"print(*(name for name in {heavy} if name in sys.modules))"
    )
    ratios = []
    for _ in range(3):
        ratio, *loaded = python("-c", program).split()
        assert not loaded, f"import specdec loads {', '.join(loaded)}"
        ratios.append(float(ratio))
    assert min(ratios) < 1 / 3


DEMO = ("vocabulary.model", "target/config.json", "draft/config.json")


def test_a_wheel_holds_the_gin_files_and_no_tests(tmp_path):
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    (wheel,) = tmp_path.glob("specdec_jax-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {"specdec/__init__.py", "specdec/py.typed"} <= held
    for folder, installed in (("gin", "specdec/_gin"), ("configs", "specdec/_configs")):
        expected = {
            f"{installed}/{file.relative_to(ROOT / folder).as_posix()}"
            for file in (ROOT / folder).rglob("*.gin")
        }
        assert expected and expected <= held
    assert {f"specdec/_demo/{name}" for name in DEMO} <= held
    suffixes = (".csv", ".json", ".txt", ".html", ".css", ".js")
    files = {path for path in PACKAGE.rglob("*") if path.suffix in suffixes}
    assert files and {file.relative_to(ROOT).as_posix() for file in files} <= held
    assert all(name.startswith(("specdec/", "specdec_jax-")) for name in held)


def test_names_and_packages_are_found_when_they_are_used():
    import specdec

    assert all(getattr(specdec, name) for name in specdec.__all__)
    program = "import specdec; print(specdec.sampling.Greedy(), specdec.checkpoints.load.__name__)"
    assert python("-c", program) == "Greedy() load\n"
    with pytest.raises(AttributeError, match="'specdec' has no attribute 'nonesuch'"):
        specdec.nonesuch  # noqa: B018 # pyright: ignore[reportAttributeAccessIssue]
