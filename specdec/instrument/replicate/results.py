"""The figures of a study's rows, read from the files of their commands."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specdec.instrument.replicate.steps import HERE, Work, forecast_path
from specdec.instrument.replicate.study import Row

PAPER, RECORDED = "given acceptance", "recorded texts"


@dataclasses.dataclass(frozen=True)
class Predicted:
    """A predicted speed-up.

    Attributes:
      where: the topology, or `steps.HERE`.
      by: the acceptance that it follows from.
      speedup: over the target alone.
    """

    where: str
    by: str
    speedup: float


@dataclasses.dataclass(frozen=True)
class Chip:
    """A row's run on a topology.

    Attributes:
      memory: bytes of one device; None if the program does not fit.
      said: what the compiler says if it does not fit, or how the memory was counted.
      limit: bytes of a device.
      cost_ratio: c.
      pays_from: the tokens per call from which speculation is faster than the target alone.
    """

    memory: int | None
    said: str
    limit: int
    cost_ratio: float | None = None
    pays_from: float | None = None


@dataclasses.dataclass(frozen=True)
class Draft:
    """The size of a row's draft."""

    layers: int
    parameters: int


@dataclasses.dataclass
class Found:
    """All figures of a row; None for what is not known.

    Attributes:
      work: the row.
      draft: the size of its draft; None without one.
      chips: by topology.
      predicted: all predictions.
      measured: figures by name: speedup, low, high, per_token, alpha, cost_ratio, tokens_per_call,
        target and run (of `metric`).
      metric: the name of the metric.
      identical: outputs that are the target's, of how many; or the certificate.
      alphas: measured acceptance rates, by drafter.
      exact: whether the measured run is exact.
      failures: what failed, by step.
      commands: of the row.
    """

    work: Work
    draft: Draft | None = None
    chips: dict[str, Chip] = dataclasses.field(default_factory=dict)
    predicted: list[Predicted] = dataclasses.field(default_factory=list)
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    metric: str = ""
    identical: str = ""
    alphas: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    exact: bool = True
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    commands: list[str] = dataclasses.field(default_factory=list)

    @property
    def row(self) -> Row:
        """The row."""
        return self.work.row

    def speedup(self, where: str, by: str) -> float | None:
        """Returns a predicted speed-up."""
        these = (x.speedup for x in self.predicted if (x.where, x.by) == (where, by))
        return next(these, None)

    def over_predicted(self) -> float | None:
        """Returns the measured speed-up per token over the one that is predicted here."""
        predicted, measured = self.speedup(HERE, RECORDED), self.measured.get("per_token")
        return measured / predicted if predicted and measured else None

    def record(self) -> dict:
        """Returns plain values, for JSON."""
        fields = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        del fields["work"], fields["commands"]
        fields["draft"] = self.draft and dataclasses.asdict(self.draft)
        fields["chips"] = {name: dataclasses.asdict(one) for name, one in self.chips.items()}
        fields["predicted"] = [dataclasses.asdict(one) for one in self.predicted]
        about = {"row": self.row.name, "published": dict(self.row.published)}
        return {
            **about,
            "missing": list(self.work.missing),
            "marks": list(self.work.marks),
        } | fields


def measured(found: Found, folder: Path) -> Found:
    """Adds what the commands of a row have written to a folder, and returns the row."""
    stem = folder / found.row.name
    if bench := load(Path(f"{stem}.jsonl.summary.json")):
        _add_bench(found, bench)
    if acceptance := load(Path(f"{stem}.alpha.jsonl.summary.json")):
        for drafter, alphas in acceptance["alphas"].items():
            found.alphas[drafter] = [one["value"] for one in alphas]
        found.measured["alpha"] = found.alphas["model"][0]
    for where in (*found.chips, HERE):
        if told := _last_line(forecast_path(folder, found.row, where)):
            found.predicted.append(Predicted(where, RECORDED, told["speedup"]))
    if report := load(Path(f"{stem}.eval") / "metrics.json"):
        _add_eval(found, report)
    if certificate := load(Path(f"{stem}.verify.json")):
        found.identical = f"certificate: {'passed' if certificate['passed'] else 'FAILED'}"
    return found


def _add_bench(found: Found, bench: Mapping) -> None:
    speedup, prediction = bench["speedup"], bench["prediction"]
    found.exact = bench["exact"]
    figures = {
        "speedup": speedup["ratio"],
        "low": speedup["low"],
        "high": speedup["high"],
        "per_token": speedup["per_token"],
        "tokens_per_call": bench["tau"],
        "seconds_alone": bench["seconds"]["alone"]["p50"],
        "beams": bench.get("beams", 0),
    }
    if bench["alpha"] is not None:
        figures["alpha"] = bench["alpha"]
    if prediction:
        figures["cost_ratio"] = prediction["cost_ratio"]
        if not bench["exact"]:
            by = "these texts"
            found.predicted.append(Predicted(HERE, by, prediction["these_texts"]))
    found.measured |= figures
    found.identical = "in distribution" if bench["exact"] else ""
    if bench["identical"] is not None:
        found.identical = f"{bench['identical']} of {bench['texts'] * bench['repeats']}"


