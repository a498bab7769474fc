"""Checkpoints: the parameters of any family of models, read from and written to several formats.

Read and written: T5X's native format (msgpack and zarr), our own (Orbax's arrays of the parameters,
a `config.json`, and the vocabulary if it was given), and Hugging Face's directories. Read only:
T5X's format with Orbax. The contents of a directory determine its format. A model's family defines
its config and its parameters' names and shapes (`models.families`). TensorStore, Orbax and PyTorch
are imported on use; `contents`, which examines a checkpoint, imports TensorStore.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from specdec.checkpoints import directory, huggingface, text_model, tokenizer_files, tree
from specdec.checkpoints.directory import (
    Vocabulary,
    check_pair,
    config_from,
    locate,
    model_from,
    picture_settings_from,
    read_config,
    vocabulary_from,
)
from specdec.checkpoints.errors import CheckpointError
from specdec.checkpoints.fingerprint import fingerprint
from specdec.checkpoints.text_model import TextModel, text_model_from
from specdec.checkpoints.transcription import Transcribed
from specdec.checkpoints.tree import parameter_count
from specdec.common import progress, records
from specdec.common.json_values import JsonObject
from specdec.models.contract.family import Config
from specdec.types import PyTree

__all__ = [
    "FORMATS",
    "CheckpointError",
    "TextModel",
    "Transcribed",
    "Vocabulary",
    "check_output",
    "check_pair",
    "config_from",
    "fingerprint",
    "load",
    "locate",
    "model_from",
    "parameter_count",
    "picture_settings_from",
    "read_config",
    "save",
    "text_model_from",
    "vocabulary_from",
]

FORMATS = ("orbax", "t5x", "huggingface")  # the formats that `save` writes


def load(
    path: str | os.PathLike,
    *,
    config: Config | None = None,
    dtype: DTypeLike | None = None,
    shardings: PyTree = None,
    checksums: bool = True,
    swapped: Collection[str] = (),
) -> PyTree:
    """Reads the parameters of a model. Optimizer state is skipped without being read.

    Args:
      path: the directory of a checkpoint, or the parent of `checkpoint_<step>` directories, of
        which the latest is read. It is local or, except for Hugging Face's format, a gs:// address.
        If no such path exists, OWNER/NAME or OWNER/NAME@REVISION is a repository of the HF Hub.
      config: the config of the model, of any family. The arrays' names and shapes are compared with
        the model's before any data is read. None uses the config that our own and Hugging Face's
        formats record; T5X's formats record none, and are then not compared.
      dtype: the floating type to cast to, array by array; None keeps the stored one.
      shardings: one `jax.sharding.Sharding` for all arrays, or a tree of them (a prefix of the
        parameters' tree). None puts whole arrays on the default device.
      checksums: whether each array that is read whole is compared with the checksum that our own
        format records. False saves about 1 % of the time (docs/log/decisions-log.md).
      swapped: names of matrices to transpose, such as 'decoder/logits_dense/kernel'. This needs
        `shardings` to be None.

    Returns:
      A nested dict of arrays, named as by the model's `init`. Layers that a scan stacked into one
        array are separate.

    Raises:
      CheckpointError: there is no checkpoint, it is damaged, or it does not fit the model.

    Example:

    >>> from specdec import checkpoints
    >>> from specdec.common import demo
    >>> params = checkpoints.load(demo.path("draft"))
    >>> sorted(params), params["token_embedder"]["embedding"].shape
    (['decoder', 'encoder', 'token_embedder'], (2048, 128))
    """
    from specdec.checkpoints import arrays, contents

    dtype = None if dtype is None else jnp.dtype(dtype)
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        raise CheckpointError(f"dtype is {dtype.name}; give a floating one, float32 or bfloat16")
    checkpoint = directory.locate(path)
    folder = checkpoint.directory
    recorded = directory.checksums_from(folder) if checksums else {}
    stored = contents.opened(checkpoint, config)
    return tree.unflatten(arrays.read_all(stored, folder, dtype, shardings, recorded, swapped))


def save(
    path: str | os.PathLike,
    params: PyTree,
    *,
    config: Config,
    format: str = "orbax",
    vocabulary: str | os.PathLike | Vocabulary | None = None,
    generation: JsonObject = MappingProxyType({}),
) -> None:
    """Writes a checkpoint that `load`, `config_from` and `vocabulary_from` read back.

    The directory appears under its name only when it is complete, so a save that is killed never
    looks like a checkpoint.

    Args:
      path: the directory to make; it must not exist. T5X finds only names `checkpoint_<step>`.
      params: a nested dict of arrays that fits `config`; each keeps its dtype.
      config: the config of the parameters' model, of any family.
      format: 'orbax', our own; 't5x', T5X's native one; or 'huggingface'.
      vocabulary: the model's vocabulary, as a SentencePiece `.model` file or as the result of
        `vocabulary_from`. A copy is kept with the parameters.
      generation: generation settings, by transformers' names, for `generation_config.json`.

    Raises:
      CheckpointError: the format is unknown, the path exists, the vocabulary's file does not
        exist, or the parameters do not fit `config`.
    """
    if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
        vocabulary = Vocabulary(directory.location(vocabulary))
    path = check_output(path, format, vocabulary)
    tree.check(tree.shapes(params), config, "the tree of parameters")
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    with records.complete_folder(path) as folder:
        with progress.written(f"writing {path.name}", folder, size):
            _write(format, folder, params, config, vocabulary)
            text_model.keep(folder, vocabulary, generation)


def check_output(path: str | os.PathLike, format: str, vocabulary: Vocabulary | None) -> Path:
    """Returns the absolute path of a checkpoint that can be written.

    Args:
      path: the directory that `save` would make.
      format: one of `FORMATS`.
      vocabulary: the vocabulary that `save` would keep, None for none.

    Raises:
      CheckpointError: an argument is one that `save` rejects.
    """
    path = directory.local(path)
    if format not in FORMATS:
        raise CheckpointError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    nearest = next(parent for parent in path.parents if parent.exists())
    if not nearest.is_dir():
        raise CheckpointError(f"{path} cannot be made, {nearest} is a file; give a new directory")
    if path.exists():
        raise CheckpointError(f"{path} exists; give a new directory, or remove this one first")
    if vocabulary is not None and vocabulary.path is not None and not vocabulary.path.is_file():
        raise CheckpointError(f"vocabulary {vocabulary.path} is not a file; give a .model file")
    return path


def _write(
    format: str, folder: Path, params: PyTree, config: Config, vocabulary: Vocabulary | None
) -> None:
    from specdec.checkpoints import orbax, t5x_format

    if format == "huggingface":
        huggingface.write(folder, params, config, vocabulary and vocabulary.path)
        if vocabulary is not None and vocabulary.path is None:
            tokenizer_files.write_bytes_tokenizer(folder, vocabulary.extra_ids)
    elif format == "t5x":
        t5x_format.write(folder, params, config, vocabulary)
    else:
        orbax.write(folder, params, config, vocabulary)
