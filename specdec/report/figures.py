"""Draws all figures of reports, as PNG files or as SVG elements of a page. Needs matplotlib."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from specdec.common import published, records, theory
from specdec.common.statistics import Estimate
from specdec.common.terminal import counted
from specdec.report import speedups, times
from specdec.report.speedups import ALPHAS, predicts, varies
from specdec.report.summaries import ReportedRun, device

WIDTH, DPI = 8, 200  # inches and pixels per inch: twice the 800 pixels that a page shows
ROW = 0.24  # inches, the height of a line of text or of a bar
NAME = 0.07  # the height of a name / the height of the axes

# Okabe and Ito's colours, which colour-blind readers can distinguish.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PINK, GREY, PALE = "#56B4E9", "#CC79A7", "#6E6E6E", "#D9D9D9"
HALO = withStroke(linewidth=2, foreground="white")

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # file names may hold dollars
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "specdec",
}
COLOURS = (BLUE, RED, GREEN, ORANGE, PINK, SKY)
ASIDE = 0.015  # the shift between curves / the longest gamma, so that intervals do not overlap
LABEL = 90  # characters in a line of a legend
LEVELS = (1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 10)
LIGHT_ORANGE = "#F5CF7F"
EDGE = {"edgecolor": "white", "linewidth": 0.5}
TOKENS = {
    "accepted": {"facecolor": GREEN, **EDGE},
    "own": {"facecolor": BLUE, **EDGE},
    "rejected": {"facecolor": "white", "edgecolor": RED, "hatch": "/////", "linewidth": 0.5},
}
MS = 1e3

# Colours that the page's style sets, so that figures can be read on light and dark backgrounds.
PAGE = {"#000000": "currentColor", "#ffffff": "var(--paper)"}
PAGE |= {BLUE.lower(): "var(--blue)", GREY.lower(): "var(--muted)"}


def blank(height: float) -> Figure:
    return Figure(figsize=(WIDTH, height), layout="constrained")


def svg(figure: Figure, **options: Any) -> str:
    """Returns a figure as SVG text, always the same; call it in the matplotlib context of STYLE."""
    written, nothing = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(written, format="svg", metadata=nothing, **options)
    return written.getvalue()


def write_png(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG, the same for every version of matplotlib."""
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=DPI, metadata={"Software": None})
    records.write(path, written.getvalue())


def only_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Labels only these values of an axis; other labels of a short logarithmic axis overlap."""
    axis.set_major_locator(FixedLocator(values))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def captioned(figure: Figure, runs: Sequence[ReportedRun], caption: str) -> Figure:
    """Returns the figure with a caption and the hardware of the runs under it."""
    shown = [run.bench for run in runs if run.bench and (predicts(run) or varies(run))]
    places = dict.fromkeys(device(bench["environment"]) for bench in shown)
    text = textwrap.fill(f"{caption} On {'; '.join(places)}.", 125)
    figure.supxlabel(text, x=0.01, ha="left", fontsize=8, color=GREY)
    return figure


def interval(axes: Axes, x: float, y: Estimate, colour: str) -> None:
    below, above = y.value - y.low, y.high - y.value
    axes.errorbar(x, y.value, [[below], [above]], fmt="o", color=colour, markersize=5, capsize=3)


def name_points(axes: Axes, named: Sequence[tuple[str, float, float]]) -> None:
    """Writes the names of (name, x, y) in a column right of the axes, without overlaps."""
    low, high = axes.get_ylim()
    heights = [(y - low) / (high - low) for _, _, y in named]
    places = apart(heights, NAME)
    for (name, x, y), height in zip(named, places, strict=True):
        axes.annotate(
            name,
            (x, y),
            xytext=(1.04, height),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            annotation_clip=False,
            zorder=1,  # lines pass under other points and their labels
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.5, "shrinkB": 4},
        )


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Returns one place near each height, in the same order, at least `gap` apart, not below 0."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    places = [0.0] * len(heights)
    above = float("-inf")
    for i in order:
        above = places[i] = max(heights[i], above + gap)
    middle = (sum(places) - sum(heights)) / max(1, len(heights))
    down = min(middle, max(0.0, min(places, default=0.0)))
    return [height - down for height in places]


def predicted_and_measured(runs: Sequence[ReportedRun]) -> Figure:
    """Draws each run's measured over its predicted speed-up, with lines at ratios 1 and 0.95."""
    figure = blank(5.6)
    figure.set_layout_engine("constrained", w_pad=0.15)  # a browser's letters may be wider
    axes = figure.add_subplot()
    shown = speedups.points(runs)
    for point in shown:
        interval(axes, point.predicted, point.measured, BLUE)
    ends = [x for point in shown for x in (point.predicted, *point.measured[1:])]
    margin = 0.05 * max(ends)
    limits = np.array([min(ends) - margin, max(ends) + margin])
    axes.plot(limits, limits, color=GREY, linewidth=1, label="measured as predicted")
    axes.plot(limits, 0.95 * limits, "--", color=GREY, linewidth=1, label="0.95 of predicted")
    axes.set(xlim=limits, ylim=limits, aspect="equal", title="Speed-up, predicted and measured")
    axes.set(xlabel="predicted for these texts", ylabel="measured, 95 % interval over texts")
    name_points(axes, [(point.name, point.predicted, point.measured.value) for point in shown])
    axes.legend(loc="upper left")
    caption = "Predicted from c, v, the prefill and the number of target calls, all measured."
    return captioned(figure, runs, caption)


