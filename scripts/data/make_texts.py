"""Writes the texts of the demo's tasks to demo/texts, a file for each task and split.

  python scripts/data/make_texts.py

The same files, byte for byte. A line is an input, a TAB and a target.
"""

import bz2
import itertools
from pathlib import Path

import corpora

from specdec.tasks.synthetic import SIZES

FOLDER = Path(__file__).resolve().parents[2] / "demo" / "texts"


def text_file(name: str, split: str) -> bytes:
    """Returns the compressed file of a task's split."""
    pairs = itertools.islice(corpora.examples(name, split), SIZES[split])
    return bz2.compress("".join(f"{text}\t{target}\n" for text, target in pairs).encode())


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in corpora.GENERATORS:
        for split in SIZES:
            (FOLDER / f"{name}.{split}.tsv.bz2").write_bytes(text_file(name, split))
    files = list(FOLDER.iterdir())
    print(f"{len(files)} files, {sum(file.stat().st_size for file in files):,} bytes")


if __name__ == "__main__":
    main()
