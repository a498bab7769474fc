"""A family outside of the package: pytest tests/examples/test_rotary.py"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rotary
from tolerances import SMALL_LOGITS

import gin
from specdec import checkpoints
from specdec.checkpoints import CheckpointError
from specdec.models import families, partitioning

pytestmark = pytest.mark.ci

CONFIG = rotary.RotaryConfig(
    vocab_size=64, emb_dim=16, num_heads=4, head_dim=4, mlp_dim=24, num_layers=2
)
MODEL = rotary.Rotary(CONFIG)
PARAMS = MODEL.init(jax.random.key(0))
PROMPTS = jnp.array([[7, 3, 9, 4, 5, 8], [6, 2, 0, 0, 0, 0], [9, 0, 0, 0, 0, 0]], jnp.int32)
LENGTHS = (6, 2, 1)
TOKENS = jax.random.randint(jax.random.key(1), (3, 9), 2, 64)
decode = jax.jit(MODEL.decode)


def fed(prompts, tokens, widths, capacity=9) -> np.ndarray:
    """The logits of blocks that are fed one after the other."""
    cache, blocks, begin = MODEL.prefill(PARAMS, prompts, capacity), [], 0
    for width in widths:
        output, cache = decode(PARAMS, tokens[:, begin : begin + width], cache)
        blocks.append(output.logits)
        begin += width
    assert np.array_equal(cache.length, [begin] * len(prompts))
    return np.concatenate(blocks, axis=1)


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=SMALL_LOGITS)


def reference(text: list[int]) -> np.ndarray:
    """The logits of a whole text in float64, one position and one head after the other; pairs of
    numbers are complex ones, which a position turns."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), PARAMS)
    turns = np.exp(1j * np.arange(len(text))[:, None] * 10_000.0 ** (-np.arange(2) / 2))

    def norm(x, scale):
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale

    def turned(x):  # [T, 4]
        pairs = (x[:, :2] + 1j * x[:, 2:]) * turns
        return np.concatenate([pairs.real, pairs.imag], axis=1)

    def head(y, layer, at):
        query, key, value = (y @ layer[name]["kernel"][:, at] for name in ("query", "key", "value"))
        scores = np.exp(turned(query) @ turned(key).T / 2) * np.tri(len(text))
        return scores / scores.sum(axis=1, keepdims=True) @ value

    x = params["embedding"]["embedding"][text]
    for layer in (params["layers_0"], params["layers_1"]):
        y = norm(x, layer["attention_norm"]["scale"])
        heads = [head(y, layer, np.s_[4 * i : 4 * i + 4]) for i in range(4)]
        x = x + np.concatenate(heads, axis=1) @ layer["out"]["kernel"]
        y = norm(x, layer["mlp_norm"]["scale"])
        gate, up = (y @ layer["mlp"][name]["kernel"] for name in ("wi_0", "wi_1"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["mlp"]["wo"]["kernel"]
    return norm(x, params["norm"]["scale"]) @ params["logits"]["kernel"]


def test_logits_are_those_of_the_equations():
    tokens = TOKENS.at[:, 0].set(MODEL.start(PROMPTS))
    logits = fed(PROMPTS, tokens, (9,))
    for row, length in enumerate(LENGTHS):
        text = [*PROMPTS[row, : length - 1].tolist(), *tokens[row].tolist()]
        assert_close(logits[row], reference(text)[length - 1 :])


def test_blocks_at_ragged_positions_after_rejected_tokens_equal_single_steps():
    single = fed(PROMPTS, TOKENS, (1,) * 9)
    cache = MODEL.prefill(PARAMS, PROMPTS, 12)
    length, draws = np.zeros(3, int), np.random.default_rng(0)
    while length.min() < 6:
        block = np.stack([TOKENS[row, at : at + 3] for row, at in enumerate(length)])
        kept = draws.integers(1, 4, 3)
        block[np.arange(3)[None] >= kept[:, None]] = 63  # rejected
        output, cache = decode(PARAMS, jnp.asarray(block), cache)
        for row, (at, count) in enumerate(zip(length, kept, strict=True)):
            assert_close(output.logits[row, :count], single[row, at : at + count])
        length = np.minimum(length + kept, 6)
        cache = cache.rewind(jnp.asarray(length))
        assert np.array_equal(cache.length, length)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model"
    checkpoints.save(path, PARAMS, config=CONFIG)
    return path


def test_a_checkpoint_names_its_family(saved):
    record = json.loads((saved / "config.json").read_text())
    assert record["family"] == "rotary" and record["model"]["num_layers"] == 2
    assert checkpoints.model_from(saved) == MODEL
    assert checkpoints.model_from(saved, "bfloat16").dtype == "bfloat16"
    jax.tree.map(np.testing.assert_array_equal, checkpoints.load(saved), PARAMS)


def test_its_misfits_are_reported(saved):
    other = rotary.RotaryConfig(**vars(CONFIG) | {"mlp_dim": 25})
    with pytest.raises(
        CheckpointError, match=r"6 misshaped \(layers_0/mlp/wi_0/kernel \(16, 24\), not \(16, 25"
    ):
        checkpoints.load(saved, config=other)


def test_transformers_does_not_know_it(tmp_path):
    with pytest.raises(CheckpointError, match="no models of the family 'rotary'; choose another"):
        checkpoints.save(tmp_path / "model", PARAMS, config=CONFIG, format="huggingface")
    assert not list(tmp_path.iterdir())


def test_a_family_that_nobody_imported_is_named(saved, monkeypatch):
    monkeypatch.delitem(families.FAMILIES, "rotary")
    known = "t5, t5_draft, t5gemma, t5gemma2, whisper, llama, llava, opt, gpt2, heads; import"
    message = f"config.json: family is 'rotary', and those known are {known}"
    with pytest.raises(CheckpointError, match=message):
        checkpoints.model_from(saved)


def test_a_gin_file_imports_it(saved):
    gin.clear_config()
    gin.parse_config(f"""
        from __gin__ import dynamic_registration
        import rotary
        from specdec import checkpoints

        rotary.Rotary.config = @checkpoints.config_from()
        checkpoints.config_from.path = {str(saved)!r}
    """)
    assert gin.get_configurable(rotary.Rotary)() == MODEL
    gin.clear_config()


def test_a_mesh_divides_it():
    """By heads and columns, with the same logits."""
    mesh = partitioning.make_mesh(4)
    model = rotary.Rotary(CONFIG, partitioning.standard_logical_axis_rules())
    params = jax.device_put(PARAMS, partitioning.shardings(model, mesh))
    assert params["layers_1"]["query"]["kernel"].sharding.spec == jax.P(None, "model")

    @jax.jit
    def logits(params, prompts, tokens):
        cache = model.prefill(params, prompts, 6)
        output, cache = model.decode(params, tokens, cache)
        return output.logits, cache

    rows = jnp.concatenate([PROMPTS, PROMPTS[:1]]), jnp.concatenate([TOKENS, TOKENS[:1]])[:, :6]
    with jax.set_mesh(mesh):
        found, cache = logits(params, *jax.device_put(rows, partitioning.rows(mesh)))
    assert_close(found[:3], fed(PROMPTS, TOKENS, (6,)))
    arrays = jax.tree.leaves([cache.keys, cache.values])
    bytes_held = sum(array.addressable_shards[0].data.nbytes for array in arrays)
    assert bytes_held == model.cache_bytes(4, 6, 6, mesh.shape)
