"""The types of the values that are read from a checkpoint's JSON files, by the file's name.

Keys that are not listed may have any value. null stands for a missing key, as in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NotRequired, TypeAlias, TypedDict

from msgspec import Meta

_Id = Annotated[int, Meta(ge=0, lt=2**31)]
_Text: TypeAlias = str | None
_Flag: TypeAlias = bool | None
_Size: TypeAlias = Annotated[int, Meta(ge=0)] | None  # `tree` compares them with the arrays

_SIZES = """
vocab_size d_model d_kv d_ff num_heads hidden_size intermediate_size num_attention_heads
num_key_value_heads head_dim ffn_dim word_embed_proj_dim n_embd n_head n_inner encoder_ffn_dim
decoder_ffn_dim encoder_attention_heads decoder_attention_heads max_position_embeddings
n_positions max_source_positions max_target_positions num_mel_bins image_size patch_size extra_ids
num_layers num_decoder_layers num_hidden_layers n_layer encoder_layers decoder_layers
"""


class _Token(TypedDict):
    content: str
    lstrip: NotRequired[bool]
    rstrip: NotRequired[bool]
    single_word: NotRequired[bool]
    special: NotRequired[bool]


class _Rope(TypedDict, total=False):
    rope_type: _Text
    type: _Text


class _Ropes(_Rope, total=False):
    full_attention: _Rope | None
    sliding_attention: _Rope | None


class _Vocabulary(TypedDict):
    file: _Text
    sha256: NotRequired[str]
    extra_ids: NotRequired[_Id]


class _Template(TypedDict, total=False):
    name: str
    template: str


def _kind(**fields: object) -> type:
    return TypedDict("_Kind", fields, total=False)  # pyright: ignore


_part: dict[str, object] = {name: _Size for name in _SIZES.split()}
_part |= {"rope_parameters": _Ropes | None, "rope_scaling": _Rope | None, "model_type": _Text}
_part |= {"layer_types": list[str] | None}
_stack = _part | {"text_config": _kind(**_part) | None}
_model = _stack | {
    **dict.fromkeys(("encoder", "decoder", "vision_config"), _kind(**_stack) | None),
    "architectures": list[str] | None,
    "dense_act_fn": _Text,
    "task_specific_params": dict[str, object] | None,
    "chronos_config": dict[str, object],
    # The record of our own format.
    "family": str,
    "model": _kind(num_encoder_layers=_Size, num_decoder_layers=_Size),
    "vocabulary": _Vocabulary | None,
    "crc32": dict[str, str],
}
_tokenizer = {
    "tokenizer_class": _Text,
    "added_tokens_decoder": dict[str, _Token],
    "additional_special_tokens": list[str | _Token] | None,
    "chat_template": str | list[_Template] | None,
    **dict.fromkeys(("add_bos_token", "add_eos_token", "add_prefix_space"), _Flag),
    "extra_ids": _Size,
}
_sound = dict.fromkeys(("lang_to_id", "task_to_id"), dict[str, _Id] | None)

KINDS: Mapping[str, type] = {
    "config.json": _kind(**_model),
    "chronos_config.json": dict[str, object],
    "generation_config.json": _kind(**_sound),
    "tokenizer_config.json": _kind(**_tokenizer),
    "special_tokens_map.json": _kind(**_tokenizer),
    "added_tokens.json": dict[str, _Id],
    "processor_config.json": _kind(image_processor=dict[str, object] | None),
}  # any other file may hold any JSON object
