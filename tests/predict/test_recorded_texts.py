"""What recorded texts depend on, by two versions: pytest tests/predict/test_recorded_texts.py"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec import tasks
from specdec.common.values import UsageError
from specdec.measure import recorded_texts
from specdec.measure.recorded_texts import difference


@pytest.mark.parametrize("off", [False, None])
def test_a_setting_that_is_off_may_be_missing_in_another_version(off):
    before, now = (
        {"target": "T5Target", "target.config.exit_classifier": off},
        {"target": "T5Target"},
    )
    assert difference(before, now) is None and difference(now, before) is None


@pytest.mark.parametrize("value", [True, 0, "", 8])
def test_any_other_value_is_a_difference(value):
    assert difference({"x": value}, {}) == ("x", repr(value), "not set")
    assert difference({}, {"x": value}) == ("x", "not set", repr(value))
    assert difference({"x": value}, {"x": 9}) == ("x", repr(value), "9")


# What a run asks of recorded texts.


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The data of a run: two batches of inputs, padded with 0."""

    asked: list
    limit: int | None = None
    buckets: tuple[int, ...] = (4,)
    fails: bool = False

    def source(self, share, batch_size, vocabulary, target):
        self.asked.append((tuple(share)[:2], batch_size, self.limit, self.buckets))
        if self.fails:
            raise tasks.TaskError("no such file\x1b")
        for index, ids in (([0, 1], [[5, 6, 0], [7, 0, 0]]), ([2, -1], [[8, 9, 4], [0, 0, 0]])):
            ids = np.array(ids, np.int32)
            yield tasks.Batch(ids, ids, np.array(index), [], None, 0)


def of_run(**data: Any) -> Any:
    engine = SimpleNamespace(vocabulary=None)
    return SimpleNamespace(
        data=Inputs([], **data), engine=engine, plan=SimpleNamespace(target=None)
    )


def recorded(*texts: tuple[int, list[int]]) -> Any:
    return [SimpleNamespace(index=index, inputs=tuple(ids)) for index, ids in texts]


def test_inputs_of_recorded_texts_are_those_of_the_run(capsys):
    """As many are read as the last recorded text needs, without padding."""
    run = of_run()
    recorded_texts._refuse_other_inputs("a.jsonl", run, recorded((0, [5, 6]), (2, [8, 9, 4])))
    assert run.data.asked == [((0, 1), None, 3, ())]
    for texts, says in (
        (((1, [7, 3]),), "another input for text 1 than the run's data"),
        (((1, [7]), (4, [2]), (3, [2])), "text 3, which the run's data does not have"),
    ):
        with pytest.raises(UsageError, match=f"--passes a.jsonl has {says}"):
            recorded_texts._refuse_other_inputs("a.jsonl", run, recorded(*texts))
    assert capsys.readouterr() == ("", "")
    recorded_texts._refuse_other_inputs("a.jsonl", of_run(fails=True), recorded((0, [5])))
    said = "specdec: the inputs of --passes cannot be compared with the run's: no such file"
    out, err = capsys.readouterr()
    assert not out and err.startswith(said) and err.count("\n") == 1 and "\x1b" not in err


def test_a_record_of_another_setting_is_refused(monkeypatch, tmp_path):
    """Of the texts, and of the drafters that are asked for; the run's own drafter may differ."""
    old = {"texts": {"SEED": 0}, "drafters": {"drafter": {"x": 1}, "draft": {"x": 1}}}
    now = {"texts": {"SEED": 0}, "drafters": {"drafter": {"x": 1}, "draft": {"x": 1}, "new": {}}}
    compared: list = []
    monkeypatch.setattr(recorded_texts, "_record", lambda variant: json.dumps(now))
    monkeypatch.setattr(
        recorded_texts, "_refuse_other_inputs", lambda *given: compared.append(given)
    )
    path = str(tmp_path / "a.jsonl")

    def written(record: dict) -> None:
        text = f"A = 1\n# recorded = {json.dumps(record)}\n"
        (tmp_path / "a.jsonl.gin").write_text(text)

    variant: Any = SimpleNamespace(run="run")
    texts: Any = ["texts"]
    written(old)
    assert recorded_texts.check(path, variant, texts, ["draft", "new"])
    assert compared == [(path, "run", texts)]
    written(old | {"drafters": old["drafters"] | {"drafter": {"x": 2}}})
    assert not recorded_texts.check(path, variant, texts, ["draft"])
    for record, names, says in (
        (old | {"texts": {"SEED": 1}}, [], "is of SEED = 1, and the run has 0"),
        (old | {"drafters": {"draft": {"x": 2}}}, ["draft"], "is of x = 2, and the run has 1"),
    ):
        written(record)
        with pytest.raises(UsageError, match=f"--passes {path} {says}; make passes of this run"):
            recorded_texts.check(path, variant, texts, names)
    written({"texts": 1})
    with pytest.raises(UsageError, match="the comment 'recorded' of .*; make the passes anew"):
        recorded_texts.check(path, variant, texts, [])
    (tmp_path / "a.jsonl.gin").write_text("A = 1\n")  # of an earlier version
    assert recorded_texts._record_in(path) == {"texts": {}, "drafters": {}}


