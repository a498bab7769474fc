"""Files of sound that are not laid out as usual, and parts of sounds: pytest tests/tasks"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from specdec import tasks
from specdec.tasks import media, sound
from specdec.tasks.plain import PlainBytes
from specdec.tasks.sound import HOP, RATE, log_mel

SECOND = 100  # frames


def chunk(name: bytes, content: bytes) -> bytes:
    """Returns a part of a RIFF file. After one of odd size comes a byte that does not count."""
    return name + len(content).to_bytes(4, "little") + content + b"\0" * (len(content) % 2)


def riff(*chunks: bytes) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + len(body).to_bytes(4, "little") + body


def wav(samples: np.ndarray, before: bytes = b"", after: bytes = b"") -> bytes:
    """Returns a file of one channel with other chunks before and after the samples."""
    numbers = (1, 2), (1, 2), (RATE, 4), (2 * RATE, 4), (2, 2), (16, 2)
    about = b"".join(number.to_bytes(size, "little") for number, size in numbers)
    return riff(chunk(b"fmt ", about), before, chunk(b"data", samples.tobytes()), after)


SAMPLES = (1000 * np.sin(np.arange(800) / 20)).astype("<i2")


def read(file: Path, content: bytes) -> tuple[list[float], list[str]]:
    """Returns the samples of a file, and the warnings."""
    file.write_bytes(content)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = sound.read_sound(file)
    return found.tolist(), [str(one.message) for one in said]


@pytest.mark.parametrize("size", [4, 5, 6, 7])
def test_what_stands_before_the_samples_is_passed_over(tmp_path, size):
    """What looks like samples in it is none: its name is another."""
    other = chunk(b"LIST", b"data\xff\xff\xff\x7f"[:size] or b"")
    found, said = read(tmp_path / "a.wav", wav(SAMPLES, before=other))
    assert found == (SAMPLES / 2**15).tolist() and said == []
    cut = wav(SAMPLES, before=other)[:-100]
    found, said = read(tmp_path / "cut.wav", cut)
    assert found == (SAMPLES[:750] / 2**15).tolist()
    assert said == [
        f"{tmp_path}/cut.wav ends 100 bytes before its header says; what is there is read, "
        "0.046875 s"
    ]


def test_what_is_missing_after_the_samples_is_missing(tmp_path):
    """The header counts all of the file but its first eight bytes."""
    whole = wav(SAMPLES, after=chunk(b"LIST", b"x" * 40))
    assert read(tmp_path / "whole.wav", whole)[1] == []
    found, (said,) = read(tmp_path / "short.wav", whole[:-11])
    assert len(found) == 800
    assert said.startswith(f"{tmp_path}/short.wav ends 11 bytes before its header says; ")


def shape(rows: int, length: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, 8, SECOND), np.float32)


def features(*texts: str) -> np.ndarray:
    """Returns the features of some texts, for a model that reads one second."""
    pairs = [(text, None) for text in texts]
    (batch,) = tasks.text_batches(
        pairs, media.Spoken(PlainBytes(0)), {"inputs": 1}, batch_size=len(texts), shape=shape
    )
    return np.asarray(batch.inputs)


def test_the_parts_that_a_message_names_are_the_whole_sound(tmp_path):
    """A second and a half, in windows of a second."""
    tone = (5000 * np.sin(np.arange(RATE * 3 // 2) ** 1.1)).astype("<i2")
    file = tmp_path / "talk.wav"
    file.write_bytes(wav(tone))
    with pytest.raises(tasks.TaskError) as error:
        features(str(file))
    assert str(error.value) == (
        f"sound '{file}' is 1.5 s long, and the target reads 1 in one window; give it to "
        "`specdec decode`, in Python to `InteractiveModel.transcribe`, which read window by "
        f"window, or name its parts, as in {file}#0 and {file}#1"
    )
    first, second = re.findall(rf"{re.escape(str(file))}#\d+", str(error.value))
    samples = np.pad(tone / np.float32(2**15), (0, RATE // 2)).reshape(2, RATE)
    np.testing.assert_array_equal(features(first, second), log_mel(samples, 8))


@pytest.mark.parametrize(
    "part, length, fits, frames",
    [
        ("", RATE, True, SECOND),
        ("", RATE - 1, True, SECOND),
        ("", RATE + 1, False, SECOND),
        ("", RATE + HOP, False, SECOND + 1),
        ("#0", 3 * RATE, True, SECOND),
        ("#1.25", 3 * RATE, True, SECOND),
        ("#2.25", 3 * RATE, True, SECOND),
    ],
)
def test_a_part_ends_with_its_window_and_a_whole_sound_does_not(
    tmp_path, part, length, fits, frames
):
    """A short one is filled up with silence, and has features as in a batch."""
    tone = (5000 * np.sin(np.arange(length) ** 1.1)).astype("<i2")
    (tmp_path / "a.wav").write_bytes(wav(tone))
    text = f"{tmp_path}/a.wav{part}"
    assert tasks.fits_window(text, SECOND) == fits
    found = tasks.features_of(text, 8, SECOND)
    begin = int(RATE * float(part[1:] or 0))
    heard = (tone / np.float32(2**15))[begin:][: RATE if part else None]
    heard = np.pad(heard, (0, max(0, RATE - len(heard))))
    assert found.shape == (8, frames)
    np.testing.assert_array_equal(found, log_mel(heard[None], 8)[0])
