"""Times a draft whose kernels have eight bits beside the same in float32: the output stays exact.

  python scripts/int8_draft.py --gin_file=demo.gin [--texts 24] [--turns 2] [--name ende]

Takes the gin files of `specdec bench`. The target alone, the drafter as it is and the drafter in
int8 take turns text by text in one process. JSON lines go to docs/results/DEVICE/int8_draft/, one
for each text and turn. Run it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from forecast_check import built
from remeasure import RESULTS, device_name

from specdec.decoding import row_keys
from specdec.program import Decoder
from specdec.records import Lines
from specdec.statistics import bootstrap

WAYS = {"float32": (), "int8": ("--gin.INT8=('draft',)",)}
ALONE = "alone"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--texts", type=int, default=24, metavar="N")
    parser.add_argument("--turns", type=int, default=2, metavar="N")
    parser.add_argument("--name", default="ende", help="of the lines")
    args, flags = parser.parse_known_args()
    folder = RESULTS / device_name() / "int8_draft"
    folder.mkdir(parents=True, exist_ok=True)
    found = list(timed(flags, args.texts, args.turns))
    Lines(folder / f"{args.name}.jsonl").replace(found)
    seconds = {name: of_texts(found, name) for name in (ALONE, *WAYS)}
    for name in WAYS:
        ratio, low, high = compared(seconds[ALONE], seconds[name])
        own = [x for x in found if x["way"] == name]
        tokens, calls = (sum(x[key] for x in own) for key in ("tokens", "calls"))
        same = sum(x["same"] for x in own)
        print(
            f"{args.name}, draft in {name}: {ratio:.2f} times as fast as alone ({low:.2f} to "
            f"{high:.2f}), {tokens / calls:.2f} tokens per call, {same} of {len(own)} the same"
        )
    ratio, low, high = compared(seconds["float32"], seconds["int8"])
    print(f"{args.name}, int8 over float32: {ratio:.3f} ({low:.3f} to {high:.3f})")


def timed(flags: Sequence[str], texts: int, turns: int) -> Iterator[dict[str, Any]]:
    """Seconds, calls and tokens of each text, turn and way; whether they are the target's own."""
    runs = {}
    for name, more in WAYS.items():
        run = built([*flags, *more], "test", texts)
        data = dataclasses.replace(run.data, batch_size=1)
        runs[name] = dataclasses.replace(run, data=data).laid_out()
    first = next(iter(runs.values()))
    programs: dict[str, Any] = {name: (Decoder(r.plan), r.load()) for name, r in runs.items()}
    programs = {
        ALONE: (Decoder(first.alone), first.params_alone(programs["float32"][1]))
    } | programs
    batches = list(first.batches())
    for turn in range(turns):
        for batch in batches:
            given = row_keys(0, jnp.asarray(batch.index), turn), jnp.asarray(batch.inputs)
            own: list[int] = []
            for name, (program, params) in programs.items():
                execute = program.warmed(params, *given)
                start = time.perf_counter()
                output = jax.block_until_ready(execute(params, *given))
                seconds = time.perf_counter() - start
                tokens = np.asarray(output.tokens[0, : int(output.length[0])]).tolist()
                own = own or tokens
                yield {
                    "way": name,
                    "text": int(batch.index[0]),
                    "turn": turn,
                    "seconds": round(seconds, 6),
                    "tokens": len(tokens),
                    "calls": int(output.trace.calls[0]),
                    "same": tokens == own,
                }


def of_texts(lines: Sequence[dict[str, Any]], way: str) -> np.ndarray:
    """Seconds of each text, the median over turns."""
    own: dict[int, list[float]] = {}
    for line in lines:
        if line["way"] == way:
            own.setdefault(line["text"], []).append(line["seconds"])
    return np.array([statistics.median(own[text]) for text in sorted(own)])


def compared(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float]:
    """The ratio of all seconds, with an interval over texts."""
    low, high = bootstrap(np.array([before, after]), lambda sums: sums[0] / sums[1])
    return float(before.sum() / after.sum()), float(low), float(high)


if __name__ == "__main__":
    main()
