"""The rules of beam search: which beams live on, which are finished, and when a search ends.

A rule reads the candidates of one text, and calls no model. All arithmetic is float32, in the order
of the library after which a rule is named. Scores and ties are therefore that library's.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from specdec.common.values import Checked, NonNegativeFloat, NonNegativeInt, Number
from specdec.decoding.states import ends_text
from specdec.types import Array


class BeamSet(struct.PyTreeNode):
    """The beams of one text; in a batch, each array has the rows as its first axis.

    Texts begin with the start token and are 0 after their last token.
    """

    live_tokens: Array  # [w, 1+N] int32
    live_scores: Array  # [w] float32, log-probabilities in nats
    tokens: Array  # [w, 1+N] int32, the finished ones
    scores: Array  # [w] float32, as the rule has them
    lengths: Array  # [w] int32, tokens of the finished ones, without the start token
    finished: Array  # [w] bool, False for a place that no text has filled
    length: Array  # [] int32, tokens of each live beam, with the start token
    given: Array  # [] int32, tokens of the prefix
    active: Array  # [] bool, whether the search continues


@dataclasses.dataclass(frozen=True)
class BeamRule(Checked, abc.ABC):
    """The rules of one library's beam search: its scores, candidates, and end."""

    nothing: ClassVar[float]  # added to the score of a candidate that is excluded
    best_last: ClassVar[bool]  # whether beams are in ascending order; ties fall to the first ones
    ends_at_limit: ClassVar[bool]  # whether texts of N tokens are finished
    counts_prefix: ClassVar[bool]  # whether the length of a text includes that of its prefix

    @abc.abstractmethod
    def penalty(self, length: int) -> float:
        """Returns the number that divides the log-probability of a finished text."""

    @abc.abstractmethod
    def ended(self, beams: BeamSet, hits: Array, longest: int) -> Array:
        """Returns whether a search is over, [] bool; `hits` [count] are the candidates that end."""

    @abc.abstractmethod
    def reach(self, beams: BeamSet, longest: int) -> Array:
        """Returns the best score with which a live beam could still finish, [] float32."""

    def candidates(self, beams: int, stop_ids: int) -> int:
        """Returns how many of the best candidates a step keeps: enough that at least w, the number
        of beams, do not end in a stop id."""
        return max(2, 1 + stop_ids) * beams

    def may_finish(self, count: int, beams: int) -> np.ndarray:
        """Returns which of the candidates, best first, may be finished texts; [count] bool."""
        return np.ones(count, bool)

    def counted(self, length: Array, prefix: Array | int = 0) -> Array:
        """Returns the length that the penalty of a text uses, in tokens."""
        return length if self.counts_prefix else length - prefix

    def best_live(self, beams: BeamSet) -> Array:
        """Returns the score of the best live beam, [] float32."""
        return beams.live_scores[-1 if self.best_last else 0]

    def begin(self, tokens: Array, prefix: Array, active: Array, beams: int) -> BeamSet:
        """Returns the beams of a text before the first step: one live beam, and w - 1 excluded
        ones. `tokens` [1+N] are the start token and the prefix, which has `prefix` [] tokens.

        """
        texts = jnp.broadcast_to(tokens, (beams, len(tokens)))
        counts = jnp.arange(beams) == 0
        if self.best_last:  # a prefix has been sorted, the very first step has not
            counts = jnp.where(prefix > 0, counts[::-1], counts)
        none = jnp.full([beams], self.nothing, jnp.float32)
        return BeamSet(
            live_tokens=texts,
            live_scores=jnp.where(counts, 0.0, none),
            tokens=jnp.zeros_like(texts),
            scores=none,
            lengths=jnp.zeros([beams], jnp.int32),
            finished=jnp.zeros([beams], bool),
            length=1 + prefix,
            given=prefix,
            active=active & (prefix < len(tokens) - 1),
        )

    def advance(
        self, beams: BeamSet, log_probs: Array, stop_ids: tuple[int, ...], best_only: bool = False
    ) -> tuple[BeamSet, Array]:
        """Returns the beams after one step, and the parent of each live beam, [w] int32.

        The candidates are the best of all continuations of all live beams. They come from one top-k
        over beams and ids together, in which ties fall to the earlier beam and the smaller id.
        `log_probs` [w, V] are those of the token after each live beam.
        """
        width, size = log_probs.shape
        longest = beams.live_tokens.shape[1] - 1
        flat = (log_probs + beams.live_scores[:, None]).reshape(-1)
        count = min(self.candidates(width, len(stop_ids)), len(flat))
        scores, index = jax.lax.top_k(flat, count)
        parents, ids = index // size, index % size
        texts = beams.live_tokens[parents].at[:, beams.length].set(ids, mode="drop")
        hits = ends_text(ids, stop_ids)
        if self.ends_at_limit:
            hits |= beams.length == longest

        live_scores = scores + hits * jnp.float32(self.nothing)
        live = self._best(live_scores, width)
        finishing = hits & self.may_finish(count, width)
        generated = self.counted(beams.length, beams.given)
        normalised = scores / self._penalties(longest)[generated]
        normalised = normalised + ~finishing * jnp.float32(self.nothing)
        both = jnp.concatenate([beams.scores, normalised])
        done = self._best(both, width)
        lengths = jnp.concatenate([beams.lengths, jnp.full([count], beams.length, jnp.int32)])
        after = beams.replace(
            live_tokens=texts[live],
            live_scores=live_scores[live],
            tokens=jnp.concatenate([beams.tokens, texts])[done],
            scores=both[done],
            lengths=lengths[done],
            finished=jnp.concatenate([beams.finished, finishing])[done],
            length=beams.length + 1,
        )
        over = self.ended(after, hits, longest) | (after.length > longest)
        if best_only:
            best = jnp.max(jnp.where(after.finished, after.scores, -jnp.inf))
            over |= best > self.reach(after, longest)
        return after.replace(active=beams.active & ~over), parents[live].astype(jnp.int32)

    def _best(self, scores: Array, count: int) -> Array:
        order = jax.lax.top_k(scores, count)[1]
        return order[::-1] if self.best_last else order

    def _penalties(self, longest: int) -> Array:
        """Returns the penalties of texts of 0 to N + 1 tokens, [N+2] float32."""
        return jnp.array([1.0, *map(self.penalty, range(1, longest + 2))], jnp.float32)


