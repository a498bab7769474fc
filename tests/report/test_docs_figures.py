"""The figures of docs/, drawn again: pytest tests/report/test_docs_figures.py"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from crowding import crowded

matplotlib = pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures"
WIDEST = 800  # pixels of a page's column
NAMES = sorted(file.stem for file in FIGURES.iterdir())


@pytest.fixture(scope="module")
def make_figures():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts" / "pages"))
        import make_figures

        yield make_figures


def test_every_figure_is_drawn_by_the_script(make_figures):
    assert sorted(make_figures.FIGURE_OF) == NAMES


@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name in NAMES if name != "trace"])
def test_a_figure_is_of_todays_results_and_no_text_overlaps(make_figures, name):
    """The figure in docs/ has the numbers and the names of one that is drawn anew."""
    with matplotlib.rc_context(make_figures.figures.STYLE):
        figure = make_figures.DRAWN[name]()
        drawn = make_figures.figures.svg(figure)
        assert crowded(figure) == []
    assert texts(drawn) == texts((FIGURES / f"{name}.svg").read_text(encoding="utf-8"))


def texts(svg: str) -> list[str]:
    return sorted(re.findall(r"<text[^>]*>([^<]*)<", svg))


@pytest.mark.parametrize("name", NAMES)
def test_no_figure_is_wider_than_a_page(name):
    text = (FIGURES / f"{name}.svg").read_text(encoding="utf-8")
    width, unit = re.search(r'<svg[^>]* width="([\d.]+)(pt|)"', text).groups()
    assert float(width) * (96 / 72 if unit else 1) <= WIDEST


def test_a_long_line_of_the_trace_is_broken_between_words(make_figures):
    line = [("eins zwei", 1), ("drei" * 9, 2), (" vier" * 9, 1)]
    rows = list(make_figures.broken(line))
    written = ["".join(part for part, _ in row) for row in rows]
    assert max(map(len, written)) <= make_figures.COLUMNS
    assert " ".join(written).split() == "".join(part for part, _ in line).split()
    assert rows[0][:2] == line[:2]
