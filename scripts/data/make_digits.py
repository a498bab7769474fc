"""Makes scikit-learn's digits a language of pixels: texts, a tokenizer, and an untrained target.

  python scripts/data/make_digits.py DIR

A prompt is the class of a digit, such as "<3>", and its continuation are the 64 pixels of the
picture, row by row. A pixel is one of the letters a to q, for the grey levels 0 to 16; its id is
the grey level. DIR gets train.tsv, validation.tsv and test.tsv, and start/, a GPT-2 with random
parameters, its tokenizer, and settings by which nothing but grey levels is drawn. Pictures of
train.tsv are also moved by one pixel where only empty pixels leave the picture. completed.tsv has
the pictures of test.tsv again, of which the prompts have the upper two rows.
"""

from __future__ import annotations

import argparse
import json
import string
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from specdec import checkpoints
from specdec.models.gpt2 import Gpt2, Gpt2Config

LEVELS, SIDE, CLASSES = 17, 8, 10
GREYS = string.ascii_lowercase[:LEVELS]
GIVEN = 2 * SIDE  # pixels in the prompts of completed.tsv
HELD_OUT = 180  # pictures of validation.tsv, and of test.tsv
END = "</s>"
OTHERS = [END, *(f"<{digit}>" for digit in range(CLASSES))]  # the ids after the grey levels
MOVES = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Returns the digits [N, 8, 8] of grey levels, and their classes [N], in random order."""
    from sklearn.datasets import load_digits  # the extra `digits`

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.images))
    return found.images[order].astype(int), found.target[order]


def moved(picture: np.ndarray) -> Iterator[np.ndarray]:
    """Yields a picture, and it moved by one pixel where that loses no ink."""
    for down, right in MOVES:
        padded = np.pad(picture, 1)
        found = padded[1 - down : 1 - down + SIDE, 1 - right : 1 - right + SIDE]
        if found.sum() == picture.sum():
            yield found


def text_of(picture: np.ndarray) -> str:
    return "".join(GREYS[level] for level in picture.ravel())


def write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer of single characters and classes, in transformers' files."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    made = Tokenizer(models.BPE(vocab={grey: id for id, grey in enumerate(GREYS)}, merges=[]))
    made.decoder = decoders.Fuse()
    made.add_tokens([AddedToken(name, normalized=False, special=True) for name in OTHERS])
    made.save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, "add_bos_token": False, "add_eos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    others = list(range(LEVELS, LEVELS + len(OTHERS)))
    settings = {"eos_token_id": LEVELS, "suppress_tokens": others}
    (folder / "generation_config.json").write_text(json.dumps(settings))


def write_start(folder: Path, heads: int = 4, layers: int = 6) -> None:
    """Writes the target before its training; its width is 32 for each head."""
    config = Gpt2Config(
        vocab_size=LEVELS + len(OTHERS),
        emb_dim=32 * heads,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=32,
        mlp_dim=128 * heads,
        num_decoder_layers=layers,
        context=80,
        stop_ids=(LEVELS,),
    )
    params = Gpt2(config).init(jax.random.key(0))
    checkpoints.save(folder, params, config=config, format="huggingface")
    write_tokenizer(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    images, classes = pictures()
    folder.mkdir(parents=True, exist_ok=True)
    for number, split in enumerate(("test", "validation", "train")):
        held_out = slice(number * HELD_OUT, (number + 1) * HELD_OUT)
        part = slice(2 * HELD_OUT, None) if split == "train" else held_out
        with open(folder / f"{split}.tsv", "w") as file:
            for picture, digit in zip(images[part], classes[part], strict=True):
                for one in moved(picture) if split == "train" else [picture]:
                    file.write(f"<{digit}>\t{text_of(one)}\n")
    with open(folder / "completed.tsv", "w") as file:
        for picture, digit in zip(images[:HELD_OUT], classes[:HELD_OUT], strict=True):
            text = text_of(picture)
            file.write(f"<{digit}>{text[:GIVEN]}\t{text[GIVEN:]}\n")
    write_start(folder / "start")


if __name__ == "__main__":
    main()
