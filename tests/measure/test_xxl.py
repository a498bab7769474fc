"""scripts/devices/xxl.py, run at tiny size: pytest tests/measure/test_xxl.py"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.common.records import RecordsError
from specdec.decoding.program import Program
from specdec.measure import file
from specdec.measure.file import Generation, Timing
from specdec.predict import hlo
from specdec.report import run_tables, summaries
from specdec.sampling import Greedy, Sampling
from specdec.verifiers import SyntheticAcceptance

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "devices" / "xxl.py"
NAMES = ["ende_small_t0", "ende_small_t1_gamma5"]
PARTS = 9
# What the machine it is for lacks: importing one of these fails here too.
ABSENT = ("gin", "seqio", "tensorflow", "tensorflow_datasets")

specification = importlib.util.spec_from_file_location("xxl", SCRIPT)
xxl = sys.modules["xxl"] = importlib.util.module_from_spec(specification)
specification.loader.exec_module(xxl)


def run(folder: Path, *arguments: str) -> str:
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({ABSENT}));"
        f"sys.argv = {['xxl.py', f'--output_dir={folder}', '--sizes=tiny', *arguments]};"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> tuple[Path, str]:
    """The folder that one run filled, and what it printed."""
    folder = tmp_path_factory.mktemp("xxl") / "new"
    return folder, run(folder)


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.iterdir() if path.suffix != ".lock")
    return {path.name: path.read_text() for path in files}


def summary(folder: Path, name: str) -> dict:
    return json.loads((folder / f"{name}.jsonl.summary.json").read_text())


def cells(text: str, name: str) -> list[list[str]]:
    """The lines of the tables that a row has."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.slow
def test_the_records_make_the_summaries(first):
    folder, _ = first
    suffixes = (".jsonl", ".jsonl.gin", ".jsonl.summary.json")
    assert sorted(contents(folder)) == sorted(x + suffix for x in NAMES for suffix in suffixes)
    for name, gamma in zip(NAMES, (7, 5), strict=True):
        lines = [json.loads(x) for x in (folder / f"{name}.jsonl").read_text().splitlines()]
        found = list(map(file.record, lines))
        generations = [one for one in found if isinstance(one, Generation)]
        timings = [one for one in found if isinstance(one, Timing)]
        assert (len(generations), len(timings)) == (3 * 2, PARTS)
        assert {len(one.tokens) for one in generations} == {10}
        assert {d for one in generations for d in one.drafted} <= set(range(gamma + 1))
        row = xxl.Row(xxl.SIZES["tiny"], name.removesuffix("_gamma5"), gamma)
        written = summary(folder, name)
        read = row.plan.target.read_by_decode(xxl.shapes(row.plan.target))
        step_bytes = written["baseline"]["floor"] * written["baseline"]["bandwidth"]
        assert step_bytes == pytest.approx(sum(2 * x.size for x in jax.tree.leaves(read)))
        assert written["identical"] is None and written["run"]["gamma"] == gamma
        assert written["exact"] is False
        found = written["run"]["operations"]
        steps = [found[x] for x in xxl.STEPS]
        assert min(steps) > 0 and found["alone"] >= found["step"]
        assert found["draft 1"] <= found["extend"] < found["iteration"] / gamma
        drafts = found["draft 2"] + (gamma - 1) * found["draft 1"]
        assert found["iteration"] >= found["verify"] + drafts
        calls = [one.calls for one in generations if one.mode == "speculative"]
        assert row.outputs / written["tau"] == pytest.approx(sum(calls) / len(calls))
        costs = [xxl.costs(row, written, kind) for kind in ("flops", "bytes")]
        assert all(one[mode] > 0 for one in costs for mode in ("alone", "speculative"))


@pytest.mark.slow
def test_the_tables(first):
    folder, text = first
    for name, gamma, alpha, paper in ((NAMES[0], "7", "0.75", "3.4"), (NAMES[1], "5", "0.62", "")):
        found = summary(folder, name)
        speed, contents = cells(text, name)
        assert speed[:3] == [name, gamma, alpha]
        assert speed[3] == ""
        assert speed[4].startswith(f"{found['speedup']['ratio']:.2f} (")
        assert speed[7] == paper
        assert speed[10] == f"{1e3 * found['baseline']['target_step']:.3f}"
        step = found["run"]["operations"]["step"]
        assert contents[1] == f"{step} ({step / 2:.1f})"
    assert text.endswith("2 of 2 rows; where acceptance was drawn, only times are real\n")


