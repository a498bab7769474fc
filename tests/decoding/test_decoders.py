"""Decoders without an encoder under the engine: pytest tests/decoding/test_decoders.py

Prompts of different lengths, one of them of one token and one as long as its bucket, next to a row
of padding. Texts end where a learned table of positions ends.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_beam_search import noisy
from tolerances import SCORES

from specdec import autoregressive_decode, decode, row_keys, score
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import HuggingFaceBeams
from specdec.decoding.beam_search import beam_search
from specdec.decoding.draft_beams import DraftBeams
from specdec.drafters import Autoregressive, EarlyExit
from specdec.models import partitioning
from specdec.models.contract.inputs import check_room
from specdec.models.families import model_of
from specdec.models.llama import LlamaConfig
from specdec.models.opt import OptConfig
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.types import Params
from specdec.verifiers import GreedyMatch

SIZES = {
    "vocab_size": 24,
    "emb_dim": 16,
    "num_heads": 4,
    "head_dim": 4,
    "mlp_dim": 20,
    "num_decoder_layers": 2,
    "pad_id": -1,  # which no output has
    "stop_ids": (2,),
}
OUTPUT = 9
CONFIGS = {
    "llama": LlamaConfig(**SIZES, num_kv_heads=2),
    "opt": OptConfig(**SIZES, num_kv_heads=4, context=5 + OUTPUT),
}
PROMPTS = [[7, 3, 2, 9, 4], [6, 11, 5], [8], []]
KEYS = row_keys(0, jnp.arange(len(PROMPTS)))


@functools.cache
def made(**fields):
    """Returns a model, its parameters, and prompts as it wants them."""
    model = dataclasses.replace(model_of(CONFIGS["llama"]), **fields)
    stored = jax.jit(model.stored().init)(jax.random.key(3))
    params = model.from_stored(
        jax.tree.map(lambda leaf: leaf * (3 if leaf.ndim > 1 else 1), stored)
    )
    inputs = np.full([len(PROMPTS), 5], model.pad_id, np.int32)
    for row, prompt in enumerate(PROMPTS):
        inputs[row, : len(prompt)] = prompt
    return model, params, jnp.asarray(inputs)


def alone(model, params, inputs):
    given = {"target": model, "sampling": Greedy(), "max_length": OUTPUT}
    return autoregressive_decode(params, KEYS, inputs, **given)


def assert_same_texts(found, expected):
    np.testing.assert_array_equal(found.length, expected.length)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    assert found.length[3] == 0 and found.length[:3].min() > 3, "a row of padding, and texts"
    assert np.all(np.isfinite(found.log_probs))


@pytest.mark.parametrize("drafter", ["itself", pytest.param("another", marks=pytest.mark.ci)])
@pytest.mark.ci
def test_drafts_change_no_token(drafter):
    """A model that drafts for itself loses nothing, up to the end of its table of positions."""
    model, params, inputs = made()
    draft = params if drafter == "itself" else noisy(params, 0.1)
    plan = Plan(model, Autoregressive(model, Greedy()), GreedyMatch(), Fixed(3), Greedy(), OUTPUT)
    found = decode(Params(params, draft), KEYS, inputs, plan)
    assert_same_texts(found, alone(model, params, inputs))
    drafted, accepted = found.trace.drafted[:3].sum(), found.trace.accepted[:3].sum()
    assert accepted == drafted if drafter == "itself" else 0 < accepted < drafted


@pytest.mark.ci
def test_the_first_layer_drafts_for_all():
    model, params, inputs = made()
    plan = Plan(model, EarlyExit(1, Greedy()), GreedyMatch(), Fixed(2), Greedy(), OUTPUT)
    found = decode(Params(params), KEYS, inputs, plan)
    assert_same_texts(found, alone(model, params, inputs))


@pytest.mark.ci
def test_beams_score_their_texts_behind_prompts():
    """A path of a tree sees its prompt: scores are those of teacher forcing."""
    model, params, inputs = made()
    plan = BeamPlan(model, 3, HuggingFaceBeams(0.0), OUTPUT)
    plain = beam_search(Params(params), inputs, plan)
    drafted = dataclasses.replace(plan, drafter=DraftBeams(model, 6, 2))
    found = beam_search(Params(params, noisy(params, 0.1)), inputs, drafted)
    np.testing.assert_array_equal(found.tokens[:3], plain.tokens[:3])
    for beam in range(3):
        tokens = jnp.where(
            jnp.arange(OUTPUT)[None] < plain.length[:, beam, None],
            plain.tokens[:, beam],
            model.pad_id,
        )
        expected = score(params, inputs, tokens, target=model).sum(axis=1)
        np.testing.assert_allclose(plain.scores[:3, beam], expected[:3], **SCORES)


@pytest.mark.ci
def test_a_mesh_changes_no_token():
    model, params, inputs = made()
    mesh = partitioning.make_mesh(2, jax.devices()[:4])
    divided = dataclasses.replace(model, axis_rules=partitioning.standard_logical_axis_rules())
    placed = jax.device_put(params, partitioning.shardings(divided, mesh))
    given = jax.device_put((KEYS, inputs), partitioning.rows(mesh))
    with jax.set_mesh(mesh):
        plan = Plan(
            divided, Autoregressive(model, Greedy()), GreedyMatch(), Fixed(3), Greedy(), OUTPUT
        )
        found = decode(Params(placed, params), *given, plan)
    assert_same_texts(jax.device_get(found), alone(model, params, inputs))


def test_a_mesh_has_to_divide_heads_of_keys_and_values():
    """A kernel's width would divide: two heads of four numbers over four devices."""
    model = dataclasses.replace(
        model_of(CONFIGS["llama"]), axis_rules=partitioning.standard_logical_axis_rules()
    )
    mesh = partitioning.make_mesh(4, jax.devices()[:4])
    says = (
        r"the cache has 2 heads, which .* cannot divide by 4; use 1 or 2 on 'model', or the rules"
    )
    with pytest.raises(ValueError, match=says):
        partitioning.shardings(model, mesh)
    fitted = dict(partitioning.fitting(model, model.axis_rules, mesh))
    assert (fitted["heads"], fitted["joined_kv"], fitted["mlp"]) == (None, None, "model")


def test_texts_that_a_table_has_no_positions_for_are_refused():
    models = {"target": model_of(CONFIGS["opt"]), "draft": model_of(CONFIGS["llama"])}
    check_room(models, 5, OUTPUT)
    with pytest.raises(
        ValueError,
        match="the target has 14 positions, and inputs of 6 and outputs of 9 tokens have 15; give",
    ):
        check_room(models, 6, OUTPUT)
    check_room({"draft": models["draft"]}, 5000, OUTPUT)  # rotary positions have no end
