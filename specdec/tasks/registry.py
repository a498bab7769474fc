"""Tasks and mixtures by name: ours, and those in seqio's registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from specdec.common.values import Word, check, is_word
from specdec.tasks.loading import TaskError, load_seqio
from specdec.tasks.seqio_tasks import SeqioTask
from specdec.tasks.task import Mixture, Task
from specdec.tasks.vocabularies import same_vocabulary

if TYPE_CHECKING:
    import seqio

VOCABULARIES = "SentencePiece(path), TokenizerJson(path) or Bytes()"

_registered: dict[str, tuple[object, Task]] = {}  # by name: what a task was made of, and the task


def check_definition(
    name: object, what: str, paths: object, remedy: str, vocabulary: object
) -> None:
    """Raises TaskError unless a task's name, paths and vocabulary are valid."""
    check("the task's name", name, Word, TaskError)
    locations = paths.values() if isinstance(paths, Mapping) else ()
    if not locations or not all(map(is_word, locations)):
        raise TaskError(f"{what} of task {name!r} is {paths!r}; give {remedy}")
    if not hasattr(vocabulary, "load"):
        raise TaskError(f"vocabulary of task {name!r} is {vocabulary!r}; give {VOCABULARIES}")


def registered(
    name: str,
    definition: Sequence[object],
    make: Callable[[], Task],
    clash: str = "another definition; rename this one",
) -> Task:
    """Returns the task that is registered with this name and definition, or registers a new one.

    Raises TaskError with `clash` if the name has another definition."""
    known = _registered.get(name)
    if known is not None and known[0] == definition:
        return known[1]
    task = make()
    if known is not None:
        raise TaskError(f"task {name!r} exists with {clash}")
    _registered[name] = definition, task
    return task


def mixture(name: str, tasks: Sequence[Task | str], rates: Sequence[float]) -> Task:
    """Registers a mixture, or returns it if the same mixture exists.

    Args:
      name: the name of the mixture.
      tasks: tasks with one vocabulary, or names of registered ones.
      rates: how often an example comes from each task, relative to the others.

    Returns:
      The mixture.

    Raises:
      TaskError: the numbers of rates and tasks differ, the tasks have different vocabularies, or
        another mixture is called `name`.
    """
    if len(tasks) != len(rates):
        raise TaskError(f"mixture {name!r} has {len(tasks)} tasks but {len(rates)} rates")
    parts, rates = tuple(map(get_task, tasks)), tuple(rates)
    for part in parts:
        if not same_vocabulary(part.vocabulary, parts[0].vocabulary):
            raise TaskError(
                f"tasks {parts[0].name!r} and {part.name!r} of mixture {name!r} have different "
                "vocabularies; give tasks of one"
            )
    clash = "other rates; give this one another name"
    return registered(name, (mixture, parts, rates), lambda: Mixture(name, parts, rates), clash)


def get_task(task: str | Task | seqio.Task | seqio.Mixture, split: str | None = None) -> Task:
    """Returns a task: one of ours or of seqio's, or the one that is registered under a name.

    Args:
      task: a task, or its name.
      split: a split that must exist and have its data on this machine; None for no check.

    Raises:
      TaskError: there is no such task or split, or the task's data set is not on this machine.
    """
    if isinstance(task, str):
        _, resolved = _registered.get(task) or (None, _seqios(task))
    else:
        resolved = task if isinstance(task, Task) else SeqioTask(task)
    if split is not None:
        resolved.check_data()
        if split not in resolved.splits:
            raise TaskError(
                f"task {resolved.name!r} has no split {split!r}; it has "
                f"{', '.join(resolved.splits)}"
            )
    return resolved


def _seqios(name: str) -> Task:
    ours = ", ".join(sorted(_registered)) or "none"
    seqio = load_seqio(f"no task is named {name!r} (registered: {ours}); one of seqio's")
    known = seqio.TaskRegistry.names() | seqio.MixtureRegistry.names()
    if name not in known:
        every = ", ".join(sorted(known | _registered.keys()))
        raise TaskError(
            f"no task is named {name!r}; registered: {every or 'none'} "
            "(import the module that registers it)"
        )
    return SeqioTask(seqio.get_mixture_or_task(name))
