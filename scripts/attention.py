"""Times attention's products over caches in several orders, at a decoder's sizes.

  python scripts/attention.py [--heads 16] [--head_dim 64] [--layers 24]

All layers one after the other, each with a cache of its own that is as full as it can be, as many
tokens at a time as a call has: milliseconds, least and median, by turns in one process. What a
candidate needs beside its products is in its time; writing a cache is not. JSON lines go to
docs/results/DEVICE/attention/. Run it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from remeasure import RESULTS, device_name

from specdec.models.layers import attend
from specdec.records import Lines
from specdec.types import Array

ROUNDS = 15
WIDTHS, SLOTS = (1, 2, 4, 8), (64, 128, 256, 512)
EXACT = jax.lax.Precision.HIGHEST


def as_it_is(query: Array, keys: Array, values: Array) -> Array:
    """[T, H, D] queries, caches [H, C, D]."""
    return attend(query[None], keys[None], values[None], jnp.zeros([]))[0]


def cache_first(query: Array, keys: Array, values: Array) -> Array:
    """Both products with the cache as their first operand."""
    scores = jnp.einsum("hcd,thd->hct", keys, query, precision=EXACT)
    weights = jax.lax.optimization_barrier(jax.nn.softmax(scores, axis=1))
    mixed = jnp.einsum("hcd,hct->hdt", values, weights, precision=EXACT)
    return jax.lax.optimization_barrier(mixed).transpose(2, 0, 1)


def keys_turned(query: Array, keys: Array, values: Array) -> Array:
    """Keys kept [H, D, C]."""
    scores = jnp.einsum("thd,hdc->htc", query, keys, precision=EXACT)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("htc,hcd->thd", weights, values, precision=EXACT)


def both_turned(query: Array, keys: Array, values: Array) -> Array:
    """Keys and values kept [H, D, C]."""
    scores = jnp.einsum("thd,hdc->htc", query, keys, precision=EXACT)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("htc,hdc->thd", weights, values, precision=EXACT)


def sums(query: Array, keys: Array, values: Array) -> Array:
    """Both products multiplied and summed."""
    scores = jnp.sum(query.transpose(1, 0, 2)[:, :, None] * keys[:, None], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.sum(weights[..., None] * values[:, None], axis=2).transpose(1, 0, 2)


# Each with the caches that it wants turned.
CANDIDATES: dict[str, tuple[Callable[..., Array], bool, bool]] = {
    "as it is": (as_it_is, False, False),
    "cache first": (cache_first, False, False),
    "keys turned": (keys_turned, True, False),
    "both turned": (both_turned, True, True),
    "sums": (sums, False, False),
}
HEAD = f"| tokens | slots | {' | '.join(CANDIDATES)} |\n|---:|---:|{'---|' * len(CANDIDATES)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--heads", type=int, default=16, metavar="N")
    parser.add_argument("--head_dim", type=int, default=64, metavar="N")
    parser.add_argument("--layers", type=int, default=24, metavar="N")
    args = parser.parse_args()
    folder = RESULTS / device_name() / "attention"
    folder.mkdir(parents=True, exist_ok=True)
    lines: Any = Lines(folder / "lines.jsonl")
    print(HEAD)
    for slots, width in itertools.product(SLOTS, WIDTHS):
        found = timed(programs(args.layers, args.heads, args.head_dim, slots, width))
        about = {"heads": args.heads, "head_dim": args.head_dim, "layers": args.layers}
        line = about | {"slots": slots, "width": width, "ms": found}
        same = [x for x in lines if any(x[key] != line[key] for key in (*about, "slots", "width"))]
        lines.replace([*same, line])
        cells = (f"{min(x):.2f} {statistics.median(x):.2f}" for x in found.values())
        print(f"| {width} | {slots} | {' | '.join(cells)} |", flush=True)


def programs(
    layers: int, heads: int, head_dim: int, slots: int, width: int
) -> dict[str, tuple[Any, Sequence[Any]]]:
    """Each candidate over all layers, compiled and checked, and what it is given."""
    random = np.random.default_rng(0)
    shape = (heads, slots, head_dim)
    scale = head_dim**-0.5  # or so many layers make much of a rounding
    pairs = [(scale * random.normal(size=(2, *shape))).astype(np.float32) for _ in range(layers)]
    query = jnp.asarray(random.normal(size=(width, heads, head_dim)), jnp.float32)
    found: dict[str, tuple[Any, Sequence[Any]]] = {}
    first = None
    for name, (layer, *turned) in CANDIDATES.items():
        caches = [
            tuple(
                jnp.asarray(np.ascontiguousarray(x.swapaxes(1, 2) if t else x))
                for x, t in zip(pair, turned, strict=True)
            )
            for pair in pairs
        ]

        def run(query, caches, layer=layer):
            for keys, values in caches:
                query = layer(query, keys, values)
            return query

        execute = jax.jit(run).lower(query, caches).compile()
        result = np.asarray(execute(query, caches))
        first = result if first is None else first
        np.testing.assert_allclose(result, first, rtol=1e-3, atol=1e-4)
        found[name] = execute, (query, caches)
    return found


def timed(programs: Mapping[str, tuple[Any, Sequence[Any]]]) -> dict[str, list[float]]:
    """Milliseconds of each round."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, (execute, given) in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(execute(*given))
            found[name].append(round(1e3 * (time.perf_counter() - start), 4))
    return found


if __name__ == "__main__":
    main()
