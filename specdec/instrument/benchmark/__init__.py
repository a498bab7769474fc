"""The speed of speculation relative to the target alone, in the same process, and its breakdown.

`workload` has the timed programs, `measure` times them, and `file` keeps the records. `summary`
makes figures from them with one `estimator`. `trust` says how much they vary, and `printed` shows
them. A `Measurement` is all of it for one workload.
"""

from specdec.instrument.benchmark.file import File, Generation, Record, Timing, fields_of, record
from specdec.instrument.benchmark.measure import decode_elsewhere, measure_by_text, profile
from specdec.instrument.benchmark.measurement import Measurement, described
from specdec.instrument.benchmark.printed import lines, sentence
from specdec.instrument.benchmark.summary import BenchmarkSummary, summarize
from specdec.instrument.benchmark.workload import Workload

__all__ = [
    "File",
    "Generation",
    "Measurement",
    "Record",
    "BenchmarkSummary",
    "Timing",
    "Workload",
    "decode_elsewhere",
    "described",
    "fields_of",
    "lines",
    "measure_by_text",
    "profile",
    "record",
    "sentence",
    "summarize",
]
