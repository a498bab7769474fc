"""Reports of programs that lack something: pytest tests/predict/test_compile_lines.py"""

from __future__ import annotations

from typing import Any

from specdec.predict import compile_report

GIB = 2**30
CHIP = {"memory": 32 * GIB, "bandwidth": 1.2288e12, "flops": 2.75e14}
CHIP |= {"int8": 2.75e14, "link": 5e10, "host": [2, 2, 1]}
RECORD: Any = {
    "topology": "v4:2x2x1",
    "devices": 4,
    "mesh": {"data": 2, "model": 2},
    "chip": CHIP,
    "rows": 8,
    "memory": {"parameters": 4 * GIB, "caches": GIB, "limit": 5 * GIB, "too_large": "no room"},
    "compile_seconds": {"draft 1": 3.6},
    "programs": {},
}
DECODE = {
    "collectives": {},
    "operations": {},
    "top_k": {"": {"f32[9]": {"count": 1, "bytes": 36}}},
    "largest": {},
    "host_transfers": 0,
    "dynamic_shapes": 0,
    "sparse_core": {},
    "loops": [],
}


def test_a_program_that_does_not_fit():
    """It is too much for the device, or the compiler refused it and knows no sizes."""
    assert list(compile_report.lines(RECORD)) == [
        "v4:2x2x1: 4 devices (2 data x 2 model) of 32.00 GiB at 1,229 GB/s, 275 TFLOP/s in "
        "bfloat16",
        "  memory      does not fit: no room; parameters 4.00 GiB, caches 1.00 GiB",
        "  compiled    in seconds, draft 1: 4",
    ]
    sizes = {"fits": False, "total": 6 * GIB, "left": -GIB, "temporaries": 3 * GIB, "code": GIB}
    larger = RECORD | {"memory": RECORD["memory"] | sizes}
    assert list(compile_report.lines(larger))[1] == (
        "  memory      6.00 GiB of 5.00 GiB, 1.00 GiB too much (parameters 4.00 GiB, caches 1.00 "
        "GiB, other temporaries 2.00 GiB, code 1.00 GiB)"
    )
    assert compile_report.markdown([RECORD, larger]).splitlines()[2:4] == [
        "| v4:2x2x1 | 2 x 2 | 8 | 4.00 GiB | 1.00 GiB | no room | 5.00 GiB | does not fit |",
        "| v4:2x2x1 | 2 x 2 | 8 | 4.00 GiB | 1.00 GiB | 6.00 GiB | 5.00 GiB | -1.00 GiB |",
    ]


def test_a_program_without_anything():
    bare = RECORD | {"programs": {"decode": DECODE | {"top_k": {}}}}
    assert list(compile_report.lines(bare))[3:] == [
        "  no loop     no collectives",
        "  loops       none",
        "  operations  ",
        "  also        0 host transfers, 0 dynamic shapes, 0 on a SparseCore",
    ]


def test_a_legend_has_what_records_have():
    def firsts(*records: Any) -> list[str]:
        return [line.split(":")[0] for line in compile_report.explanation(records)]

    bare = {"programs": {}}
    own = ["", "memory", "no loop, or the name of a loop", "operations"]
    assert firsts(bare) == own[:2]
    assert firsts(bare, {"programs": {"decode": DECODE | {"top_k": {}}}}) == own
    assert firsts({"programs": {"decode": DECODE}, "paths": 2}) == [*own, "top-k", "paths"]
    assert firsts(bare | {"exits": []}) == [*own[:2], "roofline", "exits"]
    assert firsts(bare | {"beams_predicted": []}) == [*own[:2], "roofline", "beams"]
    assert firsts(bare | {"compiler": {}}) == [*own[:2], "compiler"]
    predicted = bare | {"gamma": 2, "roofline": {}}
    assert firsts(predicted) == [*own[:2], "roofline", "c", "tokens/s", "speed-up"]
    (line,) = (x for x in compile_report.explanation([predicted]) if x.startswith("c: "))
    assert line.endswith("v(2): the call on a draft of 2 over one of one")


def test_kernels_without_cycles_are_counted():
    part = {"cycles": 4321, "fusions": 4, "fusions_per_layer": None, "kernels": 2}
    other = RECORD | {"compiler": {"parts": {"draft 1": part}, "cost_ratio": None}}
    assert list(compile_report.lines(other))[3:] == [
        "  compiler    draft 1: 4,321 cycles, 4 fusions, 2 kernels of our own without cycles"
    ]
    assert compile_report.markdown([other]).splitlines()[-5:] == [
        "v4:2x2x1: the compiler's own estimate, not a time.",
        "",
        "| program | cycles | fusions | fusions in a decoder layer |",
        "|---|---:|---:|---:|",
        "| draft 1 | 4,321 | 4 |  |",
    ]
