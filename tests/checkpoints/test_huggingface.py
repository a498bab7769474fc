"""Hugging Face's checkpoints, read and written: pytest tests/checkpoints/test_huggingface.py

The golden models were saved and run by transformers itself; see tests/golden/README.md.
"""

import functools
import itertools
import json
import math
import shutil
import sys
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tolerances
from checkpoint_files import assert_identical, error_of, rewrite
from support import GOLDEN

from specdec import autoregressive_decode, checkpoints, row_keys
from specdec.checkpoints import (
    CheckpointError,
    contents,
    huggingface,
    huggingface_files,
    safetensors,
    tree,
)
from specdec.models.t5 import T5Config, T5Target
from specdec.models.t5 import t5_checkpoints as of_t5
from specdec.sampling import Greedy

DEMO_VOCABULARY = Path(__file__).resolve().parents[2] / "demo" / "vocabulary.model"
MODELS = (
    "hf_v1_0",
    "hf_v1_1",
    "hf_v1_1_tied",
    "hf_byt5",
    "hf_madlad",
    "hf_madlad_tied",
    "hf_umt5",
)
HEAD, LOGITS, EMBEDDING = "lm_head.weight", "decoder/logits_dense/kernel", "shared.weight"


def params_of(directory, dtype=None):
    return tree.unflatten(
        {name: jnp.asarray(a, dtype) for name, a in huggingface.sources(directory).items()}
    )


def zeros(config: T5Config):
    shapes = T5Target(config).parameter_shapes()
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


@functools.partial(jax.jit, static_argnames="config")
def logits_of(config, params, inputs, tokens):
    target = T5Target(config)
    cache = target.prefill(params, inputs, tokens.shape[1])
    return target.decode(params, tokens, cache)[0].logits


@pytest.fixture
def described(tmp_path):
    """A directory with a config and arrays of a few elements: enough to tell the model."""

    def made(record: dict, *names: str) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(record))
        specs = dict.fromkeys(
            ("shared.weight", "decoder.block.0.layer.0.layer_norm.weight", *names),
            jax.ShapeDtypeStruct([1], jnp.float32),
        )
        file = tmp_path / "model.safetensors"
        safetensors.write(file, specs, lambda name: np.full(1, name == HEAD, np.float32))
        return tmp_path

    return made


# Against transformers.


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=[pytest.mark.ci] * (model not in ("hf_v1_1", "hf_umt5")))
        for model in MODELS
    ],
)
def test_logits_and_greedy_ids_are_those_of_transformers(model):
    directory = GOLDEN / model
    golden, config = np.load(directory / "golden.npz"), huggingface.config(directory)
    params, inputs = params_of(directory, jnp.float32), golden["encoder_input_tokens"]
    tree.check(tree.shapes(params), config, model)

    logits = logits_of(config, params, inputs, golden["decoder_input_tokens"])
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=tolerances.LOGITS)

    output = autoregressive_decode(
        params,
        row_keys(0, jnp.arange(len(inputs))),
        inputs,
        target=T5Target(config),
        sampling=Greedy(),
        max_length=golden["greedy"].shape[1],
    )
    made = np.arange(golden["greedy"].shape[1]) < np.asarray(output.length)[:, None]
    np.testing.assert_array_equal(output.tokens, np.where(made, golden["greedy"], 0))
    assert np.all(golden["greedy"][~made] == config.pad_id)


def test_an_output_layer_that_is_scaled_has_the_scale_multiplied_in(edited):
    """transformers 5.0 fine-tuned v1.1 models so, and later versions run them so."""
    directory = edited("hf_v1_1", scale_decoder_outputs=True)
    golden, config = np.load(directory / "golden.npz"), huggingface.config(directory)
    assert not config.logits_via_embedding
    tokens = golden["encoder_input_tokens"], golden["decoder_input_tokens"]
    logits = logits_of(config, params_of(directory), *tokens)
    expected = golden["logits"] / math.sqrt(config.emb_dim)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerances.LOGITS)


