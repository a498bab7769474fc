"""What a target call costs by its width: T(1) to T(16) of a checkpoint, beside what must be done.

  python scripts/widths.py --checkpoint DIR [--inputs 48] [--repeats 9]

For each width the decoder's step as `specdec bench` times it, a scan of bare calls, in the serving
layout for that width; the parameters it reads over the best read bandwidth of the same minutes, and
its FLOPs over the best rate of a large float32 product. A call that did nothing else, and did the
two one after the other, would take their sum. By turns in one process; medians and the least.
"""

from __future__ import annotations

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from specdec import checkpoints
from specdec.benchmark.parts import READ_BYTES, make_memory, prefills, read_memory, scan
from specdec.environment import environment
from specdec.models.t5 import T5Target

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
STEPS, SIDE = 16, 2048  # calls in a scan; of the product whose rate is the peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--inputs", type=int, default=48, metavar="N", help="tokens of the input")
    parser.add_argument("--repeats", type=int, default=9, metavar="N")
    args = parser.parse_args()
    config = checkpoints.config_from(args.checkpoint)
    stored = checkpoints.load(args.checkpoint, config=config, dtype=config.dtype)
    read = jax.tree.leaves(T5Target(config).read_by_decode(stored))
    parameters, step_bytes = sum(x.size for x in read), sum(x.nbytes for x in read)
    inputs = np.ones([1, args.inputs], np.int32)
    layouts, runs = {}, {}
    for width in WIDTHS:
        target, tree = T5Target(config).serving(stored, {width: 1.0})
        tree = layouts.setdefault(target.layout, tree)
        prefill = jax.jit(prefills({"target": target}, STEPS + WIDTHS[-1]))
        given = prefill({"target": tree}, inputs)
        calls = jax.jit(scan("target", target, width, STEPS))
        runs[width] = (calls.lower({"target": tree}, given).compile(), ({"target": tree}, given))
    del stored
    memory = make_memory({}, jnp.asarray(inputs))
    square = jnp.ones([SIDE, SIDE])
    runs["read"] = (jax.jit(read_memory).lower({}, memory).compile(), ({}, memory))
    product = jax.jit(lambda x, y: jnp.matmul(x, y, precision="highest"))
    runs["product"] = (product.lower(square, square).compile(), (square, square))
    seconds = {name: [] for name in runs}
    for repeat in range(args.repeats + 1):
        for name, (program, given) in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*given))
            if repeat:  # the first one is slower
                seconds[name].append(time.perf_counter() - start)
    bandwidth, peak = READ_BYTES / min(seconds["read"]), 2 * SIDE**3 / min(seconds["product"])
    where = environment()
    print(f"{where['cores']} cores of {where['cpu']}, jax {where['versions']['jax']}")
    print(f"{parameters:,} parameters, {step_bytes / 1e9:.3f} GB in a call; best reading")
    print(f"{bandwidth / 1e9:.1f} GB/s; best product {peak / 1e9:.0f} GFLOP/s\n")
    print(
        "| width | median, ms | least, ms | T(width) / T(1) | bytes + FLOPs, ms | median over it |"
    )
    print("|---:|---:|---:|---:|---:|---:|")
    one = statistics.median(seconds[1]) / STEPS
    for width in WIDTHS:
        median, least = (f(seconds[width]) / STEPS for f in (statistics.median, min))
        must = step_bytes / bandwidth + 2 * parameters * width / peak
        cells = (1e3 * median, 1e3 * least, median / one, 1e3 * must, median / must)
        print(f"| {width} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
