"""A T5 in which a token may skip the layers after one with a confident prediction. Not exact.

Schuster et al. 2022, "Confident Adaptive Language Modeling" (2207.07061).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from specdec.common.values import NonNegativeFloat, PositiveInt, Probability, fields_of
from specdec.models.contract import loops
from specdec.models.contract.cache import KVCache
from specdec.models.contract.inputs import Exits
from specdec.models.placement import layouts
from specdec.models.t5.drafting import T5Draft
from specdec.models.t5.network import T5Target
from specdec.types import Array, ModelOutput, PyTree

Confidence: TypeAlias = Literal["softmax", "state", "classifier"]


@dataclasses.dataclass(frozen=True)
class Calm(T5Draft):
    """A T5 in which a token leaves after the first layer with a confident next-token prediction.

    The token's state after this layer also gives its keys and values in the skipped layers. Later
    tokens attend to them, so each layer's cache is complete.

    A token leaves by its own confidence alone. The layers run until the last token of a call has
    left, and do not change tokens that have left. A token's logits therefore depend neither on its
    neighbours nor on the width of the call. (In the paper's code, the least confident row of a
    batch decides for all.) So this model may be the target of speculation. The output then has this
    model's distribution, not that of the whole T5, and `exact` is False.

    Args:
      threshold: the confidence, from 0 to 1, above which a token leaves; None for never, which is
        the whole model.
      confidence: a measure, at most 1 (section 3.3 of the paper). "softmax" is the likeliest
        token's probability minus that of the second; it costs a projection to the logits at each
        exit. "state" is the cosine of the states at this exit and the one before; the first exit is
        skipped. "classifier" needs a model that has one, see `training.ExitClassifier`.
      exits: the layers after which a token may leave, counted from 1; None for all.
      decay: how fast the threshold decreases along the text (section 3.5). The threshold of token t
        is 0.9 threshold + 0.1 exp(-decay t / decay_length), at most 1. None for a constant one.
      decay_length: the length in the formula of `decay`, in tokens; None if that is None.
    """

    threshold: Probability | None = 0.9
    confidence: Confidence = "softmax"
    exits: Exits | None = None
    decay: NonNegativeFloat | None = None
    decay_length: PositiveInt | None = None
    exact: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        if self.confidence == "classifier" and not self.config.exit_classifier:
            raise ValueError(
                "Calm.confidence is 'classifier' and the model has no exit classifier; train one "
                "with objectives/exit_classifier.gin, or use 'softmax'"
            )
        if self.exits is not None:
            if max(self.exits) > self.num_layers:
                raise ValueError(
                    f"Calm.exits is {self.exits}; give layers from 1 to {self.num_layers}, or None"
                )
            object.__setattr__(self, "exits", tuple(sorted(set(self.exits))))
        if (self.decay is None) != (self.decay_length is None):
            raise ValueError(
                f"Calm.decay is {self.decay} and decay_length {self.decay_length}; give both, or "
                "neither"
            )

    def __str__(self) -> str:
        return f"Calm(threshold={self.threshold}, confidence={self.confidence!r})"

    @property
    def whole(self) -> T5Draft:
        """The T5 in which all tokens go through all layers."""
        return T5Draft(**fields_of(self, T5Draft))

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of layers that a token, and so a call, may go through."""
        exits = self._exits[self.confidence == "state" :]
        return (*(() if self.threshold is None else exits), self.num_layers)

    def always(self, depth: int) -> Calm:
        """Returns this model with all tokens leaving after `depth` layers, for timing.

        The exits before it are computed but not taken. Its `read_by_decode` and `cache_bytes` are
        those of such a call.

        Raises:
          ValueError: `depths` does not have this number.
        """
        if depth not in self.depths:
            raise ValueError(f"depth is {depth}; give one of {self.depths}")
        return _Always(**fields_of(self, Calm), depth=depth)

    def decode(
        self,
        params: PyTree,
        tokens: Array,
        cache: KVCache,
        **others: object,
    ) -> tuple[ModelOutput, KVCache]:
        """Feeds tokens [B, T] int32; returns output and cache, see `Target.decode`.

        Raises:
          ValueError: the arguments select layers, or a block that is not text.
        """
        if any(value is not None for value in others.values()):
            raise ValueError(
                "Calm chooses its layers itself, and reads only text; use a T5Target to select "
                "layers, or to feed a block that is not text"
            )
        state, cache = self._run(params, tokens, cache)
        logits = self.logits(params, state.hidden) if state.logits is None else state.logits
        return ModelOutput(logits, state.hidden, depth=state.depth), cache

    @property
    def _exits(self) -> tuple[int, ...]:
        """The layers that have an exit after them, without the last one."""
        return tuple(x for x in self.exits or range(1, self.num_layers) if x < self.num_layers)

    def _run(self, params: PyTree, tokens: Array, cache: KVCache) -> tuple[_Left, KVCache]:
        start, exits = cache.length, self._exits
        positions = start[:, None] + jnp.arange(tokens.shape[1])[None]
        groups = list(zip((0, *exits), (*exits, self.num_layers), strict=True))

        # The first group has all tokens, and the words themselves.
        output, fed = super().decode(params, tokens, cache, layers=groups[0])
        assert output.stream is not None, "it was asked for some layers"
        state = _Left(
            stream=output.stream,
            hidden=output.hidden,
            logits=output.logits if self.confidence == "softmax" else None,
            seen=output.stream if self.confidence == "state" else None,
            depth=jnp.full(tokens.shape, groups[0][1], jnp.int32),
            going=jnp.ones(tokens.shape, bool),
        )
        cache = fed.rewind(start)
        for exit, group in zip(exits, groups[1:], strict=True):
            state = state._replace(going=state.going & ~self._sure(params, state, positions, exit))
            state = state._replace(seen=None if state.seen is None else state.stream)
            state, cache = self._through(params, tokens, state, cache, group)
        return state, cache.rewind(start + tokens.shape[1])

    def _through(
        self, params: PyTree, tokens: Array, state: _Left, cache: KVCache, group: tuple[int, int]
    ) -> tuple[_Left, KVCache]:
        """Runs a group of layers, or only their keys and values if all tokens have left.

        Both cases are loops of at most one trip, because a branch would copy the cache.
        """
        start, decode = cache.length, super().decode

        def run(carry: tuple[_Left, KVCache]) -> tuple[_Left, KVCache]:
            state, cache = carry
            going = state.going[:, :, None]
            for i in range(*group):
                alone = {"layers": (i, i + 1), "resume": state.stream}
                output, fed = decode(params, tokens, cache, **alone)
                assert output.stream is not None, "it was asked for some layers"
                state = state._replace(stream=jnp.where(going, output.stream, state.stream))
                cache = fed.rewind(start)
            logits = state.logits
            return state._replace(
                hidden=jnp.where(going, output.hidden, state.hidden),
                logits=None if logits is None else jnp.where(going, output.logits, logits),
                depth=jnp.where(state.going, group[1], state.depth),
            ), cache

        def skip(carry: tuple[_Left, KVCache]) -> tuple[_Left, KVCache]:
            state, cache = carry
            return state, self.pass_by(params, state.stream, cache, group).rewind(start)

        needed = jnp.any(state.going)
        state, cache = loops.at_most_once(needed, run, (state, cache))
        return loops.at_most_once(~needed, skip, (state, cache))

    def _sure(self, params: PyTree, state: _Left, positions: Array, exit: int) -> Array:
        """Returns [B, T] bool, whether the confidence after this layer is above the threshold."""
        if exit not in self.depths:
            return jnp.zeros_like(state.going)
        if self.confidence == "softmax":
            assert state.logits is not None, "it is kept for this"
            top, _ = jax.lax.top_k(jax.nn.softmax(state.logits, axis=-1), 2)
            confidence = top[:, :, 0] - top[:, :, 1]
        elif self.confidence == "state":
            assert state.seen is not None, "it is kept for this"
            confidence = _cosine(state.stream, state.seen)
        else:
            confidence = jax.nn.sigmoid(self.exit_logits(params, state.hidden))
        return confidence > self._thresholds(positions, exit)

    def _thresholds(self, positions: Array, exit: int) -> Array:
        """Returns [B, T] float32, the threshold of each token."""
        assert self.threshold is not None
        if self.decay is None or self.decay_length is None:
            return jnp.full(positions.shape, self.threshold, jnp.float32)
        decayed = jnp.exp(-self.decay * positions / self.decay_length)
        return jnp.minimum(0.9 * self.threshold + 0.1 * decayed, 1.0)


