"""Features of sound, against transformers' extractor: pytest tests/tasks/test_sound.py"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from specdec.tasks import sound

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "hf_whisper" / "golden.npz"


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
    samples = sound.read_wav(write(tmp_path / "tone.wav", golden["sound"][:, None]))
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
    found = sound.read_wav(write(tmp_path / "two.wav", samples))
    assert found.tolist() == [0.25, -1.0] and found.dtype == np.float32


def test_other_files_and_shapes_are_refused_in_one_line(tmp_path):
    slow = write(tmp_path / "slow.wav", np.zeros([4, 1], "<i2"), rate=8000)
    with pytest.raises(ValueError, match="has 8000 samples per second; convert it to 16000$"):
        sound.read_wav(slow)
    (tmp_path / "text.wav").write_text("not a sound")
    with pytest.raises(ValueError, match=r"is not a WAV file of PCM \(.*\); convert it$"):
        sound.read_wav(tmp_path / "text.wav")
    with pytest.raises(ValueError, match=r"samples have the shape \(1, 1601\); give \[windows, "):
        sound.log_mel(np.zeros([1, 1601]))
