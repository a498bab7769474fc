"""Changes one operator or number at a time, and asks the tests whether they see it.

    python scripts/mutate.py [--each 3] [--seed 0] [--only sampling] [--count 5]
    python scripts/mutate.py --again          # those that survived: `ci` and `planted` tests too
    python scripts/mutate.py --sound          # the tests without any mutant
    python scripts/mutate.py --table          # the table of docs/reliability.md

Of each module below some places are drawn: the first of each, then the second. A mutant is killed
if one of the module's tests fails. One whose tests do not end in time is counted apart: in twice
the time that they take without it, and a minute. It works on a copy and writes a line per mutant to
`docs/results/mutants.jsonl`; given again, it goes on. With `--sound` it runs the tests without any:
who fails then has killed nobody.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINES = ROOT / "docs" / "results" / "mutants.jsonl"
PROGRAMS = Path(tempfile.gettempdir()) / "specdec.mutants.programs"  # compiled, kept between calls
DEFAULT, MORE = "not slow and not planted and not ci", "not slow"  # which tests
IN_CI = ("training/", "models/")  # modules whose tests are mostly of `ci`
LIMIT = 300  # seconds, for tests of which nobody knows how long they take
LOOP, TABLE = "tests/decoding/test_loop.py", "tests/drafters/test_table.py"
FORMULAS, REPLAYED = "tests/test_theory.py", "tests/forecast/test_forecast_by_replay.py"
LOSSY = "tests/verifiers/test_lossy.py"
LAWS = ["tests/verifiers/test_verifiers.py", LOSSY]
DRAWN = "tests/sampling/test_sampling.py"
PROCESSORS = ["tests/sampling/test_processors.py"]
SCHEDULES = ["tests/schedules"]
LOOKUPS = ["tests/drafters/test_lookups.py"]
TUNED = ["tests/forecast/test_tune.py"]
MEASURED = ["tests/benchmark/test_benchmark.py"]
CERTIFICATE = ["tests/certificate"]
ALIGNED = ["tests/training/test_alignment.py"]
HEADED = ["tests/training/test_headed.py"]
TRAINED = ["tests/training/test_training.py"]
TRIMMED = ["tests/models/test_trimming.py", "tests/models/test_head.py"]
TESTS = {  # module: its tests, those that see most first
    "decoding/states.py": ["tests/decoding/test_states.py", LOOP],
    "decoding/loop.py": [f"{LOOP}::test_token_t_is_drawn_with_the_noise_of_t", LOOP],
    "decoding/keys.py": [LOOP, "tests/decoding/test_keys.py"],
    "decoding/forcing.py": [
        f"{LOOP}::test_log_probs_are_those_of_teacher_forcing",
        "tests/decoding/test_replay.py",
        LOOP,
    ],
    "decoding/replay.py": ["tests/decoding/test_replay.py", REPLAYED],
    "sampling/standard.py": [DRAWN, f"{LOOP}::test_vocabularies_padded_to_other_widths"],
    "sampling/draws.py": [DRAWN, *LAWS],
    "sampling/bans.py": ["tests/sampling/test_min_length.py", *PROCESSORS],
    "sampling/penalties.py": PROCESSORS,
    "sampling/forced.py": PROCESSORS,
    "sampling/processed.py": [*PROCESSORS, "tests/sampling/test_min_length.py"],
    "sampling/order.py": PROCESSORS,
    "verifiers/decide.py": [*LAWS, LOOP],
    "verifiers/block.py": LAWS,
    "verifiers/speculative_sampling.py": LAWS,
    "verifiers/coupled.py": [*LAWS, LOOP],
    "verifiers/minimum_block.py": [LOSSY],
    "verifiers/mixtures.py": [LOSSY],
    "verifiers/top_beta.py": [LOSSY],
    "verifiers/lenient.py": [LOSSY],
    "verifiers/typical.py": [LOSSY],
    "drafters/loop.py": [
        "tests/drafters/test_blockwise.py::test_a_block_taken_one_by_one_is_the_block",
        LOOP,
        TABLE,
    ],
    "drafters/autoregressive.py": [
        f"{TABLE}::test_perfect_drafter_has_everything_accepted",
        LOOP,
    ],
    "drafters/matching.py": LOOKUPS,
    "drafters/prompt_lookup.py": LOOKUPS,
    "drafters/input_copy.py": LOOKUPS,
    "drafters/ngram.py": LOOKUPS,
    "drafters/retrieval.py": LOOKUPS,
    "drafters/hybrid.py": ["tests/drafters/test_hybrid.py"],
    "drafters/early_exit.py": ["tests/drafters/test_early_exit.py"],
    "drafters/blockwise.py": ["tests/drafters/test_blockwise.py"],
    "drafters/masked.py": ["tests/drafters/test_masked.py"],
    "schedules/fixed.py": [*SCHEDULES, LOOP],
    "schedules/buckets.py": SCHEDULES,
    "schedules/heuristic.py": SCHEDULES,
    "schedules/confidence.py": SCHEDULES,
    "schedules/joint_confidence.py": SCHEDULES,
    "schedules/entropy.py": SCHEDULES,
    "schedules/cost_optimal.py": SCHEDULES,
    "schedules/foreseen_cost.py": [*SCHEDULES, "tests/drafters/test_masked.py"],
    "schedules/stopping.py": SCHEDULES,
    "schedules/disco.py": SCHEDULES,
    "schedules/guard.py": SCHEDULES,
    "acceptance/measure.py": ["tests/test_acceptance.py"],
    "acceptance/ngrams.py": ["tests/test_acceptance.py"],
    "acceptance/opinions.py": ["tests/test_acceptance.py"],
    "acceptance/summary.py": ["tests/test_acceptance.py"],
    "statistics.py": ["tests/test_statistics.py", *MEASURED],
    "benchmark/figures.py": MEASURED,
    "benchmark/estimator.py": MEASURED,
    "benchmark/summary.py": MEASURED,
    "theory.py": [FORMULAS],
    "forecast/tuning.py": TUNED,
    "forecast/replay.py": [REPLAYED],
    "forecast/costs.py": ["tests/forecast/test_forecast.py", *TUNED],
    "forecast/forecast.py": ["tests/forecast/test_forecast.py", *TUNED],
    "certificate/check.py": CERTIFICATE,
    "certificate/checks.py": CERTIFICATE,
    "certificate/draws.py": CERTIFICATE,
    "certificate/divergence.py": CERTIFICATE,
    "certificate/hostile.py": CERTIFICATE,
    "certificate/afresh.py": CERTIFICATE,
    "certificate/subject.py": CERTIFICATE,
    "training/divergences.py": ALIGNED,
    "training/alignment.py": ALIGNED,
    "training/objectives.py": ["tests/training/test_objectives.py", *HEADED],
    "training/optimizer.py": TRAINED,
    "training/data.py": TRAINED,
    "training/loss.py": TRAINED,
    "training/initial.py": ["tests/training/test_initial.py"],
    "training/laws.py": ["tests/training/test_laws.py"],
    "training/exits.py": ["tests/training/test_exits.py"],
    "models/trim.py": TRIMMED,
    "models/t5/trimming.py": TRIMMED,
    "models/heads.py": [*HEADED, "tests/drafters/test_blockwise.py"],
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


def drawn(each: int, seed: int, only: str) -> Iterator[Mutant]:
    """One of every module, then the next."""
    streams = [mutants(module, seed) for module in TESTS if only in module]
    for _ in range(each):
        for stream in streams:
            yield from (mutant for mutant in [next(stream, None)] if mutant)


def tested(
    tests: list[str], copy: Path, limit: float | None, marks: str = DEFAULT
) -> tuple[str, float]:
    """What tests say of a copy: 'survived', 'killed' or 'endless'; and their seconds."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", marks, *tests]
    environment = os.environ | {
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        # A mutant changes few of the programs; the others need not be compiled again.
        "JAX_COMPILATION_CACHE_DIR": str(PROGRAMS),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    begin = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(limit)
        if code == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise SystemExit(f"{tests} have none that are {marks!r}")
        outcome = "killed" if code else "survived"
    except subprocess.TimeoutExpired:
        outcome = "endless"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return outcome, round(time.perf_counter() - begin, 1)


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
        for name in (module.split("/")[0].removesuffix(".py"), "all"):
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
        tests, file = TESTS[mutant.module], copy / "specdec" / mutant.module
        known = [usual.get(one) for one in tests]
        limit = LIMIT if None in known or marks != DEFAULT else 2 * sum(known) + 60
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
    parser.add_argument("--each", type=int, default=3, help="mutants of each module")
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
