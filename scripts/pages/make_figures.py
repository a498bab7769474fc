"""Draws the figures of README and docs/ from the embedded pair and from the lines in docs/results/.

  python scripts/pages/make_figures.py [NAME ...]

Needs the extra `report`.
"""

from __future__ import annotations

import argparse
import base64
import collections
import functools
import html
import io
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

import beams_compared
import harness
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from specdec import Params, Plan, checkpoints, decode, row_keys, tasks
from specdec.common import demo, terminal
from specdec.common.terminal import Origin
from specdec.drafters import Autoregressive
from specdec.models.t5 import T5Target
from specdec.report import figures, summaries
from specdec.report.figures import (
    draft_lengths,
    gamma_and_arithmetic,
    over_gamma,
    predicted_and_measured,
)
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.tasks import metrics
from specdec.verifiers import GreedyMatch

ROOT = Path(__file__).resolve().parents[2]
FIGURES, RESULTS = ROOT / "docs" / "figures", ROOT / "docs" / "results"
Span: TypeAlias = tuple[str, Origin | None]
SENTENCES = 7
GAMMA = 7
COLUMNS = 64  # of the trace, which can be read on a telephone
REPORTED = {  # figures of `specdec report`, and the runs that they are of
    predicted_and_measured: (
        "amd_epyc_avx512_2_cores/ende_t0",
        "amd_epyc_avx512_2_cores/ende_t1",
        "amd_epyc_avx512_2_cores/highlights_t0",
        "amd_epyc_avx512_2_cores/highlights_t1",
        "amd_epyc_avx512_2_cores/base_ende_t0_gamma04",
        "amd_epyc_avx512_2_cores/large_ende_t0_gamma07",
        "amd_epyc_avx512_2_cores/large_ende_t1_speculative_sampling",
        "amd_epyc_avx512_2_cores/large_multi30k_t0_gamma04",
        "amd_epyc_avx512_2_cores/large_multi30k_t1_speculative_sampling",
    ),
    over_gamma: (
        "amd_epyc_avx512_2_cores/large_ende_t0_gamma05",
        "amd_epyc_avx512_2_cores/large_ende_t0_gamma07",
        "amd_epyc_avx512_2_cores/large_ende_t0_gamma10",
    ),
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
CLASSES = {Origin.ACCEPTED: "a", Origin.TARGET: "t", Origin.REJECTED: "r", None: "n"}
# A page in a dark theme shows a dark picture. Each colour has a contrast of 4.5 or more.
TRACE_STYLE = """
rect { fill: #f6f8fa } .a { fill: #1a6b32 } .t { fill: #0759b8; font-weight: bold }
.r { fill: #b81d28; text-decoration: line-through } .n { fill: #57606a }
@media (prefers-color-scheme: dark) {
  rect { fill: #161b22 } .a { fill: #7fd6a0 } .t { fill: #8cc2ff }
  .r { fill: #ff9b8f } .n { fill: #a2abb6 }
}
"""
LEGEND = (Origin.ACCEPTED, Origin.TARGET, Origin.REJECTED)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(FIGURE_OF)}")
    args = parser.parse_args()
    if unknown := set(args.names) - FIGURE_OF.keys():
        parser.error(f"{', '.join(unknown)} is unknown; give some of {', '.join(FIGURE_OF)}")
    FIGURES.mkdir(exist_ok=True)
    for name in args.names or FIGURE_OF:
        (FIGURES / f"{name}.svg").write_text(FIGURE_OF[name](), encoding="utf-8")


def lines_of(name: str) -> list[dict[str, Any]]:
    """Reads a file of result lines."""
    text = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def svg(draw: Callable[[], Figure]) -> str:
    with matplotlib.rc_context(figures.STYLE):
        return figures.svg(draw())


def reported(draw: Callable[..., Figure]) -> Figure:
    """Draws a figure of `specdec report` of its runs."""
    paths = [RESULTS / f"{name}.jsonl.summary.json" for name in REPORTED[draw]]
    return draw(summaries.read(map(str, paths)))


