"""Finds text of a matplotlib figure that overlaps other text, a legend's points, or the edge."""

from __future__ import annotations

import itertools
from unittest import mock

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

SLACK = 0.5  # pixels at 100 an inch that rounding may add


def crowded(figure: Figure) -> list[str]:
    """Returns a line for each fault of the figure as it is drawn."""
    figure.set_dpi(100)
    canvas, boxes = FigureCanvasAgg(figure), {}
    canvas.draw()  # finds the layout
    draw = Text.draw

    def recorded(text, renderer):
        if text.get_visible() and text.get_text().strip():
            boxes[text] = Text.get_window_extent(text, renderer).padded(-SLACK)
        draw(text, renderer)

    with mock.patch.object(Text, "draw", recorded):
        canvas.draw()
    name = {text: repr(text.get_text()) for text in boxes}
    found = [
        f"{name[a]} and {name[b]} overlap"
        for a, b in itertools.combinations(boxes, 2)
        if boxes[a].overlaps(boxes[b])
    ]
    width, height = canvas.get_width_height()
    found += [
        f"{name[text]} is cut off"
        for text, box in boxes.items()
        if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height
    ]
    for axes in figure.axes:
        for legend in axes.findobj(Legend):
            box = legend.get_window_extent()
            for line in axes.lines:
                points = line.get_transform().transform(line.get_xydata())
                if any(box.contains(*point) for point in points):
                    found.append(f"a legend covers {line.get_label()!r}")
    return found
