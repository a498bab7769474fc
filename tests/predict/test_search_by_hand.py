"""The search of `specdec tune`, of calls and costs that are made up: pytest tests/predict"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec.common.values import UsageError
from specdec.predict import search, tuning
from specdec.predict.costs import Costs
from specdec.predict.search import Prepared, Recommendation, Search
from specdec.predict.tuning import Candidate, Result, Tried
from specdec.schedules import Confidence, Fixed, Heuristic

COSTS = Costs({}, prefill=3.0, prefill_alone=2.0, step=0.5, source="made up")


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a plan that the search replaces."""

    schedule: Any = Fixed(2)
    drafter: Any = None
    sampling: Any = None


def parts(paths: int = 0, greedy: bool = True) -> Parts:
    return Parts(drafter=SimpleNamespace(paths=paths), sampling=SimpleNamespace(greedy=greedy))


def prepared(tokens: list[int], rows: int = 1, name: str = "", **plan: Any) -> Prepared:
    run = SimpleNamespace(plan=parts(**plan))
    texts: Any = [SimpleNamespace(tokens=count) for count in tokens]
    variant: Any = SimpleNamespace(name=name, run=run)
    return Prepared(variant, texts, COSTS, rows, {})


def test_texts_in_batches():
    """The last text is in no full batch, and a batch takes as long as its longest text."""
    one = prepared([4, 6, 9, 1, 2, 3, 8], rows=2)
    assert one.batches == 3
    assert [half.tolist() for half in one.halves] == [[True, False, True], [False, True, False]]
    assert one.alone().tolist() == [2 + 6 * 0.5, 2 + 9 * 0.5, 2 + 3 * 0.5]


def replayed(tokens: list[int], calls: list[int]) -> Any:
    return SimpleNamespace(tokens=np.array(tokens), calls=np.array(calls))


@pytest.mark.parametrize("paths", [0, 3])
def test_texts_with_several_paths_are_decoded_anew_once(monkeypatch, paths):
    asked: list = []

    def noted(name: str) -> Any:
        return lambda *given: asked.append((name, *given[1:])) or name

    monkeypatch.setattr(search, "replayed", noted("replayed"))
    monkeypatch.setattr(search, "decoded", noted("decoded"))
    grouped = lambda found, texts, rows: (found, texts, rows)  # noqa: E731
    monkeypatch.setattr(search.schedule_replay, "grouped", grouped)
    one = prepared([1, 2, 3], rows=2, paths=paths)
    plan: Any = one.run.plan
    for _ in range(2):
        kind = "decoded" if paths else "replayed"
        assert one.replayed(plan) == (kind, (kind, 3, 2))
    if paths:
        assert asked == [("decoded", plan, one.texts)]
        assert one.counted == {plan.schedule: "decoded"}
    else:
        assert asked == [("replayed", plan, one.texts, 4)] * 2


@pytest.mark.parametrize(
    "paths, greedy, expected",
    [(0, True, [5.0, 7.0]), (3, True, [5.0, 7.0]), (3, False, [3 + 1.5 * 2, 3 + 1.5 * 4])],
)
def test_texts_that_were_drawn_anew_count_by_their_tokens(monkeypatch, paths, greedy, expected):
    """12 tokens were recorded, and 8 drawn; the prefill takes 3 s for both."""
    asked: list = []
    seconds = lambda *given: asked.append(given) or np.array([5.0, 7.0])  # noqa: E731
    monkeypatch.setattr(search.predicted_speedup, "seconds", seconds)
    one = prepared([5, 7], paths=paths, greedy=greedy)
    plan: Any = one.run.plan
    one.counted[plan.schedule] = replayed([3, 5], [1, 1])
    found = one.seconds(plan, "by batch")  # type: ignore[arg-type]
    assert found is not None and found.tolist() == expected
    assert asked == [(plan, "by batch", COSTS, 2)]
    monkeypatch.setattr(search.predicted_speedup, "seconds", lambda *_: None)
    assert one.seconds(plan, "by batch") is None  # type: ignore[arg-type]


