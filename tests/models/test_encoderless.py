"""A decoder that reads what another model's encoder has made, and has none itself:
pytest tests/models/test_encoderless.py"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import few, tiny_t5
from tolerances import SMALL_LOGITS

from specdec.decoding import decode, row_keys
from specdec.drafters import Autoregressive, Masked
from specdec.measure.parts import prefill
from specdec.models.placement.layouts import Layout, Storage
from specdec.models.t5 import T5Draft, T5DraftConfig, T5Target
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.types import Params
from specdec.verifiers import GreedyMatch

CONFIG = tiny_t5(40, 16, 24, encoder=2, decoder=2)
TARGET = T5Target(CONFIG)
WITHOUT = T5DraftConfig.of(CONFIG, num_encoder_layers=0, encoded_dim=16)
INPUTS = jnp.asarray(np.random.default_rng(0).integers(2, 40, [3, 7]), jnp.int32)


@functools.cache
def params() -> dict:
    """A target's, whose texts depend on the inputs."""
    params = jax.jit(TARGET.init)(jax.random.key(1))
    for name in ("layers_0", "layers_1"):
        params["decoder"][name]["encoder_decoder_attention"]["out"]["kernel"] *= 5
    return params


def decoder_of(params: dict) -> dict:
    return {name: tree for name, tree in params.items() if name != "encoder"}


@pytest.mark.ci
def test_it_has_the_parameters_of_a_decoder():
    own, whole = T5Draft(WITHOUT).init(jax.random.key(0)), params()
    assert jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, decoder_of(whole))
    wide = T5DraftConfig.of(WITHOUT, encoded_dim=24)
    cross = T5Draft(wide).init(jax.random.key(0))["decoder"]["layers_0"]
    assert cross["encoder_decoder_attention"]["key"]["kernel"].shape == (24, 16)
    assert cross["self_attention"]["key"]["kernel"].shape == (16, 16)


@pytest.mark.ci
@pytest.mark.parametrize("layout", few(["out_in", "checkpoint", "in_out", "all_out_in"]))
def test_attached_to_its_own_encoder_it_is_the_whole_model(layout: Storage):
    model = T5Draft(WITHOUT, layout=Layout(layout))
    tree = model.from_stored(decoder_of(params()))
    inputs = INPUTS.at[1, 4:].set(0)
    whole = TARGET.prefill(params(), inputs, 9)
    cache = model.attach(tree, whole.encoded, whole.inputs_mask, 9)
    tokens = jnp.asarray([[0, 5, 9, 3]] * 3, jnp.int32)
    logits = [TARGET.decode(params(), tokens, whole)[0], model.decode(tree, tokens, cache)[0]]
    np.testing.assert_allclose(logits[0].logits, logits[1].logits, rtol=0, atol=SMALL_LOGITS)
    back = model.to_stored(tree)
    jax.tree.map(np.testing.assert_array_equal, back, decoder_of(params()))


@pytest.mark.ci
def test_the_targets_own_decoder_has_everything_accepted():
    drafter = Autoregressive(T5Draft(WITHOUT), Greedy())
    plan = Plan(TARGET, drafter, GreedyMatch(), Fixed(3), Greedy(), 14, ())
    given = Params(params(), decoder_of(params()))
    output = decode(given, row_keys(0, jnp.arange(3)), INPUTS, plan)
    trace = output.trace
    assert bool((trace.accepted == trace.drafted).all()) and int(trace.drafted.sum()) > 20
    assert len({tuple(row) for row in output.tokens.tolist()}) == 3


def test_its_prefill_is_timed_without_the_target():
    model = T5Draft(WITHOUT)
    tree = {"draft": decoder_of(params())}
    of_draft = functools.partial(prefill, models={"draft": model}, slots=9, views={})
    _, cache = jax.jit(of_draft)(tree, INPUTS)["draft"]
    assert cache.cross_keys[0].shape == (3, 2, 8, 7)


@pytest.mark.parametrize("kind", [Autoregressive, pytest.param(Masked, marks=pytest.mark.ci)])
def test_an_encoder_of_another_width_is_refused(kind):
    model = T5Draft(T5DraftConfig.of(WITHOUT, encoded_dim=24))
    plan = Plan(TARGET, kind(model, Greedy()), GreedyMatch(), Fixed(3), Greedy(), 14, ())
    given = Params(params(), model.init(jax.random.key(0)))
    with pytest.raises(ValueError, match="output of width 24, and the target's is 16 wide"):
        decode(given, row_keys(0, jnp.arange(3)), INPUTS, plan)


def test_it_is_no_plain_t5():
    with pytest.raises(ValueError, match="T5Target.config is a T5DraftConfig; give families"):
        T5Target(WITHOUT)


def test_it_decodes_nothing_by_itself():
    with pytest.raises(ValueError, match="this model has no encoder"):
        T5Draft(WITHOUT).prefill(decoder_of(params()), INPUTS, 9)
