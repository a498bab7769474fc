"""Times a draft's step and the embedded pair with each kind of a draft's kernels.

  PYTHONPATH=. python scripts/devices/draft_step.py --output_file=FILE [--sizes=tiny] [--only=small]

The kinds are XLA's kernels, the same with joined ones, and the fused ones of this device ("triton"
on a GPU, "mosaic" on a TPU). A step of T5 1.1 small, base and large is timed in bfloat16 at batch
1, with random weights, on one token and on two. The embedded pair decodes texts at T = 0, in
float32, and in bfloat16 with the same bits in calls of every width. All programs take turns in one
process. On a GPU the kernels of a step are counted and added up, from a
profile.

A tiny run on a CPU interprets the fused kernels of both devices: it shows that they work, and its
times mean nothing. Needs no gin, seqio or TensorFlow.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import specdec
from specdec import checkpoints, tasks
from specdec.common import demo, records
from specdec.common.environment import environment
from specdec.decoding import row_bits
from specdec.drafters import Autoregressive
from specdec.models.t5 import T5Config, T5Target
from specdec.models.t5.network import FUSED
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.tasks.synthetic import synthetic_task
from specdec.types import Array, PyTree
from specdec.verifiers import GreedyMatch

STEPS, ROUNDS, TEXTS = 32, 20, 16
INPUTS, SLOTS = 64, 72
SIZES = {
    "full": {
        "small": (512, 6, 1024, 8),
        "base": (768, 12, 2048, 12),
        "large": (1024, 16, 2816, 24),
    },
    "tiny": {"tiny": (128, 2, 128, 2)},
}  # D, heads, units of the MLP, layers
FUSED_HERE = [FUSED[backend]] if (backend := jax.default_backend()) in FUSED else FUSED.values()
KINDS: Mapping[str, Mapping[str, Any]] = {
    "xla": {},
    "joined": {"joined": True},
    **{name: {"fused": name} for name in FUSED_HERE},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--output_file", type=Path, required=True, metavar="FILE")
    parser.add_argument("--sizes", choices=SIZES, default="full", help="tiny: a dry run on a CPU")
    parser.add_argument("--only", metavar="MODEL", help="the step of one model, and no texts")
    args = parser.parse_args()
    tiny, sizes = args.sizes == "tiny", SIZES[args.sizes]
    if args.only is not None:
        if args.only not in sizes:
            parser.error(f"--only is {args.only}; give one of {', '.join(sizes)}")
        sizes = {args.only: sizes[args.only]}
    with args.output_file.open("w", encoding="utf-8") as file:
        for name, (dim, heads, units, layers) in sizes.items():
            config = T5Config(
                vocab_size=320 if tiny else 32128,
                emb_dim=dim,
                num_heads=heads,
                head_dim=64,
                mlp_dim=units,
                num_encoder_layers=1,
                num_decoder_layers=layers,
                dtype="bfloat16",
            )
            for line in steps(name, T5Target(config), rounds=2 if tiny else ROUNDS):
                written(file, line)
        for same_bits in () if args.only else (False, True):
            for line in embedded_pair(1 if tiny else TEXTS, same_bits):
                written(file, line)


def written(file: Any, line: Mapping[str, Any]) -> None:
    print(line, flush=True)
    file.write(f"{records.as_json({**line, 'environment': environment()})}\n")
    file.flush()


def steps(name: str, model: T5Target, rounds: int) -> list[dict[str, Any]]:
    """Returns a line for each kind of kernels and each width of a call."""
    params = random_parameters(model)
    cache = jax.jit(lambda params, x: model.prefill(params, x, SLOTS))(
        params, jnp.ones([1, INPUTS], jnp.int32)
    )
    bound = {}
    for kind, fields in KINDS.items():
        draft = model.in_layout(**fields)
        given = draft.from_stored(params)
        for width in (1, 2):
            run = jax.jit(functools.partial(repeated, draft, width))
            bound[kind, width] = functools.partial(run, given, cache)
    seconds = by_turns(bound, rounds)
    lines = []
    for (kind, width), times in seconds.items():
        counted = profiled(bound[kind, width])
        lines.append(
            {
                "model": name,
                "kernels": kind,
                "width": width,
                "us per step": round(1e6 * statistics.median(times) / STEPS, 1),
                "least": round(1e6 * min(times) / STEPS, 1),
                "started per step": round(sum(n for n, _ in counted.values()) / STEPS, 1),
                "us in kernels": round(sum(us for _, us in counted.values()) / STEPS, 1),
                "fused, us each": {
                    kernel: round(us / n, 2)
                    for kernel, (n, us) in counted.items()
                    if kernel.startswith("t5_")
                },
            }
        )
    return lines


def random_parameters(model: T5Target) -> PyTree:
    generator = np.random.default_rng(0)

    def made(leaf: Any) -> Array:
        spread = leaf.shape[0] ** -0.5 if leaf.ndim > 1 else 1.0
        return jnp.asarray(generator.standard_normal(leaf.shape, np.float32) * spread, model.dtype)

    return jax.tree.map(made, model.parameter_shapes())


def repeated(model: T5Target, width: int, params: PyTree, cache: Any) -> Array:
    """Returns the last tokens of `STEPS` calls, each fed with the argmaxes of the one before."""

    def call(_: Array, given: tuple[Array, Any]) -> tuple[Array, Any]:
        tokens, cache = given
        output, fed = model.decode(params, tokens, cache)
        return jnp.argmax(output.logits, -1).astype(jnp.int32), fed.rewind(cache.length + 1)

    return jax.lax.fori_loop(0, STEPS, call, (jnp.zeros([1, width], jnp.int32), cache))[0]


def by_turns(runs: Mapping[Any, Callable[[], Any]], rounds: int) -> dict[Any, list[float]]:
    """Returns the seconds of programs that take turns, after one round that compiles them."""
    seconds: dict[Any, list[float]] = {name: [] for name in runs}
    for place in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            if place:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def profiled(run: Callable[[], Any]) -> dict[str, tuple[int, float]]:
    """Returns number and microseconds of a run's kernels on a GPU, by name without its number."""
    if jax.default_backend() != "gpu":
        return {}
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        (path,) = Path(folder).rglob("*.xplane.pb")
        planes = jax.profiler.ProfileData.from_file(str(path)).planes
        found: dict[str, tuple[int, float]] = collections.defaultdict(lambda: (0, 0.0))
        for plane in planes:
            for line in plane.lines if "GPU" in plane.name else ():
                for event in line.events if "Stream" in line.name else ():
                    name = event.name.partition("__")[0]
                    count, microseconds = found[name]
                    found[name] = count + 1, microseconds + event.duration_ns / 1e3
        return dict(found)


