"""What a confidence head is worth: blocks cut by what they foresee, against fixed lengths.

  python scripts/foreseen.py --draft DIR [--texts 1000]

DIR is a drafter of drafters/masked.gin with a confidence head (objectives/confidence_head.gin). The
captions of the test split are decoded greedily, with the costs of a few devices: a block takes c,
and a target call what the smallest bucket does that holds the draft, in target steps. A text is
charged by itself, whatever the batch. The table goes to stdout, JSON lines go to
docs/results/DEVICE/foreseen/lines.jsonl. Needs ../shared/multi30k, from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from lossy import built, of_sums
from remeasure import RESULTS, device_name

from specdec.cli.run import DecodeRun
from specdec.decoding import row_keys
from specdec.program import Decoder
from specdec.records import Lines
from specdec.schedules import Fixed, ForeseenCost
from specdec.verifiers import GreedyMatch

BUCKETS = (1, 3, 7)
C = 0.19  # docs/methods.md, masks on the target's states
COSTS = {  # of calls on 2, 4 and 8 tokens at T5-large's sizes, docs/performance.md
    "wide calls cheap": (1.16, 1.18, 1.36),
    "wide calls dear": (1.29, 1.39, 1.74),
    "a call a token": (2.0, 4.0, 8.0),
}
COLUMNS = ("costs", "blocks", "tokens per call", "not verified", "tokens per step", "over whole")
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


class Decoded(NamedTuple):
    """Of each text, [texts]."""

    tokens: np.ndarray
    calls: np.ndarray
    drafted: np.ndarray
    lengths: np.ndarray  # [texts, 1 + K] calls by the tokens drafted


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--draft", required=True, metavar="DIR")
    parser.add_argument("--texts", type=int, default=1000, metavar="N")
    args = parser.parse_args()
    path = RESULTS / device_name() / "foreseen" / "lines.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = []
    print(HEAD, flush=True)
    for line in measured(args):
        found.append(line)
        Lines(path).replace(found)
        print(row(line), flush=True)


def measured(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for each of the costs and schedules."""
    checkpoint = f"--gin.DRAFT_CHECKPOINT_PATH={str(Path(args.draft).resolve())!r}"
    run = built(args.texts, "--gin.BATCH_SIZE=32", "--gin_file=drafters/masked.gin", checkpoint)
    params = run.load()
    fixed = {
        f"first {n}": decoded(run, params, Fixed(n, shorter=BUCKETS[:i]))
        for i, n in enumerate(BUCKETS)
    }
    for name, v in COSTS.items():
        schedule = ForeseenCost(C, v, buckets=BUCKETS)
        whole = fixed[f"first {BUCKETS[-1]}"]
        for blocks, one in {**fixed, "foreseen": decoded(run, params, schedule)}.items():
            pairs = [one.tokens, time(one, v), whole.tokens, time(whole, v)]
            yield {
                "costs": name,
                "c": C,
                "v": v,
                "blocks": blocks,
                "texts": len(one.tokens),
                "tokens_per_call": of_sums([one.tokens, one.calls], lambda s: s[0] / s[1]),
                "not_verified": 1 - float(one.drafted.sum() / (BUCKETS[-1] * one.calls.sum())),
                "lengths": one.lengths.sum(axis=0).tolist(),
                "tokens_per_step": of_sums(pairs[:2], lambda s: s[0] / s[1]),
                "over_whole": of_sums(pairs, lambda s: s[0] / s[1] / (s[2] / s[3])),
            }


def time(one: Decoded, v: tuple[float, ...]) -> np.ndarray:
    """[texts] in target steps, without prefill."""
    bucket = np.searchsorted(BUCKETS, np.arange(BUCKETS[-1] + 1))
    return one.lengths @ (C + np.array(v)[bucket])


def decoded(run: DecodeRun, params: Any, schedule: Any) -> Decoded:
    plan = dataclasses.replace(run.plan, verifier=GreedyMatch(), schedule=schedule)
    program, found = Decoder(plan), []
    for batch in run.batches():
        keys = row_keys(run.data.seed, jnp.asarray(batch.index))
        output = jax.device_get(program(params, keys, jnp.asarray(batch.inputs)))
        for i in range(len(batch.input_texts)):
            calls = int(output.trace.calls[i])
            drafted = np.asarray(output.trace.drafted[i, :calls])
            lengths = np.bincount(drafted, minlength=BUCKETS[-1] + 1)
            found.append((int(output.length[i]), calls, int(drafted.sum()), lengths))
    return Decoded(*(np.array(column) for column in zip(*found, strict=True)))


def row(line: dict[str, Any]) -> str:
    """A row of the table."""

    def of(name: str) -> str:
        value, low, high = line[name]
        return f"{value:.2f} ({low:.2f} to {high:.2f})"

    cells = line["costs"], line["blocks"], of("tokens_per_call"), f"{line['not_verified']:.0%}"
    return f"| {' | '.join([*cells, of('tokens_per_step'), of('over_whole')])} |"


if __name__ == "__main__":
    main()
