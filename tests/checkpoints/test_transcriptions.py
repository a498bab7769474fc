"""Whisper: the ids that open its outputs, and the model as transformers saves and runs it.

pytest tests/checkpoints/test_transcriptions.py; see tests/golden/README.md for the golden files.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import teacher_forced
from tolerances import LOGITS

from specdec import Plan, autoregressive_decode, checkpoints, decode, row_keys
from specdec.checkpoints import CheckpointError, generation_settings
from specdec.checkpoints.transcription import Transcribed, transcription
from specdec.drafters import Autoregressive
from specdec.models import families
from specdec.models.families import model_of
from specdec.models.sizes.kept_parts import Trim
from specdec.models.whisper import WhisperConfig
from specdec.sampling import (
    Greedy,
    NoRepeatNGram,
    Opening,
    Processed,
    Sampling,
    SuppressTokens,
    SuppressTokensAtBegin,
    Timestamps,
    with_processors,
)
from specdec.schedules import Fixed
from specdec.testing import TableTarget
from specdec.types import History, Params
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


# Whisper as transformers saves and runs it.

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "hf_whisper"
TEXTS = {
    "greedy": {"language": "en"},
    "translated": {"language": "de", "task": "translate"},
    "timestamps": {"language": "en", "timestamps": True},
}


@functools.cache
def opened():
    """Returns the model, its parameters and the golden arrays."""
    model = model_of(checkpoints.config_from(GOLDEN))
    params = checkpoints.load(GOLDEN, config=model.config)
    return model, jax.tree.map(jnp.asarray, params), dict(np.load(GOLDEN / "golden.npz"))


def settings_of(name: str):
    """Returns the prefix of both rows, the sampling rule, and the outputs and their lengths."""
    _, _, golden = opened()
    given = transcription(GOLDEN, **TEXTS[name])
    prefix = jnp.tile(jnp.array(given.prefix, jnp.int32), (2, 1))
    outputs = golden[name][:, 1:]  # without the start token; filled up with the end
    lengths = np.minimum((outputs != 45).sum(axis=1) + 1, outputs.shape[1])
    return prefix, with_processors(Greedy(), given.processors), outputs, lengths


def check(output, outputs, lengths) -> None:
    np.testing.assert_array_equal(output.length, lengths)
    for row, length in enumerate(lengths):
        np.testing.assert_array_equal(output.tokens[row, :length], outputs[row, :length])


def test_logits_are_those_of_transformers():
    model, params, golden = opened()
    fed = np.concatenate([model.start(golden["features"])[:, None], golden["outputs"][:, :-1]], 1)
    logits = teacher_forced(model, params, golden["features"], fed)
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=LOGITS)


@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.ci) for x in TEXTS])
def test_texts_are_those_of_generate(name):
    model, params, golden = opened()
    prefix, sampling, outputs, lengths = settings_of(name)
    output = autoregressive_decode(
        params,
        row_keys(0, jnp.arange(2)),
        golden["features"],
        target=model,
        sampling=sampling,
        max_length=outputs.shape[1],
        prefix=prefix,
    )
    check(output, outputs, lengths)


@pytest.mark.ci
def test_a_draft_on_the_shared_encoder_changes_no_text():
    """A decoder of the target's first layer, without an encoder, and with half of the head.

    A third row is padding.
    """
    model, params, golden = opened()
    prefix, sampling, outputs, lengths = settings_of("greedy")
    kept = Trim(decoder_layers=(0,), shared_encoder=True, head_ids=tuple(range(20, 50)))
    small: Any = families.resized(model.config, kept)
    assert (small.num_encoder_layers, small.encoded_dim) == (0, 16)
    draft = families.resize(params, model.config, kept)
    assert "encoder" not in draft
    plan = Plan(
        model,
        Autoregressive(model_of(small), sampling),
        GreedyMatch(),
        Fixed(2),
        sampling,
        max_length=outputs.shape[1],
    )
    features = np.concatenate([golden["features"], np.zeros_like(golden["features"][:1])])
    prefix = jnp.concatenate([prefix, jnp.full_like(prefix[:1], -1)])
    output = decode(
        Params(params, draft), row_keys(0, jnp.arange(3)), features, plan, prefix=prefix
    )
    assert output.length[2] == 0
    check(jax.tree.map(lambda x: x[:2] if x.ndim else x, output), outputs, lengths)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"activation_function": "relu"}, "activation_function is 'relu', and supported is 'gelu'"),
        ({"encoder_ffn_dim": 24}, "encoder_ffn_dim is 24 and decoder_ffn_dim 20; use a model in"),
        ({"decoder_layers": None}, "decoder_layers missing; copy config.json again"),
        ({"decoder_attention_heads": 5, "encoder_attention_heads": 5}, "does not divide emb_dim 1"),
    ],
)
def test_another_model_is_refused_in_one_line(edited, changes, says):
    with pytest.raises(CheckpointError, match=says) as raised:
        checkpoints.config_from(edited("hf_whisper", **changes))
    assert "\n" not in str(raised.value)


def test_timestamps_follow_the_rules_of_transformers():
    golden = dict(np.load(GOLDEN / "golden.npz"))
    tokens, lengths = (jnp.asarray(golden[f"stamped_{name}"]) for name in ("tokens", "lengths"))
    texts = History(tokens, lengths, (45,))
    # A history begins with the start token; the three tokens are that and a prefix of two.
    rule = Processed(Greedy(), (Timestamps(51, 45, position=2, latest_first=3),))
    found = rule.process(jnp.asarray(golden["stamped_logits"]), texts)
    np.testing.assert_array_equal(found, golden["stamped_processed"])


def test_longer_outputs_than_there_are_positions_are_refused():
    model, nothing = opened()[0], cast(Any, None)
    with pytest.raises(ValueError, match="max_length is 33, and the target has .* of 32 tokens"):
        Plan(model, nothing, nothing, nothing, Greedy(), max_length=33)


def test_a_draft_without_an_encoder_stands_for_no_model(tmp_path):
    model, params, golden = opened()
    kept = Trim(shared_encoder=True)
    config, own = families.resized(model.config, kept), families.resize(params, model.config, kept)
    assert isinstance(config, WhisperConfig)
    with pytest.raises(ValueError, match="this model has no encoder"):
        model_of(config).prefill(own, golden["features"], 4)
    with pytest.raises(CheckpointError, match="has no encoder .*choose another format"):
        checkpoints.save(tmp_path / "out", own, config=config, format="huggingface")
    for wrong in (Trim(encoder_layers=(0,)), Trim(shared_encoder=True)):
        with pytest.raises(ValueError, match=r"is about an encoder, and the model reads another"):
            families.resized(config, wrong)
    few = Trim(head_ids=(1, 45))
    with pytest.raises(CheckpointError, match="the head has 2 of 61 ids .*choose another format"):
        given = {"config": families.resized(model.config, few), "format": "huggingface"}
        checkpoints.save(tmp_path / "out", families.resize(params, model.config, few), **given)
