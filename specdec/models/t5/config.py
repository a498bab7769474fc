"""The architecture of a T5, in plain values."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from specdec.common.values import NonNegativeInt, PositiveFloat, PositiveInt, TokenIds
from specdec.models.bases.architecture import Architecture
from specdec.models.layers.layers import ACTIVATIONS, DType

PAD_ID, EOS_ID = 0, 1  # unless a checkpoint names others
SIZES = (
    "emb_dim",
    "num_heads",
    "head_dim",
    "mlp_dim",
    "num_encoder_layers",
    "num_decoder_layers",
)  # the fields that differ between small and large ones of a version


@dataclasses.dataclass(frozen=True)
class T5Config(Architecture):
    """The architecture of a T5, with T5X's field names and meanings and the defaults of v1.1.

    For v1.0, use mlp_activations=('relu',) and logits_via_embedding=True; logits are then scaled by
    1/sqrt(emb_dim). A T5 with additions for drafting is a `T5DraftConfig`.

    The other fields are those of `Architecture`.

    Args:
      mlp_activations: one activation per projection of the MLP.
      relative_attention_num_buckets: buckets of relative positions.
      relative_attention_max_distance: the distance from which on positions share a bucket.
      relative_bias_per_layer: whether each layer has its own relative-position biases, as in models
        trained with T5X's scalable_t5.

    Example:

    >>> T5Config(vocab_size=512, emb_dim=96, num_heads=4, head_dim=16, mlp_dim=256,
    ...          num_encoder_layers=2, num_decoder_layers=4).mlp_activations
    ('gelu', 'linear')
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
    pad_id: NonNegativeInt = dataclasses.field(default=PAD_ID, repr=False)
    stop_ids: TokenIds = dataclasses.field(default=(EOS_ID,), repr=False)

    scales_logits: ClassVar[bool] = True
    spread: ClassVar[float] = 1.0

    def __post_init__(self):
        # gin and JSON hand over lists; a static argument must be hashable.
        object.__setattr__(self, "mlp_activations", _words(self.mlp_activations))
        super().__post_init__()
        for activation in self.mlp_activations:
            if activation not in ACTIVATIONS:
                raise ValueError(
                    f"T5Config.mlp_activations has {activation!r}; known: {', '.join(ACTIVATIONS)}"
                )
        for name in ("decoder_start_id", "pad_id"):
            if (id := getattr(self, name)) >= self.vocab_size:
                raise ValueError(
                    f"T5Config.{name} is {id!r} but the model has {self.vocab_size} ids; give one "
                    "of them"
                )

    @property
    def num_kv_heads(self) -> int:
        """The heads of keys and values, as many as of queries."""
        return self.num_heads

    def query_scale(self, head_dim: int) -> None:
        """Returns None: T5 has the factor in the initial values of the queries' kernels."""
        return None


def _words(words: object) -> tuple[str, ...]:
    if not isinstance(words, list | tuple):
        raise ValueError(f"T5Config.mlp_activations is {words!r}; give names, as in ('relu',)")
    return tuple(words)