def _add_eval(found: Found, report: Mapping) -> None:
    ways = report["metrics"]
    run = next(way for way in ways if way != "alone" or len(ways) == 1)
    found.metric = next(iter(ways[run]))
    found.measured["run"] = ways[run][found.metric]
    found.measured["target"] = ways["alone"][found.metric]


def compiled(found: Found, folder: Path, gamma: int, alpha: float | None) -> None:
    """Adds the figures of `specdec compile`.

    Args:
      found: the row, to which they are added.
      folder: where its files are.
      gamma: its draft length.
      alpha: the acceptance rate that it was compiled with.
    """
    report = load(folder / f"{found.row.name}.compile.json") or {"topologies": ()}
    for one in report["topologies"]:
        memory, name = one["memory"], one["topology"]
        chip = Chip(memory.get("total"), memory.get("too_large", ""), memory["limit"])
        if made := one.get("with_layers"):
            chip = _with_costs(chip, made)
            _predict(found, name, made, gamma, alpha)
        found.chips[name] = chip


def _with_costs(chip: Chip, made: Mapping) -> Chip:
    ratio = made["iteration"] / made["target"]
    return dataclasses.replace(chip, cost_ratio=made["cost_ratio"], pays_from=ratio)


def from_shapes(
    found: Found, where: str, size: int, limit: int, made: Mapping, gamma: int, alpha: float | None
) -> None:
    """Adds figures that were counted in shapes, where nothing was compiled.

    Args:
      found: the row, to which they are added.
      where: the topology.
      size: bytes of one device.
      limit: bytes that it has.
      made: the fields of a `RooflinePrediction`.
      gamma: the row's draft length.
      alpha: the acceptance rate that it is predicted for.
    """
    chip = Chip(size, "parameters and caches, from shapes", limit)
    found.chips[where] = _with_costs(chip, made)
    _predict(found, where, made, gamma, alpha)


def _predict(found: Found, where: str, made: Mapping, gamma: int, alpha: float | None) -> None:
    """Adds the speed-up at published tokens per call or at an acceptance rate, if one is known."""
    if (tokens := found.row.published.get("tokens_per_call")) is not None:
        speedup = tokens * made["target"] / made["iteration"]
    elif alpha is not None and gamma <= len(one := made["speedups"][f"{alpha:g}"]):
        speedup = one[gamma - 1]
    else:
        return
    found.predicted.append(Predicted(where, PAPER, speedup))


def relative_to_greedy(rows: Sequence[Found]) -> None:
    """Sets the speed-up of a beam search to that of the target's beams over its greedy search.

    The greedy search is that of the first other row, in another process.
    """
    greedy = (x.measured.get("seconds_alone") for x in rows if not x.measured.get("beams", 1))
    alone = next(greedy, None)
    for one in rows:
        if one.measured.get("beams"):
            for name in ("speedup", "low", "high", "per_token"):
                del one.measured[name]
            if alone is not None:
                one.measured["speedup"] = alone / one.measured["seconds_alone"]
                one.measured["tokens_per_call"] = 1.0


def depth_or_width(rows: Sequence[Found]) -> Iterator[str]:
    """Yields a sentence for each two drafts of one target that differ in depth and not in size."""
    for deep in rows:
        for wide in rows:
            a, b = deep.draft, wide.draft
            same = deep.row.needs[:1] == wide.row.needs[:1]
            if not (a and b and same) or a.layers < 2 * b.layers:
                continue
            if abs(a.parameters / b.parameters - 1) > 0.15:
                continue
            for where, chip in deep.chips.items():
                other = wide.chips.get(where)
                if chip.pays_from and other and other.pays_from:
                    factor = chip.pays_from / other.pays_from
                    verb = f"{factor:.2f} times as many" if factor > 1 else "fewer"
                    yield (
                        f"{where}: {deep.row.name} has {a.layers} layers, {wide.row.name} has "
                        f"{b.layers}, with {a.parameters / 1e6:,.0f}M and "
                        f"{b.parameters / 1e6:,.0f}M parameters. The deep draft needs {verb} "
                        "tokens per call for the same speed."
                    )


def load(path: Path) -> dict | None:
    """Returns the JSON object of a file, None if there is no such file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _last_line(path: Path) -> dict | None:
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    return json.loads(lines[-1]) if lines else None