@pytest.mark.slow
def test_the_report_reads_them(first):
    folder, _ = first
    text = run_tables.markdown(summaries.read([f"{folder}/{x}.jsonl.summary.json" for x in NAMES]))
    assert "| ende_small_t0 | paper | 7 | 0.75 |" in text
    assert "| ende_small_t1_gamma5 | here | 5 |" in text
    assert text.count("NOT EXACT") == 2


@pytest.mark.slow
def test_what_was_measured_is_not_measured_again(first):
    folder, text = first
    before = contents(folder)
    again = run(folder)
    assert contents(folder) == before
    assert all(cells(again, name) == cells(text, name) for name in NAMES)
    assert " took " not in again


@pytest.mark.slow
def test_other_settings_are_refused(first):
    row = xxl.Row(xxl.SIZES["full"], "ende_small_t0", 7)
    with pytest.raises(RecordsError, match=r"with parameters = \{.*another --output_dir$"):
        xxl.measured(row, first[0] / "ende_small_t0.jsonl")


@pytest.mark.slow
def test_the_grown_pair_is_exact_and_its_beams_are_those_of_the_target(tmp_path):
    sizes = xxl.SIZES["tiny"]
    row, path = xxl.Grown(sizes, 0.0, 3), tmp_path / "grown.jsonl"
    xxl.measure(row, path, {})
    found = summary(tmp_path, "grown")
    assert found["exact"] is True and found["identical"] == xxl.runs(found) == 6
    assert found["alpha"] > 0.5  # the pair's own, where a random draft has none
    lines = xxl.measured_beams(sizes, tmp_path / "beams.jsonl")
    assert [line["same beams"] for line in lines] == [6, 6, 6]
    assert lines[0]["steps per call"] == 1 < lines[1]["steps per call"]
    written = [json.loads(x) for x in (tmp_path / "beams.jsonl").read_text().splitlines()]
    assert all(one.pop("environment")["backend"] == "cpu" for one in written) and written == lines


@pytest.mark.ci
def test_without_time_nothing_begins(tmp_path):
    assert run(tmp_path, "--minutes=0").strip().startswith("0 of 2 rows")
    assert not contents(tmp_path)


@pytest.mark.slow
def test_no_row_begins_that_may_end_later(first, tmp_path, monkeypatch, capsys):
    """A row is expected to take as long as the longest so far."""
    now = 0

    def measure(row, path, compiled):
        nonlocal now
        now += 300
        for suffix in (".gin", ".summary.json"):
            Path(f"{path}{suffix}").write_text((first[0] / f"{path.name}{suffix}").read_text())

    monkeypatch.setattr(xxl, "measure", measure)
    monkeypatch.setattr(xxl, "time", types.SimpleNamespace(monotonic=lambda: now))
    # The run had the environment of another process.
    there = summary(first[0], NAMES[0])["environment"]
    monkeypatch.setattr(xxl, "environment", lambda: there)
    for minutes, rows in ((9, 1), (10.1, 2)):
        folder, now = tmp_path / str(rows), 0
        arguments = [f"--output_dir={folder}", "--sizes=tiny", f"--minutes={minutes}"]
        monkeypatch.setattr(sys, "argv", ["xxl.py", *arguments])
        xxl.main()
        assert f"{rows} of 2 rows" in capsys.readouterr().out
        assert len(contents(folder)) == 2 * rows


def test_the_most_important_rows_come_first():
    rows = xxl.SIZES["full"].rows
    first = [("ende_small_t0", 7), ("ende_small_t1", 7), ("ende_small_t1", 5)]
    assert rows[:5] == [*first, ("cnndm_small_t0", 5), ("cnndm_small_t1", 5)]
    paper = [name for name, gamma in rows if gamma == xxl.PAPER[name].gamma]
    assert sorted(paper) == sorted(xxl.PAPER)
    drafts = [name.split("_")[1] for name in paper]
    assert drafts == ["small"] * 4 + ["base"] * 4 + ["large"] * 4
    assert len(set(rows)) == len(rows) == 12 * 4


