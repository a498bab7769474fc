"""What `specdec compile` tells: one topology as a record, as text and as Markdown."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from specdec.compile import hlo
from specdec.compile.hardware import GIB, HOP_SECONDS, LAYER_SECONDS, Topology
from specdec.compile.programs import Compiled, Programs, Subject
from specdec.compile.roofline import predict


def record(
    topology: Topology,
    mesh: Mapping[str, int],
    subject: Subject,
    programs: Programs,
    alphas: Mapping[str, float],
) -> dict[str, Any]:
    """All figures of a topology, ready for JSON. Bytes and seconds, per device."""
    whole = programs.whole
    found: dict[str, Any] = {
        "topology": topology.name,
        "devices": topology.size,
        "mesh": dict(mesh),
        "chip": dataclasses.asdict(topology.chip),
        "rows": subject.batch_size,
        "inputs": subject.length,
        "outputs": subject.max_length,
        "gamma": subject.gamma,
        "dtype": subject.target.config.dtype,
        "memory": _memory(topology, programs),
        "compile_seconds": {
            part.name: round(part.seconds, 1) for part in (whole, *programs.parts.values())
        },
        "programs": {
            part.name: _contents(part) for part in (whole, *programs.parts.values()) if part.text
        },
        "calls": {name: dataclasses.asdict(call) for name, call in programs.calls.items()},
        "assumed": {"hop_seconds": HOP_SECONDS, "layer_seconds": LAYER_SECONDS},
    }
    if "draft" in programs.calls and whole.text:
        calls = programs.calls
        roofline, with_layers = predict(topology.chip, calls["target"], calls["draft"], alphas)
        found["alphas"] = dict(alphas)
        found["roofline"] = dataclasses.asdict(roofline)
        found["with_layers"] = dataclasses.asdict(with_layers)
    return found


def _memory(topology: Topology, programs: Programs) -> dict[str, Any]:
    """Of the decode program. `caches` are part of its temporaries."""
    sizes: dict[str, Any] = {
        "parameters": programs.parameter_bytes,
        "caches": programs.cache_bytes,
        "limit": topology.chip.memory,
        "fits": False,
    }
    if programs.whole.memory is None:
        return sizes | {"too_large": programs.whole.too_large}
    memory = programs.whole.memory
    left = topology.chip.memory - memory.total
    return (
        sizes | dataclasses.asdict(memory) | {"total": memory.total, "left": left, "fits": left > 0}
    )


def _contents(part: Compiled) -> dict[str, Any]:
    """What is in a program's text, by the path of the loop it is in, and its memory."""
    assert part.text is not None and part.memory is not None
    copies = [copy for copy in part.text.copies if not copy.fused]  # others are never in memory
    return {
        "memory": dataclasses.asdict(part.memory),
        "collectives": _by_loop(part.text.collectives, lambda i: i.opcode),
        "copies": _by_loop(copies, lambda i: i.shape),
        "operations": Counter("/".join(one.loop) for one in part.text.operations),
        "host_transfers": len(part.text.host_transfers),
        "dynamic_shapes": len(part.text.dynamic_shapes),
        "loops": [_loop(loop) for loop in part.text.loops],
        "flops": part.flops,
    }


def _by_loop(
    instructions: Iterable[hlo.Instruction], kind_of: Callable[[hlo.Instruction], str]
) -> dict[str, dict[str, dict[str, int]]]:
    """{path of loops, '' outside: {kind: how many there are, and their bytes}}."""
    loops: dict[str, dict[str, dict[str, int]]] = {}
    for one in instructions:
        kinds = loops.setdefault("/".join(one.loop), {})
        kind = kinds.setdefault(kind_of(one), {"count": 0, "bytes": 0})
        kind["count"] += 1
        kind["bytes"] += one.bytes
    return loops


