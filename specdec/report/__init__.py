"""Measured runs next to published ones, as Markdown and as figures.

`summaries` reads them, and `run_tables` makes the Markdown. `speedups` and `times` have the numbers
that figures show, and `figures` draws them and writes the files. Drawing needs matplotlib, so
import `figures` where it is used.

A run is identified by the name of its file up to the first dot. `ende_small_t0.jsonl.summary.json`
is compared with the row that configs/leviathan/ende_small_t0.gin repeats. `specdec bench` and
`specdec acceptance` of one name make one row.
"""
