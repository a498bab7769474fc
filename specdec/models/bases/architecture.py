"""The base class of all configs, with the switches of the network in `transformer`."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike

from specdec.common.values import Checked, Rule, is_integer
from specdec.models.layers.layers import RMSNorm

NO_PAD = -1  # the padding id of a model whose vocabulary has none
PadId = Annotated[int, Rule(lambda value: is_integer(value, NO_PAD), "an id, or -1 for none")]
SPREAD = 0.02  # of random tables, whose rows also project to logits without a scale


class StackSizes(NamedTuple):
    """The sizes of one stack of layers."""

    emb_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    layers: int


class Architecture(Checked):
    """The switches and checks of all families; a family adds the fields as a frozen dataclass.

    Each switch is a class variable, a field or a property of a family.

    Args:
      vocab_size: V.
      emb_dim: D, the width of the residual stream. This and the next four are the decoder's sizes.
      num_heads: attention heads of queries.
      num_kv_heads: heads of keys and values, a divisor of `num_heads`.
      head_dim: the size of a head.
      mlp_dim: hidden units of an MLP.
      num_encoder_layers: the number of the encoder's layers; 0 with `encoded_dim`.
      num_decoder_layers: the number of the decoder's layers.
      logits_via_embedding: whether the token table also projects to the logits.
      dtype: of matrix products and of the KV cache, 'float32' or 'bfloat16'. Parameters may be
        stored in another dtype.
      layer_norm_epsilon: epsilon of the norms.
      encoded_dim: the width of the target's encoder output, for a draft model that reads it instead
        of having an encoder; else None.
      head_ids: the ids, ascending, that have a row in the output head; the logits of the others are
        -inf. The head is then a separate array, even if logits are tied. None for all ids.
      decoder_start_id: the id that outputs start from.
      pad_id: the id that texts are padded with; -1, which no token has, if the vocabulary has none.
      stop_ids: the ids that end a text.

    Attributes:
      norm: the class of norms.
      norms_behind: whether norms follow the residual sums (post-norm), without a final norm.
      norms_around: whether each sub-layer's output has a second norm, before the residual sum.
      norms_heads: whether queries and keys have norms.
      has_biases: whether all products have a bias.
      has_cross: whether decoder layers have cross-attention apart from self-attention.
      mlp_activations: one activation per projection of the MLP.
      attention_cap: the soft cap of attention logits; None for none.
      scales_embeddings: whether rows of the token table are multiplied by the root of their width.
      scales_logits: whether logits of a tied model are divided by the root of D.
      spread: the standard deviation of random rows of the token table.
      is_rotary: whether queries and keys are rotated by their positions, at `rotary_rates`.
      num_positions: rows of the decoder's table of positions; None for no table.
      first_position: the row of the first position.
      sinusoidal: whether that table is `transformer.sinusoids` instead of a parameter.
      has_input_positions: whether the encoder has a table of positions as well.
      table_dim: the width of the token table, if it differs from D; then projections map between
        both.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    vocab_size: int
    dtype: str
    emb_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    num_encoder_layers: int
    num_decoder_layers: int
    layer_norm_epsilon: float
    logits_via_embedding: bool
    decoder_start_id: int
    pad_id: int
    stop_ids: tuple[int, ...]

    norm: ClassVar[type[nn.Module]] = RMSNorm
    norms_around: ClassVar[bool] = False
    norms_heads: ClassVar[bool] = False
    has_biases: ClassVar[bool] = False
    has_cross: ClassVar[bool] = True
    mlp_activations: ClassVar[tuple[str, ...]] = ("gelu", "linear")
    attention_cap: ClassVar[float | None] = None
    scales_embeddings: ClassVar[bool] = False
    scales_logits: ClassVar[bool] = False
    spread: ClassVar[float] = SPREAD
    is_rotary: ClassVar[bool] = False
    first_position: ClassVar[int] = 0
    sinusoidal: ClassVar[bool] = False
    has_input_positions: ClassVar[bool] = False
    encoded_dim: ClassVar[int | None] = None
    head_ids: ClassVar[tuple[int, ...] | None] = None
    pad_remedy: ClassVar[str] = "another one"

    def __post_init__(self):
        object.__setattr__(self, "dtype", _name(self.dtype))
        super().__post_init__()
        name = type(self).__name__
        if self.head_ids is not None and self.head_ids[-1] >= self.vocab_size:
            raise ValueError(
                f"{name}.head_ids goes up to {self.head_ids[-1]}; give ids below {self.vocab_size}"
            )
        if self.pad_id in self.stop_ids:
            raise ValueError(
                f"{name}.pad_id is {self.pad_id}, which is also one of stop_ids {self.stop_ids}; "
                f"give {self.pad_remedy}"
            )
        for prefix, sizes in (("", self.decoder), ("encoder_", self.encoder)):
            self._check_stack(prefix, sizes)

    @property
    def head_is_table(self) -> bool:
        """Whether the token table also projects to the logits."""
        return self.logits_via_embedding and self.head_ids is None

    @property
    def norms_behind(self) -> bool:
        return False

    @property
    def num_positions(self) -> int | None:
        return None

    @property
    def table_dim(self) -> int | None:
        return None

    @property
    def encoder(self) -> StackSizes:
        """The sizes of the encoder, by default the decoder's."""
        return self.decoder._replace(layers=self.num_encoder_layers)

    @property
    def decoder(self) -> StackSizes:
        """The sizes of the decoder."""
        heads = self.num_heads, self.num_kv_heads, self.head_dim
        return StackSizes(self.emb_dim, *heads, self.mlp_dim, self.num_decoder_layers)

    def has_bias(self, name: str) -> bool:
        """Returns whether a product of attention, such as "key", has a bias."""
        return self.has_biases

    def is_local(self, layer: int) -> bool:
        """Returns whether a layer, counted from 0, attends only to a window of tokens."""
        return False

    def query_scale(self, head_dim: int) -> float | None:
        """Returns the factor that queries are multiplied by; None for none."""
        return 1 / math.sqrt(head_dim)

    def rotary_rates(self, head_dim: int, local: bool) -> np.ndarray:
        """Returns [head_dim / 2] float32, the angle per position of each pair of numbers."""
        raise NotImplementedError

    def check_encoder(self) -> None:
        """Raises ValueError unless the config has either encoder layers or `encoded_dim`."""
        if (self.num_encoder_layers == 0) != (self.encoded_dim is not None):
            raise ValueError(
                f"{type(self).__name__}.num_encoder_layers is {self.num_encoder_layers} and "
                f"encoded_dim is {self.encoded_dim}; give layers, or 0 and the width of the "
                "target's encoder output"
            )

    def _check_stack(self, prefix: str, sizes: StackSizes) -> None:
        name = f"{type(self).__name__}.{prefix}"
        if sizes.num_heads % sizes.num_kv_heads:
            raise ValueError(
                f"{name}num_kv_heads is {sizes.num_kv_heads}, which does not divide "
                f"{prefix}num_heads {sizes.num_heads}; give a divisor"
            )
        if self.is_rotary and sizes.head_dim % 2:
            raise ValueError(f"{name}head_dim is {sizes.head_dim}; give an even number")


def _name(dtype: DTypeLike) -> DTypeLike:
    """Returns the name of a dtype, or the value itself if it is not a dtype."""
    try:
        return jnp.dtype(dtype).name
    except TypeError:
        return dtype
