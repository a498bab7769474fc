"""A target's call in two parts: a drafter begins it with the lower layers, verification ends it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from specdec.types import Array, ModelOutput, PyTree, Resume


def finish(
    target: Any, params: PyTree, tokens: Array, resume: Resume, length: Array
) -> tuple[ModelOutput, Any]:
    """The rest of a call of `decode` on a pending token and a draft: the lower layers on the last
    drafted token of each row, the upper ones on all tokens.

    Args:
      tokens: [B, K+1] int32. resume: with a stream of K tokens, see `Resume`.
      length: [B] int32, tokens of each row's draft: so many positions are in the stream.
    """
    cache = resume.cache
    last = jnp.take_along_axis(tokens, length[:, None], axis=1)
    below, fed = target.decode(
        params, last, cache.rewind(cache.length + length), layers=(0, resume.layers)
    )
    index = jnp.arange(tokens.shape[1])[None, :, None]
    stream = jnp.pad(resume.stream, ((0, 0), (0, 1), (0, 0)))
    stream = jnp.where(index == length[:, None, None], below.stream, stream)
    above = resume.layers, target.num_layers
    output, fed = target.decode(
        params, tokens, fed.rewind(cache.length), layers=above, resume=stream
    )
    return output._replace(stream=None), fed