def trace() -> str:
    """Returns the first sentences of the test split, each word in the colour of its model."""
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
        marked = terminal.origins(*row[:4])
        line = terminal.pieces(marked, lambda ids: tasks.detokenize(vocabulary, ids))
        counts = f"{len(row.tokens)} tokens, {len(row.drafted)} calls".replace(" ", "\xa0")
        lines.append([*line, (f"   {counts}", None)])
    return picture(lines)


def picture(lines: Sequence[Sequence[Span]]) -> str:
    """Returns an SVG of lines, those of more than COLUMNS characters broken between words."""
    rows = []
    for row, line in enumerate(itertools.chain.from_iterable(map(broken, lines))):
        marked = (f'<tspan class="{CLASSES[of]}">{html.escape(text)}</tspan>' for text, of in line)
        y = 30 + 22 * row
        rows.append(f'<text x="16" y="{y}" xml:space="preserve">{"".join(marked)}</text>')
    size = f'width="{32 + round(8.43 * COLUMNS)}" height="{22 * len(rows) + 24}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">\n'
        f"<style>{TRACE_STYLE}</style>\n"
        '<rect width="100%" height="100%" rx="6"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


def broken(line: Sequence[Span]) -> Iterator[list[Span]]:
    """Yields the rows of a line, broken at spaces; a row after the first one is indented."""
    text = "".join(part for part, _ in line)
    origins = [origin for part, origin in line for _ in part]
    row: list[Span] = []
    for word in re.finditer(" *[^ ]+", text):
        letters = list(zip(word[0], origins[word.start() : word.end()], strict=True))
        if row and len(row) + len(letters) > COLUMNS:
            yield list(spans(row))
            row, letters = [(" ", None)] * 2, [one for one in letters if one[0] != " "]
        row += letters
    yield list(spans(row))


def spans(letters: Sequence[Span]) -> Iterator[Span]:
    """Yields the letters of one origin after another as one span."""
    for origin, some in itertools.groupby(letters, key=lambda letter: letter[1]):
        yield "".join(letter for letter, _ in some), origin


def verifiers() -> Figure:
    """Draws quality over speed at each temperature, against references and the target's texts."""
    lines = lines_of("intel_r_xeon_r_processor_avx512_2_cores/verifiers/lines")
    lines += lines_of("amd_epyc_avx512_2_cores/exits/lines")
    qualities = (("bleu", "BLEU"), ("own_bleu", "BLEU against the target's greedy texts"))
    figure = figures.blank(8.5)
    panels, handles = figure.subplots(2, 2, sharex=True), {}
    colours = [*matplotlib.color_sequences["tab20"], "black", "gold"]
    for temperature, column in enumerate(panels.T):
        families = collections.defaultdict(list)
        for one in lines:
            if one.get("temperature") == temperature and "speedup" in one:
                family = one["mode"].partition("(")[0].partition(",")[0].partition(" of")[0]
                trimmed = " decoder layers" in one["mode"]
                families["trimmed target" if trimmed else family].append(one)
        for family, members in families.items():
            exact = all(one["exact"] for one in members)
            place = len(handles) if family not in handles else list(handles).index(family)
            style = {"color": colours[place], "marker": "*" if exact else "os^Dv"[place % 5]}
            style |= {"markersize": 11 if exact else 5, "linewidth": 0.8}
            handles.setdefault(family, Line2D([], [], label=family, **style))
            for axes, (name, _) in zip(column, qualities, strict=True):
                x = [one["speedup"][0] for one in members]
                axes.plot(x, [np.ravel(one[name])[0] for one in members], **style)
        column[0].set_title(f"temperature {temperature}")
        column[-1].set_xlabel("speed-up over the target alone")
    for axes, (_, title) in zip(panels[:, 0], qualities, strict=True):
        axes.set_ylabel(title)
    panels[0, 0].set_xscale("log")
    figures.only_ticks(panels[0, 0].xaxis, (1, 1.5, 2, 3, 5, 8))
    figure.legend(handles=list(handles.values()), loc="outside lower left", ncols=4)
    return figure


