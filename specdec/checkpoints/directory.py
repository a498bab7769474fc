"""Finds a checkpoint in a directory, and reads its format, config and vocabulary, but no array."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from specdec import tasks
from specdec.checkpoints import hub, huggingface, tokenizer_files, tree
from specdec.checkpoints.cloud_storage import SCHEME, BucketPath, Location
from specdec.checkpoints.errors import CheckpointError, about
from specdec.checkpoints.huggingface_files import CONFIG, read_json, write_json
from specdec.common.file_names import own_file, refuse_pointer
from specdec.common.records import write
from specdec.common.values import did_you_mean
from specdec.models import families
from specdec.models.contract.family import Config
from specdec.models.contract.model import Model
from specdec.models.llava import LlavaConfig
from specdec.models.whisper import WhisperConfig
from specdec.tasks import pieces
from specdec.tasks.added_tokens import AddedToken, Tokenization, agree

_NESTED = "image_processor"  # in `processor_config.json` of transformers 5
_ADAPTER = "adapter_config.json"
_ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
VERSION = 1  # of the `config.json` that our own format and T5X's checkpoints of ours have
_ANY_SHAPES = ((2**20,),) * 1000  # as large as any model's, for arrays that are not opened

# The files by which a format is recognised; for Hugging Face's see `huggingface.is_checkpoint`. Our
# own format needs its config too, which is written last.
MARKS = (
    ("t5x", ("checkpoint",)),
    ("t5x_orbax", ("state/manifest.ocdbt",)),
    ("t5x_orbax", ("state/_METADATA",)),  # without OCDBT
    ("t5x_orbax", ("state/checkpoint",)),  # the same, before 2023
    ("orbax", ("params/manifest.ocdbt", CONFIG)),
)


class Found(NamedTuple):
    """The format and the directory of a checkpoint."""

    format: str  # a name in MARKS, or "huggingface"
    directory: Location


class Vocabulary(NamedTuple):
    """The vocabulary of a checkpoint, which gives its model's ids their meaning.

    Attributes:
      path: a SentencePiece model, a `tokenizer.json`, a `vocab.json`, or the bins of a series
        model; None for ByT5's bytes.
      extra_ids: the number of sentinels.
      tokenization: the settings in the tokenizer's other files; None without such files.
      files: the paths of these other files, which are copied together with the vocabulary.
      media: how the model's texts name pictures or sound; None if they do not.
    """

    path: Location | None
    extra_ids: int = 0
    tokenization: Tokenization | None = None
    files: tuple[Location, ...] = ()
    media: tasks.WithPictures | tasks.WithSound | None = None

    @property
    def added(self) -> list[AddedToken]:
        """The added tokens that are not sentinels."""
        tokens = self.tokenization.added if self.tokenization else ()
        return [token for token in tokens if not pieces.SENTINEL.fullmatch(token.content)]

    @property
    def digest(self) -> str | None:
        """The SHA-256 of the vocabulary's file, in hexadecimal; None for bytes."""
        return None if self.path is None else sha256(self.path)

    def same_ids(self, other: Vocabulary) -> bool:
        """Returns whether each id, sentinels apart, stands for the same piece in both vocabularies.

        A SentencePiece model and the tokenizer.json made from it have the same ids. Either
        vocabulary may lack tokens that were added to the other.
        """
        if self.digest == other.digest or None in (self.path, other.path):
            return self.digest == other.digest and agree(self.added, other.added)
        paths = cast(Location, self.path), cast(Location, other.path)
        others = ".json", tokenizer_files.LLAMA
        mixed = any(path.name.endswith(others) for path in paths)
        return mixed and self._pieces() == other._pieces()

    def _pieces(self) -> list[str]:
        """Returns the piece of each id, without sentinels."""
        path = cast(Location, self.path)
        if tasks.is_series(path) or tokenizer_files.is_framed(path):
            with about(path):
                return tasks.recorded_vocabulary(*self).plain().pieces()
        if not path.name.endswith(".json"):
            names = pieces.of_sentencepiece(tokenizer_files.sentencepiece(path))
            return names + [token.content for token in self.added]
        with about(path):
            return pieces.of_tokenizer(path.read_bytes().decode())

    def __str__(self) -> str:
        added = f" and {len(self.added)} added tokens" if self.added else ""
        if self.path is None:
            return f"UTF-8 bytes{added}"
        return f"{self.path.name}, sha256 {sha256(self.path)[:8]}{added}"


