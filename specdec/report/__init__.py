"""Reports that compare measured runs with published figures, in Markdown, HTML and figures.

`summaries` reads the runs' summaries, and `run_tables` makes Markdown of them. `speedups` and
`times` compute the numbers in figures, and `figures` draws these figures and writes their files. It
needs matplotlib, so it is imported only where figures are drawn.

A run's name is the name of its file up to the first dot. The run `ende_small_t0.jsonl.summary.json`
is compared with the published row of configs/leviathan/ende_small_t0.gin. Files of `specdec bench`
and `specdec acceptance` with the same name become one row.
"""
