"""The record of `specdec compile` for a training run, and its text and Markdown."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specdec.common.tables import PageTable, number
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

PARTS = ("parameters", "optimizer", "target")  # fields of ProgramMemory that are printed first


@dataclasses.dataclass(frozen=True)
class UpdateTimes:
    """The times of an update predicted by the roofline."""

    computing: float  # seconds of arithmetic
    reading: float  # seconds to read memory
    exchanging: float  # seconds of collectives
    seconds: float  # of an update: max(computing, reading) + exchanging
    updates_per_second: float
    texts_per_second: float
    chip_hours_per_1000_updates: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictedUpdate:
    """The collectives and times of an update; all None if it does not fit."""

    collectives: Mapping[str, CountAndBytes] | None = None  # by opcode
    gathered_target_parameters: Sequence[str] | None = None  # shapes of those gathered whole
    roofline: UpdateTimes | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargestUpdate(PredictedUpdate):
    texts_at_a_time: int
    memory: ProgramMemory


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateRecord(DevicesRecord, PredictedUpdate):
    """The figures of an update for a topology; `advice` only if the update does not fit."""

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
    """Returns the JSON fields of an update's record; `largest` has the largest batch that fits."""
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
        **of_devices(topology, update.mesh, *filter(None, (update.program, update.optimizer))),
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
    lacking = None if update.program.memory else needed(update)
    return memory_of(dataclasses.asdict(update.sizes), update.program, topology, lacking)


def _predicted(topology: Topology, update: CompiledUpdate) -> dict[str, Any]:
    """Returns the fields of `PredictedUpdate` for an update that fits."""
    chip, call = topology.chip, update.call()
    computing, reading = call.flops / chip.flops, call.bytes / chip.bandwidth
    seconds, sizes = call.seconds(chip, 1), update.exchanged()
    return {
        "collectives": {
            kind: CountAndBytes(count, sizes[kind]) for kind, count in update.collectives().items()
        },
        "gathered_target_parameters": [gather.shape for gather in update.gathered()],
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
    """Returns a sentence that says which settings could make an update fit."""
    run, data = update.run, update.mesh["data"]
    limit = topology.chip.memory
    remedies = []
    if update.sizes.fixed < limit:
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
    """Yields the printed lines of an update's record, given as its JSON fields."""
    record = read(fields, UpdateRecord)
    memory = record.memory
    yield heading(record)
    yield memory_line(memory, {name: getattr(memory, name) for name in PARTS})
    if record.target_dtype is not None:
        yield (
            f"  temporaries gradients {gib(memory.gradients or 0)}, the target's keys and values "
            f"{gib(memory.target_cache or 0)} and its logits {gib(memory.target_logits or 0)}, if "
            "all exist at the same time"
        )
    yield compiled_line(record)
    yield (
        f"  update      {counted(record.texts, 'text')}, "
        f"{counted(record.texts // record.micro_batches, 'text')} at a time; inputs of "
        f"{record.inputs} tokens, targets of {record.targets}"
    )
    if record.roofline is not None:
        yield from _predicted_lines(record, record.roofline)
    if record.advice is not None:
        yield f"  change      {record.advice}"
    if largest := record.largest:
        yield (
            f"  largest     {counted(largest.texts_at_a_time, 'text')} at a time fit, in "
            f"{gib(largest.memory.total or 0)}"
        )


def _predicted_lines(record: UpdateRecord, times: UpdateTimes) -> Iterator[str]:
    yield f"  exchange    {collectives_of(record.collectives or {})}"
    gathered = record.gathered_target_parameters or ()
    listed = f"{len(gathered)}: {', '.join(gathered)}" if gathered else "none"
    yield f"  gathered    parameters of the target that are gathered whole: {listed}"
    yield (
        f"  roofline    {times.seconds:.2f} s for an update: {times.computing:.2f} s of "
        f"arithmetic, {times.reading:.2f} s of memory, {times.exchanging:.2f} s of exchange"
    )
    yield (
        f"  speed       {times.updates_per_second:.2f} updates and "
        f"{times.texts_per_second:.0f} texts a second, {times.chip_hours_per_1000_updates:.2f} "
        "chip hours for 1,000 updates"
    )


def update_explanation() -> Iterator[str]:
    """Yields the legend of the lines that `update_lines` yields."""
    yield ""
    yield "memory: bytes of the update's program on one device; compiled: seconds for each program"
    yield "exchange: communication of the devices in an update, with the bytes of its results"
    yield (
        "roofline: the longer of reading memory and arithmetic, plus communication; the body of a "
        "loop within a micro-batch is counted once"
    )


def update_markdown(several: Sequence[Mapping[str, object]]) -> str:
    """Returns a Markdown table of the records of several topologies, given as JSON fields."""
    records = [read(fields, UpdateRecord) for fields in several]
    return PageTable.of("", records, COLUMNS).markdown() + "\n"


def _size(name: str, record: UpdateRecord) -> str:
    size = getattr(record.memory, name)
    return "does not fit" if size is None and name not in PARTS else gib(size or 0)


def _all_reduces(record: UpdateRecord) -> str:
    if record.roofline is None:
        return ""
    return f"{(record.collectives or {}).get('all-reduce', CountAndBytes(0, 0)).count:,}"


def _time(name: str, record: UpdateRecord) -> str:
    return number(record.roofline and getattr(record.roofline, name), ".2f")


COLUMNS: Mapping[str, Callable[[UpdateRecord], object]] = {
    "topology": operator.attrgetter("topology"),
    "mesh": mesh_of,
    "texts at a time": lambda record: record.texts // record.micro_batches,
    **{x: functools.partial(_size, x) for x in (*PARTS, "temporaries", "total", "limit")},
    "all-reduces": _all_reduces,
    "s per update": functools.partial(_time, "seconds"),
    "updates/s": functools.partial(_time, "updates_per_second"),
    "chip hours per 1,000": functools.partial(_time, "chip_hours_per_1000_updates"),
    "largest batch": lambda record: record.largest.texts_at_a_time if record.largest else "",
}
