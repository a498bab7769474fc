"""Makes pictures of shapes with captions from a small grammar, and a vocabulary for them.

  pip install '.[pictures]' sentencepiece
  python scripts/data/make_pictures.py DIR

A picture has one to three shapes in nine places. Each of train.tsv, validation.tsv and test.tsv has
lines of picture, prompt and caption, with TABs between them. The same files, byte for byte, with
the same versions of Pillow and sentencepiece.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import sentencepiece
from PIL import Image, ImageDraw

SIZES = {"train": 12_000, "validation": 200, "test": 400}
SIDE, CELL = 48, 16
SHAPES = ("circle", "square", "triangle", "cross")
COLOURS = {
    "red": (220, 50, 47),
    "green": (60, 160, 60),
    "blue": (50, 90, 210),
    "yellow": (230, 200, 40),
}
PLACES = tuple(
    name
    for row in ("top", "middle", "bottom")
    for name in (f"{row} left", row if row != "middle" else "centre", f"{row} right")
)
PROMPT = "user : <image> describe the picture . assistant :"
NUMBERS = ("no", "one", "two", "three")


def scene(random: np.random.Generator) -> list[tuple[int, str, str]]:
    """Returns the shapes of a picture, in the order of their places: (place, colour, shape)."""
    count = random.integers(1, 4)
    places = sorted(random.choice(len(PLACES), size=count, replace=False))
    return [
        (int(place), str(random.choice(list(COLOURS))), str(random.choice(SHAPES)))
        for place in places
    ]


def caption(shapes: list[tuple[int, str, str]]) -> str:
    """Returns the caption of a picture."""
    told = [f"a {colour} {shape} at the {PLACES[place]}" for place, colour, shape in shapes]
    listed = " and ".join([" , ".join(told[:-1]), told[-1]] if len(told) > 1 else told)
    some = f"{NUMBERS[len(shapes)]} {'shape' if len(shapes) == 1 else 'shapes'}"
    return f"the picture shows {some} : there is {listed} ."


def picture(shapes: list[tuple[int, str, str]], random: np.random.Generator) -> Image.Image:
    """Draws a picture: shapes of varying size, place and shade on a grey ground."""
    ground = int(random.integers(200, 250))
    image = Image.new("RGB", (SIDE, SIDE), (ground, ground, ground))
    draw = ImageDraw.Draw(image)
    for place, colour, shape in shapes:
        radius = int(random.integers(5, 8))
        x, y = ((place % 3) * CELL, (place // 3) * CELL)
        x, y = (int(at + CELL // 2 + random.integers(-1, 2)) for at in (x, y))
        shade = tuple(int(np.clip(c + random.integers(-20, 21), 0, 255)) for c in COLOURS[colour])
        box = (x - radius, y - radius, x + radius, y + radius)
        if shape == "circle":
            draw.ellipse(box, fill=shade)
        elif shape == "square":
            draw.rectangle(box, fill=shade)
        elif shape == "triangle":
            draw.polygon(
                [(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=shade
            )
        else:
            draw.rectangle((x - radius, y - 2, x + radius, y + 2), fill=shade)
            draw.rectangle((x - 2, y - radius, x + 2, y + radius), fill=shade)
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    texts = [PROMPT]
    for number, (split, size) in enumerate(SIZES.items()):
        random = np.random.default_rng(number)
        (folder / split).mkdir(parents=True, exist_ok=True)
        lines = []
        for i in range(size):
            shapes = scene(random)
            picture(shapes, random).save(folder / split / f"{i:05}.png")
            lines.append(f"{split}/{i:05}.png\t{PROMPT}\t{caption(shapes)}\n")
        (folder / f"{split}.tsv").write_text("".join(lines))
        texts += [line.rpartition("\t")[2].strip() for line in lines[:2000]]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type="word",
        vocab_size=48,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        user_defined_symbols=["<image>"],
        minloglevel=2,
    )
    (folder / "vocabulary.model").write_bytes(model.getvalue())


if __name__ == "__main__":
    main()