# What the config says.

V1_0 = {
    "model_type": "t5",
    "vocab_size": 32128,
    "d_model": 1024,
    "d_kv": 128,
    "d_ff": 16384,
    "num_heads": 32,
    "num_layers": 24,
    "relative_attention_num_buckets": 32,
    "layer_norm_epsilon": 1e-06,
}
V1_1 = V1_0 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
OURS = T5Config(32128, 1024, 32, 128, 16384, 24, 24)


@pytest.mark.parametrize(
    "record, head, expected",
    [
        (V1_0, False, {"mlp_activations": ("relu",), "logits_via_embedding": True}),
        (V1_0 | {"feed_forward_proj": "gated-gelu"}, False, {"logits_via_embedding": True}),
        (V1_1, True, {}),
        (V1_1 | {"scale_decoder_outputs": False, "tie_word_embeddings": True}, True, {}),
        (V1_1 | {"scale_decoder_outputs": False, "tie_word_embeddings": True}, False, {}),
        (V1_1 | {"feed_forward_proj": None, "model_type": "mt5"}, True, {}),
        (V1_1 | {"tie_word_embeddings": True, "model_type": "mt5"}, False, {}),
        (V1_1 | {"dense_act_fn": "gelu_new", "is_gated_act": True}, True, {}),
        (V1_1 | {"feed_forward_proj": "gated-silu"}, True, {"mlp_activations": ("silu", "linear")}),
        (V1_1 | {"feed_forward_proj": "gelu_new"}, True, {"mlp_activations": ("gelu",)}),
        (V1_1 | {"num_decoder_layers": 6, "eos_token_id": [1]}, True, {"num_decoder_layers": 6}),
        (
            V1_1 | {"relative_attention_max_distance": 200, "layer_norm_epsilon": 1e-5},
            True,
            {"relative_attention_max_distance": 200, "layer_norm_epsilon": 1e-5},
        ),
    ],
)
def test_config_and_arrays_tell_the_model(described, record, head, expected):
    record = {key: value for key, value in record.items() if value is not None}
    directory = described(record, *[HEAD] * head)
    assert huggingface.is_checkpoint(directory)
    assert huggingface.config(directory) == T5Config(**vars(OURS) | expected)


def test_an_output_layer_that_repeats_the_embedding_is_tied(edited):
    """Older PyTorch files have all four names of one table, and a bias that is not used."""
    directory = edited("hf_v1_0")
    expected = huggingface.sources(directory)
    arrays = safetensors.read(directory / "model.safetensors")
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD):
        arrays[name] = arrays[EMBEDDING]
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    rewrite(directory / "model.safetensors", arrays | {unused: np.zeros([8, 2], np.float32)})
    assert huggingface.config(directory) == huggingface.config(GOLDEN / "hf_v1_0")
    assert huggingface.sources(directory).keys() == expected.keys()


@pytest.mark.parametrize("row", [0, 1023, 1024, 1099])
def test_every_row_tells_whether_an_output_layer_repeats_the_embedding(row):
    table = np.arange(2200, dtype=np.float32).reshape(1100, 2)
    other = table.copy()
    assert of_t5._same(table, other)
    other[row, 1] += 1
    assert not of_t5._same(table, other) and not of_t5._same(table, table[:-1])


def test_one_table_of_embeddings_is_found_under_any_name(edited):
    directory = edited("hf_v1_1")
    expected = huggingface.sources(directory)
    arrays = safetensors.read(directory / "model.safetensors")
    table = arrays.pop(EMBEDDING)
    rewrite(directory / "model.safetensors", arrays | {"decoder.embed_tokens.weight": table})
    found = huggingface.sources(directory)
    assert found.keys() == expected.keys()
    np.testing.assert_array_equal(found["token_embedder/embedding"], table)
    both = {"encoder.embed_tokens.weight": 2 * table, EMBEDDING: table}
    rewrite(directory / "model.safetensors", arrays | both)
    assert "differ, and T5 has one table" in error_of(huggingface.sources, directory)
    rewrite(directory / "model.safetensors", arrays)
    assert "the array shared.weight is missing" in error_of(huggingface.sources, directory)


