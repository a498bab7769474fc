"""Adapters for tasks and mixtures of seqio, with a check that their data are on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec.tasks.loading import TaskError, load_seqio
from specdec.tasks.task import Example, Raw, Task
from specdec.tasks.vocabularies import LoadedVocabulary

if TYPE_CHECKING:
    import seqio


@dataclasses.dataclass(frozen=True)
class SeqioTask(Task):
    """A task or mixture of seqio."""

    of: seqio.Task | seqio.Mixture

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def vocabulary(self) -> LoadedVocabulary:
        return self.of.output_features["targets"].vocabulary

    @property
    def features(self) -> Sequence[str]:
        return tuple(self.of.output_features)

    @property
    def splits(self) -> Sequence[str]:
        return self.of.splits

    @property
    def metric_fns(self) -> Sequence[Callable]:
        return getattr(self.of, "predict_metric_fns", ())  # mixtures have none

    def num_input_examples(self, split: str) -> int | None:
        return self.of.num_input_examples(split)

    def fits(self, split: str) -> bool:
        return all(Task.fits(SeqioTask(part), split) for part in self._parts())

    def examples(self, split: str, lengths: Mapping[str, int], start: int = 0) -> Iterator[Example]:
        return self._read(split, lengths, start, num_epochs=1, shuffle=False)

    def postprocess(self, text: str, example: Example, is_target: bool) -> object:
        prepare = getattr(self.of, "postprocess_fn", lambda text, **_: text)  # mixtures have none
        return prepare(text, example=example.raw, is_target=is_target)

    def stream(
        self, split: str, lengths: Mapping[str, int], seed: int, start: int = 0
    ) -> Iterator[Example]:
        """Yields examples without end, from place `start` on.

        A split of a single task that fits in memory has the order of `Task.stream`. A mixture that
        fits is shuffled by seqio with the seed. What does not fit has seqio's order, for any seed.
        """
        small = self.fits(split)
        if small and self._parts() == [self.of]:
            return super().stream(split, lengths, seed, start)
        # Without a shuffle seqio takes no seed, and mixes by a fixed one.
        order = {"shuffle": True, "seed": seed} if small else {"shuffle": False}
        return self._read(split, lengths, start, num_epochs=None, **order)

    def check_data(self) -> None:
        """Raises TaskError if a TFDS data set that the task reads has not been prepared.

        Otherwise, seqio would begin to download and prepare it, which takes hours for some.
        """
        for part in self._parts():
            data_set = getattr(part.source, "tfds_dataset", None)
            if data_set and data_set.name:  # otherwise each split names its own
                _refuse_missing_data(part.name, data_set.name, data_set.data_dir)

    def _parts(self) -> list[seqio.Task]:
        return getattr(self.of, "tasks", [self.of])

    def _read(
        self, split: str, lengths: Mapping[str, int], start: int, **order: Any
    ) -> Iterator[Example]:
        # A cache in memory would be thrown away unread, with a warning, if not all is asked for.
        dataset = self.of.get_dataset(dict(lengths), split, try_in_mem_cache=False, **order)
        for raw in dataset.skip(start).as_numpy_iterator():
            targets = raw["targets"].astype(np.int32) if "targets" in raw else None
            texts = self._text(raw, "inputs") or "", self._text(raw, "targets")
            yield Example(raw["inputs"].astype(np.int32), targets, *texts, raw)

    def _text(self, raw: Raw, feature: str) -> str | None:
        """Returns a feature's text before tokenisation if the task keeps it, else its ids' text.

        The result is None if there is no such feature.
        """
        if isinstance(text := raw.get(f"{feature}_pretokenized"), bytes):
            return text.decode("utf-8", errors="replace")
        if feature not in raw:
            return None
        return self.of.output_features[feature].vocabulary.decode(raw[feature].tolist())


def use_tfds_data_dir(folder: str) -> None:
    """Makes all tasks read their TFDS data sets from `folder`, like T5X's flag.

    Args:
      folder: the folder.
    """
    seqio = load_seqio("--tfds_data_dir")
    seqio.set_tfds_data_dir_override(folder)
    for name in seqio.TaskRegistry.names():
        # A task that was used has kept the previous folder.
        if data_set := getattr(seqio.TaskRegistry.get(name).source, "tfds_dataset", None):
            data_set.override_data_dir(folder)


def _refuse_missing_data(task: str, name: str, folder: str | None) -> None:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.constants import DATA_DIR

    folder = folder or DATA_DIR
    try:
        prepared = bool(tfds.builder(name, data_dir=folder).info.splits)
    except tfds.core.DatasetNotFoundError:  # TFDS has no code for it either
        prepared = False
    if not prepared:
        raise TaskError(
            f"task {task!r} reads the TFDS data set {name}, which is not in {folder}; say "
            f"where it is with --tfds_data_dir=DIR, or make it: tfds build {name} --data_dir=DIR"
        )