def local(path: str | os.PathLike) -> Path:
    """Returns a local path as an absolute one; raises CheckpointError for URLs."""
    if "://" in str(path):
        raise CheckpointError(
            f"{str(path)!r} is a URL, and only local directories can be written; copy it there "
            "afterwards"
        )
    return Path(os.path.abspath(Path(path).expanduser()))  # TensorStore refuses ".."


def location(path: str | os.PathLike) -> Location:
    """Returns a local or gs:// path that can be read; raises CheckpointError for other URLs."""
    if not path or not isinstance(path, str | os.PathLike):
        raise CheckpointError(f"checkpoint is {path!r}; give the path of one")
    url = os.fspath(path)
    if url.startswith(SCHEME):
        return BucketPath.parse(url)
    if "://" in url:
        raise CheckpointError(
            f"checkpoint {url!r} is a URL, and only local directories and {SCHEME} can be read; "
            "copy it to a disk first"
        )
    return local(path)


def locate(path: str | os.PathLike) -> Found:
    """Returns the format and the directory of the checkpoint at a path.

    Args:
      path: a checkpoint, a directory of `checkpoint_<step>` directories, of which the latest is
        taken, or a repository of the Hugging Face Hub, see `hub.resolved`.

    Raises:
      CheckpointError: there is no checkpoint, or one that cannot be read.
    """
    named = directory = location(hub.resolved(path))
    format = _format(directory)
    if format is None and (latest := _latest(named)) is not None:
        directory, format = latest, _format(latest)
    if format is None:
        raise CheckpointError(_why_none(named, directory))
    if format == "huggingface" and isinstance(directory, BucketPath):
        raise CheckpointError(
            f"checkpoint {directory} is Hugging Face's, which is read from disks only; copy it to "
            "one first"
        )
    if any((directory / name).is_file() for name in _ADAPTER_FILES):
        raise CheckpointError(
            f"{directory} has an adapter of PEFT next to its model, and adapters are not read; "
            "merge it, model.merge_and_unload().save_pretrained(DIR), or remove its files if that "
            "is done"
        )
    return Found(format, directory)


def disk(directory: Location) -> Path:
    """Returns the directory of a Hugging Face checkpoint as a local path, which it always is."""
    assert isinstance(directory, Path)
    return directory


def model_from(path: str | os.PathLike, dtype: str | None = None) -> Model:
    """Returns the model of a checkpoint, of any family.

    Args:
      path: a checkpoint: a directory, a gs:// address, or OWNER/NAME on the Hugging Face Hub.
      dtype: replaces the dtype of the model's config; None keeps it.

    Raises:
      CheckpointError: there is no config, or it does not describe a model.
    """
    return families.model_of(config_from(path, dtype))


def config_from(path: str | os.PathLike, dtype: str | None = None) -> Config:
    """Returns the config that a checkpoint's `config.json` records.

    Our own checkpoints and Hugging Face's always have one. For a checkpoint of T5X, a file with a
    config's fields may be in its directory or in the parent.

    Args:
      path: a checkpoint: a directory, a gs:// address, or OWNER/NAME on the Hugging Face Hub.
      dtype: replaces the config's dtype; None keeps it.

    Raises:
      CheckpointError: there is no config, or it does not describe a model.
    """
    format, directory = locate(path)
    if format == "huggingface":
        config = huggingface.config(disk(directory))
    else:
        files = (directory / CONFIG, directory.parent / CONFIG)
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            raise CheckpointError(
                f"checkpoint {directory} does not record its model; give its config, or put the "
                f"config's fields into {files[0]}"
            )
        config = read_config(file)
        shapes = _ANY_SHAPES
        if format == "orbax":
            from specdec.checkpoints import arrays  # and TensorStore

            shapes = _ANY_SHAPES[:1] * len(arrays.ocdbt(directory / "params"))
        tree.check_sizes(config, shapes, f"checkpoint {directory}")
    return config if dtype is None else dataclasses.replace(config, dtype=dtype)


def read_config(file: Location) -> Config:
    """Returns the config that a JSON file describes.

    Args:
      file: a JSON object with the config's fields, and its "family" unless that is T5.

    Raises:
      CheckpointError: the file does not exist, or does not describe a model.
    """
    if not file.is_file():
        raise CheckpointError(f"config {file} is not a file; give JSON with a config's fields")
    record = _record(file)
    with about(file):
        family = families.named(record.pop("family", families.DEFAULT))
    try:
        return family.config_of(record.get("model", record))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{file} does not describe a model ({error}); its fields must be those of "
            f"{family.config.__name__}, or give the config yourself"
        ) from error


