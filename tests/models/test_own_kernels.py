"""The kernels of a T5's decoder, called alone and interpreted, against their layers in NumPy.

The NumPy is in float64, and rounds to the model's dtype where a kernel stores a number: the norm,
queries, keys, values, the weights and the result of an attention, and both sides of a gate.
"""

import dataclasses
import functools
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from support import tiny_t5
from t5_in_numpy import gelu
from tolerances import SMALL_LOGITS

from specdec.models.contract.cache import KVCache
from specdec.models.layers.attention import MASKED
from specdec.models.placement.layouts import Layout
from specdec.models.t5 import T5Target, fused, network, streamed

# No size but a head's is a power of two, so that a block of one reaches beyond an array's end.
CONFIG = tiny_t5(9, 24, 96, heads=3, head_dim=16, decoder=3, layer_norm_epsilon=0.1)
LENGTH, SLOTS, INPUTS = 3, 7, 5
CACHED = ("keys", "values")
GATES = dataclasses.replace(CONFIG, mlp_activations=("linear", "gelu", "relu"))
HALF = dataclasses.replace(CONFIG, dtype="bfloat16")
# Copies run when they are waited for, or when they begin; memory holds NaN before. What is read and
# written with nothing between is said in a line of output.
LATE, EARLY = (
    pltpu.InterpretParams(dma_execution_mode=when, detect_races=True)
    for when in ("on_wait", "eager")
)


def drawn(config, tokens, layers):
    """Returns the arguments of `run`, as NumPy arrays: numbers of the model's dtype."""
    generator, sizes = np.random.default_rng(7), config
    joined, dim = sizes.num_heads * sizes.head_dim, sizes.emb_dim

    def numbers(*shape, scale=1.0, dtype=config.dtype):
        found = np.asarray(scale * generator.standard_normal(shape), np.float32)
        return found.astype(np.dtype(dtype))

    def kernel(rows, columns):
        return {"kernel": numbers(rows, columns, scale=rows**-0.5)}

    def layer(i):
        attention = {name: kernel(dim, joined) for name in ("query", "key", "value")}
        # Keys that are infinite or no number are written as 0.
        attention["key"]["kernel"][0, 2] = np.inf
        attention["value"]["kernel"][:2, 17] = np.inf, -np.inf
        attention["value"]["kernel"][5, 40] = np.nan
        if i == layers[0]:  # of the first token alone, since the other has a zero there
            attention["key"]["kernel"][1, 3] = attention["value"]["kernel"][1, 4] = 3e38
        cross = {"query": kernel(dim, joined), "out": kernel(joined, dim)}
        cross |= {name: kernel(dim, joined) for name in ("key", "value")}  # not read
        gates = len(config.mlp_activations)
        mlp = {f"wi_{n}": kernel(dim, config.mlp_dim) for n in range(gates)}
        scales = {name: {"scale": 1 + numbers(dim, scale=0.3)} for name in streamed.NORMS.values()}
        return {
            "self_attention": {**attention, "out": kernel(joined, dim)},
            "encoder_decoder_attention": cross,
            "mlp": {**mlp, "wo": kernel(config.mlp_dim, dim)},
            **scales,
        }

    heads, size, count = config.num_heads, config.head_dim, config.num_decoder_layers
    cache = KVCache(
        keys=tuple(numbers(1, heads, SLOTS, size) for _ in range(count)),
        values=tuple(numbers(1, heads, SLOTS, size) for _ in range(count)),
        length=np.array([LENGTH], np.int32),
        inputs_mask=np.arange(INPUTS)[None] != 1,
        cross_keys=tuple(numbers(1, heads, size, INPUTS) for _ in range(count)),
        cross_values=tuple(numbers(1, heads, INPUTS, size) for _ in range(count)),
    )
    biases = [numbers(1, heads, tokens, SLOTS, dtype="float32") for _ in layers]
    for bias in biases:  # what a token sees
        seen = np.arange(SLOTS) <= LENGTH + np.arange(tokens)[:, None]
        bias += np.where(seen, 0, MASKED)
        bias[:, 0] += 90  # beyond the largest power of e in float32
    mask = np.where(cache.inputs_mask, 0, MASKED)[None, None].astype(np.float32)
    params, x = {f"layers_{i}": layer(i) for i in range(count)}, numbers(1, tokens, dim)
    x[0, :, 1] = [5, 0][:tokens]
    return params, x, cache, layers, biases, mask


