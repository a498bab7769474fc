"""A T5 with additions for drafting: inputs from the target, and further output heads.

Its parameters are a T5's, with those of the additions in the decoder. It has no encoder if it reads
the target's encoder output.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, cast

import jax.numpy as jnp
from flax import linen as nn

from specdec.common.values import NonNegativeInt, PositiveInt, check, fields_of, is_integer
from specdec.models.bases.networks import StackNetwork
from specdec.models.bases.transformer import Decoder, residual
from specdec.models.contract.blocks import View
from specdec.models.contract.cache import KVCache
from specdec.models.contract.inputs import check_layers
from specdec.models.layers.layers import Dense, Embedding, constrain, parameter
from specdec.models.layers.products import precision
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import T5, T5Decoder, T5Target
from specdec.types import Array, ModelOutput, PyTree


@dataclasses.dataclass(frozen=True)
class T5DraftConfig(T5Config):
    """The architecture of a T5 with additions, each of which is optional.

    Args:
      exit_classifier: whether a classifier of the states after a layer predicts if the last layer
        would predict the same token (`models.t5.Calm`).
      states_dim: the width of the target's decoder states, which are fed together with the tokens.
      markov_rank: the rank of the table with which a token of a block changes the next one's
        logits.
      confidence_head: whether a head predicts, from a block's states, which tokens are accepted.
    """

    num_encoder_layers: NonNegativeInt
    exit_classifier: bool = False
    encoded_dim: PositiveInt | None = None
    states_dim: PositiveInt | None = None
    markov_rank: PositiveInt | None = None
    confidence_head: bool = False
    head_ids: tuple[int, ...] | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self):
        if self.head_ids is not None:
            object.__setattr__(self, "head_ids", _ids(self.head_ids, self.vocab_size))
        super().__post_init__()
        if not self.encoded_dim:
            check("T5DraftConfig.num_encoder_layers", self.num_encoder_layers, PositiveInt)
        elif self.num_encoder_layers:
            raise ValueError(
                f"T5DraftConfig.num_encoder_layers is {self.num_encoder_layers!r} and encoded_dim "
                "says that there is no encoder; give 0"
            )
        if self.markov_rank and self.head_ids is not None:
            raise ValueError(
                f"T5DraftConfig.markov_rank is {self.markov_rank}, which changes the logits of all "
                "ids, and head_ids says that only some have one; leave one of them out"
            )

    @classmethod
    def of(cls, config: T5Config, **additions: Any) -> T5DraftConfig:
        """Returns a T5's config with these additions, which may also change its fields."""
        return cls(**fields_of(config) | additions)


def config_of(**fields: Any) -> T5Config:
    """Returns the config of a checkpoint's record: a T5's, or a draft's if it has additions.

    Older records of plain T5s also have the fields of the additions, unset.
    """
    plain = {field.name for field in dataclasses.fields(T5Config)}
    added = {field.name for field in dataclasses.fields(T5DraftConfig)} - plain
    if any(fields.get(name) not in (None, False) for name in added):
        return T5DraftConfig(**fields)
    return T5Config(**{name: value for name, value in fields.items() if name not in added})


def first_ids(count: int) -> tuple[int, ...]:
    """Returns the first ids, for the shapes of a head whose ids are not known yet.

    Args:
      count: the number of ids.
    """
    return tuple(range(count))


def without_additions(config: T5DraftConfig) -> T5Config:
    """Returns a plain T5's config if no addition is set, and otherwise an equal config."""
    return config_of(**dataclasses.asdict(config))


def _ids(value: object, vocab_size: int) -> tuple[int, ...]:
    ids = tuple(value) if isinstance(value, list | tuple) else ()
    fine = all(is_integer(x, 0) for x in ids) and sorted(set(ids)) == list(ids)
    if not ids or not fine or ids[-1] >= vocab_size:
        what = f"{len(ids)} ids" if ids else repr(value)
        raise ValueError(
            f"T5DraftConfig.head_ids is {what}; give ascending ids below {vocab_size}, or None for "
            "all"
        )
    return ids


class LogOdds(nn.Module):
    """Maps states [B, T, D] to log-odds [B, T] float32."""

    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init = nn.initializers.zeros
        weight = parameter(self, "weight", init, ("embed",), (x.shape[-1],))
        bias = parameter(self, "bias", init, (), ())
        x, weight = x.astype(self.dtype), weight.astype(self.dtype)
        exact, wide = precision(self.dtype), jnp.float32
        y = jnp.einsum("btd,d->bt", x, weight, precision=exact, preferred_element_type=wide)
        return y + bias.astype(wide)


