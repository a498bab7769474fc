"""What products take on a device, and what is chosen by it: pytest tests/models/test_device.py"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import device_of, tiny_t5

from specdec.models.layers import int8
from specdec.models.layers.products import (
    FEW,
    INT8_ORDERS,
    ORDERS,
    Kernels,
    Orders,
    product,
    shifted,
)
from specdec.models.placement import device
from specdec.models.placement.device import SIZES, Device
from specdec.models.placement.layouts import Layout
from specdec.models.t5 import T5Target

DEVICES = Path(__file__).resolve().parents[1] / "golden" / "devices"
LARGE = tiny_t5(2048, 1024, 2816, heads=16, head_dim=64, decoder=2)


TINY = device.Size("small", 8, 16, cached=True), device.Size("large", 16, 8, cached=False)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(device.SETTING, raising=False)
    device._this.cache_clear()
    yield tmp_path
    device._this.cache_clear()


@pytest.fixture
def measured():
    return device_of(dict.fromkeys(device.TOKENS, "in_out"))


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 11, 300])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype, wide", [("float32", "float32"), ("int8", "int32")])
def test_a_product_is_the_product(order, tokens, dtype, wide):
    draw = np.random.default_rng(tokens)
    x = draw.integers(-4, 5, [tokens, 12]).astype(dtype)  # whole numbers: nothing is rounded
    kernel = draw.integers(-4, 5, [12, 20]).astype(dtype)
    kept = jnp.asarray(kernel if order == "in_out" else kernel.T)
    found = jax.jit(lambda x, k: product(x, k, order, preferred_element_type=wide))(x, kept)
    assert found.dtype == wide
    np.testing.assert_array_equal(found, x.astype(wide) @ kernel.astype(wide))


@pytest.mark.parametrize(
    "order, tokens, program",
    [
        *(
            ("unsigned", n, [f"s32[20,{n}]{{1,0}} dot(", " u8[20,12]", f" s8[{n},12]"])
            for n in (2, 5, 8, 64)
        ),
        *(
            ("unsigned_many", n, [f"s32[{n + 1},20]{{1,0}} dot(", f"u8[{n + 1},12]"])
            for n in (2, 300)
        ),
    ],
)
def test_unsigned_kernels_are_multiplied_exactly(order, tokens, program):
    """The operands keep their kinds in the compiled program, for which XLA has faster code."""
    draw = np.random.default_rng(tokens)
    x = draw.integers(-127, 128, [tokens, 12], np.int8)
    kernel = draw.integers(-127, 128, [20, 12], np.int8)
    kept = shifted(jnp.asarray(kernel)) if order == "unsigned" else jnp.asarray(kernel)
    if order == "unsigned":
        np.testing.assert_array_equal(int8.signed(kept), kernel)
    found = product(jnp.asarray(x), kept, order)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, x.astype(np.int32) @ kernel.T.astype(np.int32))
    text = str(jax.jit(product, static_argnums=2).lower(x, kept, order).compile().as_text())
    assert all(part in text for part in program)
    assert order != "unsigned" or not re.search(r"= s(8|32)\[20,12\]", text)


def test_the_kernel_stays_the_first_operand():
    """XLA swaps operands to save a transposition: what was measured would not be what runs."""

    def first_operand(order) -> str:
        lowered = jax.jit(product, static_argnums=2).lower(
            jnp.ones([8, 12]), jnp.ones([20, 12]), order
        )
        (result,) = re.findall(r"= f32\[(\d+,\d+)\]\S* dot\(", lowered.compile().as_text())
        return result

    assert first_operand("kernel_first") == "20,8" and first_operand("out_in") == "8,20"


def test_many_tokens_come_first():
    """The result of 1,500 tokens would take long to transpose."""
    x, kernel = jnp.ones([FEW + 1, 12]), jnp.ones([20, 12])
    text = jax.jit(product, static_argnums=2).lower(x, kernel, "kernel_first").as_text()
    assert "tensor<20x" not in text.partition("->")[2].replace("tensor<20x12xf32>", "")


def test_orders_hold_for_calls_of_so_many_tokens():
    kernels = Kernels(True, ((2, "kernel_first"),))
    assert [kernels.order(n) for n in (1, 2, 3)] == ["out_in", "kernel_first", "out_in"]
    assert Kernels().order(2) == "in_out"


def test_this_device_is_measured_once(cache, measured, monkeypatch):
    times = []
    monkeypatch.setattr(device, "measure", lambda int8: times.append(1) or measured)
    assert device.this() is device.this()
    device._this.cache_clear()  # as another process
    assert device.this() == measured and len(times) == 1
    (kept,) = (cache / "specdec" / "devices").iterdir()
    assert kept == device.file()
    kept.write_text("{}")  # damaged, or of another version
    device._this.cache_clear()
    assert device.this() == measured and len(times) == 2


def test_what_was_measured_beside_others_is_measured_again_without_them(
    cache, measured, monkeypatch
):
    now, times = [3.0], []

    def measure(int8):
        times.append(now[0])
        return dataclasses.replace(measured, load=now[0])

    monkeypatch.setattr(device, "load", lambda: now[0])
    monkeypatch.setattr(device, "measure", measure)
    for now[0] in (3.0, 2.0, 0.1, 0.0, 3.0):
        device._this.cache_clear()
        device.this()
    assert times == [3.0, 0.1]
    assert not json.loads(device.file().read_text())["load"] > device.BUSY


def test_a_cache_that_cannot_be_written_is_none(cache, measured, monkeypatch):
    (cache / "specdec").write_text("a file")
    monkeypatch.setattr(device, "measure", lambda int8: measured)
    assert device.this() is measured


def test_another_machine_is_measured_again(cache, monkeypatch):
    before = device.file()
    monkeypatch.setattr(device.environment, "_cpuinfo", lambda name: "avx512f avx2")
    assert device.file() != before and device.about()["features"] == ["avx2", "avx512f"]


def test_one_setting_overrides_it(cache, monkeypatch):
    monkeypatch.setattr(device, "measure", lambda int8: pytest.fail("measured"))
    file = cache / "mine.json"
    file.write_text(json.dumps(device_of(dict.fromkeys(device.TOKENS, "in_out")).as_json()))
    monkeypatch.setenv(device.SETTING, str(file))
    assert T5Target(LARGE).laid_out({1: 1.0}) == T5Target(LARGE, layout=Layout("in_out"))
    monkeypatch.setenv(device.SETTING, "stored")
    assert T5Target(LARGE, layout=Layout("in_out")).laid_out({1: 1.0}) == T5Target(LARGE)


def test_only_cpus_are_measured(cache, monkeypatch):
    monkeypatch.setattr(device, "measure", lambda int8: pytest.fail("measured"))
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert device.this() is None


@pytest.mark.parametrize(
    "text", [None, "", "{}", '{"format": 0}', '{"format": 2, "about": {}}', "[]"]
)
def test_a_file_that_holds_no_device_is_named(text, tmp_path, monkeypatch):
    file = tmp_path / "device.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv(device.SETTING, str(file))
    message = f"^{device.SETTING} is {re.escape(str(file))}, which holds no measured device; give "
    with pytest.raises(ValueError, match=message):
        device.this()


def test_products_in_eight_bits_are_measured_when_they_are_needed(cache, measured, monkeypatch):
    times = []
    monkeypatch.setattr(device, "measure", lambda int8: times.append(int8) or measured)
    for _ in range(2):
        T5Target(LARGE).laid_out({1: 1.0})
    for _ in range(2):
        T5Target(LARGE, weights="int8_tokens").laid_out({1: 1.0})
    assert times == [False, True]
    assert device.file() != device.file(int8=True)


@pytest.mark.parametrize("rounded", [False, True])
def test_a_measurement_has_all_and_comes_back_from_its_file(rounded, tmp_path, monkeypatch):
    monkeypatch.setattr(device, "TOKENS", (1, 2))
    monkeypatch.setattr(device, "SIZES", TINY)
    one = device.measure(int8=rounded)
    names = {*ORDERS, *(device.INT8 + order for order in INT8_ORDERS if rounded)}
    assert one.milliseconds.keys() == {size.name for size in TINY}
    for times in one.milliseconds.values():
        assert times.keys() == names
        assert all(tuple(each) == (1, 2) and min(each.values()) > 0 for each in times.values())
    file = tmp_path / "device.json"
    file.write_text(json.dumps(one.as_json()))
    assert device.read(file) == one
    if rounded:
        narrow, times = one.in_int8(), one.milliseconds["small"]
        assert narrow is not None
        assert narrow.milliseconds["small"] == {o: times[device.INT8 + o] for o in INT8_ORDERS}


def test_large_kernels_come_from_memory(monkeypatch):
    """Not from a server's cache, which has room for two kernels and not for those of a model."""
    large, fed = TINY[1], []
    real = device._program

    def program(kernels, size, name, tokens):
        found = real(kernels, size, name, tokens)
        fed.extend((size, name, x, k) for x, k in found[1])
        return found

    monkeypatch.setattr(device, "_program", program)
    monkeypatch.setattr(device, "SIZES", TINY)
    monkeypatch.setattr(device, "ROUNDS", 1)
    device.measure(int8=True)
    own = [id(kernel) for size, *_, kernel in fed if size is large]
    assert len(own) == len(set(own)) == 2 * (4 * 3 + 3 * 4)  # orders times tokens, both types
    for _, name, x, kernel in fed:
        wanted = ("int8", "uint8" if name == "int8_unsigned" else "int8")
        types = wanted if name.startswith("int8_") else ("float32", "float32")
        assert (x.dtype, kernel.dtype) == types


