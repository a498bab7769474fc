"""Drafts of many shapes for one target: the study of Yan et al. (2402.01528), of a T5.

  python scripts/drafts.py train --outputs OUTPUTS --folder DIR [--task captions]
  python scripts/drafts.py judge --outputs OUTPUTS --folder DIR [--task captions]

A draft is named by its decoder's layers and their width; it reads the output of the target's
encoder, so that the decoder is all that it costs. All are trained from scratch for the target of a
task, with as many steps, on what that target wrote; OUTPUTS has its texts, as the task's
configuration reads them. Some are trained on the references instead, or for a third of the steps:
what they know and how well they draft need not agree. Of highlights and answers there are fewer
drafts, with half of the steps.

`train` makes the drafts in DIR, and of captions two things to judge them with: the target,
fine-tuned further, and sentences from another domain. It goes on where it was stopped. `judge`
finds the losses of each draft on texts that it has not seen, and its tokens per target call by
draft length, greedy. JSON lines go to docs/results/DEVICE/drafts/judged.jsonl, and what is there is
left out. Times are made by scripts/drafts_timed.py, tables of all by scripts/drafts_report.py. Run
it from the root of a checkout: captions need ../shared/multi30k, answers demo_copying.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from forecast_check import GAMMAS, built
from remeasure import RESULTS, device_name

from specdec import acceptance, checkpoints, demo, forecast, tasks
from specdec.cli.run import DecodeRun
from specdec.models import families
from specdec.models.t5.config import SIZES
from specdec.records import Lines
from specdec.schedules import Fixed
from specdec.statistics import bootstrap
from specdec.training import data
from specdec.training.loss import Frozen, Pairs, Sums, cross_entropy, teacher_forced
from specdec.types import PyTree

STEPS = 600
PREFIX = "translate English to German: "
TEXTS, OTHERS = 1000, 300  # of the validation split: captions, and in the other domains


class Task(NamedTuple):
    """A target, how drafts for it learn, and how they decode."""

    target: str
    vocabulary: str
    config: str
    pair: tuple[str, ...]
    lengths: dict[str, int]


TASKS = {
    "captions": Task(
        "../shared/multi30k/target",
        "../shared/multi30k/multi30k_ende_3k.model",
        "configs/train_multi30k_shared_encoder.gin",
        ("configs/multi30k.gin",),
        {"inputs": 64, "targets": 64},
    ),
    "highlights": Task(
        demo.path("target"),
        demo.path("vocabulary.model"),
        "train_demo_shared_encoder.gin",
        ("demo_highlights.gin",),
        {"inputs": 144, "targets": 48},
    ),
    "answers": Task(
        "demo_copying/target",
        demo.path("vocabulary.model"),
        "configs/train_copying_shared_encoder.gin",
        ("configs/qa.gin", "drafters/autoregressive.gin"),
        {"inputs": 192, "targets": 48},
    ),
}
CAPTIONS = TASKS["captions"]


class Shape(NamedTuple):
    """A draft that is trained."""

    layers: int
    width: int
    text: str = "outputs"  # that it learns from: the target's, or the references
    steps: int = STEPS

    @property
    def name(self) -> str:
        words = [f"{self.layers}x{self.width}"]
        words += [self.text] * (self.text != "outputs") + [f"{self.steps}"] * (self.steps != STEPS)
        return "-".join(words)

    @property
    def settings(self) -> dict[str, int]:
        """Of its T5Config: proportions are the target's."""
        return {
            "emb_dim": self.width,
            "num_heads": self.width // 64,
            "mlp_dim": self.width * 5 // 2,
            "num_decoder_layers": self.layers,
        }


