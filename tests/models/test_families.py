"""What every family of models promises: pytest tests/models/test_families.py

A new row of the table needs a tiny config here. `rotary` is a family outside of the package.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rotary
from support import device_of, teacher_forced, tiny_t5

from specdec import checkpoints
from specdec.models import families, partitioning
from specdec.models.families import Family, family_of, model_of, named
from specdec.models.gpt2 import Gpt2Config
from specdec.models.layers.products import ORDERS
from specdec.models.llama import LlamaConfig
from specdec.models.llava import ClipConfig, LlavaConfig
from specdec.models.opt import OptConfig
from specdec.models.placement.layouts import Layout
from specdec.models.t5 import T5DraftConfig
from specdec.models.t5gemma import T5GemmaConfig
from specdec.models.t5gemma2 import T5Gemma2Config
from specdec.models.whisper import WhisperConfig

DECODER = {
    "vocab_size": 64,
    "emb_dim": 24,
    "num_heads": 4,
    "head_dim": 4,
    "mlp_dim": 40,
    "num_decoder_layers": 2,
    "pad_id": 0,
}
TINY = {
    "t5": tiny_t5(
        64,
        24,
        40,
        heads=4,
        head_dim=4,
        decoder=2,
        mlp_activations=("relu",),
        logits_via_embedding=True,
    ),
    "t5_draft": T5DraftConfig.of(
        tiny_t5(64, 24, 40, heads=4, head_dim=4, decoder=2), markov_rank=2, confidence_head=True
    ),
    "t5gemma": T5GemmaConfig(
        **DECODER,
        num_kv_heads=2,
        encoder_emb_dim=16,
        encoder_num_heads=2,
        encoder_num_kv_heads=2,
        encoder_head_dim=4,
        encoder_mlp_dim=20,
        num_encoder_layers=2,
        window=2,
    ),
    "t5gemma2": T5Gemma2Config(
        **DECODER,
        num_kv_heads=2,
        encoder_emb_dim=24,
        encoder_num_heads=4,
        encoder_num_kv_heads=2,
        encoder_head_dim=4,
        encoder_mlp_dim=40,
        num_encoder_layers=2,
        window=2,
        pattern=2,
        rope_factor=8.0,
        end_of_image_id=7,
    ),
    "whisper": WhisperConfig(
        vocab_size=64,
        emb_dim=24,
        num_heads=4,
        mlp_dim=40,
        num_encoder_layers=1,
        num_decoder_layers=2,
        mel_bins=4,
        input_positions=3,
        context=32,
        decoder_start_id=2,
        stop_ids=(1,),
    ),
    "llama": LlamaConfig(**DECODER, num_kv_heads=2, logits_via_embedding=True),
    "llava": LlavaConfig(
        **DECODER,
        num_kv_heads=2,
        vision=ClipConfig(
            image_size=4, patch_size=2, emb_dim=8, num_heads=2, mlp_dim=12, num_layers=2
        ),
        image_id=62,
    ),
    "opt": OptConfig(**DECODER, num_kv_heads=4, context=32, post_norm=True, token_dim=16),
    "gpt2": Gpt2Config(**DECODER, num_kv_heads=4, context=32, stop_ids=(2,)),
    "rotary": rotary.RotaryConfig(
        vocab_size=64, emb_dim=24, num_heads=4, head_dim=4, mlp_dim=40, num_layers=2
    ),
}
INPUTS = jnp.array([[5, 9, 7], [8, 0, 0], [0, 0, 0]], jnp.int32)
SOUNDS = jnp.zeros([3, 4, 6]).at[:2].set(jax.random.normal(jax.random.key(1), [2, 4, 6]))
WRONG = {"whisper": r"inputs are int32\[3, 3\]; give float32 \[rows, 4, 6\]"}  # of tokens for it
TOKENS = jnp.array([[8, 3, 4, 5], [2, 7, 7, 6], [9, 9, 8, 7]], jnp.int32)

OFTEN = ("t5", "llama")  # most of the others' code is in these
SELDOM = ("t5gemma2", "llava", "opt", "gpt2", "rotary")  # or in those of `ci`
MARKS = dict.fromkeys(OFTEN, ()) | dict.fromkeys(SELDOM, pytest.mark.slow)
each_family = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, pytest.mark.ci)) for name in TINY]
)
FEWER = MARKS | {"whisper": pytest.mark.ci}  # the others of `ci` are slow in tests that take longer
some_families = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=FEWER.get(name, pytest.mark.slow)) for name in TINY]
)


def inputs_of(name: str) -> jax.Array:
    """Inputs of three positions, of which the last row is padding."""
    return SOUNDS if name == "whisper" else INPUTS


@functools.cache
def params_of(name: str):
    return jax.jit(model_of(TINY[name]).init)(jax.random.key(0))


def layouts_of(name: str) -> dict:
    """One model for each layout and order that there is."""
    model = model_of(TINY[name])
    chosen = [model.laid_out({8: 1.0}, device_of({8: order})) for order in ORDERS]
    return {each.layout: each for each in (model, *chosen)}


def test_every_row_is_tested():
    """Heads are no model of texts: tests/drafters/test_blockwise.py."""
    assert families.FAMILIES.keys() == {"heads", *TINY}


@each_family
def test_a_family_is_found_by_name_and_by_config(name):
    family = named(name)
    assert family.name == name and family_of(TINY[name]) is family
    assert model_of(TINY[name]) == family.model(TINY[name])


@each_family
def test_configs_are_plain_values(name):
    config = TINY[name]
    assert hash(config) == hash(dataclasses.replace(config))
    assert type(config)(**json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert dataclasses.replace(config, dtype="bfloat16").dtype == "bfloat16"


@each_family
def test_a_model_says_what_commands_need(name):
    model = model_of(TINY[name])
    assert model.config == TINY[name] and hash(model) == hash(model_of(TINY[name]))
    assert (model.axis_rules, model.layout) == ((), Layout())
    assert (model.vocab_size, model.dtype, model.num_layers) == (64, "float32", 2)
    assert model.exact is True and model.pad_id not in model.stop_ids
    assert {"emb_dim", "mlp_dim"} <= model.sizes.keys()
    assert all(getattr(model.config, field) == size for field, size in model.sizes.items())


@each_family
def test_shapes_and_axes_agree_in_every_layout(name):
    for model in layouts_of(name).values():
        shapes = model.parameter_shapes()
        ranks = jax.tree.map(lambda leaf, axes: leaf.ndim == len(axes), shapes, model.axes())
        assert all(jax.tree.leaves(ranks))
        assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}


@some_families
def test_layouts_convert_there_and_back(name):
    for model in layouts_of(name).values():
        there = model.from_stored(params_of(name))
        shapes = model.parameter_shapes()
        assert jax.tree.map(jnp.shape, there) == jax.tree.map(jnp.shape, shapes)
        jax.tree.map(np.testing.assert_array_equal, model.to_stored(there), params_of(name))


@each_family
def test_layouts_compute_the_same(name):
    logits = []
    for model in layouts_of(name).values():
        params = model.from_stored(params_of(name))
        logits.append(teacher_forced(model, params, inputs_of(name), TOKENS)[:2])
    for other in logits[1:]:
        atol = 1e-5 * np.abs(logits[0]).max()  # sums in other orders, of tiny networks
        np.testing.assert_allclose(other, logits[0], rtol=0, atol=atol)


@pytest.mark.ci
@some_families
def test_a_call_on_one_token_may_be_computed_with_two(name):
    """Token by token, to the last slot of the cache, as in one call; `rotary` fills up no call."""
    model = model_of(TINY[name])
    pair = model.in_layout(least_width=2)
    assert pair.stored() == model
    given = params_of(name), inputs_of(name), TOKENS.shape[1]
    prefill = functools.partial(jax.jit, static_argnums=2)
    expected, whole = jax.jit(model.decode)(given[0], TOKENS, prefill(model.prefill)(*given))
    cache = prefill(pair.prefill)(*given)
    assert cache.capacity == TOKENS.shape[1]
    atol = 1e-5 * np.abs(expected.logits).max()  # other widths, of tiny networks
    decode = jax.jit(pair.decode)
    for i in range(TOKENS.shape[1]):
        output, cache = decode(given[0], TOKENS[:, i : i + 1], cache)
        assert output.logits.shape[1] == output.hidden.shape[1] == 1
        logits = expected.logits[:2, i]
        np.testing.assert_allclose(output.logits[:2, 0], logits, rtol=0, atol=atol)
    assert cache.length.tolist() == whole.length.tolist()
    widths = [pair.computed_width(n) for n in (1, 2, 3)]
    assert widths == ([1, 2, 3] if name == "rotary" else [2, 2, 3])


@each_family
def test_rows_begin_and_are_told_from_padding(name):
    model = model_of(TINY[name])
    start = model.start(inputs_of(name))
    assert start.shape == (3,) and start.dtype == jnp.int32
    assert model.active(inputs_of(name)).tolist() == [True, True, False]
    wrong = INPUTS if name in WRONG else INPUTS.astype(jnp.float32)
    with pytest.raises(
        ValueError, match=WRONG.get(name, r"inputs are float32\[3, 3\]; give int32")
    ):
        model.prefill(params_of(name), wrong, 4)


@some_families
def test_blocks_equal_single_steps_and_a_cache_rewinds(name):
    model, params = model_of(TINY[name]), params_of(name)
    cache = model.prefill(params, inputs_of(name), 6)
    assert (cache.capacity, cache.length.tolist()) == (6, [0, 0, 0])
    whole, _ = model.decode(params, TOKENS, cache)
    assert whole.logits.shape == (3, 4, 64) and whole.logits.dtype == jnp.float32
    assert whole.hidden.shape[:2] == (3, 4)
    _, cache = model.decode(params, TOKENS.at[:, 1:].set(63), cache)
    assert cache.length.tolist() == [4, 4, 4]
    cache = cache.rewind(jnp.ones(3, jnp.int32))
    for i in range(1, 4):
        output, cache = model.decode(params, TOKENS[:, i : i + 1], cache)
        found, expected = output.logits[:2, 0], whole.logits[:2, i]
        atol = 1e-5 * np.abs(expected).max()  # as above
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@each_family
def test_what_a_step_reads_is_of_the_parameters(name):
    for model in layouts_of(name).values():
        params = model.from_stored(params_of(name))
        held = {id(leaf) for leaf in jax.tree.leaves(params)}
        read = jax.tree.leaves(model.read_by_decode(params))
        assert read and {id(leaf) for leaf in read} <= held


@pytest.mark.parametrize("name", ["t5", "t5gemma", "whisper"])
@pytest.mark.parametrize("weights", ["stored", "int8"])
def test_a_step_reads_all_but_the_kernels_of_its_inputs(name, weights):
    model = dataclasses.replace(model_of(TINY[name]), weights=weights)
    paths = set(checkpoints.tree.flatten(model.parameter_shapes()))
    read = set(checkpoints.tree.flatten(model.read_by_decode(model.parameter_shapes())))
    made = re.compile(r"decoder/layers_\d/encoder_decoder_attention/(key|value)/\w+")
    expected = {path for path in paths if path.startswith("decoder/") and not made.fullmatch(path)}
    assert read == expected | {"token_embedder/embedding"}
    assert len(list(filter(made.fullmatch, paths))) >= 4


@each_family
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bytes_of_a_cache(name, dtype):
    model = model_of(dataclasses.replace(TINY[name], dtype=dtype))
    shapes = jax.eval_shape(lambda p: model.prefill(p, inputs_of(name), 6), params_of(name))
    arrays = [leaf for leaf in jax.tree.leaves(shapes) if leaf.ndim == 4]
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in arrays)
    assert model.cache_bytes(3, 6, 3) == held
    if name != "rotary":  # it fills up no call
        wider = model.in_layout(least_width=4)
        assert wider.cache_bytes(3, 6, 3) == model.cache_bytes(3, 6 + 3, 3) > held
    rules = partitioning.standard_logical_axis_rules()
    divided = dataclasses.replace(model, axis_rules=rules)
    sizes = {"data": 3, "model": 2}
    assert divided.cache_bytes(3, 6, 3) == held
    assert divided.cache_bytes(3, 6, 3, sizes) == held // 6
    whole = dataclasses.replace(divided, axis_rules=(("heads", None), *rules))
    assert whole.cache_bytes(3, 6, 3, sizes) == held // 3, "the first rule counts"


@each_family
def test_the_usual_rules_divide_it(name):
    rules = partitioning.standard_logical_axis_rules()
    for model in layouts_of(name).values():
        divided = dataclasses.replace(model, axis_rules=rules)
        shapes = partitioning.abstract(divided, partitioning.make_mesh(2))
        specs = [str(leaf.sharding.spec) for leaf in jax.tree.leaves(shapes)]
        assert any("model" in spec for spec in specs)


@each_family
def test_parameters_are_expected_in_the_dtype_of_the_model(name):
    model = model_of(dataclasses.replace(TINY[name], dtype="bfloat16"))
    for mesh in (None, partitioning.make_mesh(2)):
        kinds = {leaf.dtype.name for leaf in jax.tree.leaves(partitioning.abstract(model, mesh))}
        assert kinds == {"bfloat16"}


@each_family
@pytest.mark.parametrize("format", ["orbax", "t5x"])
def test_a_checkpoint_comes_back_with_its_family(name, format, tmp_path):
    path, model = tmp_path / "checkpoint", model_of(TINY[name])
    checkpoints.save(path, params_of(name), config=TINY[name], format=format)
    assert json.loads((path / "config.json").read_text())["family"] == name
    assert checkpoints.model_from(path) == model
    loaded = checkpoints.load(path, config=model.config)
    jax.tree.map(np.testing.assert_array_equal, loaded, params_of(name))
    count = sum(leaf.size for leaf in jax.tree.leaves(loaded))
    for each in layouts_of(name).values():
        assert checkpoints.parameter_count(each) == count


@each_family
def test_a_misfit_has_a_cause(name):
    found = checkpoints.tree.shapes(params_of(name))
    wider = dataclasses.replace(TINY[name], mlp_dim=41)
    with pytest.raises(checkpoints.CheckpointError, match="misshaped.* likely cause: .") as error:
        checkpoints.tree.check(found, wider, "it")
    assert "\n" not in str(error.value)


def test_a_name_is_taken_once():
    families.register(named("t5"))  # again
    with pytest.raises(ValueError, match="there is a family 't5' already; register another name"):
        families.register(Family("t5", int, model_of))


def test_what_is_of_no_family_is_named():
    with pytest.raises(
        ValueError,
        match="family is 'gpt', and those known are "
        "t5, t5_draft, t5gemma, t5gemma2, whisper, llama, llava, opt, gpt2, heads, rotary;",
    ):
        named("gpt")
    with pytest.raises(
        ValueError,
        match="config is a int, and those known are T5Config, T5DraftConfig, ",
    ):
        family_of(3)
