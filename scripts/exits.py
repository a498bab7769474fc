"""What exits of a target's layers are worth: to draft exactly, to answer nearly.

  python scripts/exits.py drafts [--pair ende] [--trained DIR] [--head LAYERS DIR]... [--draft DIR]
  python scripts/exits.py answers --trained DIR [--classifier DIR]
  python scripts/exits.py draw

DIR of --trained is a checkpoint of configs/train_multi30k_exits.gin or train_demo_exits.gin, of
--head one of train_multi30k_exit_head.gin for so many layers, of --classifier one of
train_multi30k_exit_classifier.gin, of --draft one of train_multi30k_shared_encoder.gin, for
comparison. `drafts`: each exit of the target that came with the pair, with and without a head, and
of the trained one drafts 4 tokens, greedy and drawn. `answers`: the trained target answers captions
from the first layer that is sure, by each confidence and several thresholds; speed-ups are of whole
texts at batch 1, their depths times what scripts/exits_timed.py has measured.

JSON lines go as they are made to docs/results/DEVICE/exits/lines.jsonl, and docs/figures/exits.svg
is drawn of them (needs the extra `report`). `drafts` that have a line are not made again. Captions
need ../shared/multi30k, from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from forecast_check import PAIRS
from lossy import Mode, Outputs, built, of_sums, outputs, own_bleu
from remeasure import RESULTS, device_name

from specdec import checkpoints, evaluate, tasks
from specdec.calibration import calibrate
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.decoding import row_keys
from specdec.drafters import Autoregressive, EarlyExit
from specdec.models.t5 import calm
from specdec.program import Decoder
from specdec.records import Lines
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.types import Params, PyTree, SamplingRule
from specdec.verifiers import Block

GAMMA = 4
CAME, TRAINED = "as it came", "trained to exit"
THRESHOLDS = {
    "softmax": (None, 0.99, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2),
    "state": (0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4),
    "classifier": (0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5),
}
RISK, CONFIDENCE = 0.1, 0.95  # of the calibration: of `unlike`, against the whole model's own texts


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("what", choices=("drafts", "answers", "draw"))
    parser.add_argument("--pair", choices=PAIRS, default="captions")
    parser.add_argument("--trained", metavar="DIR")
    parser.add_argument("--head", nargs=2, action="append", default=[], metavar="X")
    parser.add_argument("--draft", metavar="DIR")
    parser.add_argument("--classifier", metavar="DIR")
    parser.add_argument("--texts", type=int, default=1000, metavar="N")
    args = parser.parse_args()
    if args.what == "answers" and not args.trained:
        parser.error("give --trained")
    lines = of_device()
    if args.what == "draw":
        draw(list(lines))
        return
    found = drafting if args.what == "drafts" else answering
    for line in found(args, list(lines)):
        put(lines, line)


def of_device() -> Lines:
    """The lines of this machine."""
    path = RESULTS / device_name() / "exits" / "lines.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    return Lines(path)


def put(lines: Lines, line: dict[str, Any]) -> None:
    """In the place of one that was so before."""
    lines.replace([*(one for one in lines if one["mode"] != line["mode"]), line])
    print(line, flush=True)


def drafting(args: argparse.Namespace, lines: Sequence[dict]) -> Iterator[dict[str, Any]]:
    """A line for each exit, target and temperature that has none yet."""
    known = {one["mode"] for one in lines}
    for name, directory in ((CAME, None), (TRAINED, args.trained)):
        if name == CAME or directory:
            run = of_target(args.texts, directory, PAIRS[args.pair])
            params = run.load()
            for rule in (Greedy(), Sampling()):
                asked = [
                    (f"{args.pair}, {name}, {label}, {rule}", label, *drafter)
                    for label, *drafter in drafters(args, rule, name, run.plan.target)
                ]
                asked = [one for one in asked if one[0] not in known]
                if asked:
                    yield from drafting_by(args, name, run, params.target, rule, asked)


def drafting_by(
    args: argparse.Namespace,
    name: str,
    run: DecodeRun,
    tree: PyTree,
    rule: SamplingRule,
    asked: Sequence[tuple[Any, ...]],
) -> Iterator[dict[str, Any]]:
    """Of (mode, label, drafter, its parameters) each."""
    vocabulary, temperature = runs.vocabulary_of(run), int(not rule.greedy)
    alone = dataclasses.replace(run.plan.alone(), sampling=rule)
    own = outputs(run, Mode("", temperature, 0, alone, Params(tree)), vocabulary)
    for mode, label, drafter, its in asked:
        plan = dataclasses.replace(alone, drafter=drafter, verifier=Block(), schedule=Fixed(GAMMA))
        found = outputs(run, Mode("", temperature, GAMMA, plan, Params(tree, its)), vocabulary)
        yield {
            "mode": mode,
            "kind": "drafts",
            "pair": args.pair,
            "target": name,
            "drafter": label,
            "temperature": temperature,
            "gamma": GAMMA,
            "tokens_per_call": of_sums(
                [found.tokens.sum(0), found.calls.sum(0)], lambda s: s[0] / s[1]
            ),
            "identical": count_same(found, own) if rule.greedy else None,
            "texts": found.tokens.shape[1],
        }


def drafters(
    args: argparse.Namespace, rule: SamplingRule, name: str, target: Any
) -> Iterator[tuple[str, Any, PyTree]]:
    """What drafts for a target, with its parameters. What was trained on the texts of the one that
    came is for that one."""
    for layers in range(1, target.num_layers):
        yield f"{layers} of {target.num_layers} layers", EarlyExit(layers, rule), ()
    if name == CAME:
        for layers, directory in args.head:
            label = f"{layers} of {target.num_layers} layers, a head"
            head, tree = model_of(directory)
            yield label, EarlyExit(int(layers), rule, head), tree
        if args.draft:
            model, tree = model_of(args.draft)
            yield "a decoder of one layer", Autoregressive(model, rule), tree


def answering(args: argparse.Namespace, lines: Sequence[dict]) -> Iterator[dict[str, Any]]:
    """A line for each confidence and threshold, and the thresholds that a calibration chooses."""
    timed = [one["costs"] for one in lines if one["mode"] == f"timed, captions, {TRAINED}, alone"]
    bleu, whole, slow = tasks.Bleu(), None, None
    for confidence, thresholds in THRESHOLDS.items():
        if confidence == "classifier" and not args.classifier:
            continue
        run = of_target(args.texts, args.classifier if confidence == "classifier" else args.trained)
        params, vocabulary = run.load(), runs.vocabulary_of(run)
        references = [text for batch in run.batches() for text in batch.target_texts or ()]
        losses: dict[float, np.ndarray] = {}
        for threshold in thresholds:
            target = calm(cast(Any, run.plan.target), threshold=threshold, confidence=confidence)
            plan = dataclasses.replace(run.plan.alone(), target=target, sampling=Greedy())
            mode = Mode("", 0, 0, plan, Params(params.target))
            found, counts = outputs(run, mode, vocabulary), depths(run, mode)
            took = seconds(counts, timed[0], confidence, threshold) if timed else None
            if threshold is None:
                whole, slow = found, took
            assert whole is not None, "the first threshold is none"
            less = evaluate.differences(bleu, references, found.texts, whole.texts)["bleu"]
            if threshold is not None:
                pairs = zip(found.texts[0], whole.texts[0], strict=True)
                losses[threshold] = np.array([unlike(*pair) for pair in pairs])
            layers = np.arange(1, target.num_layers + 1)
            yield {
                "mode": f"Calm {confidence} ({threshold})",
                "kind": "answers",
                "confidence": confidence,
                "threshold": threshold,
                "temperature": 0,
                "exact": threshold is None,
                "layers": target.num_layers,
                "depth": of_sums([counts @ layers, counts.sum(1)], lambda s: s[0] / s[1]),
                "bleu": evaluate.values(bleu, references, found.texts)["bleu"],
                "bleu_difference": list(less),
                "own_bleu": own_bleu(whole.texts[0], found.texts),
                "unchanged": count_same(found, whole) / len(references),
                "texts": len(references),
                **(
                    {}
                    if took is None or slow is None
                    else {
                        "speedup": of_sums([slow, took], lambda s: s[0] / s[1]),
                        "costs": timed[0],
                    }
                ),
            }
        # Half of the texts calibrate, the others say what came of it.
        half = {x: values[::2] for x, values in losses.items()}
        chosen = calibrate(half, risk=RISK, confidence=CONFIDENCE)
        yield {
            "mode": f"Calm {confidence}, calibrated",
            "kind": "calibrated",
            "confidence": confidence,
            "risk": RISK,
            "at_confidence": CONFIDENCE,
            "threshold": chosen,
            "risk_elsewhere": None if chosen is None else float(losses[chosen][1::2].mean()),
        }


def of_target(texts: int, directory: str | None, pair: str = PAIRS["captions"]) -> DecodeRun:
    """The run of a pair with another target, which drafts for itself."""
    flags = ["--gin_file=drafters/early_exit.gin", "--gin.EXIT_LAYERS=1"]
    if directory:
        flags.append(f"--gin.CHECKPOINT_PATH={str(Path(directory).resolve())!r}")
    return built(texts, "--gin.BATCH_SIZE=50", *flags, pair=pair)


def model_of(directory: str) -> tuple[Any, PyTree]:
    model = checkpoints.model_from(directory)
    return model, checkpoints.load(directory, config=model.config, dtype="float32")


def depths(run: DecodeRun, mode: Mode) -> np.ndarray:
    """[texts, layers] tokens of each text that left behind each layer."""
    program, found = Decoder(mode.plan), []
    for batch in run.batches():
        inputs = jnp.asarray(batch.inputs)
        output = program(mode.params, row_keys(run.data.seed, jnp.asarray(batch.index), 0), inputs)
        counts = left(mode.plan.target.num_layers, jax.device_get(output))
        found.append(counts[: len(batch.input_texts)])
    return np.concatenate(found)


def left(layers: int, output: Any) -> np.ndarray:
    """[B, layers] of what a `Calm` of so many layers wrote alone, a token per call; no calls are
    written where a row has ended."""
    return np.sum(output.trace.depth[:, :, None] == np.arange(1, layers + 1), axis=1)


def seconds(
    counts: np.ndarray, costs: dict[str, Any], confidence: str, threshold: float | None
) -> np.ndarray:
    """[texts] of each text, decoded alone, by what tokens of each depth take.

    Those figures have one projection to logits. By `softmax` each exit that is asked has one.
    """
    asks = confidence == "softmax" and threshold is not None
    each = np.array(costs["tokens"]) + asks * costs["exit"] * np.arange(counts.shape[1])
    return costs["prefill"] + counts @ each


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
