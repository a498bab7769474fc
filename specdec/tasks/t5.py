"""TFDS data sets as text-to-text tasks under T5's names (Raffel et al., 2020, appendix D)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from specdec.tasks import metrics
from specdec.tasks.loading import TaskError, load_seqio
from specdec.tasks.seqio_tasks import SeqioTask
from specdec.tasks.task import FEATURES, Raw, Task
from specdec.tasks.vocabularies import (
    VocabularyDefinition,
    for_texts,
    inputs_end,
    refuse_unreachable,
    same_vocabulary,
)


def t5_task(name: str, vocabulary: VocabularyDefinition) -> Task:
    """Registers one of these seqio tasks, or returns it if it is registered, as by `t5.data`.

      wmt_t2t_ende_v003      WMT English to German; test is newstest2014
      wmt14_ende_v003        the same, with other validation data
      cnn_dailymail_v002     news articles to highlights
      xsum_v110              news articles to one sentence; not one of T5's, but in its form
      squad_v010_allanswers  questions about a paragraph; no test split

    Data sets and their versions, prefixes and preprocessing are T5's. Inputs and targets are
    trimmed and then end in EOS. Nothing is downloaded: `batches` raises TaskError if data are
    missing.

    Args:
      name: one of these names.
      vocabulary: of inputs and targets. T5's is SentencePiece(path, extra_ids=100).

    Returns:
      The task.

    Raises:
      TaskError: there is no such task, the vocabulary cannot be read, or the task is registered
        with another vocabulary.
    """
    if name not in _DEFINITIONS:
        raise TaskError(f"no task of T5 is named {name!r}; there are {', '.join(_DEFINITIONS)}")
    return _register(name, vocabulary)


@functools.cache
def _register(name: str, definition: VocabularyDefinition) -> Task:
    if not inputs_end(for_texts(definition)):
        raise TaskError(
            f"task {name!r} has inputs that end in EOS, as T5's do, and those of {definition} do "
            "not; use a task over files (tasks/local.gin)"
        )
    seqio, vocabulary = load_seqio(f"task {name!r}"), definition.load()
    if name in seqio.TaskRegistry.names():
        task = seqio.TaskRegistry.get(name)
        base = task.output_features["targets"].vocabulary
        refuse_unreachable(base)
        if not same_vocabulary(base, vocabulary):
            raise TaskError(
                f"task {name!r} is registered with another vocabulary than {definition}; use one"
            )
        return SeqioTask(task)
    data_set, preprocess, metric, postprocess = _DEFINITIONS[name]
    steps = seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim
    task = seqio.TaskRegistry.add(
        name,
        source=seqio.TfdsDataSource(data_set, read_only=True),
        preprocessors=[seqio.map_over_dataset(preprocess), *steps],
        output_features={side: seqio.Feature(vocabulary) for side in FEATURES},
        metric_fns=[metric],
        postprocess_fn=postprocess,
    )
    return SeqioTask(task)


def _pair(prefix: str, source: str, target: str) -> Callable[[Raw], Raw]:
    """Returns a preprocessor that takes inputs, after a prefix, and targets from two fields."""

    def preprocess(example: Raw) -> Raw:
        return {"inputs": prefix + example[source], "targets": example[target]}

    return preprocess


def _question(example: Raw) -> Raw:
    """Returns a question with its first answer as the target, and all `answers` for the metric."""
    import tensorflow as tf

    def single_spaced(text):
        return tf.strings.regex_replace(text, r"\s+", " ")

    def set_off(text):
        return single_spaced(tf.strings.regex_replace(text, r"([[:punct:]])", r" \1 "))

    question, context = set_off(example["question"]), set_off(example["context"])
    answers = set_off(example["answers"]["text"])
    return {
        "inputs": single_spaced("question: " + question + " context: " + context),
        "targets": answers[0],
        "answers": answers,
    }


def _all_answers(text: str, example: Raw | None = None, is_target: bool = False):
    """Returns a prediction unchanged, and for a target the list of all answers."""
    if not is_target or example is None:
        return text
    return [answer.decode("utf-8") for answer in example["answers"]]


class _Definition(NamedTuple):
    data_set: str  # of TFDS: name/config:version
    preprocess: Callable[[Raw], Raw]
    metric: Callable
    postprocess: Callable | None = None


# T5 has BLEU split punctuation off everywhere, not only where it is ASCII.
_BLEU = metrics.Bleu("intl")
_TRANSLATION = _pair("translate English to German: ", "en", "de")
_HIGHLIGHTS = _pair("summarize: ", "article", "highlights")
_ONE_SENTENCE = _pair("summarize: ", "document", "summary")
_DEFINITIONS: Mapping[str, _Definition] = {
    "wmt_t2t_ende_v003": _Definition("wmt_t2t_translate/de-en:1.0.0", _TRANSLATION, _BLEU),
    "wmt14_ende_v003": _Definition("wmt14_translate/de-en:1.0.0", _TRANSLATION, _BLEU),
    "cnn_dailymail_v002": _Definition("cnn_dailymail:3.4.0", _HIGHLIGHTS, metrics.rouge),
    "xsum_v110": _Definition("xsum:1.1.0", _ONE_SENTENCE, metrics.rouge),
    "squad_v010_allanswers": _Definition(
        "squad/v1.1:3.0.0", _question, metrics.squad, _all_answers
    ),
}
