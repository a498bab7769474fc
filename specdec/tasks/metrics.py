"""Metrics in seqio's form: lists of targets and predictions -> named numbers.

Each metric is a function of sums over texts, and also returns each text's contribution to the sums.
A bootstrap can then resample texts without comparing them again.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import functools
import importlib.metadata
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

import numpy as np

from specdec.tasks.loading import TaskError
from specdec.tasks.task import Task

T = TypeVar("T")  # a target, as a task's `postprocess` returns it
P = TypeVar("P")  # a prediction, or all samples of a text


class SumMetric(abc.ABC, Generic[T, P]):
    """A metric that is a function of sums over texts; callable like seqio's metrics."""

    # whether a prediction is the tuple of all samples of a text, and not one of them
    of_samples: ClassVar[bool] = False

    @abc.abstractmethod
    def statistics(self, target: T, prediction: P) -> np.ndarray:
        """Returns [S], the contribution of one text to the sums."""

    @abc.abstractmethod
    def values(self, sums: np.ndarray) -> dict[str, float]:
        """Returns the metric of texts whose statistics add up to `sums` [S]."""

    @property
    @abc.abstractmethod
    def signature(self) -> str:
        """The settings of the computation, so that it can be repeated elsewhere."""

    def __call__(self, targets: Sequence[T], predictions: Sequence[P]) -> dict[str, float]:
        """Returns the metric of texts."""
        if not targets:
            raise ValueError("there are no texts to compute a metric of; give at least one")
        texts = zip(targets, predictions, strict=True)
        return self.values(np.sum([self.statistics(*text) for text in texts], axis=0))


@dataclasses.dataclass(frozen=True)
class Bleu(SumMetric[str, str]):
    """Corpus BLEU (Papineni et al., 2002) with one reference each, 0..100, by sacrebleu.

    Args:
      tokenize: sacrebleu's name of a tokenizer. '13a' is WMT's and sacrebleu's default; T5's own
        tasks use 'intl', which also separates punctuation that is not ASCII.

    Example:

    >>> Bleu()(targets=["the cat sleeps on the mat"], predictions=["the cat sleeps on the mat"])
    {'bleu': 100.00000000000004}
    """

    tokenize: str = "13a"

    def statistics(self, target: str, prediction: str) -> np.ndarray:
        """Returns [10]: the two lengths, four counts of common n-grams, four of predicted ones."""
        score = _sacrebleu(self.tokenize).sentence_score(prediction, [target])
        return np.array([score.sys_len, score.ref_len, *score.counts, *score.totals])

    def values(self, sums: np.ndarray) -> dict[str, float]:
        predicted, expected, *ngrams = (int(number) for number in sums)
        compute = _sacrebleu(self.tokenize).compute_bleu
        score = compute(ngrams[:4], ngrams[4:], predicted, expected, smooth_method="exp")
        return {"bleu": score.score}

    def sentence(self, target: str, prediction: str) -> float:
        """Returns the smoothed BLEU of one text, over the n-gram lengths that it has.

        >>> round(Bleu().sentence("the cat sleeps", "the cat sleeps"))
        100
        """
        return _sacrebleu(self.tokenize).sentence_score(prediction, [target]).score

    @property
    def signature(self) -> str:
        from sacrebleu import BLEU

        metric = BLEU(tokenize=self.tokenize)
        metric.corpus_score(["one"], [["one"]])  # this sets the number of references
        return metric.get_signature().format()


@functools.cache
def _sacrebleu(tokenize: str):
    from sacrebleu import BLEU

    # Effective order concerns scores of single texts only.
    return BLEU(tokenize=tokenize, effective_order=True)


