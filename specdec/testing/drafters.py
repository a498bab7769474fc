"""Adversarial drafters and draft models, which must not change the output of exact decoding."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp

from specdec.drafters.drafter import Drafter
from specdec.drafters.matching import last_tokens
from specdec.models.contract.model import Target
from specdec.plan import stop_ids_of
from specdec.testing.law import broken_rows
from specdec.types import Array, Cache, Context, Draft, ModelOutput, Params, PyTree, Request


@dataclasses.dataclass(frozen=True)
class Contrarian(Drafter):
    """Proposes the target's least likely next token, repeated, with probability 1."""

    target: Target

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context = request.context
        pending = last_tokens(context, 1)
        output, _ = self.target.decode(params["target"], pending, context.cache)
        worst = jnp.argmin(output.logits[:, 0], axis=-1)
        tokens = jnp.broadcast_to(worst[:, None], request.keys.shape).astype(jnp.int32)
        return Draft(tokens, None, request.want), state


@dataclasses.dataclass(frozen=True)
class Constant(Drafter):
    """Always proposes the same token, which may be outside of the vocabulary.

    Args:
      token: the token.
      claimed: the reported q. None reports a one-hot q. A number, which may be NaN, is reported for
        every token of the vocabulary.
      length: the reported draft length, which may be wrong; None for the requested length.
    """

    token: int
    claimed: float | None = None
    length: int | None = None

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        probs, shape, want = None, request.keys.shape, request.want
        if self.claimed is not None:
            shape_of_probs = (*shape, request.context.vocab_size)
            probs = jnp.full(shape_of_probs, self.claimed, jnp.float32)
        length = want if self.length is None else jnp.full_like(want, self.length)
        return Draft(jnp.full(shape, self.token, jnp.int32), probs, length), state


@dataclasses.dataclass(frozen=True)
class OneOf(Drafter):
    """Proposes with the drafter of index params["number"], so that one program serves for all."""

    drafters: tuple[Constant, ...]

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        def ask(drafter: Constant) -> Draft:
            draft, _ = drafter.propose(params, request, state)
            if draft.probs is None:  # an explicit one-hot q, as all branches need one structure
                width = request.context.vocab_size
                assert width is not None
                draft = draft.replace(probs=jax.nn.one_hot(draft.tokens, width))
            return draft

        branches = [functools.partial(ask, drafter) for drafter in self.drafters]
        return jax.lax.switch(params["number"], branches), state


@dataclasses.dataclass(frozen=True)
class Skipping(Drafter):
    """Proposes the drafts of another drafter in randomly chosen rows, and nothing in other rows.

    The drafter's state does not change in the other rows. Its arrays must have a leading axis B.
    """

    drafter: Drafter
    probability: float = 0.5

    def inner(self) -> dict[str, Drafter]:
        return {"drafter": self.drafter}

    @property
    def sources(self) -> tuple[str, ...]:
        return self.drafter.sources

    def init(self, params: Params, context: Context) -> PyTree:
        return self.drafter.init(params, context)

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        draft, proposed = self.drafter.propose(params, request, state)
        toss = jax.vmap(lambda key: jax.random.bernoulli(key, self.probability))
        skip = toss(jax.vmap(jax.random.fold_in, (0, None))(request.keys[:, 0], 1))

        def keep(old: Array, new: Array) -> Array:
            return jnp.where(skip.reshape(-1, *[1] * (new.ndim - 1)), old, new)

        state = jax.tree.map(keep, state, proposed)
        return draft.replace(length=jnp.where(skip, 0, draft.length)), state


@dataclasses.dataclass(frozen=True)
class Broken(Drafter):
    """Proposes another drafter's tokens, but after each even token reports an invalid q.

    params["broken"] [B] int32 is the index in `law.BROKEN` of the kind of q that a row reports.
    """

    drafter: Drafter

    @property
    def paths(self) -> int | None:
        return self.drafter.paths

    def init(self, params: Params, context: Context) -> PyTree:
        return self.drafter.init(params, context)

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context, kind = request.context, params["broken"]
        draft, state = self.drafter.propose(params, request, state)
        probs = draft.probs
        if probs is None:
            assert context.vocab_size is not None
            probs = jax.nn.one_hot(draft.tokens, context.vocab_size)
        pending = last_tokens(context, 1)
        if draft.nodes is None:
            before = jnp.concatenate([pending, draft.tokens], axis=1)[:, :-1]
        else:
            before = draft.nodes.of_parents(draft.tokens, pending[:, 0])
        breaks = (before % 2 == 0)[:, :, None]
        for number, wrong in enumerate(broken_rows(probs).values()):
            probs = jnp.where(breaks & (kind == number)[:, None, None], wrong, probs)
        return draft.replace(probs=probs), state


def hostile(
    target: Target, vocab_size: int, stop_ids: tuple[int, ...] | None = None
) -> dict[str, Drafter]:
    """Returns name -> adversarial drafter.

    Args:
      target: the target of the plan.
      vocab_size: V.
      stop_ids: the plan's stop ids; None for the target's.
    """
    return {
        "always wrong": Contrarian(target),
        **{f"stop id {token} spam": Constant(token) for token in stop_ids_of(stop_ids, target)},
        "id beyond the vocabulary": Constant(vocab_size + 7),
        "negative id": Constant(-3, claimed=1 / vocab_size),
        "NaN probabilities": Constant(0, claimed=float("nan")),
        "zero probabilities": Constant(0, claimed=0.0),
        "length too long": Constant(0, length=10**6),
        "negative length": Constant(0, length=-5),
    }


Harm: TypeAlias = Literal[
    "the unlikeliest", "stop ids", "ids beyond the vocabulary", "NaN", "infinite"
]
HARMS: tuple[Harm, ...] = get_args(Harm)
CERTAIN = 1e4  # a logit whose softmax is 1


@dataclasses.dataclass(frozen=True)
class HarmfulModel(Target):
    """A model that returns the output of another model with adversarial logits."""

    model: Target
    harm: Harm
    stop_ids: tuple[int, ...]  # type: ignore[misc]

    def init(self, key: Array) -> PyTree:
        return self.model.init(key)

    def axes(self) -> PyTree:
        return self.model.axes()

    def start(self, inputs: PyTree) -> Array:
        return self.model.start(inputs)

    def prefill(self, params: PyTree, inputs: PyTree, capacity: int) -> Cache:
        return self.model.prefill(params, inputs, capacity)

    def decode(
        self, params: PyTree, tokens: Array, cache: Cache, **others: Any
    ) -> tuple[ModelOutput, Cache]:
        output, fed = self.model.decode(params, tokens, cache, **others)
        return output._replace(logits=self._changed(output.logits)), fed

    def _changed(self, logits: Array) -> Array:
        if self.harm == "the unlikeliest":
            return -logits
        if self.harm == "stop ids":
            return logits.at[..., jnp.array(self.stop_ids, int)].set(CERTAIN)
        if self.harm == "ids beyond the vocabulary":
            room = [(0, 0)] * (logits.ndim - 1) + [(0, 8)]
            return jnp.pad(logits, room, constant_values=CERTAIN)
        return jnp.full_like(logits, jnp.nan if self.harm == "NaN" else jnp.inf)
