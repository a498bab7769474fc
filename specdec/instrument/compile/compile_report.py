"""The report of `specdec compile`: one topology as a record, as text and as Markdown."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from specdec.common.json_values import JsonObject
from specdec.common.tables import Table, columns
from specdec.common.terminal import counted
from specdec.decoding.beam_plan import AnyPlan, BeamPlan
from specdec.instrument.compile import hlo
from specdec.instrument.compile.compilation import Compilation, Compiled
from specdec.instrument.compile.cycles import estimate
from specdec.instrument.compile.hardware import GIB, HOP_SECONDS, LAYER_SECONDS, Topology
from specdec.instrument.compile.roofline import exits, predict, predict_beams
from specdec.plan import Plan

PREDICTIONS = {"roofline": "roofline", "with_layers": "with layers"}  # by their name in a record
LEGEND = {
    "memory": "memory: bytes of the decode program on one device; compiled: seconds for each "
    "program",
    "decode": "no loop, or the name of a loop: communication of the devices once, or in each pass; "
    "loops: their nesting, xN for N passes\n"
    "operations: instructions, those of a loop counted once; largest: array that a loop makes; "
    "also: copies to the host and sizes known only at run time, both 0 in a fast program, and what "
    "a SparseCore runs",
    "top_k": "top-k: how often the best of an array are taken, by its shape",
    "predicted": "roofline: reading memory or computing, whichever takes longer, then "
    "communicating; with layers: and {layer:.0f} us for each layer",
    "compiler": "compiler: its own estimate, the sum of the cycles of all instructions, which may "
    "overlap, so compare sums with each other; and the fusions, of a decoder layer in brackets",
    "exits": "exits: the time of a token that leaves the target after this many layers, and how "
    "many times as fast as the whole target that is",
    "beams_predicted": "beams: roofline / with layers; the speed-up over a search without a draft "
    "is the steps of a call, divided by those from which it pays",
    "roofline": "c: a draft token over a target call of one; v({gamma}): the call on a draft of "
    "{gamma} over one of one\n"
    "tokens/s: of one text, by TAR, the tokens of a target call with its own (Yan et al. 2024, "
    "2402.01528)\n"
    "speed-up: over the target alone; a row for each acceptance rate alpha, a column for each "
    "number of draft tokens per target call",
    "paths": "paths: the speed-ups have the calls of all paths, and the accepted tokens of one",
}  # by the name in a record of what is explained
MEMORY = ("topology", "mesh", "batch", "parameters", "caches", "total", "limit", "left")


def record(
    topology: Topology, compilation: Compilation, alphas: Mapping[str, float]
) -> dict[str, Any]:
    """Returns all figures of a topology, ready for JSON: bytes and seconds, per device."""
    plan = compilation.plan
    sizes = {"parameters": compilation.parameter_bytes, "caches": compilation.cache_bytes}
    found = {
        **devices_of(topology, compilation.mesh),
        "rows": compilation.rows,
        "inputs": compilation.length,
        "outputs": plan.max_length,
        **_lengths(plan),
        "dtype": plan.target.dtype,
        # Of the decode program; `caches` are part of its temporaries.
        "memory": memory_of(sizes, compilation.whole, topology),
        **programs_of(*compilation.programs),
        "calls": {role: dataclasses.asdict(call) for role, call in compilation.calls.items()},
        "assumed": {"hop_seconds": HOP_SECONDS, "layer_seconds": LAYER_SECONDS},
    }
    if by_compiler := estimate(compilation, alphas):
        found["compiler"] = dataclasses.asdict(by_compiler)
    if compilation.calls and compilation.whole.module:
        found |= _predicted(topology, compilation, alphas)
    return found


def _predicted(
    topology: Topology, compilation: Compilation, alphas: Mapping[str, float]
) -> dict[str, object]:
    plan, calls, found = compilation.plan, compilation.calls, {}
    if isinstance(plan, BeamPlan):
        return {"beams_predicted": _plain(predict_beams(topology.chip, plan, calls))}
    if plan.drafts:
        predictions = _plain(predict(topology.chip, plan, calls, alphas))
        found = {"alphas": dict(alphas), **dict(zip(PREDICTIONS, predictions, strict=True))}
    if plan.target.depths:
        found["exits"] = _plain(exits(topology.chip, plan, calls))
    return found


def _plain(values: Iterable[Any]) -> list[dict[str, Any]]:
    return list(map(dataclasses.asdict, values))


def _lengths(plan: AnyPlan) -> dict[str, int]:
    """Returns the lengths of drafts, and the numbers of beams."""
    if isinstance(plan, Plan):
        paths = {"paths": count} if (count := plan.drafter.paths) else {}
        return {"gamma": plan.longest_draft, **paths}
    of_draft = plan.drafter.width if plan.drafter else 0
    return {"beams": plan.beams, "draft_beams": of_draft, "draft_steps": plan.depth}


def devices_of(topology: Topology, mesh: Mapping[str, int]) -> dict[str, Any]:
    """Returns the devices of a record."""
    devices = {"topology": topology.name, "devices": topology.device_count, "mesh": dict(mesh)}
    return devices | {"chip": dataclasses.asdict(topology.chip)}


def memory_of(
    sizes: Mapping[str, float], program: Compiled, topology: Topology
) -> dict[str, object]:
    """Returns the bytes of a program on one device, or the compiler's message if it is too big."""
    limit = topology.chip.memory
    found: dict[str, object] = {**sizes, "limit": limit, "fits": False}
    if program.memory is None:
        return found | {"too_large": program.too_large}
    total = program.memory.total
    used = {"total": total, "left": limit - total, "fits": total < limit}
    return found | dataclasses.asdict(program.memory) | used


