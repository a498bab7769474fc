"""Measures the draft of the synthetic speech pair: word error rate and acceptance.

  python scripts/studies/speech.py FOLDER DATA [--texts 300]

FOLDER has the checkpoints "target" and "draft" that configs/speech/ has trained, each with its
"export". DATA has the sounds of scripts/data/make_speech.py. Lines go to speech/. Run it from the
root of a checkout. `specdec bench` measures time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import harness
import jax
import numpy as np
from harness import Results, Run, interval

from specdec import tasks

GAMMAS = (4, 8)
JUDGED = ("gamma", "tokens per call", "alpha", "identical texts", "WER", "WER alone")


def main() -> None:
    parser = harness.parser(__doc__, texts=300)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    judged(parser.parse_args())


def run_of(args: argparse.Namespace, gamma: int, texts: int, rows: int) -> Run:
    """Returns the run of the pair on held-out sounds."""
    paths = {"": "target", "DRAFT_": "draft"}
    flags = [
        harness.checkpoint_flag(args.folder / path / "export", role) for role, path in paths.items()
    ]
    data = [f"--gin.DATA={str(args.data)!r}", f"--gin.GAMMA={gamma}"]
    base = "--gin_file=configs/speech/speech.gin"
    return harness.run_of([base, *data, *flags], texts, batch_size=rows)


def judged(args: argparse.Namespace) -> None:
    """Judges the draft at several lengths, and prints a table."""
    lines = Results.of(args, "speech/judged", "gamma")
    alone: list[str] = []
    for gamma in GAMMAS:
        if (str(gamma),) in lines.known():
            continue
        run = run_of(args, gamma, args.texts, rows=20)
        params = run.engine.params
        sizes = {role: sum(x.size for x in jax.tree.leaves(params[role])) for role in params}
        alone = alone or harness.outputs(run, run.plan.baseline(), params).texts[0]
        fast, said = harness.outputs(run, run.plan, params), harness.references(run)
        lines.put(
            {
                "gamma": gamma,
                "texts": len(said),
                "parameters": sizes,
                "alpha": harness.alpha(harness.passes(run, params)),
                "tokens_per_call": harness.tokens_per_call(fast),
                "identical": sum(a == b for a, b in zip(fast.texts[0], alone, strict=True)),
                "wer": {"speculative": wer(said, fast.texts[0]), "alone": wer(said, alone)},
            }
            | harness.about()
        )
    print(harness.head(*JUDGED))
    for line in lines:
        shares = [
            interval(line[name], form)
            for name, form in (("tokens_per_call", ".2f"), ("alpha", ".3f"))
        ]
        rates = [interval(line["wer"][way]) for way in ("speculative", "alone")]
        same = f"{line['identical']} of {line['texts']}"
        print(harness.row(line["gamma"], *shares, same, *rates))


def wer(targets: Sequence[str], texts: Sequence[str]) -> list[float]:
    """Returns the word error rate of texts, and its 95 % interval."""
    counts = [tasks.wer.statistics(*pair) for pair in zip(targets, texts, strict=True)]
    return harness.of_sums(np.array(counts).T, lambda s: 100 * s[0] / s[1])


if __name__ == "__main__":
    main()
