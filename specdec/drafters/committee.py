"""A drafter that averages the distributions of several drafters, token by token."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import struct

from specdec.common.values import Checked, InsideUnit, PositiveFloat, check_is
from specdec.drafters.draft_loop import Steps
from specdec.drafters.drafter import Drafter, Sampler, TokenByToken, shared_roles
from specdec.drafters.matching import slices
from specdec.sampling import fit_vocabulary, tempered
from specdec.types import Array, Context, Draft, Params, PyTree

REMEDY = "a drafter that proposes token by token, such as NGram(2, sampling)"
LEAST = 0.01  # scores count smaller probabilities as this one, so no single token decides a score


class VoteRecord(struct.PyTreeNode):
    """The members' votes on each token of the last draft, and their scores up to that draft."""

    scores: Array  # [B, M] float32
    votes: Array  # [B, K, M] int32, likeliest tokens, if greedy; else softmaxes [B, K, M, V]
    tokens: Array  # [B, K] int32, the last draft
    start: Array  # [B] int32, the position of its first token
    length: Array  # [B] int32, the number of its tokens; while drafting, of those voted on so far

    @classmethod
    def empty(cls, context: Context, members: int, greedy: bool) -> VoteRecord:
        """Returns the record before the first draft, with zero scores and no votes."""
        assert context.vocab_size is not None
        rows = len(context.length)
        longest = context.cache.capacity - context.tokens.shape[1] + 1  # K, see `Plan.capacity`
        votes = jnp.zeros([rows, longest, members], jnp.int32)
        if not greedy:
            votes = jnp.zeros([*votes.shape, context.vocab_size], jnp.float32)
        none = jnp.zeros_like(context.length)
        tokens = jnp.zeros([rows, longest], jnp.int32)
        return cls(jnp.zeros([rows, members], jnp.float32), votes, tokens, none, none)

    def scored(self, context: Context, decay: float) -> VoteRecord:
        """Returns the record with scores that include the last draft, and with its votes removed.

        Scores count the accepted tokens, and the target's token in place of the first rejected one.
        The target's token after a fully accepted draft does not count: no member voted on it. Each
        counted token multiplies the scores before it by `decay`.
        """
        longest = self.tokens.shape[1]
        text, index = slices(context.tokens, self.start, longest), jnp.arange(longest)[None]
        if self.votes.ndim == 3:
            gains = (self.votes == text[:, :, None]).astype(jnp.float32)
        else:
            of_text = jnp.take_along_axis(self.votes, text[:, :, None, None], axis=3)[..., 0]
            gains = jnp.log(jnp.maximum(of_text, LEAST))
        end = jnp.where(text != self.tokens, index + 1, longest)
        end = jnp.where(jnp.any(jnp.isnan(gains), axis=2), index, end)  # the draft ends before it
        count = jnp.minimum(self.length, context.length - self.start)
        count = jnp.minimum(count, jnp.min(end, axis=1))[:, None]
        share = decay ** jnp.maximum(count - 1 - index, 0)
        new = jnp.where((index < count)[:, :, None], share[:, :, None] * gains, 0)
        scores = decay**count * self.scores + jnp.sum(new, axis=1)
        return self.replace(scores=scores, length=jnp.zeros_like(self.length))

    def voted(self, votes: list[Array]) -> VoteRecord:
        """Returns the record with the members' softmaxes, [B, V] each, for one more draft token."""
        new = jnp.stack(votes, axis=1)
        if self.votes.ndim == 3:
            new = jnp.argmax(new, axis=2).astype(jnp.int32)
        put = jax.vmap(lambda votes, index, new: votes.at[index].set(new))
        return self.replace(votes=put(self.votes, self.length, new), length=self.length + 1)

    def drafted(self, draft: Draft, context: Context) -> VoteRecord:
        """Returns the record with the tokens, start and length of the draft that was voted on."""
        room = self.tokens.shape[1] - draft.tokens.shape[1]
        tokens = jnp.pad(draft.tokens, ((0, 0), (0, room)))
        return self.replace(tokens=tokens, start=context.length, length=draft.length)