def programs_of(*programs: Compiled) -> dict[str, dict[str, Any]]:
    """Returns the seconds in which programs were compiled, and their contents."""
    return {
        "compile_seconds": {each.name: round(each.seconds, 1) for each in programs},
        "programs": {each.name: contents(each) for each in programs if each.module},
    }


def contents(part: Compiled) -> dict[str, object]:
    """Returns a program's memory, and its instructions by the path of their loop."""
    module, memory = part.module, part.memory
    assert module is not None and memory is not None
    copies = [copy for copy in module.copies if not copy.fused]  # others are never in memory
    sorts = [one for one in module.operations if one.scope.endswith("/top_k")]
    sorts = [one for one in sorts if one.opcode in ("custom-call", "sort")]
    return {
        "memory": dataclasses.asdict(memory),
        "collectives": _by_loop(module.collectives, lambda i: i.opcode),
        "copies": _by_loop(copies, lambda i: i.shape),
        "operations": Counter("/".join(one.loop) for one in module.operations),
        "top_k": _by_loop(sorts, lambda i: i.operand),
        "largest": _largest(module.operations),
        "host_transfers": len(module.host_transfers),
        "dynamic_shapes": len(module.dynamic_shapes),
        "sparse_core": _by_loop(
            module.sparse_core, lambda i: i.scope.rpartition("/")[2] or "other"
        ),
        "loops": [_loop(loop) for loop in module.loops],
        "flops": part.flops,
        "accessed": part.accessed,
    }


def _by_loop(
    instructions: Iterable[hlo.Instruction], kind_of: Callable[[hlo.Instruction], str]
) -> dict[str, dict[str, dict[str, int]]]:
    """Returns the instructions and their bytes: path of loops, '' outside -> kind -> figures."""
    loops: dict[str, dict[str, dict[str, int]]] = {}
    for one in instructions:
        kinds = loops.setdefault("/".join(one.loop), {})
        kind = kinds.setdefault(kind_of(one), {"count": 0, "bytes": 0})
        kind["count"] += 1
        kind["bytes"] += one.bytes
    return loops


def _largest(instructions: Sequence[hlo.Instruction]) -> dict[str, dict[str, object]]:
    """Returns the largest result in each loop: path of loops, '' outside -> figures."""
    by_size = sorted(instructions, key=lambda one: one.bytes)
    return {"/".join(one.loop): {"shape": one.shape, "bytes": one.bytes} for one in by_size}


def _loop(loop: hlo.Loop) -> Mapping[str, object]:
    return loop._asdict() | {"loops": [_loop(inner) for inner in loop.loops]}