def test_arrays_that_a_t5_lacks_keep_their_names(edited):
    directory = edited("hf_v1_1")
    arrays = safetensors.read(directory / "model.safetensors")
    rewrite(directory / "model.safetensors", arrays | {"qa.weight": np.ones([3], np.float32)})
    found = huggingface.sources(directory)
    assert "qa.weight" in found and len(found) == len(arrays) + 1


@pytest.mark.parametrize(
    "record, message",
    [
        ({"model_type": "longt5"}, "is of a 'longt5' model; those that can be read: t5, mt5, umt5"),
        ({"is_encoder_decoder": False}, "is of an encoder alone"),
        ({"decoder_start_token_id": "2"}, "config.json has decoder_start_token_id '2'; give"),
        ({"eos_token_id": [3, None]}, r"config.json has eos_token_id \[3, None\]; give a token id"),
        (
            {"pad_token_id": 32128, "decoder_start_token_id": 0},
            r"does not describe a T5 \(T5Config.pad_id is 32128 but",
        ),
        ({"pad_token_id": 1}, r"T5Config.pad_id is 1, which is also one of stop_ids \(1,\)"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantised \(.*, fp8\), .*; save it"),
        ({"d_kv": None, "d_ff": None}, "d_kv, d_ff missing"),
        ({"d_ff": 0}, r"does not describe a T5 \(T5Config.mlp_dim is 0"),
        ({"feed_forward_proj": "gelu"}, r"activation is 'gelu' \(feed_forward_proj 'gelu'\)"),
        ({"dense_act_fn": "tanh"}, r"activation is 'tanh' \(feed_forward_proj 'gated-gelu'\)"),
        ({}, r"tie_word_embeddings is false\), but there is no lm_head.weight"),
    ],
)
def test_models_that_are_not_t5s_are_refused(described, record, message):
    directory = described(V1_1 | record)
    assert huggingface.is_checkpoint(directory)
    with pytest.raises(CheckpointError, match=message):
        huggingface.config(directory)


def test_an_encoder_is_refused(edited):
    directory = edited("hf_v1_1", architectures=["T5EncoderModel"])
    arrays = safetensors.read(directory / "model.safetensors")
    encoder = {name: array for name, array in arrays.items() if not name.startswith("decoder")}
    rewrite(directory / "model.safetensors", encoder)
    message = error_of(huggingface.sources, directory)
    assert "has no decoder (T5EncoderModel by its record), but encoder.block.0" in message


@pytest.mark.parametrize(
    "rename, message",
    [
        (lambda name: f"module.{name}", "begin with 'module.' .*DistributedDataParallel.*; save"),
        (lambda name: f"_orig_mod.{name}", "begin with '_orig_mod.' .*torch.compile.*; save"),
        (lambda name: f"_orig_mod.module.{name}", "begin with '_orig_mod.module.' "),
        (lambda name: f"base_model.model.{name}", "'base_model.model.' .*PEFT.*merge_and_unload"),
        (lambda name: f"model.{name}", "begin with 'model.' .*a wrapper.*; save the model in it"),
        (
            lambda name: name if name == HEAD else f"transformer.{name}",
            "is another model .*: a T5 under 'transformer.', and lm_head.weight; give",
        ),
        (lambda name: name.replace(".q.", ".q.base_layer."), "an adapter that is not merged; merg"),
    ],
)
def test_names_of_wrappers_are_named(edited, rename, message):
    directory = edited("hf_v1_1")
    arrays = safetensors.read(directory / "model.safetensors")
    rewrite(directory / "model.safetensors", {rename(name): a for name, a in arrays.items()})
    with pytest.raises(CheckpointError, match=message) as raised:
        huggingface.config(directory)
    assert "no decoder" not in str(raised.value)


def test_another_head_is_named(edited):
    """A T5ForQuestionAnswering has a decoder, and a T5ForTokenClassification has none."""
    directory = edited("hf_v1_1", architectures=["T5ForQuestionAnswering"])
    arrays = safetensors.read(directory / "model.safetensors")
    del arrays[HEAD]
    head = {"qa_outputs.weight": np.ones([2, 4], np.float32)}
    rewrite(directory / "model.safetensors", arrays | head)
    message = error_of(huggingface.config, directory)
    assert (
        "no output layer (T5ForQuestionAnswering by its record), but qa_outputs.weight" in message
    )
    encoder = {name: array for name, array in arrays.items() if not name.startswith("decoder")}
    rewrite(directory / "model.safetensors", encoder | {"classifier.weight": head.popitem()[1]})
    assert "has no decoder" in (message := error_of(huggingface.config, directory))
    assert "but classifier.weight; give a T5ForConditionalGeneration" in message


def test_an_adapter_alone_is_named(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "has an adapter of PEFT alone; merge it" in error_of(checkpoints.load, tmp_path)


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_beside_its_model_is_refused(edited, file):
    directory = edited("hf_v1_0")
    (directory / file).touch()
    assert "an adapter of PEFT next to its model" in error_of(checkpoints.load, directory)


def test_numbers_that_float32_cannot_hold_are_refused(edited):
    directory = edited("hf_v1_1")
    file = directory / "model.safetensors"
    wide = {name: array.astype(np.float64) for name, array in safetensors.read(file).items()}
    wide[HEAD][0, :2] = 1e39, -1e300
    rewrite(file, wide)
    message = error_of(checkpoints.load, directory)
    assert f"{LOGITS} in {directory} has 2 numbers that float32 cannot hold" in message
    found = [finding.note for finding in contents.examine(directory) if not finding.sound]
    assert found == [f"{LOGITS} has 2 numbers that float32 cannot hold"]


def test_narrow_floats_are_named(edited):
    file = edited("hf_v1_0") / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].replace(b'"F32"', b'"F8_E5M2"', 1)
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    assert "is F8_E5M2, which is not read; save" in error_of(huggingface.config, file.parent)


def test_a_word_piece_vocabulary_is_wanted_too():
    """The file `vocab.txt` is not read, and a message names it where it is the only vocabulary."""
    wanted = ["config.json", "vocab.txt", "generation_config.json", "model.safetensors"]
    assert huggingface.wanted([*wanted, "README.md", "tf_model.h5"]) == wanted


def test_only_a_config_of_transformers_beside_arrays_is_a_checkpoint(edited):
    assert all(huggingface.is_checkpoint(GOLDEN / model) for model in MODELS)
    assert not huggingface.is_checkpoint(GOLDEN / "v1_1")
    directory = edited("hf_v1_1", model_type=None)
    assert not huggingface.is_checkpoint(directory)
    (directory / "config.json").write_text("{")
    assert "config.json is not JSON" in error_of(huggingface.is_checkpoint, directory)
    (directory / "config.json").write_text("[]")
    assert "is no such JSON object" in error_of(huggingface.is_checkpoint, directory)
    (directory / "model.safetensors").unlink()
    assert not huggingface.is_checkpoint(directory)
    assert "has none of model.safetensors" in error_of(huggingface_files.read, directory)


# Tokenizers.


@pytest.mark.parametrize(
    "model_type, tokenizer, extra_ids",
    [
        ("t5", None, 100),
        ("mt5", None, 0),
        ("t5", {"extra_ids": 0}, 0),
        ("t5", {"extra_ids": 0, "extra_special_tokens": ["<extra_id_1>", "<extra_id_0>"]}, 2),
    ],
)
def test_a_sentencepiece_model_and_its_extra_ids(described, model_type, tokenizer, extra_ids):
    directory = described(V1_0 | {"model_type": model_type})
    assert huggingface.vocabulary(directory) is None
    (directory / "tokenizer.json").write_text('{"model": {"type": "WordLevel", "vocab": {}}}')
    message = error_of(huggingface.vocabulary, directory)
    assert (
        f"{directory / 'tokenizer.json'}: its model is WordLevel, and those read are Unigram "
        in message
    )
    shutil.copy(GOLDEN / "tokenizer" / "tokenizer.json", directory)
    assert huggingface.vocabulary(directory) == (directory / "tokenizer.json", 4)
    (directory / "spiece.model").write_bytes(b"pieces")
    if tokenizer is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert huggingface.vocabulary(directory) == (directory / "spiece.model", extra_ids)


def test_byt5_has_bytes(described):
    assert huggingface.vocabulary(GOLDEN / "hf_byt5") == (None, 125)
    directory = described(V1_1 | {"tokenizer_class": "ByT5Tokenizer"})
    assert huggingface.vocabulary(directory) == (None, 125)


# Files.


def test_nothing_is_read_before_it_is_sliced(edited, tmp_path):
    """Sources are views of the file itself, also in bfloat16 and transposed."""
    directory = edited("hf_byt5")
    sources = huggingface.sources(directory)
    assert {array.dtype for array in sources.values()} == {np.dtype(jnp.bfloat16)}
    assert all(isinstance(array, np.memmap) for array in sources.values())
    for file in directory.glob("*.safetensors"):
        content = file.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        with file.open("r+b") as stream:
            stream.seek(start)
            stream.write(bytes(len(content) - start))
    assert not any(array.any() for array in sources.values())


def test_a_pytorch_file_without_pytorch_says_what_to_do(edited, monkeypatch):
    directory = edited("hf_v1_0")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert huggingface.is_checkpoint(directory)
    message = error_of(huggingface.config, directory)
    assert "pip install torch, or save the model as safetensors" in message


# Writing.


IDS = ("model_type", "architectures", "pad_token_id", "eos_token_id", "decoder_start_token_id")
OTHER_IDS = "hf_madlad", "hf_madlad_tied", "hf_umt5"


@pytest.mark.parametrize(
    "model, bytes_in_a_file",
    [
        *itertools.product(("hf_v1_0", "hf_v1_1", "hf_byt5"), (5 * 10**9, 10_000)),
        *((name, 5 * 10**9) for name in OTHER_IDS),
    ],
)
def test_what_is_written_is_read_back(model, bytes_in_a_file, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_files, "_FILE_BYTES", bytes_in_a_file)
    expected, config = huggingface.sources(GOLDEN / model), huggingface.config(GOLDEN / model)
    huggingface.write(tmp_path, params_of(GOLDEN / model), config, None)
    assert huggingface.config(tmp_path) == config
    assert huggingface.vocabulary(tmp_path) is None
    assert_identical(huggingface.sources(tmp_path), expected)
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) == 1 if bytes_in_a_file == 5 * 10**9 else len(files) > 1
    largest = max(array.nbytes for array in expected.values())
    assert all(file.stat().st_size < max(bytes_in_a_file, largest) + 4000 for file in files)
    if model in OTHER_IDS:
        records = (folder / "config.json" for folder in (tmp_path, GOLDEN / model))
        written, read = (json.loads(file.read_text()) for file in records)
        assert {name: written[name] for name in IDS} == {name: read[name] for name in IDS}


