"""The plan, the commands and the page of a study, worked out by hand: pytest tests/replicate

No two figures in `FILES` are alike, so each has its place on the page, which is page.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.machinery
import io
import json
import os
import sys
import types
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from specdec import cli
from specdec.cli import replicate as command
from specdec.common import child
from specdec.common.records import Lines
from specdec.drafters import Autoregressive
from specdec.models.t5 import T5Config, T5Target
from specdec.plan import Plan
from specdec.predict.hardware import GIB, Call
from specdec.predict.roofline import Counted
from specdec.report.replicate import page, replication, results, steps, study
from specdec.report.replicate.replication import Described, Replication
from specdec.report.replicate.results import Place, RowFigures, Step
from specdec.report.replicate.steps import Choices, Journal
from specdec.report.replicate.study import Grown, Need, Published, Study, StudyRow
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.verifiers import Block

GAMMA, LONGEST = 7, 40
SHIPPED = Path(__file__).resolve().parents[2] / "gin" / "sampling" / "temperature.gin"
CONFIG = T5Config(
    vocab_size=512,
    emb_dim=16,
    num_heads=2,
    head_dim=8,
    mlp_dim=32,
    num_encoder_layers=1,
    num_decoder_layers=3,
)
ONE = StudyRow(
    "one",
    ["--gin_file=demo.gin"],
    needs=["there"],
    more=["--gin.BUCKETS=()"],
    tables=True,
    published=Published(0.5, 0.25, 1.6, 1.3, 3.5),
    alphas={"unigram": [0.05, 0.06]},
)
TWO = StudyRow(
    "two", [], needs=["gone"], grown=Grown(["--gin_file=demo.gin", "--gamma=5"], "t5_1_1_small")
)
THREE, FOUR = StudyRow("three", ["--gin_file=demo.gin"]), StudyRow("four", ["--gin_file=demo.gin"])
NEEDS = {
    "there": Need("a model", "--gin.CHECKPOINT_PATH={!r}"),
    "gone": Need("another", "--gin.CHECKPOINT_PATH={!r}"),
}
STUDY = Study("mine", "A study", "About it.", [ONE, TWO, THREE, FOUR], NEEDS, limit=32, tokens=1000)


def plan(sampling: Any = None, gamma: int = GAMMA) -> Plan:
    sampling = sampling or Greedy()
    target, draft = T5Target(CONFIG), T5Target(dataclasses.replace(CONFIG, num_decoder_layers=2))
    parts = Autoregressive(draft, sampling), Block(), Fixed(gamma), sampling
    return Plan(target, *parts, max_length=LONGEST)


class Ended:
    """A journal in which all commands have ended."""

    def has(self, step: Step) -> bool:
        return True


def alpha(value):
    return {"value": value, "lenience": 0.5, "low": 0.1, "high": 0.9}


RUN_OF_A_FILE = {"dtype": {}, "parameters": {}, "split": None, "sampling": "", "drafter": ""}
FILES: dict[str, Any] = {
    "one.jsonl.summary.json": {
        "speedup": {"ratio": 2.0, "low": 1.75, "high": 2.25, "per_token": 2.5},
        "prediction": {"gamma": 7, "these_texts": 1.5, "cost_ratio": 0.125, "verify_cost": 1.5},
        "exact": True,
        "tau": 3.25,
        "seconds": {"alone": {"p10": 3.0, "p50": 4.0, "p90": 9.0}},
        "alpha": 0.625,
        "identical": 12,
        "texts": 7,
        "repeats": 2,
        "beams": 0,
    },
    "one.alpha.jsonl.summary.json": {
        "alphas": {
            "model": [alpha(x) for x in (0.71, 0.72, 0.73, 0.74)],
            "bigram": [alpha(x) for x in (0.21, 0.22, 0.23, 0.24)],
        },
        "texts": 7,
        "tokens": 70,
    },
    "one.here.jsonl": [{"speedup": 9.0}, {"speedup": 2.0}],
    "one.v4_1x1x1.jsonl": [{"speedup": 4.25}],
    "one.eval/metrics.json": {"metrics": {"alone": {"bleu": 30.5}, "speculative": {"bleu": 29.3}}},
    "two.jsonl.summary.json": {
        "speedup": {"ratio": 3.0, "low": 2.5, "high": 3.5, "per_token": 3.1},
        "prediction": None,
        "exact": False,
        "tau": 5.0,
        "seconds": {"alone": {"p50": 6.0}},
        "alpha": 0.81,
        "identical": None,
        "texts": 6,
        "repeats": 2,
    },
    "three.jsonl.summary.json": {
        "speedup": {"ratio": 1.1, "low": 1.0, "high": 1.2, "per_token": 1.15},
        "prediction": {"gamma": 7, "these_texts": 1.5, "cost_ratio": 0.375},
        "exact": True,
        "tau": 2.0,
        "seconds": {"alone": {"p50": 5.0}},
        "alpha": None,
        "identical": None,
        "texts": 6,
        "repeats": 2,
    },
    "three.verify.json": {"passed": False, "certified": False},
    "four.jsonl.summary.json": {
        "speedup": {"ratio": 0.9, "low": 0.8, "high": 1.0, "per_token": 0.95},
        "prediction": None,
        "exact": True,
        "tau": 1.5,
        "seconds": {"alone": {"p50": 16.0}},
        "alpha": 0.9,
        "identical": 11,
        "texts": 4,
        "repeats": 3,
        "beams": 4,
    },
}
MACHINES = {"one": ("CPU A", 2, "2026-11-01"), "two": ("CPU B", 4, "2026-11-02")}


def written(folder: Path) -> list[RowFigures]:
    """Writes what commands have written, and returns the rows with what is known before."""
    for name, content in FILES.items():
        if name.endswith("jsonl.summary.json"):
            cpu, cores, date = MACHINES.get(name.partition(".")[0], MACHINES["one"])
            versions = {"specdec": "1.5", "jax": "0.10.2"}
            machine = {"backend": "cpu", "device": "cpu", "devices": 1, "cpu": cpu, "cores": cores}
            content = content | {"environment": machine | {"date": date, "versions": versions}}
            content |= {"run": RUN_OF_A_FILE | {"gamma": 7}}
            content |= {"baseline": {"target_step": 1.0, "target_prefill": 1.0}}
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = content if isinstance(content, list) else [content]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    v4 = Place(20 * GIB, 30 * GIB, "", cost_ratio=0.03125, pays_from=1.375, given=3.0625)
    small = Place(24 * GIB, 16 * GIB, "from shapes")
    one, two = (
        RowFigures(ONE, layers=8, parameters=77_000_000),
        RowFigures(TWO, ["gone: another"], ["GROWN"]),
    )
    one.places = {"v4:1x1x1": v4, "v5e:1x1": small}
    one.steps = [Step("one", "bench", ("bench", "--gin.A=b c"))]
    two.steps = [Step("two", "eval", ("eval", "--limit=3"))]
    rows = [one, two, RowFigures(THREE), RowFigures(FOUR)]
    rows[2].failures, rows[2].steps = {"eval": "it failed"}, [Step("three", "verify", ("verify",))]
    rows[3].steps = [Step("four", "bench", ("bench",))]
    return rows


class Table(HTMLParser):
    """The cells of all tables of a page, row by row."""

    def __init__(self):
        super().__init__()
        self.rows: list[list[str]] = []
        self._open = False

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._open = True

    def handle_endtag(self, tag):
        self._open &= tag not in ("td", "th")

    def handle_data(self, data):
        if self._open:
            self.rows[-1][-1] += data


def test_each_figure_of_a_file_has_its_place_on_the_page(tmp_path, monkeypatch):
    """In Markdown, HTML and LaTeX, and in page.json, with which a later page is compared."""
    read: list[str] = []  # figures of `report` have tests of their own
    monkeypatch.setattr(page.summaries, "read", lambda paths: read.extend(paths) or [])
    monkeypatch.chdir(tmp_path)
    rows = written(Path("now"))
    Path("then").mkdir()
    measured = {"speedup": 1.8125, "alpha": 0.6125, "target": 31.0}
    before = {"row": "one", "measured": measured, "marks": ["GROWN"]}
    Path("then", "page.json").write_text(json.dumps({"study": "mine", "rows": [before]}))
    shown = Replication(STUDY, Choices(Path("now")), Ended(), None)  # type: ignore[arg-type]
    shown.show(rows, results.earlier("then", STUDY))

    expected = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    assert Path("now", "page.md").read_text() == expected
    assert read == [f"now/{name}.jsonl.summary.json" for name in ("one", "two", "three")]
    lines = [line for line in expected.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    cells = [row for row in cells if row[0] != "---"]
    latex = Path("now", "page.tex").read_text()
    found = [line[:-3].split(" & ") for line in latex.splitlines() if line.endswith("\\\\")]
    assert [[cell.strip().replace("\\%", "%") for cell in row] for row in found] == cells
    html = Table()
    html.feed(Path("now", "page.html").read_text())
    assert [[" ".join(cell.split()) for cell in row] for row in html.rows] == cells

    again = results.earlier("now", STUDY).rows
    assert again["one"]["measured"] == {
        "speedup": 2.0,
        "low": 1.75,
        "high": 2.25,
        "per_token": 2.5,
        "alpha": 0.71,
        "cost_ratio": 0.125,
        "tokens_per_call": 3.25,
        "seconds_alone": 4.0,
        "beams": 0,
        "target": 30.5,
        "run": 29.3,
    }
    assert [again[name]["marks"] for name in ("one", "two")] == [[], ["GROWN"]]
    assert [again[name]["exact"] for name in ("one", "two")] == [True, False]


def test_each_speedup_has_its_place_in_the_figure(tmp_path):
    figure = pytest.importorskip("specdec.report.replicate.figure")
    rows = written(tmp_path)[:2]
    rows[0].measured = {"speedup": 2.0, "low": 1.75, "high": 2.5}
    rows[0].places["here"] = Place(recorded=1.5)
    rows[1].measured = {"speedup": 3.0}
    (axes,) = figure.of_rows(rows).axes
    points = {(x.get_label(), *map(float, x.get_xydata()[0])) for x in axes.lines if x.get_ls()}
    points = {point for point in points if not point[0].startswith("_")}
    assert points == {
        ("published", 1.3, 0),
        ("predicted, v4:1x1x1, given acceptance", 3.0625, 0),
        ("predicted, here, recorded texts", 1.5, 0),
    }
    bars = [container.lines for container in axes.containers]
    ends = [lines.get_segments()[0][:, 0].tolist() for _, _, (lines,) in bars]
    assert ends == [[1.75, 2.5], [3.0, 3.0]]
    # A grey diamond, a hollow circle of a colour for each place, and a blue square.
    looks = {x.get_label(): (x.get_marker(), x.get_color(), x.get_fillstyle()) for x in axes.lines}
    assert {name: look for name, look in looks.items() if not name.startswith("_")} == {
        "published": ("D", "#6E6E6E", "full"),
        "predicted, v4:1x1x1, given acceptance": ("o", "#E69F00", "none"),
        "predicted, here, recorded texts": ("o", "#009E73", "none"),
    }
    measured = [container.lines[0] for container in axes.containers]
    assert [(x.get_marker(), x.get_color()) for x in measured] == [("s", "#0072B2")] * 2
    caps = [cap.get_markersize() for cap in axes.containers[0].lines[1]]
    assert caps == [2 * 3] * 2  # a cap of 3 points to each side
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        *("published", "predicted, v4:1x1x1, given acceptance", "predicted, here, recorded texts"),
        "measured",
    ]
    assert figure.of_rows([RowFigures(THREE)]).legends == []
    assert [one.get_text() for one in axes.get_yticklabels()] == ["one", "two GROWN"]
    assert axes.get_ylim() == (1.5, -0.5)  # the first row is at the top
    heights = [figure.of_rows(rows * count).get_figheight() for count in (1, 2, 3)]
    assert heights == pytest.approx([1.824, 2.448, 3.072])  # inches, 0.312 for a row
    _, (said,) = figure.draw(rows[:1], [], tmp_path)
    assert said["words"] == [
        "one: published 1.30; predicted, v4:1x1x1, given acceptance 3.06; "
        "predicted, here, recorded texts 1.50; measured 2.00"
    ]


# Commands and plans.


FLAGS = ("--gin_file=demo.gin", "--gin.CHECKPOINT_PATH='dir'", "--gin.DTYPE='bfloat16'")
CACHE = "--compilation_cache_dir=f/cache"


def commands(one: RowFigures, choices: Choices, of: Plan) -> dict[str, tuple[str, ...]]:
    """Returns the arguments of each step; none are those of another command."""
    made = steps.measurement(STUDY, one, choices, of, ["v4:1x1x1"])
    return {step.name: step.argv for step in made}


def test_the_commands_of_a_row():
    """A recording is as long as the study says, unless a limit is given for all."""
    use = {"there": "dir"}
    choices = Choices(Path("f"), use=use, flags=["--gin.DTYPE='bfloat16'"], certify=True)
    one = steps.figures_of(STUDY, ONE, choices)
    passes = "--passes=f/one.alpha.jsonl"
    alpha = "--tables", "--tokens=1000", "--output_file=f/one.alpha.jsonl"
    costs = "--costs=f/one.jsonl", "--output_file=f/one.here.jsonl"
    v4 = "--costs=f/one.v4_1x1x1.costs.json", "--output_file=f/one.v4_1x1x1.jsonl"
    last = "--compare", "--output_dir=f/one.eval"
    expected = {
        "acceptance": ("acceptance", *FLAGS, CACHE, *alpha),
        "bench": ("bench", *FLAGS, "--limit=32", CACHE, "--output_file=f/one.jsonl"),
        "forecast here": ("forecast", *FLAGS, passes, "--gammas=7", *costs),
        "forecast v4:1x1x1": ("forecast", *FLAGS, passes, "--gammas=7", *v4),
        "eval": ("eval", *FLAGS, "--gin.BUCKETS=()", "--limit=32", CACHE, *last),
    }
    assert commands(one, choices, plan()) == expected
    verify = "verify", *FLAGS, "--limit=32", CACHE, "--output_file=f/one.verify.json"
    assert commands(one, choices, plan(Sampling())) == expected | {"verify": verify}

    short = dataclasses.replace(choices, limit=4)
    limited = {
        "acceptance": ("acceptance", *FLAGS, "--limit=4", CACHE, *alpha),
        "bench": ("bench", *FLAGS, "--limit=4", CACHE, "--output_file=f/one.jsonl"),
        "forecast here": ("forecast", *FLAGS, "--limit=4", passes, "--gammas=7", *costs),
        "forecast v4:1x1x1": ("forecast", *FLAGS, "--limit=4", passes, "--gammas=7", *v4),
        "eval": ("eval", *FLAGS, "--gin.BUCKETS=()", "--limit=4", CACHE, *last),
    }
    assert commands(one, short, plan()) == limited


def test_the_flags_of_a_grown_row():
    more = {"grown": "t5_1_1_base", "flags": ["--gin.DTYPE='bfloat16'"]}
    one = steps.figures_of(STUDY, TWO, Choices(Path("f"), **more))
    assert one.flags == (
        "--gin_file=demo.gin",
        "--gamma=5",
        "--gin.CHECKPOINT_PATH='f/grown/target-t5_1_1_base'",
        "--gin.DRAFT_CHECKPOINT_PATH='f/grown/draft-t5_1_1_small'",
        "--gin.DTYPE='bfloat16'",
    )


class Sized(Described):
    """A run whose calls read 6 GB, on a device that has to hold 4 + 1 GB."""

    def counted(self, devices: int) -> Counted:
        calls = {"target": Call(6e9, 1e9, 24), "draft": Call(5e8, 1e8, 8)}
        return Counted(calls, parameters=4 * 10**9 // devices, caches=10**9)


class Begun(Ended):
    """A journal in which one command of a row has ended."""

    def has(self, step: Step) -> bool:
        return step.name == "acceptance"


def planned(monkeypatch, memory: float, **choices: Any) -> list[RowFigures]:
    """Returns the rows of a plan on a machine with this memory, which reads 3 GB/s of it."""
    monkeypatch.setattr(replication, "bandwidth", lambda: 3e9)
    monkeypatch.setattr(replication, "has_compiler", lambda: False)
    pages = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": int(memory)}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    one = dataclasses.replace(STUDY, rows=[ONE], limit=choices.pop("of_study", 32))
    given = Choices(choices.pop("folder", Path("f")), **choices)

    def described(flags, sizes) -> Described:
        return Sized(plan(), inputs=64)

    return Replication(one, given, Begun(), described).plan()  # type: ignore[arg-type]


@pytest.mark.parametrize("limit, of_study, texts", [(3, 30, 3), (None, 30, 30), (None, None, 32)])
def test_minutes_and_memory_of_a_plan(monkeypatch, limit, of_study, texts):
    """Of three commands that are left, and have 15 s each to start and to compile.

    A benchmark takes the time of five passes over the texts, an evaluation that of 1.5, and a
    forecast none. A pass is 40 tokens a text of 2 s each.
    """
    (one,) = planned(monkeypatch, 12e9, use={"there": "dir"}, limit=limit, of_study=of_study)
    assert one.minutes == pytest.approx((3 * 15 + 6.5 * texts * 40 * 2) / 60)
    assert one.bytes == 5 * 10**9 and not one.failures
    head, _, row = list(replication.overview(STUDY, [one]))[2].splitlines()
    cells = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert cells["GB here"] == "5.0" and cells["minutes |"] == f"{one.minutes:.0f} |"
    assert cells["| row"] == "| one" and cells["published"] == "1.3"
    # What makes models or compiles has no passes over texts.
    others = [Step("", "grow target-t5_1_1_base", ()), Step("one", "compile v4:1x1x1", ())]
    of_one = Counted({"target": Call(6e9, 1e9, 24)}, parameters=0, caches=0)
    assert steps.minutes(others, of_one, tokens=40, texts=32, bandwidth=3e9) == 0.5


def test_a_benchmark_holds_its_parameters_more_than_twice(monkeypatch):
    """2.5 x 4 + 1 GB."""
    for memory, shown in ((10.9e9, 11), (8e9, 8)):
        (one,) = planned(monkeypatch, memory, use={"there": "dir"})
        says = f"needs 11 GB of memory, and this machine has {shown}"
        assert one.failures == {"run": says}
        assert not one.steps and one.minutes is None


def test_predictions_are_for_topologies_that_have_the_memory(monkeypatch, tmp_path):
    """Of 17 GiB, which a v4 has and a v5e has not."""
    monkeypatch.setattr(Sized, "counted", _smaller_on_v4)
    names = ["v4:1x1x1", "v5e:1x1"]
    monkeypatch.setattr(replication, "roofline_costs", lambda *_: _Costs())
    (one,) = planned(monkeypatch, 99e9, use={"there": "dir"}, topologies=names, folder=tmp_path)
    v4, v5e = (one.at(name) for name in names)
    assert (v4.memory, v5e.memory) == (17 * GIB, 17 * GIB)
    assert v5e.pays_from is None and v4.pays_from is not None and v4.pays_from > 1
    assert v4.given == pytest.approx(3.5 / v4.pays_from)  # the published tokens per call
    assert [step.name for step in one.steps if step.name.startswith("forecast")] == [
        "forecast here",
        "forecast v4:1x1x1",
    ]
    assert (one.layers, one.parameters) == (2, _parameters_of_the_draft())
    assert json.loads((tmp_path / "one.v4_1x1x1.costs.json").read_text()) == {"costs": "of v4"}


class _Costs:
    def record(self) -> dict:
        return {"costs": "of v4"}


def _smaller_on_v4(self: Described, devices: int) -> Counted:
    calls = {"target": Call(6e9, 1e9, 24), "draft": Call(5e8, 1e8, 8)}
    return Counted(calls, parameters=16 * GIB // devices, caches=GIB)


def _parameters_of_the_draft() -> int:
    """Two layers of a decoder and one of an encoder, of width 16 with an MLP of two gates."""
    width, heads, mlp, tables = 16, 2 * 8, 32, 2 * 512 * 16
    attention, gates, norm = 4 * width * heads, 3 * width * mlp, width
    encoder = attention + gates + 2 * norm
    decoder = 2 * attention + gates + 3 * norm
    biases = 2 * 32 * 2  # of relative positions, for both stacks
    return tables + encoder + 2 * decoder + 2 * norm + biases


def test_a_run_is_counted_with_its_longest_texts():
    """Of one row: keys and values of 40 + 7 tokens and of 64, in each layer of both decoders."""
    found = Described(plan(), inputs=64).counted(1)
    capacity = plan().capacity
    assert capacity == LONGEST + GAMMA
    assert found.caches == (3 + 2) * 2 * (capacity + 64) * 2 * 8 * 4


# The command.


class Recorded(Replication):
    """Runs nothing, and keeps what it is given."""

    given: list[tuple] = []

    def __init__(self, *given: Any):
        Recorded.given.append(given)
        super().__init__(*given)

    def plan(self) -> list[RowFigures]:
        return []


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Begins a study in a folder with some flags; returns the exit code and the choices."""
    monkeypatch.setattr(command, "Replication", Recorded)
    Recorded.given.clear()
    (tmp_path / "data").mkdir(exist_ok=True)

    def run(study: str, *flags: str) -> tuple[int, tuple]:
        folder = tmp_path / "out"
        code = cli.main(["replicate", study, "--dry_run", f"--output_dir={folder}", *flags])
        if folder.exists():
            (folder / "replicate.jsonl").touch()  # the first command has ended
        return code, Recorded.given[-1] if Recorded.given else ()

    return run