def exits() -> Figure:
    """Draws quality over the mean depth of a token."""
    figure = figures.blank(4.5)
    axes = figure.add_subplot()
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
    return figure


def store() -> Figure:
    """Draws tokens per call over the share of the store, in and out of its own task."""
    figure = figures.blank(4.5)
    axes = figure.add_subplot()
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
    figures.only_ticks(axes.xaxis, (10, 100, 1000))
    figure.legend(loc="outside lower left", ncols=3)
    return figure


def drafts() -> Figure:
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
    figure = figures.blank(4.5)
    left, right = figure.subplots(1, 2)
    end, top = 1.1 * max(x["cost_ratio"] for x in found), 1.1 * max(x["tar"] for x in found)
    verify = np.mean([one["verify_seconds"] / one["step_seconds"] for one in found])
    for speed in (1.0, 1.25, 1.5, 1.75, 2.0):
        left.axline((0, speed * verify), slope=4 * speed, color="0.85", zorder=0)
        last = min(end, (top / speed - verify) / 4)
        at = (last, speed * (4 * last + verify))
        left.annotate(f"{speed:g}x", at, (-3, -3), textcoords="offset points", ha="right", va="top")
    colours = {1: figures.BLUE, 2: figures.ORANGE, 4: figures.GREEN, 8: figures.RED}
    marks = {256: "o", 512: "s", 1024: "D"}
    for one in found:
        known = one["text"] == "outputs" and one["steps"] == max(x["steps"] for x in found)
        colour = colours[one["layers"]]
        fill = {"color": colour, "mfc": colour if known else "white"}
        left.plot(one["cost_ratio"], one["tar"], marks[one["width"]], **fill)
        right.plot(one["loss_of_references"], one["speed"], marks[one["width"]], **fill)
    left.set(xlim=(-0.05 * end, end), ylim=(0.9 * min(one["tar"] for one in found), top))
    left.set(xlabel="a draft token, in target steps", ylabel="tokens per target call, drafts of 4")
    right.set(xlabel="loss of references, nats per token", ylabel="speed-up, best draft length")
    of_layers = [patch(x, f"{n} layer{'s' * (n > 1)}") for n, x in colours.items()]
    of_widths = [mark(x, f"{n} wide", "0.4") for n, x in marks.items()]
    hollow = mark("o", "hollow: fewer steps, or from references", "white")
    figure.legend(handles=[*of_layers, *of_widths, hollow], loc="outside lower left", ncols=4)
    return figure


def patch(colour: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, linewidth=6, label=label)


def mark(marker: str, label: str, fill: str) -> Line2D:
    return Line2D([], [], color="0.4", ls="", marker=marker, mfc=fill, label=label)


def modelled(one: dict[str, Any]) -> float:
    """Returns the speed-up of all texts by what the parts take."""
    spent = one["gamma"] * one["draft_seconds"] + one["verify_seconds"]
    return one["tokens_per_call_of_all"] * one["step_seconds"] / spent


def shallow() -> Figure:
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
    figure, named = figures.blank(3.5), []
    axes = figure.add_subplot()
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
        named.append((label, milliseconds, bleu))
    axes.set_xlabel("milliseconds per text")
    axes.set_ylabel("BLEU of corrections")
    axes.set_xlim(0, 75)
    axes.margins(y=0.15)
    figures.name_points(axes, named)
    return figure


