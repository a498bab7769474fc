"""A model that repeats another model's recorded output along a text, and a drafter of that kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from specdec.drafters import Autoregressive, Drafter, Drawing
from specdec.models.contract.cache import NoKeys
from specdec.models.contract.model import Target
from specdec.sampling import Greedy
from specdec.types import Array, Context, Draft, ModelOutput, Params, Prompt, PyTree, Request


@dataclasses.dataclass(frozen=True)
class Recorded(Target):
    """A target whose argmax at position t of row b is params['tokens'][b, t], [B, N] int32."""

    vocab_size: int  # V
    # the model whose start token, padding and prompts it has, None for token 0
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

    @property
    def pad_id(self) -> int:  # type: ignore[override]
        return 0 if self.start_of is None else self.start_of.pad_id

    def prompt(self, inputs: PyTree) -> Prompt | None:
        return None if self.start_of is None else self.start_of.prompt(inputs)

    def prefill(self, params: PyTree, inputs: PyTree, capacity: int) -> NoKeys:
        return NoKeys(jnp.zeros(params["tokens"].shape[0], jnp.int32), capacity)

    def decode(self, params: PyTree, tokens: Array, cache: NoKeys) -> tuple[ModelOutput, NoKeys]:
        recording, width = params["tokens"], tokens.shape[1]
        positions = cache.length[:, None] + jnp.arange(width)[None]
        positions = jnp.minimum(positions, recording.shape[1] - 1)
        next_tokens = jnp.take_along_axis(recording, positions, axis=1)
        logits = jax.nn.one_hot(next_tokens, self.vocab_size, dtype=jnp.float32)
        hidden = jnp.zeros((*tokens.shape, 1), jnp.float32)
        return ModelOutput(logits, hidden), cache.rewind(cache.length + width)


def kind_of(drafter: Drawing) -> str:
    """Returns the kind of recording that a replay of the drafter needs."""
    return "proposed" if drafter.sampling.greedy else "ratio"


@dataclasses.dataclass(frozen=True)
class ByStart(Autoregressive):
    """Drafts params['tokens'] [B, N, K] of the draft's start, up to params['length'] [B, N]."""

    def init(self, params: Params, context: Context) -> PyTree:
        return ()

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        tokens, length = (params[self.role][name] for name in ("tokens", "length"))
        start = jnp.minimum(request.context.length - 1, length.shape[1] - 1)[:, None]
        draft = jnp.take_along_axis(tokens, start[:, :, None], axis=1)[:, 0, : request.longest]
        length = jnp.take_along_axis(length, start, axis=1)[:, 0]
        return Draft(draft, None, jnp.minimum(request.want, length)), state


def played_by(drafter: Drafter, model: Recorded, by_start: Callable[[Drawing], bool]) -> Drafter:
    """Returns the drafter with recordings instead of all drafters in `acceptance.recorded`."""
    if isinstance(drafter, Drawing):
        player = ByStart if by_start(drafter) else Autoregressive
        return player(model, Greedy(), role=role_of(drafter))
    inner = drafter.inner().items()
    return drafter.with_inner({name: played_by(x, model, by_start) for name, x in inner})


def role_of(drafter: Drafter) -> str:
    """Returns the role of the recording that replaces a drafter."""
    return next(iter(drafter.owned()), "draft")
