"""OPT's checkpoints in transformers' format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from specdec.models.bases.family_checkpoints import (
    FamilyCheckpoints,
    attention_parts,
    fields_of_record,
    refuse_other,
    refuse_own_heads,
)
from specdec.models.contract.family import Record
from specdec.models.opt.opt_model import OptConfig

_EPSILON = 1e-5  # of all OPTs
_SUPPORTED = {
    "activation_function": ("relu",),
    "enable_bias": (True,),
    "layer_norm_elementwise_affine": (True,),
    "_remove_final_layer_norm": (False,),
}


class OptCheckpoints(FamilyCheckpoints):
    """OPT's checkpoints in transformers' format; see `FamilyCheckpoints`."""

    MODEL_TYPES: tuple[str, ...] = ("opt",)
    architecture = "OPTForCausalLM"
    prefix = "model."
    anchor = "model.decoder.embed_tokens.weight"
    unused = re.compile(r"model\.decoder\.version")
    layers = "model.decoder.layers"
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "emb_dim": "hidden_size",
        "num_heads": "num_attention_heads",
        "mlp_dim": "ffn_dim",
        "num_decoder_layers": "num_hidden_layers",
        "context": "max_position_embeddings",
        "logits_via_embedding": "tie_word_embeddings",
        "token_dim": "word_embed_proj_dim",
    }
    parts: ClassVar[Mapping[str, str]] = {
        "pre_self_attention_layer_norm/scale": "self_attn_layer_norm",
        **attention_parts("self_attention", "self_attn", "q_proj k_proj v_proj out_proj"),
        "pre_mlp_layer_norm/scale": "final_layer_norm",
        "mlp/wi/kernel": "fc1",
        "mlp/wo/kernel": "fc2",
    }
    others: ClassVar[Mapping[str, str]] = {
        "decoder/position_embedder/embedding": "model.decoder.embed_positions",
        "decoder/project_in/kernel": "model.decoder.project_in",
        "decoder/project_out/kernel": "model.decoder.project_out",
        "decoder/decoder_norm/scale": "model.decoder.final_layer_norm",
    }

    def described(self, record: Record) -> OptConfig:
        refuse_other(record, _SUPPORTED)
        fields = fields_of_record(record, self.fields, required=5)
        if fields.get("token_dim") == fields["emb_dim"]:
            fields["token_dim"] = None
        return OptConfig(
            **fields,
            num_kv_heads=fields["num_heads"],
            head_dim=fields["emb_dim"] // max(fields["num_heads"], 1),
            layer_norm_epsilon=_EPSILON,
            post_norm=not record.get("do_layer_norm_before", True),
        )

    def to_record(self, config: OptConfig) -> dict[str, object]:
        refuse_own_heads(config)
        if config.layer_norm_epsilon != _EPSILON:
            raise ValueError(
                f"layer_norm_epsilon is {config.layer_norm_epsilon}, and transformers' OPT has "
                f"{_EPSILON}; choose another format"
            )
        settings = {name: values[0] for name, values in _SUPPORTED.items()}
        width = {"word_embed_proj_dim": config.token_dim or config.emb_dim}
        order = {"do_layer_norm_before": not config.post_norm}
        return super().to_record(config) | settings | width | order
