"""Drafters that try to do harm. None of them may change the output."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specdec import roles
from specdec.testing.law import broken_rows
from specdec.types import Array, Context, Draft, Drafter, Params, PyTree, Stop, Table, Target


@dataclasses.dataclass(frozen=True)
class Contrarian:
    """Asks the target itself, and proposes what it likes least, with certainty."""

    target: Target

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
        pending = jnp.take_along_axis(context.tokens, context.length[:, None] - 1, axis=1)
        output, _ = self.target.decode(params.target, pending, context.cache)
        worst = jnp.argmin(output.logits[:, 0], axis=-1)
        tokens = jnp.broadcast_to(worst[:, None], keys.shape).astype(jnp.int32)
        return Draft(tokens, None, want), state


@dataclasses.dataclass(frozen=True)
class Constant:
    """Always proposes the same token, whether or not there is such a token, and claims that it was
    drawn with certainty (`claimed` None) or from a constant row of probabilities, NaN perhaps."""

    token: int
    claimed: float | None = None
    length: int | None = None  # what it says its drafts' length is; None for what is wanted

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
        probs = None
        if self.claimed is not None:
            probs = jnp.full((*keys.shape, context.vocab_size), self.claimed, jnp.float32)
        length = want if self.length is None else jnp.full_like(want, self.length)
        return Draft(jnp.full(keys.shape, self.token, jnp.int32), probs, length), state


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Asks number `params.drafter` of several drafters without a state: one program for all."""

    drafters: tuple[Constant, ...]

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
        def ask(drafter: Constant) -> Draft:
            draft, _ = drafter.propose(params, keys, context, state, want, stop)
            if draft.probs is None:  # certainty, written out: branches have one structure
                assert context.vocab_size is not None
                draft = draft.replace(probs=jax.nn.one_hot(draft.tokens, context.vocab_size))
            return draft

        branches = [functools.partial(ask, drafter) for drafter in self.drafters]
        return jax.lax.switch(params.drafter, branches), state


@dataclasses.dataclass(frozen=True)
class Skipping:
    """Asks another drafter only at random, row by row, and otherwise proposes nothing for the row
    and tells the drafter nothing. The other's state must have a leading B in every array."""

    drafter: Any
    probability: float = 0.5

    @property
    def sources(self) -> tuple[str, ...]:
        return getattr(self.drafter, "sources", ())

    def models(self) -> Mapping[str, Any]:
        return roles.models_of(self.drafter)

    def tables(self) -> Mapping[str, Table]:
        return roles.tables_of(self.drafter)

    def with_models(self, models: Mapping[str, Any]) -> Skipping:
        return dataclasses.replace(self, drafter=self.drafter.with_models(models))

    def init(self, params: Params, context: Context) -> PyTree:
        return self.drafter.init(params, context)

    def propose(
        self,
        params: Params,
        keys: Array,
        context: Context,
        state: PyTree,
        want: Array,
        stop: Stop | None,
    ) -> tuple[Draft, PyTree]:
        draft, proposed = self.drafter.propose(params, keys, context, state, want, stop)
        toss = jax.vmap(lambda key: jax.random.bernoulli(key, self.probability))
        skip = toss(jax.vmap(jax.random.fold_in, (0, None))(keys[:, 0], 1))

        def keep(old: Array, new: Array) -> Array:
            return jnp.where(skip.reshape(-1, *[1] * (new.ndim - 1)), old, new)

        state = jax.tree.map(keep, state, proposed)
        return draft.replace(length=jnp.where(skip, 0, draft.length)), state


@dataclasses.dataclass(frozen=True)
class Broken:
    """Asks another drafter, and after every even token claims what is not a distribution.

    `params.drafter` is (the other drafter's parameters, [B] int32 which of `law.BROKEN` each row
    claims). The tokens are drawn as the other drafter draws them, whatever is claimed.
    """

    drafter: Any

    def init(self, params: Params, context: Context) -> PyTree:
        return self.drafter.init(params._replace(drafter=params.drafter[0]), context)

    def propose(
        self,
        params: Params,
        keys: Array,
        context: Context,
        state: PyTree,
        want: Array,
        stop: Stop | None,
    ) -> tuple[Draft, PyTree]:
        own, kind = params.drafter
        given = params._replace(drafter=own), keys, context, state, want, stop
        draft, state = self.drafter.propose(*given)
        probs = draft.probs
        if probs is None:
            assert context.vocab_size is not None
            probs = jax.nn.one_hot(draft.tokens, context.vocab_size)
        pending = jnp.take_along_axis(context.tokens, context.length[:, None] - 1, axis=1)
        before = jnp.concatenate([pending, draft.tokens], axis=1)[:, :-1]
        breaks = (before % 2 == 0)[:, :, None]
        for number, wrong in enumerate(broken_rows(probs).values()):
            probs = jnp.where(breaks & (kind == number)[:, None, None], wrong, probs)
        return draft.replace(probs=probs), state


def hostile(
    target: Target, vocab_size: int, stop_ids: tuple[int, ...] = (1,)
) -> dict[str, Drafter]:
    """The hostile drafters by name."""
    return {
        "always wrong": Contrarian(target),
        **{f"stop id {token} spam": Constant(token) for token in stop_ids},
        "id beyond the vocabulary": Constant(vocab_size + 7),
        "negative id": Constant(-3, claimed=1 / vocab_size),
        "NaN probabilities": Constant(0, claimed=float("nan")),
        "zero probabilities": Constant(0, claimed=0.0),
        "length too long": Constant(0, length=10**6),
        "negative length": Constant(0, length=-5),
    }
