"""How fast speculation is, against the target alone in the same process, and where the time goes.

`workload` has what is timed, `measure` times it, and `file` keeps the records. `summary` makes
figures of them by one `estimator`; `printed` shows those. A `Measurement` is all of it for one
workload.
"""

from specdec.benchmark.file import File, Generation, Record, Timing, fields_of, record
from specdec.benchmark.measure import decode_elsewhere, measure_by_text, profile
from specdec.benchmark.measurement import Measurement, described
from specdec.benchmark.printed import lines
from specdec.benchmark.summary import BenchmarkSummary, summarize
from specdec.benchmark.workload import Workload

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
    "summarize",
]
