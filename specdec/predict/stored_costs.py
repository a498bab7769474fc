"""Reads costs that `specdec bench` has measured, or `specdec compile` has computed."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import TypedDict

from specdec.common.json_values import JsonObject, converted, parsed
from specdec.common.records import Lines, RecordsError
from specdec.measure import estimator
from specdec.measure.file import Timing, record
from specdec.measure.parts import PREFILL, PREFILL_ALONE, STEPS
from specdec.predict.costs import Costs
from specdec.predict.hardware import Call, Chip
from specdec.predict.roofline import roofline_costs


class _Assumed(TypedDict):
    layer_seconds: float


@dataclasses.dataclass(frozen=True)
class _Topology:
    topology: str
    calls: dict[str, Call] = dataclasses.field(default_factory=dict)
    chip: Chip | None = None
    assumed: _Assumed = dataclasses.field(default_factory=lambda: _Assumed(layer_seconds=0.0))


class _Compiled(TypedDict):
    topologies: list[_Topology]


def read(path: str, topology: str | None) -> Costs:
    """Returns the costs in a file of `specdec bench`, `specdec compile` or `specdec tune`."""
    if not Path(path).is_file():
        raise RecordsError(f"--costs {path} does not exist; give a file of `specdec bench`")
    fields = _json(path)
    try:
        if "topologies" in fields:
            return of_compile(path, topology)
        if topology is not None:
            raise RecordsError(
                f"--topology is {topology}, and {path} is not a file of `specdec compile`; leave "
                "--topology out"
            )
        return Costs.of_record(fields) if fields.keys() == set(Costs._fields) else of_bench(path)
    except RecordsError:
        raise
    except (TypeError, ValueError) as error:
        raise RecordsError(f"--costs {path} {error}; measure again") from error


def of_bench(path: str) -> Costs:
    """Returns the median costs in a file that `specdec bench --output_file` wrote."""
    records = Lines(Path(path)).map(record, "bench")
    seconds = estimator.seconds_per_call(x for x in records if isinstance(x, Timing))
    if not ({PREFILL, PREFILL_ALONE} <= seconds.keys() and seconds.keys() & {*STEPS}):
        raise RecordsError(
            f"{path} has no timings of parts; give the lines of `specdec bench`, or leave --costs "
            "out to measure here"
        )
    return estimator.costs_of({key: statistics.median(x) for key, x in seconds.items()}, path)


def of_compile(path: str, topology: str | None) -> Costs:
    """Returns a topology's costs by the roofline, without prefill, in a `specdec compile` file."""
    fields = {"topologies": _json(path).get("topologies", [])}
    topologies = converted(fields, _Compiled)["topologies"]
    with_calls = {x.topology: x for x in topologies if x.calls and x.chip}
    name = topology or (next(iter(with_calls), None) if len(topologies) == 1 else None)
    if name not in with_calls:
        raise RecordsError(
            f"{path} has no calls of topology {topology}; give --topology=NAME of "
            f"{', '.join(with_calls) or 'another file'}"
        )
    compiled = with_calls[name]
    assert compiled.chip is not None
    source, layer_seconds = f"{path}, a roofline of {name}", compiled.assumed["layer_seconds"]
    return roofline_costs(compiled.calls, compiled.chip, source, layer_seconds)


def _json(path: str) -> JsonObject:
    """Returns the JSON object in a file, {} if the file has something else."""
    try:
        return parsed(Path(path).read_bytes())
    except ValueError:
        return {}
