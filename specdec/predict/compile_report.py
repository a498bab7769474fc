"""The record of `specdec compile` as text and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from specdec.common.tables import PageTable, columns
from specdec.common.terminal import counted
from specdec.predict import hlo
from specdec.predict.compile_record import (
    PREDICTIONS,
    CountAndBytes,
    DevicesRecord,
    ProgramContents,
    ProgramMemory,
    TopologyRecord,
    read,
)
from specdec.predict.cycles import CompilerEstimate
from specdec.predict.hardware import GIB, LAYER_SECONDS
from specdec.predict.roofline import BeamPrediction, RooflinePrediction

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


def lines(fields: Mapping[str, object]) -> Iterator[str]:
    """Yields the lines of a record, for people."""
    found = read(fields, TopologyRecord)
    yield heading(found)
    memory = found.memory
    yield memory_line(memory, {"parameters": memory.parameters, "caches": memory.caches})
    yield compiled_line(found)
    if "decode" in found.programs:
        yield from _contents_lines(found.programs["decode"])
    if found.roofline is not None:
        yield from _prediction_lines(found)
    if found.compiler is not None:
        yield from _compiler_lines(found, found.compiler)
    if found.beams_predicted is not None:
        yield f"  beams       {_beams(found.beams_predicted)}"
    if found.exits is not None:
        yield "  exits       a token that leaves there, alone (roofline / with layers)"
        for one in found.exits:
            times = f"{_milliseconds(one.seconds)} ms, {_pair(one.speedup)} times"
            yield f"    {one.layers:>3} layers        {times}"


def heading(found: DevicesRecord) -> str:
    """Returns the first line of a record: its devices."""
    mesh = " x ".join(f"{size} {name}" for name, size in found.mesh.items())
    chip = found.chip
    return (
        f"{found.topology}: {counted(found.devices, 'device')} ({mesh}) of "
        f"{gib(chip.memory)} at {chip.bandwidth / 1e9:,.0f} GB/s, "
        f"{chip.flops / 1e12:,.0f} TFLOP/s in bfloat16"
    )


def memory_line(memory: ProgramMemory, parts: Mapping[str, float | None]) -> str:
    """Returns the line of a program's memory, with these parts of it."""
    known = ", ".join(f"{name} {gib(size or 0)}" for name, size in parts.items())
    if memory.total is None:
        return f"  memory      does not fit: {memory.too_large}; {known}"
    left, caches = memory.left or 0, memory.caches or 0
    verdict = f"{gib(left)} left" if left > 0 else f"{gib(-left)} too much"
    others = "other temporaries" if memory.caches is not None else "temporaries"
    return (
        f"  memory      {gib(memory.total)} of {gib(memory.limit)}, {verdict} ({known}, "
        f"{others} {gib((memory.temporaries or 0) - caches)}, code {gib(memory.code or 0)})"
    )


def compiled_line(found: DevicesRecord) -> str:
    """Returns the line of the seconds in which programs were compiled."""
    seconds = (f"{name}: {s:.0f}" for name, s in found.compile_seconds.items())
    return f"  compiled    in seconds, {', '.join(seconds)}"


def _pair(numbers: Iterable[float], form: str = ".2f") -> str:
    """Returns the figures by the roofline and with layers."""
    return "/".join(f"{x:{form}}" for x in numbers)


def _milliseconds(seconds: Iterable[float]) -> str:
    return _pair(1e3 * x for x in seconds)