def embedded_pair(texts: int, same_bits: bool) -> list[dict[str, Any]]:
    """Returns a line for the target alone, and one for each kind of a draft's kernels.

    Args:
      texts: how many.
      same_bits: whether the pair is in bfloat16, with `Plan.same_bits`. A device on which rows of
        calls of several widths differ has one line, which says so.
    """
    models = {role: checkpoints.model_from(demo.path(role)) for role in ("target", "draft")}
    if same_bits:
        for role, model in models.items():
            config = dataclasses.replace(model.config, dtype="bfloat16")
            models[role] = dataclasses.replace(model, config=config)
    trees = {role: jax.device_put(checkpoints.load(demo.path(role))) for role in models}
    drafts = {kind: models["draft"].in_layout(**x) for kind, x in KINDS.items()}
    plans = {
        kind: Plan(
            target=models["target"],
            drafter=Autoregressive(draft, Greedy()),
            verifier=GreedyMatch(),
            schedule=Fixed(7),
            sampling=Greedy(),
            max_length=48,
            stop_ids=(1,),
            same_bits=same_bits,
        )
        for kind, draft in drafts.items()
    }
    given = {
        kind: plan.params({**trees, "draft": drafts[kind].from_stored(trees["draft"])})
        for kind, plan in plans.items()
    }
    plans["alone"] = plans["xla"].alone()
    given["alone"] = plans["alone"].params(trees)
    about = {"pair": "demo", "dtype": models["target"].dtype, "same bits": same_bits}
    if same_bits:
        try:
            row_bits.check_same_bits(plans["xla"], trees["target"], 1, 48)
        except row_bits.NotTheSameBits as error:
            return [{**about, "refused": str(error)}]
    keys = specdec.row_keys(0, jnp.arange(1))
    task, lengths = synthetic_task("specdec_ende"), {"inputs": 48, "targets": 48}
    seconds: dict[str, float] = dict.fromkeys(plans, 0.0)
    same = dict.fromkeys(plans, 0)
    batches = list(tasks.batches(task, "test", lengths, batch_size=1, limit=texts))
    for place, batch in enumerate([batches[0], *batches]):
        outputs = {}
        for name, plan in plans.items():
            start = time.perf_counter()
            output = jax.block_until_ready(specdec.decode(given[name], keys, batch.inputs, plan))
            seconds[name] += time.perf_counter() - start if place else 0.0
            outputs[name] = np.asarray(output.tokens)
        for name, tokens in outputs.items() if place else ():
            same[name] += np.array_equal(tokens, outputs["alone"])
    return [
        {
            **about,
            "kernels": name,
            "ms per text": round(1e3 * taken / texts, 2),
            "times as fast": round(seconds["alone"] / taken, 2),
            "identical": f"{same[name]} of {texts}",
        }
        for name, taken in seconds.items()
    ]


if __name__ == "__main__":
    main()
