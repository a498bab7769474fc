"""What exits of a target's layers are worth on captions: to draft exactly, to answer nearly.

  python scripts/exits.py --trained DIR [--head LAYERS DIR]... [--classifier DIR] [--texts 1000]
  python scripts/exits.py --time DIR [--timed 8]
  python scripts/exits.py --draw

DIR of --trained is a checkpoint of configs/train_multi30k_exits.gin, of --head one of
train_multi30k_exit_head.gin for so many layers, of --classifier one of
train_multi30k_exit_classifier.gin. Each exit of the target that came with the pair, with and
without a head, and of the trained one drafts 4 tokens, greedy and drawn. Then the trained target
answers from the first layer that is sure, by each confidence and several thresholds. With --time,
DIR a checkpoint that is grown from the trained one, texts are timed one at a time, all ways by
turns in one process, beside what the parts of a call predict. JSON lines go as they are made to
docs/results/DEVICE/exits/lines.jsonl, docs/figures/exits.svg is drawn of them with --draw (needs
the extra `report`). Needs ../shared/multi30k, from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from lossy import Mode, Outputs, built, of_sums, outputs
from remeasure import RESULTS, device_name

from specdec import checkpoints, evaluate, forecast, tasks
from specdec.calibration import calibrate
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.decoding import row_keys
from specdec.drafters import EarlyExit
from specdec.models.t5 import calm
from specdec.plan import Plan
from specdec.program import decoder
from specdec.records import Lines
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.types import Params
from specdec.verifiers import Block

GAMMA = 4
DRAFTS = (3, 2)  # tokens that a quarter of the layers draft, and a half
TIMED = (0.6,)  # thresholds of softmax
TURNS = 2
THRESHOLDS = {
    "softmax": (None, 0.99, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2),
    "state": (0.99, 0.98, 0.95, 0.9, 0.8),
    "classifier": (0.99, 0.95, 0.9, 0.8, 0.6, 0.4),
}
RISK, CONFIDENCE = 0.1, 0.95  # of the calibration: 1 - BLEU / 100 to the whole model's own texts


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--trained", metavar="DIR")
    parser.add_argument("--head", nargs=2, action="append", default=[], metavar="X")
    parser.add_argument("--classifier", metavar="DIR")
    parser.add_argument("--texts", type=int, default=1000, metavar="N")
    parser.add_argument("--time", metavar="DIR")
    parser.add_argument("--timed", type=int, default=8, metavar="N", help="texts")
    parser.add_argument("--draw", action="store_true", help="the figure alone")
    args = parser.parse_args()
    path = RESULTS / device_name() / "exits" / "lines.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = Lines(path)
    if args.draw:
        draw(list(lines))
        return
    if args.trained is None and args.time is None:
        parser.error("give --trained or --time")
    found = timing(args) if args.time else itertools.chain(drafting(args), answering(args))
    for line in found:
        known = [one for one in lines if one["mode"] != line["mode"]]
        lines.replace([*known, line])
        print(line, flush=True)


def drafting(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for each exit, target and temperature."""
    for name, directory in (("as it came", None), ("trained to exit", args.trained)):
        run = of_checkpoint(args.texts, directory)
        params, vocabulary = run.load(), runs.vocabulary_of(run)
        target: Any = run.plan.target
        heads: list[tuple[int, str | None]] = [(x, None) for x in range(1, target.num_layers)]
        heads += [] if directory else [(int(layers), head) for layers, head in args.head]
        for rule in (Greedy(), Sampling()):
            alone = dataclasses.replace(run.plan.alone(), sampling=rule)
            own = outputs(
                run, Mode("", int(not rule.greedy), 0, alone, Params(params.target)), vocabulary
            )
            for layers, path in heads:
                head, tree = (None, ()) if path is None else of_head(path)
                drafter = EarlyExit(layers, rule, head)
                plan = dataclasses.replace(
                    run.plan,
                    drafter=drafter,
                    verifier=Block(),
                    schedule=Fixed(GAMMA),
                    sampling=rule,
                )
                given = Params(params.target, tree)
                mode = Mode("", int(not rule.greedy), GAMMA, plan, given)
                found = outputs(run, mode, vocabulary)
                yield {
                    "mode": f"{name}, {layers} layers{', a head' if head else ''}, {rule}",
                    "kind": "drafts",
                    "target": name,
                    "layers": layers,
                    "head": bool(head),
                    "temperature": int(not rule.greedy),
                    "gamma": GAMMA,
                    "tokens_per_call": of_sums(
                        [found.tokens.sum(0), found.calls.sum(0)], lambda s: s[0] / s[1]
                    ),
                    "identical": count_same(found, own) if rule.greedy else None,
                    "texts": found.tokens.shape[1],
                }


