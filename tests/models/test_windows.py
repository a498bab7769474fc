"""Tokens that a T5Gemma's tokens see: pytest tests/models/test_windows.py

A token outside a window has the weight 0, so what does not see it has the same bits without it.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_families import TINY
from test_logits import drawn

from specdec.models.families import model_of

LENGTH, WINDOW = 8, 2
PAD = 0


def seen(run, length: int) -> list[list[int]]:
    """Returns, for each of the positions of a result, the tokens on which it depends."""
    tokens = np.arange(10, 10 + length, dtype=np.int32)[None]
    whole, found = np.asarray(run(tokens))[0], [[] for _ in range(length)]
    for place in range(length):
        other = tokens.copy()
        other[0, place] = 33
        for row in np.flatnonzero(np.any(np.asarray(run(other))[0] != whole, axis=-1)):
            found[row].append(place)
    return found


@pytest.mark.parametrize(
    "name, before, behind",
    [("t5gemma", 2, 2), pytest.param("t5gemma2", 0, 1, marks=pytest.mark.ci)],
)
def test_local_layers_see_a_window_and_others_all(name, before, behind):
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "window": WINDOW}
    config = dataclasses.replace(TINY[name], **layers)
    if name == "t5gemma2":
        assert config.encoder_window == (before, behind)
    model = model_of(config)
    params = jax.tree.map(lambda x: x / 3, drawn(model.parameter_shapes()))
    source = jnp.full([1, 3], 5, jnp.int32)

    def decoded(tokens):
        return model.decode(params, tokens, model.prefill(params, source, LENGTH))[0].logits

    every = range(LENGTH)
    encoded = jax.jit(lambda tokens: model.prefill(params, tokens, 1).encoded)
    near = [[x for x in every if p - before <= x <= p + behind] for p in every]
    assert seen(encoded, LENGTH) == near
    assert seen(jax.jit(decoded), LENGTH) == [[x for x in (p - 1, p) if x >= 0] for p in every]


@pytest.mark.parametrize("name", ["t5gemma", pytest.param("t5gemma2", marks=pytest.mark.ci)])
def test_padding_is_not_seen(name):
    """In the encoder and in the attention to its output; the same text in two widths."""
    model = model_of(TINY[name])
    params = jax.tree.map(lambda x: x / 3, drawn(model.parameter_shapes()))
    texts = jnp.array([[5, 9, 7], [8, 6, PAD]], jnp.int32)
    wider = jnp.pad(texts, ((0, 0), (0, 2)), constant_values=PAD)
    tokens = jnp.array([[2, 3], [2, 4]], jnp.int32)
    run = jax.jit(lambda x: model.decode(params, tokens, model.prefill(params, x, 2))[0].logits)
    np.testing.assert_allclose(run(wider), run(texts), rtol=0, atol=1e-5)  # sums of other widths
    other = texts.at[0, 2].set(6)
    assert np.abs(run(other)[0] - run(texts)[0]).max() > 1e-4
