"""The demo's texts as tasks, with the project's own vocabulary."""

from __future__ import annotations

import bz2
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping

from specdec.common import demo
from specdec.tasks.loading import TaskError
from specdec.tasks.metrics import bleu, rouge, squad
from specdec.tasks.registry import mixture, registered
from specdec.tasks.task import Task, TextTask
from specdec.tasks.vocabularies import SentencePiece, VocabularyDefinition, for_texts

SIZES: Mapping[str, int] = {"train": 8_000, "validation": 500, "test": 500}
_METRICS: Mapping[str, Callable] = {
    "specdec_ende": bleu,
    "specdec_highlights": rouge,
    "specdec_gec": bleu,
    "specdec_qa": squad,
    "specdec_articles": rouge,
}


def demo_vocabulary() -> SentencePiece:
    """Returns the vocabulary of all synthetic tasks: 2,048 pieces, T5's ids, and bytes."""
    return SentencePiece(demo.path("vocabulary.model"))


def synthetic_task(name: str, vocabulary: VocabularyDefinition | None = None) -> Task:
    """Registers a synthetic task, or returns it if the same task exists.

    It has the splits train (8,000 examples), validation and test (500 examples each), in files that
    ship with the project. Targets are trimmed and then end in EOS. The vocabulary defines whether
    inputs have BOS and EOS.

    Args:
      name: specdec_ende, specdec_highlights, specdec_gec, specdec_qa or specdec_articles.
      vocabulary: of inputs and targets; None for `demo_vocabulary()`.

    Returns:
      The task.

    Raises:
      TaskError: there is no such task, the vocabulary cannot be read, or the task is registered
        with another vocabulary.
    """
    if name not in _METRICS:
        raise TaskError(f"no synthetic task is named {name!r}; there are {', '.join(_METRICS)}")
    definition = vocabulary or demo_vocabulary()

    def task() -> Task:
        pairs = functools.partial(_pairs, name)
        return TextTask(name, pairs, SIZES, for_texts(definition), (_METRICS[name],))

    clash = "another vocabulary; use one for each task"
    return registered(name, (synthetic_task, definition), task, clash)


def synthetic_mixture(
    name: str = "specdec_demo",
    rates: Mapping[str, float] = {"specdec_ende": 2, "specdec_highlights": 1},
) -> Task:
    """Registers a mixture of synthetic tasks, or returns it if the same mixture exists.

    Args:
      name: the name of the mixture.
      rates: how often an example comes from each task, relative to the others.

    Returns:
      The mixture.

    Raises:
      TaskError: there is no such task, or the mixture is registered with other rates.
    """
    return mixture(name, [synthetic_task(task) for task in rates], list(rates.values()))


def _pairs(name: str, split: str, start: int) -> Iterator[tuple[str, str]]:
    """Yields the (input, target) of each line of a split's file, from line `start` on."""
    path = demo.path(f"texts/{name}.{split}.tsv.bz2")
    with bz2.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        for line in itertools.islice(lines, start, None):
            text, _, target = line.removesuffix("\n").partition("\t")
            yield text, target