def vocabulary_from(path: str | os.PathLike, needed: bool = True) -> Vocabulary | None:
    """Returns the vocabulary saved with a checkpoint, or None if none is recorded.

    Args:
      path: a checkpoint: a directory, a gs:// address, or OWNER/NAME on the Hugging Face Hub.
      needed: whether a vocabulary of an unknown kind is an error; otherwise the result is None.

    Raises:
      CheckpointError: the vocabulary's file is missing or is not the one that was saved, or it is
        needed and cannot be read.
    """
    vocabulary = _vocabulary(path, needed)
    return vocabulary and vocabulary._replace(media=_media(path))


def _media(path: str | os.PathLike) -> tasks.WithPictures | tasks.WithSound | None:
    """Returns how the texts of a checkpoint's model name pictures or sound; None if neither."""
    try:
        config = config_from(path)
    except CheckpointError:  # reported when the model is opened
        return None
    if isinstance(config, WhisperConfig):
        return tasks.WithSound()
    if not isinstance(config, LlavaConfig):
        return None
    size = config.vision.image_size
    settings = picture_settings_from(path)
    if settings is None:
        settings = tasks.PictureSettings(size=(size,), crop=(size, size))
    return tasks.WithPictures(config.image_id, config.vision.num_patches, settings)


def picture_settings_from(path: str | os.PathLike) -> tasks.PictureSettings | None:
    """Returns the steps from a picture to a model's pixels, or None if they are not recorded.

    Every format keeps the file with these settings if the checkpoint has a vocabulary.

    Args:
      path: a checkpoint: a directory, a gs:// address, or OWNER/NAME on the Hugging Face Hub.

    Raises:
      CheckpointError: there is no checkpoint, or a setting is not supported.
    """
    folder = locate(path).directory
    for name in tokenizer_files.PICTURES:
        file = folder / name
        record = read_json(file) if file.is_file() else {}
        record = record.get(_NESTED, record if name == tokenizer_files.PICTURES[0] else {})
        if record:
            with about(file):
                return tasks.PictureSettings.from_record(record)
    return None


def _vocabulary(path: str | os.PathLike, needed: bool) -> Vocabulary | None:
    """Returns the result of `vocabulary_from` without `media`."""
    format, directory = locate(path)
    if format == "huggingface":
        try:
            fields = huggingface.vocabulary(disk(directory))
            return fields and _with_files(Vocabulary(*fields), directory, always=True)
        except CheckpointError:
            if needed:
                raise
            return None
    file = directory / CONFIG
    recorded = _record(file).get("vocabulary") if file.is_file() else None
    if recorded is None:
        return None
    if not isinstance(recorded, dict) or "file" not in recorded:
        raise CheckpointError(f"{file} has a vocabulary without a file, {recorded!r}; restore it")
    extra_ids = recorded.get("extra_ids", 0)
    if recorded["file"] is None:
        return _with_files(Vocabulary(None, extra_ids), directory)
    file = directory / own_file(file, recorded["file"], CheckpointError)
    if not file.is_file() or sha256(file) != recorded["sha256"]:
        raise CheckpointError(
            f"checkpoint {directory} was saved with the vocabulary {recorded['file']} "
            f"(sha256 {recorded['sha256'][:8]}), which is missing or changed; put it back"
        )
    return _with_files(Vocabulary(file, extra_ids), directory)


def _with_files(vocabulary: Vocabulary, directory: Location, always: bool = False) -> Vocabulary:
    """Returns the vocabulary with the settings of the tokenizer's other files in the directory."""
    if tasks.is_series(vocabulary.path):
        return vocabulary
    files = tokenizer_files.present(directory, vocabulary.path)
    if not files and not always and not tokenizer_files.is_framed(vocabulary.path):
        return vocabulary
    tokenization = tokenizer_files.read(directory, vocabulary.path, vocabulary.extra_ids)
    return vocabulary._replace(tokenization=tokenization, files=files)


def check_pair(target_path: str | os.PathLike, draft_path: str | os.PathLike) -> None:
    """Raises CheckpointError if both checkpoints record a vocabulary and these two differ.

    The models' output layers may differ in width: T5's have unused ids after the vocabulary's.

    Args:
      target_path: the target's checkpoint.
      draft_path: the draft's checkpoint.
    """
    targets, drafts = (vocabulary_from(path, needed=False) for path in (target_path, draft_path))
    if targets and drafts and not targets.same_ids(drafts):
        raise CheckpointError(
            f"target {locate(target_path).directory} and draft {locate(draft_path).directory} have "
            f"different vocabularies ({targets}, and {drafts}); a draft is read as "
            "the target's ids: use models of the same vocabulary"
        )


