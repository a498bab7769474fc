"""Measures what each objective makes of a draft: alpha at T=0 and T=1, equal steps, same texts.

  python scripts/studies/objectives.py --outputs OUTPUTS --folder DIR [--pair captions]
      [--steps 200] [--seeds 3]

OUTPUTS has texts that the target drew at temperature 1, as configs/train_multi30k_aligned.gin and
configs/train_demo_aligned.gin read them; each run goes to a folder in DIR, for each divergence of
Align, for `adaptive` on texts that are half the drafter's own, of captions for two that are told
less (`SPARING`), and for cross-entropy of the texts. All begin with the drafter of the pair. Alpha
is by the papers' protocol, on 10,000 tokens that the target wrote on texts that no run has seen,
the same for all.

Lines go to alignment/lines.jsonl; runs that have one are not made again. The table has means over
seeds; differences to cross-entropy are of runs with the same seed, their intervals Student's. Run
it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
from harness import Results
from scipy import stats

from specdec.training.alignment import DIVERGENCES

CAME, BASELINE, ON_POLICY = "as it came", "cross_entropy", "adaptive, half on-policy"
SPARING = {  # what an objective's name says besides the divergence: settings
    "jensen_shannon, 32 ids": {"TOP": 32},
    "forward_kl, 0.4 of the tokens": {"KEEP": 0.4},
}
LEARNS = {  # how the drafter of a pair does
    "captions": "configs/train_multi30k_aligned.gin",
    "ende": "train_demo_aligned.gin",
    "highlights": "train_demo_aligned.gin",
}
TEXTS, TOKENS = 1000, 10_000
SAMPLINGS = {0: "greedy", 1: "temperature"}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--outputs", required=True, metavar="OUTPUTS")
    parser.add_argument("--folder", required=True, metavar="DIR")
    parser.add_argument("--pair", choices=LEARNS, default="captions")
    parser.add_argument("--steps", type=int, default=200, metavar="N")
    parser.add_argument("--seeds", type=int, choices=range(2, 6), default=3, metavar="N")
    args = parser.parse_args()
    lines = Results.of(args, "alignment/lines", "pair", "objective", "steps", "seed")
    for line in measured(args, lines):
        lines.put(line)
        print(line, flush=True)
    own = [x for x in lines if x.get("pair", "captions") == args.pair]
    print(*table(args.pair, [x for x in own if x["steps"] in (0, args.steps)]), sep="\n")


def measured(args: argparse.Namespace, lines: Results) -> Iterator[dict[str, Any]]:
    """Yields a line of the draft as it came, and of each run that has none yet."""
    runs = [(name, args.steps, seed) for seed in range(args.seeds) for name in names(args.pair)]
    known, written = lines.known(), {}
    for name, steps, seed in [(CAME, 0, 0), *runs]:
        line: dict[str, Any] = {"pair": args.pair, "objective": name, "steps": steps, "seed": seed}
        if lines.key(line) in known:
            continue
        more = [] if name == CAME else [harness.checkpoint_flag(trained(args, name, steps, seed))]
        alphas = {}
        for t, sampling in SAMPLINGS.items():
            files = "verifiers/block.gin", f"sampling/{sampling}.gin"
            run = harness.run_of([*harness.pair_flags(args.pair, *files), *more], TEXTS)
            params = run.engine.read()
            if t not in written:
                written[t] = harness.written(run, params, TOKENS)
            alphas[f"T={t}"] = harness.alpha(harness.passes(run, params, written[t]))
        yield line | {"tokens": TOKENS, "alphas": alphas}


def names(pair: str) -> list[str]:
    """Returns the objectives. `SPARING` costs another reading of all texts: of captions alone."""
    return [BASELINE, *DIVERGENCES, ON_POLICY, *(SPARING if pair == "captions" else ())]


def trained(args: argparse.Namespace, name: str, steps: int, seed: int) -> str:
    """Returns the export of a run, which goes on if it was interrupted."""
    named = re.sub(r"[^a-z0-9.]+", "_", name.replace(", half", ""))
    directory = Path(args.folder) / f"{named}-{seed}"
    macros: dict[str, Any] = {"OUTPUTS": str(Path(args.outputs).resolve())}
    macros |= {"STEPS": steps, "SEED": seed, "WARMUP": steps // 10, **SPARING.get(name, {})}
    if "KEEP" in macros:
        macros["REFERENCE_CHECKPOINT_PATH"] = trained(args, "forward_kl", steps, seed)
    if "TOP" in macros:
        macros["LAWS_PATH"] = str(Path(args.folder) / "laws")
    flags = [f"--gin_file={LEARNS[args.pair]}"]
    if name == BASELINE:
        flags.append("--gin.OBJECTIVE=@training.TeacherForced()")
    else:
        macros["ON_POLICY"] = 0.5 if name == ON_POLICY else 0.0
        macros["DIVERGENCES"] = {name.split(",")[0]: 1.0}
    flags += [f"--gin.{k}={v!r}" for k, v in macros.items()]
    command = [sys.executable, "-m", "specdec", "train", *flags, f"--output_dir={directory}"]
    subprocess.run(command, check=True)
    return str(directory / "export")


def table(pair: str, lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the mean over seeds, and by how much it is above cross-entropy."""
    columns = [f"{head}T={t}" for t in SAMPLINGS for head in ("alpha, ", "above cross-entropy, ")]
    yield harness.head("objective", *columns)
    of = {(one["objective"], one["seed"]): one["alphas"] for one in lines}
    for name in (CAME, *names(pair)):
        seeds = sorted(seed for other, seed in of if other == name)
        cells = [name]
        for t in (f"T={t}" for t in SAMPLINGS):
            values = [of[name, seed][t][0] for seed in seeds]
            cells.append(f"{statistics.mean(values):.3f}" if values else "")
            pairs = [(name, s) for s in seeds if (BASELINE, s) in of]
            more = [of[key][t][0] - of[BASELINE, key[1]][t][0] for key in pairs]
            cells.append("" if name in (CAME, BASELINE) or len(more) < 2 else difference(more))
        yield harness.row(*cells)


def difference(values: Sequence[float]) -> str:
    """Returns the mean, and Student's interval of it."""
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f"{statistics.mean(values):+.3f} ± {half:.3f}"


if __name__ == "__main__":
    main()
