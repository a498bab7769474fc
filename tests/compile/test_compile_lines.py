"""Reports of compiled programs, word by word: pytest tests/compile/test_compile_lines.py"""

from __future__ import annotations

import copy
from typing import Any

from specdec.instrument.compile import compile_report

GIB, MIB = 2**30, 2**20
RECORD: Any = {
    "topology": "v4:2x2x1",
    "devices": 4,
    "mesh": {"data": 2, "model": 2},
    "chip": {"memory": 32 * GIB, "bandwidth": 1.2288e12, "flops": 2.75e14},
    "rows": 8,
    "memory": {
        "parameters": 4 * GIB,
        "caches": GIB // 2,
        "limit": 31 * GIB,
        "fits": True,
        "total": 6 * GIB,
        "left": 25 * GIB,
        "temporaries": 3 * GIB // 2,
        "code": GIB // 4,
    },
    "compile_seconds": {"decode": 12.4, "draft 1": 3.6},
    "programs": {
        "decode": {
            "collectives": {
                "": {"all-gather": {"count": 1, "bytes": 3 * MIB}},
                "decode/draft": {
                    "all-reduce": {"count": 2, "bytes": 2**19},
                    "all-gather": {"count": 3, "bytes": 2**18},
                },
            },
            "operations": {"": 100, "decode": 50},
            "top_k": {
                "": {"f32[8,100]": {"count": 1, "bytes": 3200}},
                "decode": {
                    "f32[8,9]": {"count": 2, "bytes": 1},
                    "f32[8,7]": {"count": 3, "bytes": 1},
                },
            },
            "largest": {
                "": {"shape": "f32[9]", "bytes": 36},
                "decode": {"shape": "bf16[8,64]", "bytes": 3 * 2**19},
            },
            "host_transfers": 1,
            "dynamic_shapes": 2,
            "loops": [
                {
                    "name": "decode",
                    "trip_count": None,
                    "loops": [{"name": "draft", "trip_count": 7, "loops": []}],
                },
                {"name": "sort", "trip_count": 3, "loops": []},
                {"name": "sort", "trip_count": 3, "loops": []},
            ],
        }
    },
    "gamma": 2,
    "paths": 0,
    "alphas": {"0.5": 0.5, "measured": 0.75},
    "roofline": {
        "target": 0.01,
        "draft": 0.0005,
        "iteration": 0.0125,
        "cost_ratio": 0.05,
        "verify_cost": [1.0, 1.1, 1.2],
        "speedups": {"0.5": [1.25, 1.375], "measured": [1.5, 1.75]},
    },
    "with_layers": {
        "target": 0.02,
        "draft": 0.002,
        "iteration": 0.025,
        "cost_ratio": 0.1,
        "verify_cost": [1.0, 1.05, 1.15],
        "speedups": {"0.5": [1.2, 1.3], "measured": [1.4, 1.6]},
    },
    "compiler": {
        "parts": {
            "target 1": {"cycles": 123456, "fusions": 40, "fusions_per_layer": 9.5, "kernels": 0},
            "draft 1": {"cycles": 4321, "fusions": 4, "fusions_per_layer": None, "kernels": 1},
        },
        "cost_ratio": 0.035,
        "verify_cost": 1.25,
        "speedups": {"0.5": 1.375, "measured": 1.625},
    },
    "beams_predicted": [
        {"step": 0.002, "iteration": 0.005, "pays_from": 2.5},
        {"step": 0.004, "iteration": 0.006, "pays_from": 1.5},
    ],
    "exits": [{"layers": 4, "seconds": [0.001, 0.002], "speedup": [6.0, 5.0]}],
}