def checksums_from(path: str | os.PathLike) -> dict[str, str]:
    """Returns the recorded checksums by the arrays' names, {} if none are recorded."""
    format, directory = locate(path)
    file = directory / CONFIG
    return _record(file).get("crc32", {}) if format == "orbax" else {}


def describe(
    folder: Path,
    config: Config,
    vocabulary: Vocabulary | None,
    checksums: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Writes a `config.json` with model, vocabulary and checksums, and copies the vocabulary."""
    contents: dict[str, Any] = {
        "format": "specdec",
        "version": VERSION,
        "family": families.family_of(config).name,
        "model": dataclasses.asdict(config),
    }
    if vocabulary is not None:
        contents["vocabulary"] = {"file": None, "extra_ids": vocabulary.extra_ids}
        if vocabulary.path is not None:
            if tasks.is_series(vocabulary.path):
                copy = folder / tasks.SERIES_FILE
                write_json(copy, tasks.series_record(vocabulary.path.read_bytes()))
            else:
                copy = folder / vocabulary.path.name
                copy.write_bytes(vocabulary.path.read_bytes())
            contents["vocabulary"] |= {"file": copy.name, "sha256": sha256(copy)}
    if checksums:
        contents["crc32"] = dict(checksums)
    write_json(folder / CONFIG, contents)


def amend(folder: Path, **entries: object) -> None:
    """Adds entries to the `config.json` of a checkpoint, all of them or none."""
    record = _record(folder / CONFIG) | entries
    write(folder / CONFIG, json.dumps(record, indent=2) + "\n")


def sha256(file: Location) -> str:
    """Returns the hexadecimal digest of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _refuse_pointers(directory: Path) -> None:
    """Raises CheckpointError if a file is only a pointer that Git LFS has not replaced yet."""
    try:
        names = os.listdir(directory)
    except OSError:  # there is no such directory
        return
    read = [name for name in names if name.endswith((".json", ".model"))]
    read += [name for _, files in MARKS for name in files]
    for name in huggingface.wanted(names) or read:
        if (file := directory / name).is_file():
            refuse_pointer(file, CheckpointError)


def _format(directory: Location) -> str | None:
    if isinstance(directory, Path):
        _refuse_pointers(directory)
    for name, files in MARKS:
        if all((directory / file).is_file() for file in files):
            return name
    # A path in a bucket has the methods that this calls.
    return "huggingface" if huggingface.is_checkpoint(cast(Path, directory)) else None


def _latest(parent: Location) -> Location | None:
    try:
        entries = list(parent.iterdir())
    except OSError:
        return None
    # A full match: what is still being written has a longer name.
    steps = {
        int(match[1]): entry
        for entry in entries
        if (match := re.fullmatch(r"checkpoint_(\d+)", entry.name))
    }
    return steps[max(steps)] if steps else None


def _why_none(path: Location, directory: Location) -> str:
    """Returns the error message for a `path` without a checkpoint; `directory` was searched."""
    if path.is_file():
        return f"checkpoint {path} is a file; give its directory, {path.parent}"
    if isinstance(path, Path) and not path.exists():
        nearest = next(parent for parent in path.parents if parent.exists())
        near = did_you_mean(path.name, _names(nearest)) if nearest == path.parent else ""
        return f"checkpoint {path} does not exist; {nearest} holds {_contents(nearest)}{near}"
    if (directory / _ADAPTER).is_file():
        return (
            f"no checkpoint in {directory}: {_ADAPTER} says that it has an adapter of PEFT alone; "
            "merge it into its model, model.merge_and_unload().save_pretrained(DIR)"
        )
    # For each format, the first of its marks.
    marks = {name: " and ".join(files) for name, files in reversed(MARKS)}
    marks |= {"huggingface": f"{CONFIG} and model.safetensors"}
    wanted = "; ".join(f"{name}: {files}" for name, files in marks.items())
    return (
        f"no checkpoint in {directory}: looked for checkpoint_<step> directories and for the files "
        f"of each format ({wanted}), found {_contents(directory)}; give the directory of one "
        "checkpoint or its parent"
    )


def _record(file: Location) -> dict[str, Any]:
    record = read_json(file)
    if record.get("version", VERSION) != VERSION:
        raise CheckpointError(
            f"{file} has format version {record['version']} and this specdec reads version "
            f"{VERSION}; update specdec"
        )
    return record


def _names(directory: Location) -> list[str]:
    """Returns the names in a directory, without hidden files such as locks."""
    return sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))


def _contents(directory: Location, limit: int = 5) -> str:
    names = _names(directory)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "nothing") + more