def test_choices_are_those_of_the_flags(started, tmp_path):
    flags = "--limit=3", "--certify", "--gin.DTYPE='bfloat16'", "--grown=t5_1_1_base"
    flags += "--use=xxl_ende=google/a", "--use=small_ende=google/b"
    data = f"--tfds_data_dir={tmp_path / 'data'}"
    code, (made, choices, _, describe) = started("leviathan", *flags, data, "--synthetic")
    assert code == 0 and made.name == "leviathan"
    assert choices == Choices(
        tmp_path / "out",
        use={"xxl_ende": "google/a", "small_ende": "google/b"},
        topologies=made.topologies,
        flags=[data, "--gin.DTYPE='bfloat16'"],
        tfds_data_dir=str(tmp_path / "data"),
        grown="t5_1_1_base",
        synthetic=True,
        limit=3,
        certify=True,
    )
    assert len(made.topologies) == 2
    lengths = "--gin.TASK_FEATURE_LENGTHS={'inputs': 40, 'targets': 48}"
    run = describe(["--gin_file=demo.gin", lengths], {})
    assert (run.inputs, run.plan.max_length) == (40, 48)


def test_the_plan_is_shown_before_a_row_runs(monkeypatch, tmp_path):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
    shown = []

    class Runs(Recorded):
        def run(self, planned):
            shown.append(written.getvalue().decode())
            return iter(())

        def show(self, planned, earlier):
            return ["page.md", "page.tex", "page.json"]

    monkeypatch.setattr(command, "Replication", Runs)
    assert cli.main(["replicate", "demo", f"--output_dir={tmp_path / 'out'}"]) == 0
    assert shown[0].startswith(next(iter(replication.overview(study.read("demo"), []))))


