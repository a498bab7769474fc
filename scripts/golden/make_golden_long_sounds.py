"""Makes tests/golden/long_sounds.json: transcripts of sounds of up to 200 seconds by transformers.

  pip install torch transformers safetensors soxr
  python scripts/golden/make_golden_long_sounds.py

The model and the sounds are those of `tests/long_sounds.py`.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import soxr
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path.append(str(TESTS))
import long_sounds  # noqa: E402

CASES = {  # name: arguments of `generate`, and settings of the checkpoint
    "english": ({"language": "en"}, {}),
    "translated": ({"language": "de", "task": "translate"}, {}),
    "found": ({}, {}),
    "found_by_older_settings": (
        {},
        {"forced_decoder_ids": [[1, None], [2, long_sounds.TRANSCRIBE]]},
    ),
}


def transcribe(
    folder: Path, seconds: int, timestamps: bool, given: dict, rate: int = long_sounds.RATE
) -> dict:
    """Returns the ids of a sound, and the times of its segments."""
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    sound = long_sounds.sound(seconds).astype(np.float32) / 2**15
    sound = soxr.resample(sound, rate, long_sounds.RATE)
    how = {"truncation": False, "padding": "longest"} if seconds > 30 else {}
    features = WhisperFeatureExtractor(feature_size=long_sounds.MEL_BINS)(
        sound, sampling_rate=long_sounds.RATE, return_tensors="pt", **how
    )["input_features"]
    with torch.no_grad():
        found = model.generate(
            features, return_timestamps=timestamps, return_segments=True, num_beams=1, **given
        )
    return {
        "tokens": found["sequences"][0].tolist(),
        "segments": [
            [round(float(segment["start"]), 2), round(float(segment["end"]), 2)]
            for segment in found["segments"][0]
        ],
    }


def main() -> None:
    golden = {}
    with tempfile.TemporaryDirectory() as place:
        for name, (given, settings) in CASES.items():
            folder = long_sounds.make_model(Path(place) / name, **settings)
            for seconds in long_sounds.SECONDS:
                stamped = transcribe(folder, seconds, True, given)
                golden[f"{name} {seconds}"] = stamped
                print(name, seconds, len(stamped["tokens"]), len(stamped["segments"]))
            # Long sounds have timestamps whether they are asked for or not.
            plain = transcribe(folder, long_sounds.SECONDS[0], False, given)
            golden[f"{name} without timestamps"] = plain
        folder, (given, _) = Path(place) / "english", CASES["english"]
        golden["resampled"] = transcribe(folder, 65, True, given, rate=22_050)
    lines = (f" {json.dumps(name)}: {json.dumps(found)}" for name, found in golden.items())
    file = TESTS / "golden" / "long_sounds.json"
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
