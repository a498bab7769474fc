"""The settings with which a Whisper's checkpoint writes down sound: a prefix, and processors."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from specdec.checkpoints import generation
from specdec.checkpoints.cloud_storage import Location
from specdec.checkpoints.errors import CheckpointError
from specdec.common.values import Checked
from specdec.sampling import ForcedTokens, SuppressTokens, SuppressTokensAtBegin, Timestamps
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
        """Returns the processors that a checkpoint asks for, among them its forced prefix.

        Raises:
          CheckpointError: as `transcription` does.
        """
        prefix, found = transcription(directory, self.language, self.task, self.timestamps)
        # The prefix comes last: it has ids that are suppressed elsewhere.
        return *found, *([ForcedTokens(prefix, 0)] if prefix else [])


class Transcription(NamedTuple):
    """The arguments for outputs that follow a checkpoint's settings."""

    prefix: tuple[int, ...]  # of every output, for `decode(prefix=)`
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
      language: of the sound, such as 'en'. A model of many languages needs one; one of English
        alone has none. It is not detected.
      task: 'transcribe' or 'translate' (to English); None for 'transcribe'.
      timestamps: whether the texts have timestamps.

    Raises:
      CheckpointError: the settings lack one that is needed, or the language or the task.
    """
    settings = {name: one.value for name, one in generation.read(directory).items()}
    prefix: list[int] = []
    if settings.get("is_multilingual", True):
        known = _needed(settings, "lang_to_id", directory)
        languages = {name.strip("<|>"): id for name, id in known.items()}
        prefix = [
            _one("language", language, languages, directory),
            _one(
                "task", task or "transcribe", _needed(settings, "task_to_id", directory), directory
            ),
        ]
    elif language is not None or task is not None:
        raise CheckpointError(
            f"{directory} transcribes English alone (is_multilingual); leave out language and task"
        )
    processors: list[LogitsProcessor] = []
    if not timestamps:
        prefix.append(_needed(settings, _NO_TIMESTAMPS, directory))
    if ids := settings.get("begin_suppress_tokens"):
        processors.append(SuppressTokensAtBegin(tuple(ids), len(prefix)))
    if ids := settings.get("suppress_tokens"):
        processors.append(SuppressTokens(tuple(ids)))
    if timestamps:
        none, ends = (_needed(settings, x, directory) for x in (_NO_TIMESTAMPS, generation.ENDS))
        end = ends[0] if isinstance(ends, list) else ends
        latest = settings.get("max_initial_timestamp_index")
        processors.append(Timestamps(none, end, len(prefix), latest))
    return Transcription(tuple(prefix), tuple(processors))


def _needed(settings: dict[str, Any], name: str, directory: Location) -> Any:
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
