"""Several drafters that propose token by token, each with one vote."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, check_is
from specdec.drafters.draft_loop import Steps
from specdec.drafters.drafter import Drafter, Sampler, TokenByToken, shared_roles
from specdec.sampling import fit_vocabulary
from specdec.types import Array, Context, Params, PyTree

REMEDY = "a drafter that proposes token by token, such as NGram(2, sampling)"


@dataclasses.dataclass(frozen=True)
class Committee(Checked, TokenByToken):
    """Drafts from the mean distribution of several drafters.

    Wang et al. 2020 (arXiv 2012.01988) combine whole models in this way. Each draft token is drawn
    from the mean, which is the q that the verifier reads, so the output stays exact. A committee
    may be accepted more often than its best member, and costs as much as all of them together.

    Args:
      members: drafters that propose token by token, such as `Autoregressive` and `NGram`. Each is
        fed the tokens that the committee has drafted. Each model needs a role of its own. Tables
        with the same role are one table.
      sampling: the rule that tokens are drawn with from the mean, usually the target's. The
        members' own rules are not used.
      weights: positive weights of the members, which are divided by their sum; None for equal ones.
    """

    members: tuple[TokenByToken, ...]
    sampling: Sampler
    weights: tuple[float, ...] | None = None

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "members", tuple(self.members))
        if len(self.members) < 2:
            raise ValueError(f"Committee.members is {self.members}; give two drafters or more")
        for name, member in self.inner().items():
            check_is(f"Committee.{name}", member, TokenByToken, REMEDY)
            if member.paths:
                raise ValueError(
                    f"Committee.{name} is {member}, which drafts {member.paths} paths where a "
                    "committee has one; give Autoregressive"
                )
        if several := shared_roles(self.members):
            raise ValueError(
                f"several members of Committee own {', '.join(several)}; give each its own role, "
                "as in Autoregressive(model, sampling, role='draft_2')"
            )
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(self.weights))
            good = all(0 < weight < math.inf for weight in self.weights)
            if not good or len(self.weights) != len(self.members):
                raise ValueError(
                    f"Committee.weights is {self.weights}; give {len(self.members)} positive "
                    "numbers, one for each member"
                )

    def inner(self) -> dict[str, Drafter]:
        return {f"members[{i}]": member for i, member in enumerate(self.members)}

    def with_inner(self, inner: Mapping[str, Drafter]) -> Committee:
        return dataclasses.replace(self, members=tuple(inner.values()))

    def init(self, params: Params, context: Context) -> PyTree:
        return tuple(member.init(params, context) for member in self.members)

    def begin(self, params: Params, context: Context, state: PyTree, longest: int) -> Steps:
        asked = zip(self.members, state, strict=True)
        begun = [member.begin(params, context, own, longest) for member, own in asked]

        def advance(carries: PyTree, tokens: Array) -> tuple[Array, PyTree]:
            each = [one.advance(carry, tokens) for one, carry in zip(begun, carries, strict=True)]
            logits, carries = zip(*each, strict=True)
            return self._mean(logits, context.vocab_size), carries

        logits, _, carries = zip(*begun, strict=True)
        return Steps(self._mean(logits, context.vocab_size), advance, carries)

    def end(self, carry: PyTree, tokens: Array, context: Context, state: PyTree) -> PyTree:
        ended = zip(self.members, carry, state, strict=True)
        return tuple(member.end(left, tokens, context, own) for member, left, own in ended)

    def _mean(self, logits: tuple[Array, ...], vocab_size: int | None) -> Array:
        """Returns [B, V], the logarithm of the mean of the members' softmaxes."""
        assert vocab_size is not None
        votes = [jax.nn.softmax(fit_vocabulary(one, vocab_size)) for one in logits]
        weights = self.weights or (1.0,) * len(votes)
        given = zip(weights, votes, strict=True)
        return jnp.log(sum(weight / sum(weights) * vote for weight, vote in given))
