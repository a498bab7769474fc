"""A model that repeats what another one would have said along a text, and a drafter likewise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from specdec.drafters import Autoregressive
from specdec.roles import owned_by
from specdec.sampling import Greedy
from specdec.types import (
    Array,
    Context,
    Draft,
    ModelOutput,
    Params,
    PyTree,
    Stop,
    Target,
)


class Tape(struct.PyTreeNode):
    """A cache that holds nothing but its length."""

    length: Array  # [B] int32
    capacity: int = struct.field(pytree_node=False)  # C

    def rewind(self, length: Array) -> Tape:
        return self.replace(length=length)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A `types.Target` whose argmax at position t of row b is params["tokens"][b, t], whatever it
    is fed. The parameters, [B, N] int32, are those of a batch; beyond N the last token is repeated.

    vocab_size: V.
    start_of: the model whose start token it has, None for token 0.
    """

    vocab_size: int
    start_of: Target | None = None
    stop_ids: ClassVar[tuple[int, ...]] = ()
    exact: ClassVar[bool] = True

    def init(self, key: Array) -> PyTree:
        return {"tokens": jnp.zeros([1, 1], jnp.int32)}

    def axes(self) -> PyTree:
        return {"tokens": (None, None)}

    def start(self, inputs: PyTree) -> Array:
        if self.start_of is not None:
            return self.start_of.start(inputs)
        return jnp.zeros(jax.tree.leaves(inputs)[0].shape[0], jnp.int32)

    def prefill(self, params: PyTree, inputs: PyTree, capacity: int) -> Tape:
        return Tape(jnp.zeros(params["tokens"].shape[0], jnp.int32), capacity)

    def decode(self, params: PyTree, tokens: Array, cache: Tape) -> tuple[ModelOutput, Tape]:
        recording, width = params["tokens"], tokens.shape[1]
        positions = cache.length[:, None] + jnp.arange(width)[None]
        positions = jnp.minimum(positions, recording.shape[1] - 1)
        said = jnp.take_along_axis(recording, positions, axis=1)
        logits = jax.nn.one_hot(said, self.vocab_size, dtype=jnp.float32)
        hidden = jnp.zeros((*tokens.shape, 1), jnp.float32)
        return ModelOutput(logits, hidden), cache.rewind(cache.length + width)


def kind_of(drafter: Any) -> str:
    """Returns the kind of recording that a replay of the drafter needs."""
    return "proposed" if drafter.sampling.greedy else "ratio"


@dataclasses.dataclass(frozen=True)
class ByStart(Autoregressive):
    """Drafts what is recorded for the token that the draft starts with: params["tokens"] is
    [B, N, K], and params["length"], [B, N], says after how many of them a schedule stops."""

    def init(self, params: Params, context: Context) -> PyTree:
        return ()

    def propose(
        self,
        params: Params,
        keys: Array,
        context: Context,
        state: PyTree,
        want: Array,
        stop: Stop | None,
    ) -> tuple[Draft, PyTree]:
        tokens, length = (params.drafter[name] for name in ("tokens", "length"))
        start = jnp.minimum(context.length - 1, length.shape[1] - 1)[:, None]
        draft = jnp.take_along_axis(tokens, start[:, :, None], axis=1)[:, 0, : keys.shape[1]]
        length = jnp.take_along_axis(length, start, axis=1)[:, 0]
        return Draft(draft, None, jnp.minimum(want, length)), state


def played_by(drafter: Any, model: Recorded, by_start: Callable[[Any], bool]) -> Any:
    """The drafter with recordings in place of all that are in `acceptance.recorded`.

    by_start: whether the recording of a drafter is `ByStart`.
    """
    if hasattr(drafter, "sampling"):
        player = ByStart if by_start(drafter) else Autoregressive
        return player(model, Greedy(), role=role_of(drafter))
    if not dataclasses.is_dataclass(drafter):
        return drafter
    fields = {field.name: getattr(drafter, field.name) for field in dataclasses.fields(drafter)}
    inner = {k: played_by(v, model, by_start) for k, v in fields.items() if hasattr(v, "propose")}
    return dataclasses.replace(drafter, **inner) if inner else drafter  # type: ignore[type-var]


def role_of(drafter: Any) -> str:
    """Returns the role of the recording that takes a drafter's place."""
    return next(iter(owned_by(drafter)), "draft")
