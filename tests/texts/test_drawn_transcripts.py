"""Transcripts that are drawn, by a Whisper with windows of a second: pytest tests/texts -m ci"""

from __future__ import annotations

import itertools

import long_sounds
import pytest

from specdec import checkpoints
from specdec.integrations.interactive import InteractiveModel
from specdec.sampling import Sampling

POSITIONS, CONTEXT = 50, 24


@pytest.mark.ci
def test_each_sound_sample_and_seed_has_draws_of_its_own(tmp_path, monkeypatch):
    """One sound three times, in batches of two: a text does not depend on those around it."""
    size = long_sounds.NO_TIMESTAMPS + 1 + POSITIONS + 1
    sizes = {"vocab_size": size, "max_source_positions": POSITIONS, "max_target_positions": CONTEXT}
    for name, value in (("POSITIONS", POSITIONS), ("SIZE", size), ("CONTEXT", CONTEXT)):
        monkeypatch.setattr(long_sounds, name, value)
    monkeypatch.setattr(long_sounds, "CONFIG", long_sounds.CONFIG | sizes)
    folder = long_sounds.make_model(
        tmp_path / "model", max_length=CONTEXT, max_initial_timestamp_index=10
    )
    long_sounds.make_tokenizer(folder)
    model = InteractiveModel(
        folder,
        generation_settings=checkpoints.Transcribed(timestamps=True),
        lengths={"inputs": 1, "targets": CONTEXT - 1},
        batch_size=2,
        sampling=Sampling(1.0),
    )
    file = str(long_sounds.write_sound(tmp_path / "3.wav", long_sounds.sound(3)))
    found = [
        text
        for seed, sample in ((5, 0), (5, 1), (6, 0))
        for text in model.transcribe([file] * 3, seed=seed, sample=sample)
    ]
    assert all(one.tokens != other.tokens for one, other in itertools.combinations(found, 2))
    (alone,) = model.transcribe([file], seed=5)
    assert (alone.tokens, alone.segments) == (found[0].tokens, found[0].segments)
    for text in found:
        times = [(part["start"], part["end"]) for part in text.segments]
        assert times == sorted(times) and times[-1][1] < 4 and len(times) > 2
        assert len(text.log_probs) == len(text.tokens) and max(text.log_probs) <= 0
