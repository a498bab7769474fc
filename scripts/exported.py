"""Times what a first text would gain from a program that was exported earlier (`jax.export`).

  python scripts/exported.py [--turns 5]

The embedded pair's program, in a process of its own each time and by turns: traced and lowered as
`specdec decode` does it, or read from a file and lowered from there; then compiled, from the cache
of compiled programs. JSON lines go to docs/results/DEVICE/exported/. Run it from the root of a
checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WAYS = "traced", "exported"
RUN = ("--gin_file=demo.gin",)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, metavar="N")
    parser.add_argument("--worker", choices=("export", *WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(worker(args.worker, Path(args.file))))
        return
    from remeasure import RESULTS, device_name

    from specdec.records import Lines

    found = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, f"--file={folder}/program"]
        for turn in range(-1, args.turns):  # the first turn exports, and compiles
            for way in ("export", *WAYS) if turn < 0 else WAYS:
                done = subprocess.run(
                    [*command, f"--worker={way}"], stdout=subprocess.PIPE, text=True, check=True
                )
                line = {"way": way, "turn": turn} | json.loads(done.stdout.splitlines()[-1])
                found.append(line)
                print(line, flush=True)
    path = Path(RESULTS, device_name(), "exported", "lines.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    Lines(path).replace(found)
    for way in WAYS:
        own = [line["seconds"] for line in found if line["way"] == way and line["turn"] >= 0]
        cells = (f"{name} {statistics.median(x[name] for x in own):.2f}" for name in own[0])
        print(f"{way}: {', '.join(cells)}")


def worker(way: str, file: Path) -> dict[str, Any]:
    """Seconds of each phase, and the tokens of one text."""
    import jax
    import jax.numpy as jnp
    from forecast_check import built
    from jax import export

    from specdec.decoding import decode, row_keys
    from specdec.program import batch_shapes

    run = built(RUN, "test", 1)
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, batch_size=1)).laid_out()
    plan, length = run.plan, run.data.lengths["inputs"]
    trees = run.trees(run.placement.shape)
    leaves, structure = jax.tree.flatten((plan.params(trees), *batch_shapes(1, length)))

    def program(*leaves):  # flat, so that no class of ours has to be written down
        output = decode(*jax.tree.unflatten(structure, leaves), plan)
        return output.tokens, output.length, output.log_probs

    seconds: dict[str, float] = {}

    def timed(name: str, work: Any) -> Any:
        start = time.perf_counter()
        result = work()
        seconds[name] = round(time.perf_counter() - start, 3)
        return result

    if way == "export":
        made = timed("trace and export", lambda: export.export(jax.jit(program))(*leaves))
        timed("write", lambda: file.write_bytes(made.serialize()))
        return {"seconds": seconds, "bytes": file.stat().st_size}
    if way == "exported":
        kept = timed("read", lambda: export.deserialize(bytearray(file.read_bytes())))
        lowered = timed("lower", lambda: jax.jit(kept.call).lower(*leaves))
    else:
        lowered = timed("trace and lower", lambda: jax.jit(program).lower(*leaves))
    execute = timed("compile", lowered.compile)
    seconds["all"] = round(sum(seconds.values()), 3)
    batch = next(iter(run.batches()))
    given = run.load(), row_keys(0, jnp.asarray(batch.index)), jnp.asarray(batch.inputs)
    tokens, length, _ = execute(*jax.tree.leaves(given))
    return {"seconds": seconds, "tokens": tokens[0, : int(length[0])].tolist()}


if __name__ == "__main__":
    main()
