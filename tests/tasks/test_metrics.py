"""Metrics of texts: pytest tests/tasks/test_metrics.py"""

import re
import sys

import numpy as np
import pytest
import sacrebleu

from specdec import tasks
from specdec.tasks import metrics
from specdec.tasks.metrics import Bleu, Rouge, bleu, references, rouge, squad, wer

TARGETS = [
    "The cat sat on the mat . It was „happy“ .",
    "Ein Mann läuft, obwohl es regnet.",
    "Short.",
    "one two three four five six",
]
PREDICTIONS = [
    "The cat sat on a mat . It was „very happy“ .",
    "Ein Mann läuft, obwohl es schneit.",
    "",
    "six five four three two one",
]


@pytest.mark.parametrize("tokenize", ["13a", "intl"])
def test_bleu_is_sacrebleus(tokenize):
    expected = sacrebleu.BLEU(tokenize=tokenize)
    score = expected.corpus_score(PREDICTIONS, [TARGETS]).score
    found = Bleu(tokenize)(TARGETS, PREDICTIONS)
    assert found == {"bleu": pytest.approx(score, abs=1e-9)}  # float64, of 100
    assert 20 < score < 80
    assert Bleu(tokenize).signature == str(expected.get_signature())


def test_the_tokenizers_of_wmt_and_t5_differ_and_the_default_is_wmts():
    assert Bleu("intl")(TARGETS, PREDICTIONS) != bleu(TARGETS, PREDICTIONS)
    assert "tok:13a" in bleu.signature


def test_bleu_is_smoothed_where_no_long_ngram_matches():
    texts = ["a b c d e"], ["a b x d e"]
    expected = sacrebleu.corpus_bleu(texts[1], [texts[0]]).score
    assert bleu(*texts)["bleu"] == pytest.approx(expected, abs=1e-9) and expected > 0  # float64
    assert bleu(["a b c d e"], ["v w x y z"]) == {"bleu": 0}


@pytest.mark.parametrize("metric", [bleu, squad], ids=repr)
def test_a_metric_needs_a_prediction_for_each_target(metric):
    with pytest.raises(ValueError):
        metric(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="no texts"):
        metric([], [])


def test_rouge_is_the_mean_of_rouge_scores_f1():
    from rouge_score import rouge_scorer

    scorer = rouge_scorer.RougeScorer(Rouge.NAMES)
    lines = [[text.replace(" . ", " .\n") for text in texts] for texts in (TARGETS, PREDICTIONS)]
    scores = [scorer.score(*pair) for pair in zip(*lines, strict=True)]
    values = rouge(TARGETS, PREDICTIONS)
    assert list(values) == ["rouge1", "rouge2", "rougeLsum"]
    for name, value in values.items():
        assert value == pytest.approx(100 * np.mean([one[name].fmeasure for one in scores]))


def test_rouge_lsum_counts_sentence_by_sentence():
    """Two sentences in another order: all of each is there, but not in the order of the whole."""
    values = rouge(["a b c . d e f ."], ["d e f . a b c ."])
    assert values["rougeLsum"] == pytest.approx(100)
    assert rouge(["a b c d e f ."], ["d e f a b c ."])["rougeLsum"] == pytest.approx(50)


def test_rouge_without_its_package_is_one_line(monkeypatch):
    metrics._rouge_scorer.cache_clear()
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with pytest.raises(tasks.TaskError, match="^ROUGE needs rouge-score; pip install rouge-score$"):
        rouge.signature  # noqa: B018


@pytest.mark.parametrize(
    "target, prediction, em, f1",
    [
        ("The Cat", "cat!", 100, 100),
        ("Theatre", "a theatre", 100, 100),
        ("another", "other", 0, 0),
        ("black cat", "the black dog", 0, 50),
        ("black cat", "black black cat", 0, 80),
        ("U.S.", "us", 100, 100),
        ("cat", "dog", 0, 0),
        (["dog", "the cat"], "Cat", 100, 100),
        (["dog bone", "cat food tin"], "cat food", 0, 80),
        ("cat", "", 0, 0),
        ("the", "a", 100, 0),  # nothing is left of both, as in T5
    ],
)
def test_squad(target, prediction, em, f1):
    assert squad([target], [prediction]) == {"em": em, "f1": pytest.approx(f1)}


def test_squad_is_a_mean_over_texts():
    assert squad(["cat", ["a", "dog"]], ["cat", "x"]) == {"em": 50, "f1": 50}


def test_word_errors_are_those_of_jiwer():
    """The figures are from jiwer 4.0.0, for words drawn at random."""
    spoken = {
        ("d b b c", "d d d"): 3,
        ("c d c", "a a"): 3,
        ("d c c", "d b c d"): 2,
        ("b c b b c a", "b d b d"): 4,
        ("d a d c d", "a b d a b"): 4,
        ("a", "a d a c"): 3,
        ("a", "d d"): 2,
        ("a c c c", "d a d c b a"): 4,
        ("two words", ""): 2,
    }
    for (target, prediction), errors in spoken.items():
        assert wer.statistics(target, prediction).tolist() == [errors, len(target.split())]
    targets, predictions = zip(*list(spoken)[:8], strict=True)
    assert wer(targets, predictions) == {"wer": pytest.approx(92.5925925925926)}
    assert wer([""], [""]) == {"wer": 0} and wer(["a"], ["b"]) == {"wer": 100}


def test_a_task_has_them(tmp_path):
    (tmp_path / "x.tsv").write_text("one\teins\ntwo\tzwei\n", encoding="utf-8")
    files = {"test": str(tmp_path / "x.tsv")}
    task = tasks.local_task("of_metrics", files, tasks.Bytes(), metric_fns=(bleu, rouge, squad))
    assert task.metric_fns == (bleu, rouge, squad)
    found = list(references(task, "test", {"inputs": 8, "targets": 8}))
    assert [(target, prepare("x")) for target, prepare in found] == [("eins", "x"), ("zwei", "x")]


def test_a_task_without_targets_has_no_references(tmp_path):
    (tmp_path / "x.txt").write_text("one\n", encoding="utf-8")
    files = {"test": str(tmp_path / "x.txt")}
    task = tasks.local_task("no_targets", files, tasks.Bytes(), columns=("inputs",))
    message = re.escape("task 'no_targets' has no targets to compare outputs with")
    with pytest.raises(tasks.TaskError, match=message):
        next(references(task, "test", {"inputs": 8, "targets": 8}))
