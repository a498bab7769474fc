"""The ids that open outputs of a Whisper: pytest tests/checkpoints/test_transcriptions.py"""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest

from specdec import Plan
from specdec.checkpoints import generation_settings
from specdec.checkpoints.errors import CheckpointError
from specdec.checkpoints.transcription import Transcribed, transcription
from specdec.drafters import Autoregressive
from specdec.sampling import (
    Greedy,
    NoRepeatNGram,
    Opening,
    Sampling,
    SuppressTokens,
    SuppressTokensAtBegin,
    Timestamps,
    with_processors,
)
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.verifiers import GreedyMatch

END, EN, DE, TRANSLATE, TRANSCRIBE, PLAIN = range(9, 15)
SETTINGS = {
    "eos_token_id": END,
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": EN, "<|de|>": DE},
    "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    "no_timestamps_token_id": PLAIN,
    "begin_suppress_tokens": [3, END],
    "suppress_tokens": [4, 5],
    "max_initial_timestamp_index": 50,
}


def put(folder, **changes):
    settings = {k: v for k, v in (SETTINGS | changes).items() if v is not None}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    "changes, asked, opening",
    [
        ({}, {"language": "en"}, (EN, TRANSCRIBE, PLAIN)),
        ({}, {"language": "<|de|>", "task": "translate"}, (DE, TRANSLATE, PLAIN)),
        ({"language": "<|de|>"}, {}, (DE, TRANSCRIBE, PLAIN)),
        ({"language": "de", "task": "translate"}, {}, (DE, TRANSLATE, PLAIN)),
        ({"language": "de", "task": "translate"}, {"language": "en"}, (EN, TRANSLATE, PLAIN)),
        ({}, {}, ((EN, DE), PLAIN)),
        ({}, {"task": "translate"}, ((EN, DE), TRANSLATE, PLAIN)),
        # Settings of older checkpoints, which count unless something newer is said.
        ({"forced_decoder_ids": [[1, DE], [2, TRANSLATE], [3, PLAIN]]}, {}, (DE, TRANSLATE, PLAIN)),
        (
            {"forced_decoder_ids": [[1, None], [2, TRANSCRIBE]]},
            {},
            ((EN, DE), TRANSCRIBE, PLAIN),
        ),
        ({"forced_decoder_ids": [[1, None], [2, PLAIN]]}, {}, ((EN, DE), PLAIN)),
        (
            {"forced_decoder_ids": [[1, DE], [2, TRANSLATE]]},
            {"language": "en"},
            (EN, TRANSCRIBE, PLAIN),
        ),
        ({"is_multilingual": False}, {}, (PLAIN,)),
    ],
)
def test_what_outputs_open_with(tmp_path, changes, asked, opening):
    """A language that the model finds is no prefix."""
    choices = tuple(one if isinstance(one, tuple) else (one,) for one in opening)
    rules = SuppressTokensAtBegin((3, END), len(choices)), SuppressTokens((4, 5))
    found = transcription(put(tmp_path, **changes), **asked)
    if any(len(one) > 1 for one in choices):
        assert found == ((), (*rules, Opening(choices)))
    else:
        assert found == (opening, rules)
    assert Transcribed(**asked).processors(tmp_path) == (*rules, Opening(choices))


def test_timestamps_take_the_place_of_their_absence(tmp_path):
    put(tmp_path, suppress_tokens=None, begin_suppress_tokens=None)
    found = transcription(tmp_path, "en", timestamps=True)
    assert found == ((EN, TRANSCRIBE), (Timestamps(PLAIN, END, 2, 50),))
    put(tmp_path, max_initial_timestamp_index=None, eos_token_id=[7, END], is_multilingual=False)
    rules = SuppressTokensAtBegin((3, END), 0), SuppressTokens((4, 5)), Timestamps(PLAIN, 7, 0)
    assert transcription(tmp_path, timestamps=True) == ((), rules)
    assert Transcribed(timestamps=True).processors(tmp_path) == rules


@pytest.mark.parametrize(
    "changes, asked, says",
    [
        (
            {"is_multilingual": False},
            {"task": "translate"},
            "transcribes English alone (is_multilingual); leave out language and task",
        ),
        (
            {"lang_to_id": None},
            {"language": "en"},
            "has no lang_to_id in generation_config.json; copy the file of the model's release",
        ),
        ({}, {"language": "fr"}, "language is 'fr'; give one that {} has: de, en"),
        (
            {},
            {"language": "en", "task": "sing"},
            "task is 'sing'; give one that {} has: transcribe, translate",
        ),
        (
            {"lang_to_id": {f"<|{x}|>": END for x in "fedcba"}},
            {"language": "g"},
            "language is 'g'; give one that {} has: a, b, c, d, e, ...",
        ),
        (
            {"lang_to_id": {f"<|{x}|>": END for x in "edcba"}},
            {"language": "g"},
            "language is 'g'; give one that {} has: a, b, c, d, e",
        ),
    ],
)
def test_what_a_checkpoint_lacks_is_one_line(tmp_path, changes, asked, says):
    with pytest.raises(CheckpointError) as error:
        transcription(put(tmp_path, **changes), **asked)
    assert str(error.value).endswith(says.format(tmp_path))


@pytest.mark.parametrize("own", [(), (NoRepeatNGram(3),)])
def test_timestamps_change_the_rules_of_the_run_and_of_its_draft(tmp_path, own):
    """Other rules stay, and so does a draft that is drawn otherwise."""
    text, chosen = SimpleNamespace(directory=put(tmp_path)), Transcribed("en")
    sampling = with_processors(Greedy(), own)
    target, draft = TableTarget(20), TableTarget(20, scale=2.0)
    parts = GreedyMatch(), Fixed(2), sampling, 8
    plan = Plan(target, Autoregressive(draft, sampling), *parts)
    plain = generation_settings._with(plan, chosen.processors(text.directory))
    opening = Opening(((EN,), (TRANSCRIBE,), (PLAIN,)))
    rules = SuppressTokensAtBegin((3, END), 3), SuppressTokens((4, 5)), opening
    assert set(plain.sampling.processors) == {*own, *rules}
    found = generation_settings.with_timestamps(plain, text, chosen)
    stamped = Timestamps(PLAIN, END, 2, 50), Opening(((EN,), (TRANSCRIBE,)))
    assert set(found.sampling.processors) == {
        *(*own, SuppressTokensAtBegin((3, END), 2), SuppressTokens((4, 5)), *stamped)
    }
    assert found.drafter.sampling == found.sampling and found.sampling.sampling == Greedy()
    asked = dataclasses.replace(chosen, timestamps=True)
    assert found == generation_settings._with(plan, asked.processors(text.directory))
    other = dataclasses.replace(plain, drafter=Autoregressive(draft, Sampling()))
    kept = generation_settings.with_timestamps(other, text, chosen)
    assert kept.drafter == other.drafter and kept.sampling == found.sampling
