"""Prints a record of `specdec compile` for a plan as text and as Markdown."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from specdec.common.tables import PageTable, columns, number
from specdec.common.terminal import counted
from specdec.predict import hlo
from specdec.predict.compile_record import (
    PREDICTIONS,
    CompilerEstimate,
    CountAndBytes,
    DevicesRecord,
    ProgramContents,
    ProgramCycles,
    ProgramMemory,
    TopologyRecord,
    read,
)
from specdec.predict.hardware import GIB, LAYER_SECONDS
from specdec.predict.roofline import BeamPrediction, Exit, RooflinePrediction

LEGEND = {
    "memory": "memory: bytes of the decode program on one device; compiled: seconds for each "
    "program",
    "decode": "no loop, or the name of a loop: collectives outside of loops, or in each iteration "
    "of the loop; loops: their nesting, xN for N iterations\n"
    "operations: number of instructions, a loop's body counted once; largest: largest array in a "
    "loop; also: copies to the host, arrays whose size is known only at run time (both are 0 in a "
    "fast program), and instructions that a SparseCore runs",
    "top_k": "top-k: number of top-k operations, by the shape of their input",
    "predicted": "roofline: the longer of reading memory and computing, plus communicating; with "
    "layers: plus {layer:.0f} us for each layer",
    "compiler": "compiler: the compiler's estimate, the sum of the cycles of all instructions, "
    "which may overlap, so compare sums only with sums; fusions: in a decoder layer in brackets",
    "exits": "exits: the time of a token that leaves the target after this many layers, and its "
    "speed-up over the whole target",
    "beams_predicted": "beams: roofline / with layers; the speed-up over a search without drafts "
    "is the steps per call divided by the steps per call from which drafts pay",
    "roofline": "c: seconds of a draft token / seconds of a target call on 1 token; v({gamma}): "
    "seconds of a target call on a draft of {gamma} / seconds of a target call on 1 token\n"
    "tokens/s: for one text; TAR: output tokens per target call (Yan et al. 2024, 2402.01528)\n"
    "speed-up: over the target alone; a row for each acceptance rate alpha, a column for each "
    "number of draft tokens per target call",
    "paths": "paths: speed-ups count the model calls of all paths, and the accepted tokens of one",
}  # field of a record -> its legend


def lines(fields: Mapping[str, object]) -> Iterator[str]:
    """Yields the printed lines of a plan's record, given as its JSON fields."""
    record = read(fields, TopologyRecord)
    yield heading(record)
    memory = record.memory
    yield memory_line(memory, {"parameters": memory.parameters, "caches": memory.caches})
    yield compiled_line(record)
    if "decode" in record.programs:
        yield from _contents_lines(record.programs["decode"])
    if record.roofline is not None:
        yield from _prediction_lines(record)
    if record.compiler is not None:
        yield from _compiler_lines(record, record.compiler)
    if record.beams_predicted is not None:
        yield f"  beams       {_beams(record.beams_predicted)}"
    if record.exits is not None:
        yield "  exits       a token that leaves there, alone (roofline / with layers)"
        for leaving in record.exits:
            times = f"{_milliseconds(leaving.seconds)} ms, {_pair(leaving.speedup)} times"
            yield f"    {leaving.layers:>3} layers        {times}"


def heading(record: DevicesRecord) -> str:
    """Returns the first printed line: the topology, its devices and their limits."""
    mesh = " x ".join(f"{size} {name}" for name, size in record.mesh.items())
    chip = record.chip
    return (
        f"{record.topology}: {counted(record.devices, 'device')} ({mesh}) of "
        f"{gib(chip.memory)} at {chip.bandwidth / 1e9:,.0f} GB/s, "
        f"{chip.flops / 1e12:,.0f} TFLOP/s in bfloat16"
    )


