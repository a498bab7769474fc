"""Log-mel features of sound, as Whisper reads them (Radford et al. 2022, 2212.04356, section 2.2).

A frame is the power of 25 ms of sound in frequency bands that are as wide as they sound. A frame
begins every 10 ms, and a window of 30 s has 3,000.
"""

from __future__ import annotations

import functools
import os
import wave

import numpy as np

RATE = 16_000  # samples per second
SECONDS = 30  # of a window
HOP = 160  # samples from one frame to the next
_FRAME = 400  # samples of a frame
_FLOOR = 1e-10  # the least power
_RANGE = 8.0  # powers of ten below the loudest, to which the rest is raised


def read_wav(file: str | os.PathLike) -> np.ndarray:
    """Returns the samples of a WAV file as float32 in [-1, 1], the mean of its channels.

    Raises:
      ValueError: it is no PCM file of 8, 16 or 32 bits at 16 kHz.
    """
    try:
        with wave.open(str(file), "rb") as opened:
            rate, size = opened.getframerate(), opened.getsampwidth()
            channels, data = opened.getnchannels(), opened.readframes(opened.getnframes())
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{file} is not a WAV file of PCM ({error}); convert it") from error
    if rate != RATE:
        raise ValueError(f"{file} has {rate} samples per second; convert it to {RATE}")
    if size not in (1, 2, 4):
        raise ValueError(f"{file} has samples of {8 * size} bits; convert it to 16")
    samples = np.frombuffer(data, "u1" if size == 1 else f"<i{size}").astype(np.float32)
    samples = samples / 128 - 1 if size == 1 else samples / 2 ** (8 * size - 1)
    return samples.reshape(-1, channels).mean(axis=1, dtype=np.float32)


def windows(samples: np.ndarray, seconds: int = SECONDS) -> np.ndarray:
    """Returns samples [n] as windows [W, seconds * RATE], the last one filled up with silence."""
    size = seconds * RATE
    count = max(1, -(-len(samples) // size))
    return np.pad(samples, (0, count * size - len(samples))).reshape(count, size)


def log_mel(samples: np.ndarray, mel_bins: int = 80) -> np.ndarray:
    """Returns the log-mel features [W, mel_bins, n / HOP] float32 of windows [W, n].

    Args:
      samples: [W, n], with n a multiple of `HOP`.
      mel_bins: the frequency bands, 80 or 128 in released models.

    Raises:
      ValueError: the samples have another shape.
    """
    if np.ndim(samples) != 2 or samples.shape[1] % HOP or samples.shape[1] < _FRAME:
        raise ValueError(
            f"samples have the shape {np.shape(samples)}; give [windows, samples] with a multiple "
            f"of {HOP} samples, such as the result of `windows`"
        )
    around = np.pad(samples, ((0, 0), (_FRAME // 2, _FRAME // 2)), mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(around, _FRAME, axis=1)[:, :-1:HOP]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FRAME) / _FRAME)
    power = np.abs(np.fft.rfft(frames * hann, axis=-1)) ** 2
    logs = np.log10(np.maximum(power @ _mel_filters(mel_bins), _FLOOR)).swapaxes(1, 2)
    logs = np.maximum(logs, logs.max(axis=(1, 2), keepdims=True) - _RANGE)
    return ((logs + 4) / 4).astype(np.float32)


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
