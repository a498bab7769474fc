"""Draws the figures of README and docs/ from the embedded pair and from benchmarks.

  python scripts/make_figures.py [--bench DIR]

DIR holds what `specdec bench --gin_file=demo.gin --output_file=DIR/<any name>.jsonl` wrote, runs of
several draft lengths at temperatures 0 and 1; without it the figure of speed-ups stays as it is.
Those of draft lengths are of the lines in docs/results/. Needs the extra `report`.
"""

from __future__ import annotations

import argparse
import collections
import html
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from specdec import (
    Params,
    Plan,
    checkpoints,
    decode,
    demo,
    report,
    row_keys,
    tasks,
    terminal,
    theory,
)
from specdec.drafters import Autoregressive
from specdec.models.t5 import T5Target
from specdec.report.canvas import STYLE
from specdec.report.draw_speedups import gamma_and_arithmetic
from specdec.report.draw_times import draft_lengths
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.terminal import Origin
from specdec.verifiers import GreedyMatch

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"
SENTENCES = 7
GAMMA = 7
REPORTED = {  # figures of `specdec report`, and the runs that they are of
    draft_lengths: (
        "amd_epyc_avx2_2_cores/schedules/base_highlights_t0_fixed",
        "amd_epyc_avx2_2_cores/schedules/base_highlights_t0_confidence",
    ),
    gamma_and_arithmetic: (
        "amd_epyc_avx512_2_cores/ende_t0",
        "amd_epyc_avx512_2_cores/ende_t1",
        "amd_epyc_avx512_2_cores/large_multi30k_t0_gamma03",
        "amd_epyc_avx512_2_cores/large_multi30k_t0_gamma05",
    ),
}
LENGTHS = {"inputs": 48, "targets": 48}
STYLES = {
    Origin.ACCEPTED: 'fill="#1a7f37"',
    Origin.TARGET: 'fill="#0969da" font-weight="bold"',
    Origin.REJECTED: 'fill="#cf222e" opacity="0.6" text-decoration="line-through"',
    None: 'fill="#6e7781"',  # not part of the text
}
LEGEND = (Origin.ACCEPTED, Origin.TARGET, Origin.REJECTED)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bench", metavar="DIR")
    args = parser.parse_args()
    FIGURES.mkdir(exist_ok=True)
    (FIGURES / "trace.svg").write_text(trace(), encoding="utf-8")
    reported()
    if not args.bench:
        return
    summaries = [json.loads(path.read_text()) for path in Path(args.bench).glob("*.summary.json")]
    speedups(summaries, FIGURES / "speedup.svg")


def reported() -> None:
    """The figures that `specdec report` draws of runs."""
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    as_text: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "specdec"}
    with matplotlib.rc_context(STYLE | as_text):
        for draw, names in REPORTED.items():
            paths = [FIGURES.parent / "results" / f"{name}.jsonl.summary.json" for name in names]
            figure = draw(report.read(map(str, paths)))
            figure.savefig(FIGURES / f"{draw.__name__}.svg", metadata=nothing)


def trace() -> str:
    """The first sentences of the test split, each word in the colour of who wrote it."""
    models = [T5Target(checkpoints.config_from(demo.path(role))) for role in ("target", "draft")]
    params = Params(
        *(checkpoints.load(demo.path(role), dtype="float32") for role in ("target", "draft"))
    )
    task = tasks.synthetic_task("specdec_ende")
    vocabulary = tasks.demo_vocabulary().load()
    (batch,) = tasks.batches(task, "test", LENGTHS, batch_size=SENTENCES, limit=SENTENCES)
    drafter = Autoregressive(models[1], Greedy())
    plan = Plan(models[0], drafter, GreedyMatch(), Fixed(GAMMA), Greedy(), LENGTHS["targets"])
    keys = row_keys(0, jnp.asarray(batch.index))
    output = jax.device_get(decode(params, keys, jnp.asarray(batch.inputs), plan))
    lines = [[(f"{terminal.LABELS[origin]}   ", origin) for origin in LEGEND], []]
    for row in map(output.row, range(SENTENCES)):
        marked = terminal.origins(*row)
        line = terminal.pieces(marked, lambda ids: tasks.detokenize(vocabulary, ids))
        counts = f"   {len(row.tokens)} tokens, {len(row.drafted)} calls"
        lines.append([*line, (counts, None)])
    return _svg(lines)


def _svg(lines: list[list[tuple[str, Origin | None]]]) -> str:
    rows = []
    for i, line in enumerate(lines):
        spans = (f"<tspan {STYLES[origin]}>{html.escape(text)}</tspan>" for text, origin in line)
        rows.append(f'<text x="16" y="{30 + 24 * i}" xml:space="preserve">{"".join(spans)}</text>')
    width = 32 + 8.4 * max(sum(len(text) for text, _ in line) for line in lines)
    height = 24 * len(lines) + 22
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">\n'
        '<rect width="100%" height="100%" rx="6" fill="#f6f8fa"/>\n'
        + "\n".join(rows)
        + "\n</svg>\n"
    )


def speedups(summaries: list[dict], path: Path) -> None:
    """Measured speed-ups over gamma, with the intervals, on what the parts predict."""
    matplotlib.rcParams["svg.hashsalt"] = "specdec"  # the same file for the same figures
    by_sampling = collections.defaultdict(list)
    for summary in summaries:
        by_sampling[summary["run"]["sampling"].startswith("Greedy")].append(summary)
    figure, axes = plt.subplots(figsize=(6.4, 4))
    for greedy, runs in sorted(by_sampling.items(), reverse=True):
        runs.sort(key=lambda run: run["run"]["gamma"])
        gammas = [run["run"]["gamma"] for run in runs]
        measured = [run["speedup"]["ratio"] for run in runs]
        bars = [
            [run["speedup"]["ratio"] - run["speedup"]["low"] for run in runs],
            [run["speedup"]["high"] - run["speedup"]["ratio"] for run in runs],
        ]
        label = "temperature 0" if greedy else "temperature 1"
        drawn = axes.errorbar(
            gammas, measured, bars, fmt="o", capsize=3, label=f"{label}, measured"
        )
        colour = drawn[0].get_color()
        predicted = [run["prediction"]["these_texts"] for run in runs]
        axes.plot(gammas, predicted, "--", color=colour, label=f"{label}, predicted from the parts")
        paper = [theory.speedup(run["alpha"], run["run"]["gamma"], 0.0) for run in runs]
        axes.plot(gammas, paper, ":", color=colour, label=f"{label}, free drafts and verification")
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_xlabel("gamma, drafted tokens per target call")
    axes.set_ylabel("speed-up over the target alone")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
