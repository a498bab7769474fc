"""The corpora of `specdec.tasks.corpora` as seqio tasks, with the project's own vocabulary."""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from specdec.common import demo
from specdec.tasks.corpora import PREFIXES, SIZES, generator
from specdec.tasks.loading import TaskError, load_seqio
from specdec.tasks.metrics import bleu, rouge, squad
from specdec.tasks.registry import add_task, mixture
from specdec.tasks.vocabularies import SentencePiece, VocabularyDefinition

if TYPE_CHECKING:
    from seqio import Mixture, Task

_METRICS: Mapping[str, tuple[Callable, ...]] = {
    "specdec_ende": (bleu,),
    "specdec_highlights": (rouge,),
    "specdec_gec": (bleu,),
    "specdec_qa": (squad,),
}


def demo_vocabulary() -> SentencePiece:
    """The vocabulary of all synthetic tasks: 2,048 pieces, T5's ids, bytes for what is unknown."""
    return SentencePiece(demo.path("vocabulary.model"))


def synthetic_task(
    name: str, vocabulary: VocabularyDefinition | None = None, *, seed: int = 0
) -> Task:
    """Registers a synthetic seqio task, or returns it if this very task exists.

    Args:
      name: specdec_ende, specdec_highlights, specdec_gec or specdec_qa.
      vocabulary: of both features; `demo_vocabulary()` if None.
      seed: another corpus of the same law, in every split.

    Splits train (endless for any purpose), validation and test (500 each). Both features end in
    EOS, appended after trimming.

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
) -> Mixture:
    """Registers a seqio mixture of synthetic tasks, or returns it if this very mixture exists.

    Args:
      name: of the mixture.
      rates: how often an example comes from each task, relative to the others.

    Raises:
      TaskError: as `synthetic_task`, or the mixture is registered with other rates.
    """
    return mixture(name, [synthetic_task(task) for task in rates], list(rates.values()))


@functools.cache
def _register(name: str, definition: VocabularyDefinition, seed: int) -> Task:
    vocabulary = definition.load()
    seqio = load_seqio()
    dataset_of = functools.partial(_dataset, name, seed)

    def dataset(split: str, shuffle_files: bool = False, seed: int | None = None):
        del shuffle_files, seed  # the draws are independent already
        return dataset_of(split)

    return add_task(
        name,
        seqio.FunctionDataSource(
            dataset, splits=tuple(SIZES), num_input_examples=dict(SIZES), caching_permitted=False
        ),
        [seqio.preprocessors.tokenize],
        vocabulary,
        clash="another vocabulary or seed; use one of each",
        metrics=_METRICS[name],
    )


_CHUNK = 250  # TensorFlow's cost for each call of Python is that of several examples

_busy, _exiting = threading.Lock(), threading.Event()


def _exit() -> None:
    """Ends all streams. A thread of TensorFlow that calls a Python that is gone never returns."""
    _exiting.set()
    with _busy:  # until the chunk that is being made is done
        pass
    time.sleep(0.1)  # until the threads that wait for it have found the end


def _dataset(name: str, seed: int, split: str):
    """Returns a dataset of {inputs, targets}, prefixed text, in the order of the indices."""
    import numpy as np
    import tensorflow as tf

    generate = generator(name)

    def texts(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with _busy:
            if _exiting.is_set():
                indices = indices[:0]
            rows = [generate(split, int(index), seed) for index in indices]
        sources = [(PREFIXES[name] + source).encode() for source, _ in rows]
        return np.array(sources, "S"), np.array([target.encode() for _, target in rows], "S")

    def features(indices):
        sources, targets = tf.numpy_function(texts, [indices], [tf.string, tf.string])
        return {
            "inputs": tf.ensure_shape(sources, [None]),
            "targets": tf.ensure_shape(targets, [None]),
        }

    atexit.unregister(_exit)  # once is enough
    atexit.register(_exit)
    chunks = tf.data.Dataset.range(SIZES[split]).batch(_CHUNK).map(features)
    return chunks.take_while(lambda chunk: tf.size(chunk["inputs"]) > 0).unbatch()