def in_numpy(config, params, x, cache, layers, biases, mask):
    """Returns the stream and the cache after the layers, by definition."""

    def rounded(x):
        return np.asarray(x, np.float32).astype(np.dtype(config.dtype)).astype(np.float64)

    def matrix(module, name):
        return np.asarray(module[name]["kernel"], np.float64)

    def normed(x, scale):
        mean = np.mean(x**2, axis=-1, keepdims=True)
        quotient = rounded(x / np.sqrt(mean + config.layer_norm_epsilon))
        return rounded(quotient * rounded(scale["scale"]))

    def attention(query, keys, values, bias, out):
        """Of queries [T, H * K] to keys and values [H, C, K], with a bias [H, T, C]."""
        query = query.reshape(-1, config.num_heads, config.head_dim)
        scores = np.einsum("thk,hck->htc", query, keys) + bias
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = rounded(weights / weights.sum(-1, keepdims=True))
        mixed = rounded(np.einsum("htc,hck->thk", weights, values))
        return mixed.reshape(len(mixed), -1) @ out

    acts = {"gelu": gelu, "linear": lambda x: x, "relu": lambda x: np.maximum(x, 0)}
    x = np.asarray(x[0], np.float64)
    made = {name: [np.asarray(x, np.float64) for x in getattr(cache, name)] for name in CACHED}
    for i, bias in zip(layers, biases, strict=True):
        layer = params[f"layers_{i}"]
        module, y = layer["self_attention"], normed(x, layer["pre_self_attention_layer_norm"])
        for name, kernel in zip(CACHED, ("key", "value"), strict=True):
            new = (y @ matrix(module, kernel)).reshape(len(x), config.num_heads, config.head_dim)
            new = rounded(np.where(np.abs(new) < 3.4e38, new, 0)).swapaxes(0, 1)
            made[name][i][0, :, LENGTH : LENGTH + len(x)] = new
        query = rounded(y @ matrix(module, "query"))
        own = (made[name][i][0] for name in CACHED)
        x = x + attention(query, *own, bias[0], matrix(module, "out"))
        module, y = layer["encoder_decoder_attention"], layer["pre_cross_attention_layer_norm"]
        query = rounded(normed(x, y) @ matrix(module, "query"))
        keys = np.asarray(cache.cross_keys[i][0], np.float64).swapaxes(1, 2)
        values = np.asarray(cache.cross_values[i][0], np.float64)
        x = x + attention(query, keys, values, mask[0], matrix(module, "out"))
        module, y = layer["mlp"], normed(x, layer["pre_mlp_layer_norm"])
        hidden = 1.0
        for activation, name in zip(config.mlp_activations, sorted(module)[:-1], strict=True):
            hidden = hidden * acts[activation](rounded(y @ matrix(module, name)))
        x = x + rounded(hidden) @ matrix(module, "wo")
    return x, made


CASES = {
    "fused, bfloat16": (fused, HALF, 1, (2, 0), None),
    "fused": (fused, GATES, 2, (2,), None),
    "streamed, bfloat16": (streamed, HALF, 1, (2, 0), EARLY),
    "streamed": (streamed, GATES, 2, (2, 0), LATE),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of infinity minus infinity
def test_a_kernel_computes_the_layers(name, monkeypatch, capfd):
    module, config, tokens, layers, mode = CASES[name]
    if mode:
        monkeypatch.setattr(streamed, "INTERPRET", mode)
    given = drawn(config, tokens, layers)
    expected, made = in_numpy(config, *given)
    params, x, cache, _, biases, mask = jax.tree.map(jnp.asarray, given)

    def run(params, x, cache, biases, mask):
        return module.run(config, params, x, cache, layers, biases, mask)

    arrays = params, x, cache, biases, mask
    # Otherwise XLA may leave out a rounding whose result is used as float32.
    exact = {"xla_allow_excess_precision": False}
    found, after = jax.jit(run).lower(*arrays).compile(compiler_options=exact)(*arrays)
    assert found.dtype == jnp.float32
    # 4.5e-6 of sums up to 6 (EPYC, AVX-512): a logit near 90 has a rounding of 4e-6. In bfloat16
    # the roundings are the same ones.
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=2 * SMALL_LOGITS)
    assert after.length.tolist() == [LENGTH]
    for kind in CACHED:
        for one, other in zip(getattr(after, kind), made[kind], strict=True):
            assert one.dtype == config.dtype
            one = np.asarray(one, np.float64)
            np.testing.assert_allclose(one, other, rtol=0, atol=SMALL_LOGITS)
    assert "RACE" not in capfd.readouterr().out


