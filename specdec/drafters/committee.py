"""Several drafters that propose token by token, with one vote each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specdec import roles
from specdec.drafters.loop import Steps, draft_loop
from specdec.sampling import fit_vocabulary
from specdec.types import (
    Array,
    Context,
    Draft,
    Drafter,
    Params,
    Part,
    PyTree,
    SamplingRule,
    Stop,
    Table,
)
from specdec.values import check_has


@dataclasses.dataclass(frozen=True)
class Committee:
    """Drafts from the mean of what several drafters hold likely (Wang et al. 2020, arXiv
    2012.01988, where models answer so).

    members: drafters that propose token by token, such as `Autoregressive` and `NGram`. Each is fed
      what all of them have drafted. Each model needs a role of its own. Tables of one role are one
      table, which several members read.
    sampling: what tokens are drawn with, of the mean; usually the target's. The members' own is of
      no use.
    weights: of the members' votes, positive numbers; they are divided by their sum. None: equal.

    As for any drafter q is what a token was drawn from, so that nothing becomes inexact: a
    committee may be accepted more often than its best member, and costs as much as all of them.
    """

    members: tuple[Drafter, ...]
    sampling: SamplingRule
    weights: tuple[float, ...] | None = None

    def __post_init__(self):
        object.__setattr__(self, "members", tuple(self.members))
        if len(self.members) < 2:
            raise ValueError(f"Committee.members is {self.members}; give two drafters or more")
        for i, member in enumerate(self.members):
            remedy = "a drafter that proposes token by token, such as NGram(2, sampling)"
            check_has(f"Committee.members[{i}]", member, "begin end", remedy)
        if several := roles.shared_roles(self.members):
            raise ValueError(
                f"several members of Committee own {', '.join(several)}; give each its own role, "
                "as in Autoregressive(model, sampling, role='draft_2')"
            )
        check_has("Committee.sampling", self.sampling, "probabilities", "a rule, as Greedy()")
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(self.weights))
            good = all(0 < weight < math.inf for weight in self.weights)
            if not good or len(self.weights) != len(self.members):
                raise ValueError(
                    f"Committee.weights is {self.weights}; give {len(self.members)} positive "
                    "numbers, one for each member"
                )

    def models(self) -> dict[str, Any]:
        return {k: v for member in self.members for k, v in roles.models_of(member).items()}

    def tables(self) -> dict[str, Table]:
        return {k: v for member in self.members for k, v in roles.tables_of(member).items()}

    def with_models(self, models: Mapping[str, Any]) -> Committee:
        return dataclasses.replace(
            self, members=tuple(roles.with_models(member, models) for member in self.members)
        )

    def parts(self, length: float) -> tuple[Part, ...]:
        with_parts = [member for member in self.members if hasattr(member, "parts")]
        return tuple(part for member in with_parts for part in member.parts(length))  # type: ignore[attr-defined]

    def init(self, params: Params, context: Context) -> PyTree:
        given = zip(self.members, roles.divided(self, self.members, params), strict=True)
        return tuple(member.init(own, context) for member, own in given)

    def propose(
        self,
        params: Params,
        keys: Array,
        context: Context,
        state: PyTree,
        want: Array,
        stop: Stop | None,
    ) -> tuple[Draft, PyTree]:
        asked = zip(self.members, roles.divided(self, self.members, params), state, strict=True)
        begun = [
            member.begin(own, context, memory, longest=keys.shape[1])  # type: ignore[attr-defined]
            for member, own, memory in asked
        ]

        def advance(carries: PyTree, tokens: Array) -> tuple[Array, PyTree]:
            each = [one.advance(carry, tokens) for one, carry in zip(begun, carries, strict=True)]
            logits, carries = zip(*each, strict=True)
            return self._mean(logits, context.vocab_size), carries

        logits, _, carries = zip(*begun, strict=True)
        draft, carries = draft_loop(
            Steps(self._mean(logits, context.vocab_size), advance, carries),
            context,
            keys=keys,
            want=want,
            stop=stop,
            sampling=self.sampling,
        )
        ended = zip(self.members, carries, state, strict=True)
        return draft, tuple(
            member.end(carry, draft.tokens, context, memory)  # type: ignore[attr-defined]
            for member, carry, memory in ended
        )

    def _mean(self, logits: tuple[Array, ...], vocab_size: int | None) -> Array:
        """[B, V] the logarithm of the mean of the members' softmaxes."""
        assert vocab_size is not None
        votes = [jax.nn.softmax(fit_vocabulary(one, vocab_size)) for one in logits]
        weights = self.weights or (1.0,) * len(votes)
        given = zip(weights, votes, strict=True)
        return jnp.log(sum(weight / sum(weights) * vote for weight, vote in given))
