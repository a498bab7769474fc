"""A block of masks behind a text, filled in by a T5 in float64 NumPy from nothing but the text."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import t5_in_numpy


def logits(
    params: Any,
    config: Any,
    inputs: np.ndarray,
    text: np.ndarray,
    masks: np.ndarray,
    *,
    cached: bool = True,
    previous: np.ndarray | None = None,
    target: tuple[Any, Any] | None = None,
) -> np.ndarray:
    """[k, V] for the ids `masks` [k] behind a text that starts with the start token.

    cached: whether text sees only the text before it.
    previous: [k] the token before each place, where the model has a table of neighbours.
    target: parameters and config of the model whose states it reads, if it does.
    """
    size, count = len(text), len(masks)
    visible = np.ones((size + count, size + count), bool)
    if cached:
        visible[:size] = np.tri(size, size + count, dtype=bool)
    states = None
    if target is not None:
        before = t5_in_numpy.hidden(target[0], dataclasses.asdict(target[1]), inputs, text[None])
        states = np.zeros([1, size + count, before.shape[2]])
        states[:, 1:size] = before[:, :-1]  # a token has the state behind the one before it
        states[:, size:] = states[:, size - 1, None]
    tokens = np.concatenate([text, masks])[None].astype(np.int32)
    given = params, dataclasses.asdict(config), inputs, tokens, visible, None, states
    found = t5_in_numpy.logits(*given)[0, size:]
    if previous is not None:
        neighbours = t5_in_numpy.in_float64(params["decoder"])
        rows = neighbours["markov_embedder"]["embedding"][previous]
        found[: len(rows)] += rows @ neighbours["markov_dense"]["kernel"]
    return found
