"""The architecture of a T5, in plain values."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from specdec.models.layers import ACTIVATIONS, DType
from specdec.values import Checked, NonNegativeInt, PositiveFloat, PositiveInt, check, is_integer

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
class T5Config(Checked):
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

    vocab_size: PositiveInt
    emb_dim: PositiveInt
    num_heads: PositiveInt
    head_dim: PositiveInt
    mlp_dim: PositiveInt
    num_encoder_layers: NonNegativeInt
    num_decoder_layers: PositiveInt
    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    logits_via_embedding: bool = False
    dtype: DType = "float32"
    relative_attention_num_buckets: PositiveInt = 32
    relative_attention_max_distance: PositiveInt = 128
    relative_bias_per_layer: bool = False
    layer_norm_epsilon: PositiveFloat = 1e-6
    exit_classifier: bool = False
    encoded_dim: PositiveInt | None = None
    states_dim: PositiveInt | None = None
    markov_rank: PositiveInt | None = None
    confidence_head: bool = False
    head_ids: tuple[int, ...] | None = dataclasses.field(default=None, repr=False)
    decoder_start_id: NonNegativeInt = dataclasses.field(default=PAD_ID, repr=False)

    def __post_init__(self):
        # gin and JSON hand over lists and dtype objects; a static argument must be hashable.
        object.__setattr__(self, "mlp_activations", _words(self.mlp_activations))
        object.__setattr__(self, "dtype", _name(self.dtype))
        super().__post_init__()
        for activation in self.mlp_activations:
            if activation not in ACTIVATIONS:
                raise ValueError(
                    f"T5Config.mlp_activations has {activation!r}; known: {', '.join(ACTIVATIONS)}"
                )
        if not self.encoded_dim:
            check("T5Config.num_encoder_layers", self.num_encoder_layers, PositiveInt)
        elif self.num_encoder_layers:
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
        if self.decoder_start_id >= self.vocab_size:
            raise ValueError(
                f"T5Config.decoder_start_id is {self.decoder_start_id!r} but the model has "
                f"{self.vocab_size} ids; give one of them"
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
