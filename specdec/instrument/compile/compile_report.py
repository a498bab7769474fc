"""The report of `specdec compile`: one topology as a record, as text and as Markdown."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict

from specdec.common import notebook
from specdec.common.terminal import counted
from specdec.decoding.beam_plan import BeamPlan
from specdec.instrument.compile import hlo
from specdec.instrument.compile.compilation import Compilation, Compiled
from specdec.instrument.compile.cycles import estimate
from specdec.instrument.compile.hardware import GIB, HOP_SECONDS, LAYER_SECONDS, Topology
from specdec.instrument.compile.roofline import exits, predict, predict_beams
from specdec.plan import Plan


class CountRecord(TypedDict):
    count: int
    bytes: int


class LargestRecord(TypedDict):
    shape: str
    bytes: int


class LoopRecord(TypedDict):
    name: str
    trip_count: int | None
    loops: list[LoopRecord]


class ContentsRecord(TypedDict):
    """The part of `contents` that is shown; the keys are paths of loops, then kinds."""

    collectives: dict[str, dict[str, CountRecord]]
    operations: dict[str, int]
    top_k: dict[str, dict[str, CountRecord]]
    largest: dict[str, LargestRecord]
    host_transfers: int
    dynamic_shapes: int
    sparse_core: dict[str, dict[str, CountRecord]]
    loops: list[LoopRecord]


class MemoryRecord(TypedDict):
    """The bytes of a program on one device, or `too_large` in place of those of a run."""

    parameters: int
    caches: int
    limit: int
    fits: bool
    too_large: str
    total: int
    left: int
    temporaries: int
    code: int


class PredictionRecord(TypedDict):
    """A `roofline.Prediction`, in seconds and in target calls of one token."""

    target: float
    draft: float
    iteration: float
    cost_ratio: float
    verify_cost: list[float]
    speedups: dict[str, list[float]]


class ExitRecord(TypedDict):
    """The time of a token that leaves after some layers: by the roofline, and with layers."""

    layers: int
    seconds: list[float]
    speedup: list[float]


class BeamsRecord(TypedDict):
    step: float
    iteration: float
    pays_from: float


class PartRecord(TypedDict):
    cycles: int
    fusions: int
    fusions_per_layer: float | None
    kernels: int


class CyclesRecord(TypedDict):
    """A `cycles.Estimate`: the compiler's own figures."""

    parts: dict[str, PartRecord]
    cost_ratio: float | None
    verify_cost: float
    speedups: dict[str, float]


class ChipRecord(TypedDict):
    memory: int
    bandwidth: float
    flops: float


class DevicesRecord(TypedDict):
    """The devices of a record."""

    topology: str
    devices: int
    mesh: dict[str, int]
    chip: ChipRecord


class TopologyRecord(DevicesRecord):
    """All figures of a topology; a record has those that follow `programs` only in some cases."""

    rows: int
    memory: MemoryRecord
    compile_seconds: dict[str, float]
    programs: dict[str, ContentsRecord]
    gamma: int
    paths: int
    alphas: dict[str, float]
    roofline: PredictionRecord
    with_layers: PredictionRecord
    compiler: CyclesRecord
    beams_predicted: list[BeamsRecord]
    exits: list[ExitRecord]


