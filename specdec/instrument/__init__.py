"""Measurements of runs: each a function from runs and texts to a report.

A `Run` has a plan, its texts and its devices, and a `Variant` is one of those that are compared.
Commands make variants of what they are given, call these functions, and print.

    benchmarking      times generations and their parts, by turns
    recorded_texts    what the target writes, and what a drafter thinks of it
    forecasting       the speed-up at every draft length, from recorded texts
    search            how long to draft, and with what
    evaluation        outputs for a split, and their metrics
    certifying        whether a run is exact
    distillation      a drafter made of a target and texts, by all of these
"""