@dataclasses.dataclass(frozen=True)
class Rouge(SumMetric[str, str]):
    """F1 of ROUGE-1, ROUGE-2 and summary-level ROUGE-L (Lin, 2004), 0..100, by rouge-score.

    As in T5, words are not stemmed, and " . " ends a sentence, which ROUGE-Lsum uses. The value is
    the mean over texts. T5 prints the median of 1,000 random bootstrap means, which differs by
    about 0.01.
    """

    NAMES = ("rouge1", "rouge2", "rougeLsum")

    def statistics(self, target: str, prediction: str) -> np.ndarray:
        """Returns [4]: 1, which counts the text, and its F1 of each of `NAMES`."""
        target, prediction = (text.replace(" . ", " .\n") for text in (target, prediction))
        scores = _rouge_scorer(self.NAMES).score(target, prediction)
        return np.array([1, *(scores[name].fmeasure for name in self.NAMES)])

    def values(self, sums: np.ndarray) -> dict[str, float]:
        return dict(zip(self.NAMES, _percentages(sums), strict=True))

    @property
    def signature(self) -> str:
        _rouge_scorer(self.NAMES)
        version = importlib.metadata.version("rouge-score")
        return f"F1|mean|stemmer:no|sentences: . |rouge-score:{version}"


@functools.cache
def _rouge_scorer(names: tuple[str, ...]):
    try:
        from rouge_score import rouge_scorer
    except ImportError as error:
        raise TaskError("ROUGE needs rouge-score; pip install rouge-score") from error
    return rouge_scorer.RougeScorer(names)


@dataclasses.dataclass(frozen=True)
class Squad(SumMetric[str | Sequence[str], str]):
    """Exact match and word F1 of SQuAD v1.1 (Rajpurkar et al., 2016), 0..100.

    Texts are compared without case, ASCII punctuation and articles. A target is an answer, or a
    sequence of answers of which the best one counts.
    """

    def statistics(self, target: str | Sequence[str], prediction: str) -> np.ndarray:
        """Returns [3]: 1, which counts the text; 1 if it matches exactly, else 0; and its F1."""
        answers = [target] if isinstance(target, str) else target
        words = _words(prediction)
        pairs = [(_words(answer), words) for answer in answers]
        return np.array([1, any(a == b for a, b in pairs), max(_f1(a, b) for a, b in pairs)])

    def values(self, sums: np.ndarray) -> dict[str, float]:
        return dict(zip(("em", "f1"), _percentages(sums), strict=True))

    @property
    def signature(self) -> str:
        return "squad:1.1|answers:best"


@dataclasses.dataclass(frozen=True)
class WordErrors(SumMetric[str, str]):
    """The word error rate of transcripts, in per cent of the targets' words.

    Errors are the words to insert, delete or replace. Case and punctuation count.
    """

    def statistics(self, target: str, prediction: str) -> np.ndarray:
        """Returns [2]: the number of errors, and the number of the target's words."""
        predicted, words = np.array(prediction.split()), target.split()
        places = np.arange(len(predicted) + 1)
        errors = places  # edits from the target's words so far to each prefix of the prediction
        for number, word in enumerate(words, start=1):
            either = np.minimum(errors[1:] + 1, errors[:-1] + (predicted != word))
            errors = np.minimum.accumulate(np.append(number, either) - places) + places
        return np.array([errors[-1], len(words)])

    def values(self, sums: np.ndarray) -> dict[str, float]:
        return {"wer": float(100 * sums[0] / max(sums[1], 1))}

    @property
    def signature(self) -> str:
        return "words:whitespace|case:kept|punctuation:kept"


def _words(text: str) -> list[str]:
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _f1(answer: list[str], prediction: list[str]) -> float:
    common = (collections.Counter(answer) & collections.Counter(prediction)).total()
    return 2 * common / (len(answer) + len(prediction)) if common else 0.0


def _percentages(sums: np.ndarray) -> list[float]:
    """Returns the means in per cent, from sums that begin with the number of texts."""
    return [float(100 * total / sums[0]) for total in sums[1:]]


bleu, rouge, squad, wer = Bleu(), Rouge(), Squad(), WordErrors()


def references(
    task: Task, split: str, lengths: Mapping[str, int]
) -> Iterator[tuple[object, Callable[[str], object]]]:
    """Yields, for each example of a split, its target and a function of outputs.

    The target is in the form that the task's metrics need. The function brings an output into the
    same form.
    """
    for example in task.examples(split, lengths):
        if example.target_text is None:
            raise TaskError(f"task {task.name!r} has no targets to compare outputs with")
        target = task.postprocess(example.target_text, example, is_target=True)
        yield target, functools.partial(task.postprocess, example=example, is_target=False)