@dataclasses.dataclass(frozen=True)
class T5XBeams(BeamRule):
    """T5X's `decoding.beam_search`.

    Scores are divided by ((5 + length) / 6) ** alpha (Wu et al. 2016, 1609.08144, section 7). A
    search ends when no live beam can pass the worst of w finished texts. It can return fewer than w
    finished texts. If there are none, the live beams are returned, with their log-probabilities as
    scores.

    Args:
      alpha: the exponent of the length penalty; 0 for no penalty.
    """

    alpha: NonNegativeFloat = 0.6
    nothing: ClassVar[float] = -1e7
    best_last: ClassVar[bool] = True
    ends_at_limit: ClassVar[bool] = False
    counts_prefix: ClassVar[bool] = True

    def penalty(self, length: int) -> float:
        return ((5.0 + length) / 6.0) ** self.alpha

    def ended(self, beams: BeamSet, hits: Array, longest: int) -> Array:
        reach = self.reach(beams, longest)
        worst = jnp.where(beams.finished, jnp.min(beams.scores), self.nothing)
        # Excluded beams have lower scores than the initial ones of empty places.
        none_left = reach < jnp.float32(self.nothing / self.penalty(longest + 1))
        return jnp.all(worst > reach) | none_left

    def reach(self, beams: BeamSet, longest: int) -> Array:
        return self.best_live(beams) / jnp.float32(self.penalty(longest + 1))


@dataclasses.dataclass(frozen=True)
class HuggingFaceBeams(BeamRule):
    """`generate(num_beams=w)` of Hugging Face's transformers 5.

    Scores are divided by length ** length_penalty. Only the w best candidates of a step may finish.
    Texts of N tokens are finished.

    Args:
      length_penalty: 0 for no penalty; above 0 long texts are preferred.
      early_stopping: when a search ends. False: when the best live beam, at its length, is no
        better than the worst of w finished texts. True: as soon as there are w finished texts.
        "never": when no live beam can become better.
      opened: the number of first tokens that are left out of a text's length, like a prefix.
    """

    length_penalty: Number = 1.0
    early_stopping: Literal[False, True, "never"] = False
    opened: NonNegativeInt = dataclasses.field(default=0, repr=False)
    nothing: ClassVar[float] = -1e9
    best_last: ClassVar[bool] = False
    ends_at_limit: ClassVar[bool] = True
    counts_prefix: ClassVar[bool] = False

    def penalty(self, length: int) -> float:
        return float(length) ** self.length_penalty

    def counted(self, length: Array, prefix: Array | int = 0) -> Array:
        return jnp.maximum(length - prefix - self.opened, 0)

    def may_finish(self, count: int, beams: int) -> np.ndarray:
        return np.arange(count) < beams

    def ended(self, beams: BeamSet, hits: Array, longest: int) -> Array:
        penalties, generated = self._penalties(longest), self.counted(beams.length - 1, beams.given)
        if self.early_stopping == "never" and self.length_penalty > 0:
            generated = self.counted(jnp.int32(longest), beams.given)
        possible = self.best_live(beams) / penalties[generated]
        worst = jnp.where(beams.finished, jnp.min(beams.scores), self.nothing)
        over = ~jnp.any(possible > worst) | jnp.all(hits)
        if self.early_stopping is True:
            over |= jnp.all(beams.finished)
        return over

    def reach(self, beams: BeamSet, longest: int) -> Array:
        # The length, from the next one to the longest, at which the penalty favours a text most.
        at = jnp.int32(longest) if self.length_penalty > 0 else beams.length
        best = self.counted(at, beams.given)
        return self.best_live(beams) / self._penalties(longest)[best]


def best_first(rule: BeamRule, beams: BeamSet) -> BeamSet:
    """Returns the beams of a text as a search returns them: finished ones, best first.

    If the rule finishes nothing at the limit and no text is finished, the live beams take their
    place.
    """
    if rule.ends_at_limit:
        return beams
    none = ~jnp.any(beams.finished)
    live = jnp.full_like(beams.lengths, beams.length - 1)
    chosen = beams.replace(
        tokens=jnp.where(none, beams.live_tokens, beams.tokens),
        scores=jnp.where(none, beams.live_scores, beams.scores),
        lengths=jnp.where(none, live, beams.lengths),
    )
    if not rule.best_last:
        return chosen
    flipped = ("tokens", "scores", "lengths", "finished")
    return chosen.replace(**{name: getattr(chosen, name)[::-1] for name in flipped})