@dataclasses.dataclass(frozen=True)
class _Always(Calm):
    """A `Calm` in which all tokens leave after `depth` layers.

    Its thresholds, -2 or 2, are outside of the confidence's bounds. A compiled call still computes
    the confidence, because the compiler does not know these bounds.
    """

    depth: int = 0

    def _thresholds(self, positions: Array, exit: int) -> Array:
        return jnp.full(positions.shape, -2.0 if exit >= self.depth else 2.0, jnp.float32)

    def read_by_decode(self, params: PyTree) -> PyTree:
        """Returns the parameters that a call reads.

        They are the layers up to the exit, a projection to the logits for each exit before, and the
        kernels of keys and values in the layers above.
        """
        asked = [x for x in self._exits if x < self.depth] if self.confidence == "softmax" else []
        below = self.whole.first(self.depth)
        above = [params["decoder"][f"layers_{i}"] for i in range(self.depth, self.num_layers)]
        from_table = layouts.logits_from_table(
            self.config, self.layout, self.weights == "int8_tokens"
        )
        head = params["token_embedder"] if from_table else params["decoder"]["logits_dense"]
        return {
            "below": below.read_by_decode(below.part_of(params)),
            "asked": len(asked) * [head],
            "above": [[layer["self_attention"][x] for x in ("key", "value")] for layer in above],
        }

    def cache_bytes(self, *shape, **mesh) -> int:
        """Returns the bytes of the layers up to the exit; those of later layers are not read."""
        return self.whole.first(self.depth).cache_bytes(*shape, **mesh)


def calm(model: T5Target, **settings) -> Calm:
    """Returns a `Calm` with the fields of a T5 and the given settings.

    Args:
      model: a T5.
      **settings: fields of `Calm`.

    Raises:
      ValueError: the model is not a T5, or a field is wrong.
    """
    if not isinstance(model, T5Target):
        raise ValueError(f"calm.model is a {type(model).__name__}; give a T5")
    return Calm(**fields_of(model, T5Target), **settings)


class _Left(NamedTuple):
    """The state of each token after the last layer that it went through."""

    stream: Array  # [B, T, D] the residual stream
    hidden: Array  # [B, T, D] the stream after the final norm
    logits: Array | None  # [B, T, V], if the confidence is "softmax"
    seen: Array | None  # [B, T, D] the stream at the exit before, if the confidence is "state"
    depth: Array  # [B, T] int32, the number of layers
    going: Array  # [B, T] bool, whether the token has not left


def _cosine(x: Array, y: Array) -> Array:
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    return jnp.sum(x * y, -1) / (jnp.linalg.norm(x, axis=-1) * jnp.linalg.norm(y, axis=-1))
