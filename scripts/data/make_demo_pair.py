"""Trains the models of a pair and compares their figures with those stated here.

  python scripts/data/make_demo_pair.py --work_dir=DIR
  python scripts/data/make_demo_pair.py --pair=copying --work_dir=DIR

The pair demo is in demo/, which ships with the package; copying is in demo_copying/, which does
not. A run that was stopped goes on. Parameters are rounded to bfloat16, which halves the files, and
computed with in float32. `--figures` only measures the pair that is there. Exit code 1 if a figure
is further from the stated one than its tolerance: another number of threads or another processor
sums in another order, and training carries the difference on. The models are trained on generated
texts without end, of which the split train in demo/texts has the first.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import corpora
import jax
import jax.numpy as jnp
import numpy as np

from specdec import Params, Plan, checkpoints, cli, decode, row_keys, tasks
from specdec.checkpoints import model_card
from specdec.common import demo, theory
from specdec.drafters import Autoregressive
from specdec.models.t5 import T5Target
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.tasks.task import TextTask
from specdec.verifiers import GreedyMatch

ROOT = Path(__file__).resolve().parents[2]
GAMMA = 7
BATCH = 50
TEXTS = "generated_texts"  # the name of the task that pairs are trained on
SIZES = {"train": 2**48, "validation": 500}
TOLERANCE = {"BLEU": 3.0, "em": 3.0, "f1": 3.0, "alpha": 0.02, "tau": 0.4}


class Pair(NamedTuple):
    """A target and those that draft for it."""

    folder: Path  # where the models are, each in a folder of its role
    runs: str  # their training is RUNS_ROLE.gin
    roles: tuple[str, ...]  # the target first
    rates: Mapping[str, float]  # how often a training text comes from each task
    lengths: Mapping[str, Mapping[str, int]]  # of each task
    stated: Mapping[str, float]  # of the test splits, 500 examples each; greedy


# BLEU as sacrebleu's 13a. Each pair was trained in somewhat more than an hour on 2 shared cores of
# an AMD EPYC.
PAIRS = {
    "demo": Pair(
        ROOT / "demo",
        "train_demo",
        ("target", "draft"),
        {"specdec_ende": 2, "specdec_highlights": 1},
        {
            "specdec_ende": {"inputs": 48, "targets": 48},
            "specdec_highlights": {"inputs": 144, "targets": 48},
        },
        {
            "ende target BLEU": 79.9,
            "ende draft BLEU": 72.3,
            "ende draft alpha": 0.947,
            "ende draft tau": 5.68,
            "highlights target BLEU": 59.2,
            "highlights draft BLEU": 58.2,
            "highlights draft alpha": 0.934,
            "highlights draft tau": 5.48,
        },
    ),
    "copying": Pair(
        ROOT / "demo_copying",
        "train_copying",
        ("target", "draft", "shallow"),
        {"specdec_gec": 1, "specdec_qa": 1},
        {
            "specdec_gec": {"inputs": 64, "targets": 64},
            "specdec_qa": {"inputs": 176, "targets": 48},
        },
        {
            "gec target BLEU": 93.4,
            "gec draft BLEU": 89.1,
            "gec draft alpha": 0.963,
            "gec draft tau": 6.17,
            "gec shallow BLEU": 83.9,
            "gec shallow alpha": 0.968,
            "gec shallow tau": 6.36,
            "qa target em": 99.0,
            "qa target f1": 99.4,
            "qa draft em": 93.0,
            "qa draft f1": 94.1,
            "qa draft alpha": 0.993,
            "qa draft tau": 6.12,
            "qa shallow em": 96.6,
            "qa shallow f1": 97.3,
            "qa shallow alpha": 0.996,
            "qa shallow tau": 6.24,
        },
    ),
}
METRICS = {
    "specdec_ende": (tasks.bleu, {"bleu": "BLEU"}),
    "specdec_highlights": (tasks.bleu, {"bleu": "BLEU"}),
    "specdec_gec": (tasks.bleu, {"bleu": "BLEU"}),
    "specdec_qa": (tasks.squad, {"em": "em", "f1": "f1"}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--pair", choices=PAIRS, default="demo", help="which pair; demo if left out"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--work_dir", metavar="DIR", help="where training keeps its checkpoints")
    what.add_argument("--figures", action="store_true", help="only measure the pair that is there")
    args = parser.parse_args()
    pair = PAIRS[args.pair]
    if args.work_dir:
        register_texts(pair)
        for role in pair.roles:
            train(pair, role, Path(args.work_dir) / role)
    return report(pair, {k: v for task in pair.lengths for k, v in figures(pair, task).items()})


def register_texts(pair: Pair) -> None:
    """Registers TEXTS, a mixture of the pair's tasks with generated texts."""
    vocabulary = tasks.for_texts(tasks.demo_vocabulary())
    parts = [
        TextTask(f"generated_{name}", functools.partial(generated, name), SIZES, vocabulary)
        for name in pair.rates
    ]
    tasks.mixture(TEXTS, parts, list(pair.rates.values()))


