"""Sounds, and their features against transformers' extractor: pytest tests/tasks/test_sound.py"""

from __future__ import annotations

import io
import os
import re
import struct
import sys
import warnings
import wave
from pathlib import Path

import jax
import numpy as np
import pytest

from specdec import tasks
from specdec.tasks import media, sound
from specdec.tasks.plain import PlainBytes
from specdec.tasks.sound import HOP, RATE, log_mel

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "hf_whisper" / "golden.npz"


KINDS = [("wav", "PCM_16"), ("wav", "PCM_24"), ("wav", "FLOAT"), ("wav", "DOUBLE")]
KINDS += [("flac", "PCM_24"), ("ogg", "VORBIS"), ("mp3", "MPEG_LAYER_III")]


def write(file: Path, samples: np.ndarray, rate: int = sound.RATE) -> Path:
    with wave.open(str(file), "wb") as opened:
        opened.setnchannels(samples.shape[1])
        opened.setsampwidth(samples.itemsize)
        opened.setframerate(rate)
        opened.writeframes(samples.tobytes())
    return file


@pytest.mark.parametrize("mel_bins", [80, 128])
def test_features_are_those_of_transformers(mel_bins, tmp_path):
    golden = np.load(GOLDEN)
    samples = sound.read_sound(write(tmp_path / "tone.wav", golden["sound"][:, None]))
    found = sound.log_mel(sound.windows(samples, seconds=1), mel_bins)
    assert found.shape == (1, mel_bins, 100) and found.dtype == np.float32
    # Theirs are float32 throughout, ours float64: powers of near-silence differ in the last bits.
    np.testing.assert_allclose(found[0], golden[f"mel_{mel_bins}"], rtol=0, atol=1e-4)


def test_windows_have_30_seconds_and_silence_is_no_padding():
    long = sound.windows(np.ones(31 * sound.RATE, np.float32))
    assert long.shape == (2, 480_000) and long.sum() == 31 * sound.RATE
    assert sound.windows(np.ones(0)).shape == (1, 480_000)
    silence = sound.log_mel(np.zeros([1, 1600]))
    assert silence.shape == (1, 80, 10) and np.all(silence == -1.5)


