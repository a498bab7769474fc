"""The reports of `specdec compile` of records that were made by hand: pytest tests/predict

The files compiled.txt, compiled.md, updated.txt and updated.md have what they say. No two figures
are alike, and none is the same in another unit.
"""

from __future__ import annotations

import dataclasses
import json
import types
from pathlib import Path
from typing import Any

import jax
import pytest

from specdec.common.records import as_json
from specdec.models import partitioning
from specdec.plan import Plan
from specdec.predict import hlo, update_report
from specdec.predict.compilation import Compilation, Compiled, DeviceMemory
from specdec.predict.compile_record import ProgramMemory, contents, memory_of, record
from specdec.predict.compile_report import explanation, lines, markdown
from specdec.predict.hardware import CHIPS, GIB, Call, Topology
from specdec.predict.update import CompiledUpdate, Sizes, abstract_pairs
from specdec.predict.update_report import update_lines, update_markdown, update_record
from specdec.sampling import Greedy
from specdec.testing import TableTarget

MIB = 2**20
CHIP = {"memory": 32 * GIB, "bandwidth": 1.2e12, "flops": 2.5e14}
CHIP |= {"int8": 3e14, "link": 5e10, "host": [2, 2, 1]}


def loop(name: str, trips: int | None = None, *inner: dict) -> dict:
    return {"name": name, "trip_count": trips, "loops": [*inner]}


def kind(count: int, bytes: float) -> dict:
    return {"count": count, "bytes": int(bytes)}


DECODE = {
    "collectives": {
        "": {"all-reduce": kind(5, 3 * MIB)},
        "decode": {"all-reduce": kind(10, 0.5 * MIB), "all-gather": kind(1, 0.25 * MIB)},
    },
    "operations": {"": 40, "decode": 70, "decode/draft": 30},
    "top_k": {"decode": {"f32[4,512]": kind(2, 8192)}},
    "largest": {
        "": {"shape": "f32[9]", "bytes": 36},
        "decode": {"shape": "bf16[1,8,64]", "bytes": 1.5 * MIB},
    },
    "host_transfers": 3,
    "dynamic_shapes": 2,
    "sparse_core": {
        "decode": {"gather": kind(2, 64)},
        "": {"gather": kind(1, 8), "copy": kind(3, 9)},
    },
    "loops": [loop("decode", None, loop("draft", 3), loop("draft", 3)), loop("encode", 12)],
}
# Seconds. v is of drafts of 0, 1 and 2 tokens, and speed-ups are of 1 and 2.
ROOFLINE = {
    "layer_seconds": 0.0,
    "target": 0.004,
    "draft": 0.0005,
    "iteration": 0.008,
    "cost_ratio": 0.125,
    "verify_cost": [1.0, 1.25, 1.5],
    "speedups": {"0.5": [1.1, 1.2], "paper": [1.3, 1.4]},
}
LAYERS = {
    "layer_seconds": 1.4e-5,
    "target": 0.005,
    "draft": 0.001,
    "iteration": 0.01,
    "cost_ratio": 0.2,
    "verify_cost": [1.0, 1.125, 1.75],
    "speedups": {"0.5": [1.6, 1.7], "paper": [1.8, 1.9]},
}
WHOLE: dict[str, Any] = {
    "topology": "v4:2x2x1",
    "devices": 4,
    "mesh": {"data": 2, "model": 2},
    "chip": CHIP,
    "rows": 6,
    "memory": {
        "parameters": 8 * GIB,
        "caches": 1 * GIB,
        "limit": 32 * GIB,
        "fits": True,
        "total": 13 * GIB,
        "left": 19 * GIB,
        "temporaries": 4 * GIB,
        "code": GIB // 4,
    },
    "compile_seconds": {"decode": 81.2, "target 1": 7.6},
    "programs": {"decode": DECODE},
    "gamma": 2,
    "alphas": {"0.5": 0.5, "paper": 0.8},
    "roofline": ROOFLINE,
    "with_layers": LAYERS,
    "compiler": {
        "parts": {
            "target 1": {"cycles": 12345, "fusions": 40, "fusions_per_layer": 4.5, "kernels": 0},
            "draft 1": {"cycles": 678, "fusions": 9, "fusions_per_layer": None, "kernels": 1},
        },
        "cost_ratio": 0.07,
        "verify_cost": 1.375,
        "speedups": {"0.5": 2.25, "paper": 2.75},
    },
    "exits": [
        {"layers": 3, "seconds": [0.0011, 0.0012], "speedup": [3.1, 3.2]},
        {"layers": 12, "seconds": [0.0043, 0.0044], "speedup": [0.95, 0.96]},
    ],
}
BEAMS: dict[str, Any] = {
    **{name: WHOLE[name] for name in ("devices", "mesh", "chip", "compile_seconds")},
    "topology": "v5e:2x2",
    "rows": 1,
    "memory": {
        "parameters": 20 * GIB,
        "caches": 3 * GIB,
        "limit": 16 * GIB,
        "fits": False,
        "total": 25 * GIB,
        "left": -9 * GIB,
        "temporaries": 4 * GIB,
        "code": GIB // 2,
    },
    "programs": {},
    "beams_predicted": [
        {"layer_seconds": 0.0, "step": 0.002, "iteration": 0.005, "pays_from": 2.5},
        {"layer_seconds": 1.4e-5, "step": 0.003, "iteration": 0.009, "pays_from": 3.0},
    ],
}
LARGE: dict[str, Any] = {
    **{name: BEAMS[name] for name in ("devices", "mesh", "chip", "compile_seconds", "programs")},
    "topology": "v6e:1x1",
    "rows": 2,
    "memory": {
        "parameters": 40 * GIB,
        "caches": 5 * GIB,
        "limit": 31 * GIB,
        "fits": False,
        "too_large": "Used 47.00G of 31.00G hbm",
    },
}


