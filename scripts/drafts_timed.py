"""Times the drafts of scripts/drafts.py for a target of T5-large's sizes: parts, and whole texts.

  python scripts/drafts_timed.py --folder DIR [--texts 12] [--turns 3]

The captions target is grown to T5-large's sizes and each draft to four times its width, with as
many layers; the texts stay the same. Of every shape the parts are timed, and with them the draft
length is chosen that docs/results/DEVICE/drafts/judged.jsonl makes fastest. Then all drafts, each
with its own draft length, and the target alone write the same captions by turns in one process, one
text at a time. Lines go to timed.jsonl beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from drafts import CAPTIONS, NAMED
from forecast_check import GAMMAS, built
from remeasure import RESULTS, device_name
from specdec.roles import verifies

from specdec import checkpoints, forecast
from specdec.cli.run import DecodeRun
from specdec.decoding import row_keys
from specdec.forecast import Costs, tuning
from specdec.models import families
from specdec.plan import Plan
from specdec.program import Decoder
from specdec.records import Lines
from specdec.schedules import Fixed
from specdec.types import PyTree

LARGE = {"emb_dim": 1024, "num_heads": 16, "mlp_dim": 2816}
LAYERS = {"num_encoder_layers": 24, "num_decoder_layers": 24}
TIMES = 4  # as wide as it was trained
LONGEST = GAMMAS[-1]


class Way(NamedTuple):
    """How texts are written."""

    plan: Plan
    params: Any
    seconds: list[list[float]]  # [turns][texts]
    tokens: list[list[int]]  # of each text
    calls: list[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--folder", required=True, metavar="DIR", type=Path)
    parser.add_argument("--texts", type=int, default=12, metavar="N")
    parser.add_argument("--turns", type=int, default=3, metavar="N")
    args = parser.parse_args()
    folder = RESULTS / device_name() / "drafts"
    judged = {
        one["draft"]: one for one in Lines(folder / "judged.jsonl") if one["domain"] == "captions"
    }
    names = [name for name in judged if (args.folder / name / "export").exists()]
    runs = {name: run_of(args.folder, name, args.texts) for name in names}
    trees = Trees(runs)
    costs = parts(runs, trees)
    gammas = {name: best(runs[name].plan, costs[name], judged[name]) for name in names}
    ways = {name: way(runs[name], name, Fixed(gammas[name]), trees) for name in names}
    first = next(iter(runs.values()))
    alone = first.alone
    ways["alone"] = Way(
        alone, alone.params({"target": trees(names[0], "target", alone.target)}), [], [], []
    )
    write(ways, first, args.turns)
    lines = [line(name, ways, costs[name], gammas[name], judged[name]) for name in names]
    Lines(folder / "timed.jsonl").replace(lines)
    for one in lines:
        print(one["draft"], one["gamma"], one["speedup"], one["promised_speedup"], flush=True)


def run_of(folder: Path, name: str, texts: int) -> DecodeRun:
    """The pair at its larger sizes, which is made if it is not there."""
    large = {"target": CAPTIONS.target, name: str(folder / name / "export")}
    for one, path in large.items():
        grow(path, folder / "large" / one)
    paths = {"": folder / "large" / "target", "DRAFT_": folder / "large" / name}
    flags = [f"--gin.{role}CHECKPOINT_PATH={str(path)!r}" for role, path in paths.items()]
    return built([f"--gin_file={x}" for x in CAPTIONS.pair] + flags, "test", texts)


def grow(path: str, to: Path) -> None:
    """As `specdec grow` does it; what reads the target's encoder keeps its layers."""
    if to.exists():
        return
    config: Any = checkpoints.config_from(path)
    growth = families.family_of(config).growth
    assert growth is not None, "it is a T5"
    sizes = {name: TIMES * getattr(config, name) for name in LARGE} | {"encoded_dim": 1024}
    reads = families.model_of(config).encoded_dim is not None
    larger = dataclasses.replace(config, **(sizes if reads else LARGE | LAYERS))
    key = jax.random.split(jax.random.key(0))[0]
    params = checkpoints.load(path, config=config, dtype="float32")
    grown = growth.grow(params, config, larger, key)
    checkpoints.save(to, grown, config=larger)


class Trees:
    """Parameters, read once for each layout."""

    def __init__(self, runs: Mapping[str, DecodeRun]):
        self._runs, self._read = runs, {}

    def __call__(self, name: str, role: str, model: Any) -> PyTree:
        run = self._runs[name]
        path = run.checkpoint_path if role != "draft" else run.paths()["draft"]
        kept = dataclasses.replace(model, orders=()), path
        if kept not in self._read:
            self._read[kept] = run.placement.read(model, path)
        return self._read[kept]