class DraftDecoder(T5Decoder):
    """A decoder with the additions that its config names."""

    config: T5DraftConfig

    def setup(self):
        super().setup()
        config, kernels = self.config, self.kernels[0]
        if config.exit_classifier:
            self.exit_classifier = LogOdds(config.dtype)
        if config.confidence_head:
            self.confidence_head = LogOdds(config.dtype)
        if config.states_dim:
            self.states_dense = Dense(
                config.emb_dim, ("states", "embed"), config.dtype, kernels=kernels
            )
        if config.markov_rank:
            sizes = config.vocab_size, config.markov_rank
            self.markov_embedder = Embedding(*sizes, config.dtype, "markov")
            self.markov_dense = Dense(
                config.vocab_size,
                ("markov", "vocab"),
                config.dtype,
                nn.initializers.variance_scaling(0.01, "fan_in", "normal"),
                kernels,
            )


class DraftNetwork(T5):
    """The network of a `T5Draft`."""

    config: T5DraftConfig
    decoder_class: ClassVar[type[Decoder]] = DraftDecoder

    def decode(
        self,
        tokens: Array,
        cache: KVCache,
        ancestors: Array | View | None = None,
        layers: tuple[int, int] | None = None,
        resume: Array | None = None,
        states: Array | None = None,
    ) -> tuple[ModelOutput, KVCache]:
        x = self.embed(tokens) if resume is None else resume
        if states is not None:
            x = residual(x + self.decoder.states_dense(states))
        return self.run(x, cache, ancestors, layers)

    def exit_logits(self, hidden: Array) -> Array:
        return self.decoder.exit_classifier(hidden)

    def confidence(self, hidden: Array) -> Array:
        return self.decoder.confidence_head(hidden)

    def markov(self, tokens: Array) -> Array:
        rows = self.decoder.markov_embedder(tokens)
        logits = self.decoder.markov_dense(rows).astype(jnp.float32)
        return constrain(logits, "batch", "length", "logits")

    def __call__(self, inputs: Array, tokens: Array) -> ModelOutput:
        config, states = self.config, None
        if config.states_dim:
            states = jnp.zeros([*tokens.shape, config.states_dim], config.dtype)
        if config.markov_rank:
            self.markov(tokens)
        hidden = jnp.zeros([*tokens.shape, config.emb_dim], config.dtype)
        if config.exit_classifier:
            self.exit_logits(hidden)
        if config.confidence_head:
            self.confidence(hidden)
        return self.decode(tokens, self.read(inputs, tokens.shape[1]), states=states)[0]


@dataclasses.dataclass(frozen=True)
class T5Draft(T5Target):
    """A T5 with additions as a `Model`; its other fields are a T5's.

    Args:
      config: a `T5DraftConfig`, or a plain `T5Config` for no additions.
    """

    config: T5DraftConfig
    config_class: ClassVar[type[T5Config]] = T5DraftConfig
    network_class: ClassVar[type[StackNetwork]] = DraftNetwork

    def __post_init__(self):
        if type(self.config) is T5Config:
            object.__setattr__(self, "config", T5DraftConfig.of(self.config))
        super().__post_init__()

    @property
    def states_dim(self) -> int | None:
        return self.config.states_dim

    @property
    def has_markov(self) -> bool:
        return self.config.markov_rank is not None

    @property
    def has_confidence(self) -> bool:
        return self.config.confidence_head

    @property
    def has_exit_classifier(self) -> bool:
        return self.config.exit_classifier

    def decode(
        self,
        params: PyTree,
        tokens: Array,
        cache: KVCache,
        *,
        ancestors: Array | View | None = None,
        states: Array | None = None,
        layers: tuple[int, int] | None = None,
        resume: Array | None = None,
    ) -> tuple[ModelOutput, KVCache]:
        """Feeds tokens [B, T] int32; returns output and cache, see `LayeredTarget.decode`.

        `states` [B, T, states_dim] are the target's states of the tokens, if the model reads them.
        """
        if (self.states_dim is not None) != (states is not None):
            raise ValueError(
                "this T5 reads no states of a target; set its states_dim, or give no states"
                if self.states_dim is None
                else "this T5 reads the states of the model that it drafts for (states_dim); use "
                "it in a drafter that gives it some, such as Masked"
            )
        check_layers(layers, resume, self.num_layers)
        return self._fed(params, tokens, cache, ancestors, layers, resume, states)

    def markov(self, params: PyTree, tokens: Array) -> Array:
        """Returns the term [B, T, V] that tokens [B, T] of a block add to the logits after them, by
        a low-rank Markov head."""
        return cast(Array, self.apply(params, tokens, method="markov"))

    def confidence(self, params: PyTree, hidden: Array) -> Array:
        """Returns the log-odds [B, T] that a block's token is accepted if all before it are."""
        return cast(Array, self.apply(params, hidden, method="confidence"))

    def exit_logits(self, params: PyTree, hidden: Array) -> Array:
        """Returns the log-odds [B, T] that the last layer predicts the token that a layer's states
        `hidden` [B, T, D] predict."""
        return cast(Array, self.apply(params, hidden, method="exit_logits"))