def over_gamma(runs: Sequence[ReportedRun]) -> Figure:
    """Draws measured and predicted speed-ups over gamma, a curve for runs that differ in gamma."""
    curves = speedups.curves(runs)
    longest = max(max(curve.gammas) for curve in curves)
    published = speedups.papers(runs, range(1, longest + 1))
    figure = blank(5)
    axes = figure.add_subplot()
    for i, curve in enumerate(curves):
        aside = ASIDE * longest * (i - (len(curves) - 1) / 2)
        _curve(axes, curve, COLOURS[i % len(COLOURS)], aside)
    axes.axhline(1, color=GREY, linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title="Speed-up over gamma", xlabel="gamma, drafted tokens per target call")
    axes.set(ylabel="speed-up over the target alone")
    for values in published.values():
        axes.plot(range(1, longest + 1), values, ":", color="black", linewidth=1.2)
    axes.set_ylim(bottom=0)
    name_points(axes, [(label, longest, values[-1]) for label, values in published.items()])
    handles = [
        *axes.get_legend_handles_labels()[0],
        Line2D([], [], color=GREY, marker="o", label="measured, 95 % interval over texts"),
        Line2D([], [], color=GREY, ls="--", marker="o", mfc="w", label="predicted, these texts"),
        Patch(color=GREY, alpha=0.3, label="predicted, long texts, from least to greatest alpha"),
    ]
    if published:
        label = "theory for the alpha and c of Leviathan et al., v = 1"
        handles.append(Line2D([], [], ls=":", color="black", label=label))
    for handle in handles:  # a name may be longer than the figure is wide
        handle.set_label(textwrap.fill(str(handle.get_label()), LABEL))
    figure.legend(handles=handles, loc="outside upper left")
    lines = sum(str(handle.get_label()).count("\n") + 1 for handle in handles)
    figure.set_figheight(4.2 + 0.2 * lines)
    caption = (
        "A star is the best measured gamma. For long texts: alpha, c and v as measured, each draft "
        "token accepted independently, no prefill, no overhead."
    )
    return captioned(figure, runs, caption)


def _curve(axes: Axes, curve: speedups.Curve, colour: str, aside: float) -> None:
    gammas = list(curve.band)
    low, high = zip(*curve.band.values(), strict=True)
    axes.fill_between(gammas, low, high, color=colour, alpha=0.2, linewidth=0)
    for edge in (low, high):  # a band may be as thin as a line
        axes.plot(gammas, edge, color=colour, alpha=0.4, linewidth=0.8)
    at = [gamma + aside for gamma in curve.gammas]
    axes.plot(at, curve.predicted, "o--", color=colour, mfc="white", markersize=5, linewidth=1)
    axes.plot(at, [speedup.value for speedup in curve.measured], color=colour)
    for gamma, speedup in zip(at, curve.measured, strict=True):
        interval(axes, gamma, speedup, colour)
    best = curve.measured[curve.best].value
    label = f"{curve.label or 'best'}: {best:.2f} at gamma {curve.gammas[curve.best]}"
    axes.plot(at[curve.best], best, "*", color=colour, markersize=11, ls="", label=label)