def parts(runs: Mapping[str, DecodeRun], trees: Trees) -> dict[str, Costs]:
    """Of all draft lengths; drafts of one shape have the same."""
    plans, of, first = {}, {}, {}
    for name, run in runs.items():
        every = dataclasses.replace(
            run.plan, schedule=Fixed(LONGEST, shorter=tuple(range(LONGEST)))
        ).laid_out(1)
        of[name] = every.drafter.model.config  # type: ignore[attr-defined]
        first.setdefault(of[name], name)
        plans[of[name]] = every

    def tree_of(role: str, model: Any) -> PyTree:
        name = first[model.config] if role == "draft" else next(iter(runs))
        return trees(name, role, model)

    inputs = jnp.ones([1, CAPTIONS.lengths["inputs"]], jnp.int32)
    alone = next(iter(runs.values())).alone
    found = forecast.measured(plans, alone, tree_of, inputs)
    return {name: found[config] for name, config in of.items()}


def best(plan: Plan, costs: Costs, judged: Mapping[str, Any]) -> int:
    """The draft length with the most tokens in a second, by the parts."""

    def speed(gamma: int) -> float:
        seconds = costs.iteration(dataclasses.replace(plan, schedule=Fixed(gamma)))
        assert seconds is not None, "every width is known"
        return judged["tokens_per_call"][str(gamma)][0] / seconds

    return max(GAMMAS, key=speed)


def way(run: DecodeRun, name: str, schedule: Fixed, trees: Trees) -> Way:
    plan = dataclasses.replace(run.plan, schedule=schedule).laid_out(1)
    params = plan.params({role: trees(name, role, x) for role, x in plan.models().items()})
    return Way(plan, params, [], [], [])


def write(ways: Mapping[str, Way], run: DecodeRun, turns: int) -> None:
    """Lets all write the same texts by turns; the first one warms up."""
    texts = [
        batch.inputs[i : i + 1] for batch in run.batches() for i in range(len(batch.input_texts))
    ]
    programs = {name: Decoder(one.plan) for name, one in ways.items()}
    for turn in range(-1, turns):
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for place, text in enumerate(texts if turn >= 0 else texts[:1]):
            keys = row_keys(run.data.seed, jnp.array([place]), 0)
            order = list(ways) if (place + turn) % 2 else list(ways)[::-1]
            for name in order:
                given = ways[name].params, keys, jnp.asarray(text)
                execute = programs[name].warmed(*given)
                start = time.perf_counter()
                output = jax.block_until_ready(execute(*given))
                seconds[name].append(time.perf_counter() - start)
                if turn == 0:
                    length = int(output.length[0])
                    ways[name].tokens.append(np.asarray(output.tokens[0, :length]).tolist())
                    ways[name].calls.append(int(output.trace.calls[0]))
        for name, found in seconds.items():
            if turn >= 0:
                ways[name].seconds.append(found)


def line(
    name: str, ways: Mapping[str, Way], costs: Costs, gamma: int, judged: Mapping[str, Any]
) -> dict[str, Any]:
    own, alone = ways[name], ways["alone"]
    whole = costs.iteration(own.plan)
    verify = costs.of(part for part in own.plan.parts() if verifies(part.role))
    assert whole is not None and verify is not None, "every width is known"
    taken, without = (np.array(x.seconds).sum(axis=0) for x in (own, alone))
    tokens, calls = np.array([len(x) for x in own.tokens]), np.array(own.calls)
    promised = costs.prefill + calls * whole
    baseline = costs.prefill_alone + tokens * costs.step
    ratio, low, high = tuning.gain(taken, without)
    return {
        "draft": name,
        "layers": NAMED[name].layers,
        "width": TIMES * NAMED[name].width,
        "gamma": gamma,
        "texts": len(tokens),
        "turns": len(own.seconds),
        "identical": sum(a == b for a, b in zip(own.tokens, alone.tokens, strict=True)),
        "draft_seconds": (whole - verify) / gamma,
        "verify_seconds": verify,
        "step_seconds": costs.step,
        "tokens_per_call": float(tokens.sum() / calls.sum()),
        "tokens_per_call_of_all": judged["tokens_per_call"][str(gamma)][0],
        "speedup": [ratio, low, high],
        "promised_speedup": float(baseline.sum() / promised.sum()),
        "seconds": [float(f"{x:.6g}") for x in taken],
        "alone_seconds": [float(f"{x:.6g}") for x in without],
    }


if __name__ == "__main__":
    main()
