"""Parts of decoders and T5Gemmas as models: pytest tests/models/test_decoder_trimming.py"""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import few
from test_families import INPUTS, TINY, TOKENS, params_of
from tolerances import SMALL_LOGITS

from specdec import checkpoints
from specdec.checkpoints import CheckpointError, tree
from specdec.models import families
from specdec.models.sizes.kept_parts import Trim

OPT = pytest.param("opt", marks=pytest.mark.ci)
each_model = pytest.mark.parametrize("name", ["llama", OPT, *few(["gpt2", "t5gemma"], 0)])
IDS = (3, 7, 8, 63)


def of_part(name, kept):
    own = families.resize(params_of(name), TINY[name], kept)
    part = families.model_of(families.resized(TINY[name], kept))
    assert tree.shapes(own) == tree.shapes_of(part)
    return part, own


@each_model
@pytest.mark.parametrize("layer", few([1, 0]))
def test_a_layer_of_a_model_is_a_model(name, layer):
    model, params = families.model_of(TINY[name]), params_of(name)
    part, own = of_part(name, Trim(decoder_layers=(layer,)))
    tokens, empty = TOKENS[:, :1], jnp.zeros([3, 1], jnp.int32)

    @jax.jit
    def run(params, own):
        cache = model.prefill(params, empty, 1)
        embedded = model.decode(params, tokens, cache, layers=(0, 0))[0]
        resume = embedded.stream if layer else None
        whole = model.decode(params, tokens, cache, layers=(layer, layer + 1), resume=resume)[0]
        return whole, part.decode(own, tokens, part.prefill(own, empty, 1))[0]

    whole, found = run(params, own)
    np.testing.assert_allclose(found.logits, whole.logits, rtol=0, atol=SMALL_LOGITS)


@each_model
def test_a_trimmed_checkpoint_comes_back(name, tmp_path):
    part, own = of_part(name, Trim((0,), head_ids=IDS))
    checkpoints.save(tmp_path / "part", own, config=part.config)
    assert checkpoints.model_from(tmp_path / "part") == part
    config = part.config
    assert type(config)(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


@pytest.mark.ci
def test_a_decoder_that_reads_the_whole_models_encoder():
    model, params = families.model_of(TINY["t5gemma"]), params_of("t5gemma")
    part, own = of_part("t5gemma", Trim(shared_encoder=True))
    assert (part.encoded_dim, "encoder" in own) == (16, False)
    whole = model.prefill(params, INPUTS, 4)
    cache = part.attach(own, whole.encoded, whole.inputs_mask, 4)
    found = part.decode(own, TOKENS, cache)[0].logits
    expected = model.decode(params, TOKENS, whole)[0].logits
    np.testing.assert_allclose(found, expected, rtol=0, atol=SMALL_LOGITS)
    assert tree.shapes_of(part).keys() == tree.shapes(own).keys()
    with pytest.raises(ValueError, match="this model has no encoder"):
        part.prefill(own, INPUTS, 4)


def test_transformers_has_no_such_heads(tmp_path):
    part, own = of_part("llama", Trim(head_ids=IDS))
    with pytest.raises(CheckpointError, match=r"4 of 64 ids \(head_ids\), and that of a .* has"):
        checkpoints.save(tmp_path / "theirs", own, config=part.config, format="huggingface")


@pytest.mark.parametrize(
    "kept, says",
    [
        (Trim(decoder_layers=(2,)), r"Trim.decoder_layers is \(2,\) and the last .* number 1;"),
        (Trim(encoder_layers=(0,)), "Trim.encoder_layers is about an encoder, and the model has"),
        (Trim(shared_encoder=True), "Trim.shared_encoder is about an encoder, and the model has"),
        (Trim(head_ids=(3, 5, 64)), "LlamaConfig.head_ids goes up to 64; give ids below 64"),
    ],
)
def test_parts_that_are_not_there_are_refused(kept, says):
    with pytest.raises(ValueError, match=says):
        families.resized(TINY["llama"], kept)


def test_a_trimmed_head_has_no_other_ids():
    config = families.resized(TINY["gpt2"], Trim(head_ids=IDS))
    with pytest.raises(ValueError, match="Trim.head_ids has 1 ids that the model's head lacks"):
        families.resized(config, Trim(head_ids=(3, 4)))
    for ids in (IDS[:2], IDS):
        assert families.resized(config, Trim(head_ids=ids)).head_ids == ids


@pytest.mark.parametrize(
    "name, width", [("t5gemma", 16), ("t5gemma2", 24), ("t5", 24), ("whisper", 24)]
)
def test_a_part_without_an_encoder_reads_what_the_whole_models_encoder_writes(name, width):
    config = families.resized(TINY[name], Trim(shared_encoder=True))
    assert (config.encoded_dim, config.num_encoder_layers, config.emb_dim) == (width, 0, 24)


@pytest.mark.parametrize("name", ["t5", "t5gemma", "llama"])
def test_a_head_is_trimmed_twice(name):
    draw = np.random.default_rng(0)
    shapes = families.model_of(TINY[name]).parameter_shapes()
    params = jax.tree.map(lambda x: draw.normal(size=x.shape).astype(np.float32), shapes)
    table = params["token_embedder"]["embedding"]
    config = TINY[name]
    for ids in (IDS, IDS[1:3]):
        params, config = (
            families.resize(params, config, Trim(head_ids=ids)),
            families.resized(config, Trim(head_ids=ids)),
        )
        kernel = params["decoder"]["logits_dense"]["kernel"]
        np.testing.assert_array_equal(kernel, table[list(ids)].T)
        assert families.model_of(config).head_ids == ids