def answering(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for each confidence and threshold, and the thresholds that a calibration chooses."""
    bleu, whole = tasks.Bleu(), None
    for confidence, thresholds in THRESHOLDS.items():
        if confidence == "classifier" and not args.classifier:
            continue
        directory = args.classifier if confidence == "classifier" else args.trained
        run = of_checkpoint(args.texts, directory)
        params, vocabulary = run.load(), runs.vocabulary_of(run)
        references = [text for batch in run.batches() for text in batch.target_texts or ()]
        losses: dict[float, np.ndarray] = {}
        for threshold in thresholds:
            target = calm(run.plan.target, threshold=threshold, confidence=confidence)  # type: ignore[arg-type]
            plan = dataclasses.replace(run.plan.alone(), target=target, sampling=Greedy())
            mode = Mode("", 0, 0, plan, Params(params.target))
            found, depth = outputs(run, mode, vocabulary), depths(run, mode)
            whole = found if threshold is None else whole
            assert whole is not None, "the first threshold is none"
            less = evaluate.differences(bleu, references, found.texts, whole.texts)["bleu"]
            if threshold is not None:
                pairs = zip(found.texts[0], whole.texts[0], strict=True)
                losses[threshold] = np.array([unlike(*pair) for pair in pairs])
            yield {
                "mode": f"{confidence} {threshold}",
                "kind": "answers",
                "confidence": confidence,
                "threshold": threshold,
                "layers": target.num_layers,
                "depth": of_sums([depth, found.tokens[0]], lambda s: s[0] / s[1]),
                "bleu": evaluate.values(bleu, references, found.texts)["bleu"],
                "bleu_difference": list(less),
                "unchanged": count_same(found, whole) / len(references),
                "texts": len(references),
            }
        # Half of the texts calibrate, the others say what came of it.
        half = {x: values[::2] for x, values in losses.items()}
        chosen = calibrate(half, risk=RISK, confidence=CONFIDENCE)
        yield {
            "mode": f"{confidence} calibrated",
            "kind": "calibrated",
            "confidence": confidence,
            "risk": RISK,
            "at_confidence": CONFIDENCE,
            "threshold": chosen,
            "risk_elsewhere": None if chosen is None else float(losses[chosen][1::2].mean()),
        }


def timing(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for each way of decoding, against the whole target."""
    run = of_checkpoint(args.timed, args.time, "--gin.BATCH_SIZE=1").laid_out()
    batches = list(run.batches())
    alone, depth = run.alone, run.plan.target.num_layers  # type: ignore[attr-defined]
    own = run.params_alone(run.load()).target
    shares = [depth * x // 4 for x in (1, 2, 3)]
    ways: dict[str, Plan] = {"alone": alone}
    for layers, gamma in zip(shares, DRAFTS, strict=False):
        plan = dataclasses.replace(
            alone, drafter=EarlyExit(layers, Greedy()), verifier=Block(), schedule=Fixed(gamma)
        )
        ways[f"drafts, {layers} layers, gamma {gamma}"] = plan
    for layers in shares:
        sure = calm(alone.target, threshold=0.0, exits=(layers,))  # type: ignore[arg-type]
        ways[f"answers, {layers} layers"] = dataclasses.replace(alone, target=sure)
    for threshold in TIMED:
        sure = calm(alone.target, threshold=threshold, exits=tuple(shares))  # type: ignore[arg-type]
        ways[f"answers, softmax {threshold}"] = dataclasses.replace(alone, target=sure)
    seconds = {name: np.zeros(len(batches)) for name in ways}
    outputs = {}
    programs = {name: decoder(plan) for name, plan in ways.items()}
    for turn in range(-1, TURNS):  # the first turn compiles, and warms up
        for text, batch in enumerate(batches):
            keys, inputs = row_keys(0, jnp.asarray(batch.index)), jnp.asarray(batch.inputs)
            order = list(ways) if (turn + text) % 2 else list(ways)[::-1]
            for name in order:
                start = time.perf_counter()
                output = jax.block_until_ready(programs[name](Params(own), keys, inputs))
                if turn >= 0:
                    seconds[name][text] += time.perf_counter() - start
                outputs[name, text] = jax.device_get(output)
    plans = {name: plan for name, plan in ways.items() if plan.drafts}
    costs = forecast.measured(plans, alone, lambda role, model: own, jnp.asarray(batches[0].inputs))
    first = next(iter(costs.values()))
    lengths = {name: _of(outputs, name, "length") for name in ways}
    by_depth = {
        x: _slope(seconds[name] / TURNS, lengths[name], first.prefill_alone)
        for x, name in [(depth, "alone"), *((x, f"answers, {x} layers") for x in shares)]
    }
    expected = first.prefill_alone + lengths["alone"] * first.step
    for name, plan in ways.items():
        if plan.drafts:
            iteration = costs[name].iteration(plan)
            assert iteration is not None, "all widths are timed"
            promised = costs[name].prefill + _of(outputs, name, "calls") * iteration
        elif "softmax" in name:
            target: Any = plan.target
            promised = []
            for text, batch in enumerate(batches):
                inputs, tokens = jnp.asarray(batch.inputs), outputs[name, text].tokens
                fed = jnp.concatenate([target.start(inputs)[:, None], tokens[:, :-1]], axis=1)
                cache = target.prefill(own, inputs, fed.shape[1])
                layers = np.asarray(target.depths(own, fed, cache))[0]
                length = int(lengths[name][text])
                each = sum(by_depth[int(x)] for x in layers[:length])
                promised.append(first.prefill_alone + each)
            promised = np.array(promised)
        else:
            promised = None
        yield {
            "mode": f"timed, {name}",
            "kind": "timed",
            "sizes": list(dict(run.plan.target.sizes).values()),  # type: ignore[attr-defined]
            "texts": len(batches),
            "turns": TURNS,
            "identical": sum(
                bool((outputs[name, x].tokens == outputs["alone", x].tokens).all())
                for x in range(len(batches))
            ),
            "tokens_per_call": float(lengths[name].sum() / _of(outputs, name, "calls").sum()),
            "milliseconds_per_token": 1e3
            * float(seconds[name].sum() / TURNS / lengths[name].sum()),
            # Texts of answers have other lengths: by the token.
            "speedup": of_sums(
                [seconds["alone"], lengths["alone"], seconds[name], lengths[name]],
                lambda s: s[0] / s[1] / (s[2] / s[3]),
            ),
            "predicted_speedup": None
            if promised is None
            else float(
                expected.sum() / lengths["alone"].sum() / (promised.sum() / lengths[name].sum())
            ),
            "parts": {k: 1e3 * v for k, v in costs[name].calls.items()} if name in costs else None,
            "step": 1e3 * first.step,
        }


def _of(outputs: Any, name: str, field: str) -> np.ndarray:
    """[texts] the length or the target calls of each text."""
    own = [one for (way, _), one in outputs.items() if way == name]
    values = [one.length if field == "length" else one.trace.calls for one in own]
    return np.concatenate(values).astype(float)


def _slope(seconds: np.ndarray, lengths: np.ndarray, prefill: float) -> float:
    """Seconds of a token."""
    return float((seconds - prefill).sum() / lengths.sum())


def of_checkpoint(
    texts: int, directory: str | None, batch: str = "--gin.BATCH_SIZE=50"
) -> DecodeRun:
    """The run of the captions with another target."""
    flags = [batch, "--gin_file=drafters/early_exit.gin", "--gin.EXIT_LAYERS=1"]
    if directory:
        flags.append(f"--gin.CHECKPOINT_PATH={str(Path(directory).resolve())!r}")
    return built(texts, *flags)


def of_head(directory: str) -> tuple[Any, Any]:
    head = checkpoints.model_from(directory)
    return head, checkpoints.load(directory, config=head.config, dtype="float32")


def depths(run: DecodeRun, mode: Mode) -> np.ndarray:
    """[texts] layers that the tokens of each text went through, all together."""
    target: Any = mode.plan.target
    program, found = decoder(mode.plan), []

    @jax.jit
    def layers(params: Any, inputs: Any, output: Any) -> Any:
        tokens = output.tokens
        fed = jnp.concatenate([target.start(inputs)[:, None], tokens[:, :-1]], axis=1)
        cache = target.prefill(params, inputs, fed.shape[1])
        real = jnp.arange(tokens.shape[1])[None] < output.length[:, None]
        return jnp.sum(jnp.where(real, target.depths(params, fed, cache), 0), axis=1)

    for batch in run.batches():
        inputs = jnp.asarray(batch.inputs)
        output = program(mode.params, row_keys(run.data.seed, jnp.asarray(batch.index), 0), inputs)
        found.append(layers(mode.params.target, inputs, output)[: len(batch.input_texts)])
    return np.concatenate(found)


def unlike(text: str, whole: str) -> float:
    """1 minus the share of words that two texts have in common, the F1 of their counts."""
    ours, theirs = text.split(), whole.split()
    both = sum(min(ours.count(word), theirs.count(word)) for word in set(ours))
    return 1 - 2 * both / max(len(ours) + len(theirs), 1)


def count_same(found: Outputs, own: Outputs) -> int:
    return sum(a == b for a, b in zip(found.texts[0], own.texts[0], strict=True))


def draw(lines: Sequence[dict[str, Any]]) -> None:
    """Quality over the mean depth of a token."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "specdec"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    answers = [one for one in lines if one["kind"] == "answers"]
    for confidence in THRESHOLDS:
        members = [one for one in answers if one["confidence"] == confidence]
        members += [one for one in answers if one["threshold"] is None and one not in members]
        members.sort(key=lambda one: one["depth"][0])
        x, y = [one["depth"][0] for one in members], [one["bleu"] for one in members]
        axes.plot(x, y, marker="o", linewidth=0.8, label=confidence)
    axes.set(xlabel="decoder layers of a token, mean of 4", ylabel="BLEU")
    axes.legend()
    figure.tight_layout()
    path = RESULTS.parent / "figures" / "exits.svg"
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    main()
