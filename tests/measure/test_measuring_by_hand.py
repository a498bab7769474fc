"""How a benchmark goes on, of parts that measure nothing: pytest tests/measure"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from specdec.common.values import UsageError
from specdec.drafters import Autoregressive
from specdec.measure import benchmarking, measurement, parts
from specdec.measure.benchmarking import Benchmark, Timed
from specdec.measure.measurement import Measurement
from specdec.measure.parts import Calls, Turn
from specdec.models.t5 import T5Target
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.texts.measured_run import Variant
from specdec.texts.texts import Data, TextList
from specdec.types import Part
from specdec.verifiers import GreedyMatch


class Measuring:
    """A measurement of a variant that notes what is asked of it."""

    remaining = 3

    def __init__(self, name: str, asked: list):
        self.name, self._asked = name, asked

    def decode_elsewhere(self, others, split) -> None:
        self._asked.append((self.name, others, split))

    def by_text(self):
        for text in range(2 if self.name == "a" else 1):
            self._asked.append((self.name, text))
            yield [f"{self.name} {text}"]

    def conclude(self, about, split) -> str:
        self._asked.append((self.name, "concluded", about, split))
        return f"summary of {self.name}"

    def profile(self, folder) -> None:
        self._asked.append((self.name, "profiled", folder))


@dataclasses.dataclass
class Settings:
    """A variant of a benchmark, with five calls that are timed."""

    name: str
    asked: list
    settings: str = "settings"
    path: str | None = "lines.jsonl"
    run = SimpleNamespace(placement="devices")

    @property
    def variant(self) -> Settings:
        return self

    @property
    def workload(self) -> Any:
        return SimpleNamespace(generations=range(5), parts={})

    def measurement(self, texts, file, repeats, read) -> Measuring:
        self.asked.append((self.name, texts, file, repeats, id(read)))
        return Measuring(self.name, self.asked)

    def about(self, repeats, load) -> tuple:
        return repeats, load


@pytest.mark.parametrize("split", [None, "validation"])
@pytest.mark.parametrize("folder", [None, "traces"])
def test_variants_are_measured_in_turns(monkeypatch, split, folder):
    """All share what was read. Only the first one is traced, when all else is done."""
    asked: list = []
    monkeypatch.setattr(benchmarking, "load_average", lambda: 0.5)
    monkeypatch.setattr(benchmarking, "File", lambda *given: given)
    variants: Any = [Settings("a", asked), Settings("b", asked, path=None)]
    others: Any = {7: "others"} if split else {}
    found = Benchmark(variants, {1: "texts"}, others, split).measure(3, folder)
    assert [(one.variant.name, one.summary, one.load) for one in found] == [
        ("a", "summary of a", 0.5),
        ("b", "summary of b", 0.5),
    ]
    reads = {one[-1] for one in asked if len(one) == 5}
    assert len(reads) == 1
    (read,) = reads
    elsewhere = [(name, others, split) for name in "ab"] if split else []
    assert asked == [
        ("a", {1: "texts"}, ("lines.jsonl", "settings", 5), 3, read),
        ("b", {1: "texts"}, (None, "settings", 5), 3, read),
        *elsewhere,
        *(("a", 0), ("b", 0), ("a", 1)),
        *((name, "concluded", (3, 0.5), split) for name in "ab"),
        *([("a", "profiled", "traces")] if folder else []),
    ]


def test_texts_of_another_split_are_decoded_once(monkeypatch):
    """The file has the second text, and the third one of another split."""
    generation = lambda workload, output, **about: (output, about)  # noqa: E731
    monkeypatch.setattr(measurement, "_generation", generation)
    monkeypatch.setattr(measurement, "_keys", lambda seed, text: (seed, text))
    workload = SimpleNamespace(
        params=lambda trees: {"speculative": trees},
        generations={"speculative": lambda *given: given},
    )
    written: list = []
    file = SimpleNamespace(elsewhere={("b", 2), ("a", 3)}, write=written.append)
    one: Any = SimpleNamespace(workload=workload, trees=0, file=file, seed=7)
    Measurement.decode_elsewhere(one, {1: "x", 2: "y", 3: "z"}, "b")
    assert written == [
        ((0, (7, 1), "x"), {"text": 1, "split": "b"}),
        ((0, (7, 3), "z"), {"text": 3, "split": "b"}),
    ]


def test_a_measurement_reads_what_no_other_has_read(monkeypatch):
    asked: list = []

    def trees_of(run, tree_of):
        assert tree_of == "read"
        return "trees"

    monkeypatch.setattr(benchmarking, "trees_of", trees_of)
    measured = lambda *given, **how: asked.append((given, how)) or "measurement"  # noqa: E731
    monkeypatch.setattr(benchmarking, "Measurement", measured)
    run, store = SimpleNamespace(data=SimpleNamespace(seed=5)), SimpleNamespace(read="read")
    timed = Timed(Variant("", run, ""), "workload", None)  # type: ignore[arg-type]
    file: Any = "file"
    assert timed.measurement({1: "x"}, file, 3, store) == "measurement"  # type: ignore
    assert asked == [(("workload", "trees", {1: "x"}, "file", 5, 3), {})]


@pytest.mark.parametrize("found", [None, SimpleNamespace(milliseconds="times")])
def test_what_a_measurement_says_of_itself(monkeypatch, found):
    facts = {"dtype": "float32", "seed": 5}
    monkeypatch.setattr(benchmarking, "described", lambda run: dict(facts))
    monkeypatch.setattr(benchmarking, "layouts", lambda run: {"target": "stored"})
    monkeypatch.setattr(benchmarking.devices, "this", lambda: found)
    timed = Timed(Variant("gamma=3", "run", ""), "workload", None)  # type: ignore[arg-type]
    assert list(timed.about(3, 0.25).items()) == [
        ("dtype", "float32"),
        ("layouts", {"target": "stored"}),
        ("products", found and "times"),
        ("seed", 5),
        ("repeats", 3),
        ("load", 0.25),
        ("variant", "gamma=3"),
    ]


def test_roles_of_a_run_and_of_a_search():
    """The target alone has a tree of its own; a search adds its models to those of decoding."""
    owned = {"target": "T", "draft": "D"}
    run: Any = SimpleNamespace(
        target_alone="A", plan=SimpleNamespace(owned=lambda: owned), search=None
    )
    run.paths = lambda: {"target": "path of T", "draft": "path of D"}
    asked: list = []
    trees = benchmarking.trees_of(run, lambda one, path: asked.append((one, path)) or f"<{one}>")
    assert trees == {"alone": "<A>", "target": "<T>", "draft": "<D>"}
    assert asked == [("A", "path of T"), ("T", "path of T"), ("D", "path of D")]
    models = {"target": "S", "draft": "E"}
    run.search = SimpleNamespace(plan=SimpleNamespace(models=lambda: models))
    found = list(benchmarking._owned(run))
    assert found == [
        ("alone", "target", "A"),
        ("target", "target", "S"),
        ("draft", "draft", "E"),
        (benchmarking.of_greedy("target"), "target", "T"),
        (benchmarking.of_greedy("draft"), "draft", "D"),
    ]
    assert benchmarking.layouts(run) == {}  # names are no models
    assert not any(isinstance(one, T5Target) for _, _, one in found)


TEXTS = TextList([("a", None), ("b", None)])


@dataclasses.dataclass(frozen=True)
class One:
    """A run of given texts, or of a split."""

    data: Data
    engine: Any = None
    search: Any = None
    beams: Any = None
    asked: Any = None

    def batches(self):
        self.asked.append((self.data.split, self.data.limit))
        for index in range(2):
            yield SimpleNamespace(index=[index], inputs=f"{self.data.split} {index}")


def of(monkeypatch, *variants: tuple[str, One], **how: Any) -> Benchmark:
    monkeypatch.setattr(benchmarking, "_on_this_machine", lambda variant: variant)
    monkeypatch.setattr(benchmarking, "_key", lambda run: {"LIMIT": run.data.limit})
    monkeypatch.setattr(benchmarking, "_workload", lambda run: "workload")
    given = [(Variant(name, run, ""), f"{name}.jsonl") for name, run in variants]  # type: ignore
    return Benchmark.of(given, **how)  # type: ignore[arg-type]


def test_the_texts_of_a_benchmark(monkeypatch):
    """64 texts of another split predict, or as many as are timed if those are more."""
    asked: list = []
    lengths = {"inputs": 4, "targets": 4}
    run = One(Data("task", "test", lengths), asked=asked)
    found = of(monkeypatch, ("a", run), ("b", run))
    assert [(one.variant.name, one.workload, one.path) for one in found.timed] == [
        ("a", "workload", "a.jsonl"),
        ("b", "workload", "b.jsonl"),
    ]
    assert (found.texts, found.others, found.split) == ({0: "test 0", 1: "test 1"}, {}, None)
    assert asked == [("test", None)]
    for limit, others in ((None, 64), (3, 64), (100, 100)):
        asked.clear()
        limited = dataclasses.replace(run, data=dataclasses.replace(run.data, limit=limit))
        found = of(monkeypatch, ("a", limited), split="train")
        assert asked == [("test", limit), ("train", others)] and found.split == "train"
        assert found.others == {0: "train 0", 1: "train 1"}
    given = One(Data(None, "", lengths, TEXTS), asked=asked)
    for runs, how, says in [
        ([run], {"split": "test"}, "'test', the split that is timed; name another split"),
        ([given], {"split": "train"}, "is 'train', and texts of a file have no splits; leave it"),
        ([run, limited], {}, "--variant=1 has LIMIT = 100, and the first variant None"),
        ([run], {"synthetic_alpha": 1.5}, "--synthetic_alpha: .* is 1.5"),
        (
            [dataclasses.replace(run, beams="beams")],
            {"synthetic_alpha": 0.5},
            "--synthetic_alpha is 0.5, which beams do not use",
        ),
    ]:
        with pytest.raises(UsageError, match=says):
            of(monkeypatch, *((str(i), one) for i, one in enumerate(runs)), **how)


def test_drafts_that_are_accepted_by_chance_are_said_to_be(monkeypatch):
    changed: list = []
    engine = SimpleNamespace(variant=lambda **parts: changed.append(parts) or "engine")
    lengths = {"inputs": 4, "targets": 4}
    run = One(Data("task", "test", lengths), engine=engine, asked=[])
    (timed,) = of(monkeypatch, ("a", run), synthetic_alpha=0.75).timed
    assert timed.run.engine == "engine" and timed.variant.settings == (
        "\nSYNTHETIC_ALPHA = 0.75  # --synthetic_alpha, NOT EXACT\n"
    )
    assert changed == [{"verifier": benchmarking.SyntheticAcceptance(0.75), "stop_ids": ()}]


def test_runs_are_put_into_batches_of_one_text_with_one_note(capsys):
    lengths = {"inputs": 4, "targets": 4}
    change = benchmarking.one_text_at_a_time()
    alone = One(Data("task", "test", lengths, limit=7))
    assert change(alone).data == alone.data and not capsys.readouterr().err
    several = One(Data("task", "test", lengths, batch_size=4, buckets=(2,)))
    assert change(several).data == Data("task", "test", lengths, limit=32)
    assert not capsys.readouterr().err  # the first run tells, or none
    for run in (several, One(Data("task", "test", lengths, buckets=(2,)))):
        benchmarking.one_text_at_a_time()(run)
        assert capsys.readouterr().err == (
            "bench: times one text per batch, padded to one length; specdec tune --batch_size "
            "predicts larger batches\n"
        )
    with pytest.raises(UsageError, match="decoder_prefix is 'x'; leave it out"):
        change(One(Data("task", "test", lengths, decoder_prefix="x")))


def test_the_parts_that_are_timed(monkeypatch):
    """Each with the part that it starts from, and the steps that one run of it takes; texts are
    generated on the devices of a mesh."""
    target = TableTarget(5)
    drafter = Autoregressive(target, Greedy())
    plan = Plan(target, drafter, GreedyMatch(), Fixed(2), Greedy(), max_length=40)
    found = parts.timed_parts(plan, plan.alone())
    turn = Turn((Part("draft", 2, 1), Part("draft", 1, 1), Part("target", 3, 1)))
    expected = {
        "memory": (None, 1),
        "memory_read": ("memory", 1),
        "alone prefill": (None, 1),
        Calls("alone", 1): ("alone prefill", 32),
        "prefill": (None, 1),
        Calls("target", 3): ("prefill", 32),
        **{Calls("draft", width): ("prefill", 32) for width in (1, 2)},
        turn: ("prefill", 8),
    }
    assert {name: (part.source, part.steps) for name, part in found.items()} == expected
    monkeypatch.setattr(parts, "DecodeProgram", lambda plan, mesh: (plan, mesh))
    greedy, mesh = plan.alone(2), SimpleNamespace()
    whole = parts.Workload.of(plan, plan.alone(), mesh, greedy)  # type: ignore[arg-type]
    modes = {"alone": plan.alone(), "speculative": plan, "greedy": greedy}
    assert whole.generations == {mode: (one, mesh) for mode, one in modes.items()}
    assert whole.mesh is mesh