BEGUN = ["--grown=t5_1_1_base", "--limit=3"]


@pytest.mark.parametrize(
    "flags, differs",
    [
        (["--grown=t5_1_1_base"], "limit = 3, and now it is None"),
        (["--limit=3"], "grown = 't5_1_1_base', and now it is None"),
        ([*BEGUN, "--synthetic"], "synthetic = False, and now it is True"),
        ([*BEGUN, "--gin.DTYPE='bfloat16'"], "flags = [], and now it is"),
        ([*BEGUN, "--tfds_data_dir=data"], "flags = [], and now it is"),
        ([*BEGUN, "--certify", "--topology=v4:2x2x1", "--rows=ende_*"], None),
    ],
)
def test_a_folder_goes_on_with_the_settings_that_figures_depend_on(
    started, monkeypatch, tmp_path, capsys, flags, differs
):
    monkeypatch.chdir(tmp_path)
    assert started("leviathan", *BEGUN)[0] == 0
    capsys.readouterr()
    code, _ = started("leviathan", *flags)
    said = capsys.readouterr().err
    assert code == (2 if differs else 0) and (differs or "") in said


def test_a_folder_of_another_study_is_refused(started, capsys):
    assert started("xia")[0] == 0 and started("demo")[0] == 2
    assert "study = 'xia', and now it is 'demo'" in capsys.readouterr().err