def over_alpha_and_cost(runs: Sequence[ReportedRun]) -> Figure:
    """Draws the theoretical speed-up over alpha and c, with measured points."""
    figure = blank(6)
    axes = figure.add_subplot()
    ours, paper = speedups.points(runs), published.rows().values()
    every = [*ours, *paper]
    alphas = np.linspace(max(0, min(point.alpha for point in every) - 0.03), 1, 60)
    cost_ratios = np.linspace(0, 1.2 * max(point.c for point in every), 60)
    surface = speedups.surface(alphas, cost_ratios)
    lines = axes.contour(alphas, cost_ratios, surface, LEVELS, colors=SKY, linewidths=1)
    places = [_label_place(level, alphas, cost_ratios, surface) for level in LEVELS]
    places = [label_place for label_place in places if label_place]
    labels = axes.clabel(lines, fmt="%g", fontsize=9, colors=BLUE, manual=places)
    for label in labels:
        label.set_path_effects([HALO])
    for point in paper:
        at = (point.alpha, point.c)
        axes.plot(*at, "s", color=GREY, markersize=5)
        label = axes.annotate(f"{point.measured:.1f}", at, (0, 6), textcoords="offset points")
        label.set(ha="center", fontsize=8, path_effects=[HALO])
    for point in ours:
        axes.plot(point.alpha, point.c, "o", color=RED, mec="white", markersize=7)
    names = [f"{point.name}: {point.measured.value:.2f}" for point in ours]
    name_points(
        axes, [(name, point.alpha, point.c) for name, point in zip(names, ours, strict=True)]
    )
    axes.set(title="Speed-up over alpha and c", xlabel="alpha, the share of draft tokens accepted")
    axes.set(ylabel="c, a draft step in target steps")
    handles = [
        Line2D([], [], color=SKY, label="theory, best gamma, v = 1"),
        Line2D([], [], ls="", marker="o", color=RED, label="measured here"),
        Line2D([], [], ls="", marker="s", color=GREY, label="measured by Leviathan et al., TPU v4"),
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.1), ncols=3)
    caption = (
        f"Theory: long texts, no overhead, gamma at most {speedups.LONGEST_DRAFT}. Measured: whole "
        "texts, each run with its own gamma and v."
    )
    return captioned(figure, runs, caption)


def gamma_and_arithmetic(runs: Sequence[ReportedRun]) -> Figure:
    """Draws tokens per call and best gamma over alpha, and the extra arithmetic of speculation."""
    figure = blank(4.6)
    first, middle, right = figure.subplots(1, 3)
    for cost_ratio, colour in zip(speedups.COST_RATIOS, COLOURS, strict=False):
        best = [theory.optimal_gamma(x, cost_ratio, speedups.LONGEST_DRAFT) for x in ALPHAS]
        middle.plot(ALPHAS, best, color=colour, label=f"c {cost_ratio}", linewidth=1)
    shown = speedups.with_prediction(runs)
    for _, bench in shown:
        for axes, value in (first, bench["tau"]), (middle, bench["prediction"]["gamma"]):
            axes.plot(bench["alpha"], value, "o", color=RED, mec="white", markersize=7)
    first.set(title="Tokens per call", xlabel="alpha")
    middle.set(title="Best gamma", xlabel="alpha")
    middle.yaxis.set_major_locator(MaxNLocator(integer=True))
    for gamma, colour in zip(speedups.GAMMAS, COLOURS, strict=False):
        style: dict[str, Any] = {"color": colour, "linewidth": 1}
        tokens = [theory.expected_tokens(x, gamma) for x in ALPHAS]
        first.plot(ALPHAS, tokens, label=f"gamma {gamma}", **style)
        faster = [theory.speedup(x, gamma, speedups.SHARE) for x in ALPHAS]
        right.plot(ALPHAS, faster, label=f"gamma {gamma}", **style)
        operations = [theory.operations_factor(x, gamma, speedups.SHARE) for x in ALPHAS]
        right.plot(ALPHAS, operations, "--", **style)
    for axes in (first, middle):
        axes.plot([], [], "o", color=RED, label="runs")
    right.plot([], [], "--", color=GREY, label="operations")
    right.set(title="Speed-up, operations", xlabel="alpha", yscale="log", ylim=(0.8, 25))
    only_ticks(right.yaxis, (1, 2, 5, 10, 20))
    for axes in (first, middle, right):
        axes.legend(loc="upper left", fontsize=8)
    caption = (
        f"Theory with v = 1, long texts, no overhead. On the right c, and operations of a draft "
        f"token / operations of a target token, are {speedups.SHARE}. The best gamma is at most "
        f"{speedups.LONGEST_DRAFT}, and 0 if no draft pays."
    )
    return captioned(figure, runs, caption)


