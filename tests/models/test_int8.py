"""Kernels in eight bits: pytest tests/models/test_int8.py"""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from jax.sharding import PartitionSpec
from support import cells, few, tiny_t5

from specdec import Plan, checkpoints
from specdec.common import demo
from specdec.drafters import Autoregressive
from specdec.models import partitioning
from specdec.models.layers import rowwise
from specdec.models.layers.int8 import LEVELS, SCALE, dequantized, quantized, rounded
from specdec.models.layers.products import Orders
from specdec.models.placement.layouts import Layout, Storage
from specdec.models.t5 import T5Config, T5Target
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.verifiers import GreedyMatch

pytestmark = pytest.mark.ci

V1_1 = tiny_t5(64, 24, 40, heads=4, decoder=2)
CONFIGS = {
    "v1_1": V1_1,
    "v1_0": dataclasses.replace(V1_1, mlp_activations=("relu",), logits_via_embedding=True),
}
INPUTS = jnp.array([[5, 9, 7, 1], [8, 3, 1, 0]], jnp.int32)
TOKENS = jnp.array([[0, 3, 4], [0, 7, 6]], jnp.int32)
NEAR = 1e-3  # of sums of 1,024 float32 numbers: 2^-24 of about 30 in each step
LAYOUTS = ("checkpoint", "in_out", "out_in", "all_out_in")

each_model = pytest.mark.parametrize("name", CONFIGS)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def flat(tree) -> dict:
    return traverse_util.flatten_dict(tree, sep="/")


