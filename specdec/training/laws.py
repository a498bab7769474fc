"""A target's distributions at each token of a split's texts, stored once and read in training.

A run that aligns a drafter needs the target's distribution at each token in every epoch, and the
target is the most expensive model. A folder stores the likeliest ids of each distribution:

  settings.json   the target and the texts; a run with others is rejected
  00000/ ...      tables of kind `laws`, each of some texts, which appear when complete

An interrupted run therefore resumes after the last table, and runs with other objectives or seeds
share a folder. A token takes 8 m + 4 bytes if m ids are stored, and a text 20 bytes more.

No whole split is held in memory: making a folder needs one table's texts, and reading it needs a
digest of each text and the mapped tables. Over a mesh the target stays divided, and only the stored
ids and numbers leave the devices. Of several processes, each feeds its own rows, the first one
writes, and all of them read. The folder does not depend on the number of processes.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.checkpoints import tables
from specdec.common import hosts, records
from specdec.models.contract.model import Target
from specdec.sampling import tempered
from specdec.training.divergences import NOTHING
from specdec.training.division import Division
from specdec.training.loss import Pairs, TopLaws, teacher_forced
from specdec.training.training_batches import TokenPair
from specdec.training.training_error import TrainingError
from specdec.types import Array, PyTree, Table

# Texts of a table. An interruption loses the last one, which takes a target of 11 billion
# parameters less than a minute on one accelerator. A table is four mapped files, of which a system
# allows some 65,000: enough for the largest split that can be stored (`tasks.FITS`).
TEXTS = 1024
KIND = Table("laws")
DIGEST = 16  # bytes of the digest by which a text is found
LOCK, INSTEAD = ".lock", "laws_path"


def coarse(log_probs: Array, ids: Array) -> Array:
    """Returns [B, T, m+1], the log-probabilities of `ids` [B, T, m], and of all others together."""
    others = jnp.put_along_axis(log_probs, ids, -jnp.inf, axis=-1, inplace=False)
    others = jax.nn.logsumexp(others, axis=-1, keepdims=True)
    return jnp.concatenate([jnp.take_along_axis(log_probs, ids, axis=-1), others], axis=-1)


class Asked(NamedTuple):
    """The target whose distributions are stored, and the number `top` of ids that are stored."""

    model: Target
    params: PyTree
    top: int
    temperature: float
    layout: Division = Division()  # of parameters and batches; call `stored` in `layout.entered()`

    def program(self) -> Callable[[PyTree, Pairs], TopLaws]:
        """Returns a jitted function of (params, batch), whose result is whole on each device."""
        model, top, temperature = self.model, self.top, self.temperature
        out = None if self.layout.mesh is None else self.layout.whole

        def said(params: PyTree, pairs: Pairs) -> TopLaws:
            logits = teacher_forced(model, params, pairs)
            law = jax.nn.log_softmax(tempered(logits, temperature))
            ids = jax.lax.top_k(law, top)[1]
            return TopLaws(ids, jnp.maximum(coarse(law, ids), NOTHING))

        return jax.jit(said, out_shardings=out)


class StoredLaws:
    """The stored distributions of texts; `added_to` adds them to a batch."""

    def __init__(self, paths: Iterable[Path], pad_id: int):
        self._pad_id = pad_id
        self._folders = list(paths)
        self._tables = [tables.mapped(path, KIND) for path in self._folders]
        texts = np.concatenate([_keys(table["texts"]) for table in self._tables])
        order = np.argsort(texts, kind="stable")
        self._texts = texts[order]
        sizes = [len(table["lengths"]) for table in self._tables]
        self._numbers = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[order]
        lengths = (np.asarray(table["lengths"], np.int64) for table in self._tables)
        self._starts = np.concatenate([np.cumsum(x) - x for x in lengths])[order]

    def added_to(self, pairs: Pairs) -> Pairs:
        """Returns the batch with the stored distributions of its texts; padding has zeros."""
        shape, (_, top) = pairs.targets.shape, self._tables[0]["ids"].shape
        laws = TopLaws(np.zeros([*shape, top], np.int32), np.zeros([*shape, top + 1], np.float32))
        for row, (text, length) in enumerate(_texts(pairs, self._pad_id)):
            if length:
                number, start = self._place(text)
                for array, name in zip(laws, TopLaws._fields, strict=True):
                    array[row, :length] = self._tables[number][name][start : start + length]
        return pairs._replace(laws=laws)

    def _place(self, text: bytes) -> tuple[int, int]:
        """Returns the number of the table that has a text's digest, and the text's first row."""
        index = int(np.searchsorted(self._texts, np.array(text, self._texts.dtype)))
        if index == len(self._texts) or self._texts[index] != np.array(text, self._texts.dtype):
            raise TrainingError(
                f"{self._folders[0].parent} has not all texts of the split, which has changed; "
                f"delete that folder, or give another {INSTEAD}"
            )
        return int(self._numbers[index]), int(self._starts[index])


def stored(
    path: str | os.PathLike,
    asked: Asked,
    settings: Mapping[str, object],
    examples: Iterable[TokenPair],
    packed: Callable[[Sequence[TokenPair]], Sequence[Pairs]],
    say: Callable[[str], None] = lambda _: None,
) -> StoredLaws:
    """Opens a folder, adds the tables that it lacks, and returns the stored distributions."""
    ids: int = asked.model.vocab_size  # type: ignore[attr-defined]
    if asked.top >= ids:
        raise TrainingError(f"Align.top is {asked.top} and the target has {ids} ids; give fewer")
    folder = Path(os.path.abspath(Path(path).expanduser()))
    text = json.dumps({**settings, "top": asked.top, "temperature": asked.temperature}, indent=2)
    with contextlib.ExitStack() as held:

        def begin() -> dict[str, int]:
            """Returns the number of texts of each table."""
            held.enter_context(records.locked(folder, folder / LOCK, INSTEAD, "*"))
            file = folder / "settings.json"
            records.claim(folder, file, f"{text}\n", begun=None, instead=INSTEAD)
            names = (path for path in folder.iterdir() if path.name.isdigit())
            return {path.name: tables.shapes(path, KIND)["lengths"].shape[0] for path in names}

        sizes = hosts.from_first(begin)
        program = asked.program()
        examples = (example for example in examples if len(example.targets))
        for number in itertools.count():
            table = folder / f"{number:05}"
            if table.name in sizes:  # a finished table, whose texts are skipped
                collections.deque(itertools.islice(examples, sizes[table.name]), maxlen=0)
                continue
            texts = list(itertools.islice(examples, TEXTS))
            if not texts:
                break
            say(f"stores the target's distributions for {len(texts):,} texts in {table}")
            _add(table, asked, program, packed(texts))
        hosts.exchanged(None)  # the first host has written all tables
    return StoredLaws((folder / f"{k:05}" for k in range(number)), asked.model.pad_id)


def _add(
    table: Path, asked: Asked, program: Callable[[PyTree, Pairs], TopLaws], batches: Sequence[Pairs]
) -> None:
    """Computes a table with all processes, of which the first one writes it."""
    laws = (program(asked.params, asked.layout.rows(pairs)) for pairs in batches)
    if hosts.is_first():
        tables.save(table, KIND.kind, _made(batches, laws, asked.model.pad_id))
    else:
        collections.deque(laws, maxlen=0)


def _made(
    batches: Sequence[Pairs], outputs: Iterable[TopLaws], pad_id: int
) -> dict[str, np.ndarray]:
    """Returns the arrays of a table: one row per token, all texts one after the other."""
    texts, lengths, ids, log_probs = [], [], [], []
    for pairs, laws in zip(batches, outputs, strict=True):
        top = jax.device_get(laws)
        for row, (text, length) in enumerate(_texts(pairs, pad_id)):
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


def _keys(texts: np.ndarray) -> np.ndarray:
    """Returns [n], the digests [n, `DIGEST`] uint8 as byte strings, which can be sorted."""
    return np.ascontiguousarray(texts).view(f"S{DIGEST}")[:, 0]


def _texts(pairs: Pairs, pad_id: int) -> Iterator[tuple[bytes, int]]:
    """Yields each row's digest and its number of target tokens, 0 for a row of padding."""
    inputs = [np.asarray(leaf) for leaf in jax.tree.leaves(pairs.inputs)]
    for row, targets in enumerate(np.asarray(pairs.targets)):
        digest = hashlib.blake2b(digest_size=DIGEST)
        for leaf in inputs:
            row_of_leaf = leaf[row]
            if leaf.dtype == np.int32:
                row_of_leaf = row_of_leaf[row_of_leaf != pad_id]
            digest.update(row_of_leaf.tobytes())
        digest.update(b"\0" + targets[targets != pad_id].tobytes())
        yield digest.digest(), int((targets != pad_id).sum())
