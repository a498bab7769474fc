"""The source itself as the draft, for outputs that are nearly a copy of it.

Sun et al. 2021, "Instantaneous Grammatical Error Correction with Shallow Aggressive Decoding"
(2106.04970), section 3.1: the rest of the source is verified in one call. Where the output leaves
the source, copying begins anew behind the shortest end of the output that the source has once.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt, row_of
from specdec.drafters.drafter import Drafter
from specdec.drafters.matching import NOTHING, check_inputs, slices
from specdec.types import Array, Context, Draft, Params, PyTree, Request

NOWHERE = -1

Prefix = Annotated[tuple[int, ...], row_of(0, "token ids, as in (3, 14)", empty=True)]


@dataclasses.dataclass(frozen=True)
class InputCopy(Checked, Drafter):
    """Copies the source [B, S] from a pointer on, up to its end, the stop id included.

    prefix: the ids that every source begins with and no output does, "correct: " for example. They
      are left out where they are there.
    longest: tokens at the output's end that are looked for, at most, where the pointer is lost.
    pad_id: what the inputs are filled up with.

    The pointer is a function of the source and the committed output alone: it begins behind the
    prefix; a token that is the one at the pointer moves it on by one; any other sends it behind the
    one place where the output's last token, or else its last two or three, stand in the source.
    None or several of them at each length: nowhere, and nothing is proposed. The state holds the
    pointer of the tokens that have been looked at.
    """

    prefix: Prefix = ()
    longest: PositiveInt = 3
    pad_id: int = 0

    def init(self, params: Params, context: Context) -> PyTree:
        """([B] the pointer, [B] the length of the output that it is of)."""
        check_inputs(self, context.inputs)
        return self._start(context.inputs), jnp.ones_like(context.length)

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context, want = request.context, request.want
        pointer, seen = jax.lax.while_loop(
            lambda state: jnp.any(state[1] < context.length),
            lambda state: self._advanced(context, *state),
            state,
        )
        end = jnp.sum(context.inputs != self.pad_id, axis=1, dtype=jnp.int32)
        left = jnp.where(pointer == NOWHERE, 0, jnp.maximum(end - pointer, 0))
        tokens = slices(context.inputs, jnp.maximum(pointer, 0), request.longest)
        length = jnp.minimum(want, left).astype(jnp.int32)
        return Draft(tokens, None, length), (pointer, seen)

    def _start(self, inputs: Array) -> Array:
        """[B] the first token behind the prefix."""
        size = len(self.prefix)
        if not size or size > inputs.shape[1]:
            return jnp.zeros(inputs.shape[0], jnp.int32)
        there = jnp.all(inputs[:, :size] == jnp.array([self.prefix], jnp.int32), axis=1)
        return jnp.where(there, size, 0).astype(jnp.int32)

    def _advanced(self, context: Context, pointer: Array, seen: Array) -> tuple[Array, Array]:
        """Pointer and length with one more token looked at, where there is one."""
        index = jnp.minimum(seen, context.length - 1)[:, None]
        token = jnp.take_along_axis(context.tokens, index, axis=1)
        at_pointer = slices(context.inputs, jnp.maximum(pointer, 0), 1)
        follows = (pointer != NOWHERE) & (at_pointer == token)[:, 0]
        moved = jnp.where(follows, pointer + 1, self._entry(context, seen + 1))
        new = seen < context.length
        return jnp.where(new, moved, pointer), seen + new

    def _entry(self, context: Context, length: Array) -> Array:
        """[B] behind the one place that has the end of the first `length` tokens, or NOWHERE."""
        inputs = context.inputs
        places = jnp.arange(inputs.shape[1])[None]
        inside = (inputs != self.pad_id) & (places >= self._start(inputs)[:, None])
        found = jnp.full(length.shape, NOWHERE)
        same, open_ = inside, jnp.ones(length.shape, bool)
        for back in range(self.longest):
            index = length - 1 - back  # of the output's token; 0 is the start token
            token = jnp.take_along_axis(context.tokens, jnp.maximum(index, 0)[:, None], axis=1)
            token = jnp.where(index[:, None] > 0, token, NOTHING)
            before = jnp.pad(jnp.where(inside, inputs, NOTHING - 1), ((0, 0), (back, 0)))
            same &= before[:, : inputs.shape[1]] == token
            times = jnp.sum(same, axis=1)
            found = jnp.where(open_ & (times == 1), jnp.argmax(same, axis=1) + 1, found)
            open_ &= times > 1
        return found.astype(jnp.int32)
