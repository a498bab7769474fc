"""Mixtures of tasks, in seqio's registry."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec.tasks.errors import TaskError
from specdec.tasks.loading import load_seqio

if TYPE_CHECKING:
    from seqio import Mixture, Task


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
    return _register(name, tuple(zip(names, rates, strict=True)))


@functools.cache
def _register(name: str, rates: tuple[tuple[str, float], ...]) -> Mixture:
    seqio = load_seqio()
    if name in seqio.MixtureRegistry.names():
        raise TaskError(f"mixture {name!r} exists with other rates; give this one another name")
    return seqio.MixtureRegistry.add(name, list(rates))
