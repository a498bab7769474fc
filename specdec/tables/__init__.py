"""Tables that drafters look things up in: made from texts, saved, and read back.

    ngram   counts of tokens behind one or two others, for `drafters.NGram`
    store   texts, sorted so that what stands before a place is found, for `drafters.Retrieval`

A table is a folder: `table.json` with its kind, its arrays and their checksums, and a `.npy` file
for each array, which is mapped into memory.
"""

from specdec.tables.files import (
    TableError,
    check_output,
    check_vocabulary,
    fingerprint,
    load,
    save,
    shapes,
)
from specdec.tables.ngrams import count
from specdec.tables.stores import store

__all__ = [
    "KINDS",
    "TableError",
    "check_output",
    "check_vocabulary",
    "count",
    "fingerprint",
    "load",
    "save",
    "shapes",
    "store",
]

KINDS = ("ngram", "store")
