"""Replications of papers: rows with what each needs, and published, predicted, measured figures.

`study` reads the rows, `steps` makes the commands of each, `running` runs them one by one,
`results` reads what they wrote, and `tables`, `figure` and `page` show it. `Replication` goes all
the way.
"""

from specdec.instrument.replicate.replication import (
    Described,
    Planned,
    Replication,
    chosen,
    overview,
)
from specdec.instrument.replicate.running import Journal
from specdec.instrument.replicate.steps import Choices
from specdec.instrument.replicate.study import Study, names, read

__all__ = [
    "Choices",
    "Described",
    "Journal",
    "Planned",
    "Replication",
    "Study",
    "chosen",
    "names",
    "overview",
    "read",
]