def assert_close(found, expected, share):
    """Compares logits; what is tolerated is a share of the largest one."""
    atol = share * float(jnp.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def logits(target: T5Target, params):
    cache = target.prefill(params, INPUTS, 3)
    return target.decode(params, TOKENS, cache)[0].logits


@pytest.mark.parametrize("inputs", [0, 1])
def test_a_kernel_is_off_by_half_a_level_of_its_output(inputs):
    kernel = jax.random.normal(jax.random.key(0), (24, 40)) * jnp.arange(40)[None]  # one is zero
    kernel = kernel if inputs == 0 else kernel.T
    layer = quantized(kernel, inputs=inputs)
    assert layer["kernel"].dtype == jnp.int8 and layer[SCALE].shape == (40,)
    assert np.abs(layer["kernel"]).max(inputs).tolist() == [0] + [LEVELS] * 39
    off = jnp.abs(dequantized(layer, inputs=inputs) - kernel)
    assert jnp.all(off <= jnp.expand_dims(layer[SCALE], inputs) * 0.5001)


@pytest.mark.parametrize("name, layout", cells(CONFIGS, LAYOUTS, often=[("v1_1", "out_in")]))
def test_it_is_the_model_of_the_rounded_kernels(name, layout):
    stored = T5Target(CONFIGS[name])
    params = stored.init(jax.random.key(0))
    rounded = T5Target(CONFIGS[name], layout=Layout(layout), weights="int8")
    kept = rounded.from_stored(params)
    found, expected = logits(rounded, kept), logits(stored, rounded.to_stored(kept))
    assert_close(found, expected, 1e-5)
    float32 = logits(stored, params)
    assert 1e-4 < float(jnp.abs(found - float32).max() / jnp.abs(float32).max()) < 0.1
    again = rounded.from_stored(rounded.to_stored(kept))
    for path, leaf in flat(kept).items():  # bit for bit: layouts do not change the model
        np.testing.assert_array_equal(flat(again)[path], leaf, err_msg=path)


def test_a_token_is_off_by_half_a_level_and_depends_on_itself():
    x = jax.random.normal(jax.random.key(0), (3, 5, 24)) * jnp.arange(5)[None, :, None]
    levels, scale = rounded(x)
    assert levels.dtype == scale.dtype == jnp.float32 and scale.shape == (3, 5, 1)
    assert jnp.all(levels == jnp.round(levels))
    assert np.abs(levels).max(-1).tolist() == [[0] + [LEVELS] * 4] * 3
    assert jnp.all(jnp.abs(levels * scale - x) <= scale * 0.5001)
    for row, token in np.ndindex(3, 5):
        alone = rounded(x[row : row + 1, token : token + 1])
        np.testing.assert_array_equal(alone[0][0, 0], levels[row, token])
        np.testing.assert_array_equal(alone[1][0, 0], scale[row, token])


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_token_that_is_not_finite_stays_so(bad):
    levels, scale = rounded(jnp.array([[1.0, bad, 2.0], [1.0, 2.0, 3.0]]))
    product = levels.astype(jnp.int8).sum(-1, keepdims=True) * scale
    assert jnp.isfinite(product).tolist() == [[False], [True]]


def tokens_too(name: str, layout: Storage = "checkpoint", **fields) -> T5Target:
    return T5Target(CONFIGS[name], layout=Layout(layout, **fields), weights="int8_tokens")


@pytest.mark.parametrize(
    "name, layout, widened",
    cells(CONFIGS, LAYOUTS, [False, True], often=[("v1_1", "out_in", True)]),
)
def test_tokens_in_eight_bits_are_one_model_in_all_layouts(name, layout, widened):
    """Integer sums have no order, and the widened ones are below 2^24 here."""
    params = T5Target(CONFIGS[name]).init(jax.random.key(0))
    first, other = tokens_too(name), tokens_too(name, layout, widened=widened)
    kept = other.from_stored(params)
    dtypes = {str(leaf.dtype) for path, leaf in flat(kept).items() if path.endswith("wo/kernel")}
    assert dtypes == {"float32" if widened else "int8"}
    found, expected = logits(other, kept), logits(first, first.from_stored(params))
    assert_close(found, expected, 1e-6)
    again = other.from_stored(other.to_stored(kept))
    jax.tree.map(np.testing.assert_array_equal, again, kept)
    kernels_only = T5Target(CONFIGS[name], weights="int8")
    float_tokens = logits(kernels_only, kernels_only.from_stored(params))
    off = float(jnp.abs(found - float_tokens).max() / jnp.abs(float_tokens).max())
    assert 1e-4 < off < 0.1


@pytest.mark.parametrize("name", few(sorted(CONFIGS, reverse=True)))
def test_unsigned_kernels_are_the_same_model(name):
    params = T5Target(CONFIGS[name]).init(jax.random.key(0))
    first, other = tokens_too(name, "all_out_in"), tokens_too(name, "unsigned")
    kept = other.from_stored(params)
    expected = logits(first, first.from_stored(params))
    np.testing.assert_array_equal(logits(other, kept), expected)
    again = other.from_stored(other.to_stored(kept))
    jax.tree.map(np.testing.assert_array_equal, again, kept)
    axes = flat(other.axes())
    assert {path: len(axes[path]) for path in axes} == {p: x.ndim for p, x in flat(kept).items()}


@pytest.mark.parametrize(
    "weights, widened", [("stored", False), ("int8", False), ("int8_tokens", True)]
)
def test_the_unsigned_layout_is_for_tokens_in_eight_bits(weights, widened):
    with pytest.raises(ValueError, match="^T5Target.layout is 'unsigned' and weights are"):
        T5Target(V1_1, layout=Layout("unsigned", widened=widened), weights=weights)


@each_model
@each_layout
def test_logits_have_eight_bits_where_tokens_have_them(name, layout):
    """A tied model's table keeps the rows of its tokens in float."""
    params = T5Target(CONFIGS[name]).init(jax.random.key(0))
    kept = flat(tokens_too(name, layout).from_stored(params))
    table = params["token_embedder"]["embedding"]
    np.testing.assert_array_equal(kept["token_embedder/embedding"], table)
    head = table.T if name == "v1_0" else params["decoder"]["logits_dense"]["kernel"]
    expected = quantized(head, inputs=0)
    kernel = kept["decoder/logits_dense/kernel"]
    found = kernel if layout in ("checkpoint", "in_out") else kernel.T
    np.testing.assert_array_equal(found, expected["kernel"])
    np.testing.assert_array_equal(kept["decoder/logits_dense/" + SCALE], expected[SCALE])
    weights_only = T5Target(CONFIGS[name], layout=Layout(layout), weights="int8")
    assert "decoder/logits_dense/" + SCALE not in flat(weights_only.from_stored(params))


def test_products_take_eight_bits_on_both_sides_and_round_a_token_once():
    """Query, key and value read the same rounded token, and both gates of an MLP."""
    target = tokens_too("v1_1", "all_out_in")
    params = target.from_stored(T5Target(V1_1).init(jax.random.key(0)))
    cache = target.prefill(params, INPUTS, 4)
    lowered = jax.jit(target.decode).lower(params, TOKENS, cache)
    compiled = str(lowered.compile().as_text())
    layers = V1_1.num_decoder_layers
    products = re.findall(r"tensor<\w+xi8>, tensor<\w+xi8>\) -> tensor<\w+xi32>", lowered.as_text())
    assert len(products) == 9 * layers + 1  # 4 and 2 of attention, 3 of the MLP; logits
    assert len(re.findall(r" = f32\S* round-nearest-even\(", compiled)) == 6 * layers + 1


def test_a_single_token_is_multiplied_as_two():
    """XLA's CPU backend is ten times slower for one."""
    target = tokens_too("v1_1")
    params = target.init(jax.random.key(0))
    cache = target.prefill(params, INPUTS[:1], 4)
    text = jax.jit(target.decode).lower(params, TOKENS[:1, :1], cache).as_text()
    products = re.findall(r"dot_general .*: \(tensor<(\d+)x\d+xi8>", text)
    assert len(products) == 9 * V1_1.num_decoder_layers + 1 and set(products) == {"2"}


@each_model
@each_layout
def test_shapes_axes_and_initial_values_agree(name, layout):
    target = T5Target(CONFIGS[name], layout=Layout(layout), weights="int8")
    params = target.init(jax.random.key(0))
    abstract = partitioning.abstract(dataclasses.replace(target), None)
    jax.tree.map(lambda leaf, shape: leaf.shape == shape.shape or pytest.fail(), params, abstract)
    kinds = {path.rpartition("/")[2]: str(leaf.dtype) for path, leaf in flat(abstract).items()}
    assert kinds[SCALE] == "float32"
    axes = flat(target.axes())
    assert axes.keys() == flat(params).keys()
    for path, leaf in flat(params).items():
        assert len(axes[path]) == leaf.ndim
    mlp = "decoder/layers_0/mlp/wo/"
    assert tuple(axes[mlp + SCALE]) == ("embed",) and leaf_dtype(params, mlp + "kernel") == "int8"
    assert leaf_dtype(params, "encoder/layers_0/attention/query/kernel") == "int8"
    assert "decoder/logits_dense/" + SCALE not in axes


def leaf_dtype(tree, path) -> str:
    return str(flat(tree)[path].dtype)


def test_a_mesh_divides_the_scales_as_the_outputs():
    mesh = partitioning.make_mesh(4)
    target = T5Target(V1_1, partitioning.standard_logical_axis_rules(), weights="int8")
    places = flat(partitioning.shardings(target, mesh))
    assert places["decoder/layers_0/mlp/wi_0/" + SCALE].spec == PartitionSpec("model")
    assert places["decoder/layers_0/mlp/wo/" + SCALE].spec == PartitionSpec(None)
    shapes = partitioning.abstract(target, mesh)
    params = jax.device_put(target.init(jax.random.key(0)), partitioning.shardings(target, mesh))
    jax.tree.map(lambda one, shape: one.sharding == shape.sharding or pytest.fail(), params, shapes)


def test_a_mesh_computes_the_same_integers():
    mesh = partitioning.make_mesh(4)
    target = tokens_too("v1_1")
    params = target.init(jax.random.key(0))
    expected = logits(target, params)
    divided = dataclasses.replace(target, axis_rules=partitioning.standard_logical_axis_rules())
    with jax.set_mesh(mesh):
        given = jax.device_put(params, partitioning.shardings(divided, mesh))
        found = jax.jit(lambda params: logits(divided, params))(given)
    assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("numbers", [32, 1024])
def test_sums_have_the_same_bits_among_any_number_of_rows(numbers):
    """Without AVX-512 one product of more than 64 rows of 32 numbers adds in another order."""
    x = np.random.default_rng(0).standard_normal((192, numbers), dtype=np.float32)
    sums = jax.jit(rowwise.sums)
    expected = np.concatenate([sums(x[i : i + 1]) for i in range(len(x))])
    exact = x.astype(np.float64).sum(1, keepdims=True)
    np.testing.assert_allclose(expected, exact, rtol=0, atol=NEAR)
    for rows in (2, 8, 48, 96, 192):
        found = np.concatenate([sums(x[i : i + rows]) for i in range(0, len(x), rows)])
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("layout", few(["unsigned", "all_out_in"]))
def test_a_token_has_the_same_bits_in_a_call_of_any_width(layout):
    """The embedded target is large enough for XLA to compute wide calls in other ways."""
    config = checkpoints.config_from(demo.path("target"))
    stored = checkpoints.load(demo.path("target"), config=config, dtype="float32")
    assert isinstance(config, T5Config)
    orders: Orders = ((1, "kernel_first"), (8, "out_in")) if layout == "all_out_in" else ()
    target = T5Target(config, layout=Layout(layout, orders), weights="int8_tokens")
    params = target.from_stored(stored)
    inputs = jax.random.randint(jax.random.key(1), (1, 32), 2, 2000)
    tokens = jax.random.randint(jax.random.key(2), (1, 24), 2, 2000)
    decode = jax.jit(target.decode)

    def logits(width: int, capacity: int) -> np.ndarray:
        cache, blocks = target.prefill(params, inputs, capacity), []
        for start in range(0, 24, width):
            output, cache = decode(params, tokens[:, start : start + width], cache)
            blocks.append(output.logits)
        return np.concatenate(blocks, axis=1)

    expected = logits(1, 24)
    np.testing.assert_array_equal(logits(8, 31), expected)
    np.testing.assert_array_equal(logits(24, 120), expected)


def test_a_plan_says_so():
    target = T5Target(V1_1)
    plan = Plan(target, Autoregressive(target, Greedy()), GreedyMatch(), Fixed(3), Greedy(), 8)
    assert "int8" not in str(plan)
    rounded = dataclasses.replace(target, weights="int8")
    assert str(plan.with_models({"target": rounded})).endswith(", target in int8")
    assert str(plan.with_models(dict.fromkeys(plan.models(), rounded))).endswith(
        ", target and draft in int8"
    )
    assert str(plan.with_models({"target": rounded}).alone()).endswith(", target in int8")
    both = dataclasses.replace(target, weights="int8_tokens")
    assert str(plan.with_models({"target": both})).endswith(", target in int8, tokens too")
    assert str(plan.with_models({"target": rounded, "draft": both})).endswith(
        ", target in int8, draft in int8, tokens too"
    )


def test_other_weights_are_refused():
    with pytest.raises(
        ValueError,
        match="^T5Target.weights is 'int4'; give one of 'stored', 'int8', 'int8_tokens'$",
    ):
        T5Target(V1_1, weights="int4")  # type: ignore[arg-type]
