"""Output of `forecast` and `compile` while they measure: pytest tests/cli/test_shown_at_once.py"""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import jax
import pytest

from specdec import cli
from specdec.cli import compile as compiling
from specdec.cli import forecast
from specdec.cli import run as runs
from specdec.predict.hardware import Topology


def piped(monkeypatch):
    """Returns a function of what has reached standard output, which is written in blocks."""
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out))
    return lambda: out.getvalue().decode()


def test_the_forecasts_of_a_variant_are_shown_before_the_next(monkeypatch):
    """Each variant has its forecasts together, below its name and its parts."""
    written = piped(monkeypatch)
    rows = {"": [2, 4], "GAMMA=3": [3, 5]}
    drafts = SimpleNamespace(drafts=True, drafter="", sampling="Greedy()")
    alone = SimpleNamespace(drafts=False, target="T5", sampling="Greedy()")
    plans, shown = {"": drafts, "GAMMA=3": alone}, []
    variants = [SimpleNamespace(name=name, run=SimpleNamespace(plan=plans[name])) for name in rows]

    def forecasts():
        for variant in variants:
            for gamma in rows[variant.name]:
                shown.append(written())
                yield variant, SimpleNamespace(costs=f"costs of {gamma}", gamma=gamma)

    ready = SimpleNamespace(variants=[SimpleNamespace(settings="")], predictions=forecasts)
    for name in ("variants", "costs_of", "rows_of"):
        monkeypatch.setattr(forecast, name, lambda *_, **__: None)
    monkeypatch.setattr(forecast.DraftLengths, "of", lambda *_, **__: ready)
    monkeypatch.setattr(
        forecast.predicted_speedup, "lines", lambda found: [f"gamma {x.gamma}" for x in found]
    )
    assert cli.main(["forecast", "--gin_file=demo.gin", "--passes=x"]) == 0
    first = "str, Greedy(), costs of 2\ngamma 2\ngamma 4\n"
    assert shown == ["", "", "", first]
    assert written() == f"{first}\nGAMMA=3\nT5, Greedy(), costs of 3\ngamma 3\ngamma 5\n"


TOPOLOGIES = "v4:1x1x1", "v5e:1x1"
COMPILE = ["compile", "--gin_file=demo.gin", *(f"--topology={name}" for name in TOPOLOGIES)]


def test_each_topology_is_shown_when_it_is_compiled(monkeypatch):
    written, shown = piped(monkeypatch), []

    def compiled(topology, *_, **__):
        shown.append(written())
        return topology.name

    monkeypatch.setattr(compiling, "_compiled", compiled)
    monkeypatch.setattr(compiling.compile_record, "record", lambda topology, made, alphas: made)
    report = {"lines": lambda x: [x, "..."], "markdown": lambda _: "", "explanation": lambda _: "!"}
    for name, function in report.items():
        monkeypatch.setattr(compiling.compile_report, name, function)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    assert cli.main(COMPILE) == 0
    assert shown == ["", f"{TOPOLOGIES[0]}\n...\n"]
    assert written() == "".join(f"{name}\n...\n" for name in TOPOLOGIES) + "!\n"


@pytest.mark.parametrize("refill", [False, True])
def test_a_compilation_is_of_the_runs_rows_and_widths(monkeypatch, refill):
    asked, bar = [], SimpleNamespace(n=0, names=[])
    bar.update, bar.set_description = lambda count: None, bar.names.append

    def compile_for(plan, shape, mesh, **how):
        how.pop("progress")("prefill")
        asked.append((shape, how))

    monkeypatch.setattr(Topology, "devices", lambda self: jax.devices()[:1])
    monkeypatch.setattr(compiling, "compile_for", compile_for)
    more = ["--batch_size=2", "--gin.BUCKETS=(8,)", "--gin.TASK=None", f"--gin.REFILL={refill}"]
    flags = cli.settings.joined([*COMPILE, *more])
    run = runs.described(cli.overview().parse_args(flags))
    compiling._compiled(Topology.parse(TOPOLOGIES[0]), run, run.plan, bar, parts=True)
    widths = (8, 48) if refill else ()
    assert asked == [((2, 48), {"tables": {}, "widths": widths, "parts": True})]
    assert bar.names == [f"{TOPOLOGIES[0]}: compiling prefill"]
