"""Measurements of runs: each is a function from runs and texts to a report.

A `Run` has a plan, its texts and its devices. A `Variant` is one of several runs that are compared.
Commands make variants of their arguments, call these functions, and print. Each instrument is a
folder, and one of its files has the function that a command calls:

  runs              what is measured: a run, its texts and the engine that decodes them
  acceptance        `recorded_texts`: the target's own texts, with drafters' distributions there
  benchmark         `benchmarking`: times of generations and of their parts, interleaved
  certificate       `certifying`: whether a run is exact
  compile           programs compiled ahead of time for TPUs, and their figures
  evaluation        `evaluation`: outputs for a split, and their metrics
  forecast          `forecasting`: the speed-up at every draft length, from recorded texts
  search            `search`: the best draft length, schedule and drafter
  distillation      `distillation`: a drafter made from a target and texts, by all of these
  report            tables and figures of what the others write
"""