UPDATE: dict[str, Any] = {
    "topology": "v4:2x2x2",
    "devices": 8,
    "mesh": {"data": 4, "model": 2},
    "chip": CHIP,
    "texts": 64,
    "micro_batches": 4,
    "inputs": 128,
    "targets": 32,
    "target_dtype": "bfloat16",
    "memory": {
        "parameters": 1 * GIB,
        "optimizer": 2 * GIB,
        "gradients": 3 * GIB,
        "target": 5 * GIB,
        "target_cache": 6 * GIB,
        "target_logits": 7 * GIB,
        "limit": 32 * GIB,
        "fits": True,
        "total": 21 * GIB,
        "left": 11 * GIB,
        "temporaries": 9 * GIB,
        "code": GIB // 2,
    },
    "compile_seconds": {"update": 95.4},
    "collectives": {"all-reduce": kind(1200, 33 * MIB), "all-gather": kind(17, 4 * MIB)},
    "gathered_target_parameters": ["bf16[8,4]"],
    "roofline": {
        "computing": 0.25,
        "reading": 0.15,
        "exchanging": 0.0625,
        "seconds": 0.3125,
        "updates_per_second": 3.2,
        "texts_per_second": 204.8,
        "chip_hours_per_1000_updates": 0.6944,
    },
    "largest": {"texts_at_a_time": 24, "memory": {"total": 30 * GIB}},
}
TOO_LARGE: dict[str, Any] = {
    **{name: UPDATE[name] for name in ("devices", "mesh", "chip", "inputs", "targets")},
    "topology": "v5e:2x4",
    "texts": 1,
    "micro_batches": 1,
    "target_dtype": None,
    "memory": {
        "parameters": 10 * GIB,
        "optimizer": 20 * GIB,
        "target": 0,
        "limit": 16 * GIB,
        "fits": False,
        "too_large": "Used 38.00G of 16.00G hbm",
    },
    "compile_seconds": {"update": 3.0},
    "advice": "an update needs 38.00 GiB of 16.00 GiB; give more chips",
}


