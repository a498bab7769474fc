"""T5 against T5X's own figures (tests/golden): pytest tests/models/test_models.py"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import t5_in_numpy
from support import GOLDEN, few, load, teacher_forced

from specdec import autoregressive_decode, row_keys
from specdec.models.bases.stack import _kernels_of_step
from specdec.models.contract.cache import KVCache
from specdec.models.t5 import T5Config, T5Target
from specdec.models.t5.network import relative_buckets
from specdec.sampling import Greedy

NAMES = ["v1_0", "v1_1", "wide_heads"]
PROJECTIONS, CROSS = ("query", "key", "value", "out"), ("query", "out")

# How far T5X's stored logits are from exact ones: root mean square, and the largest of all.
T5X_DISTANCE = {
    "v1_0": (2.158e-6, 3.023e-5),
    "v1_1": (2.018e-5, 8.474e-4),
    "wide_heads": (5.364e-6, 8.362e-5),
    "scalable": (3.944e-7, 3.181e-6),
}


@functools.cache
def exact_logits(name: str) -> np.ndarray:
    """Float64 logits [B, T, V], which T5X's and ours round."""
    _, params, golden = load(name)
    config = json.loads((GOLDEN / name / "config.json").read_text())
    inputs, tokens = golden["encoder_input_tokens"], golden["decoder_input_tokens"]
    return t5_in_numpy.logits(params, config, inputs, tokens)


def distance(logits: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Root mean square and largest absolute value of the difference."""
    error = np.asarray(logits, np.float64) - exact
    return float(np.sqrt(np.mean(error**2))), float(np.max(np.abs(error)))


def twice_t5x(name: str, positions: int) -> float:
    """Largest difference allowed between two roundings of a model's first logits: each may be as
    far from the exact ones as T5X's are."""
    golden = np.load(GOLDEN / name / "golden.npz")["logits"]
    return 2 * distance(golden[:, :positions], exact_logits(name)[:, :positions])[1]


@pytest.mark.parametrize("name", T5X_DISTANCE)
def test_t5x_is_as_far_from_exact_logits_as_stored(name):
    golden = np.load(GOLDEN / name / "golden.npz")["logits"]
    assert distance(golden, exact_logits(name)) == pytest.approx(T5X_DISTANCE[name], rel=0.02)
    np.testing.assert_array_equal(golden.argmax(axis=-1), exact_logits(name).argmax(axis=-1))


@pytest.mark.parametrize(
    "name, saved",
    [(name, saved) for name in NAMES for saved in ("t5x_native", "t5x_orbax")]
    + [("scalable", "t5x_native")],
)
def test_logits_are_those_of_t5x(name, saved):
    """One block of all positions, mostly 170: past every bucket of the relative position. Inputs
    are ragged.

    Compilers and processors sum in different orders, and random weights amplify that. So T5X's
    logits and ours are each held against exact ones, and ours may be four times as far off. That is
    by root mean square. The largest error is chance, and may be eight times T5X's: of 4,000 other
    orders (hidden axes permuted) 5% had more than twice T5X's and none four times, while 0.1% had
    more than twice its root mean square. On an Intel Xeon (Emerald Rapids) it is up to 1.2 times
    T5X's by either.
    """
    target, params, golden = load(name, saved)
    tokens = jnp.asarray(golden["decoder_input_tokens"])
    ours = teacher_forced(target, params, golden["encoder_input_tokens"], tokens)
    assert ours.dtype == jnp.float32
    allowed = 4 * T5X_DISTANCE[name][0], 8 * T5X_DISTANCE[name][1]
    for found, most in zip(distance(ours, exact_logits(name)), allowed, strict=True):
        assert found == pytest.approx(0, abs=most)
    np.testing.assert_array_equal(ours.argmax(axis=-1), golden["logits"].argmax(axis=-1))


@pytest.mark.parametrize("name", few(NAMES))
def test_greedy_ids_are_those_of_t5x(name):
    target, params, golden = load(name)
    inputs = jnp.asarray(golden["encoder_input_tokens"])
    output = autoregressive_decode(
        params,
        row_keys(0, jnp.arange(len(inputs))),
        inputs,
        target=target,
        sampling=Greedy(),
        max_length=golden["greedy"].shape[1],
    )
    np.testing.assert_array_equal(output.tokens, golden["greedy"])
    assert len(set(np.asarray(output.length).tolist())) > 1, (
        "the rows should end at different steps"
    )


def test_blocks_at_ragged_positions_equal_single_steps():
    target, params, golden = load("v1_1")
    inputs = jnp.asarray(golden["encoder_input_tokens"])
    tokens = jnp.asarray(golden["decoder_input_tokens"])[:, :24]
    rows, width = len(inputs), 5
    decode = jax.jit(target.decode)
    atol = twice_t5x("v1_1", 24)  # 2.0e-4; they do by 3.3e-5 at most (EPYC, AVX-512)

    begun, single = jax.jit(target.prefill, static_argnums=2)(params, inputs, 24 + width), []
    cache = begun
    for i in range(24):
        output, cache = decode(params, tokens[:, i : i + 1], cache)
        single.append(output.logits[:, 0])
    single = jnp.stack(single, axis=1)

    cache = begun
    position = np.zeros(rows, int)
    rng = np.random.default_rng(0)
    while position.min() < 20:
        block = np.stack([tokens[b, p : p + width] for b, p in enumerate(np.minimum(position, 19))])
        keep = rng.integers(1, width + 1, rows)  # the tokens after these are "rejected"
        garbage = np.arange(width)[None] >= keep[:, None]
        fed = np.where(garbage, 99, block)
        cache = cache.rewind(jnp.asarray(np.minimum(position, 19)))
        output, cache = decode(params, jnp.asarray(fed), cache)
        for b, p in enumerate(np.minimum(position, 19)):
            np.testing.assert_allclose(
                output.logits[b, : keep[b]], single[b, p : p + keep[b]], rtol=0, atol=atol
            )
        position = np.minimum(position, 19) + keep


@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (16, 128), (8, 20)])
def test_relative_buckets_follow_the_paper(buckets, max_distance):
    table = relative_buckets(buckets, max_distance)
    distances = np.arange(4 * max_distance)
    expected = t5_in_numpy.buckets(distances, buckets, max_distance)  # in integers
    np.testing.assert_array_equal(table[np.minimum(distances, max_distance)], expected)
    assert table[-1] == buckets - 1


