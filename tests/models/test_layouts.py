"""Serving layouts against the checkpoint's own: pytest tests/models/test_layouts.py"""

from __future__ import annotations

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from support import cells, device_of, opcodes, tiny_t5

from specdec import Plan, autoregressive_decode, decode, row_keys
from specdec.drafters import Autoregressive
from specdec.models import partitioning
from specdec.models.placement import device as devices
from specdec.models.placement.layouts import STORED, Layout, from_stored, to_stored
from specdec.models.t5 import T5Target
from specdec.predict import hlo
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.types import Params
from specdec.verifiers import GreedyMatch

pytestmark = pytest.mark.ci

ROUNDING = 2e-6  # of the largest logit: float32 sums in other orders, 3 layers deep
LAYOUTS = ("checkpoint", "in_out", "out_in", "all_out_in")
SIZES = {  # all different, so that a shape tells which axis is which
    "vocab": 64,
    "embed": 24,
    "heads": 8,
    "joined_kv": 32,
    "mlp": 40,
    "relpos_buckets": 16,
}
V1_1 = tiny_t5(64, 24, 40, heads=8, head_dim=4, decoder=2, relative_attention_num_buckets=16)
CONFIGS = {
    "v1_1": V1_1,
    "v1_0": dataclasses.replace(V1_1, mlp_activations=("relu",), logits_via_embedding=True),
    "bias_per_layer": dataclasses.replace(V1_1, relative_bias_per_layer=True),
}
ROWS, WIDTHS = 2, (1, 2, 5)  # the blocks that are fed one after the other
KEYS, GREEDY = row_keys(0, jnp.arange(ROWS)), {"sampling": Greedy(), "max_length": 12}
STANDARD = partitioning.standard_logical_axis_rules()

each_model = pytest.mark.parametrize("name", CONFIGS)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
WAYS = {
    "in_out": Layout("in_out"),
    "out_in": Layout("out_in"),
    "kernel_first": Layout("all_out_in", tuple((ROWS * width, "kernel_first") for width in WIDTHS)),
}


@functools.cache
def checkpoint(name: str):
    """Random parameters of a model in T5X's tree."""
    return T5Target(CONFIGS[name]).init(jax.random.key(0))


@functools.cache
def texts() -> tuple[jax.Array, jax.Array]:
    """Ragged inputs, and the tokens to feed."""
    inputs = jax.random.randint(jax.random.key(1), (ROWS, 7), 2, SIZES["vocab"])
    tokens = jax.random.randint(jax.random.key(2), (ROWS, sum(WIDTHS)), 2, SIZES["vocab"])
    return inputs.at[1, 4:].set(0), tokens


def logits(target: T5Target, params, inputs, tokens):
    """[B, sum of WIDTHS, V], of one call per block.

    Without `jit` the models share their operations' programs, where each would be compiled.
    """
    cache, blocks, start = target.prefill(params, inputs, tokens.shape[1]), [], 0
    for width in WIDTHS:
        output, cache = target.decode(params, tokens[:, start : start + width], cache)
        blocks.append(output.logits)
        start += width
    return jnp.concatenate(blocks, axis=1)


