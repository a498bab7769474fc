"""Whisper as transformers saves and runs it: pytest tests/checkpoints/test_huggingface_whisper.py

tests/golden/README.md says what is in the golden files.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import teacher_forced
from tolerances import LOGITS

from specdec import Plan, autoregressive_decode, checkpoints, decode, row_keys
from specdec.checkpoints import CheckpointError
from specdec.checkpoints.transcription import transcription
from specdec.drafters import Autoregressive
from specdec.models import families
from specdec.models.families import model_of
from specdec.models.sizes.kept_parts import Trim
from specdec.models.whisper import WhisperConfig
from specdec.sampling import (
    Greedy,
    Processed,
    Timestamps,
    with_processors,
)
from specdec.schedules import Fixed
from specdec.types import History, Params
from specdec.verifiers import GreedyMatch

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "hf_whisper"
END = 45
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
    lengths = np.minimum((outputs != END).sum(axis=1) + 1, outputs.shape[1])
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
        (
            {"decoder_attention_heads": 5, "encoder_attention_heads": 5},
            "does not divide emb_dim 16",
        ),
    ],
)
def test_another_model_is_refused_in_one_line(edited, changes, says):
    with pytest.raises(CheckpointError, match=says) as raised:
        checkpoints.config_from(edited("hf_whisper", **changes))
    assert "\n" not in str(raised.value)


def test_timestamps_follow_the_rules_of_transformers():
    golden = dict(np.load(GOLDEN / "golden.npz"))
    tokens, lengths = (jnp.asarray(golden[f"stamped_{name}"]) for name in ("tokens", "lengths"))
    texts = History(tokens, lengths, (END,))
    # A history begins with the start token; the three tokens are that and a prefix of two.
    rule = Processed(Greedy(), (Timestamps(51, END, position=2, latest_first=3),))
    found = rule.process(jnp.asarray(golden["stamped_logits"]), texts)
    np.testing.assert_array_equal(found, golden["stamped_processed"])


def test_longer_outputs_than_there_are_positions_are_refused():
    model, nothing = opened()[0], cast(Any, None)
    with pytest.raises(ValueError, match="max_length is 33, and the target has .* of 32 tokens"):
        Plan(model, nothing, nothing, nothing, Greedy(), max_length=33)


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"num_heads": 5}, "num_heads is 5, which does not divide emb_dim 16; give a divisor"),
        ({"num_encoder_layers": 0}, "num_encoder_layers is 0 and encoded_dim is None; give 0"),
        ({"encoded_dim": 16}, "num_encoder_layers is 2 and encoded_dim is 16; give 0 layers"),
        ({"head_ids": (1, 61)}, "head_ids goes up to 61; give ids below 61"),
        ({"pad_id": END}, "pad_id is 45, which is also one of stop_ids"),
    ],
)
def test_configs_that_fit_nothing_are_refused(fields, says):
    with pytest.raises(ValueError, match=f"WhisperConfig.{says}"):
        dataclasses.replace(opened()[0].config, **fields)


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