def test_float64_is_written_as_it_is(tmp_path):
    config = huggingface.config(GOLDEN / "hf_v1_0")
    sources = huggingface.sources(GOLDEN / "hf_v1_0")
    wide = {name: array.astype(np.float64) for name, array in sources.items()}
    huggingface.write(tmp_path, tree.unflatten(wide), config, None)
    assert_identical(huggingface.sources(tmp_path), wide)
    integers = {name: array.astype(np.int32) for name, array in sources.items()}
    message = error_of(huggingface.write, tmp_path, tree.unflatten(integers), config, None)
    assert "is int32; write one of F64, F32, F16, BF16" in message


def test_the_dtype_in_the_config_is_that_of_the_kernels(tmp_path):
    config = huggingface.config(GOLDEN / "hf_v1_0")
    params = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32 if leaf.size == 16 else jnp.bfloat16),
        params_of(GOLDEN / "hf_v1_0"),
    )
    huggingface.write(tmp_path, params, config, None)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    dtypes = Counter(array.dtype.name for array in huggingface.sources(tmp_path).values())
    assert dtypes["float32"] == 11 and dtypes["bfloat16"] > 10


@pytest.mark.parametrize("room, extra_ids", ((100, 100), (99, 0)))
def test_the_vocabulary_is_written_with_its_extra_ids(room, extra_ids, tmp_path):
    config = T5Config(2048 + room, 4, 2, 2, 4, 1, 1)  # the demo's vocabulary has 2048 pieces
    params = zeros(config)
    huggingface.write(tmp_path / "a", params, config, DEMO_VOCABULARY)
    file, found = huggingface.vocabulary(tmp_path / "a")
    assert (file.read_bytes(), found) == (DEMO_VOCABULARY.read_bytes(), extra_ids)
    junk = tmp_path / "junk.model"
    junk.write_bytes(b"junk")
    message = error_of(huggingface.write, tmp_path / "b", params, config, junk)
    assert message == f"vocabulary {junk} is not a SentencePiece model; give a .model file"


