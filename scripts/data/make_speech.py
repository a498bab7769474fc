"""Makes spoken commands to train and try a Whisper on: WAV files, transcripts and a vocabulary.

  python scripts/data/make_speech.py DIR

The sentences come from a grammar of about 90 words, and espeak-ng speaks them (a package of that
name in Debian) with several voices, speeds and pitches. DIR gets train.tsv, validation.tsv and
test.tsv with the columns files and targets, the files that they name, and vocabulary.model. No
sentence is in two splits.
"""

from __future__ import annotations

import argparse
import io
import itertools
import re
import subprocess
import wave
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece
from scipy import signal

from specdec.tasks.sound import RATE

SECONDS = 3  # of the longest file
SIZES = {"train": 6_000, "validation": 200, "test": 300}
HELD_OUT = 10  # one sentence in ten is kept for validation, and one for the test
PIECES = 100
VOICES = ("en-us", "en-us+f2", "en-us+m3", "en-gb", "en-gb+f4")
SPEEDS, PITCHES = (170, 210), (35, 65)  # words in a minute; espeak-ng's own scale
PATTERNS = (
    "turn {on} the {colour} {lamp} in the {room}",
    "set the {colour} {lamp} to {ten} percent",
    "call {name} at {hour} {minute}",
    "put {few} {colour} {things} on the {place}",
    "go {way} {few} steps and {then}",
)
WORDS = {
    "on": "on off",
    "colour": "red green blue yellow white black orange purple",
    "lamp": "lamp light candle screen",
    "room": "kitchen garden bedroom office hall",
    "ten": "ten twenty thirty forty fifty sixty seventy eighty ninety",
    "name": "anna peter maria george lucy oscar simon helen david sarah",
    "hour": "one two three four five six seven eight nine ten eleven twelve",
    "minute": "fifteen twenty thirty forty fifty",
    "few": "two three four five six seven eight nine",
    "things": "boxes bottles apples books plates cards",
    "place": "table shelf floor chair",
    "way": "left right up down forward back",
    "then": "stop wait turn jump",
}


class Example(NamedTuple):
    sentence: str
    voice: str
    speed: int
    pitch: int


def examples(split: str, count: int) -> Iterator[Example]:
    """Yields examples of a split, drawn with replacement."""
    random = np.random.default_rng([*SIZES].index(split))
    kept = {"test": [0], "validation": [1]}.get(split, range(2, HELD_OUT))
    while count:
        pattern = str(random.choice(PATTERNS))
        words = {name: str(random.choice(WORDS[name].split())) for name in WORDS}
        sentence = pattern.format(**words)
        if zlib.crc32(sentence.encode()) % HELD_OUT not in kept:
            continue
        speed, pitch = (int(random.integers(*limits)) for limits in (SPEEDS, PITCHES))
        yield Example(sentence, str(random.choice(VOICES)), speed, pitch)
        count -= 1


def spoken(example: Example) -> np.ndarray:
    """Returns the samples [n] int16 of an example, at most `SECONDS`."""
    said, voice, *numbers = example
    speed, pitch = map(str, numbers)
    command = ["espeak-ng", "-v", voice, "-s", speed, "-p", pitch, "--stdout", said]
    done = subprocess.run(command, check=True, capture_output=True)
    with wave.open(io.BytesIO(done.stdout)) as file:
        rate, data = file.getframerate(), file.readframes(SECONDS * file.getframerate())
    samples = signal.resample_poly(np.frombuffer(data, "<i2") / 2**15, RATE, rate)
    return np.round(samples[: SECONDS * RATE].clip(-1, 1) * (2**15 - 1)).astype("<i2")


def write(path: Path, samples: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())


def write_vocabulary(path: Path, sentences: list[str]) -> None:
    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=file,
            vocab_size=PIECES,
            normalization_rule_name="identity",
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            num_threads=1,
            minloglevel=2,
        )


def every_sentence() -> list[str]:
    """Returns all sentences of the grammar."""
    found = []
    for pattern in PATTERNS:
        names = re.findall(r"{(\w+)}", pattern)
        for words in itertools.product(*(WORDS[name].split() for name in names)):
            found.append(pattern.format(**dict(zip(names, words, strict=True))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=SIZES["train"], help="files to train on")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    write_vocabulary(args.folder / "vocabulary.model", every_sentence())
    for split, size in SIZES.items():
        (args.folder / split).mkdir(exist_ok=True)
        with open(args.folder / f"{split}.tsv", "w", encoding="utf-8") as file:
            made = examples(split, args.train if split == "train" else size)
            for number, example in enumerate(made):
                name = f"{split}/{number:05}.wav"
                write(args.folder / name, spoken(example))
                file.write(f"{name}\t{example.sentence}\n")


if __name__ == "__main__":
    main()
