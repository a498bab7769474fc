"""Whether the TFDS data sets that tasks read are on this machine; nothing is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec.tasks.errors import TaskError
from specdec.tasks.loading import load_seqio

if TYPE_CHECKING:
    from seqio import Mixture, Task


def use_tfds_data_dir(folder: str) -> None:
    """Takes the TFDS data sets of all tasks from `folder` from now on, like T5X's flag."""
    seqio = load_seqio()
    seqio.set_tfds_data_dir_override(folder)
    for name in seqio.TaskRegistry.names():
        # One that was used remembers the folder before.
        if data_set := getattr(seqio.TaskRegistry.get(name).source, "tfds_dataset", None):
            data_set.override_data_dir(folder)


def refuse_missing_data(task: Task | Mixture) -> None:
    """Raises TaskError if a TFDS data set that the task reads has not been prepared.

    seqio would begin to download and prepare it: hours, for some.
    """
    for part in getattr(task, "tasks", [task]):  # of a mixture
        data_set = getattr(part.source, "tfds_dataset", None)
        if data_set and data_set.name:  # otherwise each split names its own
            _refuse_missing(part.name, data_set.name, data_set.data_dir)


def _refuse_missing(task: str, name: str, folder: str | None) -> None:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.constants import DATA_DIR

    folder = folder or DATA_DIR
    try:
        prepared = bool(tfds.builder(name, data_dir=folder).info.splits)
    except tfds.core.DatasetNotFoundError:  # TFDS has no code for it either
        prepared = False
    if not prepared:
        raise TaskError(
            f"task {task!r} reads the TFDS data set {name}, which is not in {folder}; say where it "
            f"is with --tfds_data_dir=DIR, or make it: tfds build {name} --data_dir=DIR"
        )