def accepted(index: int, tokens: int, *kinds: str) -> Any:
    fields = {"index": index, "tokens": tokens, "accepted": dict.fromkeys(kinds or ["model"])}
    return SimpleNamespace(**fields, _asdict=lambda: fields | {"depths": [], "output": [1]})


@pytest.mark.parametrize(
    "wanted, kept, left", [(3, [0], None), (4, [0, 1], None), (9, [0, 1], 3), (6, [0, 1], None)]
)
def test_texts_that_were_recorded_are_kept(monkeypatch, wanted, kept, left):
    """Up to as many tokens as are wanted, and no text behind one that has tables."""
    have = [accepted(0, 3), accepted(1, 3), accepted(2, 3, "model", "unigram")]
    written: list = []
    lines = SimpleNamespace(replace=lambda new: written.extend(new), append=written.append)
    monkeypatch.setattr(recorded_texts, "_texts_of", lambda lines: iter(have))
    monkeypatch.setattr(recorded_texts, "refilled", lambda run: "refilled")
    asked: list = []

    def generate(*given, **how):
        asked.append((given[0], given[1], list(given[2]), how))
        return iter(())

    measured = accepted(5, 3)
    monkeypatch.setattr(recorded_texts.recording, "generate", generate)
    monkeypatch.setattr(
        recorded_texts.recording,
        "measure",
        lambda plan, params, shown, **how: asked.append((list(shown), how)) or [measured],
    )
    run = SimpleNamespace(
        plan="plan", placement=SimpleNamespace(mesh="mesh"), data=SimpleNamespace(seed=5)
    )
    engine = SimpleNamespace(read=lambda: {"target": "weights"})
    variant: Any = SimpleNamespace(run=run, engine=engine)
    batches: Any = [SimpleNamespace(index=4, inputs="inputs")]
    found = list(recorded_texts.record(variant, batches, wanted, lines))  # type: ignore[arg-type]
    names = [one.index for one in found]
    assert names == (kept if left is None else [*kept, 5])
    assert [line["index"] for line in written] == names and "depths" not in written[0]
    if left is not None:
        how = {"seed": 5, "tokens": left, "skip": kept, "mesh": "mesh", "refilled": "refilled"}
        assert asked == [
            ("plan", "weights", [(4, "inputs")], how),
            ([], {"tables": False, "mesh": "mesh"}),
        ]


@pytest.mark.parametrize(
    "changes, says",
    [
        ({}, None),
        ({"paths": 3}, "DRAFTER drafts 3 paths, and recorded texts have one"),
        ({"decoder_prefix": "x"}, "decoder_prefix is 'x'; leave it out"),
        ({"num_samples": 2}, "num_samples is 2; leave it out"),
        ({"adapts": True}, "DRAFTER adapts to accepted tokens"),
    ],
)
def test_only_plain_texts_are_recorded(changes, says):
    drafter = {"paths": 0, "adapts": False}
    data = {"num_samples": 1, "decoder_prefix": "", "refill": False}
    given = [{name: changes.get(name, x) for name, x in one.items()} for one in (drafter, data)]
    plan = SimpleNamespace(drafter=SimpleNamespace(**given[0]))
    run: Any = SimpleNamespace(plan=plan, data=SimpleNamespace(**given[1]))
    refused = pytest.raises(UsageError, match=says) if says else contextlib.nullcontext()
    with refused:
        recorded_texts.refuse_other_than_plain(run)
    if "paths" in changes:
        recorded_texts.refuse_other_than_plain(run, paths=True)
