"""Draws latency and quality of a shallow target beside speculation on a deep one.

python scripts/shallow.py

Reads the lines of `specdec bench` on corrections in docs/results/DEVICE/ (the newest commit's
gec_t0_*.jsonl and gec_shallow_t0.jsonl), computes BLEU of their tokens, and writes
docs/figures/shallow.svg (needs the extra `report`).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from specdec import tasks
from specdec.tasks import metrics

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "amd_epyc_avx2_2_cores"
FILES = {  # lines, mode -> label
    ("gec_t0_drafters-hybrid-gin", "alone"): "deep target alone",
    ("gec_t0_drafters-hybrid-gin", "speculative"): "deep, Hybrid drafts",
    ("gec_t0_drafters-input_copy-gin", "speculative"): "deep, InputCopy drafts",
    ("gec_shallow_t0", "alone"): "shallow target alone",
    ("gec_shallow_t0", "speculative"): "shallow, InputCopy drafts",
}


def main() -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "specdec"
    from matplotlib import pyplot as plt

    vocabulary = tasks.SentencePiece(str(ROOT / "demo_copying/target/vocabulary.model")).plain()
    references = _references()
    figure, axes = plt.subplots(figsize=(7, 4))
    print("| who decodes | ms per text | BLEU |\n|---|---:|---:|")
    for (name, mode), label in FILES.items():
        seconds, outputs = _read(RESULTS / f"{name}.jsonl", mode)
        texts = [tasks.detokenize(vocabulary, tokens) for tokens in outputs]
        bleu = tasks.Bleu()(references[: len(texts)], texts)["bleu"]
        print(f"| {label} | {1e3 * np.mean(seconds):.1f} | {bleu:.1f} |")
        axes.plot(1e3 * np.mean(seconds), bleu, "o")
        axes.annotate(label, (1e3 * np.mean(seconds), bleu), (6, -12), textcoords="offset points")
    axes.set_xlabel("milliseconds per text")
    axes.set_ylabel("BLEU of corrections")
    axes.set_xlim(0, 75)
    axes.margins(y=0.15)
    path = ROOT / "docs" / "figures" / "shallow.svg"
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def _references() -> list[str]:
    lengths = {"inputs": 64, "targets": 64}
    found = metrics.references(tasks.synthetic_task("specdec_gec"), "test", lengths)
    return [target for target, _ in found]


def _read(path: Path, mode: str) -> tuple[list[float], list[list[int]]]:
    """Of each text the mean of its seconds, and its tokens."""
    seconds: dict[int, list[float]] = {}
    tokens: dict[int, list[int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if one.get("mode") == mode:
            seconds.setdefault(one["text"], []).append(one["seconds"])
            tokens[one["text"]] = one["tokens"]
    order = sorted(tokens)
    return [float(np.mean(seconds[text])) for text in order], [tokens[text] for text in order]


if __name__ == "__main__":
    main()