@pytest.mark.parametrize("paths, longest", [(0, 7), (3, 6)])
def test_the_oracle_drafts_as_long_as_it_may(monkeypatch, paths, longest):
    """With several paths the longest draft that is tried is the last of 2, 4 and 6."""
    asked: list = []
    oracle = lambda *given: asked.append(given) or np.ones(2)  # noqa: E731
    monkeypatch.setattr(search.predicted_speedup, "oracle_seconds", oracle)
    monkeypatch.setattr(Prepared, "replayed", lambda self, plan: ("by text", "by batch"))
    one = prepared([1, 2], paths=paths)
    assert one.oracle(7).tolist() == [1, 1]
    plan = dataclasses.replace(one.run.plan, schedule=Fixed(longest))
    costs = {None: COSTS, **{length: COSTS for length in range(1, longest + 1)}}
    assert asked == [(plan, "by batch", costs, 2)]


class Kept(list):
    """Lines of candidates that were tried."""

    def replace(self, lines: Any) -> None:
        self[:] = list(lines)


def test_a_candidate_is_tried_once(monkeypatch):
    asked: list = []
    two = replayed([7, 5], [3, 4])
    monkeypatch.setattr(Prepared, "replayed", lambda self, plan: asked.append(plan) or (two, "x"))
    monkeypatch.setattr(Prepared, "seconds", lambda self, plan, x: np.array([1.23456789, 2.5]))
    one, candidate = prepared([7, 5], name="v"), Candidate("confidence", 0.25, Confidence(0.25))
    lines: Any = Kept()
    found = search._try(lines, {}, one, candidate)
    line = {
        "variant": "v",
        "kind": "confidence",
        "setting": 0.25,
        "schedule": repr(Confidence(0.25)),
        "tokens_per_call": 1.7143,
        "seconds": [1.23457, 2.5],
    }
    assert lines == [line] and [plan.schedule for plan in asked] == [Confidence(0.25)]
    assert found[:3] == ("v", candidate, 1.7143) and found.seconds.tolist() == [1.23457, 2.5]
    again = search._try(lines, {("v", repr(Confidence(0.25))): line}, one, candidate)  # type: ignore
    assert again[:3] == found[:3] and len(asked) == len(lines) == 1
    monkeypatch.setattr(Prepared, "seconds", lambda *_: None)
    with pytest.raises(UsageError, match="--costs lack a call of Parts"):
        search._try(lines, {}, one, candidate)


def seconds_of(schedule: Any) -> list[float]:
    """The made-up times of four texts: the fewest for a confidence of 0.5."""
    if isinstance(schedule, Confidence):
        return [1.0, 2.0, 1.0, 2.0] if schedule.threshold == 0.5 else [2.0] * 4
    return [3.0 + schedule.buckets[-1] / 10] * 4


@pytest.mark.parametrize("paths", [0, 2])
def test_the_best_of_each_kind_is_tried_with_shorter_drafts(monkeypatch, tmp_path, paths):
    first = [Candidate("confidence", x, Confidence(x, buckets=(1, 5))) for x in (0.25, 0.5)]
    monkeypatch.setattr(tuning, "varying", lambda *given: iter(first) if given[2] == 5 else None)
    two = replayed([4], [2])
    monkeypatch.setattr(Prepared, "replayed", lambda self, plan: (two, plan.schedule))
    monkeypatch.setattr(
        Prepared, "seconds", lambda self, plan, schedule: np.array(seconds_of(schedule))
    )
    monkeypatch.setattr(Prepared, "oracle", lambda self, longest: np.full(4, longest / 10))
    monkeypatch.setattr(search.records, "hold", lambda *_: None)
    made = Search(tmp_path, [], 100, 5, 1, COSTS)
    one = prepared([10, 10, 10, 10], paths=paths)
    found = list(made._tried([one]))
    lengths = [(x.candidate.kind, x.candidate.schedule.buckets[-1]) for x in found]
    if paths:
        assert lengths == [("fixed", 2), ("fixed", 4)]
        return
    assert lengths == [
        *(("fixed", n) for n in range(1, 6)),
        *[("confidence", 5)] * 2,
        ("confidence", 3),
    ]
    assert found[-1].candidate.schedule == first[1].schedule.up_to(3)
    lines = [json.loads(line) for line in (tmp_path / "tried.jsonl").read_text().splitlines()]
    assert [line["schedule"] for line in lines] == [repr(x.candidate.schedule) for x in found]
    monkeypatch.setattr(Prepared, "replayed", None)  # all of them are known
    assert [x.candidate for x in made._tried([one])] == [x.candidate for x in found]


