"""The corpora of `specdec.tasks.corpora` as tasks, with the project's own vocabulary."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

from specdec.common import demo
from specdec.tasks.corpora import PREFIXES, SIZES, examples, generator
from specdec.tasks.loading import TaskError
from specdec.tasks.metrics import bleu, rouge, squad
from specdec.tasks.registry import mixture, registered
from specdec.tasks.task import Task, TextTask
from specdec.tasks.vocabularies import SentencePiece, VocabularyDefinition, for_texts

_METRICS: Mapping[str, tuple[Callable, ...]] = {
    "specdec_ende": (bleu,),
    "specdec_highlights": (rouge,),
    "specdec_gec": (bleu,),
    "specdec_qa": (squad,),
    "specdec_articles": (rouge,),
}


def demo_vocabulary() -> SentencePiece:
    """Returns the vocabulary of all synthetic tasks: 2,048 pieces, T5's ids, and bytes."""
    return SentencePiece(demo.path("vocabulary.model"))


def synthetic_task(
    name: str, vocabulary: VocabularyDefinition | None = None, *, seed: int = 0
) -> Task:
    """Registers a synthetic task, or returns it if the same task exists.

    It has the splits train (unlimited), validation and test (500 examples each). Targets end in
    EOS, appended after trimming. Inputs begin and end as the vocabulary says.

    Args:
      name: specdec_ende, specdec_highlights, specdec_gec, specdec_qa or specdec_articles.
      vocabulary: of both features; None for `demo_vocabulary()`.
      seed: selects another corpus with the same distribution, in every split.

    Returns:
      The task.

    Raises:
      TaskError: there is no such task, the vocabulary cannot be read, or the task is registered
        with another vocabulary or seed.
    """
    try:
        generator(name)
    except ValueError as error:
        raise TaskError(str(error)) from error
    return _register(name, vocabulary or demo_vocabulary(), seed)


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
      TaskError: as for `synthetic_task`, or the mixture is registered with other rates.
    """
    return mixture(name, [synthetic_task(task) for task in rates], list(rates.values()))


@functools.cache
def _register(name: str, definition: VocabularyDefinition, seed: int) -> Task:
    pairs = functools.partial(_pairs, name, seed)
    task = TextTask(name, pairs, SIZES, for_texts(definition), _METRICS[name])
    return registered(task, "another vocabulary or seed; use one of each")


def _pairs(name: str, seed: int, split: str, start: int) -> Iterator[tuple[str, str]]:
    found = examples(name, split, start=start, seed=seed)
    return ((PREFIXES[name] + source, target) for source, target in found)
