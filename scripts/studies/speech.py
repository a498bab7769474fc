"""Measures the draft of the synthetic speech pair: word error rate, acceptance, and a whole talk.

  python scripts/studies/speech.py FOLDER DATA [--texts 300]

FOLDER has the checkpoints "target" and "draft" that configs/speech/ has trained, each with its
"export". DATA has the sounds of scripts/data/make_speech.py. Lines go to speech/. The subtitles of
the talk are compared with those that it was made of. Run it from the root of a checkout. `specdec
bench` measures the time of windows.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import harness
import jax
import numpy as np
from harness import Results, Run, interval

from specdec import cli, tasks

GAMMAS = (4, 8)
JUDGED = ("gamma", "tokens per call", "alpha", "identical texts", "WER", "WER alone")
TALK = ("gamma", "seconds", "subtitles", "in time", "begins", "ends", "WER", "identical")
NEAR = 0.5  # seconds, within which a command is in time
_TIMES = re.compile(r"(\d+):(\d+):(\d+),(\d+) --> (\d+):(\d+):(\d+),(\d+)\n(.*)")


class Subtitle(NamedTuple):
    start: float  # in seconds
    end: float
    text: str


def main() -> None:
    parser = harness.parser(__doc__, texts=300)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    args = parser.parse_args()
    judged(args)
    talked(args)


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


def talked(args: argparse.Namespace) -> None:
    """Transcribes the talk with one command, as a reader does, and prints a table."""
    lines = Results.of(args, "speech/talk", "gamma")
    said = read(args.data / "talk.srt")
    for gamma in GAMMAS:
        if (str(gamma),) in lines.known():
            continue
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            command(args, gamma, f"--subtitles={folder}/talk.srt")
            seconds = time.perf_counter() - began
            made = read(Path(folder) / "talk.srt")
            command(args, gamma, f"--output_file={folder}/talk.jsonl", "--compare")
            text = json.loads((Path(folder) / "talk.jsonl").read_text())
        lines.put(
            {
                "gamma": gamma,
                "seconds": seconds,
                "sound": said[-1].end,
                "commands": len(said),
                **compared(said, made),
                "tokens_per_call": len(text["tokens"]) / len(text["accepted"]),
                "identical": text["tokens"] == text["alone_tokens"],
            }
            | harness.about()
        )
    print(harness.head(*TALK))
    for line in lines:
        in_time = f"{line['in_time']} of {line['commands']}"
        times = (f"{line[name]:.3f}" for name in ("begins", "ends"))
        cells = (line["gamma"], f"{line['seconds']:.1f}", line["subtitles"], in_time, *times)
        print(harness.row(*cells, f"{line['wer']:.2f}", line["identical"]))


def command(args: argparse.Namespace, gamma: int, *flags: str) -> None:
    """Runs `specdec decode` on the talk."""
    pair = [f"--{role}={args.folder / role / 'export'}" for role in ("target", "draft")]
    talk = ["--gin_file=transcribe.gin", "--max_length=48", f"--text={args.data / 'talk.wav'}"]
    if cli.main(["decode", *pair, *talk, f"--gamma={gamma}", "--color=never", *flags]):
        raise SystemExit("specdec decode failed")


def read(path: Path) -> list[Subtitle]:
    """Returns the subtitles of an SRT file."""
    found = []
    for *numbers, text in _TIMES.findall(path.read_text(encoding="utf-8")):
        hours, minutes, seconds, thousandths = np.array(numbers, int).reshape(2, 4).T
        times = 3600 * hours + 60 * minutes + seconds + thousandths / 1000
        found.append(Subtitle(*times.tolist(), text))
    return found


def compared(said: Sequence[Subtitle], made: Sequence[Subtitle]) -> dict[str, float]:
    """Returns the word error rate of subtitles, and the mean distances of their times in seconds.

    Times are those of commands that have a subtitle within `NEAR` seconds at both ends.
    """
    distances = np.array([[(a.start - b.start, a.end - b.end) for b in made] for a in said])
    distances = np.abs(distances.reshape(len(said), -1, 2))
    nearest = np.take_along_axis(
        distances, distances.max(axis=2, initial=0).argmin(axis=1)[:, None, None], axis=1
    )[:, 0]
    near = nearest[nearest.max(axis=1) <= NEAR]
    texts = [" ".join(one.text for one in some) for some in (said, made)]
    errors, words = tasks.wer.statistics(*texts)
    return {
        "subtitles": len(made),
        "in_time": len(near),
        "begins": float(near[:, 0].mean()),
        "ends": float(near[:, 1].mean()),
        "wer": float(100 * errors / words),
    }


def wer(targets: Sequence[str], texts: Sequence[str]) -> list[float]:
    """Returns the word error rate of texts, and its 95 % interval."""
    counts = [tasks.wer.statistics(*pair) for pair in zip(targets, texts, strict=True)]
    return harness.of_sums(np.array(counts).T, lambda s: 100 * s[0] / s[1])


if __name__ == "__main__":
    main()