def result(name: str, *seconds: float, kind: str = "fixed", schedule: Any = None) -> Result:
    one = Tried(name, Candidate(kind, 2, schedule or Fixed(2)), 2.0, np.array(seconds))
    return Result(name, one, one, [one], np.full(len(seconds), 4.0), np.ones(len(seconds)))


def test_a_search_has_the_best_of_all_variants(monkeypatch, tmp_path):
    asked: list = []

    def texts(self, before: Any, variant: Any) -> list:
        asked.append(("texts", len(before), variant.name))
        return [SimpleNamespace(tokens=10)] * 4

    def costs(self, number: int, run: Any, texts: Any) -> Costs:
        asked.append(("costs", number, len(texts)))
        return COSTS

    monkeypatch.setattr(Search, "_texts", texts)
    monkeypatch.setattr(Search, "_costs", costs)
    monkeypatch.setattr(Prepared, "oracle", lambda self, longest: np.full(4, longest / 10))
    times = {"a": [3.0, 5.0, 3.0, 5.0], "b": [4.0, 3.0, 4.0, 3.0]}

    def tried(self, prepared: Any) -> Iterator[Tried]:
        for one in prepared:
            name = one.variant.name
            yield Tried(name, Candidate("fixed", 2, Fixed(2)), 2.0, np.array(times[name]))

    monkeypatch.setattr(Search, "_tried", tried)
    variants: Any = [SimpleNamespace(name=name, run=SimpleNamespace(plan=parts())) for name in "ab"]
    made = Search(tmp_path, variants, 100, 5, 1, None).run()
    assert asked == [("texts", 0, "a"), ("costs", 0, 4), ("texts", 1, "b"), ("costs", 1, 4)]
    # The target alone takes 2 + 10 / 2 s; the odd texts judge.
    found = {result.variant: result.speedup(result.best).value for _, result in made.results}
    assert found == {"a": pytest.approx(7 / 5), "b": pytest.approx(7 / 3)}
    assert made.best.variant == "b" and made.pays
    assert made.results[0][1].oracle.tolist() == [0.5, 0.5]
    assert Search(tmp_path, variants, 100, 5, 1, COSTS).run().best.variant == "b"
    assert [name for name, *_ in asked[4:]] == ["texts", "texts"]  # costs are given


def test_texts_and_costs_of_each_variant(monkeypatch, tmp_path):
    """A drafter that copies reuses the texts of the first one, and so do several paths."""
    asked: list = []
    monkeypatch.setattr(search.opinions, "recorded", lambda drafter: drafter.recorded)
    monkeypatch.setattr(search.recorded_texts, "batches_of", lambda run, purpose: [purpose])
    monkeypatch.setattr(search.recorded_texts, "with_record", lambda variant: "settings\n")

    def record(variant: Any, batches: Any, tokens: int, lines: Any) -> list:
        asked.append((batches, tokens, lines.path.name))
        return [f"text of {variant.name}"] * count

    monkeypatch.setattr(search.recorded_texts, "record", record)
    made = Search(tmp_path, [], 100, 5, 2, None)

    def variant(name: str, paths: int = 0, recorded: Any = (("x", 1),)) -> Any:
        plan = SimpleNamespace(drafter=SimpleNamespace(paths=paths, recorded=recorded))
        return SimpleNamespace(name=name, run=SimpleNamespace(plan=plan))

    count = 40
    first: Any = [Prepared(variant("a"), ["first"], COSTS, 2, {})]  # type: ignore[list-item]
    assert made._texts([], variant("a")) == ["text of a"] * 40
    assert made._texts(first, variant("b")) == ["text of b"] * 40
    assert made._texts(first, variant("c", recorded=())) == ["first"]
    assert made._texts(first, variant("d", paths=2)) == ["first"]
    assert asked == [(["tune on"], 100, "passes.jsonl"), (["tune on"], 100, "passes_1.jsonl")]
    count = 39
    with pytest.raises(
        UsageError, match="passes.jsonl has 39 texts and 40 are needed; raise --limit"
    ):
        made._texts([], variant("a"))


