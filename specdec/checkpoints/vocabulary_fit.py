"""A check that a vocabulary and a model fit each other."""

from __future__ import annotations

import os

from specdec import checkpoints, tasks
from specdec.models.bases.prompts import PromptReader
from specdec.models.contract.model import Target
from specdec.models.heads import Heads
from specdec.tasks.added_tokens import agree


def check_fit(
    vocabulary: tasks.LoadedVocabulary,
    model: Target,
    role: str,
    path: str | os.PathLike | None = None,
    spare: int = 0,
) -> None:
    """Raises ValueError if a role's model does not fit the vocabulary and `spare` ids for masks."""
    pad, end, unknown = tasks.special_ids(vocabulary)
    padding = None if isinstance(model, Heads) else model.pad_id  # heads read no texts
    if padding is not None and not _pads(padding, vocabulary):
        ids = f"{'none' if pad is None else pad}, {end} and {unknown}"
        raise ValueError(
            f"vocabulary {tasks.file_of(vocabulary)}: its ids of padding, end and unknown are "
            f"{ids}, and the {role} pads with {padding}; use a model and a vocabulary that belong "
            "together"
        )
    if isinstance(model, PromptReader) and tasks.declares_begin(vocabulary):
        raise ValueError(
            f"the {role} continues prompts, but the vocabulary {tasks.file_of(vocabulary)} would "
            "end each with EOS; put that file as tokenizer.model into the checkpoint's directory, "
            "and set no vocabulary"
        )
    if role == "target" and (known := model.head_ids) is not None:
        raise ValueError(
            f"the target's head has {len(known)} of {model.vocab_size} ids (head_ids), and cannot "
            "output the others; give the whole model, only a drafter may have a trimmed head"
        )
    if model.vocab_size < vocabulary.vocab_size:
        raise ValueError(
            f"the {role} has {model.vocab_size} output ids but the vocabulary "
            f"{vocabulary.vocab_size}; use a model and a vocabulary that belong together"
        )
    if model.vocab_size < vocabulary.vocab_size + spare:
        raise ValueError(
            f"the {role} has {model.vocab_size} output ids, of which the vocabulary's "
            f"{vocabulary.vocab_size} leave none for {spare} masks; use a model that was trained "
            "to fill in masks"
        )
    recorded = None if path is None else checkpoints.vocabulary_from(path, needed=False)
    if recorded is None:
        return
    saved_settings, ours = recorded.tokenization, tasks.tokenization_of(vocabulary)
    if (
        role != "target"
        and saved_settings is not None
        and ours is not None
        and agree(ours.added, saved_settings.added)
    ):
        saved_settings = ours  # a draft may lack tokens that were added to the target
    saved = tasks.recorded_vocabulary(recorded.path, vocabulary.extra_ids, saved_settings)
    if not tasks.same_vocabulary(tasks.for_texts(saved), vocabulary):
        added = f" and {len(recorded.added)} added tokens" if recorded.added else ""
        raise ValueError(
            f"the {role} checkpoint {path} was saved with another vocabulary, "
            f"{recorded.path or 'UTF-8 bytes'}{added}; use that one, and models of one vocabulary"
        )


def _pads(id: int, vocabulary: tasks.LoadedVocabulary) -> bool:
    """Returns whether an id is padding: the vocabulary's, or no token of a text if it has none."""
    pad, end, _ = tasks.special_ids(vocabulary)
    if pad is not None:
        return id == pad
    is_piece = 0 <= id < vocabulary.vocab_size
    return id != end and not (is_piece and tasks.detokenize(vocabulary, [id]))
