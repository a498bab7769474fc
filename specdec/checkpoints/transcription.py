"""The settings of a Whisper's checkpoint for the transcription of sound."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from specdec.checkpoints import generation
from specdec.checkpoints.cloud_storage import Location
from specdec.checkpoints.errors import CheckpointError
from specdec.checkpoints.generation import Setting
from specdec.common.json_values import JsonObject
from specdec.common.values import Checked, is_integer
from specdec.sampling import Opening, SuppressTokens, SuppressTokensAtBegin, Timestamps
from specdec.types import LogitsProcessor

_NO_TIMESTAMPS = "no_timestamps_token_id"
_CODES = {name: code for code, names in generation.TABLE["languages"].items() for name in names}


@dataclasses.dataclass(frozen=True)
class Transcribed(Checked):
    """The choice of a transcript's form, which a Whisper's checkpoint settings complete.

    Args:
      language: a code or an English name; None for that of the settings, or else to detect it.
      task: 'transcribe' or 'translate'; None for that of the settings.
      timestamps: whether the texts have timestamps; None if the settings decide it.
    """

    language: str | None = None
    task: str | None = None
    timestamps: bool | None = None

    def resolved(self, settings: Mapping[str, Setting]) -> Transcribed:
        """Returns the choice in which a checkpoint's settings replace timestamps of None."""
        if self.timestamps is not None:
            return self
        stated = settings.get("return_timestamps")
        return dataclasses.replace(self, timestamps=stated is not None and bool(stated.value))

    def processors(self, directory: Location) -> tuple[LogitsProcessor, ...]:
        """Returns the logits processors of this choice, of which `Opening` forces the first tokens.

        Raises:
          CheckpointError: the checkpoint lacks a setting, the language or the task.
        """
        opening, processors = _described(directory, self.language, self.task, self.timestamps)
        # `Opening` comes last, because it has ids that others suppress.
        return *processors, *([Opening(opening)] if opening else [])


class Transcription(NamedTuple):
    """The arguments of a decoding that follows a checkpoint's settings."""

    prefix: tuple[int, ...]  # of every output, for `decode(prefix=)`; () to detect the language
    processors: tuple[LogitsProcessor, ...]  # for `sampling.with_processors`


def transcription(
    directory: Location,
    language: str | None = None,
    task: str | None = None,
    timestamps: bool | None = None,
) -> Transcription:
    """Returns the prefix and the processors with which transformers' `generate` transcribes."""
    opening, processors = _described(directory, language, task, timestamps)
    if any(len(choice) > 1 for choice in opening):
        return Transcription((), (*processors, Opening(opening)))
    return Transcription(tuple(id for (id,) in opening), processors)


def _described(
    directory: Location, language: str | None, task: str | None, timestamps: bool | None
) -> tuple[tuple[tuple[int, ...], ...], tuple[LogitsProcessor, ...]]:
    """Returns the allowed ids of each token that `Opening` forces, and the other processors."""
    stated = generation.read(directory)
    settings = {name: setting.value for name, setting in stated.items()}
    timestamps = Transcribed(timestamps=timestamps).resolved(stated).timestamps
    opening: list[tuple[int, ...]] = []
    if settings.get("is_multilingual", True):
        opening = _language_and_task(stated, language, task, directory)
    elif language is not None or task is not None:
        raise CheckpointError(
            f"{directory} transcribes English alone (is_multilingual); leave out language and task"
        )
    processors: list[LogitsProcessor] = []
    if not timestamps:
        opening.append((_needed(settings, _NO_TIMESTAMPS, directory),))
    if ids := settings.get("begin_suppress_tokens"):
        processors.append(SuppressTokensAtBegin(tuple(ids), len(opening)))
    if ids := settings.get("suppress_tokens"):
        processors.append(SuppressTokens(tuple(ids)))
    if timestamps:
        none, ends = (_needed(settings, x, directory) for x in (_NO_TIMESTAMPS, generation.ENDS))
        end = ends[0] if isinstance(ends, list) else ends
        latest = settings.get("max_initial_timestamp_index")
        processors.append(Timestamps(none, end, len(opening), latest))
    return tuple(opening), tuple(processors)


def _language_and_task(
    stated: Mapping[str, Setting], language: str | None, task: str | None, directory: Location
) -> list[tuple[int, ...]]:
    """Returns the allowed ids of the language and the task, for a model of many languages."""
    settings = {name: setting.value for name, setting in stated.items()}
    chosen = {"language": ("language is", language), "task": ("task is", task)}
    for name, (_, value) in chosen.items():
        if value is None and name in stated:
            setting = stated[name]
            chosen[name] = f"{directory / setting.file} has {name}", setting.value
    (_, language), (_, task) = chosen.values()
    forced: dict[int, int | None] = {}
    if language is None and task is None:  # settings of older checkpoints
        forced = _forced(stated, directory)
    if language is None and (id := forced.get(1)) is not None:
        opening = [(id,)]
    else:
        known = _needed(settings, "lang_to_id", directory)
        languages = {name.strip("<|>"): id for name, id in known.items()}
        opening = [tuple(sorted(languages.values()))]
        if language is not None:
            opening = [(_one(*chosen["language"], languages, directory),)]
    if task is not None or language is not None:
        tasks = _needed(settings, "task_to_id", directory)
        says, task = chosen["task"]
        opening.append((_one(says, task or "transcribe", tasks, directory),))
    elif (id := forced.get(2)) not in (None, settings.get(_NO_TIMESTAMPS)):
        opening.append((id,))
    return opening


def _forced(stated: Mapping[str, Setting], directory: Location) -> dict[int, int | None]:
    """Returns the ids in `forced_decoder_ids` by position: 1 for the language, 2 for the task."""
    rows, file = stated.get("forced_decoder_ids", Setting([], ""))
    pairs = isinstance(rows, list) and all(isinstance(x, list) and len(x) == 2 for x in rows)
    forced = {at: id for at, id in rows if type(at) is int} if pairs else {}
    ids = [id for id in forced.values() if id is not None]
    if _NO_TIMESTAMPS in stated and forced.get(3) == stated[_NO_TIMESTAMPS].value:
        del forced[3]
    are_ids = all(is_integer(id, 0) for id in ids)
    if not (pairs and are_ids and forced.keys() <= {1, 2}):
        raise CheckpointError(
            f"{directory / file} has forced_decoder_ids {rows}; supported are pairs of a position "
            "and an id: 1 of the language, 2 of the task, 3 of no timestamps"
        )
    return forced


def _needed(settings: JsonObject, name: str, directory: Location) -> Any:
    if name not in settings:
        raise CheckpointError(
            f"{directory} has no {name} in {generation.FILE}; copy the file of the model's release"
        )
    return settings[name]


def _one(says: str, value: object, known: dict[str, int], directory: Location) -> int:
    """Returns the id of a task, or of a language that is given by its code or its name."""
    word = value if isinstance(value, str) else ""
    if word not in known:
        word = word.lower().strip("<|>")
    word = _CODES.get(word, word)
    if word not in known:
        names = sorted(known)
        some = names if len(names) < 6 else [*names[:5], "..."]
        raise CheckpointError(f"{says} {value!r}; give one that {directory} has: {', '.join(some)}")
    return known[word]
