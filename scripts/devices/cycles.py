"""Cycles of one decode call by a TPU compiler's own estimate: models by tokens of the call.

  PYTHONPATH=. python scripts/devices/cycles.py v4:1x1x1 t5_1_1_xxl 1 2 8 >> FILE
  PYTHONPATH=. python scripts/devices/cycles.py --tables FILE

Compiles calls of `decode` on one text, in bfloat16 with 64 tokens of inputs and a
cache of 128 slots, for one device that need not be there, and prints a JSON line for each.
`--fused` computes the layers of a draft by one kernel, whose cycles the compiler does not state.
`--tables` prints the tables of docs/log/tpu-log.md from such lines. Compiling needs libtpu, see
docs/how-to/run-on-a-tpu.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from specdec.common.environment import version
from specdec.common.records import as_json
from specdec.common.tables import row
from specdec.decoding.program import Program, batch_shapes
from specdec.models import partitioning
from specdec.models.placement.layouts import Layout
from specdec.models.t5 import T5Config, T5Target
from specdec.models.t5.config import SIZES
from specdec.models.t5.shapes import PRESETS
from specdec.predict.compilation import compiled
from specdec.predict.compile_record import of_module
from specdec.predict.hardware import Topology

INPUTS, SLOTS, VOCABULARY = 64, 128, 32128
NAMES = {"small": "t5_1_1_small", "base": "t5_1_1_base", "large": "t5_1_1_large"}
PAPER = {"small": 0.02, "base": 0.04, "large": 0.11}  # c of Leviathan et al. (2211.17192), table 2
TARGET, CHIP = "t5_1_1_xxl", "v4:1x1x1"


def model_of(name: str, weights: str, joined: bool = False, fused: bool = False) -> T5Target:
    """The model of a published size, in bfloat16."""
    sizes = {preset: sizes for sizes, preset in PRESETS.items()}[name]
    config = T5Config(VOCABULARY, dtype="bfloat16", **dict(zip(SIZES, sizes, strict=True)))
    layout = Layout(joined=joined, fused="mosaic" if fused else None)
    return T5Target(config, layout=layout, weights=weights)  # type: ignore[arg-type]


def measured(
    topology: str, name: str, tokens: Sequence[int], weights: str, **kinds: bool
) -> Iterator[Mapping]:
    """Yields a line for each number of tokens of a call."""
    model, devices = model_of(name, weights, **kinds), Topology.parse(topology).devices()
    mesh = partitioning.make_mesh(1, devices)
    params = partitioning.abstract(model, mesh)
    _, inputs = batch_shapes(model, 1, INPUTS, mesh)
    with jax.set_mesh(mesh):
        cache = jax.eval_shape(functools.partial(model.prefill, capacity=SLOTS), params, inputs)
        whole = partitioning.whole(mesh)
        place = functools.partial(_placed, sharding=whole)
        cache = jax.tree.map(place, cache)
        for width in tokens:
            fed = jax.ShapeDtypeStruct([1, width], jnp.int32, sharding=whole)
            call = Program(model.decode, donate=[2])
            make = functools.partial(call.compile, params, fed, cache)
            part, _ = compiled(f"{name} {width}", make)
            about = {"topology": topology, "model": name, "weights": weights, "tokens": width}
            about |= kinds
            found = {"too_large": part.too_large} if part.module is None else {}
            if part.module is not None:
                found = dataclasses.asdict(of_module(part.module))
            yield {**about, **found, "jax": version("jax"), "libtpu": version("libtpu")}


def _placed(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def tables(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the rows of the tables: calls, c of the paper's drafts, and drafts of one kernel."""
    fused = [one for one in lines if one.get("fused") and "cycles" in one]
    cycles = {
        (
            one["topology"],
            one["model"],
            one["weights"],
            one.get("joined", False),
            one["tokens"],
        ): one
        for one in lines
        if "cycles" in one and not one.get("fused")
    }
    widths = sorted({key[-1] for key in cycles})
    names = (f"{n} token{'s' * (n > 1)}" for n in widths)
    yield row("topology", "model", *names, "1 over 8", "2 over 8")
    yield "|---|---|" + "---:|" * (len(widths) + 2)
    for topology, model, weights, joined in dict.fromkeys(key[:-1] for key in cycles):
        found = {n: cycles.get((topology, model, weights, joined, n)) for n in widths}
        name = model.removeprefix("t5_1_1_") + (" in int8" if weights == "int8" else "")
        name += ", joined" if joined else ""
        ratios = (_ratio(found[n], found.get(8)) for n in (1, 2))
        yield row(topology, name, *map(_cell, found.values()), *ratios)
    yield ""
    yield row("draft", "c, calls of 1 token", "of 2 tokens", "2, joined", "c of the paper")
    yield "|---|---:|---:|---:|---:|"
    for draft, paper in PAPER.items():
        calls = [
            cycles[CHIP, NAMES[draft], "stored", joined, n]["cycles"]
            / cycles[CHIP, TARGET, "stored", False, n]["cycles"]
            for n, joined in ((1, False), (2, False), (2, True))
        ]
        yield row(draft, *(f"{c:.3f}" for c in calls), paper)
    yield ""
    yield row("topology", "draft", "2 tokens, joined", "around the kernel", "fusions around it")
    yield "|---|---|---:|---:|---:|"
    for one in fused:
        joined = cycles[one["topology"], one["model"], one["weights"], True, one["tokens"]]
        name, around = one["model"].removeprefix("t5_1_1_"), f"{one['cycles'] / 1e6:.2f}M"
        yield row(one["topology"], name, _cell(joined), around, one["fusions"])


def _ratio(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> str:
    return f"{one['cycles'] / other['cycles']:.2f}" if one and other else ""


def _cell(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return ""
    return f"{one['cycles'] / 1e6:.2f}M ({one['fusions_per_layer']:g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topology", nargs="?", help="of one device, such as v4:1x1x1")
    parser.add_argument("model", nargs="?", help=f"such as {TARGET}")
    parser.add_argument("tokens", nargs="*", type=int)
    parser.add_argument("--weights", default="stored", choices=["stored", "int8"])
    parser.add_argument("--joined", action="store_true", help="as a draft with joined kernels")
    parser.add_argument("--fused", action="store_true", help="as a draft with one kernel")
    parser.add_argument("--tables", metavar="FILE")
    args = parser.parse_args()
    if args.tables:
        lines = Path(args.tables).read_text(encoding="utf-8").splitlines()
        print(*tables([json.loads(line) for line in lines]), sep="\n")
        return
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_compilation_cache_dir", None)
    kinds = {"joined": args.joined, "fused": args.fused}
    for line in measured(args.topology, args.model, args.tokens, args.weights, **kinds):
        print(as_json(line))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