def test_costs_are_measured_once_for_every_width(monkeypatch, tmp_path):
    asked: list = []

    def measured(run: Any, texts: Any, plans: Any, rows: int) -> dict:
        asked.append((texts, {name: plan.schedule for name, plan in plans.items()}, rows))
        return {name: COSTS._replace(calls={("target", name or 9): 1.0}) for name in plans}

    monkeypatch.setattr(search.timed_costs, "of_run", measured)
    monkeypatch.setattr(Costs, "record", lambda self: {**self._asdict(), "calls": [*self.calls]})
    of_record = lambda fields: COSTS._replace(source=str(fields["calls"]))  # noqa: E731
    monkeypatch.setattr(Costs, "of_record", of_record)
    monkeypatch.setattr(search.hosts, "exchanged", lambda own: [own, "of another host"])
    read = lambda path, topology: (path, topology)  # noqa: E731
    monkeypatch.setattr(search, "read", read)
    made = Search(tmp_path, [], 100, 3, 2, None)
    run: Any = SimpleNamespace(plan=parts())
    assert made._costs(0, run, "texts").source == "[('target', 9)]"  # type: ignore[arg-type]
    assert asked == [("texts", {None: Fixed(3, shorter=(0, 1, 2))}, 2)]
    assert made._costs(0, run, "texts") == (str(tmp_path / "costs.json"), None)  # type: ignore
    several: Any = SimpleNamespace(plan=parts(paths=2))
    found = made._costs(1, several, "texts")  # type: ignore[arg-type]
    assert found.source == "[('target', 1), ('target', 2), ('target', 3)]"
    assert asked[1:] == [("texts", {n: Fixed(n) for n in (1, 2, 3)}, 2)]
    assert json.loads((tmp_path / "costs_1.json").read_text())["prefill"] == 3.0


def test_the_recommendation_in_words_and_files(monkeypatch, tmp_path):
    """The figure has all variants. A variant's own settings come with its schedule."""
    name = "drafters/prompt_lookup.gin;LOOKUP_LONGEST=3"
    best = result(name, 2.0, 2.0, kind="heuristic", schedule=Heuristic(2, (1, 3)))
    one = prepared([4, 4], name=name)
    one.run.plan = dataclasses.replace(one.run.plan, drafter=Confidence(0.5), sampling="Greedy()")
    made = Recommendation([(one, best)], best)
    assert list(made.lines())[:2] == [f"\n{name}", "Confidence, Greedy(), made up"]
    assert list(made.lines())[2:] == list(tuning.lines(best))
    with monkeypatch.context() as context:
        context.setattr(search, "_pays", lambda _: False)
        assert list(made.lines())[2:] == [*tuning.lines(best), search.NEXT_STEPS]
    plain = prepared([4])
    plain.run.plan = one.run.plan
    assert next(Recommendation([(plain, best)], best).lines()) == "Confidence, Greedy(), made up"
    surface = pytest.importorskip("specdec.report.surface")
    drawn: list = []
    monkeypatch.setattr(surface, "draw", lambda results, path: drawn.append((results, path)))
    text = made.write(tmp_path, ["a.gin", "b.gin"])
    assert text == (tmp_path / "tuned.gin").read_text()
    assert text == (
        "# `specdec tune` of a.gin, b.gin: 2.00 times as fast as the target alone (2.00 to 2.00).\n"
        "from __gin__ import dynamic_registration\n"
        "\n"
        "from specdec import schedules\n"
        "\n"
        "include 'drafters/prompt_lookup.gin'\n"
        "include 'schedules/heuristic.gin'\n"
        "\n"
        "LOOKUP_LONGEST = 3\n"
        "GAMMA = 2\n"
        "DRAFT_LENGTHS = (1, 3)\n"
    )
    assert drawn == [([best], tmp_path / "surface.svg")]
    slow = result("", 4.0, 4.0)
    assert search.settings_of(slow) == "DRAFTER = None\n"
    assert not Recommendation([(one, slow)], slow).pays


