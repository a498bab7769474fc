"""Reports as files: Markdown with links to figures, or one page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from specdec.common import records
from specdec.common.values import UsageError
from specdec.instrument.report.summaries import ReportedRun, read


def write_page(
    path: str, summaries: Sequence[str], paper: str | None, generations: Sequence[str]
) -> None:
    """Writes one self-contained page with tables, figures and generations."""
    try:
        from specdec.instrument.report import generations as texts
        from specdec.instrument.report import html

        page = html.page(read(summaries, paper), texts.read(generations))
    except ImportError as error:
        missing = "--html needs jinja2 and matplotlib; pip install jinja2 matplotlib"
        raise UsageError(missing) from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        records.write(Path(path), page)
    except OSError as error:
        raise UsageError(
            f"--html {path} cannot be written: {error.strerror}; give another file"
        ) from error


def draw(measured: Sequence[ReportedRun], folder: str) -> list[Path]:
    """Draws the figures of runs into a folder, and returns their paths."""
    try:
        from specdec.instrument.report import figures
    except ImportError as error:
        missing = "--figures_dir needs matplotlib; pip install matplotlib"
        raise UsageError(missing) from error
    try:
        return figures.draw(measured, folder)
    except OSError as error:
        raise UsageError(
            f"--figures_dir {folder} cannot be written: {error.strerror}; give another folder"
        ) from error


def link(figure: Path, page: str) -> str:
    """Returns Markdown that shows a figure in a page."""
    path = Path(os.path.relpath(figure, Path(page).parent)).as_posix()
    return f"![{figure.stem.replace('_', ' ')}]({quote(path)})"