def explanation(records: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Yields the legend of some records, for the figures that they have."""
    names = {"memory", *(name for found in records for name in found)}
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


def _contents_lines(whole: ProgramContents) -> Iterator[str]:
    for path, kinds in (whole.collectives or {"": {}}).items():
        yield f"  {path or 'no loop':<11} {collectives_of(kinds)}"
    yield f"  loops       {_loops(whole.loops)}"
    counts = (f"{n} in {path or 'no loop'}" for path, n in whole.operations.items())
    yield f"  operations  {', '.join(counts)}"
    for path, kinds in whole.top_k.items():
        sorts = (f"{kind.count} of {shape}" for shape, kind in kinds.items())
        yield f"  top-k       {', '.join(sorts)} in {path or 'no loop'}"
    for path, one in whole.largest.items():
        if path:
            yield f"  largest     {one.shape} ({one.bytes / 2**20:.2f} MiB) in {path}"
    there = [
        (path, kind, found.count)
        for path, kinds in whole.sparse_core.items()
        for kind, found in kinds.items()
    ]
    yield (
        f"  also        {whole.host_transfers} host transfers, "
        f"{whole.dynamic_shapes} dynamic shapes, {sum(n for *_, n in there)} on a SparseCore"
    )
    waited_for = [(path, kind, n) for path, kind, n in there if path or kind == "gather"]
    if waited_for:
        counts = (f"{n} {kind} in {path or 'no loop'}" for path, kind, n in waited_for)
        yield (
            f"  warning     a SparseCore runs {', '.join(counts)}; the program may wait longer for "
            "it than it takes in the program itself"
        )


def collectives_of(kinds: Mapping[str, CountAndBytes]) -> str:
    """Returns collectives in one phrase."""
    listed = [f"{kind.count} {name} ({kind.bytes / 2**20:.2f} MiB)" for name, kind in kinds.items()]
    return ", ".join(listed) or "no collectives"


def _loops(loops: Sequence[hlo.Loop]) -> str:
    def one(loop: hlo.Loop) -> str:
        trips = "" if loop.trip_count is None else f" x{loop.trip_count}"
        inner = f" {{ {_loops(loop.loops)} }}" if loop.loops else ""
        return f"{loop.name}{trips}{inner}"

    alike = Counter(map(one, loops)).items()
    return ", ".join(text if n == 1 else f"{n} {text}" for text, n in alike) or "none"


def _predictions(found: TopologyRecord) -> tuple[RooflinePrediction, RooflinePrediction]:
    """Returns the predictions by the roofline and with layers."""
    assert found.roofline is not None and found.with_layers is not None
    return found.roofline, found.with_layers


def _prediction_lines(found: TopologyRecord) -> Iterator[str]:
    gamma, both = found.gamma or 0, _predictions(found)
    for title, one in zip(PREDICTIONS.values(), both, strict=True):
        shown = f", v({gamma}) {one.verify_cost[gamma]:.2f}" if gamma < len(one.verify_cost) else ""
        yield f"  {title:<11} {_costs(one)}, c {one.cost_ratio:.3f}{shown}"
    alone = _pair((1 / one.target for one in both), ".0f")
    at_tar = (
        f"{_pair((tar / one.iteration for one in both), '.0f')} at TAR {tar}"
        for tar in range(1, gamma + 2)
    )
    yield f"  tokens/s    {alone} alone; drafts of {gamma}: {', '.join(at_tar)}"
    yield "  speed-up    predicted, by draft tokens per call (roofline / with layers)"
    table = _speedups(found, "{} {}", "/")
    rows = (("    ", *cells) for cells in (table.header, *table.rows))
    yield from columns(rows, "", "<20", ">12")


def _costs(one: RooflinePrediction) -> str:
    return f"target {1e3 * one.target:.2f} ms, draft {1e3 * one.draft:.3f} ms"


def _speedups(found: TopologyRecord, label: str, between: str) -> PageTable:
    """Returns both predictions for each alpha, whose label has this form, and draft length."""
    rows, both = [], _predictions(found)
    for name, alpha in (found.alphas or {}).items():
        shown = name if name == f"{alpha:g}" else label.format(f"{alpha:g}", name)
        pairs = zip(*(one.speedups[name] for one in both), strict=True)
        rows.append((shown, *(f"{a:.2f}{between}{b:.2f}" for a, b in pairs)))
    return PageTable("", ("alpha", *map(str, range(1, len(both[0].verify_cost)))), rows)


def _compiler_lines(found: TopologyRecord, made: CompilerEstimate) -> Iterator[str]:
    for name, part in made.parts.items():
        layer = part.fusions_per_layer
        of_layer = "" if layer is None else f" ({layer:g})"
        counts = f"{part.cycles:,} cycles, {part.fusions} fusions{of_layer}"
        own = counted(part.kernels, "kernel") if part.kernels else ""
        more = f", {own} of our own without cycles" if own else ""
        yield f"  {'compiler':<11} {name}: {counts}{more}"
    if made.cost_ratio is not None:
        yield f"  {'compiler':<11} {_compiler_costs(made, found.gamma or 0)}"


def _compiler_costs(made: CompilerEstimate, gamma: int) -> str:
    """Returns c, v and the speed-ups that follow from the compiler's cycles."""
    costs = f"c {made.cost_ratio:.3f}, v({gamma}) {made.verify_cost:.2f}"
    speedups = (f"{s:.2f} at alpha {alpha}" for alpha, s in made.speedups.items())
    return f"{costs}; speed-up with drafts of {gamma}: {', '.join(speedups)}"


def _beams(both: Sequence[BeamPrediction]) -> str:
    return (
        f"a step alone {_milliseconds(one.step for one in both)} ms, a call with its draft "
        f"{_milliseconds(one.iteration for one in both)} ms: it pays from "
        f"{_pair(one.pays_from for one in both)} steps per call"
    )


def markdown(several: Sequence[Mapping[str, object]]) -> str:
    """Returns tables of the records of several topologies."""
    records = [read(fields, TopologyRecord) for fields in several]
    whole = [_contents_row(found) for found in records if "decode" in found.programs]
    parts = [
        PageTable("", MEMORY, list(map(_memory_row, records))).markdown(),
        "Collectives, by the loop they are in, and compile times.",
        PageTable("", ("topology", "collectives", "loops", "seconds"), whole).markdown(),
        *(part for found in records for part in _of_topology(found)),
    ]
    return "\n\n".join(parts) + "\n"


def _of_topology(found: TopologyRecord) -> Iterator[str]:
    """Yields the texts and the tables of one topology."""
    name = found.topology
    if found.roofline is not None:
        roofline, layers = _predictions(found)
        yield (
            f"{name}: {_costs(roofline)}, c {roofline.cost_ratio:.3f} by the roofline; "
            f"{1e3 * layers.target:.2f} ms, {1e3 * layers.draft:.3f} ms, c "
            f"{layers.cost_ratio:.3f} with {LAYER_SECONDS * 1e6:.0f} us for each layer. "
            "Speed-ups, roofline / with layers:"
        )
        yield _speedups(found, "{} ({})", " / ").markdown()
    if found.compiler is not None:
        estimated = found.compiler
        known = estimated.cost_ratio is not None
        costs = f" {_compiler_costs(estimated, found.gamma or 0)}." if known else ""
        yield f"{name}: the compiler's own estimate, not a time.{costs}"
        rows = []
        for program, part in estimated.parts.items():
            layer = part.fusions_per_layer
            of_layer = "" if layer is None else layer
            rows.append((program, f"{part.cycles:,}", part.fusions, of_layer))
        header = ("program", "cycles", "fusions", "fusions in a decoder layer")
        yield PageTable("", header, rows).markdown(" rrr")
    if found.exits is not None:
        yield f"{name}: tokens that leave the target, roofline / with layers:"
        rows = [(one.layers, _milliseconds(one.seconds), _pair(one.speedup)) for one in found.exits]
        header = ("layers", "ms", "times as fast as the whole target")
        yield PageTable("", header, rows).markdown()
    if found.beams_predicted is not None:
        yield f"{name}: {_beams(found.beams_predicted)}."


def mesh_of(found: DevicesRecord) -> str:
    """Returns the sizes of a record's mesh, in one phrase."""
    return " x ".join(map(str, found.mesh.values()))


def _memory_row(found: TopologyRecord) -> tuple[object, ...]:
    memory = found.memory
    fits = memory.total is not None
    return (
        found.topology,
        mesh_of(found),
        found.rows,
        gib(memory.parameters),
        gib(memory.caches or 0),
        memory.too_large if memory.total is None else gib(memory.total),
        gib(memory.limit),
        gib(memory.left or 0) if fits else "does not fit",
    )


def _contents_row(found: TopologyRecord) -> tuple[object, ...]:
    whole = found.programs["decode"]
    kinds = "; ".join(
        f"{path or 'no loop'}: {collectives_of(kinds)}" for path, kinds in whole.collectives.items()
    )
    seconds = f"{found.compile_seconds['decode']:.0f}"
    return found.topology, kinds or "none", _loops(whole.loops), seconds


def gib(size: float) -> str:
    """Returns a number of bytes, for people."""
    return f"{size / GIB:.2f} GiB"
