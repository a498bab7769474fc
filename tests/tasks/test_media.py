"""Texts that name pictures and sound: pytest tests/tasks/test_media.py"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest
from long_sounds import write_sound
from PIL import Image

from specdec import cli, tasks
from specdec.tasks import TaskError, media
from specdec.tasks.loading import quiet_stderr
from specdec.tasks.media import heard
from specdec.tasks.pictures import PictureSettings
from specdec.tasks.plain import PlainBytes
from specdec.tasks.sound import RATE, log_mel, read_sound

IMAGE, PATCHES, SIDE = 63, 2, 4  # '<' of bytes is id 63


class Letters(PlainBytes):
    """Bytes in which `<image>` is one id, and prompts go on."""

    ends, continued = False, True

    def encode(self, text):
        ids = super().encode(text.replace("<image>", "<"))
        return ids


def pictures(**changes):
    settings = tasks.PictureSettings(size=(SIDE,), crop=(SIDE, SIDE))
    own = tasks.WithPictures(IMAGE, PATCHES, settings, **changes)
    return media.Illustrated(Letters(0), own)


def shape(rows, length, places=2):
    return {
        "tokens": jax.ShapeDtypeStruct((rows, length), np.int32),
        "pixels": jax.ShapeDtypeStruct((rows, places, 3, SIDE, SIDE), np.float32),
    }


@pytest.fixture
def files(tmp_path):
    image = pytest.importorskip("PIL.Image")
    colours = {"red": (255, 0, 0), "blue": (0, 0, 255)}
    for name, colour in colours.items():
        image.new("RGB", (SIDE, SIDE), colour).save(tmp_path / f"{name}.png")
    return tmp_path


def batch(texts, vocabulary, inputs_shape, length=12):
    pairs = [(text, None) for text in texts]
    given = {"inputs": length}, len(texts)
    (found,) = tasks.text_batches(
        pairs, vocabulary, given[0], batch_size=given[1], shape=inputs_shape
    )
    return found


def test_a_prompt_has_a_place_for_each_patch_and_its_pictures(files):
    text = f"a<image:{files}/red.png>b<image:{files}/blue.png>"
    found = batch([f"{text}c", "d"], pictures(), shape)
    a, b, c, d = (ord(letter) + 3 for letter in "abcd")
    assert found.inputs["tokens"].tolist()[0][:7] == [a, IMAGE, IMAGE, b, IMAGE, IMAGE, c]
    assert found.inputs["tokens"].tolist()[1] == [d] + 11 * [0]
    assert (found.ids == found.inputs["tokens"]).all()
    red, blue = found.inputs["pixels"][0, :, [0, 2], 0, 0].T
    assert red[0] > red[1] and blue[0] < blue[1]  # each in the place of its mark
    assert not found.inputs["pixels"][1].any()


def test_there_is_room_for_all_pictures_of_the_texts(files):
    red, blue = (f"<image:{files}/{name}.png>" for name in ("red", "blue"))
    one = lambda rows, length: shape(rows, length, 1)  # noqa: E731
    found = batch([f"{red}{blue}c", f"{blue}d", "e"], pictures(), one, 9).inputs["pixels"]
    assert found.shape[:2] == (3, 2)
    assert found.any(axis=(2, 3, 4)).tolist() == [[True, True], [True, False], [False, False]]


def test_a_model_of_texts_gets_the_tokens_alone(files):
    text = f"<image:{files}/red.png>b"
    plain = lambda rows, length: jax.ShapeDtypeStruct((rows, length), np.int32)  # noqa: E731
    assert batch([text], pictures(), plain, 4).inputs.tolist() == [[IMAGE, IMAGE, 101, 0]]


@pytest.mark.parametrize(
    "text, length, places, message",
    [
        ("<image>b", 9, 1, "names 0 pictures, and has the id 63 1 times; write <image:FILE>"),
        ("<image:{}/red.png>b", 2, 1, "3 tokens with its pictures, and inputs hold 2"),
        ("<image:{}/gone.png>b", 9, 1, "gone.png"),
    ],
)
def test_prompts_that_cannot_be_read(files, text, length, places, message):
    with pytest.raises(tasks.TaskError, match=message):
        batch([text.format(files)], pictures(), lambda *x: shape(*x, places), length)


def write(path, seconds):
    """Writes a tone."""
    samples = 1000 * np.sin(np.arange(int(seconds * RATE)) / 20)
    write_sound(path, samples.astype("<i2"))


def sound_shape(rows, length):
    return jax.ShapeDtypeStruct((rows, 8, 100), np.float32)  # a second


def test_sound_is_read_from_the_file_that_a_text_names(tmp_path):
    write(tmp_path / "long.wav", 1.5)
    write(tmp_path / "short.wav", 0.5)
    vocabulary = media.Spoken(PlainBytes(0))
    texts = [f"{tmp_path}/short.wav", f"{tmp_path}/long.wav#0", f"{tmp_path}/long.wav#1"]
    found = batch(texts, vocabulary, sound_shape)
    assert found.ids[:, 0].tolist() == 3 * [vocabulary.eos_id]
    tone = media.read_sound(tmp_path / "long.wav")
    parts = [tone[: RATE // 2], tone[:RATE], tone[RATE:]]
    expected = log_mel(np.stack([np.pad(x, (0, RATE - len(x))) for x in parts]), 8)
    np.testing.assert_array_equal(found.inputs, expected)
    rows = vocabulary.inputs(found.ids, texts[:1], sound_shape(3, 1))
    assert rows[0].any() and not rows[1:].any()  # rows of padding


@pytest.mark.parametrize(
    "name, message",
    [
        ("long.wav#9", "long.wav#9' has no samples; give a file or a part that has some"),
        ("gone.wav", "gone.wav' cannot be read"),
    ],
)
def test_sound_that_cannot_be_read(tmp_path, name, message):
    write(tmp_path / "long.wav", 1.5)
    with pytest.raises(tasks.TaskError, match=message):
        batch([f"{tmp_path}/{name}"], media.Spoken(PlainBytes(0)), sound_shape)


def test_a_vocabulary_of_texts_cannot_give_sound():
    with pytest.raises(tasks.TaskError, match="reads sound, and the vocabulary is one of texts"):
        batch(["a"], PlainBytes(0), sound_shape)
    with pytest.raises(tasks.TaskError, match="'a' is sound, and the target reads token ids"):
        batch(["a"], media.Spoken(PlainBytes(0)), shape)


def test_a_vocabulary_of_texts_gives_prompts_without_pictures():
    found = batch(["a"], PlainBytes(0), shape).inputs
    assert found["tokens"][0, 0] == 100 and not found["pixels"].any()


def test_a_column_of_files(tmp_path):
    data = tmp_path / "test.tsv"
    for name in ("p.png", "q.png", "talk.wav"):
        (tmp_path / name).touch()
    data.write_text("p.png q.png\tsee <image> and <image>\tyes\n")
    columns = ("files", "inputs", "targets")
    task = tasks.local_task("of_files", {"test": str(data)}, tasks.Bytes(), columns=columns)
    (example,) = task.examples("test", {"inputs": 99, "targets": 9})
    marks = [f"<image:{tmp_path}/{name}.png>" for name in "pq"]
    assert example.input_text == f"see {marks[0]} and {marks[1]}"
    assert example.target_text == "yes"
    data.write_text("talk.wav\tyes\n")
    alone = "files", "targets"
    task = tasks.local_task("of_sound", {"test": str(data)}, tasks.Bytes(), columns=alone)
    (example,) = task.examples("test", {"inputs": 99, "targets": 9})
    assert example.input_text == f"{tmp_path}/talk.wav"


def test_files_that_have_no_place(tmp_path):
    with pytest.raises(tasks.TaskError, match="<image> 1 times, and 2 files are given"):
        media.with_files("see <image>", ["p.png", "q.png"])
    with pytest.raises(tasks.TaskError, match=r"give \('inputs', 'targets'\) .* with 'files'"):
        tasks.local_task("none", {"test": "x"}, tasks.Bytes(), columns=("targets",))


def test_vocabularies_with_files_mean_what_their_texts_mean():
    text = tasks.Bytes()
    plain = tasks.for_texts(text)
    own = tasks.WithPictures(IMAGE, PATCHES, text=text), tasks.WithSound(text)
    for definition in own:
        assert tasks.same_vocabulary(tasks.for_texts(definition), plain)
        assert tasks.detokenize(definition.plain(), plain.encode("hi")) == "hi"


# Pictures as pixels. The golden ones are those of transformers' image processor.

PIXELS = Path(__file__).resolve().parents[1] / "golden" / "hf_llava" / "golden.npz"
SHORTER = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
RECORDS = {
    "wide": SHORTER,
    "high": SHORTER | {"size": 28, "crop_size": 28},  # as older files say it
    "small": SHORTER | {"size": {"shortest_edge": 21}},
    "stretched": SHORTER | {"size": {"height": 28, "width": 28}},
    "grey": SHORTER,
}


@pytest.mark.parametrize("name", RECORDS)
def test_pixels_are_those_of_transformers(name, tmp_path):
    golden = np.load(PIXELS)
    image = Image.fromarray(golden[f"{name}_bytes"])
    image.save(tmp_path / "picture.png")
    settings = PictureSettings.from_record(RECORDS[name])
    for picture in (image, tmp_path / "picture.png"):
        found = settings.pixels(picture)
        assert found.dtype == np.float32
        atol = 1e-5  # some roundings of numbers up to 2.2
        np.testing.assert_allclose(found, golden[f"{name}_pixels"], rtol=0, atol=atol)


def test_steps_can_be_left_out():
    off = dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), False)
    array = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    found = PictureSettings.from_record(SHORTER | off).pixels(Image.fromarray(array))
    np.testing.assert_array_equal(found, array.transpose(2, 0, 1))


@pytest.mark.parametrize(
    "record, says",
    [
        ({"do_pad": True}, "do_pad is True, and supported is False; use another model"),
        ({"size": {"longest_edge": 5}}, "a size of pictures is .'longest_edge': 5.; supported are"),
        ({"image_mean": 0.5}, "PictureSettings.mean is 0.5; give three numbers, for red"),
        ({"size": 0}, r"PictureSettings.size is \(0,\); give a side, as in \(336,\)"),
    ],
)
def test_other_settings_are_refused_in_one_line(record, says):
    with pytest.raises(ValueError, match=says) as raised:
        PictureSettings.from_record(record)
    assert "\n" not in str(raised.value)


def test_pillow_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(TaskError, match="pictures need Pillow; pip install pillow"):
        PictureSettings().pixels("a.png")


# Files that are not what they say.

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
