"""A drafter that copies the source, for outputs that are nearly a copy of it.

Sun et al. 2021, "Instantaneous Grammatical Error Correction with Shallow Aggressive Decoding"
(2106.04970), section 3.1: one call verifies the rest of the source. If the output leaves the
source, copying starts again after the shortest suffix of the output that occurs exactly once in the
source.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt, row_of
from specdec.drafters.drafter import Drafter
from specdec.drafters.matching import NOTHING, check_inputs, in_source, slices, source_of
from specdec.types import Array, Context, Draft, Params, PyTree, Request

NOWHERE = -1

Prefix = Annotated[tuple[int, ...], row_of(0, "token ids, as in (3, 14)", empty=True)]


@dataclasses.dataclass(frozen=True)
class InputCopy(Checked, Drafter):
    """Copies the source [B, S] from a pointer to its end, including the stop id.

    The pointer depends only on the source and the committed output. It starts after the prefix. A
    token that equals the one at the pointer moves it on by one. After any other token, the pointer
    goes to the unique place in the source that follows the output's last token. If there are
    several such places, the last two or three tokens are searched for. If there is none, nothing is
    proposed. The state holds the pointer, and how many tokens of the output it has seen.

    Args:
      prefix: the ids that begin every source but no output, such as those of "correct: ". They are
        skipped if present.
      longest: the most tokens of the output's end that are searched for when the pointer is lost.
    """

    prefix: Prefix = ()
    longest: PositiveInt = 3

    def init(self, params: Params, context: Context) -> PyTree:
        """Returns the pointer [B], and the length [B] of the output that it belongs to."""
        check_inputs(self, context)
        return self._start(source_of(context)), jnp.ones_like(context.length)

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context, want = request.context, request.want
        pointer, seen = jax.lax.while_loop(
            lambda state: jnp.any(state[1] < context.length),
            lambda state: self._advanced(context, *state),
            state,
        )
        end = jnp.sum(in_source(context), axis=1, dtype=jnp.int32)
        remaining = jnp.where(pointer == NOWHERE, 0, jnp.maximum(end - pointer, 0))
        tokens = slices(source_of(context), jnp.maximum(pointer, 0), request.longest)
        length = jnp.minimum(want, remaining).astype(jnp.int32)
        return Draft(tokens, None, length), (pointer, seen)

    def _start(self, inputs: Array) -> Array:
        """Returns [B], the index of the first source token after the prefix."""
        size = len(self.prefix)
        if not size or size > inputs.shape[1]:
            return jnp.zeros(inputs.shape[0], jnp.int32)
        there = jnp.all(inputs[:, :size] == jnp.array([self.prefix], jnp.int32), axis=1)
        return jnp.where(there, size, 0).astype(jnp.int32)

    def _advanced(self, context: Context, pointer: Array, seen: Array) -> tuple[Array, Array]:
        """Returns pointer [B] and seen [B] after one more output token, in rows that have one."""
        index = jnp.minimum(seen, context.length - 1)[:, None]
        token = jnp.take_along_axis(context.tokens, index, axis=1)
        at_pointer = slices(source_of(context), jnp.maximum(pointer, 0), 1)
        follows = (pointer != NOWHERE) & (at_pointer == token)[:, 0]
        moved = jnp.where(follows, pointer + 1, self._entry(context, seen + 1))
        new = seen < context.length
        return jnp.where(new, moved, pointer), seen + new

    def _entry(self, context: Context, length: Array) -> Array:
        """Returns [B], the index after the only place in the source that matches the output's end.

        It is NOWHERE without such a place. `length` [B] is the output's, with its start token.
        """
        text, inputs = context.history, source_of(context)
        places = jnp.arange(inputs.shape[1])[None]
        inside = in_source(context) & (places >= self._start(inputs)[:, None])
        start = 0  # the index of the start token, which is not searched for
        if text.begin is not None:
            length, start = length + text.begin, -1
        entry = jnp.full(length.shape, NOWHERE)
        same, open_ = inside, jnp.ones(length.shape, bool)
        for back in range(self.longest):
            index = length - 1 - back
            token = jnp.take_along_axis(text.tokens, jnp.maximum(index, 0)[:, None], axis=1)
            token = jnp.where(index[:, None] > start, token, NOTHING)
            before = jnp.pad(jnp.where(inside, inputs, NOTHING - 1), ((0, 0), (back, 0)))
            same &= before[:, : inputs.shape[1]] == token
            times = jnp.sum(same, axis=1)
            entry = jnp.where(open_ & (times == 1), jnp.argmax(same, axis=1) + 1, entry)
            open_ &= times > 1
        return entry.astype(jnp.int32)
