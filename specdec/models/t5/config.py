"""The architecture of a T5, in plain values."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from specdec.models.layers import ACTIVATIONS
from specdec.values import is_integer, is_number

PAD_ID, EOS_ID = 0, 1  # of every T5
SIZES = (
    "emb_dim",
    "num_heads",
    "head_dim",
    "mlp_dim",
    "num_encoder_layers",
    "num_decoder_layers",
)  # the fields that differ between small and large ones of a version


@dataclasses.dataclass(frozen=True)
class T5Config:
    """The architecture. Fields have T5X's names and meaning; the defaults are those of v1.1.

    v1.0: mlp_activations=('relu',), logits_via_embedding=True (logits are then scaled by
    1/sqrt(emb_dim)). `dtype` is that of matrix products and of the KV cache, 'float32' or
    'bfloat16'; parameters may be stored in another one. With `relative_bias_per_layer` every layer
    has relative-position biases of its own, as in models trained with T5X's scalable_t5.

    `decoder_start_id` is the id that outputs start from, the padding id unless a checkpoint of
    Hugging Face names another one.

    `exit_classifier` adds a classifier of the states behind any layer: whether the last one would
    say the same (`models.t5.Calm`).

    The last five are for drafting for another model, the target, and not there otherwise:

    encoded_dim: the width of the target's encoder, whose output the decoder reads; there is no
      encoder, and `num_encoder_layers` is 0.
    states_dim: the width of the target's decoder, whose states are fed with the tokens.
    markov_rank: of the table of neighbours, by which a token of a block changes the logits of the
      next one.
    confidence_head: whether states of a block tell which of its tokens will be kept.
    head_ids: the ids, ascending, that have a row in the head; the logits of the others are -inf.
      The head is then an array of its own, also where logits are tied.
    """

    vocab_size: int
    emb_dim: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    num_encoder_layers: int
    num_decoder_layers: int
    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    logits_via_embedding: bool = False
    dtype: str = "float32"
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    relative_bias_per_layer: bool = False
    layer_norm_epsilon: float = 1e-6
    exit_classifier: bool = False
    encoded_dim: int | None = None
    states_dim: int | None = None
    markov_rank: int | None = None
    confidence_head: bool = False
    head_ids: tuple[int, ...] | None = dataclasses.field(default=None, repr=False)
    decoder_start_id: int = dataclasses.field(default=PAD_ID, repr=False)

    def __post_init__(self):
        # gin and JSON hand over lists and dtype objects; a static argument must be hashable.
        object.__setattr__(self, "mlp_activations", _words(self.mlp_activations))
        object.__setattr__(self, "dtype", _name(self.dtype))
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"T5Config.dtype is {self.dtype!r}; use 'float32' or 'bfloat16'")
        for activation in self.mlp_activations:
            if activation not in ACTIVATIONS:
                raise ValueError(
                    f"T5Config.mlp_activations has {activation!r}; known: {', '.join(ACTIVATIONS)}"
                )
        for name in ("encoded_dim", "states_dim", "markov_rank"):
            if (value := getattr(self, name)) is not None and not is_integer(value, 1):
                raise ValueError(f"T5Config.{name} is {value!r}; give a positive integer, or None")
        if self.encoded_dim and self.num_encoder_layers:
            raise ValueError(
                f"T5Config.num_encoder_layers is {self.num_encoder_layers!r} and encoded_dim says "
                "that there is no encoder; give 0"
            )
        if self.head_ids is not None:
            object.__setattr__(self, "head_ids", _ids(self.head_ids, self.vocab_size))
            if self.markov_rank:
                raise ValueError(
                    f"T5Config.markov_rank is {self.markov_rank}, which changes the logits of all "
                    "ids, and head_ids says that only some have one; leave one of them out"
                )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "num_encoder_layers" and self.encoded_dim:
                continue
            if field.name == "decoder_start_id":
                continue
            if field.type == "int" and not is_integer(value, 1):
                raise ValueError(f"T5Config.{field.name} is {value!r}; give a positive integer")
        if not is_integer(self.decoder_start_id, 0) or self.decoder_start_id >= self.vocab_size:
            raise ValueError(
                f"T5Config.decoder_start_id is {self.decoder_start_id!r} but the model has "
                f"{self.vocab_size} ids; give one of them"
            )
        if not is_number(self.layer_norm_epsilon) or self.layer_norm_epsilon <= 0:
            raise ValueError(
                f"T5Config.layer_norm_epsilon is {self.layer_norm_epsilon!r}; give a positive "
                "number"
            )


def _words(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple):
        raise ValueError(f"T5Config.mlp_activations is {given!r}; give names, as in ('relu',)")
    return tuple(given)


def _ids(given: Any, vocab_size: int) -> tuple[int, ...]:
    ids = tuple(given) if isinstance(given, list | tuple) else ()
    fine = all(is_integer(x, 0) for x in ids) and sorted(set(ids)) == list(ids)
    if not ids or not fine or ids[-1] >= vocab_size:
        what = f"{len(ids)} ids" if ids else repr(given)
        raise ValueError(
            f"T5Config.head_ids is {what}; give ascending ids below {vocab_size}, or None for all"
        )
    return ids


def _name(dtype: Any) -> Any:
    """A dtype's, or what was given if it is none."""
    try:
        return jnp.dtype(dtype).name
    except TypeError:
        return dtype
