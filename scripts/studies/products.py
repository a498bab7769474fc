"""Measures products of a few tokens by kind, order and width, and what rounding tokens costs.

  python scripts/studies/products.py          # on an idle machine, 20 seconds
  python scripts/studies/products.py --page   # writes docs/reference/products.md from all results

A line for each device goes to products/lines.jsonl: `models.placement.device` of this machine, and
for a layer of T5-large the time and the operations of rounding its tokens at six products.
Run it from the root of a checkout.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import RESULTS, Results

from specdec.common.records import Lines
from specdec.models.layers.int8 import rounded
from specdec.models.placement import device

PAGE = RESULTS.parent / "reference" / "products.md"
WIDTHS = (1, 2, 8, 64)  # tokens
LAYERS, ROUNDINGS, WIDTH = 24, 6, 1024  # of T5-large: tokens are rounded six times in a layer
REPEATS = 50
ABOUT = """# Products in eight bits

Milliseconds of the two products of an MLP, by the order of the product and the number of tokens.
`specdec.models.layers.products` explains the orders. Names with `int8_` multiply int8 tokens by
int8 kernels; the others are float32. `small` is 256 x 1024 and `large` 1024 x 2816. A model with
`INT8_TOKENS` uses the kind that is faster for its calls. `python scripts/studies/products.py`
measures a device and writes this page.
"""


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--page", action="store_true", help="write the page, measure nothing")
    args = parser.parse_args()
    if not args.page:
        line = {"device": harness.device_name(), **device.measure(int8=True).as_json()}
        Results.of(args, "products/lines", "device").put({**line, "rounding": rounding()})
    files = sorted(args.results.glob("*/products/lines.jsonl"))
    lines = [text for file in files for one in Lines(file) for text in table(one)]
    PAGE.write_text("\n".join([ABOUT, *lines]) + "\n", encoding="utf-8")


def rounding() -> list[dict[str, Any]]:
    """Returns, by width, the microseconds and the operations of rounding in one layer."""

    def layers(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, LAYERS * ROUNDINGS, lambda _, x: once(x), x)

    def once(x: jax.Array) -> jax.Array:
        levels, scale = rounded(x)
        return levels.astype(jnp.int8).astype(jnp.float32) * scale

    found = []
    for width in WIDTHS:
        x = jax.device_put(np.ones((width, WIDTH), np.float32))
        entry = str(jax.jit(once).lower(x).compile().as_text()).partition("ENTRY")[2]
        operations = ROUNDINGS * len(re.findall(r" (?:fusion|reduce|convert|abs)\(", entry))
        program, seconds = jax.jit(layers).lower(x).compile(), []
        for _ in range(REPEATS):
            start = time.perf_counter()
            jax.block_until_ready(program(x))
            seconds.append(time.perf_counter() - start)
        each = round(1e6 * min(seconds) / LAYERS, 2)
        found.append({"tokens": width, "microseconds": each, "operations": operations})
    return found


def table(line: Mapping[str, Any]) -> Iterator[str]:
    """Yields the table of a device in Markdown."""
    yield f"\n## {line['device']}\n"
    yield harness.head("size", "product", *(f"{n} tokens" for n in WIDTHS))
    for size, times in line["milliseconds"].items():
        for name, by_width in times.items():
            yield harness.row(size, name, *(f"{by_width[str(n)]:.3f}" for n in WIDTHS))
    rounding = line["rounding"]
    shares = (f"{x['microseconds']} us for {x['tokens']}" for x in rounding)
    yield (
        f"\nIn a layer of T5-large, rounding tokens takes {', '.join(shares)} tokens, in "
        f"{rounding[0]['operations']} operations. Load then: {line['load']} of a core; jaxlib "
        f"{line['about']['jaxlib']}."
    )


if __name__ == "__main__":
    main()
