"""Log-mel features of sound, as Whisper reads them (Radford et al. 2022, 2212.04356, section 2.2).

A frame is the power of 25 ms of sound in frequency bands of equal width on the mel scale. A frame
begins every 10 ms, and a window of 30 s has 3,000 frames.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import struct
import warnings
from types import ModuleType
from typing import BinaryIO, NamedTuple

import numpy as np

from specdec.common.file_names import check_regular
from specdec.tasks.loading import quiet_stderr

RATE = 16_000  # samples per second
SECONDS = 30  # of a window
HOP = 160  # samples from one frame to the next
_FRAME = 400  # samples of a frame
_AT_ONCE = 3000  # frames that are computed together; a long sound then needs little memory
_FLOOR = 1e-10  # the least power
_UNKNOWN_SIZE = 0x7FFF_0000  # bytes; from here on, a header's size means that it is unknown
_FRAMES = 2 * 1152  # samples of two frames of an MP3
_BLOCK = 2**20  # samples that are read in one call
_RATES = 1_000, 2**20  # the lowest and the highest rate that is read, in samples per second
_MOST = 2**30  # samples of a sound before and after resampling
_RANGE = 8.0  # powers of ten below the loudest, to which the rest is raised


def read_sound(file: str | os.PathLike) -> np.ndarray:
    """Returns the samples of a file of sound as float32 in [-1, 1], `RATE` per second.

    Channels are averaged. PCM of 16 bits at 16 kHz in a WAV file is read without the libraries of
    the extra `sound`. A file that ends early is read as far as it goes, with a `SoundWarning`.
    """
    check_regular(file)
    with open(file, "rb") as opened:
        wav = _Wav.of(opened)
        if wav is not None and wav.is_plain:
            _check_size(file, wav.size // (2 * wav.channels), RATE)
            opened.seek(wav.begin)
            data = opened.read(wav.size // (2 * wav.channels) * 2 * wav.channels)
            samples, rate = np.frombuffer(data, "<i2").astype(np.float32) / 2**15, RATE
            samples = samples.reshape(-1, wav.channels).mean(axis=1, dtype=np.float32)
            early = ""
        else:
            samples, rate, early = _by_library(file, wav and wav.repaired(opened))
    if wav is not None and wav.missing:
        early = f"ends {wav.missing} bytes before its header says"
    if early:
        warnings.warn(
            f"{file} {early}; what is there is read, {len(samples) / rate:.6g} s",
            SoundWarning,
            stacklevel=2,
        )
    finite = np.isfinite(samples)
    if not finite.all():
        first = int(np.argmin(finite))
        raise ValueError(
            f"{file} has samples that are NaN or infinite, {len(finite) - int(finite.sum())} of "
            f"{len(finite)}, the first at {first / rate:.6g} s; repair it"
        )
    return samples if rate == RATE else _libraries(file).soxr.resample(samples, rate, RATE)


class SoundWarning(UserWarning):
    """The warning that a file of sound ends before its header says."""


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


def _by_library(
    file: str | os.PathLike, repaired: io.BytesIO | None
) -> tuple[np.ndarray, int, str]:
    """Returns samples [n], their rate, and a message if the file ends early, else ''.

    The number of samples in the header may be wrong: blocks are read until there are no more.
    """
    soundfile, blocks, count = _libraries(file).soundfile, [np.zeros(0, np.float32)], 0
    try:
        with quiet_stderr(), soundfile.SoundFile(repaired or str(file)) as opened:
            opened.seekable = lambda: False  # otherwise reading seeks to the header's end
            rate, claimed = opened.samplerate, opened.frames
            _check_size(file, 0, rate)
            while len(block := opened.read(_BLOCK, dtype="float32", always_2d=True)):
                blocks.append(block.mean(axis=1, dtype=np.float32))
                count += len(block)
                _check_size(file, count, rate)
    except (soundfile.SoundFileError, TypeError) as error:
        reason = getattr(error, "error_string", "").strip(" .")
        if not reason or "System error" in reason or "not exist" in reason:  # it is a file
            reason = "Format not recognised"
        raise ValueError(
            f"{file} is no sound that can be read ({reason}); convert it to WAV, FLAC, MP3 or OGG"
        ) from error
    slack = _FRAMES if opened.format == "MP3" else 0  # whose lengths are counted in frames
    is_short = count + slack < claimed < 2**62  # a stream does not know its length
    early = f"ends {claimed - count} samples before its header says" if is_short else ""
    return np.concatenate(blocks), rate, early


def _check_size(file: str | os.PathLike, samples: int, rate: int) -> None:
    """Raises ValueError for a rate outside of `_RATES`, and for more than `_MOST` samples."""
    if not _RATES[0] <= rate <= _RATES[1]:
        raise ValueError(
            f"{file} says that it has {rate} samples per second; give a sound with "
            f"{_RATES[0]:,} to {_RATES[1]:,}"
        )
    if samples > (most := _MOST * min(rate, RATE) // RATE):
        raise ValueError(
            f"{file} has more than {most / rate / 3600:.3g} hours of sound; cut it into several"
        )


class _Wav(NamedTuple):
    """Describes the samples of a WAV file, by its header and its actual length."""

    is_plain: bool  # whether the samples are PCM of 16 bits at `RATE`
    channels: int
    begin: int  # the first byte of the samples
    size: int  # bytes of samples in the file
    missing: int  # bytes that the header says and the file lacks
    is_open: bool  # whether the header says 0 bytes, but samples follow

    @classmethod
    def of(cls, file: BinaryIO) -> _Wav | None:
        """Returns the description of a WAV file; None for other files.

        A program that writes to a pipe cannot know the length: its header has the longest, or 0.
        """
        length = file.seek(0, os.SEEK_END)
        file.seek(0)
        if file.read(4) != b"RIFF":
            return None
        end, form = 8 + int.from_bytes(file.read(4), "little"), b""
        file.seek(12)
        while len(head := file.read(8)) == 8:
            begin, size = file.tell(), int.from_bytes(head[4:], "little")
            if head.startswith(b"data"):
                break
            if head.startswith(b"fmt "):
                form = file.read(16)
            file.seek(begin + size + size % 2)
        else:
            return None
        is_open = not size and begin < length and not begin < end < _UNKNOWN_SIZE
        ends = [x for x in (end, begin + size) if x < _UNKNOWN_SIZE]
        size = length - begin if is_open else min(size, length - begin)
        code, channels, rate, _, _, bits = struct.unpack("<HHIIHH", form.ljust(16, b"\0"))
        is_plain = (code, rate, bits) == (1, RATE, 16) and channels > 0
        return cls(is_plain, channels, begin, size, max([0, *(x - length for x in ends)]), is_open)

    def repaired(self, file: BinaryIO) -> io.BytesIO | None:
        """Returns the file with its actual length in the header; None unless the header says 0."""
        if not self.is_open:
            return None
        file.seek(0)
        data = bytearray(file.read())
        data[self.begin - 4 : self.begin] = min(self.size, 2**32 - 1).to_bytes(4, "little")
        return io.BytesIO(data)


def windows(samples: np.ndarray, seconds: int = SECONDS) -> np.ndarray:
    """Returns samples [n] as windows [W, seconds * RATE], the last one filled up with silence."""
    size = seconds * RATE
    count = max(1, -(-len(samples) // size))
    return np.pad(samples, (0, count * size - len(samples))).reshape(count, size)


def log_mel(samples: np.ndarray, mel_bins: int = 80) -> np.ndarray:
    """Returns the log-mel features [W, mel_bins, n // HOP] float32 of sounds [W, n]."""
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
    mel = np.concatenate(logs, axis=1).swapaxes(1, 2)
    mel = np.maximum(mel, mel.max(axis=(1, 2), keepdims=True) - _RANGE)
    return ((mel + 4) / 4).astype(np.float32)


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
