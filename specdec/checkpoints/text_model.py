"""The text side of a checkpoint: its vocabulary, start and stop ids, and generation settings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from specdec import tasks
from specdec.checkpoints import directory, generation
from specdec.checkpoints.cloud_storage import Location
from specdec.checkpoints.directory import Vocabulary
from specdec.checkpoints.errors import CheckpointError, about
from specdec.checkpoints.generation import Setting
from specdec.checkpoints.huggingface_files import CONFIG, read_json, write_json
from specdec.common.json_values import JsonObject

_T5 = {generation.START: 0, generation.ENDS: 1, generation.PADDING: 0}


class Kept(TypedDict, total=False):
    """The arguments of `save` that preserve the text side."""

    vocabulary: Vocabulary | None
    generation: JsonObject


@dataclasses.dataclass(frozen=True)
class TextModel:
    """The text side of one checkpoint, read from all files that describe it.

    Attributes:
      directory: the directory of the files.
      vocabulary: the vocabulary; None if none is recorded.
      settings: the generation settings by transformers' names, each with its file; null ones are
        left out.
      prefixes: the prefixes of inputs by task, as in `task_specific_params` of config.json.
      is_prompts: whether inputs are prompts that a decoder-only model continues.
    """

    directory: Location
    vocabulary: Vocabulary | None
    settings: Mapping[str, Setting]
    prefixes: Mapping[str, str]
    is_prompts: bool = False

    @property
    def start_id(self) -> int | None:
        """The id that outputs start from; None if the files do not say."""
        return generation.start_of(self.settings)

    @property
    def pad_id(self) -> int | None:
        """The id that texts are padded with; None if the files do not say."""
        setting = self.settings.get(generation.PADDING)
        return None if setting is None else setting.value

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end an output; () if the files do not say."""
        setting = self.settings.get(generation.ENDS)
        if setting is None:
            return ()
        return tuple(setting.value) if isinstance(setting.value, list) else (setting.value,)

    @property
    def in_effect(self) -> dict[str, Setting]:
        """The settings, except ids, that change generated tokens."""
        return {
            name: setting
            for name, setting in self.settings.items()
            if name not in generation.IDS and generation.changes(name, setting.value)
        }

    def kept(self) -> Kept:
        """Returns the arguments with which `save` keeps the vocabulary and the generation settings.

        Settings without a file are {} if they are the defaults: T5's, or those in a decoder-only
        model's config. The settings of a series model are in its vocabulary.
        """
        file, series = self.directory / generation.FILE, generation.of_series(self.directory)
        ids = (self.start_id or self.pad_id or 0, self.stop_ids or (1,))
        is_usual = self.is_prompts or ids == (0, (1,))
        if file.is_file():
            settings = read_json(file)
        elif is_usual and not self.in_effect.keys() - series.keys():
            settings = {}
        else:
            usual = {} if self.is_prompts else _T5
            stated = {name: x.value for name, x in self.settings.items() if name not in series}
            settings = usual | stated
        return {"vocabulary": self.vocabulary, "generation": settings}

    def lines(self, taken: Mapping[str, Setting] | None = None) -> Iterator[tuple[str, str]]:
        """Yields pairs of texts to show: a subject, and facts about it with their files.

        Args:
          taken: the settings that have an effect on a run; None for all that can have one.
        """
        yield "vocabulary", str(self.vocabulary or "none is recorded")
        if self.vocabulary is not None:
            file = self.vocabulary.path.name if self.vocabulary.path else "ByT5's"
            with about(self.directory):
                loaded = tasks.for_texts(tasks.recorded_vocabulary(*self.vocabulary))
            pad, end, unknown = tasks.special_ids(loaded)
            pad = self.pad_id if pad is None else pad
            yield "ids", f"padding {pad}, end {end}, unknown {unknown} ({file})"
            if not tasks.inputs_end(loaded):
                what, then = ("prompts", "go on") if self.is_prompts else ("inputs", "have no EOS")
                yield what, f"begin with {tasks.input_ids(loaded, '')}, and {then}"
        if self.vocabulary is not None and (added := self.vocabulary.added):
            shown = ", ".join(f"{token.content!r} {token.id}" for token in added[:5])
            yield "added", shown + (f", and {len(added) - 5} more" if len(added) > 5 else "")
        names = {"start": generation.START, "ends": generation.ENDS}
        if self.is_prompts:
            del names["start"]  # it is the prompt's last token
        elif self.start_id is not None and generation.START not in self.settings:
            names["start"] = generation.BEGIN
        usual = "the vocabulary's" if self.is_prompts else "T5's"
        stated = [
            f"{what} {self.settings[name]}" if name in self.settings else f"{what} {usual}"
            for what, name in names.items()
        ]
        in_effect = self.in_effect
        used = in_effect if taken is None else taken
        stated += [f"{name} {setting}" for name, setting in in_effect.items() if name in used]
        yield "generation", ", ".join(stated)
        if idle := [f"{name} {setting}" for name, setting in in_effect.items() if name not in used]:
            yield "without effect", ", ".join(idle)

    def check_ids(self, vocab_size: int) -> None:
        """Raises CheckpointError if an added token or a setting has an id from `vocab_size` on."""
        added = self.vocabulary.added if self.vocabulary else []
        ids = {f"the added token {token.content!r}": token.id for token in added}
        for name in generation.IDS:
            if name in self.settings:
                value, file = self.settings[name]
                for id in value if isinstance(value, list) else [value]:
                    ids[f"{name} in {file}"] = id
        for name, id in ids.items():
            if id >= vocab_size:
                raise CheckpointError(
                    f"{self.directory}: {name} is {id}, and the model has {vocab_size} ids; "
                    "correct it, or give the model that it is for"
                )


def text_model_from(path: str | os.PathLike, needed: bool = True) -> TextModel:
    """Returns the text side of a checkpoint.

    Args:
      path: a checkpoint: a directory, a gs:// address, or OWNER/NAME on the Hugging Face Hub.
      needed: whether a vocabulary that cannot be read is an error. False leaves it out.

    Raises:
      CheckpointError: there is no checkpoint, or its files are damaged or contradict each other.
    """
    folder = directory.locate(path).directory
    vocabulary = directory.vocabulary_from(folder, needed)
    file = folder / CONFIG
    record = read_json(file) if file.is_file() else {}
    settings, is_prompts = generation.read(folder), generation.continues_prompts(record)
    return TextModel(folder, vocabulary, settings, _prefixes(record), is_prompts)


def _prefixes(record: JsonObject) -> dict[str, str]:
    """Returns the prefixes of inputs in a `config.json` by task, without empty ones."""
    tasks = record.get("task_specific_params")
    stated = {
        name: settings.get("prefix")
        for name, settings in (tasks or {}).items()
        if isinstance(settings, dict)
    }
    return {name: text for name, text in stated.items() if isinstance(text, str) and text}


def keep(folder: Path, vocabulary: Vocabulary | None, settings: JsonObject) -> None:
    """Writes the tokenizer's other files and the generation settings into a new checkpoint.

    Every format stores them under transformers' names, and `text_model_from` reads them again.
    """
    for file in () if vocabulary is None else vocabulary.files:
        (folder / file.name).write_bytes(file.read_bytes())
    if settings:
        write_json(folder / generation.FILE, settings)
