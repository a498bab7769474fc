"""The report of `specdec compile` on a training run: a record, as text and as Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from specdec.common.json_values import JsonObject
from specdec.common.tables import Table
from specdec.common.terminal import counted
from specdec.instrument.compile.compile_report import (
    collectives_of,
    compiled_line,
    devices_of,
    gib,
    heading,
    memory_line,
    memory_of,
    mesh_of,
    programs_of,
)
from specdec.instrument.compile.hardware import HOP_SECONDS, Topology
from specdec.instrument.compile.update import CompiledUpdate, fits, needed

HEADER = ("topology", "mesh", "texts at a time", "parameters", "optimizer", "target", "temporaries",
          "total", "limit", "all-reduces", "s per update", "updates/s", "chip hours per 1,000",
          "largest batch")  # fmt: skip


def update_record(
    topology: Topology, update: CompiledUpdate, largest: CompiledUpdate | None = None
) -> dict[str, Any]:
    """Returns all figures of a topology, ready for JSON: bytes and seconds, per device."""
    run = update.run
    found = {
        **devices_of(topology, update.mesh),
        "texts": run.batch_size,
        "micro_batches": run.micro_batches,
        "inputs": run.lengths["inputs"],
        "targets": run.lengths["targets"],
        "rematerialise": run.rematerialise,
        "dtype": run.model.dtype,
        "target_dtype": run.target and run.target.dtype,
        "memory": _memory(topology, update),
        **programs_of(*filter(None, (update.whole, update.optimizer))),
        "assumed": {"hop_seconds": HOP_SECONDS},
    }
    if fits(update, topology.chip):
        found |= _predicted(topology, update)
    else:
        found["advice"] = advice(topology, update)
    if largest is not None:
        memory = {"texts_at_a_time": largest.texts, "memory": _memory(topology, largest)}
        found["largest"] = memory | _predicted(topology, largest)
    return found


def _memory(topology: Topology, update: CompiledUpdate) -> dict[str, object]:
    found = memory_of(dataclasses.asdict(update.sizes), update.whole, topology)
    return found | ({} if update.whole.memory else {"needed": needed(update)})


def _predicted(topology: Topology, update: CompiledUpdate) -> dict[str, object]:
    """Returns the collectives of an update, and its time by the roofline."""
    chip, call = topology.chip, update.call()
    computing, reading = call.flops / chip.flops, call.bytes / chip.bandwidth
    seconds = call.seconds(chip, 1)
    sizes = update.exchanged()
    return {
        "collectives": {
            kind: {"count": count, "bytes": sizes[kind]}
            for kind, count in update.collectives().items()
        },
        "gathered_target_parameters": [one.shape for one in update.gathered()],
        "roofline": {
            "computing": computing,
            "reading": reading,
            "exchanging": seconds - max(computing, reading),
            "seconds": seconds,
            "updates_per_second": 1 / seconds,
            "texts_per_second": update.run.batch_size / seconds,
            "chip_hours_per_1000_updates": 1000 * seconds * topology.size / 3600,
        },
    }


def advice(topology: Topology, update: CompiledUpdate) -> str:
    """Returns one sentence on how an update that does not fit can be made to fit."""
    run, data = update.run, update.mesh["data"]
    sizes, limit = update.sizes, topology.chip.memory
    fixed = sizes.parameters + sizes.optimizer + sizes.gradients + sizes.target
    remedies = []
    if fixed < limit:
        if update.texts > data:
            most = run.batch_size // data
            remedies.append(f"more MICRO_BATCHES (now {run.micro_batches}, at most {most})")
            remedies.append(f"a smaller BATCH_SIZE (now {run.batch_size})")
        if not run.rematerialise:
            remedies.append("REMATERIALISE = True")
    if update.mesh["model"] < topology.device_count:
        remedies.append(f"more NUM_PARTITIONS (now {update.mesh['model']})")
    remedies.append("more chips")
    *others, last = remedies
    listed = f"{', '.join(others)} or {last}" if others else last
    return f"an update needs {gib(needed(update))} of {gib(limit)}; give {listed}"


def update_lines(found: JsonObject) -> Iterator[str]:
    """Yields the lines of a record, for people."""
    memory = found["memory"]
    yield heading(found)
    yield memory_line(memory, "parameters", "optimizer", "target")
    if found["target_dtype"] is not None:
        yield (
            f"  of these    gradients {gib(memory['gradients'])}, the target's keys and values "
            f"{gib(memory['target_cache'])} and its logits {gib(memory['target_logits'])}, if all "
            "are kept at the same time"
        )
    yield compiled_line(found)
    yield (
        f"  update      {counted(found['texts'], 'text')}, "
        f"{counted(found['texts'] // found['micro_batches'], 'text')} at a time; inputs of "
        f"{found['inputs']} tokens, targets of {found['targets']}"
    )
    if "roofline" in found:
        yield from _predicted_lines(found)
    if "advice" in found:
        yield f"  change      {found['advice']}"
    if "largest" in found:
        largest = found["largest"]
        yield (
            f"  largest     {counted(largest['texts_at_a_time'], 'text')} at a time fit, in "
            f"{gib(largest['memory']['total'])}"
        )


def _predicted_lines(found: JsonObject) -> Iterator[str]:
    yield f"  exchange    {collectives_of(found['collectives'])}"
    gathered = found["gathered_target_parameters"]
    whole = f"{len(gathered)}: {', '.join(gathered)}" if gathered else "none"
    yield f"  gathered    parameters of the target that are gathered whole: {whole}"
    made = found["roofline"]
    yield (
        f"  roofline    {made['seconds']:.2f} s for an update: {made['computing']:.2f} s of "
        f"arithmetic, {made['reading']:.2f} s of memory, {made['exchanging']:.2f} s of exchange"
    )
    yield (
        f"  speed       {made['updates_per_second']:.2f} updates and "
        f"{made['texts_per_second']:.0f} texts a second, {made['chip_hours_per_1000_updates']:.2f} "
        "chip hours for 1,000 updates"
    )


def update_explanation() -> Iterator[str]:
    """Yields the legend of the lines of a record."""
    yield ""
    yield "memory: bytes of the update's program on one device; compiled: seconds for each program"
    yield "exchange: communication of the devices in an update, with the bytes of its results"
    yield (
        "roofline: reading memory or arithmetic, whichever takes longer, then communicating; "
        "operations of loops within a micro-batch are counted once"
    )


def update_markdown(records: Sequence[JsonObject]) -> str:
    """Returns a table of several topologies."""
    return Table("", HEADER, list(map(_row, records))).markdown() + "\n"


def _row(found: JsonObject) -> tuple[object, ...]:
    memory = found["memory"]
    sizes = memory.get("temporaries"), memory.get("total"), memory.get("limit")
    predicted = ["", "", "", ""]
    if "roofline" in found:
        times, reduced = found["roofline"], found["collectives"].get("all-reduce", {"count": 0})
        predicted = [
            f"{reduced['count']:,}",
            f"{times['seconds']:.2f}",
            f"{times['updates_per_second']:.2f}",
            f"{times['chip_hours_per_1000_updates']:.2f}",
        ]
    return (
        found["topology"],
        mesh_of(found),
        found["texts"] // found["micro_batches"],
        *map(gib, (memory["parameters"], memory["optimizer"], memory["target"])),
        *("does not fit" if size is None else gib(size) for size in sizes),
        *predicted,
        found["largest"]["texts_at_a_time"] if "largest" in found else "",
    )