def test_the_least_time_of_each_product_is_kept_in_milliseconds(monkeypatch):
    """Programs run in turn; one token in eight bits is computed as two."""
    tokens, sizes = (1, 2, 8), TINY[1:]
    keys = [(name, n) for name in ORDERS for n in tokens]
    keys += [(device.INT8 + name, n) for name in INT8_ORDERS for n in (2, 8)]
    now, calls = [0.0], itertools.count()

    def perf_counter():
        call = next(calls)
        if call % 2:  # the end of a run
            turn, program = divmod(call // 2, len(keys))
            now[0] += (1 + program) * (3, 1, 2)[turn] / 1e3
        return now[0]

    clock = types.SimpleNamespace(perf_counter=perf_counter)
    for name, value in {"TOKENS": tokens, "SIZES": sizes, "ROUNDS": 3, "time": clock}.items():
        monkeypatch.setattr(device, name, value)
    found = device.measure(int8=True).milliseconds["large"]
    least = {key: 1.0 + i for i, key in enumerate(keys)}
    expected = {
        name: {n: least.get((name, n)) or least[name, 2] for n in tokens} for name, _ in keys
    }
    assert found == {name: pytest.approx(times) for name, times in expected.items()}
    # Four places are kept: 0.30006 ms.
    monkeypatch.setattr(device, "_program", lambda *given: (lambda _: (), None))
    moments = itertools.count()
    clock.perf_counter = lambda: next(moments) * 0.30006e-3
    (kept,) = {x for x in device._measured(sizes[0], ["in_out"])["in_out"].values()}
    assert kept == 0.3001


def test_load_is_of_each_core(monkeypatch):
    monkeypatch.setattr(device.environment, "load_average", lambda: 3.0)
    monkeypatch.setattr(device.os, "cpu_count", lambda: 4)
    assert device.load() == 0.75


def test_a_measurement_without_an_order_is_made_again(cache, monkeypatch):
    monkeypatch.setattr(device, "load", lambda: 0.0)
    times = {order: {1: 1.0} for order in device._names(int8=True)}
    full = Device({}, {size.name: times for size in SIZES})
    older = {name: x for name, x in times.items() if name != "int8_unsigned"}
    kept, made = device.file(int8=True), []
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps(Device({}, {size.name: older for size in SIZES}).as_json()))
    monkeypatch.setattr(device, "measure", lambda int8: made.append(int8) or full)
    for _ in range(2):
        device._this.cache_clear()
        assert device.this(int8=True) == full
    assert made == [True]


