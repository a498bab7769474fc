"""A drafter that copies what followed the same tokens before, in the source or in the output.

Leviathan et al. 2022, appendix A.3, name the idea. Saxena 2023 (prompt lookup decoding) and Yang et
al. 2023 (2304.04487) use it for decoder-only models, whose prompt and output are one text. An
encoder-decoder has its source in the encoder, and this drafter searches the source as well.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt
from specdec.drafters.drafter import Drafter
from specdec.drafters.matching import check_inputs, last_tokens, matches
from specdec.types import Array, Context, Draft, Params, PyTree, Request


@dataclasses.dataclass(frozen=True)
class PromptLookup(Checked, Drafter):
    """Proposes the tokens that followed an earlier occurrence of the output's end.

    The longest match wins. Among equal matches the last one wins, and the output is preferred to
    the source. The drafter runs no model and keeps no state. Its drafts are certain (`probs` is
    None). A copy that reaches the end of the output starts again at its first token, so that
    repetitions go on.

    Args:
      longest: the most tokens of the output's end that are compared.
      shortest: the fewest tokens that must match; otherwise nothing is proposed.
      source: whether the source is searched, which is the prompt of a decoder-only model.
      output: whether the output is searched.

    Example:

    >>> PromptLookup(longest=3).parts(4)  # no model is called
    ()
    """

    longest: PositiveInt = 4
    shortest: PositiveInt = 1
    source: bool = True
    output: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.shortest > self.longest:
            raise ValueError(
                f"PromptLookup.shortest is {self.shortest}, more than longest, {self.longest}; "
                "give less"
            )
        if not (self.source or self.output):
            raise ValueError("PromptLookup searches neither source nor output; set one of them")

    def init(self, params: Params, context: Context) -> PyTree:
        if self.source:
            check_inputs(self, context)
        return ()

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context, want = request.context, request.want
        before, counts, end = self._before(context)
        places = jnp.arange(before.shape[1])[None]
        length = matches(before, last_tokens(context, self.longest), counts)
        length = jnp.where(counts & (places + 1 < end), length, 0)  # something follows
        score = jnp.where(length >= self.shortest, length * before.shape[1] + places, -1)
        best = jnp.argmax(score, axis=1)[:, None]
        has_match = jnp.max(score, axis=1) >= 0
        end = jnp.take_along_axis(end, best, axis=1)
        period = jnp.maximum(end - best - 1, 1)
        index = best + 1 + jnp.arange(request.longest)[None] % period
        tokens = jnp.take_along_axis(before, index, axis=1)
        # A copy ends with the source; in the output it starts again, see the class.
        inside = jnp.where(best < self._width(context), period[:, 0:1], request.longest)[:, 0]
        length = jnp.where(has_match, jnp.minimum(want, inside), 0)
        return Draft(tokens, None, length.astype(jnp.int32)), state

    def _width(self, context: Context) -> int:
        """Returns the number of searched places that belong to a source apart from the output."""
        return context.inputs.shape[1] if self.source and context.prompt is None else 0

    def _before(self, context: Context) -> tuple[Array, Array, Array]:
        """Returns [B, L] each: the tokens to search, source first; whether each may match; and the
        end of the source or output that contains it."""
        text = context.history
        if text.begin is not None:  # prompt and output are one text
            index, begin = jnp.arange(text.tokens.shape[1])[None], text.begin[:, None]
            counts = index < text.length[:, None]
            if not self.source:
                counts &= index > begin
            if not self.output:
                counts &= index <= begin
            return text.tokens, counts, jnp.broadcast_to(text.length[:, None], counts.shape)
        parts = []
        width = self._width(context)
        if self.source:
            counts = context.inputs != context.pad_id
            end = jnp.sum(counts, axis=1, dtype=jnp.int32)[:, None]
            parts.append((context.inputs, counts, jnp.broadcast_to(end, counts.shape)))
        if self.output:
            index = jnp.arange(context.tokens.shape[1])[None]
            counts = (index > 0) & (index < context.length[:, None])
            end = width + context.length[:, None]
            parts.append((context.tokens, counts, jnp.broadcast_to(end, counts.shape)))
        tokens, counts, ends = (
            jnp.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True)
        )
        return tokens, counts, ends