def assert_near(found, expected, share: float) -> None:
    """Compares logits; what is tolerated is a share of the largest one."""
    atol = share * float(jnp.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def flat(tree) -> dict:
    return traverse_util.flatten_dict(tree, sep="/")


def assert_same(found, expected):
    """Equal trees, bit for bit."""
    assert flat(found).keys() == flat(expected).keys()
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("name, way", cells(CONFIGS, WAYS, often=[("v1_1", "in_out")]))
def test_the_function_is_the_same(name, way):
    expected = logits(T5Target(CONFIGS[name]), checkpoint(name), *texts())
    target = T5Target(CONFIGS[name], layout=WAYS[way])
    found = logits(target, target.from_stored(checkpoint(name)), *texts())
    assert found.dtype == jnp.float32
    assert_near(found, expected, ROUNDING)


@pytest.mark.parametrize(
    "name, way, stored",
    cells(
        CONFIGS,
        WAYS,
        ["bfloat16", "float32"],
        often=[("v1_0", "kernel_first", "float32")],
    ),
)
def test_in_bfloat16_a_few_roundings_differ(name, way, stored):
    """Each of them by 2^-8 at most; float32 parameters of a bfloat16 model are cast as they are
    used, but for the logits'."""
    config = dataclasses.replace(CONFIGS[name], dtype="bfloat16")
    params = jax.tree.map(lambda leaf: leaf.astype(stored), checkpoint(name))
    expected = logits(T5Target(config), params, *texts())
    target = T5Target(config, layout=WAYS[way])
    serving = target.from_stored(params)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(serving)} == {stored}
    found = logits(target, serving, *texts())
    assert found.dtype == jnp.float32
    assert_near(found, expected, 2**-6)


@pytest.mark.parametrize(
    "name, dtype",
    cells(
        CONFIGS,
        ["float32", "bfloat16"],
        often=[("v1_1", "float32"), ("v1_0", "bfloat16")],
    ),
)
def test_products_have_the_same_precision_and_result(name, dtype):
    """What an accelerator rounds to is asked for in the program; a CPU does not show it."""
    config, stored = dataclasses.replace(CONFIGS[name], dtype=dtype), checkpoint(name)

    def products(layout=STORED) -> list[tuple[str, str]]:
        target = T5Target(config, layout=layout)
        params = jax.eval_shape(lambda: target.from_stored(stored))
        cache = jax.eval_shape(lambda p, i: target.prefill(p, i, 5), params, texts()[0])
        text = jax.jit(target.decode).lower(params, texts()[1][:, :5], cache).as_text()
        found = re.findall(r"dot_general .*?(precision = \S+ \S+|:).* -> tensor<(\S+)>", text)
        return sorted((precision, shape.split("x")[-1]) for precision, shape in found)

    expected = products()
    assert len(expected) > 20 and all(products(way) == expected for way in WAYS.values())


TRANSPOSED = {
    *(f"self_attention/{kernel}" for kernel in ("query", "key", "value", "out")),
    *(f"encoder_decoder_attention/{kernel}" for kernel in ("query", "out")),
}


def kernels_of_a_step(name: str) -> set[str]:
    mlp = ("wi", "wo") if name == "v1_0" else ("wi_0", "wi_1", "wo")
    of_layer = TRANSPOSED | {f"mlp/{kernel}" for kernel in mlp}
    found = {f"decoder/layers_{i}/{kernel}/kernel" for i in range(2) for kernel in of_layer}
    return found if name == "v1_0" else found | {"decoder/logits_dense/kernel"}


@each_model
@pytest.mark.parametrize("layout", ["out_in", "all_out_in"])
def test_out_in_transposes_what_a_step_reads_or_all_and_shares_the_rest(name, layout):
    before = flat(checkpoint(name))
    after = flat(from_stored(checkpoint(name), CONFIGS[name], Layout(layout)))
    assert after.keys() == before.keys()
    transposed = {path for path in after if after[path] is not before[path]}
    kernels = {path for path in before if path.endswith("kernel")}
    assert transposed == (kernels if layout == "all_out_in" else kernels_of_a_step(name))
    for path in transposed:
        np.testing.assert_array_equal(after[path], before[path].T)


@each_model
def test_in_out_adds_the_transposed_table_to_tied_models_and_shares_the_rest(name):
    before = flat(checkpoint(name))
    after = flat(from_stored(checkpoint(name), CONFIGS[name], Layout("in_out")))
    added = {path for path in after if path not in before}
    assert added == ({"decoder/logits_dense/kernel"} if name == "v1_0" else set())
    for path in added:
        np.testing.assert_array_equal(after[path], before["token_embedder/embedding"].T)
    assert all(after[path] is before[path] for path in before)


