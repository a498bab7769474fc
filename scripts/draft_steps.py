"""What a draft's step costs by its shape: layers, width, and a line through them.

  python scripts/draft_steps.py here [--rounds 9]
  python scripts/draft_steps.py v4
  python scripts/draft_steps.py report

Decoders of 24 shapes in T5 v1.1's proportions, with its vocabulary, that read the output of a
target's encoder. `here` times a call of one token behind 64 tokens of input, a scan of bare calls
in the layout that suits it, all shapes by turns in one process. `v4` compiles that call for one
chip, in bfloat16, and adds up the cycles that the compiler estimates for its instructions (needs
libtpu, in an environment of its own). Lines go to docs/results/DEVICE/drafts/steps.jsonl. `report`
fits t = a + b layers + c bytes to them by least squares.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from remeasure import RESULTS, device_name
from specdec.roles import plain_call

from specdec.benchmark.workload import prefills, scan
from specdec.compile.hardware import Topology
from specdec.models.t5 import T5Draft, T5DraftConfig
from specdec.program import Program
from specdec.records import Lines

SHAPES = tuple(itertools.product((1, 2, 3, 4, 6, 8), (256, 512, 768, 1024)))  # layers, width
INPUTS, SLOTS, STEPS = 64, 128, 32  # tokens, of the cache, calls in a scan
TOPOLOGY = "v4:1x1x1"
XXL, CALLS = (24, 4096), (1, 4, 8, 11)  # the target on v4, and tokens of its calls
READS = {"here": 1024, TOPOLOGY: 4096}  # width of the target's encoder: T5-large's, T5-XXL's


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("action", choices=("here", "v4", "report"))
    parser.add_argument("--rounds", type=int, default=9, metavar="N")
    args = parser.parse_args()
    path = RESULTS / device_name() / "drafts" / "steps.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = Lines(path)
    if args.action == "report":
        print(*report(list(lines)), sep="\n")
        return
    where = "here" if args.action == "here" else TOPOLOGY
    found = list(timed(args.rounds) if where == "here" else compiled())
    lines.replace([*(one for one in lines if one["where"] != where), *found])


def draft(layers: int, width: int, where: str) -> T5Draft:
    return T5Draft(
        T5DraftConfig(
            vocab_size=32128,
            emb_dim=width,
            num_heads=width // 64,
            head_dim=64,
            mlp_dim=width * 5 // 2,
            num_encoder_layers=0,
            num_decoder_layers=layers,
            encoded_dim=READS[where],
            dtype="float32" if where == "here" else "bfloat16",
        )
    )


def target() -> T5Draft:
    """T5 v1.1 XXL's decoder."""
    own = draft(*XXL, TOPOLOGY).config
    return T5Draft(dataclasses.replace(own, mlp_dim=10240))


def timed(rounds: int) -> Iterator[dict[str, Any]]:
    """Medians, in seconds of a call."""
    runs, sizes = {}, {}
    inputs = jnp.ones([1, INPUTS], jnp.int32)
    for shape in SHAPES:
        model = draft(*shape, "here")
        stored = jax.jit(model.init)(jax.random.key(0))
        sizes[shape] = _bytes(model.read_by_decode(stored))
        model, tree = model.serving(stored)
        trees = {"draft": tree}
        prefilled = Program(prefills({"draft": model}, SLOTS))(trees, inputs)
        program = Program(scan("draft", plain_call("draft", model), 1, STEPS))
        runs[shape] = program.warmed(trees, prefilled), (trees, prefilled)
    seconds = defaultdict(list)
    for _ in range(rounds):
        for shape, (execute, given) in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(execute(*given))
            seconds[shape].append((time.perf_counter() - start) / STEPS)
    for shape in SHAPES:
        yield _line("here", shape, sizes[shape], seconds=statistics.median(seconds[shape]))


def compiled() -> Iterator[dict[str, Any]]:
    """Cycles, of a call that is compiled."""
    placed = jax.sharding.SingleDeviceSharding(Topology.parse(TOPOLOGY).devices()[0])

    def abstract(tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed), tree
        )

    calls = [(draft(*shape, TOPOLOGY), shape, 1) for shape in SHAPES]
    calls += [(target(), XXL, width) for width in CALLS]
    for model, shape, width in calls:
        stored = jax.eval_shape(model.init, jax.random.key(0))
        tree = abstract(
            jax.tree.map(lambda x, m=model: jax.ShapeDtypeStruct(x.shape, m.dtype), stored)
        )
        encoded = jax.ShapeDtypeStruct([1, INPUTS, READS[TOPOLOGY]], model.dtype)
        mask = jax.ShapeDtypeStruct([1, INPUTS], bool)
        cache = jax.eval_shape(lambda *x, m=model: m.attach(*x, SLOTS), tree, encoded, mask)
        step = Program(plain_call("draft", model), donate=[2])
        tokens = abstract(jax.ShapeDtypeStruct([1, width], jnp.int32))
        text = step.compile({"draft": tree}, tokens, abstract(cache)).as_text()
        cycles = sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', text)))
        size = _bytes(model.read_by_decode(tree))
        yield _line(TOPOLOGY, shape, size, cycles=cycles) | {"tokens": width}


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _line(where: str, shape: tuple[int, int], size: int, **cost: float) -> dict[str, Any]:
    return {"where": where, "layers": shape[0], "width": shape[1], "bytes": size, **cost}


def fitted(lines: Sequence[Mapping[str, Any]], cost: str) -> tuple[np.ndarray, float]:
    """(a, b, c) of cost = a + b layers + c bytes, and R2."""
    known = np.array([[1, one["layers"], one["bytes"]] for one in lines], float)
    values = np.array([one[cost] for one in lines], float)
    found = np.linalg.lstsq(known, values, rcond=None)[0]
    rest = np.sum(np.square(values - known @ found))
    return found, float(1 - rest / np.sum(np.square(values - values.mean())))


def report(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Tables in Markdown, and the fits."""
    for where, cost, unit, name in (
        ("here", "seconds", 1e-3, "ms"),
        (TOPOLOGY, "cycles", 1e3, "thousand cycles"),
    ):
        own = [one for one in lines if one["where"] == where and one["width"] < XXL[1]]
        if not own:
            continue
        widths = sorted({one["width"] for one in own})
        of = {(one["layers"], one["width"]): one[cost] / unit for one in own}
        yield f"\n{where}, {name}\n"
        yield f"| layers | {' | '.join(f'{width} wide' for width in widths)} |"
        yield f"|---:|{'---:|' * len(widths)}"
        for layers in sorted({one["layers"] for one in own}):
            cells = (f"{of[layers, width]:.3g}" for width in widths)
            yield f"| {layers} | {' | '.join(cells)} |"
        (a, b, c), r2 = fitted(own, cost)
        yield (
            f"\nt = {a / unit:.3g} + {b / unit:.3g} layers + {c * 1e6 / unit:.3g} MB, "
            f"R2 = {r2:.3f}, {name}"
        )


if __name__ == "__main__":
    main()