LINES = [
    "v4:2x2x1: 4 devices (2 data x 2 model) of 32.00 GiB at 1,229 GB/s, 275 TFLOP/s in bfloat16",
    "  memory      6.00 GiB of 31.00 GiB, 25.00 GiB left (parameters 4.00 GiB, caches "
    "0.50 GiB, other temporaries 1.00 GiB, code 0.25 GiB)",
    "  compiled    in seconds, decode: 12, draft 1: 4",
    "  no loop     1 all-gather (3.00 MiB)",
    "  decode/draft 2 all-reduce (0.50 MiB), 3 all-gather (0.25 MiB)",
    "  loops       decode { draft x7 }, 2 sort x3",
    "  operations  100 in no loop, 50 in decode",
    "  top-k       1 of f32[8,100] in no loop",
    "  top-k       2 of f32[8,9], 3 of f32[8,7] in decode",
    "  largest     bf16[8,64] (1.50 MiB) in decode",
    "  also        1 host transfers, 2 dynamic shapes",
    "  roofline    target 10.00 ms, draft 0.500 ms, c 0.050, v(2) 1.20",
    "  with layers target 20.00 ms, draft 2.000 ms, c 0.100, v(2) 1.15",
    "  tokens/s    100/50 alone; drafts of 2: 80/40 at TAR 1, 160/80 at TAR 2, 240/120 at TAR 3",
    "  speed-up    predicted, by draft tokens per call (roofline / with layers)",
    "    alpha                          1           2",
    "    0.5                    1.25/1.20   1.38/1.30",
    "    0.75 measured          1.50/1.40   1.75/1.60",
    "  compiler    target 1: 123,456 cycles, 40 fusions (9.5)",
    "  compiler    draft 1: 4,321 cycles, 4 fusions, 1 kernel of our own without cycles",
    "  compiler    c 0.035, v(2) 1.25; speed-up with drafts of 2: 1.38 at alpha 0.5, "
    "1.62 at alpha measured",
    "  beams       a step alone 2.00/4.00 ms, a call with its draft 5.00/6.00 ms: it "
    "pays from 2.50/1.50 steps per call",
    "  exits       a token that leaves there, alone (roofline / with layers)",
    "      4 layers        1.00/2.00 ms, 6.00/5.00 times",
]
TABLES = [
    "| topology | mesh | batch | parameters | caches | total | limit | left |",
    "|---|---|---|---|---|---|---|---|",
    "| v4:2x2x1 | 2 x 2 | 8 | 4.00 GiB | 0.50 GiB | 6.00 GiB | 31.00 GiB | 25.00 GiB |",
    "",
    "Collectives, by the loop they are in, and compile times.",
    "",
    "| topology | collectives | loops | seconds |",
    "|---|---|---|---|",
    "| v4:2x2x1 | no loop: 1 all-gather (3.00 MiB); decode/draft: 2 all-reduce (0.50 "
    "MiB), 3 all-gather (0.25 MiB) | decode { draft x7 }, 2 sort x3 | 12 |",
    "",
    "v4:2x2x1: target 10.00 ms, draft 0.500 ms, c 0.050 by the roofline; 20.00 ms, 2.000 "
    "ms, c 0.100 with 14 us for each layer. Speed-ups, roofline / with layers:",
    "",
    "| alpha | 1 | 2 |",
    "|---|---|---|",
    "| 0.5 | 1.25 / 1.20 | 1.38 / 1.30 |",
    "| 0.75 (measured) | 1.50 / 1.40 | 1.75 / 1.60 |",
    "",
    "v4:2x2x1: the compiler's own estimate, not a time. c 0.035, v(2) 1.25; speed-up "
    "with drafts of 2: 1.38 at alpha 0.5, 1.62 at alpha measured.",
    "",
    "| program | cycles | fusions | fusions in a decoder layer |",
    "|---|---:|---:|---:|",
    "| target 1 | 123,456 | 40 | 9.5 |",
    "| draft 1 | 4,321 | 4 |  |",
    "",
    "v4:2x2x1: tokens that leave the target, roofline / with layers:",
    "",
    "| layers | ms | times as fast as the whole target |",
    "|---|---|---|",
    "| 4 | 1.00/2.00 | 6.00/5.00 |",
    "",
    "v4:2x2x1: a step alone 2.00/4.00 ms, a call with its draft 5.00/6.00 ms: it pays "
    "from 2.50/1.50 steps per call.",
]


def test_the_lines_of_a_record():
    assert list(compile_report.lines(RECORD)) == LINES


def test_the_tables_of_a_record():
    assert compile_report.markdown([RECORD]) == "\n".join([*TABLES, ""])


def test_a_program_that_does_not_fit():
    """It is too much for the device, or the compiler refused it and knows no sizes."""
    other = copy.deepcopy(RECORD)
    other["memory"] |= {"limit": 5 * GIB, "left": -GIB, "fits": False}
    (line,) = (x for x in compile_report.lines(other) if x.startswith("  memory"))
    assert line.startswith("  memory      6.00 GiB of 5.00 GiB, 1.00 GiB too much (parameters 4.00")
    memory = {"parameters": 4 * GIB, "caches": GIB, "limit": 5 * GIB, "too_large": "no room"}
    other |= {"memory": memory, "programs": {}, "compile_seconds": {"draft 1": 3.6}}
    for name in ("roofline", "with_layers", "compiler", "beams_predicted", "exits"):
        del other[name]
    assert list(compile_report.lines(other)) == [
        LINES[0],
        "  memory      does not fit: no room; parameters 4.00 GiB, caches 1.00 GiB",
        "  compiled    in seconds, draft 1: 4",
    ]
    rows = compile_report.markdown([other, RECORD]).splitlines()
    assert rows[2] == (
        "| v4:2x2x1 | 2 x 2 | 8 | 4.00 GiB | 1.00 GiB | no room | 5.00 GiB | does not fit |"
    )
    assert rows[3:] == TABLES[2:]


def test_a_legend_has_what_records_have():
    def firsts(*records: Any) -> list[str]:
        return [line.split(":")[0] for line in compile_report.explanation(records)]

    bare = {"programs": {}}
    decode = copy.deepcopy(RECORD["programs"])
    decode["decode"]["top_k"] = {}
    own = ["", "memory", "no loop, or the name of a loop", "operations"]
    assert firsts(bare) == own[:2]
    assert firsts(bare, {"programs": decode}) == own
    assert firsts({"programs": RECORD["programs"], "paths": 2}) == [*own, "top-k", "paths"]
    assert firsts(bare | {"exits": []}) == [*own[:2], "roofline", "exits"]
    assert firsts(bare | {"beams_predicted": []}) == [*own[:2], "roofline", "beams"]
    assert firsts(bare | {"compiler": {}}) == [*own[:2], "compiler"]
    assert firsts(bare | {"gamma": 2, "roofline": {}}) == [
        *(*own[:2], "roofline", "c", "tokens/s", "speed-up")
    ]
    (line,) = (x for x in compile_report.explanation([RECORD]) if x.startswith("c: "))
    assert line.endswith("v(2): the call on a draft of 2 over one of one")


def test_kernels_without_cycles_are_counted():
    other = copy.deepcopy(RECORD)
    other["compiler"]["parts"]["draft 1"]["kernels"] = 2
    other["compiler"]["cost_ratio"] = None
    made = [x for x in compile_report.lines(other) if x.startswith("  compiler")]
    assert len(made) == 2 and made[1].endswith(", 2 kernels of our own without cycles")
    assert "v4:2x2x1: the compiler's own estimate, not a time." in (
        compile_report.markdown([other]).splitlines()
    )
