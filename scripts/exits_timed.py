"""What exits take at a larger size, in measured time, beside what the parts of a call promise.

  python scripts/exits_timed.py NAME DIR [--pair captions] [--drafts 6x3 6x4 12x2] [--draft DIR]

NAME is "as it came" or "trained to exit", DIR such a target of a pair, grown by `specdec grow`;
--drafts are how many layers draft how many tokens, --draft is a decoder of one layer that is grown
as well. Each drafter is in the layout that suits it. Behind a quarter, half and three quarters of
the layers a target of captions also answers, in the layout of the target alone. All ways take
turns, one text at a time in one process. JSON lines go to docs/results/DEVICE/exits/lines.jsonl.
Captions need ../shared/multi30k, from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from exits import CAME, GAMMA, TRAINED, left, of_device, put, seconds
from forecast_check import PAIRS
from lossy import built, of_sums

from specdec import forecast
from specdec.benchmark.parts import name_of
from specdec.cli.run import DecodeRun
from specdec.decoding import row_keys
from specdec.models.t5 import calm
from specdec.plan import Plan
from specdec.program import Decoder
from specdec.types import Params, PyTree

THRESHOLD = 0.6  # of softmax
TURNS = 2
SHARES = (1, 2, 3)  # of the layers, quarters
EXITS = "--gin_file=drafters/early_exit.gin"


class Ways(NamedTuple):
    """Ways of decoding, by name; "alone" is one."""

    plans: dict[str, Plan]
    params: dict[str, Params]
    trees: dict[Any, PyTree]  # by model


class Times(NamedTuple):
    """Of each way, [texts] each."""

    seconds: np.ndarray  # means over turns
    outputs: list[Any]
    lengths: np.ndarray
    calls: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("name", choices=(CAME, TRAINED))
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--pair", choices=PAIRS, default="captions")
    parser.add_argument("--drafts", nargs="+", default=("6x3", "6x4", "12x2"), metavar="LAYERSxN")
    parser.add_argument("--draft", metavar="DIR")
    parser.add_argument("--texts", type=int, default=8, metavar="N")
    args = parser.parse_args()
    lines = of_device()
    for line in measured(args):
        put(lines, line)


def measured(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for each way."""
    ways = ways_of(args)
    texts = [jnp.asarray(batch.inputs) for batch in of_model(args).batches()]
    times = by_turns(ways, texts)
    alone, plans = times["alone"], {k: plan for k, plan in ways.plans.items() if plan.drafts}
    target: Any = ways.plans["alone"].target
    costs = forecast.measured(
        plans, ways.plans["alone"], lambda role, model: ways.trees[model], texts[0]
    )
    first = next(iter(costs.values()))
    own = costs_by_depth(times, first.prefill_alone) if args.pair == "captions" else {}
    expected = first.prefill_alone + alone.lengths * first.step
    for name, way in times.items():
        promised, plan = None, ways.plans[name]
        if plan.drafts:
            iteration = costs[name].iteration(plan)
            assert iteration is not None, "all widths are timed"
            promised = expected, costs[name].prefill + way.calls * iteration
        elif name.startswith("answers, softmax"):
            layers = np.concatenate([left(target.num_layers, one) for one in way.outputs])
            counts = layers[:, np.arange(1, 5) * target.num_layers // 4 - 1]
            whole = own["prefill"] + alone.lengths * own["tokens"][-1]
            promised = whole, seconds(counts, own, "softmax", THRESHOLD)
        yield {
            "mode": f"timed, {args.pair}, {args.name}, {name}",
            "kind": "timed",
            "sizes": list(dict(target.sizes).values()),
            "texts": len(texts),
            "turns": TURNS,
            "identical": identical(way, alone),
            "tokens_per_call": float(way.lengths.sum() / way.calls.sum()),
            "milliseconds_per_token": 1e3 * float(way.seconds.sum() / way.lengths.sum()),
            "speedup": faster(alone, way, alone.seconds, way.seconds),
            "predicted_speedup": promised and faster(alone, way, *promised)[0],
            "parts": {name_of(k): 1e3 * v for k, v in costs[name].calls.items()}
            if name in costs
            else None,
            "step": 1e3 * first.step,
            **({"costs": own} if name == "alone" and own else {}),
        }


def costs_by_depth(times: Mapping[str, Times], prefill: float) -> dict[str, Any]:
    """Seconds: of a token that leaves behind each share of the layers, and of an exit asked."""
    names = [*(f"answers, {x}" for x in SHARES), "alone"]
    tokens = [per_token(times[name], prefill) for name in names]
    asked = per_token(times["answers, all exits asked"], prefill)
    return {"prefill": prefill, "tokens": tokens, "exit": (asked - tokens[-1]) / len(SHARES)}


def ways_of(args: argparse.Namespace) -> Ways:
    depth, runs = cast(Any, of_model(args).plan.target).num_layers, {}
    for layers, gamma in (one.split("x") for one in args.drafts):
        runs[f"drafts, {layers} of {depth} layers, {gamma} tokens"] = of_model(
            args, EXITS, f"--gin.EXIT_LAYERS={layers}", f"--gamma={gamma}"
        )
    if args.draft:
        path = f"--gin.DRAFT_CHECKPOINT_PATH={str(Path(args.draft).resolve())!r}"
        runs[f"drafts, a decoder of one layer, {GAMMA} tokens"] = of_model(
            args, path, f"--gamma={GAMMA}"
        )
    run = of_model(args)
    alone, trees = run.alone, {}

    def read(model: Any, directory: str) -> PyTree:
        if model not in trees:
            trees[model] = run.placement.read(model, directory)
        return trees[model]

    own = Params(read(alone.target, run.checkpoint_path))
    plans, params = {"alone": alone}, {"alone": own}
    for name, one in runs.items():
        plans[name], params[name] = one.plan, one.params(read)
    if args.pair != "captions":
        return Ways(plans, params, trees)
    asked = tuple(depth * x // 4 for x in SHARES)
    answers: dict[str, dict[str, Any]] = {
        f"answers, {x}": {"threshold": 0.0, "exits": (layers,)}
        for x, layers in zip(SHARES, asked, strict=True)
    }
    answers["answers, all exits asked"] = {"threshold": 1.0, "exits": asked}  # which nobody takes
    answers[f"answers, softmax {THRESHOLD}"] = {"threshold": THRESHOLD, "exits": asked}
    for name, fields in answers.items():
        target = calm(cast(Any, alone.target), **fields)
        plans[name], params[name] = dataclasses.replace(alone, target=target), own
    return Ways(plans, params, trees)


def of_model(args: argparse.Namespace, *flags: str) -> DecodeRun:
    """The run of one text at a time, in the layout for it."""
    flags = flags or (EXITS, "--gin.EXIT_LAYERS=1")
    path = f"--gin.CHECKPOINT_PATH={str(Path(args.directory).resolve())!r}"
    run = built(args.texts, "--gin.BATCH_SIZE=1", path, *flags, pair=PAIRS[args.pair])
    return run.laid_out()


def by_turns(ways: Ways, texts: Sequence[jax.Array]) -> dict[str, Times]:
    programs = {name: Decoder(plan) for name, plan in ways.plans.items()}
    spent = {name: np.zeros(len(texts)) for name in programs}
    outputs: dict[str, list[Any]] = {name: [None] * len(texts) for name in programs}
    for turn in range(-1, TURNS):  # the first turn compiles, and warms up
        for text, inputs in enumerate(texts):
            keys = row_keys(0, jnp.arange(1))
            order = list(programs) if (turn + text) % 2 else list(programs)[::-1]
            for name in order:
                start = time.perf_counter()
                output = jax.block_until_ready(programs[name](ways.params[name], keys, inputs))
                if turn >= 0:
                    spent[name][text] += (time.perf_counter() - start) / TURNS
                outputs[name][text] = jax.device_get(output)

    def times(name: str) -> Times:
        found = outputs[name]
        lengths, calls = (
            np.array([float(x[0]) for x in values])
            for values in ([x.length for x in found], [x.trace.calls for x in found])
        )
        return Times(spent[name], found, lengths, calls)

    return {name: times(name) for name in programs}


def per_token(times: Times, prefill: float) -> float:
    """Seconds."""
    return float((times.seconds - prefill).sum() / times.lengths.sum())


def faster(alone: Times, way: Times, slow: np.ndarray, took: np.ndarray) -> list[float]:
    """By the token, as texts of answers have other lengths; and the interval."""
    return of_sums([slow, alone.lengths, took, way.lengths], lambda s: s[0] / s[1] / (s[2] / s[3]))


def identical(way: Times, alone: Times) -> int:
    """Texts that are."""
    pairs = zip(way.outputs, alone.outputs, strict=True)
    return sum(bool((one.tokens == other.tokens).all()) for one, other in pairs)


if __name__ == "__main__":
    main()
