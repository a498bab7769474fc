"""The architecture of a T5, in plain values."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from specdec.common.values import Checked, NonNegativeInt, PositiveFloat, PositiveInt
from specdec.models.layers import ACTIVATIONS, DType

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

    A T5 with additions for drafting is a `T5DraftConfig`.
    """

    vocab_size: PositiveInt
    emb_dim: PositiveInt
    num_heads: PositiveInt
    head_dim: PositiveInt
    mlp_dim: PositiveInt
    num_encoder_layers: PositiveInt
    num_decoder_layers: PositiveInt
    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    logits_via_embedding: bool = False
    dtype: DType = "float32"
    relative_attention_num_buckets: PositiveInt = 32
    relative_attention_max_distance: PositiveInt = 128
    relative_bias_per_layer: bool = False
    layer_norm_epsilon: PositiveFloat = 1e-6
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
        if self.decoder_start_id >= self.vocab_size:
            raise ValueError(
                f"T5Config.decoder_start_id is {self.decoder_start_id!r} but the model has "
                f"{self.vocab_size} ids; give one of them"
            )

    @property
    def head_is_table(self) -> bool:
        """Whether the table of tokens also projects to the logits."""
        return self.logits_via_embedding


def _words(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple):
        raise ValueError(f"T5Config.mlp_activations is {given!r}; give names, as in ('relu',)")
    return tuple(given)


def _name(dtype: Any) -> Any:
    """Returns the name of a dtype, or what was given if it is none."""
    try:
        return jnp.dtype(dtype).name
    except TypeError:
        return dtype
