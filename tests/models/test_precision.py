"""The precision that products ask for, in every family: pytest tests/models/test_precision.py

A CPU multiplies float32 numbers exactly enough whatever is asked for, and other devices do not. So
this is about the traced programs and not about their results. `float32_matmul`, which makes logits,
asks for the highest precision in bfloat16 too, as its result is float32.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support import tiny_t5
from test_families import TINY, inputs_of

from specdec.models.families import model_of
from specdec.models.heads import Heads, HeadsConfig
from specdec.models.t5 import T5DraftConfig

HIGHEST, DEFAULT = (jax.lax.Precision.HIGHEST,) * 2, None
FAMILIES = [name for name in TINY if name not in ("rotary", "t5_draft")]  # one is an example
ADDED = T5DraftConfig.of(
    tiny_t5(64, 24, 40, heads=4, head_dim=4),
    exit_classifier=True,
    states_dim=16,
    markov_rank=2,
    confidence_head=True,
)
TOKENS = jnp.array([[8, 3, 4], [2, 7, 7], [9, 9, 8]], jnp.int32)


def equations(jaxpr) -> Iterator[Any]:
    """Yields the equations of a traced function, and of all functions inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def products(function, *given) -> Counter:
    """Counts products by their precision and the dtypes of both operands and of the result."""
    found = Counter()
    for equation in equations(jax.make_jaxpr(function)(*given).jaxpr):
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            arrays = *equation.invars, *equation.outvars
            kinds = tuple(x.aval.dtype.name for x in arrays)
            found[equation.params["precision"], *kinds] += 1
    return found


def whole_call(model, inputs, **states) -> Counter:
    """Counts the products of a prefill and a call of `decode`."""

    def run(params, inputs):
        return model.decode(params, TOKENS, model.prefill(params, inputs, 4), **states)[0].logits

    return products(run, model.parameter_shapes(), inputs)


@pytest.mark.parametrize("name", FAMILIES)
def test_float32_is_multiplied_in_the_highest_precision(name):
    fields = {field.name for field in dataclasses.fields(TINY[name])}
    layers = {f: 1 for f in ("num_encoder_layers", "num_decoder_layers") if f in fields}
    model = model_of(dataclasses.replace(TINY[name], **layers))
    inputs = inputs_of(name)
    if name == "llava":
        inputs = {"tokens": inputs, "pixels": jnp.zeros([3, 1, 3, 4, 4])}
    found = whole_call(model, inputs)
    assert {key[0] for key in found} == {HIGHEST}, found
    assert {key[1:] for key in found} == {("float32",) * 3}
    assert found.total() > 8


def test_bfloat16_is_not():
    """A layer of a T5 has 4 products of self-attention, 2 of cross-attention's queries and outputs,
    2 of an MLP and 4 of attention's weights and sums; an encoder's 4 + 2 + 2, and 2 of keys and
    values for the decoder. Attention weights are float32, and logits of the highest precision."""
    model = model_of(dataclasses.replace(TINY["t5"], dtype="bfloat16", num_decoder_layers=1))
    half, wide = "bfloat16", "float32"
    assert whole_call(model, inputs_of("t5")) == {
        (DEFAULT, half, half, half): (4 + 2 + 2 + 2) + (4 + 2 + 1) + 2,
        (DEFAULT, half, half, wide): 2 + 1,
        (HIGHEST, half, wide, wide): 1,
    }


@pytest.mark.parametrize("method", ["exit_logits", "confidence", "markov", "decode"])
def test_parts_of_drafts_are_multiplied_in_the_highest_precision(method):
    model = model_of(ADDED)
    params, hidden = model.parameter_shapes(), jnp.zeros([3, 3, 24])
    if method == "decode":
        found = whole_call(model, inputs_of("t5"), states=jnp.zeros([3, 3, 16]))
    else:
        found = products(getattr(model, method), params, TOKENS if method == "markov" else hidden)
        assert found.total() == 1
    assert {key[0] for key in found} == {HIGHEST}


def test_heads_that_look_ahead_are_multiplied_in_the_highest_precision():
    heads = Heads(HeadsConfig(9, 8, 2, 6))
    found = products(heads.ahead, heads.parameter_shapes(), jnp.zeros([1, 2, 8]))
    assert found == {(HIGHEST, "float32", "float32", "float32"): 2}


@pytest.mark.parametrize("weights", ["int8", "int8_tokens"])
def test_eight_bits_are_multiplied_exactly(weights):
    """Attention and what is not rounded stay float32; norms sum by products with ones."""
    model = dataclasses.replace(model_of(TINY["t5"]), weights=weights)
    found = whole_call(model, inputs_of("t5"))
    if weights == "int8":
        assert {key[0] for key in found} == {HIGHEST}
    else:
        whole = {key for key in found if key[1:] == ("int8", "int8", "int32")}
        assert whole and {key[0] for key in found if key not in whole} == {HIGHEST}
