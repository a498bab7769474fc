"""The fused kernels of a T5's decoder: interpreted, they compute what its layers compute."""

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from support import few
from tolerances import SMALL_LOGITS

from specdec.decoding import autoregressive_decode, decode, row_keys
from specdec.drafters import Autoregressive
from specdec.models.placement import device, single_rows
from specdec.models.placement.layouts import Layout
from specdec.models.t5 import T5Config, T5Target, fused, streamed
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.types import Params
from specdec.verifiers import GreedyMatch

pytestmark = pytest.mark.ci  # kernels for one kind of device, which change seldom

SIZES = {"emb_dim": 48, "num_heads": 3, "head_dim": 16, "mlp_dim": 96}
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 2}
V1_1 = T5Config(vocab_size=97, dtype="float32", **SIZES, **LAYERS)
OTHERS = {
    "v1.1": V1_1,
    "v1.0": dataclasses.replace(V1_1, mlp_activations=("relu",), logits_via_embedding=True),
    "two gates": dataclasses.replace(V1_1, mlp_activations=("gelu", "linear", "relu")),
    "a bias for each layer": dataclasses.replace(V1_1, relative_bias_per_layer=True),
}
INPUTS = jnp.array([[5, 9, 2, 33, 71, 1, 0, 0]])
SLOTS = 24


def both(config):
    plain = T5Target(config)
    params = jax.tree.map(lambda x: x.astype(config.dtype), plain.init(jax.random.key(0)))
    return plain, plain.in_layout(fused="triton"), params


def prefilled(model, params):
    return jax.jit(model.prefill, static_argnums=2)(params, INPUTS, SLOTS)


def called(model, params, widths):
    """Returns the logits of calls one after the other, and the cache after them."""
    step, cache, found = jax.jit(model.decode), prefilled(model, params), []
    for n, width in enumerate(widths):
        tokens = jax.random.randint(jax.random.key(n), (1, width), 1, 97)
        output, cache = step(params, tokens, cache)
        found.append(output.logits)
    return found, cache


@pytest.mark.slow
def test_bfloat16_is_close():
    plain, kernels, params = both(dataclasses.replace(V1_1, dtype="bfloat16"))
    (expected, *_), _ = called(plain, params, (2,))
    (found, *_), after = called(kernels, params, (2,))
    assert found.dtype == jnp.float32 and after.keys[0].dtype == jnp.bfloat16
    # A bfloat16 has 8 bits: 0.03 of logits up to 3.2 on an AMD EPYC (Zen 5) with AVX-512.
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("module, kernels", [(fused, "triton"), (streamed, "mosaic")])
def test_a_fused_draft_leaves_the_output_as_it_is(module, kernels, monkeypatch):
    """It has everything accepted, so that the biases of its layers are those of positions."""
    runs, run = [], module.run
    monkeypatch.setattr(module, "run", lambda *given: runs.append(given) or run(*given))
    sizes = {"emb_dim": 128, "num_heads": 4, "head_dim": 32, "mlp_dim": 128}
    target = T5Target(dataclasses.replace(OTHERS["a bias for each layer"], **sizes))
    params = target.init(jax.random.key(0))
    drafter = Autoregressive(target.in_layout(fused=kernels), Greedy())
    plan = Plan(target, drafter, GreedyMatch(), Fixed(3), Greedy(), 12, (1,))
    keys = row_keys(0, jnp.arange(1))
    found = decode(Params(params, draft=params), keys, INPUTS, plan)
    shared = {"target": target, "sampling": Greedy(), "max_length": 12, "eos_id": 1}
    alone = autoregressive_decode(params, keys, INPUTS, **shared)
    assert jnp.array_equal(found.tokens, alone.tokens)
    assert int(found.trace.accepted.sum()) > 2 * int(found.trace.calls.sum()) and runs


