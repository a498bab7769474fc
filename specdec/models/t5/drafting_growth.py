"""Growth of a T5 with additions for drafting, with the target that it drafts for.

A drafter that reads what its target makes (`encoded_dim`, `states_dim`) reads it through the R of
that width, see `models.t5.growth`.
"""

from __future__ import annotations

import functools
import math
from typing import ClassVar

import jax
from jax.sharding import PartitionSpec

from specdec.models.growing import Stream
from specdec.models.t5.config import SIZES, T5Config
from specdec.models.t5.drafting import T5Draft, T5DraftConfig
from specdec.models.t5.growth import Path, T5Growth
from specdec.models.t5.target import T5Target
from specdec.types import Array, PyTree

_LOG_ODDS = ("exit_classifier", "confidence_head")  # read the decoder's last state
_OF_INPUTS = {("encoder_decoder_attention", name) for name in ("key", "value")}


class T5DraftGrowth(T5Growth):
    """How a T5 with additions grows, as the part `growth` of its family."""

    model: ClassVar[type[T5Target]] = T5Draft
    streams: ClassVar[tuple[str, ...]] = ("emb_dim", "encoded_dim", "states_dim")

    def check_growth(self, config: T5DraftConfig, to: T5DraftConfig) -> None:
        if config.head_ids is not None:
            raise ValueError(
                f"T5DraftConfig.head_ids names {len(config.head_ids)} of {config.vocab_size} ids; "
                "let the whole head grow, and trim it then"
            )
        super().check_growth(config, to)
        if config.markov_rank and to.vocab_size != config.vocab_size:
            raise ValueError(
                f"T5DraftConfig.vocab_size is {config.vocab_size} and would become "
                f"{to.vocab_size}; a model that fills in masks keeps it, because they are its last "
                "ids"
            )

    def resized(self, config: T5DraftConfig, to: T5Config) -> T5DraftConfig:
        """Returns the config at the sizes of another model. What reads its target's encoder or
        states keeps its depth, and reads a target of those sizes."""
        sizes = {name: getattr(to, name) for name in SIZES}
        read = {name: to.emb_dim for name in self.streams[1:] if getattr(config, name)}
        if read:
            sizes |= {name: getattr(config, name) for name in SIZES[-2:]}
        return T5DraftConfig.of(config, **sizes, **read)

    def _widened(
        self, x: Array, path: Path, axes: PartitionSpec, streams: dict[str, Stream]
    ) -> Array:
        own = streams["emb_dim"]
        if path[-2] in _LOG_ODDS:
            return own.of(x) * own.ratio if x.ndim else x
        if path[-3:-1] in _OF_INPUTS and "encoded_dim" in streams:
            return streams["encoded_dim"].widen(x, 0)
        if axes[0] == "states":
            x = streams["states_dim"].widen(x, 0)
        return super()._widened(x, path, axes, streams)

    def _take_off_scale(
        self, grown: dict[Path, Array], config: T5DraftConfig, to: T5DraftConfig
    ) -> None:
        super()._take_off_scale(grown, config, to)
        if config.states_dim:
            grown["decoder", "states_dense", "kernel"] /= _shrunk(config, to)
        for path in grown:
            if path[-2] in _LOG_ODDS and path[-1] == "weight":
                grown[path] *= math.sqrt(to.emb_dim / config.emb_dim)

    def _grown(
        self,
        read: dict[str, Array],
        config: T5DraftConfig,
        other: T5DraftConfig,
        streams: dict[str, Stream],
    ) -> dict[str, Array]:
        read = {name: streams[name].of(x) for name, x in read.items()}
        if config.states_dim and config.logits_via_embedding:
            read["states_dim"] *= _shrunk(config, other)
        return read

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def _logits(
        self,
        config: T5DraftConfig,
        params: PyTree,
        inputs: Array,
        tokens: Array,
        read: dict[str, Array],
    ) -> Array:
        model = T5Draft(config)
        if config.encoded_dim:
            cache = model.attach(params, read["encoded_dim"], inputs > 0, tokens.shape[1])
        else:
            cache = model.prefill(params, inputs, tokens.shape[1])
        return model.decode(params, tokens, cache, states=read.get("states_dim"))[0].logits


def _shrunk(config: T5DraftConfig, to: T5DraftConfig) -> float:
    """Returns what a target, tied as its drafter is, takes off its states."""
    assert config.states_dim and to.states_dim, "growth keeps it"
    return math.sqrt(config.states_dim / to.states_dim)
