"""Measures drafts of a Chronos model: acceptance, time, and quality with and without speculation.

  python scripts/studies/chronos.py FOLDER DATA [--texts 100]

FOLDER has checkpoints that configs/series/ has trained: "target", and drafts such as "w64_1", each
with its "export". DATA has the series of scripts/data/make_series.py. Lines go to chronos/. Run it
from the root of a checkout.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import Results, Run, interval

from specdec import tasks
from specdec.decoding import row_keys
from specdec.decoding.program import DecodeProgram
from specdec.measure import output_metrics
from specdec.tasks.metrics import references
from specdec.tasks.series_tasks import LEVELS

SAMPLES, GAMMAS = 20, (2, 4)
METRICS = {"wql": tasks.wql, "mase": tasks.mase}
JUDGED = ("draft", "parameters", "alpha", "tokens per call, gamma 4", "WQL", "alone", "difference")
TIMED = ("draft", "gamma", "time over the target's alone", "processor time", "load")


def main() -> None:
    parser = harness.parser(__doc__, texts=100)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--timed_texts", type=int, default=8, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--example", type=int, default=0, metavar="N", help="series of the figure")
    parts = ("judged", "timed")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, metavar="PART")
    args = parser.parse_args()
    names = sorted(path.parent.name for path in args.folder.glob("*/export"))
    drafts = [name for name in names if name != "target"]
    if "judged" in args.parts:
        judged(args, drafts)
    if "timed" in args.parts:
        timed(args, drafts)


def run_of(args: argparse.Namespace, draft: str, texts: int, *more: str, rows: int = 20) -> Run:
    """Returns the run of the target and a draft on held-out series."""
    paths = {"": "target", "DRAFT_": draft}
    flags = [
        harness.checkpoint_flag(args.folder / path / "export", role) for role, path in paths.items()
    ]
    data = f"--gin.DATA={str(args.data)!r}"
    base = "--gin_file=configs/series/chronos.gin"
    return harness.run_of([base, data, *flags, *more], texts, batch_size=rows)


def judged(args: argparse.Namespace, drafts: list[str]) -> None:
    """Judges each draft, and prints a table."""
    lines = Results.of(args, "chronos/judged", "draft")
    alone: list[list[np.ndarray]] = []
    for draft in drafts:
        if (draft,) in lines.known():
            continue
        run = run_of(args, draft, args.texts)
        params, data = run.engine.params, run.data
        futures = [target for target, _ in references(data.task, data.split, data.lengths)]
        futures = futures[: args.texts]
        alone = alone or values(harness.outputs(run, run.plan.baseline(), params, SAMPLES))
        fast = harness.outputs(run, run.plan, params, SAMPLES)
        line = {
            "draft": draft,
            "parameters": sum(x.size for x in jax.tree.leaves(params["draft"])),
            "target_parameters": sum(x.size for x in jax.tree.leaves(params["target"])),
            "texts": args.texts,
            "samples": SAMPLES,
            "alpha": harness.alpha(harness.passes(run, params)),
            "tokens_per_call": harness.tokens_per_call(fast),
        }
        for name, metric in METRICS.items():
            both = [output_metrics.values(metric, futures, x)[name] for x in (values(fast), alone)]
            difference = output_metrics.differences(metric, futures, values(fast), alone)[name]
            line[name] = {"speculative": both[0], "alone": both[1], "difference": list(difference)}
        lines.put(line | harness.about())
        example(args, draft, run, {"alone": alone, "speculative": values(fast)})
    print(harness.head(*JUDGED))
    for line in sorted(lines, key=lambda line: line["parameters"]):
        print(harness.row(*cells(line)))


def cells(line: dict[str, Any]) -> list[str]:
    """Returns a row of the table of drafts."""
    loss = line["wql"]
    found = [line["draft"], f"{line['parameters']:,}", interval(line["alpha"], ".3f")]
    found += [interval(line["tokens_per_call"])]
    found += [f"{loss[way]:.4f}" for way in ("speculative", "alone")]
    return [*found, interval(loss["difference"], "+.4f")]


def values(outputs: harness.Outputs) -> list[list[np.ndarray]]:
    """Returns the series of outputs, [samples][texts]."""
    return [[np.array(tasks.values_of(text)) for text in sample] for sample in outputs.texts]


def example(args: argparse.Namespace, draft: str, run: Run, ways: dict[str, Any]) -> None:
    """Writes the quantiles of one series, for the figure."""
    lines, number = Results.of(args, "chronos/example", "draft"), args.example
    given = next(batch for batch in run.batches() if number in batch.index)
    place = int(np.flatnonzero(given.index == number)[0])
    assert given.target_texts is not None, "of a task of series"
    line: dict[str, Any] = {"draft": draft, "text": number, "levels": LEVELS}
    line |= {"context": tasks.values_of(given.input_texts[place])}
    line |= {"future": tasks.values_of(given.target_texts[place])}
    for way, samples in ways.items():
        found = tasks.quantiles([sample[number] for sample in samples])
        line[way] = np.round(found, 5).tolist()
    lines.put(line | harness.about())


def timed(args: argparse.Namespace, drafts: list[str]) -> None:
    """Times each draft at several lengths, in turns with the target alone, and prints a table."""
    lines = Results.of(args, "chronos/timed", "text", "repeat")
    ways: dict[str, Any] = {}
    for draft in drafts:
        for gamma in GAMMAS:
            run = run_of(args, draft, args.timed_texts, f"--gin.GAMMA={gamma}", rows=1)
            ways[f"{draft}, {gamma}"] = way(run, run.plan)
    ways["alone"] = way(run, run.plan.baseline())
    batches = list(run.batches())
    for line, _ in harness.turns(ways, batches, args.repeats, harness.about(), lines):
        lines.put(line)
    print(harness.head(*TIMED))
    for name, _, found in harness.compared(list(lines), "alone"):
        draft, _, gamma = name.partition(", ")
        print(harness.row(draft, gamma, *found))


def way(run: Run, plan: Any) -> Any:
    """Returns a function that draws a sample of a batch by a plan."""
    program = DecodeProgram(plan)

    def decoded(batch: Any) -> Any:
        keys = row_keys(run.data.seed, jnp.asarray(batch.index))
        return jax.device_get(program(run.engine.params, keys, jnp.asarray(batch.inputs)))

    return decoded


if __name__ == "__main__":
    main()
