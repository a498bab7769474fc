"""What each objective makes of a draft: alpha at T=0 and T=1, equal steps, same texts.

  python scripts/objectives.py --outputs OUTPUTS --folder DIR [--pair captions] [--steps 200]
      [--seeds 3]

OUTPUTS has texts that the target drew at temperature 1, as configs/train_multi30k_aligned.gin and
configs/train_demo_aligned.gin read them; each run goes to a folder in DIR, for each divergence of
Align, for `adaptive` on texts that are half the drafter's own, of captions for two that are told
less (`SPARING`), and for cross-entropy of the texts. All begin with the drafter of the pair. Alpha
is by the papers' protocol, on 10,000 tokens that the target wrote on texts that no run has seen,
the same for all.

JSON lines go as they are made to docs/results/DEVICE/alignment/lines.jsonl; runs that have one are
not made again. The table goes to stdout: differences to cross-entropy are of runs with the same
seed, their intervals Student's. Captions need ../shared/multi30k, from the root of a checkout.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from lossy import built
from remeasure import RESULTS, device_name

from specdec import acceptance
from specdec.cli.run import DecodeRun
from specdec.records import Lines
from specdec.training.alignment import DIVERGENCES
from specdec.types import Params

CAME, BASELINE, ON_POLICY = "as it came", "cross_entropy", "adaptive, half on-policy"
SPARING = {  # what an objective's name says besides the divergence: settings
    "jensen_shannon, 32 ids": {"TOP": 32},
    "forward_kl, 0.4 of the tokens": {"KEEP": 0.4},
}
PAIRS = {  # how they decode, and how their drafters learn
    "captions": ("configs/multi30k.gin", "configs/train_multi30k_aligned.gin"),
    "ende": ("demo.gin", "train_demo_aligned.gin"),
    "highlights": ("demo_highlights.gin", "train_demo_aligned.gin"),
}
TOKENS = 10_000
SAMPLINGS = {0: "greedy", 1: "temperature"}
QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's, 97.5 %, of so many seeds


class Asked(NamedTuple):
    """A pair at a temperature, and what its target wrote."""

    run: DecodeRun
    params: Params
    texts: Sequence[acceptance.Texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--outputs", required=True, metavar="OUTPUTS")
    parser.add_argument("--folder", required=True, metavar="DIR")
    parser.add_argument("--pair", choices=PAIRS, default="captions")
    parser.add_argument("--steps", type=int, default=200, metavar="N")
    parser.add_argument("--seeds", type=int, choices=QUANTILES, default=3, metavar="N")
    args = parser.parse_args()
    path = RESULTS / device_name() / "alignment" / "lines.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = Lines(path)
    of_pair = [one for one in lines if one.get("pair", "captions") == args.pair]
    known = {(one["objective"], one["steps"], one["seed"]) for one in of_pair}
    for line in measured(args, known):
        lines.append(line)
        of_pair.append(line)
        print(line, flush=True)
    print(*table(args.pair, [x for x in of_pair if x["steps"] in (0, args.steps)]), sep="\n")


def measured(args: argparse.Namespace, known: set[tuple]) -> Iterator[dict[str, Any]]:
    """A line of the draft as it came, and of each run that has none yet."""
    runs = [(name, args.steps, seed) for seed in range(args.seeds) for name in names(args.pair)]
    asked: dict[int, Asked] = {}
    for one in [(CAME, 0, 0), *runs]:
        if one in known:
            continue
        directory = None if one[0] == CAME else trained(args, *one)
        asked = asked or {temperature: pair_at(args.pair, temperature) for temperature in SAMPLINGS}
        name, steps, seed = one
        yield {
            "pair": args.pair,
            "objective": name,
            "steps": steps,
            "seed": seed,
            "tokens": TOKENS,
            "alphas": {f"T={t}": alpha(given, directory) for t, given in asked.items()},
        }


def names(pair: str) -> list[str]:
    """The objectives. What is told less costs another reading of all texts: of captions alone."""
    return [BASELINE, *DIVERGENCES, ON_POLICY, *(SPARING if pair == "captions" else ())]


def trained(args: argparse.Namespace, name: str, steps: int, seed: int) -> str:
    """The export of a run, which goes on if it was interrupted."""
    named = re.sub(r"[^a-z0-9.]+", "_", name.replace(", half", ""))
    directory = Path(args.folder) / f"{named}-{seed}"
    macros: dict[str, Any] = {
        "OUTPUTS": str(Path(args.outputs).resolve()),
        "STEPS": steps,
        "SEED": seed,
    }
    macros["WARMUP"] = steps // 10
    macros |= SPARING.get(name, {})
    if "KEEP" in macros:
        macros["REFERENCE_CHECKPOINT_PATH"] = trained(args, "forward_kl", steps, seed)
    if "TOP" in macros:
        macros["LAWS_PATH"] = str(Path(args.folder) / "laws")
    flags = [f"--gin_file={PAIRS[args.pair][1]}"]
    if name == BASELINE:
        flags.append("--gin.OBJECTIVE=@training.TeacherForced()")
    else:
        macros["ON_POLICY"] = 0.5 if name == ON_POLICY else 0.0
        macros["DIVERGENCES"] = {name.split(",")[0]: 1.0}
    flags += [f"--gin.{k}={v!r}" for k, v in macros.items()]
    command = [sys.executable, "-m", "specdec", "train", *flags, f"--output_dir={directory}"]
    subprocess.run(command, check=True)
    return str(directory / "export")


def pair_at(pair: str, temperature: int) -> Asked:
    sampling = f"--gin_file=sampling/{SAMPLINGS[temperature]}.gin"
    flags = "--gin.BATCH_SIZE=32", "--gin_file=verifiers/block.gin", sampling
    run = built(1000, *flags, pair=PAIRS[pair][0])
    params = run.load()
    batches = ((batch.index, batch.inputs) for batch in run.batches())
    texts = acceptance.generate(run.plan, params.target, batches, seed=run.data.seed, tokens=TOKENS)
    return Asked(run, params, list(texts))


def alpha(asked: Asked, directory: str | None) -> list[float]:
    """With its interval, of texts."""
    params = asked.params
    if directory is not None:
        model = cast(Any, asked.run.plan.drafter).model
        params = params._replace(drafter=asked.run.placement.read(model, directory))
    texts = acceptance.measure(asked.run.plan, params, asked.texts, tables=False)
    found = acceptance.summarize(texts).alphas["model"][0]
    return [found.value, found.low, found.high]


def table(pair: str, lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """In Markdown: the mean over seeds, and by how much it is above cross-entropy."""
    columns = [f"{head}T={t}" for t in SAMPLINGS for head in ("alpha, ", "above cross-entropy, ")]
    yield f"| objective | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}"
    of = {(one["objective"], one["seed"]): one["alphas"] for one in lines}
    for name in (CAME, *names(pair)):
        seeds = sorted(seed for other, seed in of if other == name)
        cells = [name]
        for t in SAMPLINGS:
            values = {seed: of[name, seed][f"T={t}"][0] for seed in seeds}
            cells.append(f"{statistics.mean(values.values()):.3f}" if values else "")
            pairs = [seed for seed in seeds if (BASELINE, seed) in of]
            base = [of[BASELINE, seed][f"T={t}"][0] for seed in pairs]
            more = [values[s] - x for s, x in zip(pairs, base, strict=True)]
            cells.append("" if name in (CAME, BASELINE) else difference(more))
        yield f"| {' | '.join(cells)} |"


def difference(values: Sequence[float]) -> str:
    """The mean, and its interval where there are seeds enough."""
    if len(values) not in QUANTILES:
        return ""
    half = QUANTILES[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):+.3f} ± {half:.3f}"


if __name__ == "__main__":
    main()
