"""A drafter of one's own: it copies from the input, and runs no model.

    specdec decode --gin_file=demo.gin --gin_file=examples/copying.gin --compare

For each row it looks for the last place in the input where the pending token stands, preferably
behind the same token as in the output, and proposes what follows there: names and numbers that a
translation or a summary keeps. That costs next to nothing and is mostly wrong; the output is the
target's own all the same. See `specdec.drafters.Drafter` for what `propose` is given.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specdec.drafters import Drafter
from specdec.types import Array, Context, Draft, Params, PyTree, Request


@dataclasses.dataclass(frozen=True)
class Copying(Drafter):
    """Proposes what follows the pending token in the input [B, S]; nothing where it is not there.

    pad_id: what the inputs are filled up with.

    It has no state, no parameters and no model, so nothing but `propose` need be defined: an
    iteration is one call of the target.
    """

    pad_id: int = 0

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        """A draft of K tokens per row, certain of each (`probs` None), as long as the input goes
        on behind the match."""
        context = request.context
        start, found = _match(context)
        tokens = _following(context.inputs, start, request.longest)
        inside = jnp.cumprod(tokens != self.pad_id, axis=1).sum(axis=1)
        length = jnp.where(found, jnp.minimum(request.want, inside), 0)
        return Draft(tokens, None, length.astype(jnp.int32)), state


def _match(context: Context) -> tuple[Array, Array]:
    """[B] where in the input to go on, and [B] whether there is such a place."""
    pending = _token(context, 1)
    previous = _token(context, 2)
    inputs = context.inputs
    one = inputs == pending[:, None]
    before = jnp.pad(inputs[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    both = one & (before == previous[:, None])
    places = jnp.arange(inputs.shape[1])[None]
    # Two tokens that match beat one that does, and of equals the last place wins.
    score = jnp.where(one, places, -1) + jnp.where(both, inputs.shape[1], 0)
    return jnp.argmax(score, axis=1) + 1, jnp.any(one, axis=1)


def _token(context: Context, back: int) -> Array:
    """[B] the committed token that is so many before the end; the start token has none before."""
    index = jnp.maximum(context.length - back, 0)
    return jnp.take_along_axis(context.tokens, index[:, None], axis=1)[:, 0]


def _following(inputs: Array, start: Array, count: int) -> Array:
    """[B, count] of inputs[b, start[b]:]; the last column is repeated beyond the end."""
    index = jnp.minimum(start[:, None] + jnp.arange(count)[None], inputs.shape[1] - 1)
    return jnp.take_along_axis(inputs, index, axis=1)
