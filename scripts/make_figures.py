"""Draws the figures of README and docs/ from the embedded pair and from benchmarks.

  python scripts/make_figures.py [NAME ...] [--bench DIR]

DIR holds what `specdec bench --gin_file=demo.gin --output_file=DIR/<any name>.jsonl` wrote, runs of
several draft lengths at temperatures 0 and 1; without it the figure of speed-ups stays as it is.
The others are of the lines in docs/results/. Needs the extra `report`.
"""

from __future__ import annotations

import argparse
import collections
import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from specdec import Params, Plan, checkpoints, decode, row_keys, tasks
from specdec.common import demo, terminal, theory
from specdec.common.terminal import Origin
from specdec.drafters import Autoregressive
from specdec.instrument import report
from specdec.instrument.report.canvas import STYLE
from specdec.instrument.report.draw_speedups import gamma_and_arithmetic
from specdec.instrument.report.draw_times import draft_lengths
from specdec.models.t5 import T5Target
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.tasks import metrics
from specdec.verifiers import GreedyMatch

ROOT = Path(__file__).resolve().parents[1]
FIGURES, RESULTS = ROOT / "docs" / "figures", ROOT / "docs" / "results"
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
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(FIGURE_OF)}")
    parser.add_argument("--bench", metavar="DIR")
    args = parser.parse_args()
    if unknown := set(args.names) - FIGURE_OF.keys():
        parser.error(f"{', '.join(unknown)} is unknown; give some of {', '.join(FIGURE_OF)}")
    FIGURES.mkdir(exist_ok=True)
    matplotlib.use("svg")
    for name in args.names or FIGURE_OF:
        FIGURE_OF[name]()
    if args.bench:
        paths = Path(args.bench).glob("*.summary.json")
        speedups([json.loads(path.read_text()) for path in paths])


def lines_of(name: str) -> list[dict[str, Any]]:
    """Reads a file of result lines."""
    text = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def save(figure: Any, name: str, **options: Any) -> None:
    """Writes a figure; the same values make the same file."""
    with matplotlib.rc_context({"svg.hashsalt": "specdec"}):
        figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None}, **options)
    plt.close(figure)


def reported() -> None:
    """The figures that `specdec report` draws of runs."""
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    as_text: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "specdec"}
    with matplotlib.rc_context(STYLE | as_text):
        for draw, names in REPORTED.items():
            paths = [RESULTS / f"{name}.jsonl.summary.json" for name in names]
            figure = draw(report.read(map(str, paths)))
            figure.savefig(FIGURES / f"{draw.__name__}.svg", metadata=nothing)


def trace() -> None:
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
    (FIGURES / "trace.svg").write_text(_svg(lines), encoding="utf-8")


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


def speedups(summaries: list[dict]) -> None:
    """Measured speed-ups over gamma, with the intervals, on what the parts predict."""
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
    save(figure, "speedup")


def verifiers() -> None:
    """Draws quality over speed at each temperature, against references and the target's texts."""
    lines = lines_of("intel_r_xeon_r_processor_avx512_2_cores/verifiers/lines")
    lines += lines_of("amd_epyc_avx512_2_cores/exits/lines")
    qualities = (("bleu", "BLEU"), ("own_bleu", "BLEU against the target's greedy texts"))
    figure, panels = plt.subplots(2, 2, figsize=(11, 9))
    for temperature, column in enumerate(panels.T):
        families = collections.defaultdict(list)
        for one in lines:
            if one.get("temperature") == temperature and "speedup" in one:
                family = one["mode"].partition("(")[0].partition(",")[0].partition(" of")[0]
                trimmed = " decoder layers" in one["mode"]
                families["trimmed target" if trimmed else family].append(one)
        for axes, (name, title) in zip(column, qualities, strict=True):
            axes.set_prop_cycle(color=[*matplotlib.color_sequences["tab20"], "black", "gold"])
            for family, members in families.items():
                x = [one["speedup"][0] for one in members]
                y = [np.ravel(one[name])[0] for one in members]
                exact = all(one["exact"] for one in members)
                style = {"marker": "*", "markersize": 12} if exact else {"marker": "o"}
                axes.plot(x, y, label=family, linewidth=0.8, **style)
            axes.set(xscale="log", xlabel="speed-up over the target alone")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("{x:g}")
            axes.set_ylabel(title)
            axes.set_title(f"temperature {temperature}; stars are exact")
            axes.legend(fontsize=7)
    figure.tight_layout()
    save(figure, "verifiers", bbox_inches="tight")


def exits() -> None:
    """Draws quality over the mean depth of a token."""
    figure, axes = plt.subplots(figsize=(7, 4.5))
    lines = lines_of("amd_epyc_avx512_2_cores/exits/lines")
    answers = [one for one in lines if one["kind"] == "answers"]
    for confidence in dict.fromkeys(one["confidence"] for one in answers):
        members = [one for one in answers if one["confidence"] == confidence]
        members += [one for one in answers if one["threshold"] is None and one not in members]
        members.sort(key=lambda one: one["depth"][0])
        x, y = [one["depth"][0] for one in members], [one["bleu"] for one in members]
        axes.plot(x, y, marker="o", linewidth=0.8, label=confidence)
    axes.set(xlabel="decoder layers of a token, mean of 4", ylabel="BLEU")
    axes.legend()
    figure.tight_layout()
    save(figure, "exits", bbox_inches="tight")


