"""How fast speculation is, against the target alone in the same process, and where the time goes.

`workload` has what is timed, `measure` times it, and `file` keeps the records. `summary` makes
`figures` of them by one `estimator`; `table` prints those. A `Measurement` is all of it for one
workload.
"""

from specdec.benchmark.figures import Summary
from specdec.benchmark.file import Elsewhere, File, Generation, Record, Timing, record
from specdec.benchmark.measure import decode_elsewhere, measure_by_text, profile
from specdec.benchmark.measurement import Measurement, described
from specdec.benchmark.summary import summarize
from specdec.benchmark.table import lines
from specdec.benchmark.workload import Workload

__all__ = [
    "Elsewhere",
    "File",
    "Generation",
    "Measurement",
    "Record",
    "Summary",
    "Timing",
    "Workload",
    "decode_elsewhere",
    "described",
    "lines",
    "measure_by_text",
    "profile",
    "record",
    "summarize",
]