def test_a_tokenizer_goes_with_the_parameters(tmp_path):
    """Through both formats that keep one; it is the demo's vocabulary, and another is not."""
    tokenizer = GOLDEN / "tokenizer" / "tokenizer.json"
    config = T5Config(2148, 4, 2, 2, 4, 1, 1)
    params = zeros(config)
    checkpoints.save(tmp_path / "a", params, config=config, vocabulary=tokenizer)
    saved = checkpoints.vocabulary_from(tmp_path / "a")
    checkpoints.save(tmp_path / "b", params, config=config, format="huggingface", vocabulary=saved)
    found = checkpoints.vocabulary_from(tmp_path / "b")
    assert found.extra_ids == 4 and found.digest == saved.digest
    assert found.path.read_bytes() == tokenizer.read_bytes()
    checkpoints.check_pair(tmp_path / "b", DEMO_VOCABULARY.parent / "draft")
    record = json.loads(found.path.read_text())
    record["model"]["vocab"][300][0] = "other"
    found.path.write_text(json.dumps(record))
    message = error_of(checkpoints.check_pair, tmp_path / "b", DEMO_VOCABULARY.parent / "draft")
    assert "have different vocabularies (tokenizer.json, sha256" in message


@pytest.mark.parametrize(
    "activations, projection",
    [(("relu",), "relu"), (("gelu",), "gelu_new"), (("silu", "linear"), "gated-silu")],
)
def test_activations_are_written_in_their_words(activations, projection, tmp_path):
    config = T5Config(7, 4, 2, 2, 4, 1, 1, mlp_activations=activations)
    params = zeros(config)
    huggingface.write(tmp_path, params, config, None)
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["feed_forward_proj"] == projection
    assert huggingface.config(tmp_path) == config


@pytest.mark.parametrize("activations", [("gelu", "gelu"), ("linear",), ("linear", "gelu")])
def test_other_activations_are_not_written(activations, tmp_path):
    config = T5Config(7, 4, 2, 2, 4, 1, 1, mlp_activations=activations)
    assert "transformers' T5 has no MLP with" in error_of(
        huggingface.write, tmp_path / "a", {}, config, None
    )
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("names, said", [([], "no architecture"), (["A", "B"], "A, B")])
def test_a_t5_inside_of_another_model_is_named_by_its_record(names, said):
    message = f"another model \\({said} by its record\\): a T5 under 'x"
    with pytest.raises(ValueError, match=message):
        of_t5._check_names(["x.encoder.block.0.w", "head.w"], {"architectures": names})