@each_model
@each_layout
def test_shapes_axes_and_initial_values_agree_and_come_back(name, layout):
    def both(params):
        serving = from_stored(params, CONFIGS[name], Layout(layout))
        return serving, to_stored(serving, CONFIGS[name], Layout(layout))

    target = T5Target(CONFIGS[name], layout=Layout(layout))
    params, stored = target.init(jax.random.key(0)), checkpoint(name)
    for convert in (both, jax.jit(both)):
        for found, expected in zip(convert(stored), (params, stored), strict=True):
            assert_same(found, expected)
    axes = flat(target.axes())
    shapes = {path: tuple(SIZES[axis] for axis in names) for path, names in axes.items()}
    assert {path: leaf.shape for path, leaf in flat(params).items()} == shapes


def eloquent(name: str):
    """Parameters with a small table: a tied model then does not repeat its last token for ever."""
    params = checkpoint(name)
    return params | {"token_embedder": jax.tree.map(lambda x: 0.2 * x, params["token_embedder"])}


@pytest.mark.parametrize("name", [pytest.param("v1_1", marks=pytest.mark.slow), "v1_0"])
def test_decoded_tokens_are_the_same(name):
    inputs, outputs = texts()[0], []
    for layout in (STORED, *WAYS.values()):
        target = T5Target(CONFIGS[name], layout=layout)
        params = target.from_stored(eloquent(name))
        outputs.append(autoregressive_decode(params, KEYS, inputs, target=target, **GREEDY))
    assert len(set(np.asarray(outputs[0].tokens).ravel().tolist())) > 3
    for output in outputs[1:]:
        assert_equal_output(output, outputs[0])


def serving(target, params, calls, device):
    """The target in the layout for its calls, and parameters of its own layout in that one."""
    laid_out = target.laid_out(calls, device)
    return laid_out, laid_out.from_stored(target.to_stored(params))


def test_a_target_and_its_drafter_may_have_layouts_of_their_own():
    config, inputs = CONFIGS["v1_0"], texts()[0]
    target = T5Target(config)
    expected = autoregressive_decode(eloquent("v1_0"), KEYS, inputs, target=target, **GREEDY)
    device = device_of({1: "out_in", 4: "in_out"})
    wide, wide_params = serving(target, eloquent("v1_0"), {4: 1.0}, device)
    narrow, narrow_params = serving(target, eloquent("v1_0"), {1: 1.0}, device)
    assert (wide.layout.storage, narrow.layout.storage) == ("in_out", "out_in")
    drafter = Autoregressive(narrow, Greedy())
    plan = Plan(wide, drafter, GreedyMatch(), Fixed(3), **GREEDY)
    output = decode(Params(wide_params, narrow_params), KEYS, inputs, plan)
    assert_equal_output(output, expected)
    assert np.array_equal(output.trace.accepted, output.trace.drafted), "the two are one model"


def assert_equal_output(found, expected):
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.length, expected.length)


@pytest.mark.parametrize(
    "name, layout, table_too",
    [
        ("v1_1", "checkpoint", False),
        ("v1_1", "in_out", False),
        ("v1_1", "out_in", False),
        ("v1_0", "checkpoint", True),
        ("v1_0", "in_out", False),
        ("v1_0", "out_in", True),
        ("v1_0", "all_out_in", True),
    ],
)
def test_what_a_step_reads(name, layout, table_too):
    """The same number of bytes in every layout: a tied table is read in one of its two forms, the
    kernels of the inputs' keys and values in none."""
    target = T5Target(CONFIGS[name], layout=Layout(layout))
    params = from_stored(checkpoint(name), CONFIGS[name], Layout(layout))
    read = target.read_by_decode(params)
    assert read.keys() == {"decoder"} | ({"token_embedder"} if table_too else set())
    for path, leaf in flat(read).items():
        np.testing.assert_array_equal(leaf, flat(params)[path])
    prefill = re.compile(r"encoder_decoder_attention/(key|value)/")
    stored = flat(checkpoint(name)).items()
    decoder = sum(x.nbytes for path, x in stored if path[0] == "d" and not prefill.search(path))
    table = 4 * SIZES["vocab"] * SIZES["embed"] if name == "v1_0" else 0
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(read)) == decoder + table


