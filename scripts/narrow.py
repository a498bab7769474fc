"""Times products of a few tokens with kernels of fewer bits than float32, sums in float32.

  python scripts/narrow.py

Matrices of T5-large's and of a small model's MLPs, many of them, so that the large ones are read
from memory; every order of a product; by turns in one process. JSON lines go to
docs/results/DEVICE/narrow/: milliseconds, least and median. Run it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from remeasure import RESULTS, device_name

from specdec.models.device import SIZES, Size
from specdec.models.products import ORDERS, Order, product
from specdec.records import Lines
from specdec.types import Array

ROUNDS = 9
WIDTHS = (1, 2, 4, 8)
COPIES = {"small": 24, "large": 20}  # of the first kernel of a size
KINDS = ("float32", "bfloat16", "bfloat16, tokens too", "int8")
HEAD = f"| kernels | tokens | {' | '.join(KINDS)} |\n|---|---:|{'---:|' * len(KINDS)}"


def main() -> None:
    argparse.ArgumentParser(description=str(__doc__).splitlines()[0]).parse_args()
    folder = RESULTS / device_name() / "narrow"
    folder.mkdir(parents=True, exist_ok=True)
    lines, found = Lines(folder / "lines.jsonl"), []
    print(HEAD)
    for size, width in itertools.product(SIZES, WIDTHS):
        times = timed(size, width)
        found.append({"size": size.name, "width": width, "ms": times})
        cells = (best(times[kind]) for kind in KINDS)
        shape = " x ".join(map(str, size.shapes[0]))
        print(f"| {COPIES[size.name]} of {shape} | {width} | {' | '.join(cells)} |", flush=True)
    lines.replace(found)


def timed(size: Size, width: int) -> dict[str, dict[Order, tuple[float, float]]]:
    """Of each kind and order, the least and the median."""
    inputs, outputs = size.shapes[0]
    x = jnp.ones([width, inputs], jnp.float32)
    programs: dict[tuple[str, Order], Any] = {}
    for kind, order in itertools.product(KINDS, ORDERS):
        shape = (inputs, outputs) if order == "in_out" else (outputs, inputs)
        dtype = jnp.dtype(kind.partition(",")[0])
        kernels = [jax.device_put(np.ones(shape, dtype)) for _ in range(COPIES[size.name])]

        def run(x, kernels, kind=kind, order: Order = order):
            return [multiplied(x, kernel, kind, order) for kernel in kernels]

        execute = jax.jit(run).lower(x, kernels).compile()
        programs[kind, order] = execute, kernels
    seconds: dict[tuple[str, Order], list[float]] = {key: [] for key in programs}
    for turn, (key, (execute, kernels)) in itertools.product(range(-1, ROUNDS), programs.items()):
        start = time.perf_counter()
        jax.block_until_ready(execute(x, kernels))
        if turn >= 0:
            seconds[key].append(1e3 * (time.perf_counter() - start))
    found: dict[str, dict[Order, tuple[float, float]]] = {kind: {} for kind in KINDS}
    for (kind, order), times in seconds.items():
        found[kind][order] = round(min(times), 3), round(statistics.median(times), 3)
    return found


def multiplied(x: Array, kernel: Array, kind: str, order: Order) -> Array:
    """A product with float32 sums. Tokens keep their bits, unless they are rounded too."""
    if kind == "bfloat16, tokens too":
        x = x.astype(jnp.bfloat16)
    else:
        kernel = kernel.astype(jnp.float32)
    return product(x, kernel, order, preferred_element_type=jnp.float32)


def best(times: dict[Order, tuple[float, float]]) -> str:
    """The order with the least time, and that time."""
    order = min(times, key=lambda one: times[one][0])
    least, median = times[order]
    return f"{least:.2f} {median:.2f}, {order}"


if __name__ == "__main__":
    main()