def test_the_figure_of_a_search(monkeypatch, tmp_path):
    """A row for each variant, and a panel for lengths, probabilities and nats."""
    surface = pytest.importorskip("specdec.report.surface")
    figures: list = []
    monkeypatch.setattr(
        surface.figures, "svg", lambda figure: figures.append(figure) or "<svg></svg>"
    )

    def tried(kind: str, setting: float | None, schedule: Any, *seconds: float) -> Tried:
        return Tried("", Candidate(kind, setting, schedule), 2.0, np.array(seconds))

    every = [
        tried("fixed", 3, Fixed(3), 2.0, 2.0),
        tried("fixed", 1, Fixed(1), 4.0, 1.0),
        tried("fixed", 5, Fixed(5, shorter=(0, 1, 3)), 1.0, 1.0),  # its length varies
        tried("confidence", 0.5, Confidence(0.5, buckets=(1, 5)), 1.0, 1.5),
        tried("confidence", 0.25, Confidence(0.25, buckets=(1, 5)), 2.0, 3.0),
        tried("confidence", 0.5, Confidence(0.5, buckets=(1, 3)), 4.0, 6.0),
        tried("heuristic", None, Heuristic(2, (1, 3)), 5.0, 5.0),
        tried("heuristic", None, Heuristic(2, (1, 5)), 2.0, 2.0),
    ]
    alone, oracle = np.array([6.0, 4.0]), np.array([1.0, 1.5])
    own = Result("", every[3], every[0], every, alone, oracle)
    copies = Result("a copy", every[0], every[0], every[:2], alone, oracle)
    surface.draw([own, copies], tmp_path / "surface.svg")
    assert (tmp_path / "surface.svg").read_text() == "<svg></svg>"
    (figure,) = figures
    assert figure.get_size_inches().tolist() == [8, 2 * 3.0 + 0.3]
    lines = [
        [
            (x.get_label(), x.get_xdata().tolist(), np.round(x.get_ydata(), 6).tolist(), x.get_ls())
            for x in axes.lines
            if isinstance(x.get_xdata(), np.ndarray) and x.get_marker() == "o"
        ]
        for axes in figure.axes
    ]
    fixed = ("fixed", [1, 3], [2.0, 2.5], "-")
    shorter, longest = [0.5], [0.25, 0.5]
    assert lines == [
        [fixed],
        [(lines[1][0][0], shorter, [1.0], ":"), ("confidence", longest, [2.0, 4.0], "-")],
        [],
        [fixed],
        [],
        [],
    ]
    assert lines[1][0][0].startswith("_")  # is not in the legend
    levels = [
        {
            x.get_label(): round(float(x.get_ydata()[0]), 6)
            for x in axes.lines
            if x.get_marker() != "o"
        }
        for axes in figure.axes
    ]
    kept = [{name: y for name, y in one.items() if not name.startswith("_")} for one in levels]
    oracle = {"oracle of rejections": 4.0}
    assert kept == [{"heuristic": 2.5, **oracle}] * 3 + [oracle] * 3
    assert all([y for name, y in one.items() if name.startswith("_")][-1:] == [1] for one in levels)
    assert [axes.get_xlabel() for axes in figure.axes] == [
        *("draft length", "threshold, a probability", "threshold, nats")
    ] * 2
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["the run's drafter", "", "", "a copy", "", ""]
    (legend,) = figure.legends
    said = ["fixed", "heuristic", "oracle of rejections", "confidence"]
    assert [text.get_text() for text in legend.get_texts()] == said
    colours = {x.get_label(): x.get_color() for x in figure.axes[1].lines}
    assert (colours["confidence"], colours["heuristic"]) == ("#E69F00", "#D55E00")
