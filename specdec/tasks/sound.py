"""Log-mel features of sound, as Whisper reads them (Radford et al. 2022, 2212.04356, section 2.2).

A frame is the power of 25 ms of sound in frequency bands that are as wide as they sound. A frame
begins every 10 ms, and a window of 30 s has 3,000.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
import wave
from types import ModuleType
from typing import NamedTuple

import numpy as np

RATE = 16_000  # samples per second
SECONDS = 30  # of a window
HOP = 160  # samples from one frame to the next
_FRAME = 400  # samples of a frame
_AT_ONCE = 3000  # frames, so that a long sound needs little memory
_FLOOR = 1e-10  # the least power
_UNKNOWN_SIZE = 0x7FFF_0000  # bytes, from which on the size in a header says nothing
_RANGE = 8.0  # powers of ten below the loudest, to which the rest is raised


def read_sound(file: str | os.PathLike) -> np.ndarray:
    """Returns the samples of a file of sound as float32 in [-1, 1], `RATE` per second.

    They are the mean of the file's channels. PCM of 16 bits at 16 kHz in a WAV file is read without
    the extra `sound`. A file that ends early is read as far as it goes, with a `SoundWarning`.

    Raises:
      OSError: there is no such file.
      ValueError: it cannot be read, or libraries are missing that read it.
    """
    missing = _missing_bytes(file)
    try:
        with wave.open(str(file), "rb") as opened:
            plain = (opened.getframerate(), opened.getsampwidth()) == (RATE, 2)
            channels, data = opened.getnchannels(), opened.readframes(opened.getnframes())
    except (wave.Error, EOFError):
        plain = False
    if plain:
        whole = data[: len(data) // (2 * channels) * 2 * channels]
        samples, rate = np.frombuffer(whole, "<i2").astype(np.float32) / 2**15, RATE
        samples = samples.reshape(-1, channels)
    else:
        samples, rate = _by_library(file)
    if missing:
        warnings.warn(
            f"{file} ends {missing} bytes before its header says; what is there is read, "
            f"{len(samples) / rate:.6g} s",
            SoundWarning,
            stacklevel=2,
        )
    samples = samples.mean(axis=1, dtype=np.float32)
    return samples if rate == RATE else _libraries(file).soxr.resample(samples, rate, RATE)


class SoundWarning(UserWarning):
    """A file of sound is not what it says."""


class _Libraries(NamedTuple):
    soundfile: ModuleType
    soxr: ModuleType


def _libraries(file: str | os.PathLike) -> _Libraries:
    try:
        return _Libraries(*map(importlib.import_module, _Libraries._fields))
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{file} is no WAV file of 16 bits with {RATE} samples per second, and needs "
            f"{error.name}; pip install soundfile soxr"
        ) from error


def _by_library(file: str | os.PathLike) -> tuple[np.ndarray, int]:
    """Returns samples [n, channels] and their rate."""
    soundfile = _libraries(file).soundfile
    try:
        return soundfile.read(file, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(
            f"{file} is no sound that can be read ({error.error_string.strip(' .')}); convert it "
            "to WAV, FLAC, MP3 or OGG"
        ) from error


def _missing_bytes(file: str | os.PathLike) -> int:
    """Returns how many bytes a WAV file is shorter than its header says; 0 for other files.

    A program that writes to a pipe does not know the length, and says the longest.
    """
    with open(file, "rb") as opened:
        if opened.read(4) != b"RIFF":
            return 0
        ends = [8 + int.from_bytes(opened.read(4), "little")]
        opened.seek(12)
        while len(head := opened.read(8)) == 8:
            ends.append(opened.tell() + (size := int.from_bytes(head[4:], "little")))
            if head.startswith(b"data"):
                break
            opened.seek(size + size % 2, os.SEEK_CUR)
        size = opened.seek(0, os.SEEK_END)
    return max([0, *(end - size for end in ends if end < _UNKNOWN_SIZE)])


def windows(samples: np.ndarray, seconds: int = SECONDS) -> np.ndarray:
    """Returns samples [n] as windows [W, seconds * RATE], the last one filled up with silence."""
    size = seconds * RATE
    count = max(1, -(-len(samples) // size))
    return np.pad(samples, (0, count * size - len(samples))).reshape(count, size)


def log_mel(samples: np.ndarray, mel_bins: int = 80) -> np.ndarray:
    """Returns the log-mel features [W, mel_bins, n // HOP] float32 of sounds [W, n].

    Args:
      samples: [W, n], of windows or of whole sounds.
      mel_bins: the frequency bands, 80 or 128 in released models.

    Raises:
      ValueError: the samples have another shape, or are shorter than a frame.
    """
    if np.ndim(samples) != 2 or samples.shape[1] < _FRAME:
        raise ValueError(
            f"samples have the shape {np.shape(samples)}; give [windows, samples] with at least "
            f"{_FRAME} samples, such as the result of `windows`"
        )
    around = np.pad(samples, ((0, 0), (_FRAME // 2, _FRAME // 2)), mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(around, _FRAME, axis=1)
    frames = frames[:, : samples.shape[1] // HOP * HOP : HOP]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FRAME) / _FRAME)
    logs = []
    for begin in range(0, frames.shape[1], _AT_ONCE):  # each sample is in several frames
        power = np.abs(np.fft.rfft(frames[:, begin : begin + _AT_ONCE] * hann, axis=-1)) ** 2
        logs.append(np.log10(np.maximum(power @ _mel_filters(mel_bins), _FLOOR)))
    found = np.concatenate(logs, axis=1).swapaxes(1, 2)
    found = np.maximum(found, found.max(axis=(1, 2), keepdims=True) - _RANGE)
    return ((found + 4) / 4).astype(np.float32)


@functools.cache
def _mel_filters(bins: int) -> np.ndarray:
    """Returns [frequencies, bins], triangles of equal area between neighbouring mels.

    Mels are Slaney's: linear up to 1 kHz, and logarithmic above.
    """
    step = np.log(6.4) / 27  # of a mel above 1 kHz, which is mel 15
    top = 15 + np.log(RATE / 2 / 1000) / step
    mels = np.linspace(0, top, bins + 2)
    hertz = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * step))
    frequencies = np.linspace(0, RATE / 2, 1 + _FRAME // 2)[:, None]
    low, middle, high = hertz[:-2], hertz[1:-1], hertz[2:]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)
