"""Vocabularies for texts that name files of pictures or of sound.

`<image:cat.png>` in a prompt stands for a picture. The text of an input for a Whisper is the name
of a file of sound, or `talk.wav#30` for its part from second 30 on.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from specdec.common.values import NonNegativeInt, PositiveInt
from specdec.tasks.loading import Definition
from specdec.tasks.pictures import PictureSettings
from specdec.tasks.plain import Inputs, InputsShape, PlainVocabulary, VocabularyDefinition
from specdec.tasks.sound import HOP, RATE, log_mel, read_sound
from specdec.tasks.task_error import TaskError

if TYPE_CHECKING:
    pass

IMAGE = "<image>"
_MARK = re.compile(r"<image:([^<>]+)>")
_PART = re.compile(r"(.*?)(?:#(\d+(?:\.\d+)?))?", re.DOTALL)


class _WithFiles(PlainVocabulary):
    """The base class of vocabularies whose inputs have pictures or sound."""

    def __init__(self, base: PlainVocabulary):
        self.base = base
        self.pad_id, self.eos_id, self.unk_id = base.pad_id, base.eos_id, base.unk_id
        self.vocab_size, self.extra_ids = base.vocab_size, base.extra_ids
        self.file, self.digest = base.file, base.digest
        self.before, self.ends, self.continued = base.before, base.ends, base.continued

    def encode(self, text: str) -> list[int]:
        return self.base.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self.base.decode(ids)

    def pieces(self) -> list[str]:
        return self.base.pieces()


class Illustrated(_WithFiles):
    """A vocabulary of prompts with pictures; see `WithPictures`."""

    def __init__(self, base: PlainVocabulary, own: WithPictures):
        super().__init__(base)
        self.own = own

    def input_ids(self, text: str, length: int | None = None) -> list[int]:
        """Returns the ids of a prompt, with `image_id` for each patch of its pictures."""
        names = self.files_of(text)
        ids = np.array(self.base.input_ids(_MARK.sub(IMAGE, text)), np.int32)
        is_picture = ids == self.own.image_id
        if is_picture.sum() != len(names):
            raise TaskError(
                f"prompt {text[:60]!r} names {len(names)} pictures, and has the id "
                f"{self.own.image_id} {is_picture.sum()} times; write <image:FILE> for each picture"
            )
        ids = np.repeat(ids, np.where(is_picture, self.own.patches, 1))
        if names and length is not None and len(ids) > length:
            raise TaskError(
                f"prompt {text[:60]!r} has {len(ids)} tokens with its pictures, and inputs hold "
                f"{length}; give TASK_FEATURE_LENGTHS more"
            )
        return ids.tolist() if names else self.base.input_ids(text, length)

    def files_of(self, text: str) -> list[str]:
        return _MARK.findall(text)

    def inputs(self, ids: np.ndarray, texts: Sequence[str], shape: InputsShape) -> Inputs:
        """Returns {"tokens": ids, "pixels": array}; ids alone for a model without pictures."""
        if not isinstance(shape, Mapping):
            return ids
        files = [self.files_of(text) for text in texts]
        rows, places, *picture = shape["pixels"].shape
        # Room for the pictures of the texts: each number of places is a program of its own.
        places = max([places, *map(len, files)])
        pixels = np.zeros([rows, places, *picture], np.float32)
        for row, names in zip(pixels, files, strict=False):
            for index, name in enumerate(names):
                row[index] = self.own.settings.pixels(name, row.shape[1:])
        return {"tokens": ids, "pixels": pixels}


class Spoken(_WithFiles):
    """A vocabulary of transcripts, whose inputs are sound; see `WithSound`."""

    def input_ids(self, text: str, length: int | None = None) -> list[int]:
        """Returns EOS alone: sound has no ids."""
        return [self.eos_id]

    def files_of(self, text: str) -> list[str]:
        return [part_of(text)[0]] if text.strip() else []

    def inputs(self, ids: np.ndarray, texts: Sequence[str], shape: InputsShape) -> Inputs:
        """Returns the log-mel features of the files that texts name."""
        if isinstance(shape, Mapping) or shape.dtype != np.float32:
            raise TaskError(
                f"the input {texts[0] if texts else ''!r} is sound, and the target reads token "
                "ids; give a Whisper"
            )
        features = np.zeros(shape.shape, np.float32)
        bins, frames = features.shape[1:]
        if texts:
            heard = np.stack([_window(text, frames * HOP) for text in texts])
            features[: len(texts)] = log_mel(heard, bins)
        return features


@dataclasses.dataclass(frozen=True)
class WithPictures(Definition):
    """The vocabulary of prompts with pictures, each written <image:FILE>.

    Args:
      image_id: the id of `<image>` in the vocabulary, which stands for a patch.
      patches: the number of patches of a picture.
      settings: the steps from a picture to pixels.
      text: the vocabulary of the text in prompts; None until it is set.
    """

    image_id: NonNegativeInt
    patches: PositiveInt
    settings: PictureSettings = PictureSettings()
    text: VocabularyDefinition | None = None

    def plain(self) -> PlainVocabulary:
        assert self.text is not None
        return Illustrated(self.text.plain(), self)


@dataclasses.dataclass(frozen=True)
class WithSound(Definition):
    """The vocabulary of transcripts, whose inputs are names of files of sound.

    Args:
      text: the vocabulary of the transcripts; None until it is set.
    """

    text: VocabularyDefinition | None = None

    def plain(self) -> PlainVocabulary:
        assert self.text is not None
        return Spoken(self.text.plain())


def with_files(text: str, names: Sequence[str]) -> str:
    """Returns the text of an input with files' names: in each `<image>`, or of a sound alone."""
    if not text and len(names) == 1:
        return names[0]
    if text.count(IMAGE) != len(names):
        raise TaskError(
            f"the text {text[:60]!r} has {IMAGE} {text.count(IMAGE)} times, and {len(names)} files "
            f"are given; write {IMAGE} for each picture"
        )
    remaining = iter(names)
    return re.sub(IMAGE, lambda _: f"<image:{next(remaining)}>", text)


