"""Tries what XLA's CPU backend and the C library can be told, on the embedded pair.

  python scripts/flags.py [--settings ynn-off huge-pages ...] [--turns 3] [--texts 4]

Each setting needs a process of its own; one with nothing set runs before every three of them, so
that they have the same minutes. A process decodes some texts at temperature 0 and 1, alone and by
speculation, in the layouts that its own measurement of the device chooses. JSON lines go to
docs/results/DEVICE/flags/; what is there is not measured again. Run it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

REPEATS, GROUP = 2, 3  # of each text, the least counts; settings beside one process without
NOTHING = "nothing"
SETTINGS: dict[str, dict[str, str]] = {
    NOTHING: {},
    "thunk-off": {"XLA_FLAGS": "--xla_cpu_use_thunk_runtime=false"},
    "ynn-off": {"XLA_FLAGS": "--xla_cpu_experimental_ynn_fusion_type="},
    "one-thread-eigen": {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
    "fast-math": {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"},
    "vectors-512": {"XLA_FLAGS": "--xla_cpu_prefer_vector_width=512"},
    "avx2": {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"},
    "old-fusions": {"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false"},
    "concurrent": {"XLA_FLAGS": "--xla_cpu_enable_concurrency_optimized_scheduler=true"},
    "one-core": {"SPECDEC_FLAGS_CORES": "1"},
    "huge-pages": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
}
CORES = "SPECDEC_FLAGS_CORES"  # how many the process keeps to
RUNS = {
    0: ("--gin_file=demo.gin",),
    1: ("--gin_file=demo_sampled.gin", "--gin_file=verifiers/speculative_sampling.gin"),
}
MODES = "alone", "speculative"
HEAD = (
    "| setting | speculative, T=0: time over that without | T=1 | alone, T=0 | T=1 | tokens |\n"
    "|---|---:|---:|---:|---:|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--settings", nargs="+", choices=list(SETTINGS)[1:], default=list(SETTINGS)[1:]
    )
    parser.add_argument("--turns", type=int, default=3, metavar="N")
    parser.add_argument("--texts", type=int, default=4, metavar="N")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measured(args.texts)))
        return
    from remeasure import RESULTS, device_name

    from specdec.records import Lines

    path = Path(RESULTS, device_name(), "flags", "lines.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    lines: Any = Lines(path)
    for turn, start in itertools.product(range(args.turns), range(1, len(SETTINGS), GROUP)):
        group = [name for name in list(SETTINGS)[start : start + GROUP] if name in args.settings]
        done = {x["setting"] for x in lines if x["turn"] == turn}
        if group and not done.issuperset(group):
            results = {name: in_process(SETTINGS[name], args.texts) for name in (NOTHING, *group)}
            without = results.pop(NOTHING)
            for name, found in results.items():
                line = {"setting": name, "set": SETTINGS[name], "turn": turn}
                lines.append(line | {"without": without, "with": found})
    print(HEAD)
    for name in args.settings:
        print(row(name, [x for x in lines if x["setting"] == name]))


def in_process(variables: Mapping[str, str], texts: int) -> dict[str, Any] | str:
    """What a process with these variables measured, or the last line of what it died of."""
    command = [sys.executable, __file__, "--worker", f"--texts={texts}"]
    done = subprocess.run(
        command, env=os.environ | dict(variables), capture_output=True, text=True, check=False
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it died without a word"])[-1][:200]
    return json.loads(done.stdout.splitlines()[-1])


def measured(texts: int) -> dict[str, Any]:
    """Milliseconds of each text, by temperature and mode, a digest of the tokens, and layouts."""
    if CORES in os.environ:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[: int(os.environ[CORES])])
    import jax
    import jax.numpy as jnp
    import numpy as np
    from forecast_check import built

    from specdec.decoding import row_keys
    from specdec.models.products import described
    from specdec.program import Decoder

    found: dict[str, Any] = {}
    for temperature, flags in RUNS.items():
        run = built(flags, "test", texts)
        run = dataclasses.replace(run, data=dataclasses.replace(run.data, batch_size=1)).laid_out()
        stored = run.load()
        ways: dict[str, Any] = {
            "alone": (Decoder(run.alone), run.params_alone(stored), run.alone.target),
            "speculative": (Decoder(run.plan), stored, run.plan.target),
        }
        for mode, (program, params, target) in ways.items():
            digest, times = hashlib.sha256(), []
            for batch in run.batches():
                given = params, row_keys(0, jnp.asarray(batch.index)), jnp.asarray(batch.inputs)
                seconds = []
                for _ in range(REPEATS):
                    execute = program.warmed(*given)
                    start = time.perf_counter()
                    output = jax.block_until_ready(execute(*given))
                    seconds.append(time.perf_counter() - start)
                times.append(round(1e3 * min(seconds), 3))
                digest.update(np.asarray(output.tokens).tobytes())
            found[f"{mode} {temperature}"] = {
                "ms": times,
                "tokens": digest.hexdigest()[:12],
                "layout": described(target.layout, target.orders),
            }
    return found


def row(name: str, lines: Sequence[Any]) -> str:
    """A row of the table: the median over turns of the ratio of the times, least and greatest."""
    died = [x["with"] for x in lines if isinstance(x["with"], str)]
    if died:
        return f"| {name} | {died[0]} | | | | |"
    keys = [f"{mode} {temperature}" for mode in reversed(MODES) for temperature in RUNS]
    same = all(x["with"][k]["tokens"] == x["without"][k]["tokens"] for x in lines for k in keys)
    cells = [name, *(cell(ratios(lines, key)) for key in keys), "the same" if same else "others"]
    return f"| {' | '.join(cells)} |"


def ratios(lines: Sequence[Any], key: str) -> Iterator[float]:
    """Of each turn, the time of all texts with the setting over that without."""
    for line in lines:
        yield sum(line["with"][key]["ms"]) / sum(line["without"][key]["ms"])


def cell(found: Iterator[float]) -> str:
    known = list(found)
    return f"{statistics.median(known):.2f} ({min(known):.2f} to {max(known):.2f})"


if __name__ == "__main__":
    main()