def beams() -> Figure:
    """Draws the quality of greedy texts, of beams and of relaxed speculation over their time."""
    folder = "amd_epyc_avx512_2_cores/beams"
    found = {one["way"]: one for one in lines_of(f"{folder}/compared")}
    timed = collections.defaultdict(list)
    for line in lines_of(f"{folder}/compared_times"):
        timed[line["target"]].append(line)
    processor = "processor time over greedy"
    panels = {
        (f"2 cores, {target}", processor): {
            way: seconds.sum()
            for way, seconds in harness.medians(lines, "processor_seconds").items()
        }
        for target, lines in timed.items()
    }
    panels["one v4 chip, T5-XXL, predicted", "time over greedy"] = {
        way: beams_compared.predicted(one) for way, one in found.items()
    }
    figure, marks = figures.blank(4), "oDs^vP"
    colours = [figures.GREY, figures.ORANGE, figures.BLUE, figures.PINK, figures.RED, figures.GREEN]
    axes = figure.subplots(1, len(panels), sharey=True)
    for panel, ((title, label), spent) in zip(axes, panels.items(), strict=True):
        for colour, marker, (way, one) in zip(colours, marks, found.items(), strict=True):
            x = spent[way] / spent["greedy"]
            panel.plot(x, one["bleu"], marker, color=colour, markersize=8, label=way)
        end = 1.1 * max(spent.values()) / spent["greedy"]
        panel.set(title=title.replace(", ", ",\n", 1), xlabel=label, xlim=(0, end))
    axes[0].set_ylabel("BLEU")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return figure


