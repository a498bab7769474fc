"""Tables that are made from texts and recordings, by hand: pytest tests/training"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec.common.values import UsageError
from specdec.testing import TableTarget
from specdec.texts.measured_run import Variant
from specdec.training import classifier
from specdec.training.distillation import made_tables
from specdec.training.distillation.made_tables import Classifier, recording

VOCABULARY = object()


class Texts:
    """The run of a table with texts of two batches, which notes what is asked of it."""

    def __init__(self):
        target = TableTarget(9)
        self.plan = SimpleNamespace(models=lambda: {"target": target}, longest_draft=3)
        self.engine = SimpleNamespace(vocabulary=VOCABULARY, read=lambda: {"target": "weights"})
        self.data = SimpleNamespace(seed=5, split="test")

    def batches(self):
        return [SimpleNamespace(index=i, inputs=f"inputs {i}") for i in (0, 2)]


def generated(*texts: tuple[int, list[int]]) -> Any:
    """A batch of outputs, the start token first; a row without a text has none."""
    tokens = np.full([len(texts) + 1, 6], 7)
    for row, (_, text) in zip(tokens, texts, strict=False):
        row[: len(text)] = text
    length = [*(len(text) - 1 for _, text in texts), 0]
    index = [*(index for index, _ in texts), -1]
    return SimpleNamespace(tokens=tokens, length=np.array(length), index=np.array(index))


@pytest.fixture
def saved(monkeypatch) -> list:
    """What is saved as a table: the path, the kind, the arrays, and the vocabulary."""
    found: list = []
    monkeypatch.setattr(made_tables.tables, "save", lambda *given: found.append(given))
    return found


def made(run: Any, kind: str, folder: Path, said: list, **more: Any) -> str:
    given = {"tokens": 8, "passes": "", "seed": 3, "steps": None, "say": said.append} | more
    return made_tables.make(Variant("", run, "settings"), kind, folder, **given)


@pytest.mark.parametrize("kind", ["ngram", "retrieval"])
def test_texts_are_counted_and_kept(monkeypatch, tmp_path, saved, kind):
    """The second table has the texts of the first one, and those that are left."""
    asked: list = []

    def generate(plan, params, given, *, seed, tokens, skip):
        asked.append((params, list(given), seed, tokens, skip))
        yield (
            generated((0, [0, 4, 5, 1]), (1, [0, 2, 1])) if not skip else generated((2, [0, 6, 1]))
        )

    def counted(texts, size):
        return {"grams": np.zeros([size, 4], np.float32), "n": np.array(texts[0])}

    def stored(texts):
        return {"tokens": np.zeros(250_000, np.float64), "n": np.array(texts[0])}

    monkeypatch.setattr(made_tables.tables, "count", counted)
    monkeypatch.setattr(made_tables.tables, "store", stored)
    monkeypatch.setattr(made_tables, "generate", generate)
    run, said, folder = Texts(), [], tmp_path / "a" / "b"
    words = made(run, kind, folder, said)
    batches = [(0, "inputs 0"), (2, "inputs 2")]
    assert asked == [("weights", batches, 5, 8, [])]
    size = {"ngram": "0.0 MB", "retrieval": "2.0 MB"}[kind]
    assert words == f"{folder / 'table'}: 5 tokens of 2 texts, {size}"
    assert said == ["train: the run's texts end after 5 of 8 tokens; another SPLIT may have more"]
    lines = [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]
    assert lines == [{"index": 0, "tokens": [0, 4, 5, 1]}, {"index": 1, "tokens": [0, 2, 1]}]
    words = made(run, kind, folder, said, tokens=7)
    assert asked[1:] == [("weights", batches, 5, 2, [0, 1])]
    assert words == f"{folder / 'table'}: 7 tokens of 3 texts, {size}" and len(said) == 1
    words = made(run, kind, folder, said, tokens=6)  # nothing is left to decode
    assert words.startswith(f"{folder / 'table'}: 7 tokens of 3 texts") and len(asked) == 2
    path, own, arrays, vocabulary = saved[0]
    assert (path, own, vocabulary) == (folder / "table", kind, VOCABULARY)
    assert arrays["n"].tolist() == [0, 4, 5, 1]
    assert kind == "retrieval" or arrays["grams"].shape == (9, 4)


def test_a_table_of_no_text_is_refused(monkeypatch, tmp_path, saved):
    monkeypatch.setattr(made_tables, "generate", lambda *_, **__: iter(()))
    with pytest.raises(UsageError, match="split 'test' has no examples; nothing to count"):
        made(Texts(), "ngram", tmp_path, [])
    assert not saved


@pytest.mark.parametrize("steps", [None, 7])
def test_a_classifier_is_fitted_to_recorded_texts(monkeypatch, tmp_path, steps):
    asked: list = []

    class Fitted:
        def fit(self, *given: Any, **how: Any) -> str:
            asked.append((given, how))
            return "words"

    of = lambda variant, passes: asked.append((variant.name, passes)) or Fitted()  # noqa: E731
    monkeypatch.setattr(Classifier, "of", of)
    said: list = []
    words = made(Texts(), "classifier", tmp_path, said, passes="a.jsonl", steps=steps)
    how = {"seed": 3, "say": said.append} | ({} if steps is None else {"steps": 7})
    assert words == "words" and asked == [("", "a.jsonl"), ((tmp_path,), how)]


def test_one_text_in_five_is_held_out(monkeypatch, tmp_path, saved):
    """The first and the sixth; the figures of the result are of those."""
    asked: list = []

    def examples(texts, longest):
        asked.append((texts, longest))
        return SimpleNamespace(features=np.array([[len(texts), 0.5]]), of=texts)

    def fit(given, held_out, *, seed, say, **how):
        asked.append((given.of, held_out.of, seed, how))
        say("step 1")
        return {"w": np.ones(2)}

    monkeypatch.setattr(classifier, "examples", examples)
    monkeypatch.setattr(classifier, "fit", fit)
    monkeypatch.setattr(made_tables, "logit", lambda arrays, features: features[:, 1])
    monkeypatch.setattr(classifier, "separation", lambda score, of: float(score[0]) / 4)
    variant: Any = Variant("", Texts(), "")  # type: ignore[arg-type]
    said: list = []
    folder = tmp_path / "new"
    texts: Any = list("abcdefg")
    words = Classifier(variant, texts).fit(folder, seed=3, say=said.append, steps=2)
    given, held_out = list("bcdeg"), list("af")
    assert asked == [(given, 3), (held_out, 3), (given, held_out, 3, {"steps": 2})]
    assert words == (
        f"{folder / 'table'}: fitted to 7 texts, drafts of 3 tokens. In held-out texts, an "
        "accepted token gets a higher score than a rejected one in 12.5% of pairs, and a higher "
        "confidence of the draft in 50.0%"
    )
    assert said == ["step 1"] and (folder / "train.log").read_text() == "step 1\n"
    assert saved[0][:2] == (folder / "table", "classifier")


def test_recorded_texts_of_a_classifier(monkeypatch):
    """There are ten or more, with all signals of the one drafter."""
    signals = {"confidence": [0.5, 0.25], "entropy": [1.0, 2.0], "top": [[1], [2]], "own": [0, 0]}
    text: Any = SimpleNamespace(
        index=4, output=[7, 8], drafts={"draft": signals}, kept=lambda name, kind: [name, kind]
    )
    asked: list = []
    texts = [text] * 10
    monkeypatch.setattr(
        made_tables.recorded_texts, "of_run", lambda *given: asked.append(given) or texts
    )
    monkeypatch.setattr(made_tables, "_recorded", lambda drafter, path: ("draft", drafter))
    monkeypatch.setattr(made_tables, "kind_of", lambda drafter: "own")
    run = Texts()
    run.plan.drafter = "drafter"
    variant: Any = Variant("", run, "")  # type: ignore[arg-type]
    found = Classifier.of(variant, "a.jsonl")
    assert asked == [("a.jsonl", variant, ["draft"])] and found.variant is variant
    expected = {"confidence": [0.5, 0.25], "entropy": [1.0, 2.0], "top": [[1], [2]]}
    assert found.recordings == [expected | {"accepted": ["draft", "own"]}] * 10
    texts.pop()
    with pytest.raises(UsageError, match="a.jsonl has 9 texts; give 10 or more"):
        Classifier.of(variant, "a.jsonl")
    for name in ("confidence", "entropy", "top", "own"):
        text.drafts = {"draft": signals | {name: signals[name][:1]}}
        with pytest.raises(UsageError, match=f"text 4 has no recording '{name}' of draft; make"):
            recording(text, "draft", "own", "a.jsonl")


@pytest.mark.parametrize(
    "drafters, says",
    [
        ([], "str has 0 drafters to be recorded in --passes a.jsonl, and a classifier stops one"),
        ([("a", None), ("b", None)], "str has 2 drafters"),
        ([("a", SimpleNamespace(block=4))], "a drafts a block in one call"),
    ],
)
def test_a_classifier_stops_one_drafter_token_by_token(monkeypatch, drafters, says):
    monkeypatch.setattr(made_tables.opinions, "recorded", lambda drafter: iter(drafters))
    with pytest.raises(UsageError, match=says):
        made_tables._recorded("drafter", "a.jsonl")  # type: ignore[arg-type]
    only = "a", SimpleNamespace(block=None)
    monkeypatch.setattr(made_tables.opinions, "recorded", lambda drafter: iter([only]))
    assert made_tables._recorded("drafter", "a.jsonl") == only  # type: ignore[arg-type]


def test_the_losses_of_a_fit_are_weighted_means(monkeypatch):
    """Features that do not vary leave one number to learn: the bias, by one step of Adam."""
    monkeypatch.setattr(classifier, "HIDDEN", 2)
    same, said = np.full([2, 3], 7, np.float32), []
    given = classifier.Examples(same, np.array([1.0, 0.0]), np.array([1.0, 3.0]))
    held_out = classifier.Examples(same, np.array([1.0, 1.0]), np.array([2.0, 2.0]))
    found = classifier.fit(given, held_out, steps=1, say=said.append)
    bias = -classifier.LEARNING_RATE
    assert float(found["out_bias"]) == pytest.approx(bias, rel=1e-4)
    held = np.log(1 + np.exp(-bias))
    assert said == [f"step 1 of 1, loss {np.log(2):.4f}, held out {held:.4f}"]
    assert f"{held:.4f}" != f"{np.log(2):.4f}"