def test_the_kernels_are_lowered_for_a_gpu():
    config = dataclasses.replace(V1_1, dtype="bfloat16", head_dim=64, emb_dim=128)
    model = T5Target(config, layout=Layout(fused="triton"))
    params = model.parameter_shapes()
    cache = jax.eval_shape(functools.partial(model.prefill, capacity=SLOTS), params, INPUTS)
    given = params, jax.ShapeDtypeStruct((1, 2), jnp.int32), cache
    lowered = jax.jit(model.decode).trace(*given).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("xla.gpu.triton") == 4 * config.num_decoder_layers


@pytest.mark.parametrize(
    "backend, times, chosen",
    [
        ("gpu", [1.0, 0.8, 0.5], {"fused": "triton"}),
        ("gpu", [1.0, 0.5, 0.8], {"joined": True}),
        ("gpu", [1.0, 1.1, 0.97], {}),
        ("tpu", [1.0, 0.8, 0.5], {"fused": "mosaic", "least_width": 2}),
        ("tpu", [1.0, 0.5, 0.8], {"joined": True, "least_width": 2}),
        ("cpu", [], {}),
    ],
)
def test_a_draft_is_computed_as_was_fastest(monkeypatch, backend, times, chosen):
    target = T5Target(V1_1)
    drafter = Autoregressive(target, Greedy())
    plan = Plan(target, drafter, GreedyMatch(), Fixed(3), Greedy(), 12, (1,))
    monkeypatch.setenv(device.SETTING, "")
    monkeypatch.setattr(device, "this", lambda int8: None)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(single_rows, "_seconds", lambda runs: (times or [1.0, 0.0])[: len(runs)])
    monkeypatch.setattr(single_rows, "_run", lambda model, width: None)
    monkeypatch.setattr(single_rows, "least_width", lambda model: 1 + (backend == "tpu"))
    single_rows.fastest.cache_clear()
    laid_out = plan.laid_out(1)
    assert laid_out.drafter.model.layout == Layout(**chosen)
    assert laid_out.drafter.model.drafting() == laid_out.drafter.model
    for model in (laid_out.target, plan.alone().laid_out(1).target):
        assert not model.layout.fused and not model.layout.joined
    eights = dataclasses.replace(target, weights="int8_tokens")
    assert eights.drafting() == eights
    single_rows.fastest.cache_clear()


def test_what_cannot_be_computed_is_left_out(monkeypatch):
    """Triton's kernels without a GPU that they are for, or without Pallas."""
    plain, kernels, _ = both(V1_1)
    single_rows.fastest.cache_clear()
    monkeypatch.setattr(fused, "run", lambda *given: 1 // 0)
    monkeypatch.setattr(single_rows, "_seconds", lambda runs: [1.0, 0.1][: len(runs)])
    assert single_rows.fastest((plain, kernels)) == plain
    monkeypatch.undo()
    monkeypatch.setattr(single_rows, "_seconds", lambda runs: [1.0, 0.1][: len(runs)])
    single_rows.fastest.cache_clear()
    assert single_rows.fastest((plain, kernels)) == kernels
    single_rows.fastest.cache_clear()


@pytest.mark.parametrize("name", few(sorted(OTHERS, key="two gates".__ne__)))
def test_joined_kernels_compute_the_layers(name):
    config = OTHERS[name]
    plain, params = T5Target(config), T5Target(config).init(jax.random.key(0))
    joined = plain.in_layout(joined=True)
    together = joined.from_stored(params)
    assert jax.tree.structure(together) == jax.tree.structure(joined.axes())
    same = jax.tree.map(jnp.array_equal, joined.to_stored(together), params)
    assert jax.tree.all(same)
    expected, before = called(plain, params, (2, 1, 3))
    found, after = called(joined, together, (2, 1, 3))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=SMALL_LOGITS)
    skipped = jnp.ones([1, 1, config.emb_dim])
    for model, tree, cache in ((plain, params, before), (joined, together, after)):
        cache = model.pass_by(tree, skipped, cache, (1, 2))
        assert int(cache.length[0]) == 7


def test_they_are_timed():
    plain, kernels, _ = both(V1_1)
    ways = plain, plain.in_layout(joined=True), kernels
    assert min(single_rows.seconds([(model, 1) for model in ways])) > 0
