"""Draws the breakdown of times."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from specdec.common.terminal import counted
from specdec.instrument.report import times
from specdec.instrument.report.canvas import (
    BLUE,
    GREEN,
    ORANGE,
    PALE,
    PINK,
    RED,
    ROW,
    blank,
    captioned,
)
from specdec.instrument.report.summaries import ReportedRun

LIGHT_ORANGE = "#F5CF7F"
EDGE = {"edgecolor": "white", "linewidth": 0.5}
TOKENS = {
    "accepted": {"facecolor": GREEN, **EDGE},
    "own": {"facecolor": BLUE, **EDGE},
    "rejected": {"facecolor": "white", "edgecolor": RED, "hatch": "/////", "linewidth": 0.5},
}
MS = 1e3


def one_generation(runs: Sequence[ReportedRun]) -> Figure:
    """Draws the calls of both models, the outcome of each token, and the target alone below."""
    one = times.timeline(runs)
    figure = blank(5.4)
    calls, tokens, alone = figure.subplots(3, sharex=True, height_ratios=(2, 3, 1))
    _calls(calls, one)
    _tokens(tokens, one)
    prefill, step = MS * one.target_prefill, MS * one.target_step
    alone.broken_barh([(0, prefill)], (0, 1), facecolors=PALE)
    spans = [(prefill + i * step, step) for i in range(one.tokens)]
    alone.broken_barh(spans, (0, 1), facecolors=BLUE, **EDGE)
    alone.set_yticks([0.5], ["target alone"])
    alone.set(xlabel="milliseconds", xlim=(0, None))
    calls.set_title(f"One generation: text {one.text} of {one.name}")
    speculative, plain = (f"{MS * one.seconds[mode]:.1f} ms" for mode in ("speculative", "alone"))
    caption = (
        f"{counted(one.tokens, 'token')} by {counted(len(one.calls), 'target call')} in "
        f"{speculative}, by the target alone in {plain}. A bar is as long as such a part took in "
        "this run, over all its texts."
    )
    return captioned(figure, [run for run in runs if run.name == one.name], caption)


def _calls(axes: Axes, one: times.Timeline) -> None:
    starts = [MS * one.start(call) for call in range(len(one.calls))]
    draft, verify, rest, step = (
        MS * seconds for seconds in (one.draft, one.verify, one.rest, one.draft / one.gamma)
    )
    steps = [(start + i * step, step) for start in starts for i in range(one.gamma)]
    shades = [LIGHT_ORANGE if i % 2 else ORANGE for _ in starts for i in range(one.gamma)]
    axes.broken_barh([(0, MS * one.prefill)], (0, 2.1), facecolors=PALE)
    axes.broken_barh(steps, (0, 1), facecolors=shades)
    axes.broken_barh([(start + draft, verify) for start in starts], (1.1, 1), facecolors=BLUE)
    axes.broken_barh([(start + draft + verify, rest) for start in starts], (1.1, 1), color=PINK)
    axes.set_yticks([0.5, 1.6], ["drafter", "target"])
    parts = {"encoders, prefill": PALE, "draft steps": ORANGE, "target call": BLUE, "rest": PINK}
    _legend(axes, [Patch(color=colour, label=label) for label, colour in parts.items()])


def _tokens(axes: Axes, one: times.Timeline) -> None:
    """Draws a stack of tokens under each call."""
    width = MS * (one.draft + one.verify)
    for i, call in enumerate(one.calls):
        bottom = 0
        for kind, count in call._asdict().items():
            for place in range(bottom, bottom + count):
                axes.bar(MS * one.start(i), 0.9, width, place, align="edge", **TOKENS[kind])
            bottom += count
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("tokens of the call")
    labels = {"rejected": "rejected", "own": "the target's own", "accepted": "accepted"}
    _legend(axes, [Patch(label=label, **TOKENS[kind]) for kind, label in labels.items()])


def draft_lengths(runs: Sequence[ReportedRun]) -> Figure:
    """Draws each draft's length and how much was kept, for one generation and for all texts."""
    shown = times.lengths(runs)
    figure = blank(1.2 + 1.5 * len(shown))
    rows = figure.subplots(len(shown), 2, sharex="col", sharey=True, squeeze=False)
    for (one, means), found in zip(rows, shown, strict=True):
        for start, drafted, accepted, longer in found.calls:
            place = {"x": start, "width": longer, "align": "edge"}
            one.bar(height=accepted, **place, **TOKENS["accepted"])
            one.bar(height=drafted - accepted, bottom=accepted, **place, **TOKENS["rejected"])
            if drafted == accepted:
                one.plot(start + longer / 2, drafted, "^", color=BLUE, markersize=4)
        one.set(title=found.name, ylabel="tokens")
        one.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        one.margins(y=0.1)
        means.plot(found.places, found.drafted, color=RED, label="drafted")
        means.plot(found.places, found.accepted, color=GREEN, label="accepted")
    rows[-1][0].set_xlabel(f"token of text {shown[0].text}")
    rows[-1][1].set_xlabel("token of all texts, means")
    handles = [Patch(label=kind, **TOKENS[kind]) for kind in ("rejected", "accepted")]
    figure.legend(handles=[*handles, *rows[0][1].lines], loc="outside upper right", ncols=4)
    caption = (
        "Each bar is a target call, as wide as the tokens it made. The best lengths in hindsight, "
        "the oracle's, are what was accepted; where all of a draft was (triangles), that or more."
    )
    return captioned(figure, runs, caption)


def _legend(axes: Axes, handles: Sequence[Patch]) -> None:
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1, 0.5))


def one_iteration(runs: Sequence[ReportedRun]) -> Figure:
    """Draws the breakdown of an iteration's time, and the target's time for the same tokens."""
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
            axes.barh(row, part.steps, 0.8, part.start, color=colour)
            end = max(part.start, part.start + part.steps)
            text = f"{part.steps:.2f} steps, {MS * part.seconds:.2f} ms"
            axes.annotate(
                text, (end, row), (4, 0), textcoords="offset points", va="center", fontsize=9
            )
        row += 1
    axes.set_yticks(list(labels), list(labels.values()))
    axes.tick_params(axis="y", length=0)
    longest = max(part.start + part.steps for parts in shown.values() for part in parts)
    axes.set(xlim=(0, 1.3 * longest), ylim=(row - 0.4, -0.6), xlabel="steps of the target")
    axes.set_title("Where the time of an iteration goes")
    caption = (
        "Draft and verify are timed on their own, rest is what an iteration takes besides. Target "
        "alone: what the tokens of an average iteration take without a drafter."
    )
    return captioned(figure, runs, caption)
