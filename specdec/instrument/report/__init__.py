"""Measured runs beside published ones, as Markdown and as figures.

`summaries` reads them, `tables` and `headline` make the Markdown. `speedups` and `times` have the
numbers that figures show, `draw_speedups` and `draw_times` draw them on what `canvas` gives, and
`figures` writes the files. What draws needs matplotlib, so import `figures` where it is used.

A run goes by the name of its file up to the first dot: `ende_small_t0.jsonl.summary.json` is laid
beside the row that configs/leviathan/ende_small_t0.gin repeats, and `specdec bench` and
`specdec acceptance` of one name make one row.
"""

from specdec.instrument.report.headline import headline
from specdec.instrument.report.summaries import ReportedRun, read
from specdec.instrument.report.tables import markdown

__all__ = ["ReportedRun", "headline", "markdown", "read"]