@pytest.mark.parametrize("calls, layout", [({1: 1.0}, "out_in"), ({8: 1.0}, "unsigned")])
def test_unsigned_kernels_are_chosen_where_they_are_faster(calls, layout):
    times = {
        **dict.fromkeys(("in_out", "out_in"), {1: 9.0, 8: 9.0}),
        **dict.fromkeys(("int8_in_out", "int8_out_in"), {1: 1.0, 8: 3.0}),
        "int8_unsigned": {1: 2.0, 8: 2.0},
    }
    one = Device({}, {size.name: times for size in SIZES})
    found = T5Target(LARGE, weights="int8_tokens").laid_out(calls, one)
    assert found.layout == Layout(layout)
    assert T5Target(LARGE).laid_out(calls, one).layout.storage != "unsigned"


@pytest.mark.parametrize(
    "step, prefill, layout",
    [
        (1.5, 20.0, "unsigned"),  # 0.5 more in a step, and (40 - 20) / 32 less for its prefill
        (1.5, 30.0, "out_in"),  # (40 - 30) / 32 less
        (0.9, 60.0, "out_in"),  # 0.1 less in a step, and (60 - 40) / 32 more
        (0.9, 42.0, "unsigned"),  # (42 - 40) / 32 more
    ],
)
def test_what_unsigned_kernels_save_in_prefill_counts_for_them(step, prefill, layout):
    """A prefill of 64 tokens is for 32 calls. A device adds in proportion to a kernel's bytes."""
    times = {
        **dict.fromkeys(("in_out", "out_in"), {1: 9.0, 64: 99.0}),
        "int8_in_out": {1: 2.0, 64: 40.0},
        "int8_out_in": {1: 1.0, 64: 50.0},
        "int8_kernel_first": {1: 3.0, 64: 10.0},  # not for prefill
        "int8_unsigned": {1: step, 64: prefill},
    }
    one = Device({}, {size.name: times for size in SIZES})
    model = T5Target(LARGE, weights="int8_tokens")
    for often in (1.0, 7.0):
        found = model.laid_out({1: often}, one)
        assert found.layout == Layout(layout)


