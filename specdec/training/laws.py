"""A target's distributions at each token of a split's texts, stored once and read in training.

A run that aligns a drafter needs the target's distribution at each token in every epoch, and the
target is the most expensive model of all. A folder stores the likeliest ids of each:

  settings.json   the target and the texts; a run with others is refused
  00000/ ...      tables of kind `laws`, each of some thousand texts, which appear when complete

An interrupted run therefore resumes where it was, and runs with other objectives or seeds share a
folder.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.checkpoints import tables
from specdec.common import records
from specdec.models.model import Target
from specdec.training.divergences import NOTHING
from specdec.training.loss import Pairs, TopLaws, teacher_forced
from specdec.training.training_batches import TokenPair
from specdec.training.training_error import TrainingError
from specdec.types import Array, PyTree, Table

TEXTS = 4096  # of a table
KIND = Table("laws")
DIGEST = 16  # bytes that a text is known by
LOCK, INSTEAD = ".lock", "laws_path"


def coarse(log_probs: Array, ids: Array) -> Array:
    """Returns [B, T, m+1], the log-probabilities of these ids, and of all others together.

    Args:
      log_probs: [B, T, V].
      ids: [B, T, m], without repetition, m < V.
    """
    others = jnp.put_along_axis(log_probs, ids, -jnp.inf, axis=-1, inplace=False)
    others = jax.nn.logsumexp(others, axis=-1, keepdims=True)
    return jnp.concatenate([jnp.take_along_axis(log_probs, ids, axis=-1), others], axis=-1)


class Asked(NamedTuple):
    """The target whose distributions are stored, and the number of ids of each."""

    model: Target
    params: PyTree
    top: int
    temperature: float


class StoredLaws:
    """The stored distributions of texts; `added_to` adds them to a batch."""

    def __init__(self, paths: Iterable[Path]):
        self._tables = [tables.mapped(path, KIND) for path in paths]
        self._places: dict[bytes, tuple[int, int]] = {}
        for number, table in enumerate(self._tables):
            starts = np.cumsum(table["lengths"]) - table["lengths"]
            for text, start in zip(table["texts"], starts, strict=True):
                self._places[text.tobytes()] = number, int(start)

    def added_to(self, pairs: Pairs) -> Pairs:
        """Returns the batch with the stored distributions of its texts; padding has zeros."""
        shape, (_, top) = pairs.targets.shape, self._tables[0]["ids"].shape
        laws = TopLaws(np.zeros([*shape, top], np.int32), np.zeros([*shape, top + 1], np.float32))
        for row, (text, length) in enumerate(_texts(pairs)):
            if length:
                number, start = self._places[text]
                for array, name in zip(laws, TopLaws._fields, strict=True):
                    array[row, :length] = self._tables[number][name][start : start + length]
        return pairs._replace(laws=laws)


def stored(
    path: str | os.PathLike,
    asked: Asked,
    settings: dict[str, Any],
    examples: Sequence[TokenPair],
    packed: Callable[[Sequence[TokenPair]], Sequence[Pairs]],
    say: Callable[[str], None] = lambda _: None,
) -> StoredLaws:
    """Opens a folder, and adds the tables that it lacks.

    Args:
      path: the folder.
      asked: the target, and what is stored of it.
      settings: the settings of target and data, as in JSON.
      examples: the texts.
      packed: makes batches of some of the examples.
      say: prints a line.

    Raises:
      TrainingError: `top` ids would be all ids.
      records.RecordsError: the folder has other settings, or another run is making it.
    """
    ids: int = asked.model.vocab_size  # type: ignore[attr-defined]
    if asked.top >= ids:
        raise TrainingError(f"Align.top is {asked.top} and the target has {ids} ids; give fewer")
    folder = Path(os.path.abspath(Path(path).expanduser()))
    whole = json.dumps({**settings, "top": asked.top, "temperature": asked.temperature}, indent=2)
    starts = range(0, len(examples), TEXTS)
    with records.locked(folder, folder / LOCK, INSTEAD, "*"):
        file = folder / "settings.json"
        records.claim(folder, file, f"{whole}\n", begun=None, instead=INSTEAD)
        for number, start in enumerate(starts):
            if (table := folder / f"{number:05}").exists():
                continue
            say(f"stores what the target says in {folder}, part {number + 1} of {len(starts)}")
            made = _made(asked, packed(examples[start : start + TEXTS]))
            tables.save(table, KIND.kind, made)
    return StoredLaws(folder / f"{number:05}" for number in range(len(starts)))


def _made(asked: Asked, batches: Sequence[Pairs]) -> dict[str, np.ndarray]:
    """Returns the arrays of a table: one row per token, all texts one after the other."""
    texts, lengths, ids, log_probs = [], [], [], []
    for pairs in batches:
        top = jax.device_get(_said(asked.params, pairs, asked.model, asked.top, asked.temperature))
        for row, (text, length) in enumerate(_texts(pairs)):
            if length:
                texts.append(np.frombuffer(text, np.uint8))
                lengths.append(length)
                ids.append(top.ids[row, :length])
                log_probs.append(top.log_probs[row, :length])
    return {
        "texts": np.stack(texts),
        "lengths": np.array(lengths, np.int32),
        "ids": np.concatenate(ids),
        "log_probs": np.concatenate(log_probs),
    }


@functools.partial(jax.jit, static_argnames=("model", "top", "temperature"))
def _said(params: PyTree, pairs: Pairs, model: Target, top: int, temperature: float) -> TopLaws:
    law = jax.nn.log_softmax(teacher_forced(model, params, pairs) / temperature)
    ids = jax.lax.top_k(law, top)[1]
    return TopLaws(ids, jnp.maximum(coarse(law, ids), NOTHING))


def _texts(pairs: Pairs) -> Iterator[tuple[bytes, int]]:
    """Yields each row's digest and its number of tokens, 0 for a row of padding."""
    for inputs, targets in zip(np.asarray(pairs.inputs), np.asarray(pairs.targets), strict=True):
        digest = hashlib.blake2b(inputs[inputs > 0].tobytes(), digest_size=DIGEST)
        digest.update(b"\0" + targets[targets > 0].tobytes())
        yield digest.digest(), int((targets > 0).sum())