def memory_line(memory: ProgramMemory, parts: Mapping[str, float | None]) -> str:
    """Returns the printed line of a program's memory; `parts` maps names to bytes in it."""
    known = ", ".join(f"{name} {gib(size or 0)}" for name, size in parts.items())
    if memory.total is None:
        return f"  memory      does not fit: {memory.too_large}; {known}"
    room, caches = memory.left or 0, memory.caches or 0
    verdict = f"{gib(room)} left" if room > 0 else f"{gib(-room)} too much"
    others = "other temporaries" if memory.caches is not None else "temporaries"
    return (
        f"  memory      {gib(memory.total)} of {gib(memory.limit)}, {verdict} ({known}, "
        f"{others} {gib((memory.temporaries or 0) - caches)}, code {gib(memory.code or 0)})"
    )


def compiled_line(record: DevicesRecord) -> str:
    """Returns the printed line of each program's compile seconds."""
    seconds = (f"{name}: {s:.0f}" for name, s in record.compile_seconds.items())
    return f"  compiled    in seconds, {', '.join(seconds)}"


def _pair(numbers: Iterable[float], form: str = ".2f") -> str:
    return "/".join(f"{x:{form}}" for x in numbers)


def _milliseconds(seconds: Iterable[float]) -> str:
    return _pair(1e3 * x for x in seconds)