@dataclasses.dataclass(frozen=True)
class Committee(Checked, TokenByToken):
    """Drafts from the mean distribution of several drafters.

    Wang et al. 2020 (arXiv 2012.01988) combine whole models in this way. Each draft token is drawn
    from the mean, which is the q that the verifier reads, so the output stays exact. A committee
    may be accepted more often than its best member, and costs as much as all of them together.

    With a `decay`, the weights of each row follow its text, as in TABED (Lee et al. 2026, arXiv
    2601.20357). A member's score is the decayed sum of its gains on the committed tokens at drafted
    positions. In greedy drafts, the gain is 1 for the member's likeliest token, else 0. Otherwise
    it is the member's log-probability of the token, and the state has M K V floats per row, for M
    members. Weights are multiplied by exp(score / temperature).

    Args:
      members: drafters that propose token by token, such as `Autoregressive` and `NGram`. Each is
        fed the committee's draft tokens. Each model needs a role that no other member uses.
        Members that read one table use the same role for it.
      sampling: the rule that tokens are drawn with from the mean, usually the target's. The
        members' own rules are not used.
      weights: positive weights of the members, which are divided by their sum; None for equal ones.
      decay: the factor of a score for each further token, as in 0.9; None for fixed weights.
      temperature: higher values keep the weights of a row closer to `weights`.
    """

    members: tuple[TokenByToken, ...]
    sampling: Sampler
    weights: tuple[float, ...] | None = None
    decay: InsideUnit | None = None
    temperature: PositiveFloat = 1.0

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "members", tuple(self.members))
        if len(self.members) < 2:
            raise ValueError(f"Committee.members is {self.members}; give two drafters or more")
        for name, member in self.inner().items():
            check_is(f"Committee.{name}", member, TokenByToken, REMEDY)
            if member.paths:
                raise ValueError(
                    f"Committee.{name} is {member}, which drafts {member.paths} paths, and a "
                    "committee drafts one; give Autoregressive"
                )
        if several := shared_roles(self.members):
            raise ValueError(
                f"several members of Committee have the role {', '.join(several)}; give each "
                "another role, as in Autoregressive(model, sampling, role='draft_2')"
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

    @property
    def adapts(self) -> bool:
        return self.decay is not None or super().adapts

    def init(self, params: Params, context: Context) -> PyTree:
        members = tuple(member.init(params, context) for member in self.members)
        if self.decay is None:
            return members, None
        return members, VoteRecord.empty(context, len(members), self.sampling.greedy)

    def begin(self, params: Params, context: Context, state: PyTree, longest: int) -> Steps:
        members, record = state
        asked = zip(self.members, members, strict=True)
        begun = [member.begin(params, context, of_member, longest) for member, of_member in asked]
        if self.decay is not None:
            record = record.scored(context, self.decay)
        weights = self._weights(record)

        def voted(
            logits: Sequence[Array], carries: PyTree, record: VoteRecord | None
        ) -> tuple[Array, PyTree]:
            votes = _votes(logits, context.vocab_size)
            return _mean(weights, votes), (carries, record and record.voted(votes))

        def advance(carry: PyTree, tokens: Array) -> tuple[Array, PyTree]:
            carries, record = carry
            each = [steps.advance(part, tokens) for steps, part in zip(begun, carries, strict=True)]
            logits, carries = zip(*each, strict=True)
            return voted(logits, carries, record)

        logits, _, carries = zip(*begun, strict=True)
        mean, carry = voted(logits, carries, record)
        return Steps(mean, advance, carry)

    def end(self, carry: PyTree, draft: Draft, context: Context, state: PyTree) -> PyTree:
        (carries, record), (members, _) = carry, state
        ended = zip(self.members, carries, members, strict=True)
        after = tuple(member.end(part, draft, context, old) for member, part, old in ended)
        return after, record and record.drafted(draft, context)

    def _weights(self, record: VoteRecord | None) -> Sequence[Array | float]:
        """Returns the members' weights: a number each, or with a record an array [B, 1] each."""
        fixed = self.weights or (1.0,) * len(self.members)
        if record is None:
            return [weight / sum(fixed) for weight in fixed]
        scores = jnp.log(jnp.array([fixed])) + tempered(record.scores, self.temperature)
        return jnp.split(jax.nn.softmax(scores), len(fixed), axis=1)


def _votes(logits: Sequence[Array], vocab_size: int | None) -> list[Array]:
    """Returns the softmax [B, V] of each member's logits."""
    assert vocab_size is not None
    return [jax.nn.softmax(fit_vocabulary(each, vocab_size)) for each in logits]


def _mean(weights: Sequence[Array | float], votes: list[Array]) -> Array:
    """Returns [B, V], the logarithm of the weighted mean of the members' softmaxes."""
    return jnp.log(sum(weight * vote for weight, vote in zip(weights, votes, strict=True)))
