"""GPT-2's checkpoints in transformers' format.

Query, key and value are one array, and kernels are stored [in, out] as here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from specdec.models.bases.family_checkpoints import (
    HEAD,
    FamilyCheckpoints,
    fields_of_record,
    refuse_other,
    refuse_own_heads,
)
from specdec.models.contract.family import Record
from specdec.models.gpt2.gpt2_model import Gpt2Config

_SUPPORTED = {
    "activation_function": ("gelu_new",),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "add_cross_attention": (False,),
}


class Gpt2Checkpoints(FamilyCheckpoints):
    """GPT-2's checkpoints in transformers' format; see `FamilyCheckpoints`."""

    MODEL_TYPES: tuple[str, ...] = ("gpt2",)
    architecture = "GPT2LMHeadModel"
    prefix = "transformer."
    anchor = "transformer.wte.weight"
    unused = re.compile(r"transformer\.h\.\d+\.attn\.(masked_)?bias")
    layers = "transformer.h"
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "emb_dim": "n_embd",
        "num_heads": "n_head",
        "num_decoder_layers": "n_layer",
        "mlp_dim": "n_inner",
        "context": "n_positions",
        "logits_via_embedding": "tie_word_embeddings",
        "layer_norm_epsilon": "layer_norm_epsilon",
    }
    parts: ClassVar[Mapping[str, str]] = {
        "pre_self_attention_layer_norm/scale": "ln_1",
        "self_attention/query/kernel": "attn.c_attn",
        "self_attention/key/kernel": "attn.c_attn",
        "self_attention/value/kernel": "attn.c_attn",
        "self_attention/out/kernel": "attn.c_proj",
        "pre_mlp_layer_norm/scale": "ln_2",
        "mlp/wi/kernel": "mlp.c_fc",
        "mlp/wo/kernel": "mlp.c_proj",
    }
    others: ClassVar[Mapping[str, str]] = {
        "decoder/position_embedder/embedding": "transformer.wpe",
        "decoder/decoder_norm/scale": "transformer.ln_f",
    }

    def described(self, record: Record) -> Gpt2Config:
        refuse_other(record, _SUPPORTED)
        fields = fields_of_record(record, self.fields, required=4)
        fields.setdefault("mlp_dim", 4 * fields["emb_dim"])
        heads = fields["num_heads"]
        return Gpt2Config(**fields, num_kv_heads=heads, head_dim=fields["emb_dim"] // max(heads, 1))

    def to_record(self, config: Gpt2Config) -> dict[str, object]:
        refuse_own_heads(config)
        return super().to_record(config) | {name: values[0] for name, values in _SUPPORTED.items()}

    def is_transposed(self, name: str) -> bool:
        """Returns whether the checkpoint's array is [out, in]: only that of the output layer."""
        return name == HEAD