def test_a_decoder_asks_its_own_kernels(monkeypatch):
    """And its layers where a token sees something else than the text before it."""
    seen = []
    kernels = types.SimpleNamespace(
        run=lambda config, params, x, cache, *_: (seen.append(x), (x, cache))[1]
    )
    monkeypatch.setattr(network, "_own_kernels", lambda *given: kernels)
    model = T5Target(CONFIG, layout=Layout(fused="triton"))
    shapes = model.parameter_shapes()
    cache = jax.eval_shape(lambda p: model.prefill(p, np.ones([1, 4], np.int32), 5), shapes)
    assert not seen
    for ancestors in (None, np.eye(2, dtype=bool)):
        tokens = jax.ShapeDtypeStruct((1, 2), "int32")
        jax.eval_shape(functools.partial(model.decode, ancestors=ancestors), shapes, tokens, cache)
        assert len(seen) == 1


def calls(monkeypatch, module, config, tokens):
    """Returns the settings of each kernel that a device runs, and the text of what is traced."""
    found, call = [], pl.pallas_call

    def spy(kernel, **settings):
        if not settings.get("interpret"):
            found.append(types.SimpleNamespace(**settings))
        return call(kernel, **settings)

    monkeypatch.setattr(pl, "pallas_call", spy)
    params, x, cache, layers, biases, mask = drawn(config, tokens, (2, 0))
    traced = jax.make_jaxpr(lambda *given: module.run(config, *given[:3], layers, *given[3:]))
    return found, str(traced(*jax.tree.map(jnp.asarray, (params, x, cache, biases, mask))))


def test_programs_of_the_fused_kernels(monkeypatch):
    """3 * 16 columns, 3 heads, 24 outputs and 96 units, in parts of 16, 1, 24 / 8 and 32."""
    layer = [("t5_project", (3, 3), 4, {})]
    # After a kernel, a bias, the length, queries, keys and values: the cache, behind the parts.
    layer += [("t5_attend", (3, 8), 4, {6: 1, 7: 2})]
    layer += [("t5_cross", (3, 8), 8, {}), ("t5_mlp", (3, 1), 8, {})]
    found, _ = calls(monkeypatch, fused, HALF, 2)
    warps = [(x.name, x.grid, x.compiler_params.num_warps) for x in found]
    aliases = [(x.input_output_aliases,) for x in found]
    assert [a + b for a, b in zip(warps, aliases, strict=True)] == layer * 2
    assert {x.compiler_params.num_stages for x in found} == {1}


def test_memory_of_the_streamed_kernel(monkeypatch):
    """Rows of up to 128 numbers take 128. A scale is 1 row of 256 bytes, and 8 heads of a token,
    three of which there are, are 8 rows of the bias in float32:

    attend  query, key, value 3 * 24, out 48, keys and values 2 * 48 rows of 256; bias 16 of 512
    cross   query 24, out 48, keys and values 2 * 48
    mlp     two kernels of 24, and one of 96
    """
    rows = (3 * 24 + 48 + 2 * 48) + (24 + 48 + 2 * 48) + (2 * 24 + 96) + 3
    (found,), text = calls(monkeypatch, streamed, HALF, 2)
    assert found.compiler_params.vmem_limit_bytes == 256 * rows + 512 * 16 + 4_194_304 == 4_338_432
    spaces = [spec.memory_space for spec in jax.tree.leaves(found.in_specs)]
    kinds = pltpu.SMEM, pltpu.HBM, pltpu.VMEM
    assert [spaces.count(kind) for kind in kinds] == [1, 2 * (2 + 6 + 5 + 4), 2]
    # The caches of two layers, behind the length.
    assert found.name == "t5_streamed" and found.input_output_aliases == {1: 0, 2: 1, 3: 2, 4: 3}
    assert "HIGHEST" not in text
    (_,), text = calls(monkeypatch, streamed, GATES, 2)
    assert text.count("HIGHEST") > 0 and "precision=None" not in text


