"""What logits processors take of an iteration, at T5-large's sizes.

  python scripts/processors.py [--turns 40] [--gamma 7]

Random weights: a target of T5 1.1 large and a drafter of small, 32,128 ids, outputs of up to 512
tokens of which 300 stand there, at batch 1. Eight iterations of each plan run on the same state, by
turns in one process; a ratio is that of the time with processors to the time without in the same
turn, its median with a 95 % interval. What they take by themselves is measured too. JSON lines go
to docs/results/DEVICE/processors/lines.jsonl.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from remeasure import RESULTS, device_name

from specdec import Plan, prefill, row_keys, step
from specdec.drafters import Autoregressive
from specdec.models.t5 import T5Config, T5Target
from specdec.records import Lines
from specdec.sampling import (
    FrequencyPenalty,
    Greedy,
    MinLength,
    NoRepeatNGram,
    Processed,
    RepetitionPenalty,
    Sampling,
)
from specdec.schedules import Fixed
from specdec.types import DecodeState, History, Params
from specdec.verifiers import Block

LARGE = {"emb_dim": 1024, "num_heads": 16, "mlp_dim": 2816}
SMALL = {"emb_dim": 512, "num_heads": 6, "mlp_dim": 1024}
LAYERS = {"large": 24, "small": 8}
LONGEST, WRITTEN, INPUTS, ITERATIONS = 512, 300, 64, 8
PENALTIES, BANS = (RepetitionPenalty(1.2), FrequencyPenalty(0.1)), (NoRepeatNGram(3), MinLength(29))
PROCESSORS = {
    "no repeated 3-grams": BANS[:1],
    "T5's summarisation": BANS,
    "penalties": PENALTIES,
    "all of these": PENALTIES + BANS,
}
HEAD = "| temperature | processors | ms | ms of their own | ratio |\n|---|---|---:|---:|---:|"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--turns", type=int, default=40, metavar="N")
    parser.add_argument("--gamma", type=int, default=7, metavar="N")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0], metavar="T")
    args = parser.parse_args()
    path = RESULTS / device_name() / "processors" / "lines.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    made = [record for t in args.temperatures for record in _measured(t, args)]
    Lines(path).replace(made)


def _model(sizes: dict[str, Any], layers: int) -> T5Target:
    """With one layer of the encoder: nothing of it is read in an iteration."""
    depth: dict[str, Any] = {"num_encoder_layers": 1, "num_decoder_layers": layers}
    return T5Target(T5Config(vocab_size=32128, head_dim=64, **sizes, **depth))


def _alone(rule: Processed, gamma: int, turns: int) -> float:
    """Milliseconds that the processors of an iteration take by themselves: of the target's call,
    and of each token that is drafted."""
    random = np.random.default_rng(0)
    history = History(
        jnp.asarray(random.integers(2, 400, (1, 1 + LONGEST)), jnp.int32), jnp.array([WRITTEN])
    )
    logits = jnp.asarray(random.normal(0, 3, (1, gamma + 1, 32128)), jnp.float32)

    @jax.jit
    def of_iteration(logits: jax.Array, history: History) -> jax.Array:
        def draft(history: History, one: jax.Array):
            token = jnp.argmax(rule.process(one, history), axis=-1).astype(jnp.int32)
            return history.append(token), token

        drafted = jax.lax.scan(draft, history, logits[:, :-1].swapaxes(0, 1))[1].swapaxes(0, 1)
        return jnp.argmax(rule.process(logits, history.ahead(drafted)), axis=-1)

    def argmaxes(logits: jax.Array, history: History) -> jax.Array:  # which are there anyway
        drafted = jax.lax.map(lambda one: jnp.argmax(one, axis=-1), logits[:, :-1].swapaxes(0, 1))
        return jnp.argmax(logits, axis=-1) + jnp.sum(drafted)

    seconds = []
    for function in (of_iteration, jax.jit(argmaxes)):
        jax.block_until_ready(function(logits, history))
        took = []
        for _ in range(turns):
            begin = time.perf_counter()
            jax.block_until_ready(function(logits, history))
            took.append(time.perf_counter() - begin)
        seconds.append(float(np.median(took)))
    return 1e3 * (seconds[0] - seconds[1])


@functools.partial(jax.jit, static_argnames="plan")
def _iterations(params: Params, state: DecodeState, plan: Plan) -> DecodeState:
    """Several in one program: the caches stay where they are."""
    return jax.lax.fori_loop(0, ITERATIONS, lambda _, state: step(params, state, plan), state)


def _measured(temperature: float, args: argparse.Namespace):
    sampling: Any = Sampling(temperature) if temperature else Greedy()
    target, draft = _model(LARGE, LAYERS["large"]), _model(SMALL, LAYERS["small"])
    plain = Plan(
        target, Autoregressive(draft, sampling), Block(), Fixed(args.gamma), sampling, LONGEST
    ).laid_out(1)
    trees = {
        role: model.from_stored(model.stored().init(jax.random.key(0)))
        for role, model in plain.models().items()
    }
    params = plain.params(trees)
    plans = {"none": plain}
    for name, processors in PROCESSORS.items():
        rule = Processed(sampling, processors)
        drafter = dataclasses.replace(plain.drafter, sampling=rule)  # type: ignore[type-var]
        plans[name] = dataclasses.replace(plain, sampling=rule, drafter=drafter)
    random = np.random.default_rng(0)
    inputs = jnp.asarray(random.integers(2, 32000, (1, INPUTS)), jnp.int32)
    text = jnp.asarray(random.integers(2, 400, (1, 1 + LONGEST)), jnp.int32)
    calls = {}
    for name, plan in plans.items():
        state = prefill(params, row_keys(0, jnp.arange(1)), inputs, plan)
        written = jnp.array([WRITTEN], jnp.int32)
        state = state.replace(tokens=text, length=written, cache=state.cache.rewind(written - 1))
        calls[name] = functools.partial(_iterations, params, state, plan)
        jax.block_until_ready(calls[name]())
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for turn in range(args.turns):
        names = list(plans)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begin = time.perf_counter()
            jax.block_until_ready(calls[name]())
            seconds[name].append((time.perf_counter() - begin) / ITERATIONS)
    if temperature == args.temperatures[0]:
        print(f"{device_name()}, gamma {args.gamma}, {args.turns} turns\n\n{HEAD}")
    base = np.array(seconds["none"])
    for name, took in seconds.items():
        ratio = np.array(took) / base
        drawn = np.random.default_rng(0).choice(ratio, (2000, len(ratio)))
        low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
        record = {
            "temperature": temperature,
            "processors": name,
            "gamma": args.gamma,
            "turns": args.turns,
            "milliseconds": round(1e3 * float(np.median(took)), 3),
            "alone": round(_alone(plans[name].sampling, args.gamma, 200), 3)
            if name != "none"
            else 0,  # type: ignore[arg-type]
            "ratio": round(float(np.median(ratio)), 4),
            "low": round(float(low), 4),
            "high": round(float(high), 4),
        }
        print(
            f"| {temperature:g} | {name} | {record['milliseconds']:.1f} | {record['alone']:.2f} | "
            f"{record['ratio']:.3f} ({record['low']:.3f} to {record['high']:.3f}) |",
            flush=True,
        )
        yield record


if __name__ == "__main__":
    main()