def store() -> None:
    """Draws tokens per call over the share of the store, in and out of its own task."""
    figure, axes = plt.subplots(figsize=(7, 4))
    drawn = [line for line in lines_of("lookups") if line["drafter"] == "Retrieval"]
    for task in dict.fromkeys(line["task"] for line in drawn):
        for of in dict.fromkeys(line["of"] for line in drawn):
            some = [line for line in drawn if (line["task"], line["of"]) == (task, of)]
            x, y = ([line[key] for line in some] for key in ("stored_texts", "tokens_per_call"))
            low, high = zip(*(line["interval"] for line in some), strict=True)
            style = "-o" if of == task else ":x"
            (curve,) = axes.plot(x, y, style, label=f"{task}, from {of}")
            axes.fill_between(x, low, high, alpha=0.15, color=curve.get_color())
    axes.set(xscale="log", xlabel="stored texts", ylabel="tokens per target call")
    axes.legend(fontsize=8)
    save(figure, "store", bbox_inches="tight")


def drafts() -> None:
    """Draws tokens per call over cost with lines of equal speed, and speed over loss."""
    judged, timed = (lines_of(f"amd_epyc_avx512_2_cores/drafts/{x}") for x in ("judged", "timed"))
    times = {one["draft"]: one for one in timed}
    found = [
        {**one, **times[one["draft"]], "tar": one["tokens_per_call"]["4"][0]}
        for one in judged
        if one["domain"] == "captions" and one["draft"] in times
    ]
    for one in found:
        one["speed"] = one["speedup"][0]
        one["cost_ratio"] = one["draft_seconds"] / one["step_seconds"]
    found.sort(key=modelled, reverse=True)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    costs = np.linspace(0, 1.1 * max(one["cost_ratio"] for one in found), 50)
    verify = np.mean([one["verify_seconds"] / one["step_seconds"] for one in found])
    for speed in (1.0, 1.25, 1.5, 1.75, 2.0):
        left.plot(costs, speed * (4 * costs + verify), color="0.85", zorder=0)
        left.annotate(f"{speed:g}x", (costs[-1], speed * (4 * costs[-1] + verify)), color="0.5")
    for one in found:
        known = one["text"] == "outputs" and one["steps"] == max(x["steps"] for x in found)
        mark, label = ("o" if known else "x"), f"{one['layers']}x{one['width']}"
        for axes, x, y in ((left, "cost_ratio", "tar"), (right, "loss_of_references", "speed")):
            axes.plot(one[x], one[y], mark, color=f"C{[1, 2, 4, 8].index(one['layers'])}")
            axes.annotate(label, (one[x], one[y]), (5, 3), textcoords="offset points", fontsize=7)
    left.set_ylim(0.9 * min(one["tar"] for one in found), 1.1 * max(one["tar"] for one in found))
    left.set_xlabel("a draft token, in target steps")
    left.set_ylabel("tokens per target call, drafts of 4")
    right.set_xlabel("loss of references, nats per token")
    right.set_ylabel("speed-up with the best draft length")
    save(figure, "drafts", bbox_inches="tight")


def modelled(one: dict[str, Any]) -> float:
    """Returns the speed-up of all texts by what the parts take."""
    spent = one["gamma"] * one["draft_seconds"] + one["verify_seconds"]
    return one["tokens_per_call_of_all"] * one["step_seconds"] / spent


def shallow() -> None:
    """Draws latency and BLEU of a shallow target beside those of speculation on a deep one."""
    labels = {  # lines, mode -> label
        ("gec_t0_drafters-hybrid-gin", "alone"): "deep target alone",
        ("gec_t0_drafters-hybrid-gin", "speculative"): "deep, Hybrid drafts",
        ("gec_t0_drafters-input_copy-gin", "speculative"): "deep, InputCopy drafts",
        ("gec_shallow_t0", "alone"): "shallow target alone",
        ("gec_shallow_t0", "speculative"): "shallow, InputCopy drafts",
    }
    vocabulary = tasks.SentencePiece(str(ROOT / "demo_copying/target/vocabulary.model")).plain()
    task, lengths = tasks.synthetic_task("specdec_gec"), {"inputs": 64, "targets": 64}
    references = [target for target, _ in metrics.references(task, "test", lengths)]
    figure, axes = plt.subplots(figsize=(7, 4))
    for (name, mode), label in labels.items():
        seconds, tokens = collections.defaultdict(list), {}
        for one in lines_of(f"amd_epyc_avx2_2_cores/{name}"):
            if one.get("mode") == mode:
                seconds[one["text"]].append(one["seconds"])
                tokens[one["text"]] = one["tokens"]
        texts = [tasks.detokenize(vocabulary, tokens[text]) for text in sorted(tokens)]
        bleu = tasks.Bleu()(references[: len(texts)], texts)["bleu"]
        milliseconds = 1e3 * np.mean([np.mean(seconds[text]) for text in sorted(tokens)])
        axes.plot(milliseconds, bleu, "o")
        axes.annotate(label, (milliseconds, bleu), (6, -12), textcoords="offset points")
    axes.set_xlabel("milliseconds per text")
    axes.set_ylabel("BLEU of corrections")
    axes.set_xlim(0, 75)
    axes.margins(y=0.15)
    save(figure, "shallow", bbox_inches="tight")


FIGURE_OF: dict[str, Callable[[], None]] = {
    one.__name__: one for one in (trace, reported, verifiers, exits, store, drafts, shallow)
}

if __name__ == "__main__":
    main()
