"""Replications of papers: rows with what each needs, and published, predicted, measured figures.

`study` reads the rows, `steps` makes the commands of each, `running` runs them one by one,
`results` reads what they wrote, and `study_tables`, `figure` and `page` show it. `Replication` goes
all the way.
"""

from specdec.instrument.replicate.replication import (
    Described,
    Replication,
    chosen,
    overview,
)
from specdec.instrument.replicate.results import Earlier, earlier
from specdec.instrument.replicate.running import Ended, Journal
from specdec.instrument.replicate.steps import Choices
from specdec.instrument.replicate.study import Study, names, read

__all__ = [
    "Choices",
    "Described",
    "Earlier",
    "Ended",
    "Journal",
    "Replication",
    "Study",
    "chosen",
    "earlier",
    "names",
    "overview",
    "read",
]