def explanation(records: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Yields the lines of the legend for all figures that some of the records have."""
    names = {"memory", *itertools.chain.from_iterable(records)}
    programs = (msgspec.convert(x["programs"], dict[str, ProgramContents]) for x in records)
    decode = [x["decode"] for x in programs if "decode" in x]
    names |= {"decode"} if decode else set()
    names |= {"top_k"} if any(program.top_k for program in decode) else set()
    names |= {"predicted"} if names & {"roofline", "exits", "beams_predicted"} else set()
    layer, gamma = LAYER_SECONDS * 1e6, records[0].get("gamma")
    yield ""
    for name, text in LEGEND.items():
        if name in names:
            yield from text.format(layer=layer, gamma=gamma).splitlines()


def _contents_lines(contents: ProgramContents) -> Iterator[str]:
    for path, kinds in (contents.collectives or {"": {}}).items():
        yield f"  {path or 'no loop':<11} {collectives_of(kinds)}"
    yield f"  loops       {_loops(contents.loops)}"
    counts = (f"{n} in {path or 'no loop'}" for path, n in contents.operations.items())
    yield f"  operations  {', '.join(counts)}"
    for path, kinds in contents.top_k.items():
        sorts = (f"{kind.count} of {shape}" for shape, kind in kinds.items())
        yield f"  top-k       {', '.join(sorts)} in {path or 'no loop'}"
    for path, largest in contents.largest.items():
        if path:
            yield f"  largest     {largest.shape} ({largest.bytes / 2**20:.2f} MiB) in {path}"
    elsewhere = [
        (path, kind, sums.count)
        for path, kinds in contents.sparse_core.items()
        for kind, sums in kinds.items()
    ]
    yield (
        f"  also        {contents.host_transfers} host transfers, "
        f"{contents.dynamic_shapes} dynamic shapes, {sum(n for *_, n in elsewhere)} on a SparseCore"
    )
    if waited_for := [x for x in elsewhere if x[0] or x[1] == "gather"]:
        counts = (f"{n} {kind} in {path or 'no loop'}" for path, kind, n in waited_for)
        yield (
            f"  warning     a SparseCore runs {', '.join(counts)}; waiting for it may take longer "
            "than running the same instructions in the program"
        )


def collectives_of(kinds: Mapping[str, CountAndBytes]) -> str:
    """Returns numbers and bytes of collectives as a phrase, such as "2 all-reduce (0.5 MiB)"."""
    listed = [f"{kind.count} {name} ({kind.bytes / 2**20:.2f} MiB)" for name, kind in kinds.items()]
    return ", ".join(listed) or "no collectives"


def _loops(loops: Sequence[hlo.Loop]) -> str:
    def shown(loop: hlo.Loop) -> str:
        trips = "" if loop.trip_count is None else f" x{loop.trip_count}"
        inner = f" {{ {_loops(loop.loops)} }}" if loop.loops else ""
        return f"{loop.name}{trips}{inner}"

    alike = Counter(map(shown, loops)).items()
    return ", ".join(text if n == 1 else f"{n} {text}" for text, n in alike) or "none"


def _predictions(record: TopologyRecord) -> tuple[RooflinePrediction, RooflinePrediction]:
    assert record.roofline is not None and record.with_layers is not None
    return record.roofline, record.with_layers


def _prediction_lines(record: TopologyRecord) -> Iterator[str]:
    gamma, both = record.gamma or 0, _predictions(record)
    for title, predicted in zip(PREDICTIONS.values(), both, strict=True):
        costs = f"{_costs(predicted)}, c {predicted.cost_ratio:.3f}"
        if gamma < len(predicted.verify_cost):
            costs += f", v({gamma}) {predicted.verify_cost[gamma]:.2f}"
        yield f"  {title:<11} {costs}"
    alone = _pair((1 / predicted.target for predicted in both), ".0f")
    at_tar = (
        f"{_pair((tar / predicted.iteration for predicted in both), '.0f')} at TAR {tar}"
        for tar in range(1, gamma + 2)
    )
    yield f"  tokens/s    {alone} alone; drafts of {gamma}: {', '.join(at_tar)}"
    yield "  speed-up    predicted, by draft tokens per call (roofline / with layers)"
    table = _speedups(record, "{} {}", "/")
    rows = (("    ", *cells) for cells in (table.header, *table.rows))
    yield from columns(rows, "", "<20", ">12")


def _costs(predicted: RooflinePrediction) -> str:
    return f"target {1e3 * predicted.target:.2f} ms, draft {1e3 * predicted.draft:.3f} ms"


def _speedups(record: TopologyRecord, label: str, between: str) -> PageTable:
    """Returns a table of both predicted speed-ups, a row per alpha, a column per draft length."""
    rows, both = [], _predictions(record)
    for name, alpha in (record.alphas or {}).items():
        shown = name if name == f"{alpha:g}" else label.format(f"{alpha:g}", name)
        pairs = zip(*(predicted.speedups[name] for predicted in both), strict=True)
        rows.append((shown, *(f"{a:.2f}{between}{b:.2f}" for a, b in pairs)))
    return PageTable("", ("alpha", *map(str, range(1, len(both[0].verify_cost)))), rows)


def _compiler_lines(record: TopologyRecord, estimate: CompilerEstimate) -> Iterator[str]:
    for name, part in estimate.parts.items():
        layer = part.fusions_per_layer
        of_layer = "" if layer is None else f" ({layer:g})"
        counts = f"{part.cycles:,} cycles, {part.fusions} fusions{of_layer}"
        if part.kernels:
            counts += f", {counted(part.kernels, 'Pallas kernel')} without cycles"
        yield f"  {'compiler':<11} {name}: {counts}"
    if estimate.cost_ratio is not None:
        yield f"  {'compiler':<11} {_compiler_costs(estimate, record.gamma or 0)}"


def _compiler_costs(estimate: CompilerEstimate, gamma: int) -> str:
    costs = f"c {estimate.cost_ratio:.3f}, v({gamma}) {estimate.verify_cost:.2f}"
    speedups = (f"{s:.2f} at alpha {alpha}" for alpha, s in estimate.speedups.items())
    return f"{costs}; speed-up with drafts of {gamma}: {', '.join(speedups)}"


def _beams(both: Sequence[BeamPrediction]) -> str:
    return (
        f"a step alone {_milliseconds(x.step for x in both)} ms, a call with its draft "
        f"{_milliseconds(x.iteration for x in both)} ms: it pays from "
        f"{_pair(x.pays_from for x in both)} steps per call"
    )


def markdown(several: Sequence[Mapping[str, object]]) -> str:
    """Returns Markdown tables of the records of several topologies, given as JSON fields."""
    records = [read(fields, TopologyRecord) for fields in several]
    decoding = [record for record in records if "decode" in record.programs]
    parts = [
        PageTable.of("", records, MEMORY).markdown(),
        "Collectives by loop, and compile times.",
        PageTable.of("", decoding, CONTENTS).markdown(),
        *itertools.chain.from_iterable(map(_of_topology, records)),
    ]
    return "\n\n".join(parts) + "\n"


def _of_topology(record: TopologyRecord) -> Iterator[str]:
    name = record.topology
    if record.roofline is not None:
        roofline, layers = _predictions(record)
        yield (
            f"{name}: {_costs(roofline)}, c {roofline.cost_ratio:.3f} by the roofline; "
            f"{1e3 * layers.target:.2f} ms, {1e3 * layers.draft:.3f} ms, c "
            f"{layers.cost_ratio:.3f} with {LAYER_SECONDS * 1e6:.0f} us for each layer. "
            "Speed-ups, roofline / with layers:"
        )
        yield _speedups(record, "{} ({})", " / ").markdown()
    if estimate := record.compiler:
        costs = ""
        if estimate.cost_ratio is not None:
            costs = f" {_compiler_costs(estimate, record.gamma or 0)}."
        yield f"{name}: the compiler's estimate, not a time.{costs}"
        yield PageTable.of("", estimate.parts.items(), CYCLES).markdown(" rrr")
    if record.exits is not None:
        yield f"{name}: tokens that leave the target, roofline / with layers:"
        yield PageTable.of("", record.exits, EXITS).markdown()
    if record.beams_predicted is not None:
        yield f"{name}: {_beams(record.beams_predicted)}."


def mesh_of(record: DevicesRecord) -> str:
    """Returns the sizes of a record's mesh, such as "1 x 4"."""
    return " x ".join(map(str, record.mesh.values()))


def _all_collectives(record: TopologyRecord) -> str:
    loops = record.programs["decode"].collectives.items()
    listed = (f"{path or 'no loop'}: {collectives_of(kinds)}" for path, kinds in loops)
    return "; ".join(listed) or "none"


def _total(record: TopologyRecord) -> str | None:
    memory = record.memory
    return memory.too_large if memory.total is None else gib(memory.total)


def _room(record: TopologyRecord) -> str:
    memory = record.memory
    return "does not fit" if memory.total is None else gib(memory.left or 0)


def gib(size: float) -> str:
    """Returns a number of bytes in GiB, such as "1.50 GiB"."""
    return f"{size / GIB:.2f} GiB"


# Column title -> a function from a row's object to its cell. Rows are records, pairs of a program's
# name and its cycles, or exits.
MEMORY: Mapping[str, Callable[[TopologyRecord], object]] = {
    "topology": operator.attrgetter("topology"),
    "mesh": mesh_of,
    "batch": operator.attrgetter("rows"),
    "parameters": lambda record: gib(record.memory.parameters),
    "caches": lambda record: gib(record.memory.caches or 0),
    "total": _total,
    "limit": lambda record: gib(record.memory.limit),
    "left": _room,
}
CONTENTS: Mapping[str, Callable[[TopologyRecord], object]] = {
    "topology": operator.attrgetter("topology"),
    "collectives": _all_collectives,
    "loops": lambda record: _loops(record.programs["decode"].loops),
    "seconds": lambda record: f"{record.compile_seconds['decode']:.0f}",
}
CYCLES: Mapping[str, Callable[[tuple[str, ProgramCycles]], object]] = {
    "program": operator.itemgetter(0),
    "cycles": lambda part: f"{part[1].cycles:,}",
    "fusions": lambda part: part[1].fusions,
    "fusions in a decoder layer": lambda part: number(part[1].fusions_per_layer, ""),
}
EXITS: Mapping[str, Callable[[Exit], object]] = {
    "layers": operator.attrgetter("layers"),
    "ms": lambda leaving: _milliseconds(leaving.seconds),
    "times as fast as the whole target": lambda leaving: _pair(leaving.speedup),
}