def _loop(loop: hlo.Loop) -> dict[str, Any]:
    return {
        "name": loop.name,
        "trip_count": loop.trip_count,
        "loops": [_loop(inner) for inner in loop.loops],
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """A record for people."""
    mesh = " x ".join(f"{size} {name}" for name, size in found["mesh"].items())
    chip = found["chip"]
    yield (
        f"{found['topology']}: {found['devices']} devices ({mesh}) of {_gib(chip['memory'])} at "
        f"{chip['bandwidth'] / 1e9:,.0f} GB/s, {chip['flops'] / 1e12:,.0f} TFLOP/s in bfloat16"
    )
    yield f"  memory      {_memory_line(found['memory'])}"
    seconds = ", ".join(f"{name} {s:.0f}" for name, s in found["compile_seconds"].items())
    yield f"  compiled    in seconds: {seconds}"
    if "decode" not in found["programs"]:
        return
    whole = found["programs"]["decode"]
    for path, kinds in (whole["collectives"] or {"": {}}).items():
        yield f"  {path or 'no loop':<11} {_collectives(kinds)}"
    yield f"  loops       {_loops(whole['loops'])}"
    counts = (f"{n} in {path or 'no loop'}" for path, n in whole["operations"].items())
    yield f"  operations  {', '.join(counts)}"
    yield (
        f"  also        {whole['host_transfers']} host transfers, "
        f"{whole['dynamic_shapes']} dynamic shapes"
    )
    if "roofline" in found:
        yield from _prediction_lines(found)


def _memory_line(memory: Mapping[str, Any]) -> str:
    given = f"parameters {_gib(memory['parameters'])}, caches {_gib(memory['caches'])}"
    if "total" not in memory:
        return f"does not fit: {memory['too_large']}; {given}"
    parts = (
        f"{given}, other temporaries {_gib(memory['temporaries'] - memory['caches'])}, "
        f"code {_gib(memory['code'])}"
    )
    verdict = (
        f"{_gib(memory['left'])} left" if memory["fits"] else f"{_gib(-memory['left'])} too much"
    )
    return f"{_gib(memory['total'])} of {_gib(memory['limit'])}, {verdict} ({parts})"


def _collectives(kinds: Mapping[str, Mapping[str, int]]) -> str:
    listed = [
        f"{kind['count']} {name} ({kind['bytes'] / 2**20:.2f} MiB)" for name, kind in kinds.items()
    ]
    return ", ".join(listed) or "no collectives"


def _loops(loops: Sequence[Mapping[str, Any]]) -> str:
    def one(loop: Mapping[str, Any]) -> str:
        trips = "" if loop["trip_count"] is None else f" x{loop['trip_count']}"
        inner = f" {{ {_loops(loop['loops'])} }}" if loop["loops"] else ""
        return f"{loop['name']}{trips}{inner}"

    alike = Counter(map(one, loops)).items()
    return ", ".join(text if n == 1 else f"{n} {text}" for text, n in alike) or "none"


def _prediction_lines(found: Mapping[str, Any]) -> Iterator[str]:
    for name, title in _PREDICTIONS.items():
        made = found[name]
        v = (
            made["verify_cost"][found["gamma"]]
            if found["gamma"] < len(made["verify_cost"])
            else None
        )
        shown = "" if v is None else f", v({found['gamma']}) {v:.2f}"
        yield (
            f"  {title:<11} target {made['target'] * 1e3:.2f} ms, draft {made['draft'] * 1e3:.3f} "
            f"ms, c {made['cost_ratio']:.3f}{shown}"
        )
    yield "  speed-up    predicted, by draft tokens per call (roofline / with layers)"
    longest = len(found["roofline"]["verify_cost"]) - 1
    yield f"    {'alpha':<20}" + "".join(f"{gamma:>12}" for gamma in range(1, longest + 1))
    for label, alpha in found["alphas"].items():
        pairs = zip(
            found["roofline"]["speedups"][label],
            found["with_layers"]["speedups"][label],
            strict=True,
        )
        name = label if label == f"{alpha:g}" else f"{alpha:g} {label}"
        yield f"    {name:<20}" + "".join(f"{f'{a:.2f}/{b:.2f}':>12}" for a, b in pairs)


_PREDICTIONS = {"roofline": "roofline", "with_layers": "with layers"}


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """Tables of several topologies."""
    rows = [
        "| topology | mesh | batch | parameters | caches | total | limit | left |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for found in records:
        memory = found["memory"]
        fits = "total" in memory
        cells = [
            found["topology"],
            " x ".join(map(str, found["mesh"].values())),
            found["rows"],
            _gib(memory["parameters"]),
            _gib(memory["caches"]),
            _gib(memory["total"]) if fits else memory["too_large"],
            _gib(memory["limit"]),
            _gib(memory["left"]) if fits else "does not fit",
        ]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    rows += ["", "Collectives, by the loop they are in, and compile times.", ""]
    rows += ["| topology | collectives | loops | seconds |", "|---|---|---|---|"]
    for found in records:
        whole = found["programs"].get("decode")
        if whole is None:
            continue
        kinds = "; ".join(
            f"{path or 'no loop'}: {_collectives(kinds)}"
            for path, kinds in whole["collectives"].items()
        )
        loops, seconds = _loops(whole["loops"]), found["compile_seconds"]["decode"]
        rows.append(f"| {found['topology']} | {kinds or 'none'} | {loops} | {seconds:.0f} |")
    for found in records:
        if "roofline" in found:
            rows += ["", *_prediction_table(found)]
    return "\n".join(rows) + "\n"


def _prediction_table(found: Mapping[str, Any]) -> list[str]:
    made, also = found["roofline"], found["with_layers"]
    longest = len(made["verify_cost"]) - 1
    rows = [
        f"{found['topology']}: target {made['target'] * 1e3:.2f} ms, draft "
        f"{made['draft'] * 1e3:.3f} ms, c {made['cost_ratio']:.3f} by the roofline; "
        f"{also['target'] * 1e3:.2f} ms, {also['draft'] * 1e3:.3f} ms, c {also['cost_ratio']:.3f} "
        f"with {LAYER_SECONDS * 1e6:.0f} us for each layer. Speed-ups, roofline / with layers:",
        "",
        "| alpha | " + " | ".join(str(gamma) for gamma in range(1, longest + 1)) + " |",
        "|---" * (longest + 1) + "|",
    ]
    for label, alpha in found["alphas"].items():
        pairs = zip(made["speedups"][label], also["speedups"][label], strict=True)
        name = label if label == f"{alpha:g}" else f"{alpha:g} ({label})"
        rows.append(f"| {name} | " + " | ".join(f"{a:.2f} / {b:.2f}" for a, b in pairs) + " |")
    return rows


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"
