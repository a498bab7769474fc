"""Checks of inputs that are token ids, and the reading of another model's encoder output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from specdec.common.values import UsageError, row_of
from specdec.models.contract.cache import KVCache
from specdec.models.contract.model import Weights
from specdec.types import Array, Cache, PyTree, Values

Exits = Annotated[tuple[int, ...], row_of(1, "layers from 1 on, as in (2, 4)")]


def check_tokens(inputs: Array) -> None:
    """Raises ValueError, at tracing, for inputs that are not [B, S] int32."""
    kind = type(inputs).__name__
    if isinstance(inputs, Mapping):
        raise ValueError(
            f"inputs are {' and '.join(inputs)}, and this model reads tokens alone; let it draft "
            "without pictures, with --gin_file=drafters/without_pictures.gin"
        )
    if isinstance(inputs, jax.Array | np.ndarray):
        if inputs.ndim == 2 and inputs.dtype == jnp.int32:
            return
        kind = f"{inputs.dtype}{list(inputs.shape)}"
    raise ValueError(f"inputs are {kind}; give int32 [rows, input length]")


def tokens_of(inputs: PyTree) -> Array:
    """Returns the tokens of inputs that are tokens alone, or tokens and something else by name."""
    return inputs["tokens"] if isinstance(inputs, Mapping) else inputs


def lengths_of(inputs: PyTree, pad_id: int) -> np.ndarray:
    """Returns [B] int, the length of each input without padding; 0 if inputs are not tokens."""
    tokens = tokens_of(inputs)
    if tokens.dtype != np.int32:
        return np.zeros(len(tokens), int)
    position = np.arange(1, tokens.shape[1] + 1)
    return np.max(np.where(tokens != pad_id, position, 0), axis=1, initial=0)


def check_last(tokens: Values, image_id: int, pad_id: int) -> None:
    """Raises UsageError for a prompt that ends in a picture, if tokens [B, S] are known.

    Outputs continue from a prompt's last token, which has to be a word.
    """
    if isinstance(tokens, Tracer):
        return
    tokens = np.asarray(jax.device_get(tokens))
    position = np.arange(tokens.shape[1])[None]
    last = np.max(np.where(tokens != pad_id, position, 0), axis=1, initial=0)
    for row in np.flatnonzero(np.take_along_axis(tokens, last[:, None], axis=1) == image_id):
        raise UsageError(
            f"prompt {row + 1} ends in a picture (the id {image_id}); give it a text after the "
            "picture"
        )


def check_room(models: Mapping[str, Weights], inputs: int, outputs: int) -> None:
    """Raises ValueError if a model has no positions for inputs and outputs of these tokens."""
    for role, model in models.items():
        room = model.longest_text
        if room is not None and inputs + outputs > room:
            raise ValueError(
                f"the {role} has {room} positions, and inputs of {inputs} and outputs of {outputs} "
                f"tokens have {inputs + outputs}; give smaller lengths, with --max_length or "
                "TASK_FEATURE_LENGTHS"
            )


def check_layers(layers: tuple[int, int] | None, resume: Array | None, num_layers: int) -> None:
    """Raises ValueError, at tracing, unless `decode` can run layers a .. b - 1, or all.

    `resume` is the stream after layer a - 1, which is needed if a > 0.
    """
    first, last = (0, num_layers) if layers is None else layers
    if not 0 <= first <= last <= num_layers:
        raise ValueError(
            f"layers is {layers} and the model has {num_layers}; give (a, b) with 0 <= a <= b <= "
            f"{num_layers}"
        )
    if (first > 0) != (resume is not None):
        lacking = f"missing; give the stream after layer {first - 1}"
        wrong = lacking if first else "given; leave it out, because layer 0 reads tokens"
        raise ValueError(f"layers is {layers} and resume is {wrong}")


class Reader(Protocol):
    """A model that reads inputs, or another model's encoder output."""

    @property
    def encoded_dim(self) -> int | None: ...

    def prefill(self, params: PyTree, inputs: PyTree, capacity: int, /) -> Cache: ...


class _ReadsEncoder(Protocol):
    def attach(self, params: PyTree, encoded: Array, mask: Array, capacity: int, /) -> Cache: ...


def read(
    model: Reader, params: PyTree, inputs: PyTree, capacity: int, target_cache: Cache | None
) -> Cache:
    """Returns the cache, with `capacity` slots, of a drafter's model that has read its inputs.

    A model without an encoder (`encoded_dim`) reads the target's encoder output in `target_cache`.
    """
    width = model.encoded_dim
    if width is None:
        return model.prefill(params, inputs, capacity)
    encoded = target_cache.encoded if isinstance(target_cache, KVCache) else ()
    there = isinstance(encoded, jax.Array)
    if not there or encoded.shape[-1] != width:
        width_there = f"is {encoded.shape[-1]} wide" if there else "is missing"
        raise ValueError(
            f"the drafter's model reads an encoder's output of width {width}, and the target's "
            f"{width_there}; give the target that it was trained for"
        )
    mask = cast(KVCache, target_cache).inputs_mask
    return cast(_ReadsEncoder, model).attach(params, encoded, mask, capacity)
