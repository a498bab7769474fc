"""Pictures and sounds that are not what they say: pytest tests/tasks/test_media_faults.py"""

from __future__ import annotations

import os
import socket
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from specdec import cli
from specdec.tasks import TaskError
from specdec.tasks.loading import quiet_stderr
from specdec.tasks.media import heard
from specdec.tasks.pictures import PictureSettings
from specdec.tasks.sound import RATE, SoundWarning, read_sound

SAMPLES = (8000 * np.sin(np.arange(1600) / 9)).astype("<i2")
UNCHANGED = PictureSettings(
    size=None, crop=None, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), scale=1.0
)
CLIP = PictureSettings(size=(336,), crop=(336, 336))
# The upright picture, by EXIF orientation.
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: a[::-1].transpose(1, 0, 2),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: a[:, ::-1].transpose(1, 0, 2),
    9: lambda a: a,  # no orientation
}


def wav(
    data: bytes, size: int | None = None, whole: int | None = None, rate=RATE, kind=1, bits=16
) -> bytes:
    """Returns a WAV file of one channel, with sizes that its header says in place of the right."""
    size = len(data) if size is None else size
    whole = 36 + len(data) if whole is None else whole
    form = struct.pack("<HHIIHH", kind, 1, rate, rate * bits // 8 % 2**32, bits // 8, bits)
    head = b"RIFF" + struct.pack("<I", whole) + b"WAVEfmt " + struct.pack("<I", 16) + form
    return head + b"data" + struct.pack("<I", size) + data


def png(width: int, height: int, rows: int | None = None) -> bytes:
    """Returns a black picture of one bit; `rows` are there, by default all."""
    row = bytes(1 + -(-width // 8))
    data = zlib.compress(row * (height if rows is None else rows), 9)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", data)]
    parts += [(b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(x)) + k + x + struct.pack(">I", zlib.crc32(k + x)) for k, x in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_pictures_are_turned_as_their_exif_data_say(kind, tmp_path):
    array = np.random.default_rng(0).integers(0, 256, [5, 9, 3], dtype=np.uint8)
    more = {"lossless": True} if kind == "webp" else {}
    for orientation, upright in UPRIGHT.items():
        exif, file = Image.Exif(), tmp_path / f"{orientation}.{kind}"
        exif[0x0112] = orientation
        Image.fromarray(array).save(file, exif=exif, **more)
        stored = np.asarray(Image.open(file))
        right = upright(stored).transpose(2, 0, 1)
        np.testing.assert_array_equal(UNCHANGED.pixels(file), right)
        with Image.open(file) as opened:
            np.testing.assert_array_equal(UNCHANGED.pixels(opened), right)


@pytest.mark.parametrize(
    "name, data, says",
    [
        ("thin", png(1, 10_000), "has 1 x 10000 pixels, and would become 336 x 3360000, cut to"),
        ("flat", png(10_000, 1), "has 10000 x 1 pixels, and would become 3360000 x 336, cut to"),
        ("thinner", png(1, 2**30, 1), "has 1 x 1073741824 pixels, and|exceeds limit"),
        ("bomb", png(2**31 - 1, 2**31 - 1, 0), "bomb is no picture .*exceeds limit of 178956970"),
        ("cut", png(500, 500)[:-30], "cut is no picture that can be read .image file is truncated"),
        ("none", b"P6\n0 0\n255\n", "none is no picture that can be read"),
        ("drawing", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot identify image"),
        ("page", b"<!DOCTYPE html>", "page is no picture that can be read .cannot identify image"),
    ],
    ids=lambda x: x if isinstance(x, str) and x.isalpha() else "",
)
def test_pictures_that_cannot_be_read_are_one_line(name, data, says, tmp_path, recwarn, capfd):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TaskError, match=says) as raised:
        CLIP.pixels(tmp_path / name)
    assert "\n" not in str(raised.value) and name in str(raised.value)
    assert not recwarn.list and capfd.readouterr() == ("", "")


def test_sizes_of_a_checkpoint_are_compared_before_pixels_are_made(tmp_path):
    (tmp_path / "a.png").write_bytes(png(30, 2000))
    file = tmp_path / "a.png"
    off = {"do_resize": False, "do_center_crop": False}
    with pytest.raises(TaskError, match=r"becomes \[3, 2000, 30\] pixels, and the target reads"):
        PictureSettings.from_record(off).pixels(file, [3, 336, 336])
    assert PictureSettings.from_record(off).pixels(file, [3, 2000, 30]).shape == (3, 2000, 30)
    kept = PictureSettings.from_record(off | {"do_center_crop": True, "crop_size": 25})
    assert kept.pixels(file).shape == (3, 25, 25)
    for record in ({"size": 10**6}, {"crop_size": 10**9}):
        with pytest.raises(TaskError, match="would become .*; cut it to a part that is less narr"):
            PictureSettings.from_record(record).pixels(file)
    for most, more in (
        ({"size": (2**13, 2**13), "crop": None}, {"size": (2**13, 2**13 + 1), "crop": None}),
        ({"size": None, "crop": (2**13, 2**13)}, {"size": None, "crop": (2**13, 2**13 + 1)}),
    ):
        PictureSettings(**most)._check_size("a.png", 30, 20)
        width, height = (8193, 8192) if more["size"] else (30, 20)
        said = f"would become {width} x {height}, cut to 8193 x 8192; cut it to a part"
        with pytest.raises(TaskError, match=f"^picture a.png has 30 x 20 pixels, and {said}"):
            PictureSettings(**more)._check_size("a.png", 30, 20)
    with pytest.raises(ValueError, match="PictureSettings.resample is 7; give one of 0, 1, 2, 3"):
        PictureSettings.from_record({"resample": 7})


@pytest.mark.parametrize("read", [CLIP.pixels, heard, read_sound])
def test_names_of_what_is_no_file_are_refused_at_once(read, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
    kinds = {"fifo": "pipe", "link": "pipe", "folder": "folder", "socket": "socket"}
    for name, kind in [*kinds.items(), ("/dev/zero", "device")]:
        with pytest.raises((TaskError, OSError), match=f"it is a {kind}, and not a regular file"):
            read(str(tmp_path / name))


def test_a_fifo_of_texts_is_refused_and_a_pipe_of_the_shell_is_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for name, kind in ((str(tmp_path / "fifo"), "pipe"), ("/dev/zero", "device")):
        with pytest.raises(cli.UsageError, match=f"{name} cannot be read: it is a {kind}, and not"):
            cli.given_texts(name)
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n")
    os.close(writing)
    assert [text for text, _ in cli.given_texts(f"/dev/fd/{reading}")] == ["one", "two"]
    os.close(reading)


@pytest.mark.parametrize("whole", [0, 36, 2**32 - 1])
@pytest.mark.parametrize("size", [0, 2**32 - 1])
def test_a_wav_that_was_streamed_is_read_to_its_end(size, whole, tmp_path, recwarn):
    """The header says nothing of the length."""
    floats = (SAMPLES / 2**15).astype("<f4")
    plain, other = tmp_path / "plain.wav", tmp_path / "float.wav"
    plain.write_bytes(wav(SAMPLES.tobytes(), size, whole))
    assert read_sound(plain).tolist() == floats.tolist()
    pytest.importorskip("soundfile")
    other.write_bytes(wav(floats.tobytes(), size, whole, kind=3, bits=32))
    assert read_sound(other).tolist() == floats.tolist()
    assert not recwarn.list


def test_a_wav_whose_other_chunks_follow_no_samples_is_empty(tmp_path):
    note = b"LIST" + struct.pack("<I", 4) + b"INFO"
    (tmp_path / "none.wav").write_bytes(wav(note, 0))
    with pytest.raises(TaskError, match="none.wav' has no samples"):
        heard(str(tmp_path / "none.wav"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_no_number_is_named(value, tmp_path):
    pytest.importorskip("soundfile")
    floats = (SAMPLES / 2**15).astype("<f4")
    floats[400] = value
    (tmp_path / "nan.wav").write_bytes(wav(floats.tobytes(), kind=3, bits=32))
    says = "nan.wav has samples that are NaN or infinite, 1 of 1600, the first at 0.025 s; repair"
    with pytest.raises(TaskError, match=says):
        heard(str(tmp_path / "nan.wav"))


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
    with pytest.raises(TaskError, match=rf"{name} is no sound that can be read \(Format not rec"):
        heard(str(tmp_path / name))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("rate", [1, 999, 2**20 + 1, 2**31 - 1])
def test_a_rate_that_is_none_of_sound_is_refused(rate, tmp_path):
    pytest.importorskip("soundfile")
    (tmp_path / "a.wav").write_bytes(wav(SAMPLES.tobytes(), rate=rate))
    says = f"a.wav says that it has {rate} samples per second; give a sound with 1,000 to 1,048,576"
    with pytest.raises(TaskError, match=says):
        heard(str(tmp_path / "a.wav"))


@pytest.mark.parametrize("claimed", [0, 2**29, 2**36 - 1])
def test_the_length_that_a_flac_claims_takes_no_memory(claimed, tmp_path, recwarn):
    """0 is that of a stream. The number is in the last 36 bits of 8 bytes."""
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.flac", SAMPLES, RATE, subtype="PCM_16")
    data = bytearray((tmp_path / "a.flac").read_bytes())
    (there,) = struct.unpack(">Q", data[18:26])
    data[18:26] = struct.pack(">Q", there >> 36 << 36 | claimed)
    (tmp_path / "a.flac").write_bytes(data)
    assert read_sound(tmp_path / "a.flac").tolist() == (SAMPLES / 2**15).tolist()
    said = [str(one.message) for one in recwarn.list if one.category is SoundWarning]
    missing = f"a.flac ends {claimed - 1600} samples before its header says; what is there is read"
    assert [missing in one for one in said] == [True] * (claimed > 0)


def test_a_sound_longer_than_can_be_read_is_refused(tmp_path):
    file: Path = tmp_path / "long.wav"
    size = 2 * (2**30 + 1)
    file.write_bytes(wav(b"", size, 36 + size))
    os.truncate(file, 44 + size)
    with pytest.raises(TaskError, match="long.wav has more than 18.6 hours of sound; cut it into"):
        heard(str(file))


def test_a_part_that_begins_beyond_all_numbers_has_no_samples(tmp_path):
    (tmp_path / "a.wav").write_bytes(wav(SAMPLES.tobytes()))
    with pytest.raises(TaskError, match="has no samples"):
        heard(f"{tmp_path}/a.wav#{'9' * 400}")


def test_threads_that_silence_libraries_leave_stderr_open(capfd):
    inside, ended = threading.Event(), threading.Event()

    def second():
        with quiet_stderr():
            inside.set()
            ended.wait(5)

    other = threading.Thread(target=second)
    with quiet_stderr():
        other.start()
        inside.wait(0.1)
        os.write(2, b"not heard")
    ended.set()
    other.join()
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"