def test_the_lines_of_a_journal(tmp_path, monkeypatch):
    """What a command says is kept if it has failed; other arguments are another command."""
    codes, began = {"list": 0, "rnus": 2}, []

    def ran(argv, log):
        began.append(argv)
        log.write_text("first\nspecdec: the last\n\n")
        return codes[argv[-1]]

    monkeypatch.setattr(steps, "_run", ran)
    journal = Journal(Lines(tmp_path / "x.jsonl"))
    argv = "--gin_file=sampling/temperature.gin", "--gin_file=mine.gin", "--text=demo.gin", "rnus"
    good, bad = Step("", "grow a:b", ("list",)), Step("b", "list", argv)
    assert journal.run(good) and not journal.run(bad)
    assert journal.failure(good) == "" and journal.failure(bad) == "the last"
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [line.pop("seconds") >= 0 for line in lines] == [True, True]
    assert lines == [
        {"row": "", "step": "grow a:b", "code": 0, "said": "", "argv": ["list"]},
        {"row": "b", "step": "list", "code": 2, "said": "the last", "argv": [*argv]},
    ]
    # A gin file that ships with the package is read from there, whatever folder this is.
    (one, name), (other, _) = (arg.split("=", 1) for arg in (began[1][0], argv[0]))
    assert one == other and Path(name).is_absolute() and Path(name).samefile(SHIPPED)
    assert began == [("list",), (f"{one}={name}", *argv[1:])]
    assert (tmp_path / "shared.grow_a_b.log").exists() and (tmp_path / "b.list.log").exists()


