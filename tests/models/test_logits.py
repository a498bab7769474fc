"""Logits of states, computed a second time in NumPy: pytest tests/models/test_logits.py

In every family and layout, with whole heads and with those of some ids.
"""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import t5_in_numpy
from support import teacher_forced, tiny_t5
from test_families import TINY, TOKENS, inputs_of
from tolerances import LOGITS, SMALL_LOGITS

from specdec.models import families
from specdec.models.families import model_of
from specdec.models.sizes.kept_parts import Trim
from specdec.models.t5 import T5DraftConfig

IDS = (0, 3, 7, 8, 63)
LAYOUTS = "checkpoint", "in_out", "out_in", "all_out_in"
CAPS = {"t5gemma": 3.0}  # small, so that it shows


def drawn(shapes):
    draw = np.random.default_rng(0)
    return jax.tree.map(lambda x: draw.normal(size=x.shape).astype(np.float32), shapes)


@pytest.mark.parametrize(
    "name, kept",
    [
        ("whisper", None),  # whose head has all ids
        *itertools.product(["t5", "t5gemma", "t5gemma2", "llama", "opt", "gpt2"], [None, IDS]),
    ],
)
def test_logits_are_those_of_the_definition(name, kept):
    """Products with the table or the head, a T5's tied ones by 1 / sqrt(D), and Gemma's capped."""
    config = TINY[name]
    if name in CAPS:
        config = dataclasses.replace(config, logits_cap=CAPS[name])
    if kept is not None:
        config = families.resized(config, Trim(head_ids=kept))
    model = families.model_of(config)
    params = drawn(model.parameter_shapes())
    decoder, table = params["decoder"], params["token_embedder"]["embedding"]
    kernel = decoder["logits_dense"]["kernel"] if "logits_dense" in decoder else table.T
    hidden = np.random.default_rng(1).normal(size=[1, 2, len(kernel)]).astype(np.float32)
    expected = np.full([1, 2, 64], -np.inf)
    ids = np.arange(64) if kept is None else np.array(kept)
    found = hidden.astype(np.float64) @ kernel
    if name == "t5":  # which is tied here
        found /= np.sqrt(len(kernel))
    if name in CAPS:
        found = CAPS[name] * np.tanh(found / CAPS[name])
    expected[..., ids] = found
    for layout in LAYOUTS:
        laid_out = model.in_layout(storage=layout)
        logits = laid_out.logits(laid_out.from_stored(params), hidden)
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits, expected, rtol=0, atol=LOGITS)


def test_parts_of_a_draft_are_those_of_the_definition():
    """Their biases are 0 in a new model, which has learnt nothing, and others in a trained one."""
    sizes = tiny_t5(64, 8, 12, decoder=1)
    added = {"exit_classifier": True, "confidence_head": True, "markov_rank": 2}
    model = families.model_of(T5DraftConfig.of(sizes, **added))
    params = drawn(model.parameter_shapes())
    decoder = params["decoder"]
    hidden = np.random.default_rng(1).normal(size=[1, 3, 8]).astype(np.float32)
    for name, method in (
        ("exit_classifier", model.exit_logits),
        ("confidence_head", model.confidence),
    ):
        expected = hidden @ decoder[name]["weight"] + decoder[name]["bias"]
        assert np.abs(decoder[name]["bias"]) > 0.01
        np.testing.assert_allclose(method(params, hidden), expected, rtol=0, atol=SMALL_LOGITS)
    tokens = np.array([[5, 9, 63]], np.int32)
    rows = decoder["markov_embedder"]["embedding"][tokens]
    expected = rows @ decoder["markov_dense"]["kernel"]
    found = model.markov(params, tokens)
    assert found.shape == (1, 3, 64) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=SMALL_LOGITS)


@pytest.mark.parametrize(
    "name",
    [
        *("t5", "t5gemma", "opt"),
        *(pytest.param(x, marks=pytest.mark.ci) for x in ("t5gemma2", "llama", "gpt2", "whisper")),
    ],
)
def test_a_layer_that_is_skipped_has_the_keys_of_the_stream_that_goes_by(name):
    model = families.model_of(TINY[name])
    params = drawn(model.parameter_shapes())

    @jax.jit
    def run(params, inputs):
        empty = model.prefill(params, inputs, 5)
        below, cache = model.decode(params, TOKENS, empty, layers=(0, 1))
        cache = cache.rewind(empty.length)
        by = model.pass_by(params, below.stream, cache, (1, 2))
        through = model.decode(params, TOKENS, cache, layers=(1, 2), resume=below.stream)[1]
        return by, through

    by, through = run(params, inputs_of(name))
    assert by.length.tolist() == through.length.tolist() == [4, 4, 4]
    for name in ("keys", "values"):
        ours, right = (np.asarray(getattr(one, name)[1]) for one in (by, through))
        np.testing.assert_allclose(ours, right, rtol=0, atol=SMALL_LOGITS)
        assert np.abs(right[0]).max() > 0.1


@pytest.mark.parametrize(
    "way",
    [
        {"storage": "in_out", "logits_via_embedding": True},
        {"storage": "all_out_in", "orders": ((9, "kernel_first"),)},
        {"joined": True},
        {"least_width": 4},
    ],
    ids=str,
)
def test_a_t5_is_the_definition_in_every_layout(way):
    """Not only what it is in the layout of checkpoints; of three rows the last one is padding."""
    way = dict(way)
    config = tiny_t5(
        64, 8, 12, heads=2, head_dim=4, logits_via_embedding=way.pop("logits_via_embedding", False)
    )
    model = families.model_of(config).in_layout(**way)
    shapes = model.stored().parameter_shapes()
    params = jax.tree.map(lambda x: x / np.sqrt(x.shape[0]), drawn(shapes))
    inputs, tokens = np.asarray(inputs_of("t5"))[:2], np.asarray(TOKENS)[:2, :3]
    expected = t5_in_numpy.logits(params, dataclasses.asdict(config), inputs, tokens)
    found = teacher_forced(model, model.from_stored(params), inputs_of("t5"), TOKENS[:, :3])
    np.testing.assert_allclose(found[:2], expected, rtol=0, atol=SMALL_LOGITS)


# Tokens that a T5Gemma's tokens see. One outside a window has the weight 0, so what does not see it
# has the same bits without it.

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
    model = model_of(TINY[name])
    params = jax.tree.map(lambda x: x / 3, drawn(model.parameter_shapes()))
    texts = jnp.array([[5, 9, 7], [8, 6, PAD]], jnp.int32)
    wider = jnp.pad(texts, ((0, 0), (0, 2)), constant_values=PAD)
    tokens = jnp.array([[2, 3], [2, 4]], jnp.int32)
    run = jax.jit(lambda x: model.decode(params, tokens, model.prefill(params, x, 2))[0].logits)
    np.testing.assert_allclose(run(wider), run(texts), rtol=0, atol=1e-5)  # sums of other widths
    other = texts.at[0, 2].set(6)
    assert np.abs(run(other)[0] - run(texts)[0]).max() > 1e-4
