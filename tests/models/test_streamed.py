"""The kernel of a T5's decoder for a TPU: interpreted, it computes what the layers compute."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from tolerances import SMALL_LOGITS

from specdec.decoding import autoregressive_decode, decode, row_keys
from specdec.drafters import Autoregressive
from specdec.models.contract.cache import KVCache
from specdec.models.t5 import T5Config, T5Target, streamed
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.types import Params
from specdec.verifiers import GreedyMatch

pytestmark = pytest.mark.ci  # kernels for one kind of device, which change seldom

V1_1 = T5Config(
    vocab_size=97,
    emb_dim=128,
    num_heads=2,
    head_dim=64,
    mlp_dim=128,
    num_encoder_layers=1,
    num_decoder_layers=3,
)
# Without a gate, with a bias for each layer.
OTHER = dataclasses.replace(
    V1_1,
    num_heads=4,
    head_dim=32,
    num_decoder_layers=2,
    mlp_activations=("relu",),
    relative_bias_per_layer=True,
)
INPUTS = jnp.array([[5, 9, 2, 33, 71, 1, 0, 0]])
SLOTS = 24


def both(config):
    plain = T5Target(config)
    params = drawn(plain.parameter_shapes(), config.dtype)
    return plain, dataclasses.replace(plain, fused="mosaic"), params


def drawn(shapes, dtype):
    """Returns random numbers for kernels [in, out], scales [D], keys and values."""
    generator = np.random.default_rng(0)

    def numbers(leaf):
        found = generator.standard_normal(leaf.shape, np.float32)
        return found * leaf.shape[0] ** -0.5 if leaf.ndim > 1 else 1 + found / 4

    return jax.tree.map(lambda leaf: jnp.asarray(numbers(leaf), dtype), shapes)


@pytest.fixture
def runs(monkeypatch):
    """The calls that the kernel computes, while they are traced."""
    found, run = [], streamed.run
    monkeypatch.setattr(streamed, "run", lambda *given: found.append(given) or run(*given))
    return found


# Copies run when they are waited for, or when they begin; memory holds NaN before.
LATE, EARLY = (pltpu.InterpretParams(dma_execution_mode=when) for when in ("on_wait", "eager"))
CASES = {
    "v1.1": (V1_1, 2, LATE, SMALL_LOGITS),
    "other": (OTHER, 1, EARLY, SMALL_LOGITS),
    # A bfloat16 has 8 bits.
    "bfloat16": (dataclasses.replace(OTHER, dtype="bfloat16"), 2, LATE, 0.1),
}


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_computes_the_layers(name, runs, monkeypatch):
    config, width, mode, tolerance = CASES[name]
    monkeypatch.setattr(streamed, "INTERPRET", mode)
    plain, kernel, params = both(config)
    cache = jax.jit(plain.prefill, static_argnums=2)(params, INPUTS, SLOTS)
    keys, values = drawn((cache.keys, cache.values), config.dtype)
    cache = cache.replace(keys=keys, values=values, length=jnp.array([3]))
    tokens = jax.random.randint(jax.random.key(0), (1, width), 1, 97)
    expected, before = jax.jit(plain.decode)(params, tokens, cache)
    found, after = jax.jit(kernel.decode)(params, tokens, cache)
    pairs = [(found.logits, expected.logits)]
    pairs += zip(after.keys + after.values, before.keys + before.values, strict=True)
    for one, other in pairs:
        assert one.dtype == other.dtype
        one, other = (np.asarray(x, np.float32) for x in (one, other))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)
    assert int(after.length[0]) == 3 + width and len(runs) == 1


def test_keys_that_are_not_finite_are_written_as_0(runs):
    _, kernel, params = both(OTHER)
    table = params["token_embedder"]["embedding"].at[7].set(jnp.nan)
    params = params | {"token_embedder": {"embedding": table}}
    cache = kernel.prefill(params, INPUTS, SLOTS)
    output, cache = jax.jit(kernel.decode)(params, jnp.array([[7]]), cache)
    assert jnp.isnan(output.logits).any() and runs
    assert all(jnp.isfinite(x).all() for x in cache.keys + cache.values)


def test_a_draft_of_one_kernel_leaves_the_output_as_it_is(runs):
    target, draft, params = both(dataclasses.replace(OTHER, num_decoder_layers=1))
    plan = Plan(
        target, Autoregressive(draft, Greedy()), GreedyMatch(), Fixed(3), Greedy(), 12, (1,)
    )
    keys = row_keys(0, jnp.arange(1))
    found = decode(Params(params, draft=params), keys, INPUTS, plan)
    alone = autoregressive_decode(
        params, keys, INPUTS, target=target, sampling=Greedy(), max_length=12, eos_id=1
    )
    assert jnp.array_equal(found.tokens, alone.tokens)
    assert int(found.trace.accepted.sum()) > 2 * int(found.trace.calls.sum()) and runs


def small(layers=8, **sizes):
    """Sizes of T5 1.1, by default small's, in bfloat16."""
    sizes = {"emb_dim": 512, "num_heads": 6, "head_dim": 64, "mlp_dim": 1024} | sizes
    layers = {"num_encoder_layers": 1, "num_decoder_layers": layers}
    return T5Config(vocab_size=97, dtype="bfloat16", **sizes, **layers)


BASE = {"emb_dim": 768, "num_heads": 12, "mlp_dim": 2048}


def test_what_fits(monkeypatch):
    def fits(config, rows=1, tokens=2, slots=128):
        keys = jax.ShapeDtypeStruct((rows, config.num_heads, slots, config.head_dim), config.dtype)
        mask = jax.ShapeDtypeStruct((rows, 64), bool)
        cache = KVCache((keys,), (keys,), jnp.zeros([rows]), inputs_mask=mask)
        return streamed.fits(config, rows, tokens, cache)

    assert fits(small(), slots=1024) and fits(small(**BASE))
    assert not fits(small(), rows=2) and not fits(small(), tokens=3)
    assert not fits(small(), slots=1025)
    for odd in ({"emb_dim": 96}, {"mlp_dim": 96}, {"num_heads": 5}):
        assert not fits(small(**odd))
    assert not fits(small(emb_dim=4096, num_heads=64, mlp_dim=10240))
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    v4 = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion.TPU_V4, 1)
    monkeypatch.setattr(pltpu, "get_tpu_info", lambda: v4)
    assert fits(small(), slots=1024) and not fits(small(**BASE))
