"""What schedules gain over the best fixed draft length that stops where a text ends.

  python scripts/schedules.py --costs FILE --folder DIR [--pairs ende highlights captions]

Passes of two splits are written to DIR, and kept there. Every candidate of `specdec tune`, and a
classifier that is trained on the first split, is replayed on both. Of each kind the setting that is
fastest on the first split is judged on the second, for a draft step of --c times a target step and
target calls as wide as FILE (costs.json of `specdec tune`, say) has them. JSON lines go to
docs/results/DEVICE/schedules/, a table to stdout. Captions need ../shared/multi30k; run it
from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from forecast_check import PAIRS, built, passes
from remeasure import RESULTS, device_name

from specdec import forecast
from specdec.acceptance import Accepted, recorded
from specdec.benchmark.parts import Calls
from specdec.cli.run import DecodeRun
from specdec.forecast import Costs, Replayed, tuning
from specdec.forecast.tuning import Candidate, Tried
from specdec.instrument.made_tables import recording
from specdec.plan import Plan
from specdec.records import Lines
from specdec.schedules import Disco, Fixed
from specdec.training import classifier

SPLITS = ("validation", "test")
SAMPLES = 3
DRAWN = ("--gin_file=sampling/temperature.gin", "--gin_file=verifiers/block.gin")
HEAD = (
    "| pair | T | c | kind | schedule | speed-up | over the best fixed length | of the oracle's |\n"
    "|---|---:|---:|---|---|---:|---:|---:|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--costs", required=True, metavar="FILE")
    parser.add_argument("--folder", required=True, type=Path, metavar="DIR")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS), metavar="PAIR")
    parser.add_argument("--temperatures", nargs="+", type=int, choices=(0, 1), default=(0, 1))
    parser.add_argument("--c", nargs="+", type=float, default=(0.09, 0.3))
    parser.add_argument("--texts", nargs=2, type=int, default=(300, 400), metavar="N")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    costs = forecast.read(args.costs, None)
    print(HEAD, flush=True)
    folder = RESULTS / device_name() / "schedules"
    folder.mkdir(parents=True, exist_ok=True)
    lines = Lines(folder / "lines.jsonl")
    known = [x for x in lines if (x["pair"], x["temperature"]) not in asked(args)]
    lines.replace(known)
    for pair, temperature in sorted(asked(args)):
        for line in judged(pair, temperature, args, costs):
            lines.append(line)
            print(row(line), flush=True)


def asked(args: argparse.Namespace) -> set[tuple[str, int]]:
    return {(pair, temperature) for pair in args.pairs for temperature in args.temperatures}


class Split(NamedTuple):
    """Some texts, and what every candidate makes of them."""

    texts: Sequence[Accepted]
    length: int  # that inputs are filled up to

    def replayed(self, plan: Plan, schedule: Any, tables: Any) -> Replayed:
        plan = dataclasses.replace(plan, schedule=schedule)
        target: Any = plan.target
        return forecast.replay(
            plan,
            self.texts,
            vocab_size=target.vocab_size,
            length=self.length,
            tables=tables,
            samples=SAMPLES,
        )


def judged(
    pair: str, temperature: int, args: argparse.Namespace, costs: Costs
) -> Iterator[dict[str, Any]]:
    """A line for each c and kind."""
    flags = [f"--gin_file={PAIRS[pair]}", *(DRAWN if temperature else ())]
    splits, plan = [], None
    for name, count in zip(SPLITS, args.texts, strict=True):
        run = built(flags, name, count)
        path = args.folder / f"{pair}_{temperature}_{name}.jsonl"
        splits.append(Split(stored(path, run), run.data.lengths["inputs"]))
        plan = run.plan
    assert plan is not None
    tables = {"schedule": trained(splits[0], plan)}
    plan = dataclasses.replace(plan, schedule=Disco(0.5))
    replays: dict[Any, list[Replayed]] = {}
    for c in args.c:
        priced = with_c(costs, c)

        def tried(
            candidate: Candidate, which: int, priced: Costs = priced, plan: Plan = plan
        ) -> Tried:
            schedule, split = candidate.schedule, splits[which]
            if schedule not in replays:
                replays[schedule] = [one.replayed(plan, schedule, tables) for one in splits]
            found = replays[schedule][which]
            own = dataclasses.replace(plan, schedule=schedule)
            seconds = forecast.seconds(own, found, priced, len(split.texts))
            assert seconds is not None, "the costs have every width"
            return Tried("", candidate, float(found.tokens.sum() / found.calls.sum()), seconds)

        longest = tuning.LONGEST
        candidates = [
            *tuning.fixed(longest),
            *tuning.varying(plan, priced, longest, splits[0].texts),
        ]
        first = [tried(one, 0) for one in candidates]
        everywhere = np.ones(len(splits[0].texts), bool)
        more = list(tuning.shorter(first, everywhere, longest))
        candidates += more
        first += [tried(one, 0) for one in more]
        second = [tried(one, 1) for one in candidates]
        yield from lines_of(pair, temperature, c, first, second, splits[1], plan, priced, replays)


def lines_of(
    pair: str,
    temperature: int,
    c: float,
    first: Sequence[Tried],
    second: Sequence[Tried],
    split: Split,
    plan: Plan,
    costs: Costs,
    replays: Any,
) -> Iterator[dict[str, Any]]:
    """Of each kind what is fastest on the first split, on the second."""
    longest = dataclasses.replace(plan, schedule=Fixed(tuning.LONGEST, stop_at_end=True))
    by_gamma = dict.fromkeys([None, *range(1, tuning.LONGEST + 1)], costs)
    replayed = replays[longest.schedule][1]
    oracle = forecast.oracle_seconds(longest, replayed, by_gamma, len(split.texts))
    assert oracle is not None
    tokens = np.array([text.tokens for text in split.texts])
    alone = costs.prefill_alone + tokens * costs.step
    best_of_all = min(float(one.seconds.sum()) for one in second)

    def chosen(kinds: Sequence[Candidate]) -> Tried:
        at = [i for i, one in enumerate(first) if one.candidate in kinds]
        return second[min(at, key=lambda i: float(first[i].seconds.sum()))]

    candidates = [one.candidate for one in first]
    static = [x for x in candidates if x.kind == "fixed" and len(x.schedule.buckets) == 1]
    base = chosen(static)
    groups = {"fixed": static, "fixed, narrowed": [x for x in candidates if x.kind == "fixed"]}
    for kind in dict.fromkeys(x.kind for x in candidates if x.kind != "fixed"):
        groups[kind] = [x for x in candidates if x.kind == kind]
    groups["best"] = candidates
    for kind, of_kind in groups.items():
        one = chosen(of_kind)
        saved = float(base.seconds.sum() - one.seconds.sum())
        yield {
            "pair": pair,
            "temperature": temperature,
            "c": c,
            "kind": kind,
            "schedule": repr(one.candidate.schedule),
            "texts": len(split.texts),
            "tokens_per_call": one.tokens_per_call,
            "speedup": tuning.gain(one.seconds, alone),
            "over_fixed": tuning.gain(one.seconds, base.seconds),
            "of_oracle": saved / float(base.seconds.sum() - oracle.sum()),
            "oracle": float(alone.sum() / oracle.sum()),
            "regret": float(one.seconds.sum()) / best_of_all - 1,
        }


def stored(path: Path, run: DecodeRun) -> list[Accepted]:
    """The passes of a run, made once."""
    lines = Lines(path)
    if not path.exists():
        lines.replace(one._asdict() for one in passes(run, run.load()))
    return [Accepted(**one) for one in lines]


def trained(split: Split, plan: Plan) -> dict[str, np.ndarray]:
    """A classifier of a split's texts."""
    ((name, drafter),) = recorded(plan.drafter)
    kind = forecast.kind_of(drafter)
    found = [recording(text, name, kind, "the passes") for text in split.texts]
    parts = [found[i::5] for i in range(5)]
    others = [one for part in parts[1:] for one in part]
    given, held = (classifier.examples(x, tuning.LONGEST) for x in (others, parts[0]))
    return classifier.fit(given, held)


def with_c(costs: Costs, c: float) -> Costs:
    """The target's calls, and a draft whose first step, of two tokens, costs as its others do."""
    own = (key for key in costs.calls if isinstance(key, Calls) and key.role.startswith("target"))
    calls = {key: costs.calls[key] for key in own}
    calls |= dict.fromkeys((Calls("draft", 1), Calls("draft", 2)), c * costs.step)
    return costs._replace(calls=calls, prefill=0.0, prefill_alone=0.0)


def row(line: dict[str, Any]) -> str:
    """A row of the table."""
    value, low, high = (x - 1 for x in line["over_fixed"])
    cells = (
        line["pair"],
        line["temperature"],
        line["c"],
        line["kind"],
        f"`{line['schedule']}`",
        f"{line['speedup'][0]:.2f}",
        f"{value:+.1%} ({low:+.1%} to {high:+.1%})",
        f"{line['of_oracle']:.0%}",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
