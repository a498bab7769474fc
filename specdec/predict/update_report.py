"""The report of `specdec compile` on a training run: a record, as text and as Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specdec.common.tables import PageTable
from specdec.common.terminal import counted
from specdec.predict.compile_record import (
    CountAndBytes,
    DevicesRecord,
    ProgramMemory,
    memory_of,
    of_devices,
    read,
)
from specdec.predict.compile_report import (
    collectives_of,
    compiled_line,
    gib,
    heading,
    memory_line,
    mesh_of,
)
from specdec.predict.hardware import HOP_SECONDS, Topology
from specdec.predict.update import CompiledUpdate, fits, needed

HEADER = ("topology", "mesh", "texts at a time", "parameters", "optimizer", "target", "temporaries",
          "total", "limit", "all-reduces", "s per update", "updates/s", "chip hours per 1,000",
          "largest batch")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class UpdateTimes:
    """The time of an update by the roofline, in seconds, and what follows from it."""

    computing: float
    reading: float
    exchanging: float
    seconds: float
    updates_per_second: float
    texts_per_second: float
    chip_hours_per_1000_updates: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictedUpdate:
    """The collectives of an update that fits, and its time."""

    collectives: Mapping[str, CountAndBytes] | None = None
    gathered_target_parameters: Sequence[str] | None = None
    roofline: UpdateTimes | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargestUpdate(PredictedUpdate):
    texts_at_a_time: int
    memory: ProgramMemory


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateRecord(DevicesRecord, PredictedUpdate):
    """All figures of a topology; advice only for an update that does not fit."""

    texts: int
    micro_batches: int
    inputs: int
    targets: int
    rematerialise: bool = False
    target_dtype: str | None = None
    advice: str | None = None
    largest: LargestUpdate | None = None

    def fields(self) -> dict[str, object]:
        return super().fields() | {"target_dtype": self.target_dtype}


def update_record(
    topology: Topology, update: CompiledUpdate, largest: CompiledUpdate | None = None
) -> dict[str, object]:
    """Returns the fields of a topology's record."""
    run, room = update.run, fits(update, topology.chip)
    more = (
        None
        if largest is None
        else LargestUpdate(
            texts_at_a_time=largest.texts,
            memory=_memory(topology, largest),
            **_predicted(topology, largest),
        )
    )
    return UpdateRecord(
        **of_devices(topology, update.mesh, *filter(None, (update.whole, update.optimizer))),
        texts=run.batch_size,
        micro_batches=run.micro_batches,
        inputs=run.lengths["inputs"],
        targets=run.lengths["targets"],
        rematerialise=run.rematerialise,
        dtype=run.model.dtype,
        target_dtype=run.target and run.target.dtype,
        memory=_memory(topology, update),
        assumed={"hop_seconds": HOP_SECONDS},
        advice=None if room else advice(topology, update),
        largest=more,
        **(_predicted(topology, update) if room else {}),
    ).fields()


def _memory(topology: Topology, update: CompiledUpdate) -> ProgramMemory:
    lacking = None if update.whole.memory else needed(update)
    return memory_of(dataclasses.asdict(update.sizes), update.whole, topology, lacking)


def _predicted(topology: Topology, update: CompiledUpdate) -> dict[str, Any]:
    """Returns the collectives of an update, and its time by the roofline."""
    chip, call = topology.chip, update.call()
    computing, reading = call.flops / chip.flops, call.bytes / chip.bandwidth
    seconds, sizes = call.seconds(chip, 1), update.exchanged()
    return {
        "collectives": {
            kind: CountAndBytes(count, sizes[kind]) for kind, count in update.collectives().items()
        },
        "gathered_target_parameters": [one.shape for one in update.gathered()],
        "roofline": UpdateTimes(
            computing=computing,
            reading=reading,
            exchanging=seconds - max(computing, reading),
            seconds=seconds,
            updates_per_second=1 / seconds,
            texts_per_second=update.run.batch_size / seconds,
            chip_hours_per_1000_updates=1000 * seconds * topology.size / 3600,
        ),
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


def update_lines(fields: Mapping[str, object]) -> Iterator[str]:
    """Yields the lines of a record, for people."""
    found = read(fields, UpdateRecord)
    memory = found.memory
    yield heading(found)
    yield memory_line(memory, _parts(memory))
    if found.target_dtype is not None:
        yield (
            f"  of these    gradients {gib(memory.gradients or 0)}, the target's keys and values "
            f"{gib(memory.target_cache or 0)} and its logits {gib(memory.target_logits or 0)}, if "
            "all are kept at the same time"
        )
    yield compiled_line(found)
    yield (
        f"  update      {counted(found.texts, 'text')}, "
        f"{counted(found.texts // found.micro_batches, 'text')} at a time; inputs of "
        f"{found.inputs} tokens, targets of {found.targets}"
    )
    if found.roofline is not None:
        yield from _predicted_lines(found, found.roofline)
    if found.advice is not None:
        yield f"  change      {found.advice}"
    if found.largest is not None:
        largest = found.largest
        yield (
            f"  largest     {counted(largest.texts_at_a_time, 'text')} at a time fit, in "
            f"{gib(largest.memory.total or 0)}"
        )


def _predicted_lines(found: UpdateRecord, made: UpdateTimes) -> Iterator[str]:
    yield f"  exchange    {collectives_of(found.collectives or {})}"
    gathered = found.gathered_target_parameters or ()
    whole = f"{len(gathered)}: {', '.join(gathered)}" if gathered else "none"
    yield f"  gathered    parameters of the target that are gathered whole: {whole}"
    yield (
        f"  roofline    {made.seconds:.2f} s for an update: {made.computing:.2f} s of "
        f"arithmetic, {made.reading:.2f} s of memory, {made.exchanging:.2f} s of exchange"
    )
    yield (
        f"  speed       {made.updates_per_second:.2f} updates and "
        f"{made.texts_per_second:.0f} texts a second, {made.chip_hours_per_1000_updates:.2f} "
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


def update_markdown(several: Sequence[Mapping[str, object]]) -> str:
    """Returns a table of the records of several topologies."""
    records = [read(fields, UpdateRecord) for fields in several]
    return PageTable("", HEADER, list(map(_row, records))).markdown() + "\n"


def _parts(memory: ProgramMemory) -> dict[str, float | None]:
    return {name: getattr(memory, name) for name in ("parameters", "optimizer", "target")}


def _row(found: UpdateRecord) -> tuple[object, ...]:
    memory = found.memory
    sizes = memory.temporaries, memory.total, memory.limit
    predicted = ["", "", "", ""]
    if times := found.roofline:
        reduced = (found.collectives or {}).get("all-reduce", CountAndBytes(0, 0))
        predicted = [
            f"{reduced.count:,}",
            f"{times.seconds:.2f}",
            f"{times.updates_per_second:.2f}",
            f"{times.chip_hours_per_1000_updates:.2f}",
        ]
    return (
        found.topology,
        mesh_of(found),
        found.texts // found.micro_batches,
        *(gib(size or 0) for size in _parts(memory).values()),
        *("does not fit" if size is None else gib(size) for size in sizes),
        *predicted,
        found.largest.texts_at_a_time if found.largest else "",
    )
