"""A drafter that copies the previous output, made for an earlier version of the same text.

Much of an output stays when its source grows or is edited, or when a better model replaces the old
one. The drafter finds its place in the previous output by edit distance.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt
from specdec.drafters.drafter import Drafter
from specdec.drafters.matching import slices
from specdec.types import Array, Context, Draft, Params, PyTree, Request


class Alignment(NamedTuple):
    """The alignment of the output so far with the first j tokens of the previous output.

    All j from 0 to P are compared. P is the padded length of the previous outputs.
    """

    previous: Array  # [B, P] int32
    end: Array  # [B] int32, the length of the previous output
    edits: Array  # [B, P+1] int32, the edit distance of the output so far from those j tokens
    same: Array  # [B, P+1] int32, the length of the common suffix of output and j tokens
    seen: Array  # [B] int32, the number of output tokens that have been aligned


@dataclasses.dataclass(frozen=True)
class PreviousOutput(Checked, Drafter):
    """Copies the previous output (`Context.previous`) from the place that the output has reached.

    It copies what follows the prefix with the smallest Levenshtein distance to the output so far.
    Each token of their common suffix lowers the distance by half an edit. Of equally near prefixes
    the shortest is taken, so what follows an inserted token is copied.

    The drafter runs no model, and its drafts are certain (`probs` is None). A text without a
    previous output gets no draft.

    Args:
      longest: the most tokens of the common suffix that lower the distance.
    """

    longest: PositiveInt = 4

    @property
    def reads_previous(self) -> bool:
        return True

    def init(self, params: Params, context: Context) -> PyTree:
        previous = context.previous
        if previous is None:
            raise ValueError(
                "PreviousOutput drafts from the previous outputs of the texts; give them, with "
                "--previous=FILE or --live of `specdec decode`, or use InteractiveModel.revise"
            )
        rows, width = previous.shape
        edits = jnp.broadcast_to(jnp.arange(width + 1), [rows, width + 1])
        ends = jnp.where(previous != context.pad_id, jnp.arange(1, width + 1), 0)
        end = jnp.max(ends, axis=1).astype(jnp.int32)
        seen = jnp.ones_like(context.length)
        return Alignment(previous, end, edits, jnp.zeros_like(edits), seen)

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context = request.context
        state = jax.lax.while_loop(
            lambda state: jnp.any(state.seen < context.length),
            lambda state: _advanced(context, state),
            state,
        )
        known = jnp.arange(state.edits.shape[1])[None] <= state.end[:, None]
        score = 2 * state.edits - jnp.minimum(state.same, self.longest)
        nearest = jnp.argmin(jnp.where(known, score, jnp.iinfo(jnp.int32).max), axis=1)
        tokens = slices(state.previous, nearest, request.longest)
        length = jnp.minimum(request.want, state.end - nearest).astype(jnp.int32)
        return Draft(tokens, None, length), state


def _advanced(context: Context, state: Alignment) -> Alignment:
    """Returns the alignment after one more token of the output, in the rows that have one."""
    index = state.seen[:, None]
    agrees = state.previous == jnp.take_along_axis(context.tokens, index, axis=1, mode="clip")
    inserted = state.edits + 1
    replaced = state.edits[:, :-1] + ~agrees
    edits = inserted.at[:, 1:].min(replaced)
    # Leaving out tokens of the previous output costs one each: the best of all places before.
    places = jnp.arange(edits.shape[1])[None]
    edits = places + jax.lax.cummin(edits - places, axis=1)
    same = jnp.pad(jnp.where(agrees, state.same[:, :-1] + 1, 0), ((0, 0), (1, 0)))
    new = state.seen < context.length
    return state._replace(
        edits=jnp.where(new[:, None], edits, state.edits),
        same=jnp.where(new[:, None], same, state.same),
        seen=state.seen + new,
    )