SHAPES = [
    *(Shape(1, width) for width in (64, 128, 256)),
    *(Shape(layers, width) for layers in (2, 4) for width in (64, 128)),
    Shape(8, 128),  # T5-small's layers, of a quarter of its width
    *(Shape(*shape, "references") for shape in ((1, 256), (2, 128))),
    *(Shape(*shape, steps=STEPS // 3) for shape in ((1, 256), (2, 128))),
]
FEWER = [
    *(Shape(1, width, steps=STEPS // 2) for width in (64, 128, 256)),
    *(Shape(2, width, steps=STEPS // 2) for width in (64, 128)),
    Shape(1, 256, "references", STEPS // 2),
]
NAMED = {shape.name: shape for shape in [*SHAPES, *FEWER]}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("action", choices=("train", "judge"))
    parser.add_argument("--outputs", required=True, metavar="OUTPUTS", type=Path)
    parser.add_argument("--folder", required=True, metavar="DIR", type=Path)
    parser.add_argument("--task", choices=TASKS, default="captions")
    parser.add_argument("--drafts", nargs="+", choices=NAMED, metavar="NAME")
    args = parser.parse_args()
    args.drafts = args.drafts or [x.name for x in (SHAPES if captions(args) else FEWER)]
    if args.action == "train":
        train(args)
        return
    path = RESULTS / device_name() / "drafts" / "judged.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = Lines(path)
    known = {(one["draft"], one["domain"]) for one in lines}
    for line in judged(args, known):
        lines.append(line)
        print(line, flush=True)


def captions(args: argparse.Namespace) -> bool:
    return args.task == "captions"


def train(args: argparse.Namespace) -> None:
    """Makes the drafts in args.folder, and what they are judged with."""
    task = TASKS[args.task]
    gold = references(task, args.outputs, args.folder / "references")
    if captions(args):
        shifted(args.folder)
    for shape in (NAMED[name] for name in args.drafts):
        macros = {"OUTPUTS": str(gold if shape.text == "references" else args.outputs)}
        macros |= {
            "INITIAL_CHECKPOINT_PATH": None,
            "STEPS": shape.steps,
            "WARMUP": shape.steps // 6,
        }
        macros |= {f"t5.T5Config.{name}": value for name, value in shape.settings.items()}
        trained(task.config, macros, args.folder / shape.name)


def shifted(folder: Path) -> None:
    """Makes what drafts of captions did not learn for: another target, and other sentences."""
    sentences(folder / "sentences.tsv")
    further = {
        "INITIAL_CHECKPOINT_PATH": CAPTIONS.target,
        "STEPS": 150,
        "WARMUP": 50,
        "LEARNING_RATE": 0.003,
    }
    sizes = checkpoints.config_from(CAPTIONS.target)
    further |= {f"t5.T5Config.{name}": getattr(sizes, name) for name in SIZES}
    trained("configs/train_multi30k_draft.gin", further, folder / "further")


def trained(config: str, macros: dict[str, Any], folder: Path) -> None:
    """One run, which goes on if it was interrupted."""
    macros = {**macros, "CHECKPOINT_EVERY": 200, "EVALUATION_SPLIT": None}
    flags = [f"--gin.{name}={value!r}" for name, value in macros.items()]
    command = [sys.executable, "-m", "specdec", "train", f"--gin_file={config}", *flags]
    subprocess.run([*command, f"--output_dir={folder}"], check=True)


def references(task: Task, outputs: Path, folder: Path) -> Path:
    """The references of texts, where their outputs stood."""
    vocabulary = tasks.SentencePiece(task.vocabulary).load()

    def with_reference(line: str) -> str:
        one = json.loads(line)
        tokens = [*vocabulary.encode(one["target"]), vocabulary.eos_id]
        return json.dumps({"input": one["input"], "tokens": tokens}) + "\n"

    for split in ("train", "validation"):
        path = folder / split / "predictions.jsonl"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = (outputs / split / path.name).read_text(encoding="utf-8").splitlines()
            path.write_text("".join(map(with_reference, lines)), encoding="utf-8")
    return folder


def sentences(path: Path) -> None:
    """English from the synthetic translations, which are not captions."""
    task: Any = tasks.get_task(tasks.synthetic_task("specdec_ende"))
    examples = task.source.get_dataset("test", shuffle=False).as_numpy_iterator()
    inputs = [one["inputs"].decode() for one in itertools.islice(examples, OTHERS)]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{text.removeprefix(PREFIX)}\t-\n" for text in inputs)
    path.write_text("".join(lines), encoding="utf-8")


def judged(args: argparse.Namespace, known: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """A line of each draft in each domain that has none yet."""
    task, domains = TASKS[args.task], {args.task: []}
    if captions(args):
        further, others = args.folder / "further/export", args.folder / "sentences.tsv"
        domains |= {
            "a target fine-tuned further": [f"--gin.CHECKPOINT_PATH={str(further)!r}"],
            "other sentences": [f"--gin.TASK_FILES={{'validation': {str(others)!r}}}"],
        }
    pairs = {
        "loss_of_references": held_out(task, "references", args.folder / "references"),
        "loss_of_outputs": held_out(task, "outputs", args.outputs),
    }
    for domain, flags in domains.items():
        texts: list[acceptance.Texts] = []
        for shape in (NAMED[name] for name in args.drafts):
            export = args.folder / shape.name / "export"
            if (shape.name, domain) in known or not export.exists():
                continue
            own = [*(f"--gin_file={x}" for x in task.pair), *flags]
            own.append(f"--gin.DRAFT_CHECKPOINT_PATH={str(export.resolve())!r}")
            run = built(own, "validation", TEXTS if domain == "captions" else OTHERS)
            params = run.load()
            texts = texts or written(run, params.target)
            line = {"draft": shape.name, "domain": domain, **shape._asdict()}
            line |= sizes(params.drafter) | tokens_per_call(run, params, texts)
            if domain == args.task:
                line |= {name: loss(task, str(export), x) for name, x in pairs.items()}
            yield line


def written(run: DecodeRun, params: PyTree) -> list[acceptance.Texts]:
    """What the target writes greedily."""
    given = ((batch.index, batch.inputs) for batch in run.batches())
    return list(acceptance.generate(run.plan, params, given, seed=0, tokens=10**9))


def sizes(params: PyTree) -> dict[str, int]:
    """Parameters, and those of the decoder, which a step of the draft reads."""
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    decoder = sum(leaf.size for leaf in jax.tree.leaves(params["decoder"]))
    return {"parameters": count, "decoder_parameters": decoder}


def tokens_per_call(
    run: DecodeRun, params: Any, texts: Sequence[acceptance.Texts]
) -> dict[str, Any]:
    """By draft length, exactly what the loop has, with intervals over texts."""
    accepted = list(acceptance.measure(run.plan, params, texts, tables=False))
    target: Any = run.plan.target
    found = {}
    for gamma in GAMMAS:
        plan = dataclasses.replace(run.plan, schedule=Fixed(gamma))
        replayed = forecast.replay(
            plan, accepted, vocab_size=target.vocab_size, length=run.data.lengths["inputs"]
        )
        sums = np.stack([replayed.tokens, replayed.calls])
        low, high = bootstrap(sums, lambda x: x[0] / x[1])
        found[gamma] = [float(x) for x in (sums[0].sum() / sums[1].sum(), low, high)]
    alpha = acceptance.summarize(accepted).alphas["model"][0]
    return {
        "texts": len(accepted),
        "tokens": sum(text.tokens for text in accepted),
        "alpha": [alpha.value, alpha.low, alpha.high],
        "tokens_per_call": found,
    }


def held_out(task: Task, name: str, folder: Path) -> list[Pairs]:
    """Batches of the validation split."""
    definition = tasks.SentencePiece(task.vocabulary)
    split = {"validation": str(folder / "validation")}
    examples = data.read_split(
        tasks.predictions_task(name, split, definition), "validation", task.lengths
    )
    return data.pack(examples, task.lengths, 64, 1)


def loss(task: Task, export: str, batches: Sequence[Pairs]) -> float:
    """Nats of a token."""
    config, target = checkpoints.config_from(export), checkpoints.config_from(task.target)
    params = checkpoints.load(export, config=config)
    frozen = Frozen(families.model_of(target), checkpoints.load(task.target, config=target))
    model = families.model_of(config)

    @jax.jit
    def sums(params: PyTree, target_params: PyTree, pairs: Pairs) -> Sums:
        of_target = frozen._replace(params=target_params)
        return cross_entropy(teacher_forced(model, params, pairs, of_target), pairs.targets)

    found = [sums(params, frozen.params, pairs) for pairs in batches]
    return float(sum(x.loss for x in found) / sum(x.tokens for x in found))


if __name__ == "__main__":
    main()