def record(
    topology: Topology, compilation: Compilation, alphas: Mapping[str, float]
) -> TopologyRecord:
    """Returns all figures of a topology, ready for JSON: bytes and seconds, per device.

    Args:
      topology: the topology.
      compilation: the programs compiled for it.
      alphas: acceptance rates, by label.
    """
    plan, programs = compilation.plan, compilation.programs
    found: Any = {
        "topology": topology.name,
        "devices": topology.device_count,
        "mesh": dict(compilation.mesh),
        "chip": dataclasses.asdict(topology.chip),
        "rows": compilation.rows,
        "inputs": compilation.length,
        "outputs": plan.max_length,
        **_lengths(plan),
        "dtype": plan.target.dtype,
        "memory": _memory(topology, compilation),
        "compile_seconds": {each.name: round(each.seconds, 1) for each in programs},
        "programs": {each.name: contents(each) for each in programs if each.module},
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
        of_beams = predict_beams(topology.chip, plan, calls)
        return {"beams_predicted": [dataclasses.asdict(one) for one in of_beams]}
    if plan.drafts:
        made = predict(topology.chip, plan, calls, alphas)
        roofline, with_layers = map(dataclasses.asdict, made)
        found |= {"alphas": dict(alphas), "roofline": roofline, "with_layers": with_layers}
    if plan.target.depths:
        leaving = exits(topology.chip, plan, calls)
        found["exits"] = [dataclasses.asdict(one) for one in leaving]
    return found


def _lengths(plan: Plan | BeamPlan) -> dict[str, int]:
    """Returns the lengths of drafts, and the numbers of beams."""
    if isinstance(plan, Plan):
        paths = {"paths": count} if (count := plan.drafter.paths) else {}
        return {"gamma": plan.longest_draft, **paths}
    of_draft = plan.drafter.width if plan.drafter else 0
    return {"beams": plan.beams, "draft_beams": of_draft, "draft_steps": plan.depth}


def _memory(topology: Topology, compilation: Compilation) -> dict[str, object]:
    """Returns the memory of the decode program; `caches` are part of its temporaries."""
    whole, limit = compilation.whole, topology.chip.memory
    sizes: dict[str, object] = {
        "parameters": compilation.parameter_bytes,
        "caches": compilation.cache_bytes,
        "limit": limit,
        "fits": False,
    }
    if whole.memory is None:
        return sizes | {"too_large": whole.too_large}
    total = whole.memory.total
    left = limit - total
    used = {"total": total, "left": left, "fits": left > 0}
    return sizes | dataclasses.asdict(whole.memory) | used


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


def lines(found: TopologyRecord) -> Iterator[str]:
    """Yields the lines of a record, for people.

    Args:
      found: a record.
    """
    yield heading(found)
    yield f"  memory      {_memory_line(found['memory'])}"
    seconds = (f"{name}: {s:.0f}" for name, s in found["compile_seconds"].items())
    yield f"  compiled    in seconds, {', '.join(seconds)}"
    if "decode" in found["programs"]:
        yield from _contents_lines(found["programs"]["decode"])
    if "roofline" in found:
        yield from _prediction_lines(found)
    if "compiler" in found:
        yield from _compiler_lines(found)
    if "beams_predicted" in found:
        yield from _beam_lines(found)
    if "exits" in found:
        yield "  exits       a token that leaves there, alone (roofline / with layers)"
        for one in found["exits"]:
            times = f"{_milliseconds(one)} ms, {_pair(one['speedup'])} times"
            yield f"    {one['layers']:>3} layers        {times}"


def heading(found: DevicesRecord) -> str:
    """Returns the first line of a record: its devices."""
    mesh = " x ".join(f"{size} {name}" for name, size in found["mesh"].items())
    chip = found["chip"]
    return (
        f"{found['topology']}: {counted(found['devices'], 'device')} ({mesh}) of "
        f"{gib(chip['memory'])} at {chip['bandwidth'] / 1e9:,.0f} GB/s, "
        f"{chip['flops'] / 1e12:,.0f} TFLOP/s in bfloat16"
    )


def _pair(numbers: Iterable[float]) -> str:
    """Returns the figures by the roofline and with layers."""
    return "/".join(f"{x:.2f}" for x in numbers)


def _milliseconds(one: ExitRecord) -> str:
    return _pair(1e3 * seconds for seconds in one["seconds"])


def explanation(records: Sequence[TopologyRecord]) -> Iterator[str]:
    """Yields the legend of some records, for the figures that they have.

    Args:
      records: the records.
    """
    yield ""
    yield "memory: bytes of the decode program on one device; compiled: seconds for each program"
    if any("decode" in found["programs"] for found in records):
        yield (
            "no loop, or the name of a loop: communication of the devices once, or in each pass; "
            "loops: their nesting, xN for N passes"
        )
        yield (
            "operations: instructions, those of a loop counted once; largest: array that a loop "
            "makes; also: copies to the host and sizes known only at run time, both 0 in a fast "
            "program, and what a SparseCore runs"
        )
    if any(
        "decode" in found["programs"] and found["programs"]["decode"]["top_k"] for found in records
    ):
        yield "top-k: how often the best of an array are taken, by its shape"
    predicted = {"roofline", "exits", "beams_predicted"}
    if any(predicted & found.keys() for found in records):
        yield (
            "roofline: reading memory or computing, whichever takes longer, then communicating; "
            f"with layers: and {LAYER_SECONDS * 1e6:.0f} us for each layer"
        )
    if any("compiler" in found for found in records):
        yield (
            "compiler: its own estimate, the sum of the cycles of all instructions, which may "
            "overlap, so compare sums with each other; and the fusions, of a decoder layer in "
            "brackets"
        )
    if any("exits" in found for found in records):
        yield (
            "exits: the time of a token that leaves the target after this many layers, and how "
            "many times as fast as the whole target that is"
        )
    if any("beams_predicted" in found for found in records):
        yield (
            "beams: roofline / with layers; the speed-up over a search without a draft is the "
            "steps of a call, divided by those from which it pays"
        )
    if any("roofline" in found for found in records):
        gamma = records[0]["gamma"]
        yield (
            f"c: a draft token over a target call of one; v({gamma}): the call on a draft of "
            f"{gamma} over one of one"
        )
        yield (
            "tokens/s: of one text, by TAR, the tokens of a target call with its own (Yan et al. "
            "2024, 2402.01528)"
        )
        yield (
            "speed-up: over the target alone; a row for each acceptance rate alpha, a column for "
            "each number of draft tokens per target call"
        )
    if any(found.get("paths") for found in records):
        yield "paths: the speed-ups have the calls of all paths, and the accepted tokens of one"


def _contents_lines(whole: ContentsRecord) -> Iterator[str]:
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


def _memory_line(memory: MemoryRecord) -> str:
    given = f"parameters {gib(memory['parameters'])}, caches {gib(memory['caches'])}"
    if "total" not in memory:
        return f"does not fit: {memory['too_large']}; {given}"
    parts = (
        f"{given}, other temporaries {gib(memory['temporaries'] - memory['caches'])}, "
        f"code {gib(memory['code'])}"
    )
    verdict = (
        f"{gib(memory['left'])} left" if memory["fits"] else f"{gib(-memory['left'])} too much"
    )
    return f"{gib(memory['total'])} of {gib(memory['limit'])}, {verdict} ({parts})"


def collectives_of(kinds: Mapping[str, CountRecord]) -> str:
    """Returns collectives in one phrase."""
    listed = [
        f"{kind['count']} {name} ({kind['bytes'] / 2**20:.2f} MiB)" for name, kind in kinds.items()
    ]
    return ", ".join(listed) or "no collectives"


def _loops(loops: Sequence[LoopRecord]) -> str:
    def one(loop: LoopRecord) -> str:
        trips = "" if loop["trip_count"] is None else f" x{loop['trip_count']}"
        inner = f" {{ {_loops(loop['loops'])} }}" if loop["loops"] else ""
        return f"{loop['name']}{trips}{inner}"

    alike = Counter(map(one, loops)).items()
    return ", ".join(text if n == 1 else f"{n} {text}" for text, n in alike) or "none"


def _prediction_lines(found: TopologyRecord) -> Iterator[str]:
    gamma = found["gamma"]
    for name, title in _PREDICTIONS.items():
        made = found[name]
        verify = made["verify_cost"]
        shown = f", v({gamma}) {verify[gamma]:.2f}" if gamma < len(verify) else ""
        yield (
            f"  {title:<11} target {made['target'] * 1e3:.2f} ms, draft {made['draft'] * 1e3:.3f} "
            f"ms, c {made['cost_ratio']:.3f}{shown}"
        )
    alone = [found[name]["target"] for name in _PREDICTIONS]
    iteration = [found[name]["iteration"] for name in _PREDICTIONS]
    at_tar = (f"{_rates(iteration, tar)} at TAR {tar}" for tar in range(1, gamma + 2))
    yield f"  tokens/s    {_rates(alone)} alone; drafts of {gamma}: {', '.join(at_tar)}"
    yield "  speed-up    predicted, by draft tokens per call (roofline / with layers)"
    yield f"    {'alpha':<20}" + "".join(f"{gamma:>12}" for gamma in _draft_lengths(found))
    for name, pairs in _speedups(found, "{} {}"):
        yield f"    {name:<20}" + "".join(f"{f'{a:.2f}/{b:.2f}':>12}" for a, b in pairs)


def _compiler_lines(found: TopologyRecord) -> Iterator[str]:
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


def _compiler_costs(found: TopologyRecord) -> str:
    """Returns c, v and the speed-ups that follow from the compiler's cycles."""
    made, gamma = found["compiler"], found["gamma"]
    costs = f"c {made['cost_ratio']:.3f}, v({gamma}) {made['verify_cost']:.2f}"
    speedups = (f"{s:.2f} at alpha {alpha}" for alpha, s in made["speedups"].items())
    return f"{costs}; speed-up with drafts of {gamma}: {', '.join(speedups)}"


def _beam_lines(found: TopologyRecord) -> Iterator[str]:
    both = found["beams_predicted"]
    step, iteration = [one["step"] for one in both], [one["iteration"] for one in both]
    pays_from = [one["pays_from"] for one in both]
    yield (
        f"  beams       a step alone {_pair(1e3 * x for x in step)} ms, a call with its draft "
        f"{_pair(1e3 * x for x in iteration)} ms: it pays from {_pair(pays_from)} steps per call"
    )


_PREDICTIONS: dict[Literal["roofline", "with_layers"], str] = {
    "roofline": "roofline",
    "with_layers": "with layers",
}


def _rates(seconds: Iterable[float], tokens: int = 1) -> str:
    """Returns tokens per second by the roofline and with layers."""
    return "/".join(f"{tokens / each:.0f}" for each in seconds)


def _draft_lengths(found: TopologyRecord) -> range:
    """Returns the draft lengths that the prediction covers."""
    return range(1, len(found["roofline"]["verify_cost"]))


def _speedups(found: TopologyRecord, form: str) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yields each alpha, with its label in this form, and both predictions by draft length."""
    for label, alpha in found["alphas"].items():
        name = label if label == f"{alpha:g}" else form.format(f"{alpha:g}", label)
        both = (found[name]["speedups"][label] for name in _PREDICTIONS)
        yield name, list(zip(*both, strict=True))


def markdown(records: Sequence[TopologyRecord]) -> str:
    """Returns tables of several topologies.

    Args:
      records: the records.
    """
    rows = [
        "| topology | mesh | batch | parameters | caches | total | limit | left |",
        "|---|---|---|---|---|---|---|---|",
        *map(_memory_row, records),
        "",
        "Collectives, by the loop they are in, and compile times.",
        "",
        "| topology | collectives | loops | seconds |",
        "|---|---|---|---|",
        *(_contents_row(found) for found in records if "decode" in found["programs"]),
    ]
    for found in records:
        if "roofline" in found:
            rows += ["", *_prediction_table(found)]
        if "compiler" in found:
            rows += ["", *_compiler_table(found)]
        if "exits" in found:
            rows += ["", *_exit_table(found)]
        if "beams_predicted" in found:
            rows += ["", f"{found['topology']}: {next(_beam_lines(found)).split(maxsplit=1)[1]}."]
    return "\n".join(rows) + "\n"


def _memory_row(found: TopologyRecord) -> str:
    memory = found["memory"]
    fits = "total" in memory
    cells = [
        found["topology"],
        " x ".join(map(str, found["mesh"].values())),
        found["rows"],
        gib(memory["parameters"]),
        gib(memory["caches"]),
        gib(memory["total"]) if fits else memory["too_large"],
        gib(memory["limit"]),
        gib(memory["left"]) if fits else "does not fit",
    ]
    return row(*cells)


def row(*cells: object) -> str:
    """Returns a row of a table in Markdown."""
    return f"| {' | '.join(map(notebook.markdown, cells))} |"


def _contents_row(found: TopologyRecord) -> str:
    whole = found["programs"]["decode"]
    kinds = "; ".join(
        f"{path or 'no loop'}: {collectives_of(kinds)}"
        for path, kinds in whole["collectives"].items()
    )
    seconds = f"{found['compile_seconds']['decode']:.0f}"
    return row(found["topology"], kinds or "none", _loops(whole["loops"]), seconds)


def _prediction_table(found: TopologyRecord) -> Iterator[str]:
    made, also = found["roofline"], found["with_layers"]
    lengths = _draft_lengths(found)
    yield (
        f"{found['topology']}: target {made['target'] * 1e3:.2f} ms, draft "
        f"{made['draft'] * 1e3:.3f} ms, c {made['cost_ratio']:.3f} by the roofline; "
        f"{also['target'] * 1e3:.2f} ms, {also['draft'] * 1e3:.3f} ms, c {also['cost_ratio']:.3f} "
        f"with {LAYER_SECONDS * 1e6:.0f} us for each layer. Speed-ups, roofline / with layers:"
    )
    yield ""
    yield row("alpha", *lengths)
    yield "|---" * (len(lengths) + 1) + "|"
    for name, pairs in _speedups(found, "{} ({})"):
        yield row(name, *(f"{a:.2f} / {b:.2f}" for a, b in pairs))


def _compiler_table(found: TopologyRecord) -> Iterator[str]:
    made = found["compiler"]
    costs = "" if made["cost_ratio"] is None else f" {_compiler_costs(found)}."
    yield f"{found['topology']}: the compiler's own estimate, not a time.{costs}"
    yield ""
    yield row("program", "cycles", "fusions", "fusions in a decoder layer")
    yield "|---|---:|---:|---:|"
    for name, part in made["parts"].items():
        layer = part["fusions_per_layer"]
        yield row(name, f"{part['cycles']:,}", part["fusions"], "" if layer is None else layer)


def _exit_table(found: TopologyRecord) -> Iterator[str]:
    yield f"{found['topology']}: tokens that leave the target, roofline / with layers:"
    yield ""
    yield "| layers | ms | times as fast as the whole target |"
    yield "|---|---|---|"
    for one in found["exits"]:
        yield f"| {one['layers']} | {_milliseconds(one)} | {_pair(one['speedup'])} |"


def gib(size: float) -> str:
    """Returns a number of bytes, for people."""
    return f"{size / GIB:.2f} GiB"