def test_rows_are_the_papers_settings():
    for name, gamma in xxl.SIZES["full"].rows:
        plan = xxl.Row(xxl.SIZES["full"], name, gamma).plan
        task, draft, temperature = name.split("_")
        assert plan.verifier == SyntheticAcceptance(xxl.PAPER[name].alpha)
        assert plan.gamma == gamma and plan.stop_ids == ()  # else texts differ in length
        assert not plan.exact
        assert plan.target == xxl.FULL["xxl"] and plan.drafter.model == xxl.FULL[draft]
        assert plan.sampling == (Greedy() if temperature == "t0" else Sampling(1.0))
        assert plan.drafter.sampling == plan.sampling
        assert plan.max_length == {"ende": 64, "cnndm": 128}[task]


@pytest.mark.slow
def test_full_size():
    """Parameters as the released checkpoints have; bytes in bfloat16."""
    counts = {name: sum(x.size for x in leaves(model)) for name, model in xxl.FULL.items()}
    golden = json.loads((ROOT / "tests" / "golden" / "ladder.json").read_text())["models"]
    assert counts == {name: golden[f"t5_1_1_{name}"]["parameters"] for name in counts}
    size = sum(x.size * x.dtype.itemsize for x in leaves(xxl.FULL["xxl"]))
    assert 22.2e9 < size < 22.4e9
    assert step_bytes(xxl.FULL["xxl"]) == pytest.approx(2 * 5.57e9, rel=1e-3)


def leaves(model) -> list:
    return jax.tree.leaves(xxl.shapes(model))


def step_bytes(model) -> int:
    return sum(2 * x.size for x in jax.tree.leaves(model.read_by_decode(xxl.shapes(model))))


@pytest.mark.parametrize("name", xxl.TINY)
def test_a_step_reads_what_its_trace_uses(name):
    """All of it as a whole, but the embedding, of which a step reads a row."""
    model = xxl.TINY[name]
    inputs = jax.ShapeDtypeStruct([1, 8], np.int32)
    cache = jax.eval_shape(lambda *given: model.prefill(*given, 12), xxl.shapes(model), inputs)
    token = jax.ShapeDtypeStruct([1, 1], np.int32)
    trace = jax.make_jaxpr(model.decode)(xxl.shapes(model), token, cache).jaxpr
    used = {id(x) for equation in trace.eqns for x in equation.invars}
    read = [x.aval for x in trace.invars[: len(leaves(model))] if id(x) in used]
    embedding = xxl.shapes(model)["token_embedder"]["embedding"].size
    assert step_bytes(model) == 2 * (sum(x.size for x in read) - embedding)


@pytest.mark.slow
def test_parameters_are_spread_as_initial_ones():
    model = xxl.TINY["xxl"]
    made, initial = xxl.parameters(model), jax.jit(model.init)(jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype("bfloat16")}
    for path, leaf in jax.tree_util.tree_leaves_with_path(initial):
        one = made
        for key in path:
            one = one[key.key]
        assert one.shape == leaf.shape
        wanted = float(jnp.sqrt(jnp.mean(jnp.square(leaf))))
        spread = float(jnp.sqrt(jnp.mean(jnp.square(one.astype(jnp.float32)))))
        factor = 4 if "rel_embedding" in jax.tree_util.keystr(path) else 1.2
        assert wanted / factor < spread < wanted * factor, path


def test_equal_programs_are_compiled_once():
    known = {}

    def executable(factor: float, params):
        program = Program(functools.partial(lambda factor, params, x: factor * x, factor))
        return xxl.Shared(program, known).compile(params, jnp.ones(3))

    given = [(2.0, ()), (3.0, ()), (2.0, ()), (2.0, {}), (3.0, ())]
    found = [executable(*each) for each in given]
    assert len(known) == 3
    assert found[0] is found[2] and found[1] is found[4]
    assert len({id(one) for one in found}) == 3


def test_xla_keeps_every_reading_of_the_memory():
    memory = jnp.ones([2, 4096])
    program = jax.jit(xxl.read_memory, static_argnums=0).lower(4, (), memory).compile()
    found = hlo.read(program.as_text())
    assert [loop.trip_count for loop in found.loops] == [4]
    assert any(one.loop and "reduce_max" in one.scope for one in found.operations)
    assert float(program((), memory)) in (0, 1)


def test_xla_counts_a_loops_body_once():
    """Else `cost` would count a part's steps twice."""

    def flops(steps: int) -> float:
        scan = jax.jit(lambda x: jax.lax.scan(lambda c, _: (c @ x, None), x, length=steps)[0])
        return scan.lower(jnp.ones([32, 32])).compile().cost_analysis()["flops"]

    assert flops(8) == pytest.approx(flops(2))