def generated(name: str, split: str, start: int) -> Iterator[tuple[str, str]]:
    """Returns the (input, target) pairs of a task's split, from index `start` on."""
    return itertools.islice(corpora.examples(name, split, start), SIZES[split] - start)


def train(pair: Pair, role: str, folder: Path) -> None:
    """Trains until its steps are done, and puts the rounded parameters into the pair's folder."""
    run = [f"--gin_file={pair.runs}_{role}.gin", f"--gin.TASK={TEXTS!r}"]
    code = cli.main(["train", *run, f"--output_dir={folder}"])
    if code:
        sys.exit(code)
    params = checkpoints.load(folder / "export", dtype="bfloat16")
    card = pair.folder / role / model_card.FILE
    written = card.read_text(encoding="utf-8") if card.exists() else None
    shutil.rmtree(pair.folder / role, ignore_errors=True)
    checkpoints.save(
        pair.folder / role,
        params,
        config=checkpoints.config_from(folder / "export"),
        vocabulary=demo.path("vocabulary.model"),
    )
    if written is not None:
        card.write_text(written, encoding="utf-8")


def figures(pair: Pair, task: str) -> dict[str, float]:
    """What each model is worth alone, and each drafter's tokens to the target; the test split."""
    folders = {role: pair.folder / role for role in pair.roles}
    models = {role: T5Target(checkpoints.config_from(path)) for role, path in folders.items()}
    trees = {role: checkpoints.load(path, dtype="float32") for role, path in folders.items()}
    target, *drafters = pair.roles
    longest = pair.lengths[task]["targets"]
    plans = {
        role: Plan(
            models[target],
            Autoregressive(models[role], Greedy()),
            GreedyMatch(),
            Fixed(GAMMA),
            Greedy(),
            longest,
        )
        for role in drafters
    }
    vocabulary = tasks.demo_vocabulary().load()
    references, texts = [], {role: [] for role in pair.roles}
    traces = {role: [] for role in drafters}
    batches = tasks.batches(
        tasks.synthetic_task(task), "test", pair.lengths[task], batch_size=BATCH
    )
    for batch in batches:
        keys, inputs = row_keys(0, jnp.asarray(batch.index)), jnp.asarray(batch.inputs)
        references += batch.target_texts or []
        for role in pair.roles:
            alone = plans[drafters[0]].with_models({target: models[role]}).alone()
            output = decode(Params(trees[role]), keys, inputs, alone)
            texts[role] += [tasks.detokenize(vocabulary, row) for row in output.tokens]
        for role, plan in plans.items():
            output = decode(Params(trees[target], trees[role]), keys, inputs, plan)
            traces[role].append(output.trace)
    name = task.removeprefix("specdec_")
    metric, shown = METRICS[task]
    found = {}
    for role in pair.roles:
        values = metric(references, texts[role])
        found |= {f"{name} {role} {shown[key]}": values[key] for key in shown}
        if role != target:
            found |= {f"{name} {role} {k}": v for k, v in _worth(traces[role]).items()}
    return found


def _worth(traces: list) -> dict[str, float]:
    """Acceptance, and tokens for each call of the target."""
    drafted, accepted = (
        jnp.concatenate([getattr(trace, field) for trace in traces])
        for field in ("drafted", "accepted")
    )
    tokens = sum(int(np.sum(theory.emitted_tokens(trace))) for trace in traces)
    calls = sum(int(trace.calls.sum()) for trace in traces)
    return {"alpha": theory.empirical_alpha(accepted, drafted), "tau": tokens / calls}


def report(pair: Pair, measured: dict[str, float]) -> int:
    """Prints the figures beside the stated ones; 1 if one is too far off."""
    failed = False
    for name, value in measured.items():
        stated, tolerance = pair.stated[name], TOLERANCE[name.split()[-1]]
        off = abs(value - stated) > tolerance
        failed |= off
        print(f"{name:26}{value:8.3f}  stated {stated:.3f} +- {tolerance}", "OFF" * off)
    size = sum(file.stat().st_size for file in pair.folder.rglob("*") if file.is_file())
    print(f"{pair.folder.name}/ has {size / 1e6:.1f} MB on {jax.devices()[0].device_kind}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
