"""What a config of T5Gemma says of its layers: pytest tests/models/test_configs_of_t5gemma.py"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from specdec.models import partitioning
from specdec.models.t5gemma.t5gemma_config import StackSizes, T5GemmaConfig
from specdec.models.t5gemma.t5gemma_model import T5Gemma
from specdec.models.t5gemma2.t5gemma2_config import T5Gemma2Config

DECODER = StackSizes(emb_dim=32, num_heads=6, num_kv_heads=3, head_dim=4, mlp_dim=10, layers=7)
ENCODER = StackSizes(emb_dim=48, num_heads=8, num_kv_heads=2, head_dim=6, mlp_dim=12, layers=5)


def config(kind=T5GemmaConfig, **changes):
    names = "emb_dim", "num_heads", "num_kv_heads", "head_dim", "mlp_dim"
    fields = dict(zip(names, DECODER, strict=False))
    fields |= {f"encoder_{name}": size for name, size in zip(names, ENCODER, strict=False)}
    fields |= {"vocab_size": 20, "num_decoder_layers": 7, "num_encoder_layers": 5}
    if kind is T5Gemma2Config:
        fields["encoder_emb_dim"] = 32
    return kind(**fields | changes)


def test_each_stack_has_its_own_sizes():
    assert (config().decoder, config().encoder) == (DECODER, ENCODER)


def test_local_layers_and_their_windows():
    """As in transformers 5: version 1 alternates, and version 2 has one global layer in six."""
    one, two = config(window=4), config(T5Gemma2Config)
    assert [one.is_local(layer) for layer in range(4)] == [True, False, True, False]
    assert [two.is_local(layer) for layer in range(12)] == 2 * [*[True] * 5, False]
    assert one.encoder_window == (4, 4)
    assert two.encoder_window == (255, 256)
    assert dataclasses.replace(two, window=5).encoder_window == (2, 2)
    assert (config().window, two.window) == (4096, 512)


def test_angles_of_rotary_positions():
    """theta ** (-2 i / 4), and in global layers of version 2 divided by a factor."""
    one, two = config(), config(T5Gemma2Config, rope_factor=8.0)
    for local in (True, False):
        assert one.rotary_rates(4, local) == pytest.approx([1, 0.01])
    assert two.rotary_rates(4, True) == pytest.approx([1, 0.01])
    assert two.rotary_rates(4, False) == pytest.approx([1 / 8, 0.001 / 8])
    assert two.rotary_rates(6, True) == pytest.approx([1, 10 ** (-4 / 3), 10 ** (-8 / 3)])
    assert one.rotary_rates(4, True).dtype == np.float32


def test_what_a_record_leaves_out():
    """The values of the releases."""
    one, two = config(), config(T5Gemma2Config)
    names = ("query_scalar", "attention_cap", "logits_cap", "rope_theta", "layer_norm_epsilon")
    assert [getattr(one, name) for name in names] == [256.0, 50.0, 30.0, 10_000.0, 1e-6]
    assert [getattr(two, name) for name in names] == [256.0, None, None, 1_000_000.0, 1e-6]
    assert (two.local_rope_theta, two.rope_factor, two.end_of_image_id) == (10_000.0, 1.0, 256_000)
    assert (one.decoder_start_id, one.pad_id, one.stop_ids, one.dtype) == (2, 0, (1,), "float32")
    assert one.head_is_table
    assert not config(logits_via_embedding=False).head_is_table
    assert not config(head_ids=(1, 19)).head_is_table


def test_bytes_of_a_cache():
    """Keys and values of 7 layers, 2 rows, 3 heads, 8 and 24 tokens, and 4 numbers of 4 bytes.

    Outputs and inputs are in one array. A mesh of 3 devices divides the heads.
    """
    model = T5Gemma(config(), axis_rules=partitioning.standard_logical_axis_rules())
    assert model.spare == 0
    assert model.cache_bytes(2, 8, 24) == 7 * 2 * 2 * 3 * (8 + 24) * 4 * 4
    wider = dataclasses.replace(model, least_width=3)  # two slots behind the last
    assert wider.cache_bytes(2, 8, 24) == 7 * 2 * 2 * 3 * (8 + 2 + 24) * 4 * 4
    mesh = {partitioning.DATA: 1, partitioning.MODEL: 3}
    assert model.cache_bytes(2, 8, 24, mesh) == 7 * 2 * 2 * (8 + 24) * 4 * 4


@pytest.mark.parametrize(
    "kind, changes, says",
    [
        (
            T5GemmaConfig,
            {"num_kv_heads": 4},
            "T5GemmaConfig.num_kv_heads is 4, which does not divide num_heads 6; give a divisor",
        ),
        (
            T5Gemma2Config,
            {"encoder_num_kv_heads": 3},
            "T5Gemma2Config.encoder_num_kv_heads is 3, which does not divide encoder_num_heads 8; "
            "give a divisor",
        ),
        (T5GemmaConfig, {"head_dim": 5}, "T5GemmaConfig.head_dim is 5; give an even number"),
        (
            T5GemmaConfig,
            {"encoder_head_dim": 7},
            "T5GemmaConfig.encoder_head_dim is 7; give an even number",
        ),
        (
            T5GemmaConfig,
            {"num_encoder_layers": 0},
            "T5GemmaConfig.num_encoder_layers is 0 and encoded_dim None; give layers, or 0 and the "
            "width of the output to read",
        ),
        (
            T5GemmaConfig,
            {"encoded_dim": 48},
            "T5GemmaConfig.num_encoder_layers is 5 and encoded_dim 48; give layers, or 0 and the "
            "width of the output to read",
        ),
        (
            T5GemmaConfig,
            {"head_ids": (1, 20)},
            "T5GemmaConfig.head_ids goes up to 20; give ids below 20",
        ),
        (
            T5GemmaConfig,
            {"pad_id": 3, "stop_ids": (1, 3)},
            "T5GemmaConfig.pad_id is 3, which is also one of stop_ids (1, 3); give another one",
        ),
        (
            T5Gemma2Config,
            {"attention_cap": 50.0},
            "T5Gemma2Config.attention_cap is 50.0, and version 2 has no cap; give None",
        ),
        (
            T5Gemma2Config,
            {"encoder_emb_dim": 48},
            "T5Gemma2Config.encoder_emb_dim is 48 and emb_dim 32, which one table serves; give one "
            "width",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused(kind, changes, says):
    with pytest.raises(ValueError) as error:
        config(kind, **changes)
    assert str(error.value) == says
    config(num_encoder_layers=0, encoded_dim=48)
