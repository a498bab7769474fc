"""Two tasks that need no download: English to German, and articles to highlights.

Every example is a function of (task, split, seed, index), so that train is endless, resuming is an
index, and no split shares a seed with another.
"""

from specdec.tasks.synthetic.corpus import (
    PREFIXES,
    SIZES,
    demo_vocabulary,
    examples,
    synthetic_mixture,
    synthetic_task,
)

__all__ = [
    "PREFIXES",
    "SIZES",
    "demo_vocabulary",
    "examples",
    "synthetic_mixture",
    "synthetic_task",
]