@pytest.mark.parametrize(
    "int8, calls, widened",
    [
        ({1: 0.5, 8: 0.5}, {1: 1.0}, False),
        ({1: 0.5, 8: 0.5}, {8: 1.0}, False),
        ({1: 9.0, 8: 0.5}, {1: 1.0}, True),
        ({1: 2.0, 8: 0.5}, {1: 1.0, 8: 9.0}, False),
        ({}, {8: 1.0}, True),
    ],
    ids=str,
)
def test_eight_bits_are_widened_where_they_are_no_faster(int8, calls, widened):
    times = {"in_out": {1: 3.0, 8: 3.0}, "out_in": {1: 1.0, 8: 1.0}}
    if int8:
        times |= {f"int8_{order}": int8 for order in ("in_out", "out_in")}
    one = Device({}, {size.name: times for size in SIZES})
    found = T5Target(LARGE, weights="int8_tokens").laid_out(calls, one)
    assert found.layout == Layout("out_in", widened=widened)
    assert not T5Target(LARGE).laid_out(calls, one).layout.widened


def test_a_description_says_that_int8_is_kept_in_float():
    orders: Orders = ((1, "kernel_first"), (8, "kernel_first"))
    assert str(Layout("out_in", orders)) == "out_in, kernel_first at 1 and 8 tokens"
    assert str(Layout("in_out", widened=True)) == "in_out, int8 kept in float, which is faster here"
    paired = Layout(joined=True, least_width=2)
    assert str(paired) == "checkpoint, calls on 2 tokens or more, joined kernels"
    assert str(Layout(fused="triton")).endswith("fused kernels for calls on one row")


