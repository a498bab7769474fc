"""The predicted speed of a run at every draft length, from texts that the target wrote once.

`replay` decodes them again with recordings (`recorded`) instead of models, which counts target
calls. `costs` has the seconds of the parts. `forecast` makes figures from both.
"""

from specdec.instrument.costs import Costs
from specdec.instrument.forecast.costs import measured, read
from specdec.instrument.forecast.promise import (
    Forecast,
    best,
    forecast,
    lines,
    oracle_seconds,
    seconds,
)
from specdec.instrument.forecast.recorded import Recorded, kind_of
from specdec.instrument.forecast.schedule_replay import (
    SAMPLES,
    Replayed,
    bound,
    check,
    grouped,
    longest,
    needed,
    replay,
)

__all__ = [
    "SAMPLES",
    "Costs",
    "Forecast",
    "Recorded",
    "Replayed",
    "best",
    "bound",
    "check",
    "forecast",
    "grouped",
    "kind_of",
    "lines",
    "longest",
    "measured",
    "needed",
    "oracle_seconds",
    "read",
    "replay",
    "seconds",
]