@pytest.mark.parametrize(
    "dtype, zero, size", [("u1", 128, 128), ("<i2", 0, 2**15), ("<i4", 0, 2**31)]
)
def test_samples_are_between_minus_1_and_1(dtype, zero, size, tmp_path):
    """Two channels, of which the mean counts."""
    samples = np.array([[zero + size // 2, zero], [zero - size, zero - size]]).astype(dtype)
    found = sound.read_sound(write(tmp_path / "two.wav", samples))
    assert found.tolist() == [0.25, -1.0] and found.dtype == np.float32


@pytest.mark.parametrize("size, said", [(5, 5), (2**32 - 1, 2**32 - 1), (2**32, 2**32 - 1)])
def test_a_header_that_is_repaired_says_at_most_what_it_can_hold(size, said):
    """The longest that 4 bytes can say."""
    wav = sound._Wav(True, 1, begin=44, size=size, missing=0, is_open=True)
    found = wav.repaired(io.BytesIO(bytes(range(50))))
    assert found is not None
    assert found.getvalue() == bytes(range(40)) + said.to_bytes(4, "little") + bytes(range(44, 50))
    assert wav._replace(is_open=False).repaired(io.BytesIO()) is None


def test_other_files_and_shapes_are_refused_in_one_line(tmp_path):
    (tmp_path / "text.wav").write_text("not a sound")
    with pytest.raises(ValueError, match=r"is no sound that can be read \(.*\); convert it to WAV"):
        sound.read_sound(tmp_path / "text.wav")
    for shape in ([1601], [1, 399]):
        with pytest.raises(ValueError, match=r"samples have the shape .*; give \[windows, "):
            sound.log_mel(np.zeros(shape))


@pytest.mark.parametrize("kind, subtype", KINDS)
def test_a_library_reads_and_resamples_what_is_no_plain_wav(kind, subtype, tmp_path):
    soundfile, soxr = (pytest.importorskip(name) for name in ("soundfile", "soxr"))
    samples = 0.4 * np.sin(np.arange(22_050) / 30) * np.array([[1], [0.5]])
    file = tmp_path / f"tone.{kind}"
    soundfile.write(file, samples.T, 44_100, subtype)
    there, _ = soundfile.read(file, dtype="float32", always_2d=True)
    expected = soxr.resample(there.mean(axis=1), 44_100, 16_000)
    found = sound.read_sound(file)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    assert abs(len(found) - 8000) < 800 and 0.25 < abs(found).max() < 0.35


def test_a_plain_wav_needs_no_library(tmp_path, monkeypatch):
    file = write(tmp_path / "tone.wav", np.arange(2000, dtype="<i2")[:, None])
    other = write(tmp_path / "other.wav", np.zeros([400, 1], "<i2"), rate=8000)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert sound.read_sound(file).tolist() == (np.arange(2000) / 2**15).tolist()
    with pytest.raises(
        ValueError, match="other.wav .* needs soundfile; pip install soundfile soxr$"
    ):
        sound.read_sound(other)


def test_a_file_that_ends_early_is_named(tmp_path):
    whole = write(tmp_path / "tone.wav", np.ones([800, 2], "<i2")).read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[:-1001])
    with pytest.warns(
        sound.SoundWarning, match="cut.wav ends 1001 bytes before its .*, 0.0343125 s$"
    ):
        assert len(sound.read_sound(tmp_path / "cut.wav")) == 549
    # Nothing is missing behind the samples, and a program that writes to a pipe knows no length.
    endless = b"RIFF" + b"\xff" * 4 + whole[8:40] + b"\xff" * 4 + whole[44:]
    (tmp_path / "endless.wav").write_bytes(endless)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(sound.read_sound(tmp_path / "endless.wav")) == 800
    longer = whole[:40] + (4 * 900).to_bytes(4, "little") + whole[44:]
    (tmp_path / "longer.wav").write_bytes(longer)
    with pytest.warns(sound.SoundWarning, match="longer.wav ends 400 bytes before its header"):
        sound.read_sound(tmp_path / "longer.wav")


def test_a_long_sound_has_the_features_of_all_of_it(monkeypatch):
    tone = np.sin(np.arange(31 * sound.RATE + 77) ** 1.1)[None]
    found = sound.log_mel(tone, 8)
    assert found.shape == (1, 8, 3100)
    monkeypatch.setattr(sound, "_AT_ONCE", 10_000)
    np.testing.assert_array_equal(found, sound.log_mel(tone, 8))


# Files that are not laid out as usual, and parts of sounds.

SECOND = 100  # frames


def chunk(name: bytes, content: bytes) -> bytes:
    """Returns a part of a RIFF file. After one of odd size comes a byte that does not count."""
    return name + len(content).to_bytes(4, "little") + content + b"\0" * (len(content) % 2)


def wav(
    samples: np.ndarray | bytes,
    size: int | None = None,
    whole: int | None = None,
    *,
    before: bytes = b"",
    after: bytes = b"",
    rate: int = RATE,
    kind: int = 1,
    bits: int = 16,
) -> bytes:
    """Returns a file of one channel with other chunks before and after the samples.

    `size` and `whole` are the sizes of samples and file in place of the right ones.
    """
    data = samples if isinstance(samples, bytes) else samples.tobytes()
    form = struct.pack("<HHIIHH", kind, 1, rate, rate * bits // 8 % 2**32, bits // 8, bits)
    begin = b"WAVE" + chunk(b"fmt ", form) + before + b"data"
    whole = len(begin) + 4 + len(data) + len(after) if whole is None else whole
    size = len(data) if size is None else size
    return b"RIFF" + struct.pack("<I", whole) + begin + struct.pack("<I", size) + data + after


SAMPLES = (1000 * np.sin(np.arange(800) / 20)).astype("<i2")
LOUD = (8000 * np.sin(np.arange(1600) / 9)).astype("<i2")


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


@pytest.mark.parametrize("whole", [0, 36, 2**32 - 1])
@pytest.mark.parametrize("size", [0, 2**32 - 1])
def test_a_wav_that_was_streamed_is_read_to_its_end(size, whole, tmp_path, recwarn):
    """The header says nothing of the length."""
    floats = (LOUD / 2**15).astype("<f4")
    plain, other = tmp_path / "plain.wav", tmp_path / "float.wav"
    plain.write_bytes(wav(LOUD, size, whole))
    assert sound.read_sound(plain).tolist() == floats.tolist()
    pytest.importorskip("soundfile")
    other.write_bytes(wav(floats, size, whole, kind=3, bits=32))
    assert sound.read_sound(other).tolist() == floats.tolist()
    assert not recwarn.list


def test_a_wav_whose_other_chunks_follow_no_samples_is_empty(tmp_path):
    note = b"LIST" + struct.pack("<I", 4) + b"INFO"
    (tmp_path / "none.wav").write_bytes(wav(note, 0))
    with pytest.raises(tasks.TaskError, match="none.wav' has no samples"):
        media.heard(str(tmp_path / "none.wav"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_no_number_is_named(value, tmp_path):
    pytest.importorskip("soundfile")
    floats = (LOUD / 2**15).astype("<f4")
    floats[400] = value
    (tmp_path / "nan.wav").write_bytes(wav(floats, kind=3, bits=32))
    says = "nan.wav has samples that are NaN or infinite, 1 of 1600, the first at 0.025 s; repair"
    with pytest.raises(tasks.TaskError, match=says):
        media.heard(str(tmp_path / "nan.wav"))


@pytest.mark.parametrize(
    "name, data",
    [
        ("page.mp3", b"<!DOCTYPE html><html></html>"),
        ("page.wav", b"<html>" * 2000),
        ("text.flac", b"hi"),
        ("none.ogg", b""),
        ("bytes.raw", b"123"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_no_sound_is_one_line(name, data, tmp_path, capfd):
    pytest.importorskip("soundfile")
    (tmp_path / name).write_bytes(data)
    with pytest.raises(tasks.TaskError, match=rf"{name} is no sound that can be read \(Format not"):
        media.heard(str(tmp_path / name))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("rate", [1, 999, 2**20 + 1, 2**31 - 1])
def test_a_rate_that_is_none_of_sound_is_refused(rate, tmp_path):
    pytest.importorskip("soundfile")
    (tmp_path / "a.wav").write_bytes(wav(LOUD, rate=rate))
    says = f"a.wav says that it has {rate} samples per second; give a sound with 1,000 to 1,048,576"
    with pytest.raises(tasks.TaskError, match=says):
        media.heard(str(tmp_path / "a.wav"))


@pytest.mark.parametrize("claimed", [0, 2**29, 2**36 - 1])
def test_the_length_that_a_flac_claims_takes_no_memory(claimed, tmp_path, recwarn):
    """0 is that of a stream. The number is in the last 36 bits of 8 bytes."""
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.flac", LOUD, RATE, subtype="PCM_16")
    data = bytearray((tmp_path / "a.flac").read_bytes())
    (there,) = struct.unpack(">Q", data[18:26])
    data[18:26] = struct.pack(">Q", there >> 36 << 36 | claimed)
    (tmp_path / "a.flac").write_bytes(data)
    assert sound.read_sound(tmp_path / "a.flac").tolist() == (LOUD / 2**15).tolist()
    said = [str(one.message) for one in recwarn.list if one.category is sound.SoundWarning]
    missing = f"a.flac ends {claimed - 1600} samples before its header says; what is there is read"
    assert [missing in one for one in said] == [True] * (claimed > 0)


def test_a_sound_longer_than_can_be_read_is_refused(tmp_path):
    file: Path = tmp_path / "long.wav"
    size = 2 * (2**30 + 1)
    file.write_bytes(wav(b"", size, 36 + size))
    os.truncate(file, 44 + size)
    with pytest.raises(tasks.TaskError, match="long.wav has more than 18.6 hours of sound; cut it"):
        media.heard(str(file))


def test_a_part_that_begins_beyond_all_numbers_has_no_samples(tmp_path):
    (tmp_path / "a.wav").write_bytes(wav(LOUD))
    with pytest.raises(tasks.TaskError, match="has no samples"):
        media.heard(f"{tmp_path}/a.wav#{'9' * 400}")