def test_times_are_by_kernel_and_tokens():
    times = {"in_out": {1: 1.0, 2: 3.0, 4: 4.0, 8: 8.0}, "out_in": {1: 2.0, 8: 2.0}}
    times["kernel_first"] = {1: 1.0, 4: 3.0, 8: 5.0}
    slow = {order: {n: 10 * x for n, x in each.items()} for order, each in times.items()}
    one = Device({}, {"small": slow, "large": times})
    whole = SIZES[1].bytes
    assert one.seconds(whole, 1, "in_out") == pytest.approx(1e-3)
    assert one.seconds(whole, 3, "in_out") == pytest.approx(3.5e-3)
    assert one.seconds(whole, 4, "kernel_first") == pytest.approx(3e-3)
    assert one.seconds(whole, 5, "kernel_first") == pytest.approx(5e-3)  # filled up to 8
    assert one.seconds(whole // 2, 64, "in_out") == pytest.approx(4e-3)
    # Kernels of 2 MiB count as large, and smaller ones as small.
    assert one.seconds(2**21, 1, "in_out") == pytest.approx(1e-3 * 2**21 / (2 * 4 * 1024 * 2816))
    assert one.seconds(2**20, 1, "in_out") == pytest.approx(1e-2 * 2**20 / (2 * 4 * 256 * 1024))
    assert one.fastest({whole: 2}, 4) == (pytest.approx(4e-3), "out_in")
    assert one.fastest({whole: 2}, 1) == (pytest.approx(2e-3), "in_out")
    assert one.fastest({whole: 2}, 1, ["out_in"]) == (pytest.approx(4e-3), "out_in")


@pytest.mark.parametrize(
    "name, calls, layout, orders",
    [
        ("epyc_avx2", {1: 1.0}, "all_out_in", ...),
        ("epyc_avx2", {8: 1.0}, "all_out_in", ((8, "kernel_first"),)),
        ("epyc_avx2", {2: 1.0, 1: 6.0}, "all_out_in", ...),
        ("epyc_avx512", {1: 1.0}, "out_in", ...),
        ("epyc_avx512", {8: 1.0}, "in_out", ()),
        ("epyc_avx512", {5: 1.0}, "in_out", ()),
    ],
)
def test_what_recorded_devices_choose(name, calls, layout, orders):
    """Of T5-large's sizes: one order serves every width with AVX2, with AVX-512 it does not."""
    target = T5Target(LARGE).laid_out(calls, device.read(DEVICES / f"{name}.json"))
    assert target.layout.storage == layout and orders in (..., target.layout.orders)


@pytest.mark.parametrize(
    "layout, weights, widened, step, prefill",
    [
        ("checkpoint", "stored", False, (False, None), (False, None)),
        ("in_out", "stored", False, (False, None), (False, None)),
        ("out_in", "stored", False, (True, None), (False, None)),
        ("all_out_in", "stored", False, (True, None), (True, "kernel_first")),
        ("all_out_in", "int8", True, (True, None), (True, "kernel_first")),
        ("all_out_in", "int8_tokens", False, (True, None), (True, "out_in")),
        ("all_out_in", "int8_tokens", True, (True, None), (True, "kernel_first")),
        ("unsigned", "int8_tokens", False, (True, "unsigned"), (True, "unsigned_many")),
    ],
)
def test_kernels_of_a_layout(layout, weights, widened, step, prefill):
    """Whether they are transposed, and the order of products; chosen orders are those of a step."""
    orders = () if layout == "unsigned" else ((3, "out_in"),)
    rounded = weights != "stored", weights == "int8_tokens", widened
    expected = (
        Kernels(step[0], orders, step[1], *rounded),
        Kernels(prefill[0], (), prefill[1], *rounded),
    )
    assert Layout(layout, orders, widened).kernels(weights) == expected