FIRST = ((2, "kernel_first"), (8, "kernel_first"))


@each_model
@pytest.mark.parametrize(
    "calls, prefill, layout, orders",
    [
        ({1: 1.0}, "in_out", "out_in", ()),
        ({1: 1.0}, "kernel_first", "all_out_in", ()),
        ({2: 1.0}, "in_out", "out_in", FIRST[:1]),
        ({8: 1.0}, "kernel_first", "in_out", ()),
        ({2: 1.0, 1: 3.0}, "in_out", "out_in", FIRST[:1]),
        ({2: 1.0, 8: 0.1}, "in_out", "out_in", FIRST),
        ({2: 0.5, 8: 1.0}, "in_out", "in_out", ()),
    ],
)
def test_serving_chooses_for_its_calls_from_any_layout(name, calls, prefill, layout, orders):
    device = device_of({1: "out_in", 2: "kernel_first", 8: "in_out", 64: prefill})
    expected = from_stored(checkpoint(name), CONFIGS[name], Layout(layout))
    for before in map(Layout, LAYOUTS):
        target = T5Target(CONFIGS[name], STANDARD, before)
        given = from_stored(checkpoint(name), CONFIGS[name], before)
        found, params = serving(target, given, calls, device)
        assert found == target.laid_out(calls, device)
        assert found == T5Target(CONFIGS[name], STANDARD, Layout(layout, orders))
        assert_same(params, expected)


def test_what_is_not_measured_stays_as_stored(monkeypatch):
    target = T5Target(V1_1, layout=Layout("out_in", orders=((1, "kernel_first"),)))
    monkeypatch.setattr(devices, "this", lambda int8: None)
    assert target.laid_out({1: 1.0}) == T5Target(V1_1)


def test_a_wrong_layout_is_named():
    known = "'checkpoint', 'in_out', 'out_in', 'all_out_in', 'unsigned'"
    with pytest.raises(ValueError, match=f"^Layout.storage is 'transposed'; give one of {known}$"):
        Layout("transposed")  # type: ignore[arg-type]


@pytest.mark.parametrize("calls", [{}, {0: 1.0}])
def test_calls_of_no_tokens_are_refused(calls):
    message = f"calls is {calls}; give {{tokens of a call, at least 1: number of calls}}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        T5Target(V1_1).laid_out(calls, device_of({1: "in_out"}))


@pytest.mark.parametrize("name, layout", [("v1_1", "out_in"), ("v1_0", "in_out")])
def test_no_layout_adds_a_collective(name, layout):
    """Three sums per decoder layer, one for the embedding, and the logits gathered once."""
    config, mesh = CONFIGS[name], partitioning.make_mesh(8)
    target = T5Target(config, STANDARD, Layout(layout))
    params = partitioning.abstract(target, mesh)
    inputs, tokens = (jax.ShapeDtypeStruct((1, width), jnp.int32) for width in (7, 3))
    with jax.set_mesh(mesh):
        cache = jax.eval_shape(lambda p, i: target.prefill(p, i, 5), params, inputs)
        text = jax.jit(target.decode).lower(params, tokens, cache).compile().as_text()
    found = hlo.read(text or "").collectives
    kinds = opcodes(found)
    assert kinds == {"all-reduce": 1 + 3 * config.num_decoder_layers, "all-gather": 1}
    (gathered,) = (each for each in found if each.opcode == "all-gather")
    assert gathered.bytes == 4 * 3 * SIZES["vocab"]
