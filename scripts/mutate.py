"""Changes one operator or number at a time, and asks the tests whether they see it.

    python scripts/mutate.py [--each 5] [--seed 0] [--only sampling] > mutants.txt

Of each module below some places are drawn. A mutant is killed if one of the module's tests fails or
takes longer than the limit. Works on a copy; it prints a line per mutant, and the sums at the end.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 240  # seconds for the tests of a mutant
TESTS = {  # module: its tests, those that see most first
    "decoding/states.py": ["tests/decoding/test_states.py", "tests/decoding/test_loop.py"],
    "decoding/loop.py": ["tests/decoding/test_loop.py"],
    "decoding/keys.py": ["tests/decoding/test_loop.py"],
    "decoding/forcing.py": ["tests/decoding/test_loop.py", "tests/decoding/test_score.py"],
    "sampling/standard.py": ["tests/sampling/test_sampling.py"],
    "sampling/draws.py": ["tests/sampling/test_sampling.py"],
    "sampling/bans.py": ["tests/sampling"],
    "sampling/penalties.py": ["tests/sampling"],
    "sampling/forced.py": ["tests/sampling"],
    "sampling/processed.py": ["tests/sampling"],
    "sampling/order.py": ["tests/sampling"],
    "verifiers/decide.py": ["tests/verifiers"],
    "verifiers/block.py": ["tests/verifiers"],
    "verifiers/speculative_sampling.py": ["tests/verifiers"],
    "verifiers/coupled.py": ["tests/verifiers", "tests/decoding/test_loop.py"],
    "drafters/loop.py": ["tests/drafters"],
    "drafters/autoregressive.py": ["tests/drafters"],
    "schedules/fixed.py": ["tests/schedules", "tests/decoding/test_loop.py"],
    "schedules/buckets.py": ["tests/schedules"],
    "schedules/heuristic.py": ["tests/schedules"],
    "schedules/confidence.py": ["tests/schedules"],
    "schedules/entropy.py": ["tests/schedules"],
    "schedules/cost_optimal.py": ["tests/schedules"],
    "schedules/stopping.py": ["tests/schedules"],
    "schedules/disco.py": ["tests/schedules"],
    "schedules/guard.py": ["tests/schedules"],
    "forecast/tuning.py": ["tests/forecast/test_tune.py"],
    "acceptance/measure.py": ["tests/test_acceptance.py"],
    "acceptance/ngrams.py": ["tests/test_acceptance.py"],
    "acceptance/opinions.py": ["tests/test_acceptance.py"],
    "acceptance/summary.py": ["tests/test_acceptance.py"],
    "statistics.py": ["tests/test_statistics.py", "tests/benchmark/test_benchmark.py"],
    "benchmark/figures.py": ["tests/benchmark/test_benchmark.py"],
    "benchmark/estimator.py": ["tests/benchmark/test_benchmark.py"],
    "benchmark/summary.py": ["tests/benchmark/test_benchmark.py"],
    "certificate/check.py": ["tests/certificate"],
    "certificate/checks.py": ["tests/certificate"],
    "certificate/draws.py": ["tests/certificate"],
    "theory.py": ["tests/test_theory.py"],
}
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
NAMES = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min", "any": "all"}


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """What can be changed, and in which way: outside of annotations and of what raises."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.AnnAssign | ast.arguments):
            skipped.update(map(id, ast.walk(node)))
        if isinstance(node, ast.FunctionDef) and node.returns:
            skipped.update(map(id, ast.walk(node.returns)))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
            yield node, "op"
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield node, "ops"
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            yield node, "value"
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            yield node, "attr"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
            yield node, "operand"


def change(node: ast.AST, way: str) -> None:
    if way == "op":
        node.op = SWAPS[type(node.op)]()  # type: ignore[attr-defined]
    elif way == "ops":
        node.ops[0] = SWAPS[type(node.ops[0])]()  # type: ignore[attr-defined]
    elif way == "value":
        value = node.value  # type: ignore[attr-defined]
        node.value = not value if isinstance(value, bool) else value + 1  # type: ignore[attr-defined]
    elif way == "attr":
        node.attr = NAMES[node.attr]  # type: ignore[attr-defined]
    else:
        node.op = ast.UAdd()  # type: ignore[attr-defined]


def mutants(source: str, draws: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Changed sources, each with what was changed."""
    total = len(list(places(ast.parse(source))))
    for index in sorted(draws.sample(range(total), min(count, total))):
        tree = ast.parse(source)
        node, way = list(places(tree))[index]
        before, line = ast.unparse(node), node.lineno  # type: ignore[attr-defined]
        change(node, way)
        yield ast.unparse(tree), f"line {line}: {before}  ->  {ast.unparse(node)}"


def killed(tests: list[str], copy: Path) -> bool:
    """Whether the tests of a copy see it."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    command += ["-m", "not slow"]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(LIMIT) != 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=5, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="modules whose path has this")
    args = parser.parse_args()
    draws, sums = random.Random(args.seed), [0, 0]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        for module, tests in TESTS.items():
            file = copy / "specdec" / module
            source = file.read_text()
            for mutant, what in mutants(source, draws, args.each):
                if args.only not in module:
                    continue
                file.write_text(mutant)
                dead = killed([test for test in tests if (copy / test).exists()], copy)
                sums[dead] += 1
                print(f"{'killed' if dead else 'SURVIVED'} {module}, {what}", flush=True)
            file.write_text(source)
    print(f"{sums[1]} of {sum(sums)} killed")


if __name__ == "__main__":
    main()
