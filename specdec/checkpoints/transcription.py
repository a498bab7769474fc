"""The settings with which a Whisper's checkpoint writes down sound."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from specdec.checkpoints import generation
from specdec.checkpoints.cloud_storage import Location
from specdec.checkpoints.errors import CheckpointError
from specdec.common.json_values import JsonObject
from specdec.common.values import Checked
from specdec.sampling import Opening, SuppressTokens, SuppressTokensAtBegin, Timestamps
from specdec.types import LogitsProcessor

_NO_TIMESTAMPS = "no_timestamps_token_id"


@dataclasses.dataclass(frozen=True)
class Transcribed(Checked):
    """The choice of outputs for sound, in the place of "obey" for a Whisper's settings.

    Args:
      language: of the sound, as for `transcription`.
      task: 'transcribe' or 'translate'.
      timestamps: whether the texts have timestamps.
    """

    language: str | None = None
    task: str | None = None
    timestamps: bool = False

    def processors(self, directory: Location) -> tuple[LogitsProcessor, ...]:
        """Returns the processors that a checkpoint asks for, among them how a text opens.

        Raises:
          CheckpointError: as `transcription` does.
        """
        opening, found = _described(directory, self.language, self.task, self.timestamps)
        # It comes last: it has ids that are suppressed elsewhere.
        return *found, *([Opening(opening)] if opening else [])


class Transcription(NamedTuple):
    """The arguments for outputs that follow a checkpoint's settings."""

    prefix: tuple[
        int, ...
    ]  # of every output, for `decode(prefix=)`; () if a language is to be found
    processors: tuple[LogitsProcessor, ...]  # for `sampling.with_processors`


def transcription(
    directory: Location,
    language: str | None = None,
    task: str | None = None,
    timestamps: bool = False,
) -> Transcription:
    """Returns the prefix and the processors with which transformers' `generate` writes texts.

    Args:
      directory: of a Whisper, with its `generation_config.json`.
      language: of the sound, such as 'en'; None for the one that the settings name, or else that
        the model finds. A model of English alone has none.
      task: 'transcribe' or 'translate' (to English). None for the one that the settings name, or
        else for 'transcribe' if a language is given. Without a language, the output then has no id
        of a task, as in transformers.
      timestamps: whether the texts have timestamps.

    Raises:
      CheckpointError: the settings lack one that is needed, or the language or the task.
    """
    opening, processors = _described(directory, language, task, timestamps)
    if any(len(choice) > 1 for choice in opening):
        return Transcription((), (*processors, Opening(opening)))
    return Transcription(tuple(id for (id,) in opening), processors)


def _described(
    directory: Location, language: str | None, task: str | None, timestamps: bool
) -> tuple[tuple[tuple[int, ...], ...], tuple[LogitsProcessor, ...]]:
    """Returns the choices of `Opening`, and the other processors; see `transcription`."""
    settings = {name: one.value for name, one in generation.read(directory).items()}
    opening: list[tuple[int, ...]] = []
    if settings.get("is_multilingual", True):
        opening = _language_and_task(settings, language, task, directory)
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
    settings: JsonObject, language: str | None, task: str | None, directory: Location
) -> list[tuple[int, ...]]:
    """Returns the first choices of `Opening` for a model of many languages."""
    language, task = language or settings.get("language"), task or settings.get("task")
    forced: dict[int, int | None] = {}
    if language is None and task is None:  # settings of older checkpoints
        forced = dict(settings.get("forced_decoder_ids") or [])
    if language is None and (id := forced.get(1)) is not None:
        opening = [(id,)]
    else:
        known = _needed(settings, "lang_to_id", directory)
        languages = {name.strip("<|>"): id for name, id in known.items()}
        opening = [tuple(sorted(languages.values()))]
        if language is not None:
            opening = [(_one("language", language.strip("<|>"), languages, directory),)]
    if task is not None or language is not None:
        tasks = _needed(settings, "task_to_id", directory)
        opening.append((_one("task", task or "transcribe", tasks, directory),))
    elif (id := forced.get(2)) not in (None, settings.get(_NO_TIMESTAMPS)):
        opening.append((id,))
    return opening


def _needed(settings: JsonObject, name: str, directory: Location) -> Any:
    if name not in settings:
        raise CheckpointError(
            f"{directory} has no {name} in {generation.FILE}; copy the file of the model's release"
        )
    return settings[name]


def _one(what: str, given: str | None, known: dict[str, int], directory: Location) -> int:
    if given not in known:
        names = sorted(known)
        some = names if len(names) < 6 else [*names[:5], "..."]
        raise CheckpointError(
            f"{what} is {given!r}; give one that {directory} has: {', '.join(some)}"
        )
    return known[given]
