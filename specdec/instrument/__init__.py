"""Measurements of runs: each is a function from runs and texts to a report.

A `Run` has a plan, its texts and its devices. A `Variant` is one of several runs that are compared.
Commands make variants of their arguments, call these functions, and print.

  benchmarking      times generations and their parts, interleaved
  recorded_texts    the target's own texts, with a drafter's distributions along them
  forecasting       the speed-up at every draft length, from recorded texts
  search            the best draft length, schedule and drafter
  evaluation        outputs for a split, and their metrics
  certifying        whether a run is exact
  distillation      a drafter made from a target and texts, by all of these
"""
