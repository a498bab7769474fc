"""Functions that gin files call for lengths, token ids and vocabularies of a run's texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from specdec import checkpoints, tasks
from specdec.common.values import UsageError


def longest_target(lengths: Mapping[str, int]) -> int:
    """Returns N, the longest output in tokens.

    Args:
      lengths: feature -> length in tokens, such as {'targets': 64}.
    """
    return tasks.length_of(lengths, "targets")


def token_ids(
    text: str, vocabulary: tasks.VocabularyDefinition | None, checkpoint_path: str
) -> tuple[int, ...]:
    """Returns the token ids of a text, without a stop id and without trailing white space.

    Gin files call it for settings that users write as text.

    Args:
      text: the text.
      vocabulary: the vocabulary; None for the one saved with the checkpoint.
      checkpoint_path: the directory of the checkpoint.
    """
    if not text:
        return ()
    vocabulary = vocabulary or saved_vocabulary(checkpoint_path)
    return tuple(int(token) for token in tasks.for_texts(vocabulary).encode(text.rstrip()))


def task_vocabulary(
    given: tasks.VocabularyDefinition | None = None, path: str | None = None
) -> tasks.VocabularyDefinition:
    """Returns the vocabulary of a task over files: the given one, or else that of a checkpoint.

    Args:
      given: a vocabulary, or None.
      path: the directory of a checkpoint, or None.

    Raises:
      UsageError: both are None, or the checkpoint has no vocabulary.
    """
    if given is not None:
        return given
    if path is None:
        _refuse_no_vocabulary("VOCABULARY is None, and there is no checkpoint that has one")
    return saved_vocabulary(path)


def saved_vocabulary(path: str) -> tasks.VocabularyDefinition:
    """Returns the vocabulary that was saved with a checkpoint, with its added tokens.

    A gin file chooses it by VOCABULARY = @cli.saved_vocabulary(), with a binding of `path`.

    Args:
      path: the directory of the checkpoint.

    Raises:
      UsageError: no vocabulary was saved.
    """
    recorded = checkpoints.vocabulary_from(path)
    if recorded is None:
        _refuse_no_vocabulary(f"no vocabulary was saved with {path}")
    return tasks.recorded_vocabulary(*recorded)


def _refuse_no_vocabulary(reason: str) -> NoReturn:
    raise UsageError(
        f"{reason}; name one: --vocabulary=FILE of a SentencePiece model or of a "
        "tokenizer.json, or --vocabulary=bytes"
    )
