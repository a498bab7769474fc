"""Trains demo/vocabulary.model on generated texts of the synthetic tasks.

  python scripts/data/make_demo_vocabulary.py

The same file, byte for byte, with the same version of sentencepiece.
"""

import itertools
import os
from pathlib import Path
from typing import Any

import corpora
import sentencepiece

EXAMPLES = {"specdec_ende": 40_000, "specdec_highlights": 5_000}
PIECES = 2_048
OPTIONS: dict[str, Any] = dict(
    model_type="unigram",
    vocab_size=PIECES,
    character_coverage=1.0,
    # T5's rules are ten times the size of the pieces. The path is written into the model.
    normalization_rule_tsv="demo/normalization.tsv",
    byte_fallback=True,
    pad_id=0,
    eos_id=1,
    unk_id=2,
    bos_id=-1,
    num_threads=1,
    minloglevel=2,
)


def texts():
    """Yields inputs and targets.

    Each once more with a full stop behind every word, because SentencePiece proposes only pieces
    that occur in two different words: 'weil' and 'weil.'.
    """
    for name, number in EXAMPLES.items():
        for pair in itertools.islice(corpora.examples(name, "train"), number):
            for text in pair:
                yield text
                yield text.replace(":", "").replace(" ", ". ")


def main() -> None:
    os.chdir(Path(__file__).resolve().parents[2])
    path = Path("demo/vocabulary.model")
    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=texts(), model_writer=file, **OPTIONS
        )
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
