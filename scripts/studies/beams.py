"""Measures beam search: steps per target call and time, with drafts of several sizes and without.

  python scripts/studies/beams.py [--pairs captions ende] [--texts 50] [--repeats 1] [--predict]

For each text the searches, and greedy decoding with a draft and without, alternate in one process.
The beams of each search are compared with the plain ones. Each turn of a text is a line in
docs/results/DEVICE/beams/; the same command goes on after an interruption, and prints a table.

With --predict nothing is timed: the steps per call of each draft are predicted from one recorded
search without drafts, and compared with those that are measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import harness
import jax.numpy as jnp
import numpy as np
from beam_recording import record, steps_and_calls
from harness import Results, pair_flags, run_of

from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import T5XBeams
from specdec.engine.beam_engine import BeamEngine, beam_plan, searching
from specdec.texts.measured_run import Run

BEAMS = 4
# width and depth of the draft, and whether it reuses the target's last opinion
DRAFTS = ((4, 2, False), (8, 2, False), (4, 2, True), (8, 1, True), (8, 2, True), (8, 3, True))
COLUMNS = (
    *("pair", "search", "steps per call", "time of plain beams (95 %)"),
    *("processor time (95 %)", "load"),
)


def main() -> None:
    parser = harness.parser(__doc__, texts=50, pairs=("captions", "ende"))
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="of each text")
    parser.add_argument("--predict", action="store_true", help="compare predictions, time nothing")
    args = parser.parse_args()
    if args.predict:
        return show_predictions(args)
    lines = Results.of(args, "beams/drafts", "pair", "text", "repeat")
    about = harness.about()
    for pair in args.pairs:
        run = run_of(pair_flags(pair), args.texts, batch_size=1)
        for line in measured(pair, run, args.repeats, lines):
            lines.put({**line, **about})
    print(*table(list(lines)), sep="\n")


def searches(run: Run) -> dict[str, BeamEngine]:
    """Returns the searches by name, the one without a draft first."""
    plan = beam_plan(run.engine.plan, BEAMS, T5XBeams())
    found = {"plain": searching(run.engine, plan.alone())}
    for draft in DRAFTS:
        found[name_of(*draft)] = searching(run.engine, drafting(plan, *draft))
    return found


def drafting(plan: BeamPlan, width: int, depth: int, reuse: bool) -> BeamPlan:
    """Returns the plan with a draft of another size."""
    assert plan.drafter is not None
    own = dataclasses.replace(plan.drafter, width=width, depth=depth, reuse=reuse)
    return dataclasses.replace(plan, drafter=own)


def name_of(width: int, depth: int, reuse: bool) -> str:
    return f"{width} beams, {depth} steps" + (", reuse" if reuse else "")


def measured(pair: str, run: Run, repeats: int, lines: Results) -> Iterator[dict[str, Any]]:
    """Yields a line for each turn of a text that is not known."""
    beams = searches(run)
    ways: dict[str, Any] = {name: one.decode for name, one in beams.items()}
    ways |= {"greedy alone": run.engine.alone().decode, "greedy, drafted": run.engine.decode}
    for line, found in harness.turns(ways, list(run.batches()), repeats, {"pair": pair}, lines):
        outputs = {name: found[name][0] for name in beams}
        line["steps"] = int(outputs["plain"].trace.steps.sum())
        line["calls"] = {name: int(one.trace.calls.sum()) for name, one in outputs.items()}
        right = outputs["plain"].tokens
        others = [name for name, one in outputs.items() if not np.array_equal(one.tokens, right)]
        if others:
            raise ValueError(f"{others[0]} has other beams for text {line['text']}")
        yield line


def table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a row for each search of each pair."""
    yield harness.head(*COLUMNS)
    for pair in dict.fromkeys(one["pair"] for one in lines):
        some = [one for one in lines if one["pair"] == pair]
        steps = sum(one["steps"] for one in some)
        for name, _, cells in harness.compared(some, "plain"):
            calls = sum(one["calls"].get(name, 0) for one in some)
            yield harness.row(pair, name, f"{steps / calls:.2f}" if calls else "", *cells)


def show_predictions(args: argparse.Namespace) -> None:
    lines = Results.of(args, "beams/predictions", "pair", "search")
    print(harness.head("pair", "search", "predicted steps per call", "measured", "error, %"))
    for pair in args.pairs:
        for line in predictions(pair, args.texts):
            lines.put(line)
            predicted, right = line["predicted"], line["steps_per_call"]
            cells = f"{predicted:.4f}", f"{right:.4f}", f"{100 * (predicted / right - 1):.2f}"
            print(harness.row(pair, line["search"], *cells), flush=True)


def predictions(pair: str, texts: int) -> Iterator[dict[str, Any]]:
    """Yields a line for each draft, with its steps per call as predicted and as measured."""
    run = run_of(pair_flags(pair), texts, batch_size=min(texts, 25))
    plan = beam_plan(run.engine.plan, BEAMS, T5XBeams())
    params, batches = plan.params(run.engine.params), list(run.batches())
    recordings = [
        one for batch in batches for one in record(params, jnp.asarray(batch.inputs), plan, 8, 3)
    ]
    for width, depth, reuse in itertools.product((4, 8), (1, 2, 3), (False, True)):
        own = drafting(plan, width, depth, reuse)
        assert own.drafter is not None
        steps, calls = steps_and_calls(recordings, own.drafter)
        engine = searching(run.engine, own)
        traces = [engine.decode(batch)[0].trace for batch in batches]
        taken = np.sum([(one.steps.sum(), one.calls.sum()) for one in traces], axis=0)
        yield {
            "pair": pair,
            "search": name_of(width, depth, reuse),
            "texts": texts,
            "predicted": round(steps / calls, 4),
            "steps_per_call": round(float(taken[0] / taken[1]), 4),
        }


if __name__ == "__main__":
    main()