def test_order_of_the_streamed_kernels_copies(monkeypatch):
    """A part's arrays are overwritten after its new slots have left, which copies that run when
    they begin or when they are waited for do not show."""
    events, make = [], pltpu.make_async_copy

    def spy(source, to, semaphore):
        way = "in" if hasattr(semaphore, "transforms") else "out"  # one of several, or one alone
        copy = make(source, to, semaphore)

        def noted(event):
            return lambda: events.append((event, way)) or getattr(copy, event)()

        return types.SimpleNamespace(start=noted("start"), wait=noted("wait"))

    monkeypatch.setattr(pltpu, "make_async_copy", spy)
    calls(monkeypatch, streamed, HALF, 1)
    read = [("wait", "in"), ("start", "in")]
    attend = [("wait", "in"), ("start", "out"), ("wait", "out"), ("start", "in")]
    program = [("start", "in"), *attend, *read, *read]
    found = [event for event, _ in itertools.groupby(events)]
    assert found[: len(program)] == program


def fits(module, sizes=(24, 3, 16, 96), rows=1, tokens=2, slots=7, inputs=5, **fields):
    names = "emb_dim", "num_heads", "head_dim", "mlp_dim"
    config = dataclasses.replace(HALF, **dict(zip(names, sizes, strict=True)), **fields)
    keys = np.zeros((rows, config.num_heads, slots, 1))
    mask = np.zeros((rows, inputs), bool)
    cache = KVCache((keys,), (keys,), np.zeros(rows), inputs_mask=mask)
    return module.fits(config, rows, tokens, cache)


LIMITS = [{}, {"tokens": 1}, {"slots": 1024, "inputs": 1024}]
BEYOND = [{"rows": 2}, {"tokens": 3}, {"slots": 1025}, {"inputs": 1025}]


def test_what_fits_the_fused_kernels():
    assert all(fits(fused, **limits) for limits in LIMITS)
    assert not any(fits(fused, **beyond) for beyond in BEYOND)
    # Parts of 8, 16 and 32 of the model, the heads and the MLP; a head that is a power of two.
    assert fits(fused, (8, 2, 8, 32)) and fits(fused, (16, 1, 32, 64))
    for odd in ((20, 3, 16, 96), (24, 3, 8, 96), (24, 3, 16, 80), (24, 4, 12, 96)):
        assert not fits(fused, odd)


# Bytes by hand, with 4 MiB to spare. Kernels: D times 6 H K for queries and outputs of both
# attentions and the keys and values of one, and times the MLP for each gate and the way back.
# Caches: 2 H K for each slot and each input, of which 128 take as much as 1.
#   512 * (6 * 384 + 3 * 1024) + 2 * 384 * (128 + 128) = 2,949,120 numbers of 2 bytes
#   128 * (6 * 128 + 2 * 256) + 2 * 128 * (256 + 128) = 262,144 of 4
#   128 * (6 * 256 + 4 * 128) + 2 * 256 * (128 + 256) = 458,752 of 2
BYTES = [
    (10_092_544, dict(sizes=(512, 6, 64, 1024), slots=128, inputs=64)),
    (
        5_242_880,
        dict(
            sizes=(128, 4, 32, 256),
            slots=129,
            inputs=128,
            dtype="float32",
            mlp_activations=("relu",),
        ),
    ),
    (
        5_111_808,
        dict(sizes=(128, 2, 128, 128), slots=1, inputs=129, mlp_activations=("relu",) * 3),
    ),
]
SIZES = (128, 4, 32, 128)


def test_what_fits_the_streamed_kernel(monkeypatch):
    for needed, given in BYTES:
        monkeypatch.setattr(streamed, "VMEM", needed)
        assert fits(streamed, **given)
        monkeypatch.setattr(streamed, "VMEM", needed - 1)
        assert not fits(streamed, **given)
    monkeypatch.undo()
    # 1024 * (6 * 1024 + 5 * 5120) + 2 * 1024 * 256 = 33,030,144 numbers, so 70,254,592 bytes, where
    # 64 MiB are 67,108,864. Without the way back of the MLP they would be 59,768,832.
    assert fits(streamed, (1024, 16, 64, 2816))
    assert not fits(streamed, (1024, 16, 64, 5120), mlp_activations=("gelu",) * 4)
    assert all(fits(streamed, SIZES, **limits) for limits in LIMITS)
    assert not any(fits(streamed, SIZES, **beyond) for beyond in BEYOND)
    for odd in ((96, 4, 32, 128), (128, 3, 32, 128), (128, 4, 32, 96), (136, 4, 32, 128)):
        assert not fits(streamed, odd)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    of_tpu = types.SimpleNamespace(vmem_capacity_bytes=BYTES[0][0])
    monkeypatch.setattr(pltpu, "get_tpu_info", lambda: of_tpu)
    assert fits(streamed, **BYTES[0][1]) and not fits(streamed, (512, 6, 64, 1152))