def lines(found: JsonObject) -> Iterator[str]:
    """Yields the lines of a record, for people."""
    yield heading(found)
    yield memory_line(found["memory"], "parameters", "caches")
    yield compiled_line(found)
    if "decode" in found["programs"]:
        yield from _contents_lines(found["programs"]["decode"])
    if "roofline" in found:
        yield from _prediction_lines(found)
    if "compiler" in found:
        yield from _compiler_lines(found)
    if "beams_predicted" in found:
        yield f"  beams       {_beams(found)}"
    if "exits" in found:
        yield "  exits       a token that leaves there, alone (roofline / with layers)"
        for one in found["exits"]:
            times = f"{_milliseconds(one['seconds'])} ms, {_pair(one['speedup'])} times"
            yield f"    {one['layers']:>3} layers        {times}"


def heading(found: JsonObject) -> str:
    """Returns the first line of a record: its devices."""
    mesh = " x ".join(f"{size} {name}" for name, size in found["mesh"].items())
    chip = found["chip"]
    return (
        f"{found['topology']}: {counted(found['devices'], 'device')} ({mesh}) of "
        f"{gib(chip['memory'])} at {chip['bandwidth'] / 1e9:,.0f} GB/s, "
        f"{chip['flops'] / 1e12:,.0f} TFLOP/s in bfloat16"
    )


def memory_line(memory: JsonObject, *names: str) -> str:
    """Returns the line of a program's memory, with these parts of it."""
    known = ", ".join(f"{name} {gib(memory[name])}" for name in names)
    if "total" not in memory:
        return f"  memory      does not fit: {memory['too_large']}; {known}"
    left, caches = memory["left"], memory.get("caches", 0)
    verdict = f"{gib(left)} left" if left > 0 else f"{gib(-left)} too much"
    others = "other temporaries" if "caches" in names else "temporaries"
    return (
        f"  memory      {gib(memory['total'])} of {gib(memory['limit'])}, {verdict} ({known}, "
        f"{others} {gib(memory['temporaries'] - caches)}, code {gib(memory['code'])})"
    )


def compiled_line(found: JsonObject) -> str:
    """Returns the line of the seconds in which programs were compiled."""
    seconds = (f"{name}: {s:.0f}" for name, s in found["compile_seconds"].items())
    return f"  compiled    in seconds, {', '.join(seconds)}"


def _pair(numbers: Iterable[float], form: str = ".2f") -> str:
    """Returns the figures by the roofline and with layers."""
    return "/".join(f"{x:{form}}" for x in numbers)


def _milliseconds(seconds: Iterable[float]) -> str:
    return _pair(1e3 * x for x in seconds)


def explanation(records: Sequence[JsonObject]) -> Iterator[str]:
    """Yields the legend of some records, for the figures that they have."""
    names = {"memory", *(name for found in records for name in found)}
    decode = [x["programs"]["decode"] for x in records if "decode" in x["programs"]]
    names |= {"decode"} if decode else set()
    names |= {"top_k"} if any(program["top_k"] for program in decode) else set()
    names |= {"predicted"} if names & {"roofline", "exits", "beams_predicted"} else set()
    layer, gamma = LAYER_SECONDS * 1e6, records[0].get("gamma")
    yield ""
    for name, text in LEGEND.items():
        if name in names:
            yield from text.format(layer=layer, gamma=gamma).splitlines()


def _contents_lines(whole: JsonObject) -> Iterator[str]:
    for path, kinds in (whole["collectives"] or {"": {}}).items():
        yield f"  {path or 'no loop':<11} {collectives_of(kinds)}"
    yield f"  loops       {_loops(whole['loops'])}"
    counts = (f"{n} in {path or 'no loop'}" for path, n in whole["operations"].items())
    yield f"  operations  {', '.join(counts)}"
    for path, kinds in whole["top_k"].items():
        sorts = (f"{kind['count']} of {shape}" for shape, kind in kinds.items())
        yield f"  top-k       {', '.join(sorts)} in {path or 'no loop'}"
    for path, one in whole["largest"].items():
        if path:
            yield f"  largest     {one['shape']} ({one['bytes'] / 2**20:.2f} MiB) in {path}"
    there = [
        (path, kind, found["count"])
        for path, kinds in whole["sparse_core"].items()
        for kind, found in kinds.items()
    ]
    yield (
        f"  also        {whole['host_transfers']} host transfers, "
        f"{whole['dynamic_shapes']} dynamic shapes, {sum(n for *_, n in there)} on a SparseCore"
    )
    waited_for = [(path, kind, n) for path, kind, n in there if path or kind == "gather"]
    if waited_for:
        counts = (f"{n} {kind} in {path or 'no loop'}" for path, kind, n in waited_for)
        yield (
            f"  warning     a SparseCore runs {', '.join(counts)}; the program may wait longer for "
            "it than it takes in the program itself"
        )