def _label_place(level: float, alphas, cost_ratios, surface) -> tuple[float, float] | None:
    """Returns (alpha, c) for the label of a contour line, near 3/5 of the height; None if outside.

    `surface` [c, alpha] has the speed-ups."""
    rows = range(len(cost_ratios))
    for i in sorted(rows, key=lambda i: abs(i - 0.6 * len(rows))):
        if surface[i, 2] < level < surface[i, -3]:
            return float(np.interp(level, surface[i], alphas)), float(cost_ratios[i])
    return None


def one_generation(runs: Sequence[ReportedRun]) -> Figure:
    """Draws one generation over time: model calls, each token's outcome, and the target alone."""
    timeline = times.timeline(runs)
    figure = blank(5.4)
    calls, tokens, alone = figure.subplots(3, sharex=True, height_ratios=(2, 3, 1))
    _calls(calls, timeline)
    _tokens(tokens, timeline)
    prefill, step = (MS * timeline.baseline[x] for x in ("target_prefill", "target_step"))
    alone.broken_barh([(0, prefill)], (0, 1), facecolors=PALE)
    spans = [(prefill + i * step, step) for i in range(timeline.tokens)]
    alone.broken_barh(spans, (0, 1), facecolors=BLUE, **EDGE)
    alone.set_yticks([0.5], ["target alone"])
    alone.set(xlabel="milliseconds", xlim=(0, None))
    calls.set_title(f"One generation: text {timeline.text} of {timeline.name}")
    speculative, plain = (
        f"{MS * timeline.seconds[mode]:.1f} ms" for mode in ("speculative", "alone")
    )
    caption = (
        f"{counted(timeline.tokens, 'token')} by {counted(len(timeline.calls), 'target call')} in "
        f"{speculative}, by the target alone in {plain}. The length of a bar is the mean time of "
        "such a call over all texts of this run."
    )
    return captioned(figure, [run for run in runs if run.name == timeline.name], caption)


def _calls(axes: Axes, timeline: times.Timeline) -> None:
    starts = [MS * timeline.start(call) for call in range(len(timeline.calls))]
    parts = (MS * timeline.part(x) for x in ("prefill", "draft", "verify", "rest"))
    (prefill, draft, verify, rest), gamma = parts, timeline.prediction["gamma"]
    step = draft / gamma
    steps = [(start + i * step, step) for start in starts for i in range(gamma)]
    shades = [LIGHT_ORANGE if i % 2 else ORANGE for _ in starts for i in range(gamma)]
    axes.broken_barh([(0, prefill)], (0, 2.1), facecolors=PALE)
    axes.broken_barh(steps, (0, 1), facecolors=shades)
    axes.broken_barh([(start + draft, verify) for start in starts], (1.1, 1), facecolors=BLUE)
    axes.broken_barh([(start + draft + verify, rest) for start in starts], (1.1, 1), color=PINK)
    axes.set_yticks([0.5, 1.6], ["drafter", "target"])
    shown = {"encoders, prefill": PALE, "draft steps": ORANGE, "target call": BLUE, "rest": PINK}
    _legend(axes, [Patch(color=colour, label=label) for label, colour in shown.items()])


def _tokens(axes: Axes, timeline: times.Timeline) -> None:
    """Draws a stack of tokens under each call."""
    width = MS * (timeline.part("draft") + timeline.part("verify"))
    for i, call in enumerate(timeline.calls):
        bottom = 0
        for kind, count in call._asdict().items():
            for height in range(bottom, bottom + count):
                axes.bar(MS * timeline.start(i), 0.9, width, height, align="edge", **TOKENS[kind])
            bottom += count
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("tokens of the call")
    labels = {"rejected": "rejected", "own": "the target's own", "accepted": "accepted"}
    _legend(axes, [Patch(label=label, **TOKENS[kind]) for kind, label in labels.items()])


def draft_lengths(runs: Sequence[ReportedRun]) -> Figure:
    """Draws drafted and accepted tokens per call, for one generation and as means over texts."""
    shown = times.lengths(runs)
    figure = blank(1.2 + 1.5 * len(shown))
    rows = figure.subplots(len(shown), 2, sharex="col", sharey=True, squeeze=False)
    for (calls, means), lengths in zip(rows, shown, strict=True):
        for start, drafted, accepted, longer in lengths.calls:
            bar = {"x": start, "width": longer, "align": "edge"}
            calls.bar(height=accepted, **bar, **TOKENS["accepted"])
            calls.bar(height=drafted - accepted, bottom=accepted, **bar, **TOKENS["rejected"])
            if drafted == accepted:
                calls.plot(start + longer / 2, drafted, "^", color=BLUE, markersize=4)
        calls.set(title=lengths.name, ylabel="tokens")
        calls.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        calls.margins(y=0.1)
        means.plot(lengths.places, lengths.drafted, color=RED, label="drafted")
        means.plot(lengths.places, lengths.accepted, color=GREEN, label="accepted")
    rows[-1][0].set_xlabel(f"token of text {shown[0].text}")
    rows[-1][1].set_xlabel("token of all texts, means")
    handles = [Patch(label=kind, **TOKENS[kind]) for kind in ("rejected", "accepted")]
    figure.legend(handles=[*handles, *rows[0][1].lines], loc="outside upper right", ncols=4)
    caption = (
        "Each bar is a target call, as wide as its output tokens. The best draft length in "
        "hindsight is the number of accepted tokens, or more at a triangle (all were accepted)."
    )
    return captioned(figure, runs, caption)


