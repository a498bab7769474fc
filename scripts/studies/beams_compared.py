"""Compares greedy decoding, beams and relaxed speculation in quality, calls and time.

  python scripts/studies/beams_compared.py [--texts 1000]
  python scripts/studies/beams_compared.py --timed 100 [--grown DIR]

Xia et al. 2023 (2203.16487) set their relaxed speculation against beam search. Here beams are
drafted too. The first command writes a line for each way of decoding: BLEU, with intervals over
texts, and target calls. The second one times all ways text by text in one process. --grown times
the pair at other sizes: DIR has a target and a draft of `specdec grow`. Lines go to
docs/results/DEVICE/beams/. Both go on after an interruption, and print the table of all lines.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import harness
import numpy as np
from harness import Outputs, Results, Run

from specdec import tasks
from specdec.common.environment import load_average
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import T5XBeams
from specdec.engine.beam_engine import BeamEngine, beam_plan, searching
from specdec.engine.engine import Engine
from specdec.schedules import Fixed
from specdec.verifiers import GreedyMatch, TopBeta

PAIR, ROWS = "captions", 25
GAMMA = 4  # of greedy drafts
BEAMS, WIDTH, DEPTH = 4, 8, 2
# Seconds of a call on one v4 chip in bfloat16, T5-XXL and T5-small, by docs/log/tpu-log.md.
# A call on up to 20 tokens takes as long as one on a single token there.
V4 = {"target": 9.61e-3, "draft": 0.182e-3}
COLUMNS = (
    *("decoding", "BLEU", "less greedy (95 %)", "own greedy texts", "target calls a text"),
    *("draft calls", "v4, ms a text"),
)
TIMES = (
    *("target", "decoding", "seconds a text", "time over greedy (95 %)"),
    *("processor time over greedy (95 %)", "load"),
)


class Way(NamedTuple):
    """A way of decoding: an engine, and its program's name."""

    name: str
    engine: Engine | BeamEngine

    def calls(self) -> dict[str, int]:
        """Returns the calls of an iteration by role."""
        found = {"target": 0, "draft": 0}
        for part in self.engine.plan.parts():
            found[part.role] += round(part.calls)
        return found

    def decode(self, batch: Any) -> Any:
        """Returns the output of a batch."""
        return self.engine.decode(batch)[0]


def ways(run: Run) -> list[Way]:
    """Returns the ways of decoding, the target's own greedy texts first."""
    fixed = run.engine.variant(schedule=Fixed(GAMMA), verifier=GreedyMatch())
    plan = beam_plan(fixed.plan, BEAMS, T5XBeams(), width=WIDTH, depth=DEPTH)
    relaxed = (
        (f"relaxed speculation, {one}", fixed.variant(verifier=one))
        for one in (TopBeta(3, 1.0), TopBeta(5, 3.0))
    )
    found = {
        "greedy": fixed.alone(),
        f"{BEAMS} beams": searching(fixed, plan.alone()),
        "greedy speculation": fixed,
        **dict(relaxed),
        f"{BEAMS} beams, speculative": searching(fixed, plan),
    }
    return [Way(*one) for one in found.items()]


def main() -> None:
    parser = harness.parser(__doc__, texts=1000)
    add = parser.add_argument
    add("--timed", type=int, default=0, metavar="N", help="time this many texts")
    add("--repeats", type=int, default=3, metavar="N", help="of each text")
    add("--grown", metavar="DIR", help="a folder with a grown target and a grown draft")
    args = parser.parse_args()
    if args.timed:
        lines = Results.of(args, "beams/compared_times", "target", "text", "repeat")
        found = timed(args, lines)
    else:
        lines = Results.of(args, "beams/compared", "way")
        found = measured(args, lines)
    about = harness.about()
    for line in found:
        lines.put({**line, **about})
    print(*(time_table if args.timed else table)(list(lines)), sep="\n")


def measured(args: argparse.Namespace, lines: Results) -> Iterator[dict[str, Any]]:
    """Yields a line for each way of decoding that is not known."""
    run = harness.run_of(harness.pair_flags(PAIR), args.texts, batch_size=ROWS)
    references = harness.references(run)
    first, *others = ways(run)
    known = lines.known()
    missing = [way for way in (first, *others) if lines.key({"way": way.name}) not in known]
    greedy = decoded(run, first) if missing else None
    for way in missing:
        found = greedy if way is first else decoded(run, way)
        calls = way.calls()
        yield {
            "way": way.name,
            "exact": way.engine.plan.exact and not way.name.startswith("relaxed"),
            "texts": len(references),
            **harness.quality(found.texts, greedy.texts, greedy.texts[0], references),
            "tokens": mean(found.tokens),
            "calls": mean(found.calls),
            "draft_calls": [x * calls["draft"] for x in mean(found.calls)],
            "load": load_average(),
        }


def decoded(run: Run, way: Way) -> Outputs:
    """Returns the best text of each input, and the target calls that it took."""
    rows: list[tuple] = []
    for batch in run.batches():
        output = way.decode(batch)
        for i in range(len(batch.input_texts)):
            beams = isinstance(way.engine.plan, BeamPlan)
            length = int(output.length[i, 0] if beams else output.length[i])
            tokens = output.tokens[i, 0] if beams else output.tokens[i]
            text = tasks.detokenize(run.engine.vocabulary, tokens[:length].tolist())
            rows.append((text, length, int(output.trace.calls[i]), 0.0))
    texts, *numbers = zip(*rows, strict=True)
    return Outputs([list(texts)], *(np.array([x]) for x in numbers))


def mean(values: np.ndarray) -> list[float]:
    """Returns the mean over texts, and its 95 % interval."""
    return harness.of_sums([values[0], np.ones(values.shape[1])], lambda s: s[0] / s[1])


def timed(args: argparse.Namespace, lines: Results) -> Iterator[dict[str, Any]]:
    """Yields a line for each turn of a text that is not known."""
    flags = harness.pair_flags(PAIR)
    if args.grown:
        flags += [harness.checkpoint_flag(f"{args.grown}/target", "")]
        flags += [harness.checkpoint_flag(f"{args.grown}/draft")]
    run = harness.run_of(flags, args.timed, batch_size=1)
    sizes = harness.size_of(run)
    decoders = {way.name: way.decode for way in ways(run)}
    about = {"target": sizes}
    for line, _ in harness.turns(decoders, list(run.batches()), args.repeats, about, lines):
        yield line


def table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a row for each way of decoding."""
    yield harness.head(*COLUMNS)
    for one in lines:
        yield harness.row(
            one["way"],
            f"{one['bleu']:.2f}",
            harness.interval(one["bleu_difference"]),
            f"{one['unchanged']:.0%}",
            harness.interval(one["calls"], ".1f"),
            f"{one['draft_calls'][0]:.1f}",
            f"{1e3 * predicted(one):.0f}",
        )


def predicted(line: Mapping[str, Any]) -> float:
    """Returns the seconds of a text on one v4 chip, without the encoders."""
    return line["calls"][0] * V4["target"] + line["draft_calls"][0] * V4["draft"]


def time_table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a row for each way of decoding at each size."""
    yield harness.head(*TIMES)
    for target in dict.fromkeys(one["target"] for one in lines):
        some = [one for one in lines if one["target"] == target]
        for name, seconds, cells in harness.compared(some, "greedy"):
            yield harness.row(target, name, f"{seconds.mean():.3f}", *cells)


if __name__ == "__main__":
    main()
