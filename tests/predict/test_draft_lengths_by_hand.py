"""What is decoded, replayed and measured for a prediction, by hand: pytest tests/predict"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from made_outputs import Made, output_of

from specdec.common.values import UsageError
from specdec.drafters import Autoregressive
from specdec.predict import draft_lengths, timed_costs
from specdec.predict.costs import Costs
from specdec.predict.draft_lengths import DraftLengths
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.verifiers import Block, Coupled, SpeculativeSampling, Typical

TABLE = TableTarget(5)


@dataclasses.dataclass(frozen=True)
class Place:
    """A placement on one device, which keeps plans as they are."""

    asked: list
    mesh: Any = None

    def laid_out(self, plan, rows):
        return f"{plan} for {rows}"

    def read(self, model, path, *trees):
        self.asked.append((model, path, self.mesh))
        return np.full(2, len(self.asked))


def run_of(asked: list, target: Any = None, **plan: Any) -> Any:
    parts = SimpleNamespace(target=target, **plan)
    data = SimpleNamespace(lengths={"inputs": 4}, seed=5)
    paths = {"target": "path of target", "draft": "path of draft", "table": "path of table"}
    return SimpleNamespace(
        plan=parts,
        data=data,
        placement=Place(asked),
        checkpoint_path="path alone",
        paths=lambda: paths,
    )


def text(index: int, *inputs: int) -> Any:
    return SimpleNamespace(index=index, inputs=inputs)


def test_costs_are_measured_with_recorded_inputs(monkeypatch):
    """Texts are repeated where they are few, cut and padded; pixels are zeros."""
    read: list = []
    shapes = {"tokens": ([3, 4], np.int32), "pixels": ([3, 2], np.float32)}
    target = SimpleNamespace(
        pad_id=9,
        inputs_shape=lambda rows, length: {
            name: jax.ShapeDtypeStruct(shape, kind) for name, (shape, kind) in shapes.items()
        },
    )
    run = run_of(read, target, baseline=lambda: "alone")
    found: list = []

    def measured(plans, alone, tree_of, inputs):
        found.append((dict(plans), alone, inputs))
        models = [("alone", "A"), ("target", "T"), ("draft", "D"), ("target", "T")]
        found.append([int(tree_of(role, model)[0]) for role, model in models])
        return "costs"

    monkeypatch.setattr(timed_costs, "timed", measured)
    texts: Any = [text(0, 1, 2), text(1, 3, 4, 5, 6, 7)]
    plans: Any = {2: "plan"}
    assert timed_costs.of_run(run, texts, plans, rows=3) == "costs"
    (plans, alone, inputs), trees = found
    assert (plans, alone) == ({2: "plan for 3"}, "alone for 3")
    assert inputs["tokens"].tolist() == [[1, 2, 9, 9], [3, 4, 5, 6], [1, 2, 9, 9]]
    assert inputs["pixels"].dtype == np.float32 and not inputs["pixels"].any()
    assert read == [
        ("A", "path alone", None),
        ("T", "path of target", None),
        ("D", "path of draft", None),
    ]
    assert trees == [1, 2, 3, 2]


def test_texts_are_replayed_on_one_device_with_the_tables(monkeypatch):
    read, asked = [], []
    run = run_of(read)
    run.placement = Place(read, "a mesh")
    plan: Any = SimpleNamespace(
        tables=lambda: {"table": "TABLE", "other": "OTHER"},
        models=lambda: {"target": SimpleNamespace(vocab_size=7)},
    )
    monkeypatch.setattr(draft_lengths.schedule_replay, "needed", lambda plan: {"table"})
    replay = lambda *given, **how: asked.append((given, how)) or "calls"  # noqa: E731
    monkeypatch.setattr(draft_lengths.schedule_replay, "replay", replay)
    texts: Any = ["texts"]
    assert draft_lengths.replayed(run, plan, texts, samples=3) == "calls"
    ((given, how),) = asked
    assert given == (plan, texts) and read == [("TABLE", "path of table", None)]
    assert how.pop("tables")["table"].tolist() == [1, 1]
    assert how == {"vocab_size": 7, "length": 4, "samples": 3, "seed": 5}


def test_recorded_texts_are_decoded_anew_until_the_last(monkeypatch):
    """In the order of the recording; batches behind the last one are not decoded."""
    asked: list = []

    def decode(batch, *, seed):
        asked.append((batch.index, seed))
        rows = [Made([1] * (index + 1), [], [index], [index // 2]) for index in batch.index]
        return output_of(*rows), 1.0

    engine = SimpleNamespace(decode=decode)
    variants: list = []
    run = run_of([])
    run.engine = SimpleNamespace(variant=lambda **parts: variants.append(parts) or engine)
    run.batches = lambda everywhere: (
        SimpleNamespace(index=index) for index in ([0, 1], [2, 3], [4, 5]) if everywhere
    )
    plan: Any = SimpleNamespace(schedule=Fixed(2))
    found = draft_lengths.decoded(run, plan, [text(3), text(0), text(2)])
    assert variants == [{"schedule": Fixed(2)}] and asked == [([0, 1], 5), ([2, 3], 5)]
    assert (found.tokens.tolist(), found.calls.tolist()) == ([4, 1, 3], [1, 1, 1])
    assert (found.drafted.tolist(), found.accepted.tolist()) == ([[3], [0], [2]], [[1], [0], [1]])
    assert found.source is None


@pytest.mark.parametrize(
    "asked, own, gammas, says",
    [
        (True, True, (1, 3), None),
        (False, False, (1, 3, 5), None),
        (True, True, (1, 5), "--gammas has 5 but a bound; give shorter drafts"),
        (False, True, (4, 5), "--gammas has 5 but a bound"),
    ],
)
def test_draft_lengths_that_outputs_have_room_for(monkeypatch, asked, own, gammas, says):
    """Those that a user names must have room, and others are left out if one has."""
    names: Any = draft_lengths.schedule_replay, draft_lengths.recorded_texts, draft_lengths.opinions
    replay, recorded, opinions = names
    texts = [SimpleNamespace(tokens=n, accepted={"model": [n / 4]}) for n in (3, 5)]
    monkeypatch.setattr(recorded, "read", lambda path: texts)
    monkeypatch.setattr(recorded, "check", lambda *given: own)
    monkeypatch.setattr(opinions, "recorded", lambda drafter: [("draft", drafter)])
    monkeypatch.setattr(replay, "longest", lambda plan: 3)
    monkeypatch.setattr(replay, "bound", lambda plan: "a bound")
    monkeypatch.setattr(replay, "check", lambda plan, texts: None)
    monkeypatch.setattr(draft_lengths, "_refuse", lambda plan: None)
    variant: Any = SimpleNamespace(run=SimpleNamespace(plan=SimpleNamespace(drafter="drafter")))
    how: Any = {"asked": asked, "costs": None, "rows": 2}
    if says:
        with pytest.raises(UsageError, match=says):
            DraftLengths.of([variant], "a.jsonl", gammas, **how)
        return
    found = DraftLengths.of([variant], "a.jsonl", gammas, **how)
    assert found == ([variant], [0.25 if own else None], texts, [1, 3], None, 2)
    how["rows"] = 3
    with pytest.raises(UsageError, match="--batch_size is 3 and --passes a.jsonl has 2 texts"):
        DraftLengths.of([variant], "a.jsonl", gammas, **how)

    def damaged(plan, texts):
        raise ValueError("too old")

    how["rows"] = 2
    monkeypatch.setattr(replay, "check", damaged)
    with pytest.raises(UsageError, match="--passes a.jsonl: too old"):
        DraftLengths.of([variant], "a.jsonl", gammas, **how)


@pytest.mark.parametrize("drawn", [(True,), (False, True), (False,)])
@pytest.mark.parametrize("verifier", [Coupled(), Block(), SpeculativeSampling(), Typical()])
@pytest.mark.parametrize("sampling", [Greedy(), Sampling()])
def test_what_does_not_follow_from_recorded_texts_is_refused(
    monkeypatch, drawn, verifier, sampling
):
    """If any drafter draws, two verifiers are known."""

    def checked(plan, texts):
        raise ValueError("is compared next")

    given = [(str(x), Autoregressive(TABLE, Sampling() if x else Greedy())) for x in drawn]
    monkeypatch.setattr(draft_lengths.opinions, "recorded", lambda drafter: given)
    text = SimpleNamespace(tokens=1)
    monkeypatch.setattr(draft_lengths.recorded_texts, "read", lambda path: [text])
    monkeypatch.setattr(draft_lengths.recorded_texts, "check", lambda *given: True)
    monkeypatch.setattr(draft_lengths.schedule_replay, "longest", lambda plan: 3)
    monkeypatch.setattr(draft_lengths.schedule_replay, "check", checked)
    drafter = SimpleNamespace(adapts=False, paths=0)
    plan = SimpleNamespace(drafter=drafter, verifier=verifier, sampling=sampling)
    variant: Any = SimpleNamespace(run=SimpleNamespace(plan=plan))
    says = "--passes a.jsonl: is compared next"
    if any(drawn) and not sampling.greedy and verifier == Coupled():
        says = "VERIFIER is Coupled.*; give verifiers/block.gin"
    if verifier == Typical():
        says = "VERIFIER is Typical.*, which is not exact"
    with pytest.raises(UsageError, match=says):
        DraftLengths.of([variant], "a.jsonl", (1,), asked=True, costs=None, rows=1)


@dataclasses.dataclass(frozen=True)
class Parts:
    schedule: Any = "own"
    drafts: bool = True
    lengths_vary: bool = False

    @property
    def gamma(self) -> int | None:
        return getattr(self.schedule, "gamma", None)


@dataclasses.dataclass
class Told:
    """A prediction."""

    variant: str = ""


@pytest.mark.parametrize(
    "parts, schedules",
    [
        (Parts(), [Fixed(1), Fixed(2), Fixed(4)]),
        (Parts(lengths_vary=True), [Fixed(1), Fixed(2), Fixed(4), "own"]),
        (Parts(drafts=False), ["own"]),
    ],
)
def test_each_draft_length_has_a_prediction(monkeypatch, parts, schedules):
    """With given costs, or those of every length up to the longest, for the oracle."""
    predicted: Any = draft_lengths.predicted_speedup
    asked: list = []
    monkeypatch.setattr(
        draft_lengths, "replayed", lambda run, plan, texts: ("calls", plan.schedule)
    )
    monkeypatch.setattr(predicted, "predict", lambda *given: asked.append(given) or Told())
    costs = Costs({}, 0.0, 0.0, 1.0, "made up")
    variant: Any = SimpleNamespace(name="mine", run=SimpleNamespace(plan=parts))
    texts: Any = ["a", "b", "c"]
    found = list(DraftLengths([variant], [0.5], texts, [1, 2, 4], costs, 2).predictions())
    assert found == [(variant, Told("mine"))] * len(schedules)
    every = dict.fromkeys((None, 1, 2, 3, 4), costs)
    assert asked == [
        (dataclasses.replace(parts, schedule=x), ("calls", x), every, 3, 0.5, 2) for x in schedules
    ]
    measured: list = []

    def measure(run, texts, plans, rows):
        measured.append((list(plans), rows))
        return dict.fromkeys(plans, costs)

    monkeypatch.setattr(timed_costs, "of_run", measure)
    list(DraftLengths([variant], [0.5], texts, [1, 2, 4], None, 2).predictions())
    lengths = [1, 2, 3, 4] if parts.drafts else []
    assert measured == [([*lengths, *([None] if "own" in schedules else [])], 2)]
