"""How fast speculation is, against the target alone in the same process, and where the time goes.

`programs` has what is timed, `measure` times it, `summary` makes figures of the records, `table`
prints them.
"""

from specdec.benchmark.measure import (
    Elsewhere,
    Generation,
    Timing,
    decode_elsewhere,
    measure,
    measure_by_text,
    profile,
)
from specdec.benchmark.programs import Programs, Subject, compiled, costs, lower
from specdec.benchmark.summary import Summary, summarize
from specdec.benchmark.table import lines

__all__ = [
    "Elsewhere",
    "Generation",
    "Programs",
    "Subject",
    "Summary",
    "Timing",
    "compiled",
    "costs",
    "decode_elsewhere",
    "lines",
    "lower",
    "measure",
    "measure_by_text",
    "profile",
    "summarize",
]
