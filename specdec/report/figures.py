"""Every figure, as a PNG file. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from specdec.report.canvas import DPI, STYLE
from specdec.report.draw_speedups import over_alpha_and_cost, over_gamma, predicted_and_measured
from specdec.report.draw_times import one_generation, one_iteration
from specdec.report.runs import Run

FIGURES = (predicted_and_measured, over_gamma, over_alpha_and_cost, one_generation, one_iteration)


def draw(runs: Sequence[Run], folder: str | Path) -> list[Path]:
    """Writes the figures into a folder, which is made if need be, and returns the files.

    Raises:
      ValueError: no run predicts a speed-up, or the JSON lines of the first that does are missing.
      OSError: the folder cannot be written to.
    """
    folder = Path(folder)
    with matplotlib.rc_context(STYLE):
        figures = {folder / f"{one.__name__}.png": one(runs) for one in FIGURES}
        folder.mkdir(parents=True, exist_ok=True)
        for path, figure in figures.items():
            figure.savefig(path, dpi=DPI, metadata={"Software": None})  # the same for every version
    return list(figures)