def series() -> Figure:
    """Draws one series with its quantiles, of the target alone and with each draft."""
    lines = lines_of("amd_epyc_avx512_2_cores/chronos/example")
    ways = {"target alone": (lines[0], "alone")}
    for one in sorted(lines, key=lambda one: [int(n) for n in re.findall(r"\d+", one["draft"])]):
        width, layers = re.findall(r"\d+", one["draft"])
        ways[f"with a draft of {layers} x {width}"] = one, "speculative"
    figure = figures.blank(4)
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for panel, (title, (one, way)) in zip(panels.flat, ways.items(), strict=False):
        context, future = one["context"][-64:], one["future"]
        after = np.arange(len(future)) + 1
        panel.plot(np.arange(1 - len(context), 1), context, color=figures.GREY, label="context")
        panel.plot(after, future, color=figures.GREY, linestyle=":", label="what followed")
        low, median, high = (one[way][one["levels"].index(level)] for level in (0.1, 0.5, 0.9))
        panel.fill_between(after, low, high, color=figures.SKY, alpha=0.5, label="10 to 90 %")
        panel.plot(after, median, color=figures.BLUE, label="median")
        panel.set_title(title)
    for panel in panels[1]:
        panel.set_xlabel("steps from the end of the context")
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def batches() -> Figure:
    """Draws the speed-up and the tokens per second of batches of each size."""
    ways = collections.defaultdict(list)
    for one in lines_of("amd_epyc_avx512_2_cores/batches/curve"):
        ways[one["pair"], one["way"]].append(one)
    figure = figures.blank(3.5)
    left, right = figure.subplots(1, 2)
    for (pair, way), lines in ways.items():
        rows = [one["rows"] for one in lines]
        label = f"{pair}, {way.replace('alone', 'target alone').replace('gamma', 'drafts of')}"
        right.plot(rows, [np.median(one["tokens_per_second"]) for one in lines], "o-", label=label)
        if way != "alone":
            middle, low, high = np.array([one["speedup"] for one in lines]).T
            colour = right.lines[-1].get_color()
            left.errorbar(rows, middle, [middle - low, high - middle], fmt="o-", color=colour)
    left.axhline(1, color=figures.GREY, linestyle="--", linewidth=1)
    left.set(ylabel="times as fast as the target alone", ylim=(0, None))
    right.set(ylabel="tokens per second", ylim=(0, None))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="texts at a time", xticks=rows, xticklabels=rows)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def pixels() -> Figure:
    """Draws digits of the target alone and with a draft, and which pixels the draft proposed."""
    lines = {one["way"]: one for one in lines_of("amd_epyc_avx512_2_cores/pixels/example")}
    alone, fast = lines["alone"], lines["speculative"]
    grey, kept, own = np.ones(3), to_rgb(figures.SKY), to_rgb(figures.ORANGE)
    rows = {"target alone": tinted(alone, grey, grey), "with a draft": tinted(fast, grey, grey)}
    rows["the same, by model"] = tinted(fast, kept, own)
    figure = figures.blank(3.6)
    for panel, (title, picture) in zip(figure.subplots(3, 1), rows.items(), strict=True):
        panel.imshow(picture, interpolation="nearest")
        panel.set(title=title, xticks=[], yticks=[])
        panel.spines[:].set_visible(False)
    colours = {"drafted and accepted": figures.SKY, "the target's own": figures.ORANGE}
    handles = [Patch(color=colour, label=label) for label, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def tinted(line: dict[str, Any], kept: Sequence[float], own: Sequence[float]) -> np.ndarray:
    """Returns pictures in a row, [height, width, 3]: dark ink on one of two colours."""
    pictures = []
    for levels, accepted in zip(line["pixels"], line["accepted"], strict=True):
        ground = np.where(np.isin(np.arange(64), accepted)[:, None], kept, own)
        picture = (ground * (1 - 0.8 * np.array(levels)[:, None] / 16)).reshape(8, 8, 3)
        pictures += [picture, np.ones([8, 2, 3])]
    return np.concatenate(pictures[:-1], axis=1)


def rollouts() -> Figure:
    """Draws held-out BLEU and the draft's acceptance over the updates of policy gradients."""
    found = collections.defaultdict(list)
    for line in lines_of("amd_epyc_avx512_2_cores/rollouts/learned"):
        found[line["way"]].append(line["held_out"])
    names = {"alone": "target alone", "draft": "fixed draft", "realigned draft": "realigned draft"}
    figure, colours = figures.blank(3.2), (figures.GREY, figures.ORANGE, figures.BLUE)
    panels = {"reward": "BLEU at temperature 1", "alpha": "acceptance rate (alpha)"}
    for panel, (figure_of, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for colour, (way, name) in zip(colours, names.items(), strict=True):
            if figure_of in found[way][0][0]:
                x = [one["update"] for one in found[way][0]]
                seeds = np.array([[one[figure_of] for one in run] for run in found[way]])
                panel.plot(x, seeds.T, color=colour, linewidth=0.6, alpha=0.5)
                panel.plot(x, seeds.mean(axis=0), "o-", color=colour, markersize=4, label=name)
        panel.set(xlabel="updates", title=label)
    axes = figure.axes[0]
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def pictures() -> Figure:
    """Draws pictures, and which words of their captions two drafts proposed."""
    lines = lines_of("amd_epyc_avx512_2_cores/pictures/example")
    first, figure = lines[0], figures.blank(3.4)
    panels = figure.subplots(len(first["words"]), 2, width_ratios=(1, 7))
    for row, (still, panel) in enumerate(panels):
        file = io.BytesIO(base64.b64decode(first["pictures"][row]))
        still.imshow(imread(file, format="png"), interpolation="nearest")
        for one in (still, panel):
            one.axis("off")
        for number, line in enumerate(lines):
            height = 0.85 - 0.5 * number
            panel.text(-0.02, height, line["draft"], va="top", ha="right", fontsize=7)
            x, y = 0.0, height
            for word, drafted in zip(line["words"][row], line["accepted"][row], strict=True):
                width = 0.0125 * (len(word) + 1)
                if x + width > 1:
                    x, y = 0.0, y - 0.2
                ground = figures.SKY if drafted else figures.ORANGE
                box = {"facecolor": ground, "edgecolor": "none", "pad": 0.6}
                panel.text(x, y, word, va="top", fontsize=7, family="monospace", bbox=box)
                x += width
    colours = {"drafted and accepted": figures.SKY, "the target's own": figures.ORANGE}
    handles = [Patch(color=colour, label=label) for label, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


MADE = (
    verifiers,
    exits,
    store,
    drafts,
    shallow,
    beams,
    series,
    batches,
    pixels,
    pictures,
    rollouts,
)
DRAWN = {one.__name__: one for one in MADE}
DRAWN |= {draw.__name__: functools.partial(reported, draw) for draw in REPORTED}
FIGURE_OF: dict[str, Callable[[], str]] = {"trace": trace}
FIGURE_OF |= {name: functools.partial(svg, draw) for name, draw in DRAWN.items()}

if __name__ == "__main__":
    main()
