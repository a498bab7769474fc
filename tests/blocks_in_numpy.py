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
    fed = _fed(inputs, text, masks, cached, target)
    found = t5_in_numpy.logits(params, dataclasses.asdict(config), inputs, *fed)[0, len(text) :]
    if previous is not None:
        neighbours = t5_in_numpy.in_float64(params["decoder"])
        rows = neighbours["markov_embedder"]["embedding"][previous]
        found[: len(rows)] += rows @ neighbours["markov_dense"]["kernel"]
    return found


def confidence(
    params: Any,
    config: Any,
    inputs: np.ndarray,
    text: np.ndarray,
    masks: np.ndarray,
    target: tuple[Any, Any],
) -> np.ndarray:
    """[k] the probability that the token of each place is kept, as the head has it."""
    fed = _fed(inputs, text, masks, True, target)
    states = t5_in_numpy.hidden(params, dataclasses.asdict(config), inputs, *fed)[0, len(text) :]
    head = t5_in_numpy.in_float64(params["decoder"]["confidence_head"])
    return 1 / (1 + np.exp(-states @ head["weight"] - head["bias"]))


def _fed(
    inputs: np.ndarray,
    text: np.ndarray,
    masks: np.ndarray,
    cached: bool,
    target: tuple[Any, Any] | None,
) -> tuple[np.ndarray, np.ndarray, None, np.ndarray | None]:
    """Tokens, who sees whom, positions and states."""
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
    return np.concatenate([text, masks])[None].astype(np.int32), visible, None, states
