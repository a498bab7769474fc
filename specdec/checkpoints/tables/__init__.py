"""Tables of arrays for lookup drafters, schedules and training: made, saved and loaded.

  ngram       counts of the tokens that follow one or two others, for `drafters.NGram`
  store       texts, and an index to find a sequence of tokens in them, for `drafters.Retrieval`
  classifier  the weights with which `schedules.Disco` predicts whether a token is accepted
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

KINDS = ("ngram", "store", "classifier")  # those that a command makes; training makes its `laws`
