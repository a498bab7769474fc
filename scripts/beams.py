"""Measures beam search: steps per target call and time, with drafts of several sizes and without.

  python scripts/beams.py [--pairs captions ende] [--texts 50] [--predict]

For each text the searches alternate in one process, after one round that compiles and warms. The
time of each is compared with plain beams on the same text. Before anything is counted, the beams of
each search are compared with the plain ones. Lines go to docs/results, a table to stdout.

With --predict nothing is timed: the steps per call of each draft are predicted from one recorded
search without drafts, and compared with what it takes.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import Results, pair_flags, run_of

from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import T5XBeams
from specdec.engine.beam_engine import BeamEngine, beam_plan
from specdec.instrument.beam_recording import record, steps_and_calls

BEAMS = 4
# width and depth of the draft, and whether it reuses the target's last opinion
DRAFTS = ((4, 2, False), (8, 2, False), (4, 2, True), (8, 1, True), (8, 2, True), (8, 3, True))


def main() -> None:
    parser = harness.parser(__doc__, texts=50, pairs=("captions", "ende"))
    parser.add_argument("--predict", action="store_true", help="compare predictions, time nothing")
    args = parser.parse_args()
    if args.predict:
        return show_predictions(args)
    lines = Results.of(args, "beams/times", "pair", "search")
    print(harness.head("pair", "search", "steps per call", "time of plain beams", "95 %"))
    for pair in args.pairs:
        for line in measured(pair, args.texts):
            lines.put(line)
            low, high = line["interval"]
            steps = line["steps_per_call"]
            steps = "" if steps is None else f"{steps:.2f}"
            cells = steps, f"{line['time']:.2f}", f"{low:.2f} to {high:.2f}"
            print(harness.row(pair, line["search"], *cells), flush=True)


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
        engine = BeamEngine(run.engine, own)
        traces = [engine.search(batch)[0].trace for batch in batches]
        taken = np.sum([(one.steps.sum(), one.calls.sum()) for one in traces], axis=0)
        yield {
            "pair": pair,
            "search": name_of(width, depth, reuse),
            "texts": texts,
            "predicted": round(steps / calls, 4),
            "steps_per_call": round(float(taken[0] / taken[1]), 4),
        }


def drafting(plan: BeamPlan, width: int, depth: int, reuse: bool) -> BeamPlan:
    """Returns the plan with a draft of another size."""
    own = dataclasses.replace(plan.drafter, width=width, depth=depth, reuse=reuse)  # type: ignore
    return dataclasses.replace(plan, drafter=own)


def name_of(width: int, depth: int, reuse: bool) -> str:
    return f"{width} beams, {depth} steps" + (", reuse" if reuse else "")


def measured(pair: str, texts: int) -> list[dict[str, Any]]:
    """Returns a line for each search, and for greedy decoding with a draft and without."""
    run = run_of(pair_flags(pair), texts, batch_size=1)
    engine = run.engine
    plan = beam_plan(engine.plan, BEAMS, T5XBeams())
    searches = {"plain": BeamEngine(engine, plan.alone())}
    for draft in DRAFTS:
        searches[name_of(*draft)] = BeamEngine(engine, drafting(plan, *draft))
    others = {"greedy alone": engine.alone(), "greedy, drafted": engine}
    seconds: dict[str, list[float]] = {name: [] for name in (*searches, *others)}
    counts = {name: np.zeros(2) for name in searches}
    for place, batch in enumerate(run.batches()):
        for warm in (True, False) if not place else (False,):
            found = {
                name: timed(functools.partial(x.search, batch)) for name, x in searches.items()
            }
            greedy = {name: timed(functools.partial(x.decode, batch)) for name, x in others.items()}
            if warm:
                continue
            for name, (_, taken) in (found | greedy).items():
                seconds[name].append(taken)
            right = found["plain"][0].tokens
            for name, (output, _) in found.items():
                if not np.array_equal(output.tokens, right):
                    raise ValueError(f"{name} has other beams for text {place}")
                counts[name] += [output.trace.steps.sum(), output.trace.calls.sum()]
    made = []
    for name, taken in seconds.items():
        both = np.array(taken), np.array(seconds["plain"])
        ratio, low, high = harness.of_sums(both, lambda x: x[0] / x[1])
        steps, calls = counts.get(name, (np.nan, np.nan))
        made.append(
            {
                "pair": pair,
                "search": name,
                "texts": texts,
                "steps_per_call": None if np.isnan(steps) else round(steps / calls, 4),
                "time": round(float(ratio), 4),
                "interval": [round(float(low), 4), round(float(high), 4)],
            }
        )
    return made


def timed(call: Any) -> tuple[Any, float]:
    """Returns what a call gives, on the host, and its seconds."""
    start = time.perf_counter()
    output, _ = jax.block_until_ready(call())
    return output, time.perf_counter() - start


if __name__ == "__main__":
    main()