class Child:
    """A process that notes what is asked of it, and may be interrupted while it is awaited."""

    exitcode = 3

    def __init__(self, asked: list, interrupted: bool, target: Any, args: tuple):
        self._asked, self._interrupted = asked, interrupted
        asked.append((target, *args))

    def start(self) -> None:
        self._asked.append("start")

    def is_alive(self) -> bool:
        return "kill" not in self._asked and self._interrupted

    def join(self, timeout: float | None = None) -> None:
        self._asked.append(("join", timeout))
        if self._interrupted and "terminate" not in self._asked:
            raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:  # terminate and kill
        return lambda: self._asked.append(name)


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_command_is_a_process_that_ends_with_ours(tmp_path, monkeypatch, interrupted):
    """It is asked to end when we are interrupted, and killed five seconds later."""
    asked: list = []

    def context(method: str) -> Any:
        assert method == "spawn"
        return types.SimpleNamespace(Process=functools.partial(Child, asked, interrupted))

    monkeypatch.setattr(steps.multiprocessing, "get_context", context)
    monkeypatch.chdir(tmp_path)
    journal, step = Journal(Lines(Path("x.jsonl"))), Step("b", "list", ("list", "runs"))
    Path("b.list.log").write_text("specdec: it failed\n")
    with pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext():
        assert not journal.run(step)
    begun = [(child.command, ("list", "runs"), str(tmp_path / "b.list.log")), "start"]
    ended = ["terminate", ("join", 5.0), "kill", ("join", None)] if interrupted else []
    assert asked == [*begun, ("join", None), *ended]
    codes = [] if interrupted else [(3, "it failed")]
    assert [(line["code"], line["said"]) for line in journal.lines] == codes


def test_the_compiler_for_tpus_is_libtpu(monkeypatch):
    for module in (None, types.SimpleNamespace(__spec__=importlib.machinery.ModuleSpec("x", None))):
        monkeypatch.setitem(sys.modules, "libtpu", module)
        assert replication.has_compiler() == (module is not None)


def test_the_page_is_written_when_a_row_is_done(tmp_path):
    """The last row's is written by the command, with the page that it is compared with."""
    done: list[str] = []

    class All:
        def has(self, step: Step) -> bool:
            return step.row == "three"

        def run(self, step: Step) -> bool:
            done.append(f"ran {step.row}")
            return True

    rows = [RowFigures(row, steps=[Step(row.name, "bench", ())]) for row in STUDY.rows]
    made = Replication(STUDY, Choices(tmp_path), All(), None)  # type: ignore[arg-type]
    made.show = lambda rows: done.append("page")  # type: ignore[assignment]
    assert list(made.run(rows)) == ["one: bench", "two: bench", "four: bench"]
    assert done == ["ran one", "page", "ran two", "page", "ran four"]