def test_rows_do_not_see_padding_or_neighbours():
    target, params, golden = load("wide_heads")
    inputs = jnp.asarray(golden["encoder_input_tokens"])
    row = inputs[4:5]  # three tokens and padding
    tokens = jnp.asarray(golden["decoder_input_tokens"])[4:5, :6]
    short, long = (teacher_forced(target, params, x, tokens) for x in (row[:, :3], row))
    atol = twice_t5x("wide_heads", 6)  # 3.4e-5; they do by 3.4e-6 at most (EPYC, AVX-512)
    np.testing.assert_allclose(short, long, rtol=0, atol=atol)


def test_padding_is_what_the_target_says():
    target, params, golden = load("wide_heads")
    inputs = jnp.asarray(golden["encoder_input_tokens"])[:, :9]
    tokens = jnp.asarray(golden["decoder_input_tokens"])[:, :3]
    assert not jnp.any(inputs == 7)
    other = T5Target(dataclasses.replace(target.config, pad_id=7))
    others = jnp.where(inputs == 0, 7, inputs)
    expected = teacher_forced(target, params, inputs, tokens)
    np.testing.assert_array_equal(teacher_forced(other, params, others, tokens), expected)
    starts = T5Target(dataclasses.replace(target.config, decoder_start_id=5))
    assert set(starts.start(others).tolist()) == {5} and set(target.start(inputs).tolist()) == {0}
    assert other.active(jnp.full([1, 2], 7)).tolist() == [False]


