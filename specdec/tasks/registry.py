"""Tasks and mixtures in seqio's registry, and whether the data sets that they read are here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec.common.values import Word, check, is_word
from specdec.tasks.loading import TaskError, load_seqio

if TYPE_CHECKING:
    from seqio import Mixture, Task

FEATURES = ("inputs", "targets")
VOCABULARIES = "SentencePiece(path), TokenizerJson(path) or Bytes()"


def check_definition(name: Any, what: str, paths: Any, remedy: str, vocabulary: Any) -> None:
    """Raises TaskError unless a task's name, its split -> path and its vocabulary are such.

    Args:
      what: the name of the argument that `paths` is.
      remedy: an example of `paths`.
    """
    check("the task's name", name, Word, TaskError)
    given = paths.values() if isinstance(paths, Mapping) else ()
    if not given or not all(map(is_word, given)):
        raise TaskError(f"{what} of task {name!r} is {paths!r}; give {remedy}")
    if not hasattr(vocabulary, "load"):
        raise TaskError(f"vocabulary of task {name!r} is {vocabulary!r}; give {VOCABULARIES}")


def add_task(
    name: str,
    source: Any,
    preprocessors: Sequence[Callable],
    features: Any,
    *,
    clash: str = "another definition; rename this one",
    metrics: Sequence[Callable] = (),
    postprocess: Callable | None = None,
) -> Task:
    """Adds a task whose features end in EOS, appended after trimming, to seqio's registry.

    Args:
      features: feature -> seqio's `Feature`; or the vocabulary of both.
      clash: what an existing task of that name is said to have, and the remedy.

    Raises:
      TaskError: there is a task of that name.
    """
    seqio = load_seqio()
    if name in seqio.TaskRegistry.names():
        raise TaskError(f"task {name!r} exists with {clash}")
    if not isinstance(features, Mapping):
        features = {side: seqio.Feature(features) for side in FEATURES}
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[*preprocessors, seqio.preprocessors.append_eos_after_trim],
        output_features=features,
        metric_fns=list(metrics),
        postprocess_fn=postprocess,
    )


def mixture(name: str, tasks: Sequence[Task | str], rates: Sequence[float]) -> Mixture:
    """Registers a seqio mixture, or returns it if this very mixture exists.

    Args:
      name: of the mixture.
      tasks: of one vocabulary; or names of registered ones.
      rates: how often an example comes from each task, relative to the others.

    Raises:
      TaskError: there are not as many rates as tasks, or `name` is another mixture's.
    """
    if len(tasks) != len(rates):
        raise TaskError(f"mixture {name!r} has {len(tasks)} tasks but {len(rates)} rates")
    names = (task if isinstance(task, str) else task.name for task in tasks)
    return _mixture(name, tuple(zip(names, rates, strict=True)))


@functools.cache
def _mixture(name: str, rates: tuple[tuple[str, float], ...]) -> Mixture:
    registry = load_seqio().MixtureRegistry
    if name in registry.names():
        raise TaskError(f"mixture {name!r} exists with other rates; give this one another name")
    return registry.add(name, list(rates))


def get_task(task: str | Task | Mixture, split: str | None = None) -> Task | Mixture:
    """Returns the task, looked up in seqio's registry if a name is given.

    Raises:
      TaskError: there is no such task; or, if a split is given, the task has no such split or the
        data set that it reads is not on this machine.
    """
    found = _registered(task) if isinstance(task, str) else task
    if split is not None:
        for part in getattr(found, "tasks", [found]):  # of a mixture
            _refuse_missing_data(part)
        if split not in found.splits:
            raise TaskError(
                f"task {found.name!r} has no split {split!r}; it has {', '.join(found.splits)}"
            )
    return found


def _registered(name: str) -> Task | Mixture:
    seqio = load_seqio()
    known = sorted(seqio.TaskRegistry.names() | seqio.MixtureRegistry.names())
    if name not in known:
        raise TaskError(
            f"no task is named {name!r}; registered: {', '.join(known) or 'none'} "
            "(import the module that registers it)"
        )
    return seqio.get_mixture_or_task(name)


def examples_of(
    task: Task | Mixture, split: str, lengths: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Iterates over a split once, unshuffled, as NumPy arrays."""
    # A cache in memory would be thrown away unread, with a warning, if not all of it is asked for.
    dataset = task.get_dataset(
        dict(lengths), split, shuffle=False, num_epochs=1, try_in_mem_cache=False
    )
    return dataset.as_numpy_iterator()


def text_of(task: Task | Mixture, example: Mapping[str, Any], feature: str) -> str | None:
    """Returns a feature's text before tokenisation where the task keeps it, else that of its ids.

    It is None where there is no such feature.
    """
    if isinstance(raw := example.get(f"{feature}_pretokenized"), bytes):
        return raw.decode("utf-8", errors="replace")
    if feature not in example:
        return None
    return task.output_features[feature].vocabulary.decode(example[feature].tolist())


def use_tfds_data_dir(folder: str) -> None:
    """Takes the TFDS data sets of all tasks from `folder` from now on, like T5X's flag."""
    seqio = load_seqio()
    seqio.set_tfds_data_dir_override(folder)
    for name in seqio.TaskRegistry.names():
        # One that was used remembers the folder before.
        if data_set := getattr(seqio.TaskRegistry.get(name).source, "tfds_dataset", None):
            data_set.override_data_dir(folder)


def _refuse_missing_data(task: Task) -> None:
    """Raises TaskError if a TFDS data set that the task reads has not been prepared.

    seqio would begin to download and prepare it: hours, for some.
    """
    data_set = getattr(task.source, "tfds_dataset", None)
    if not data_set or not data_set.name:  # otherwise each split names its own
        return
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.constants import DATA_DIR

    name, folder = data_set.name, data_set.data_dir or DATA_DIR
    try:
        prepared = bool(tfds.builder(name, data_dir=folder).info.splits)
    except tfds.core.DatasetNotFoundError:  # TFDS has no code for it either
        prepared = False
    if not prepared:
        raise TaskError(
            f"task {task.name!r} reads the TFDS data set {name}, which is not in {folder}; say "
            f"where it is with --tfds_data_dir=DIR, or make it: tfds build {name} --data_dir=DIR"
        )
