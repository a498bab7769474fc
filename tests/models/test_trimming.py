"""Parts of a trained model as models of their own: pytest tests/models/test_trimming.py"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rotary
from support import few, tiny_t5
from tolerances import SMALL_LOGITS

from specdec import checkpoints, cli
from specdec.checkpoints import Vocabulary, tree
from specdec.models import families
from specdec.models.sizes.kept_parts import Trim
from specdec.models.t5 import T5DraftConfig, T5Target

pytestmark = pytest.mark.ci

UNTIED = tiny_t5(23, 12, 10, head_dim=6, encoder=3, decoder=4, relative_bias_per_layer=True)
TIED = dataclasses.replace(
    UNTIED,
    mlp_activations=("relu",),
    logits_via_embedding=True,
    relative_bias_per_layer=False,
)
CONFIGS = {"untied": UNTIED, "tied": TIED}
INPUTS = jnp.asarray([[3, 5, 7, 2, 1], [4, 9, 1, 0, 0]], jnp.int32)
TOKENS = jnp.asarray([[0, 8, 6, 11], [0, 3, 2, 13]], jnp.int32)

either = pytest.mark.parametrize("name", CONFIGS)


@functools.cache
def whole(name):
    target = T5Target(CONFIGS[name])
    return target, jax.jit(target.init)(jax.random.key(2))


def of_part(name, kept):
    model, params = whole(name)
    part = families.model_of(families.resized(model.config, kept))
    own = families.resize(params, model.config, kept)
    assert tree.shapes(own) == tree.shapes_of(part)
    return part, own


@pytest.mark.parametrize("name", few(CONFIGS))
@pytest.mark.parametrize("kept", few([(0, 3), (0,), (3,), (0, 1), (2, 3), (0, 1, 2, 3)]))
def test_a_part_computes_what_those_layers_of_the_whole_compute(name, kept):
    """By the whole model, one layer after the other, each from where the last one ended."""
    model, params = whole(name)
    cache, stream, output = model.prefill(params, INPUTS, 5), None, None
    embedded = params["token_embedder"]["embedding"][TOKENS]
    for i in kept:
        resume = None if i == 0 else embedded if stream is None else stream
        given = {"layers": (i, i + 1), "resume": resume}
        output, cache = model.decode(params, TOKENS, cache.rewind(jnp.zeros(2)), **given)
        stream = output.stream
    part, own = of_part(name, Trim(decoder_layers=kept))
    found, _ = part.decode(own, TOKENS, part.prefill(own, INPUTS, 5))
    np.testing.assert_allclose(found.logits, output.logits, rtol=0, atol=SMALL_LOGITS)


@either
def test_an_encoder_keeps_the_layers_that_are_named(name):
    model, params = whole(name)
    encoder = dict(params["encoder"])
    silent = {"attention": ("out",), "mlp": ("wo",)}
    for part, names in silent.items():
        for kernel in names:
            layer = encoder["layers_1"]
            nothing = jax.tree.map(jnp.zeros_like, layer[part][kernel])
            encoder["layers_1"] = layer | {part: layer[part] | {kernel: nothing}}
    expected = model.prefill(params | {"encoder": encoder}, INPUTS, 5).encoded
    part, own = of_part(name, Trim(encoder_layers=(0, 2)))
    assert part.config.num_encoder_layers == 2
    found = part.prefill(own, INPUTS, 5).encoded
    np.testing.assert_allclose(found, expected, rtol=0, atol=SMALL_LOGITS)


@either
def test_without_an_encoder_it_reads_that_of_the_whole(name):
    model, params = whole(name)
    part, own = of_part(name, Trim(decoder_layers=(0, 1), shared_encoder=True))
    assert part.encoded_dim == 12 and "encoder" not in own
    read = model.prefill(params, INPUTS, 5)
    cache = part.attach(own, read.encoded, read.inputs_mask, 5)
    found, _ = part.decode(own, TOKENS, cache)
    first = model.first(2)
    expected, _ = first.decode(first.part_of(params), TOKENS, first.prefill(params, INPUTS, 5))
    np.testing.assert_allclose(found.logits, expected.logits, rtol=0, atol=SMALL_LOGITS)


def test_what_is_kept_is_shared_and_the_whole_stays_as_it_was():
    model, params = whole("tied")
    before = tree.shapes(params)
    own = families.resize(params, model.config, Trim(decoder_layers=(1, 3)))
    assert own["decoder"]["layers_1"] is params["decoder"]["layers_3"]
    assert own["encoder"] is params["encoder"]
    assert tree.shapes(params) == before


READING = T5DraftConfig.of(UNTIED, num_encoder_layers=0, encoded_dim=12)


@pytest.mark.parametrize(
    "config, fields, message",
    [
        (TIED, {"decoder_layers": (0, 4)}, "the last of the model's layers is number 3; give"),
        (TIED, {"encoder_layers": (3,)}, "Trim.encoder_layers is .3,. and the last .* number 2"),
        (TIED, {"decoder_layers": ()}, r"Trim.decoder_layers is \(\); give ascending"),
        (TIED, {"decoder_layers": (2, 1)}, "Trim.decoder_layers is .* give ascending"),
        (TIED, {"decoder_layers": "01"}, "Trim.decoder_layers is '01'; give ascending"),
        (TIED, {"encoder_layers": (0,), "shared_encoder": True}, "leave one of them out"),
        (READING, {"shared_encoder": True}, "Trim.shared_encoder is about an encoder"),
        (READING, {"encoder_layers": (0,)}, "Trim.encoder_layers is about an encoder"),
    ],
)
def test_what_is_not_there_is_refused(config, fields, message):
    with pytest.raises(ValueError, match=message):
        families.resized(config, Trim(**fields))


# The command.


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "model"
    model, params = whole("untied")
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    checkpoints.save(folder, half, config=model.config, vocabulary=Vocabulary(None, 3))
    return folder, half


def test_the_command_writes_a_part(saved, tmp_path, capsys):
    folder, params = saved
    argv = ["trim", f"--input={folder}", f"--output={tmp_path / 'part'}"]
    assert cli.main([*argv, "--decoder_layers=spread:2", "--shared_encoder"]) == 0
    out = capsys.readouterr().out
    assert "num_decoder_layers 4)" in out and "num_encoder_layers 0, num_decoder_layers 2)" in out
    kept = Trim(decoder_layers=(0, 3), shared_encoder=True)
    assert checkpoints.config_from(tmp_path / "part") == families.resized(UNTIED, kept)
    assert checkpoints.vocabulary_from(tmp_path / "part") == Vocabulary(None, 3)
    expected = families.resize(params, UNTIED, kept)
    jax.tree.map(
        np.testing.assert_array_equal, checkpoints.load(tmp_path / "part"), expected
    )  # dtype and all
    assert cli.main([*argv, "--encoder_layers=last:1"]) == 2
    assert "part exists; give a new directory" in capsys.readouterr().err


def test_a_family_without_parts_is_refused(tmp_path, capsys):
    config = rotary.RotaryConfig(8, 4, 1, 4, 4, 1)
    params = rotary.Rotary(config).init(jax.random.key(0))
    checkpoints.save(tmp_path / "small", params, config=config)
    flags = [f"--input={tmp_path / 'small'}", f"--output={tmp_path / 'part'}"]
    assert cli.main(["trim", *flags, "--decoder_layers=first:1"]) == 2
    said = "family 'rotary' do not get smaller; give one of t5, t5_draft, t5g"
    assert said in capsys.readouterr().err