def test_a_cache_overwrites_and_rewinds():
    cache = KVCache.create(3, 5, layers=2, heads=1, head_dim=1, dtype=jnp.float32)
    assert cache.capacity == 5
    cache = cache.rewind(jnp.array([0, 1, 3]))

    def block(*rows):
        return jnp.array(rows, jnp.float32)[:, :, None, None]

    def held(cache):
        return np.asarray(cache.keys[1])[:, 0, :, 0].tolist()

    written = cache.write(1, block([1, 2], [3, 4], [5, 6]), block([0, 0], [0, 0], [0, 0]))
    assert held(written) == [[1, 2, 0, 0, 0], [0, 3, 4, 0, 0], [0, 0, 0, 5, 6]]
    assert np.array_equal(written.length, [0, 1, 3]), "a write moves no length"
    assert not np.any(written.keys[0]) and not np.any(written.values[1])
    again = written.rewind(jnp.array([1, 1, 2])).write(
        1, block([7], [8], [9]), block([0], [0], [0])
    )
    assert held(again) == [[1, 7, 0, 0, 0], [0, 8, 4, 0, 0], [0, 0, 9, 5, 6]]
    one = jax.tree.map(lambda x: x[1:2], again).write(1, block([5, 6]), block([1, 1]))
    assert held(one) == [[0, 5, 6, 0, 0]], "a single row takes another path"


@pytest.mark.parametrize("rows", [2, 16, 17])
def test_each_row_of_a_cache_is_written_where_it_ends(rows):
    lengths = np.arange(rows) % 4
    cache = KVCache.create(rows, 6, layers=1, heads=2, head_dim=3, dtype=jnp.float32)
    key, value = np.random.default_rng(0).normal(size=[2, rows, 2, 2, 3]).astype(np.float32)
    cache = cache.rewind(jnp.asarray(lengths))
    written = cache.write(0, jnp.asarray(key), jnp.asarray(value))
    for array, block in ((written.keys[0], key), (written.values[0], value)):
        expected = np.zeros([rows, 2, 6, 3], np.float32)
        for row, length in enumerate(lengths):
            expected[row, :, length : length + 2] = block[row].swapaxes(0, 1)
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("tied", [False, True])
def test_a_layout_is_chosen_by_the_bytes_of_real_kernels(tied):
    """Each layer reads its projections, but for the keys and values of cross-attention, and three
    kernels of its MLP; the model reads the biases of positions, and what makes the logits."""
    config = T5Config(37, 8, 3, 5, 7, 1, 2, logits_via_embedding=tied)
    params = T5Target(config).parameter_shapes()
    decoder = params["decoder"]
    layers = [decoder["layers_0"], decoder["layers_1"]]
    read = [layer["self_attention"][x]["kernel"] for layer in layers for x in PROJECTIONS]
    read += [layer["encoder_decoder_attention"][x]["kernel"] for layer in layers for x in CROSS]
    read += [layer["mlp"][x]["kernel"] for layer in layers for x in ("wi_0", "wi_1", "wo")]
    read += [decoder["relpos_bias"]["rel_embedding"]]
    read += [params["token_embedder"]["embedding"] if tied else decoder["logits_dense"]["kernel"]]
    held = Counter(leaf.size * leaf.dtype.itemsize for leaf in read)
    assert _kernels_of_step(T5Target(config)) == dict(held)


@pytest.mark.parametrize(
    "part, attention",
    [
        ("encoder", "attention"),
        ("decoder", "self_attention"),
        ("decoder", "encoder_decoder_attention"),
    ],
)
def test_queries_begin_smaller_than_keys(part, attention):
    """By the square root of a head's size, 16 here, since T5 does not scale the products."""
    sizes = {"emb_dim": 64, "num_heads": 4, "head_dim": 16, "mlp_dim": 64}
    config = T5Config(64, **sizes, num_encoder_layers=1, num_decoder_layers=1)
    kernels = T5Target(config).init(jax.random.key(0))[part]["layers_0"][attention]
    ratio = np.std(kernels["key"]["kernel"]) / np.std(kernels["query"]["kernel"])
    assert 3.6 < ratio < 4.4