def collectives_of(kinds: Mapping[str, JsonObject]) -> str:
    """Returns collectives in one phrase."""
    listed = [
        f"{kind['count']} {name} ({kind['bytes'] / 2**20:.2f} MiB)" for name, kind in kinds.items()
    ]
    return ", ".join(listed) or "no collectives"


def _loops(loops: Sequence[JsonObject]) -> str:
    def one(loop: JsonObject) -> str:
        trips = "" if loop["trip_count"] is None else f" x{loop['trip_count']}"
        inner = f" {{ {_loops(loop['loops'])} }}" if loop["loops"] else ""
        return f"{loop['name']}{trips}{inner}"

    alike = Counter(map(one, loops)).items()
    return ", ".join(text if n == 1 else f"{n} {text}" for text, n in alike) or "none"


def _prediction_lines(found: JsonObject) -> Iterator[str]:
    gamma = found["gamma"]
    for name, title in PREDICTIONS.items():
        verify = found[name]["verify_cost"]
        shown = f", v({gamma}) {verify[gamma]:.2f}" if gamma < len(verify) else ""
        yield f"  {title:<11} {_costs(found[name])}, c {found[name]['cost_ratio']:.3f}{shown}"

    def rates(name: str, tokens: int) -> str:
        return _pair((tokens / found[prediction][name] for prediction in PREDICTIONS), ".0f")

    at_tar = (f"{rates('iteration', tar)} at TAR {tar}" for tar in range(1, gamma + 2))
    yield f"  tokens/s    {rates('target', 1)} alone; drafts of {gamma}: {', '.join(at_tar)}"
    yield "  speed-up    predicted, by draft tokens per call (roofline / with layers)"
    table = _speedups(found, "{} {}", "/")
    yield from columns(
        (("    ", *cells) for cells in (table.header, *table.rows)), "", "<20", ">12"
    )


def _costs(prediction: JsonObject) -> str:
    return f"target {1e3 * prediction['target']:.2f} ms, draft {1e3 * prediction['draft']:.3f} ms"


def _speedups(found: JsonObject, label: str, between: str) -> Table:
    """Returns both predictions for each alpha, whose label has this form, and draft length."""
    rows = []
    for name, alpha in found["alphas"].items():
        both = (found[prediction]["speedups"][name] for prediction in PREDICTIONS)
        shown = name if name == f"{alpha:g}" else label.format(f"{alpha:g}", name)
        pairs = zip(*both, strict=True)
        rows.append((shown, *(f"{a:.2f}{between}{b:.2f}" for a, b in pairs)))
    lengths = range(1, len(found["roofline"]["verify_cost"]))
    return Table("", ("alpha", *map(str, lengths)), rows)


def _compiler_lines(found: JsonObject) -> Iterator[str]:
    made = found["compiler"]
    for name, part in made["parts"].items():
        layer = part["fusions_per_layer"]
        of_layer = "" if layer is None else f" ({layer:g})"
        counts = f"{part['cycles']:,} cycles, {part['fusions']} fusions{of_layer}"
        own = counted(part["kernels"], "kernel") if part["kernels"] else ""
        more = f", {own} of our own without cycles" if own else ""
        yield f"  {'compiler':<11} {name}: {counts}{more}"
    if made["cost_ratio"] is not None:
        yield f"  {'compiler':<11} {_compiler_costs(found)}"