def golden(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def test_the_report_of_programs():
    records: list[Any] = [WHOLE, BEAMS, LARGE]
    assert "".join(f"{line}\n" for one in records for line in lines(one)) == golden("compiled.txt")
    assert markdown(records) == golden("compiled.md")


BARE: Any = {
    **{name: WHOLE[name] for name in ("topology", "devices", "mesh", "chip", "rows")},
    "memory": {"parameters": 4 * GIB, "caches": GIB, "limit": 5 * GIB, "too_large": "no room"},
    "compile_seconds": {"draft 1": 3.6},
    "programs": {},
}
EMPTY = {
    **{name: {} for name in ("collectives", "operations", "largest", "sparse_core")},
    **{"host_transfers": 0, "dynamic_shapes": 0, "loops": []},
    "top_k": {"": {"f32[9]": kind(1, 36)}},
}


def test_a_program_that_does_not_fit():
    """It is too much for the device, or the compiler refused it and knows no sizes."""
    assert list(lines(BARE)) == [
        "v4:2x2x1: 4 devices (2 data x 2 model) of 32.00 GiB at 1,200 GB/s, 250 TFLOP/s in "
        "bfloat16",
        "  memory      does not fit: no room; parameters 4.00 GiB, caches 1.00 GiB",
        "  compiled    in seconds, draft 1: 4",
    ]
    sizes = {"fits": False, "total": 6 * GIB, "left": -GIB, "temporaries": 3 * GIB, "code": GIB}
    larger = BARE | {"memory": BARE["memory"] | sizes}
    assert list(lines(larger))[1] == (
        "  memory      6.00 GiB of 5.00 GiB, 1.00 GiB too much (parameters 4.00 GiB, caches 1.00 "
        "GiB, other temporaries 2.00 GiB, code 1.00 GiB)"
    )
    assert markdown([BARE, larger]).splitlines()[2:4] == [
        "| v4:2x2x1 | 2 x 2 | 6 | 4.00 GiB | 1.00 GiB | no room | 5.00 GiB | does not fit |",
        "| v4:2x2x1 | 2 x 2 | 6 | 4.00 GiB | 1.00 GiB | 6.00 GiB | 5.00 GiB | -1.00 GiB |",
    ]


def test_a_program_without_anything():
    bare = BARE | {"programs": {"decode": EMPTY | {"top_k": {}}}}
    assert list(lines(bare))[3:] == [
        "  no loop     no collectives",
        "  loops       none",
        "  operations  ",
        "  also        0 host transfers, 0 dynamic shapes, 0 on a SparseCore",
    ]


def test_a_legend_has_what_records_have():
    def firsts(*records: Any) -> list[str]:
        return [line.split(":")[0] for line in explanation(records)]

    bare = {"programs": {}}
    own = ["", "memory", "no loop, or the name of a loop", "operations"]
    assert firsts(bare) == own[:2]
    assert firsts(bare, {"programs": {"decode": EMPTY | {"top_k": {}}}}) == own
    assert firsts({"programs": {"decode": EMPTY}, "paths": 2}) == [*own, "top-k", "paths"]
    assert firsts(bare | {"exits": []}) == [*own[:2], "roofline", "exits"]
    assert firsts(bare | {"beams_predicted": []}) == [*own[:2], "roofline", "beams"]
    assert firsts(bare | {"compiler": {}}) == [*own[:2], "compiler"]
    predicted = bare | {"gamma": 2, "roofline": {}}
    assert firsts(predicted) == [*own[:2], "roofline", "c", "tokens/s", "speed-up"]
    (line,) = (x for x in explanation([predicted]) if x.startswith("c: "))
    assert line.endswith("a draft of 2 / seconds of a target call on 1 token")


def test_kernels_without_cycles_are_counted():
    part = {"cycles": 4321, "fusions": 4, "fusions_per_layer": None, "kernels": 2}
    other = BARE | {"compiler": {"parts": {"draft 1": part}, "cost_ratio": None}}
    assert list(lines(other))[3:] == [
        "  compiler    draft 1: 4,321 cycles, 4 fusions, 2 Pallas kernels without cycles"
    ]
    assert markdown([other]).splitlines()[-5:] == [
        "v4:2x2x1: the compiler's estimate, not a time.",
        "",
        "| program | cycles | fusions | fusions in a decoder layer |",
        "|---|---:|---:|---:|",
        "| draft 1 | 4,321 | 4 |  |",
    ]


@pytest.mark.parametrize(
    "texts, model, rematerialise, parameters, remedies",
    [
        (
            *(3, 2, False, 8),
            "more MICRO_BATCHES (now 4, at most 16), a smaller BATCH_SIZE (now 32), "
            "REMATERIALISE = True, more NUM_PARTITIONS (now 2) or more chips",
        ),
        (2, 2, False, 8, "REMATERIALISE = True, more NUM_PARTITIONS (now 2) or more chips"),
        (
            4,
            4,
            True,
            8,
            "more MICRO_BATCHES (now 4, at most 16), a smaller BATCH_SIZE (now 32) or more chips",
        ),
        (4, 2, False, 30, "more NUM_PARTITIONS (now 2) or more chips"),
        (4, 4, False, 30, "more chips"),
    ],
)
def test_remedies_for_an_update_that_does_not_fit(
    monkeypatch, texts, model, rematerialise, parameters, remedies
):
    """Parameters that alone need more than a chip's 30.75 GiB are not helped by smaller batches."""
    run = types.SimpleNamespace(batch_size=32, micro_batches=4, rematerialise=rematerialise)
    sizes = types.SimpleNamespace(fixed=(parameters + 1) * GIB)
    update: Any = types.SimpleNamespace(
        run=run, sizes=sizes, texts=texts, mesh={"data": 2, "model": model}
    )
    monkeypatch.setattr(update_report, "needed", lambda update: 40 * GIB)
    assert update_report.advice(Topology.parse("v4:2x2x1"), update) == (
        f"an update needs 40.00 GiB of 30.75 GiB; give {remedies}"
    )


def test_the_report_of_updates():
    records: list[Any] = [UPDATE, TOO_LARGE]
    text = "".join(f"{line}\n" for one in records for line in update_lines(one))
    assert text == golden("updated.txt")
    assert update_markdown(records) == golden("updated.md")


def instruction(opcode: str, shape: str, size: int, *loops: str, **fields: Any) -> hlo.Instruction:
    made = {"scope": "", "fused": False, "operand": ""} | fields
    return hlo.Instruction(opcode, "", shape, size, loop=loops, **made)


def test_the_contents_of_a_program():
    """The largest array of each loop is shown. Equal instructions are counted and summed."""
    reduce, gather = "all-reduce", "all-gather"
    best = {"scope": "jit(f)/top_k", "operand": "f32[4,512]"}
    operations = (
        instruction("fusion", "f32[2]", 8, "decode"),
        instruction("fusion", "f32[4]", 16, "decode"),
        instruction("fusion", "f32[3]", 12, "decode"),
        instruction("fusion", "f32[7]", 28),
        instruction("sort", "f32[5]", 4, "decode", "draft", **best),
        instruction("fusion", "f32[6]", 2, "decode", "draft", **best),  # no sort
    )
    collectives = (
        instruction(reduce, "f32[8]", 32, "decode"),
        instruction(reduce, "f32[16]", 64, "decode"),
        instruction(gather, "f32[1]", 4, "decode"),
        instruction(reduce, "f32[2]", 8),
    )
    copies = (
        instruction("copy", "f32[9]", 36),
        instruction("copy", "f32[9]", 36),
        instruction("copy", "f32[9]", 36, fused=True),
    )
    module = hlo.Module(
        (hlo.Loop("decode", 7, (hlo.Loop("draft", None, ()),)),),
        operations,
        collectives,
        copies,
        (),
        (copies[0],) * 3,
        (copies[0],) * 2,
        (),
    )
    memory = DeviceMemory(100, 20, 30, 4, 5)
    made = contents(Compiled("decode", 1.5, memory, module, flops=1e9, accessed=2e9))
    found = json.loads(as_json(dataclasses.asdict(made)))
    assert found == {
        "memory": dataclasses.asdict(memory),
        "collectives": {
            "decode": {reduce: kind(2, 96), gather: kind(1, 4)},
            "": {reduce: kind(1, 8)},
        },
        "copies": {"": {"f32[9]": kind(2, 72)}},
        "operations": {"decode": 3, "": 1, "decode/draft": 2},
        "top_k": {"decode/draft": {"f32[4,512]": kind(1, 4)}},
        "largest": {
            "decode/draft": {"shape": "f32[5]", "bytes": 4},
            "decode": {"shape": "f32[4]", "bytes": 16},
            "": {"shape": "f32[7]", "bytes": 28},
        },
        "host_transfers": 3,
        "dynamic_shapes": 2,
        "sparse_core": {},
        "loops": [loop("decode", 7, loop("draft"))],
        "flops": 1e9,
        "accessed": 2e9,
    }
    assert memory.total == 100 + 20 + 30 + 4 - 5


class Half(TableTarget):
    dtype = "bfloat16"  # type: ignore[assignment]


@pytest.mark.parametrize("left", [10 * GIB, 1, 0, -GIB, None])
def test_the_memory_that_is_left(left):
    """A v4 has 30.75 GiB for a program, and a plan's caches are among its temporaries."""
    plan = Plan(Half(6), None, None, None, Greedy(), max_length=32)
    limit = int(30.75 * GIB)
    parts, memory, too_large = {}, None, "no room"
    if left is not None:
        sizes = {"arguments": 3 * GIB, "outputs": 0, "temporaries": limit - 4 * GIB - left}
        parts, too_large = sizes | {"code": GIB, "donated": 0}, None
        memory = DeviceMemory(**parts)
    whole = Compiled("decode", 2.25, memory, too_large=too_large)
    shape = {"rows": 2, "length": 64, "mesh": {"data": 1, "model": 4}, "parts": {}, "calls": {}}
    made = Compilation(plan, program=whole, parameter_bytes=3 * GIB, cache_bytes=5 * GIB, **shape)
    told = record(Topology.parse("v4:2x2x1"), made, {})
    assert (
        told.pop("chip")
        and told.pop("assumed")
        and told
        == {
            "topology": "v4:2x2x1",
            "devices": 4,
            "mesh": {"data": 1, "model": 4},
            "memory": {
                **{"parameters": 3 * GIB, "caches": 5 * GIB, "limit": limit},
                **({"fits": False, "too_large": too_large} if left is None else {"fits": left > 0}),
                **({} if left is None else parts | {"total": limit - left, "left": left}),
            },
            "compile_seconds": {"decode": 2.2},
            "programs": {},
            "dtype": "bfloat16",
            "rows": 2,
            "inputs": 64,
            "outputs": 32,
            "gamma": 0,
            "calls": {},
        }
    )


def test_the_time_of_an_update():
    """With three micro-batches, a loop counts three times and the optimizer once.

    A v4 computes 275 TFLOP/s and reads 1.228 TB/s.
    """
    chip = CHIPS["v4"]
    inside, outside = ("all-reduce", "f32[8]", 32, "scan"), ("all-gather", "f32[4]", 16)
    collectives = instruction(*inside), instruction(*inside), instruction(*outside)
    module = hlo.Module((), (), collectives, (), (), (), (), ())
    memory = DeviceMemory(GIB, 0, GIB, 0, 0)
    whole = Compiled("update", 9.96, memory, module, flops=5e13, accessed=3e11)
    optimizer = Compiled("optimizer", 1.04, memory, None, flops=2e13, accessed=1e11)
    run: Any = types.SimpleNamespace(
        batch_size=48,
        micro_batches=3,
        lengths={"inputs": 12, "targets": 10},
        rematerialise=False,
        model=types.SimpleNamespace(dtype="bfloat16"),
        target=None,
    )
    sizes = Sizes(GIB, 2 * GIB, 3 * GIB, 4 * GIB, 5 * GIB, 6 * GIB)
    mesh = {"data": 2, "model": 2}
    update = CompiledUpdate(run, mesh, whole, optimizer, sizes, frozenset())
    found = update_record(Topology.parse("v4:2x2x1"), update, update)
    assert found["dtype"] == "bfloat16" and found["target_dtype"] is None
    assert found["collectives"] == {"all-reduce": kind(6, 192), "all-gather": kind(1, 16)}
    computing, reading = (5e13 + 2 * 3e13) / chip.flops, (3e11 + 2 * 2e11) / chip.bandwidth
    assert reading > computing > 0.3
    made = found["roofline"]
    assert made["computing"] == pytest.approx(computing)
    assert made["reading"] == pytest.approx(reading)
    assert made["seconds"] == pytest.approx(reading + made["exchanging"])
    call = Call(0, 0, 0, reductions=6, reduced=192, gathers=1, gathered=16, devices=4)
    assert made["exchanging"] == pytest.approx(call.seconds(chip, 1)) and made["exchanging"] > 0
    assert made["updates_per_second"] == pytest.approx(1 / made["seconds"])
    assert made["texts_per_second"] == pytest.approx(48 / made["seconds"])
    hours = 1000 * made["seconds"] * 4 / 3600
    assert made["chip_hours_per_1000_updates"] == pytest.approx(hours)
    assert found["largest"]["texts_at_a_time"] == 16
    assert found["compile_seconds"] == {"update": 10.0, "optimizer": 1.0}
    memory_of = {name: size // GIB for name, size in found["memory"].items() if name != "fits"}
    expected = {"parameters": 1, "optimizer": 2, "gradients": 3, "target": 4, "target_cache": 5}
    assert memory_of.items() >= (expected | {"target_logits": 6, "total": 2, "left": 28}).items()


def test_the_memory_of_a_program_on_a_device():
    """A v4 has 30.75 GiB, and a program that takes all of it does not fit."""
    v4, limit = Topology.parse("v4:2x2x1"), 123 * GIB // 4
    refused = Compiled("decode", 1.0, None, None, too_large="no room")
    assert memory_of({"parameters": 5}, refused, v4, 7.0) == ProgramMemory(
        parameters=5, limit=limit, too_large="no room", needed=7.0
    )
    for left in (0, 1):
        sizes = DeviceMemory(limit - left - 3, 1, 4, 2, 4)  # the last are donated
        found = memory_of({"caches": 6}, Compiled("decode", 1.0, sizes, None), v4)
        assert (found.caches, found.limit, found.total) == (6, limit, limit - left)
        assert (found.left, found.fits) == (left, left == 1)


@pytest.mark.parametrize(
    "name, tflops, int8, bandwidth, gib, link, host, devices",
    [
        ("v4:2x2x1", 275, 275, 1228, 30.75, 50, (2, 2, 1), 4),
        ("v5e:2x4", 197, 394, 819, 15.75, 50, (2, 4, 1), 8),
        ("v5p:2x2x1", 459, 918, 2765, 95.74, 100, (2, 2, 1), 4),
        ("v6e:2x4", 918, 1836, 1640, 31.25, 100, (2, 4, 1), 8),
        ("tpu7x:2x2x1", 1153.5, 1153.5, 3690, 94.75, 100, (2, 2, 1), 8),  # a chip is two devices
    ],
)
def test_chips_of_a_topology(name, tflops, int8, bandwidth, gib, link, host, devices):
    """As Cloud TPU's documentation has them; memory is what the compiler gives to programs."""
    found = Topology.parse(name)
    chip = found.chip
    assert (chip.flops, chip.int8) == (tflops * 1e12, int8 * 1e12)
    assert (chip.bandwidth, chip.link, chip.host) == (bandwidth * 1e9, link * 1e9, host)
    assert chip.memory == int(gib * GIB) and found.device_count == devices
    cores = "megacore" if name[:3] in ("v4:", "v5p") else None
    assert (chip.cores, found.size) == (cores, devices // chip.devices)


@pytest.mark.parametrize("top", [None, 7])
def test_shapes_of_the_widest_batch(top):
    """Laws have one probability more than ids, that of all others."""
    run: Any = types.SimpleNamespace(
        batch_size=6,
        lengths={"inputs": 5, "targets": 4},
        objective=types.SimpleNamespace(top=top),
        reader=TableTarget(9),
    )
    found = abstract_pairs(run, partitioning.make_mesh(1, jax.devices()[:1]))
    shapes = [(x.shape, x.dtype.name) for x in jax.tree.leaves(found)]
    laws = [((6, 4, 7), "int32"), ((6, 4, 8), "float32")] if top else []
    assert shapes == [((6, 5), "int32"), ((6, 4), "int32"), *laws]