def _legend(axes: Axes, handles: Sequence[Patch]) -> None:
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1, 0.5))


def one_iteration(runs: Sequence[ReportedRun]) -> Figure:
    """Draws the parts of an iteration's time, and the time of the target alone for its tokens."""
    shown = times.waterfalls(runs)
    figure = blank(1.6 + ROW * sum(len(parts) + 1 for parts in shown.values()))
    axes = figure.add_subplot()
    labels: dict[int, str] = {}
    row = 0
    for name, parts in shown.items():
        axes.annotate(name, (0, row), (3, 0), textcoords="offset points", va="center")
        for part, colour in zip(parts, (ORANGE, BLUE, PINK, PALE), strict=True):
            row += 1
            labels[row] = part.name
            length = max(0.0, part.steps)
            axes.barh(row, length, 0.8, part.start, color=colour)
            place = {"textcoords": "offset points", "va": "center", "fontsize": 9}
            end = part.start + length
            text = f"{part.steps:.2f} steps, {MS * part.seconds:.2f} ms"
            text = part.in_words if part.seconds < 0 else text
            axes.annotate(text, (end, row), (4, 0), **place)
        row += 1
    axes.set_yticks(list(labels), list(labels.values()))
    axes.tick_params(axis="y", length=0)
    longest = max(part.start + part.steps for parts in shown.values() for part in parts)
    axes.set(xlim=(0, 1.3 * longest), ylim=(row - 0.4, -0.6), xlabel="steps of the target")
    axes.set_title("Where the time of an iteration goes")
    caption = (
        "Draft and verify are timed alone; rest is the remaining time of an iteration. Target "
        "alone: the time for the tokens of an average iteration without a drafter."
    )
    if any(part.seconds < 0 for parts in shown.values() for part in parts):
        caption += f" None: {times.NEGATIVE}."
    return captioned(figure, runs, caption)


FIGURES = (
    predicted_and_measured,
    over_gamma,
    over_alpha_and_cost,
    gamma_and_arithmetic,
    one_generation,
    one_iteration,
)


def of(runs: Sequence[ReportedRun]) -> Sequence[Callable[[Sequence[ReportedRun]], Figure]]:
    """Returns the functions that draw the figures for these runs; ValueError if none applies."""
    of_lengths = (draft_lengths,) if any(map(varies, runs)) else ()
    if of_lengths and not any(map(predicts, runs)):
        return of_lengths
    curves = speedups.curves(runs)
    return (*(figure for figure in FIGURES if curves or figure is not over_gamma), *of_lengths)


def draw(runs: Sequence[ReportedRun], folder: str | Path) -> list[Path]:
    """Writes NAME.png of each figure to a folder, made if missing, and returns the paths."""
    folder = Path(folder)
    with matplotlib.rc_context(STYLE):
        figures = {folder / f"{draw_one.__name__}.png": draw_one(runs) for draw_one in of(runs)}
        folder.mkdir(parents=True, exist_ok=True)
        for path, figure in figures.items():
            write_png(figure, path)
    return list(figures)


def svgs(runs: Sequence[ReportedRun]) -> dict[str, str]:
    """Returns name -> `<svg>` element of each figure; raises ValueError if no run has one."""
    with matplotlib.rc_context(STYLE):
        return {
            draw_one.__name__: element(draw_one(runs), draw_one.__name__) for draw_one in of(runs)
        }


def element(figure: Figure, name: str) -> str:
    """Returns an `<svg>` element for a page; the ids in it begin with `name`, to be unique."""
    text = svg(figure, transparent=True)
    text = re.sub(r"<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'( id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    return re.sub(r"#\w{6}\b", lambda colour: PAGE.get(colour[0].lower(), colour[0]), text)
