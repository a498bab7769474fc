"""Tables that drafters look things up in, and schedules decide by: made, saved, and read back.

  ngram       counts of tokens behind one or two others, for `drafters.NGram`
  store       texts, sorted so that what stands before a place is found, for `drafters.Retrieval`
  classifier  the weights by which `schedules.Disco` expects a token to be accepted
  laws        the target's distribution at each token of some texts, for `training.laws`

A table is a folder: `table.json` with its kind, its arrays and their checksums, and a `.npy` file
for each array, which is mapped into memory.
"""

from specdec.checkpoints.tables.files import (
    TableError,
    check_output,
    check_vocabulary,
    fingerprint,
    load,
    mapped,
    save,
    shapes,
)
from specdec.checkpoints.tables.ngrams import count
from specdec.checkpoints.tables.stores import store

__all__ = [
    "KINDS",
    "TableError",
    "check_output",
    "check_vocabulary",
    "count",
    "fingerprint",
    "load",
    "mapped",
    "save",
    "shapes",
    "store",
]

KINDS = ("ngram", "store", "classifier")  # that a command makes; a run makes its laws