def _compiler_costs(found: JsonObject) -> str:
    """Returns c, v and the speed-ups that follow from the compiler's cycles."""
    made, gamma = found["compiler"], found["gamma"]
    costs = f"c {made['cost_ratio']:.3f}, v({gamma}) {made['verify_cost']:.2f}"
    speedups = (f"{s:.2f} at alpha {alpha}" for alpha, s in made["speedups"].items())
    return f"{costs}; speed-up with drafts of {gamma}: {', '.join(speedups)}"


def _beams(found: JsonObject) -> str:
    step, iteration, pays_from = (
        [one[name] for one in found["beams_predicted"]]
        for name in ("step", "iteration", "pays_from")
    )
    return (
        f"a step alone {_milliseconds(step)} ms, a call with its draft {_milliseconds(iteration)} "
        f"ms: it pays from {_pair(pays_from)} steps per call"
    )


def markdown(records: Sequence[JsonObject]) -> str:
    """Returns tables of several topologies."""
    whole = [_contents_row(found) for found in records if "decode" in found["programs"]]
    parts = [
        Table("", MEMORY, list(map(_memory_row, records))).markdown(),
        "Collectives, by the loop they are in, and compile times.",
        Table("", ("topology", "collectives", "loops", "seconds"), whole).markdown(),
        *(part for found in records for part in _of_topology(found)),
    ]
    return "\n\n".join(parts) + "\n"


def _of_topology(found: JsonObject) -> Iterator[str]:
    """Yields the texts and the tables of one topology."""
    name = found["topology"]
    if "roofline" in found:
        roofline, layers = (found[prediction] for prediction in PREDICTIONS)
        yield (
            f"{name}: {_costs(roofline)}, c {roofline['cost_ratio']:.3f} by the roofline; "
            f"{1e3 * layers['target']:.2f} ms, {1e3 * layers['draft']:.3f} ms, c "
            f"{layers['cost_ratio']:.3f} with {LAYER_SECONDS * 1e6:.0f} us for each layer. "
            "Speed-ups, roofline / with layers:"
        )
        yield _speedups(found, "{} ({})", " / ").markdown()
    if "compiler" in found:
        estimated = found["compiler"]
        costs = "" if estimated["cost_ratio"] is None else f" {_compiler_costs(found)}."
        yield f"{name}: the compiler's own estimate, not a time.{costs}"
        rows = []
        for program, part in estimated["parts"].items():
            layer = part["fusions_per_layer"]
            of_layer = "" if layer is None else layer
            rows.append((program, f"{part['cycles']:,}", part["fusions"], of_layer))
        header = ("program", "cycles", "fusions", "fusions in a decoder layer")
        yield Table("", header, rows).markdown(" rrr")
    if "exits" in found:
        yield f"{name}: tokens that leave the target, roofline / with layers:"
        rows = [
            (one["layers"], _milliseconds(one["seconds"]), _pair(one["speedup"]))
            for one in found["exits"]
        ]
        header = ("layers", "ms", "times as fast as the whole target")
        yield Table("", header, rows).markdown()
    if "beams_predicted" in found:
        yield f"{name}: {_beams(found)}."


def mesh_of(found: JsonObject) -> str:
    """Returns the sizes of a record's mesh, in one phrase."""
    return " x ".join(map(str, found["mesh"].values()))


def _memory_row(found: JsonObject) -> tuple[object, ...]:
    memory = found["memory"]
    fits = "total" in memory
    return (
        found["topology"],
        mesh_of(found),
        found["rows"],
        gib(memory["parameters"]),
        gib(memory["caches"]),
        gib(memory["total"]) if fits else memory["too_large"],
        gib(memory["limit"]),
        gib(memory["left"]) if fits else "does not fit",
    )


def _contents_row(found: JsonObject) -> tuple[object, ...]:
    whole = found["programs"]["decode"]
    kinds = "; ".join(
        f"{path or 'no loop'}: {collectives_of(kinds)}"
        for path, kinds in whole["collectives"].items()
    )
    seconds = f"{found['compile_seconds']['decode']:.0f}"
    return found["topology"], kinds or "none", _loops(whole["loops"]), seconds


def gib(size: float) -> str:
    """Returns a number of bytes, for people."""
    return f"{size / GIB:.2f} GiB"
