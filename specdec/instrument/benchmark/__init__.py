"""The speed of speculation relative to the target alone, in the same process, and its breakdown.

`workload` has the timed programs, `measurement` times them, and `file` keeps the records. `summary`
makes figures from them with one `estimator`. `trust` says how much they vary, and `printed` shows
them.
"""