def part_of(text: str) -> tuple[str, float | None]:
    """Returns the file that an input's text names, and the second from which on, None for all."""
    match = _PART.fullmatch(text.strip())
    assert match is not None, "the pattern fits every text"
    name, start = match.groups()
    return name, None if start is None else float(start)


def heard(text: str) -> np.ndarray:
    """Returns the samples [n] float32 of the sound that the text of an input names."""
    name, start = part_of(text)
    try:
        samples = read_sound(name)
        samples = samples[round(min(start or 0, len(samples)) * RATE) :]
    except ValueError as error:
        raise TaskError(str(error)) from error
    except OSError as error:
        raise TaskError(
            f"sound {name!r} cannot be read ({error.strerror}); give a file of sound"
        ) from error
    if not len(samples):
        raise TaskError(f"sound {text!r} has no samples; give a file or a part that has some")
    return samples


def fits_window(text: str, frames: int) -> bool:
    """Returns whether the sound that a text names, or its part, is read in one window.

    Args:
      text: the name of a file, or FILE#SECONDS for its part from that second on.
      frames: the number of frames of a window.

    Raises:
      TaskError: the sound cannot be read.
    """
    return len(heard(text)) <= frames * HOP or part_of(text)[1] is not None


def features_of(text: str, mel_bins: int, frames: int) -> np.ndarray:
    """Returns the log-mel features [mel_bins, F] of all of the sound that a text names.

    As in transformers, a sound shorter than a window is padded with silence, and a longer one is
    not cut.

    Args:
      text: the name of a file, or FILE#SECONDS for one window from that second on.
      mel_bins: the number of frequency bands of a frame.
      frames: the number of frames of a window.
    """
    samples, size = heard(text), frames * HOP
    if part_of(text)[1] is not None:
        samples = samples[:size]
    return log_mel(np.pad(samples, (0, max(0, size - len(samples))))[None], mel_bins)[0]


def _window(text: str, size: int) -> np.ndarray:
    """Returns `size` samples of the sound that a text names, filled up with silence."""
    samples, (name, start) = heard(text), part_of(text)
    if len(samples) > size and start is None:
        raise TaskError(
            f"sound {text!r} is {len(samples) / RATE:g} s long, and the target reads "
            f"{size / RATE:g} in one window; give it to `specdec decode`, in Python to "
            "`InteractiveModel.transcribe`, which read window by window, "
            f"or name its parts, as in {name}#0 and {name}#{size / RATE:g}"
        )
    return np.pad(samples[:size], (0, max(0, size - len(samples))))
