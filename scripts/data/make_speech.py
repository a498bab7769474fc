"""Makes talks of spoken commands to train and try a Whisper on, with their times and a vocabulary.

  python scripts/data/make_speech.py DIR

The sentences come from a grammar of about 80 words, and espeak-ng speaks them (a package of that
name in Debian) with several voices, speeds and pitches. A talk has several commands, with pauses
between them. No sentence is in two splits. DIR gets:

train.tsv, validation.tsv, test.tsv  windows of talks, with the columns files and targets. The
  targets of train.tsv and validation.tsv have the times of their commands, or say that they have
  none; see `text_of`. Those of test.tsv have words alone.
train/, validation/, test/  the talks.
start/  a Whisper with random parameters, its tokenizer, and its settings of timestamps.
talk.wav, talk.srt  a talk of three minutes with sentences of the test, and its subtitles.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import subprocess
import wave
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from scipy import signal

from specdec import checkpoints
from specdec.common.subtitles import subtitles
from specdec.models.whisper import Whisper, WhisperConfig
from specdec.tasks.sound import RATE

STEPS = 50  # timestamps in a second, which are also the positions of the encoder
SAMPLES = RATE // STEPS  # from one timestamp to the next
WINDOW = 5 * STEPS  # of the longest sound that the model reads; all times are in steps
LONGEST = 3 * STEPS  # of a command
PAUSES = 10, 40
COMMANDS = 2, 6  # of a talk
LATE = -3, 15  # how far after the end of a command a window may begin
SPOKEN = {"train": 1_500, "validation": 60, "test": 300}  # commands, each in several talks
TALKS = {"train": 1_500, "validation": 40, "test": 150}
LONG = 80  # commands of talk.wav
HELD_OUT = 10  # one sentence in ten is kept for validation, and one for the test
SILENT = 0.003  # the loudest sample that is none of a command
PIECES = 200
END, START, UNTIMED = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
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


class Command(NamedTuple):
    """A command of a talk, with its begin and end."""

    start: int
    end: int
    sentence: str


def examples(split: str, random: np.random.Generator) -> Iterator[Example]:
    """Yields examples of a split without end, drawn with replacement."""
    kept = {"test": [0], "validation": [1]}.get(split, range(2, HELD_OUT))
    while True:
        pattern = str(random.choice(PATTERNS))
        words = {name: str(random.choice(WORDS[name].split())) for name in WORDS}
        sentence = pattern.format(**words)
        if zlib.crc32(sentence.encode()) % HELD_OUT in kept:
            speed, pitch = (int(random.integers(*limits)) for limits in (SPEEDS, PITCHES))
            yield Example(sentence, str(random.choice(VOICES)), speed, pitch)


def spoken(example: Example) -> np.ndarray:
    """Returns the samples [n] int16 of an example without silence around it, in whole steps."""
    said, voice, *numbers = example
    speed, pitch = map(str, numbers)
    command = ["espeak-ng", "-v", voice, "-s", speed, "-p", pitch, "--stdout", said]
    done = subprocess.run(command, check=True, capture_output=True)
    with wave.open(io.BytesIO(done.stdout)) as file:
        rate, data = file.getframerate(), file.readframes(2 * LONGEST * file.getframerate())
    samples = signal.resample_poly(np.frombuffer(data, "<i2") / 2**15, RATE, rate)
    loud = np.flatnonzero(np.abs(samples) > SILENT)
    samples = samples[loud[0] : loud[-1] + 1][: LONGEST * SAMPLES]
    samples = np.pad(samples, (0, -len(samples) % SAMPLES))
    return np.round(samples.clip(-1, 1) * (2**15 - 1)).astype("<i2")


def talk(
    said: Sequence[tuple[str, np.ndarray]], random: np.random.Generator
) -> tuple[np.ndarray, list[Command]]:
    """Returns the samples [n] int16 of a talk, and its commands; pauses are around them all.

    Args:
      said: sentences and their samples.
      random: draws the pauses.
    """
    pauses = random.integers(PAUSES[0], PAUSES[1] + 1, len(said) + 1)
    pauses[-1] += LATE[1]  # so that no window begins after the talk
    parts, commands, at = [], [], 0
    for (sentence, sound), pause in zip(said, pauses, strict=False):
        start, at = at + int(pause), at + int(pause) + len(sound) // SAMPLES
        parts += [np.zeros(pause * SAMPLES, "<i2"), sound]
        commands.append(Command(start, at, sentence))
    return np.concatenate([*parts, np.zeros(pauses[-1] * SAMPLES, "<i2")]), commands


def begins(commands: Sequence[Command], random: np.random.Generator) -> list[int]:
    """Returns where windows of a talk begin: with the talk, and near the ends of commands."""
    late = random.integers(LATE[0], LATE[1] + 1, len(commands)).tolist()
    return [0, *(command.end + by for command, by in zip(commands, late, strict=True))]


def heard(commands: Iterable[Command], begin: int) -> tuple[list[Command], list[int]]:
    """Returns what a window has: its commands, and the begin of one that the window's end cuts.

    Times are those in the window. A command is left out if only its last steps are in the window.
    """
    own = [
        Command(max(0, start - begin), end - begin, sentence)
        for start, end, sentence in commands
        if start - begin < WINDOW and end - begin > -2 * LATE[0]
    ]
    return [x for x in own if x.end <= WINDOW], [x.start for x in own if x.end > WINDOW]


def text_of(commands: Iterable[Command], begin: int, timed: bool) -> str:
    """Returns the target of a window, as those of Whisper (Radford et al. 2022, section 2.3).

    With times, a command that is cut has its begin alone. Without them it must not be there.
    """
    whole, cut = heard(commands, begin)
    if not timed:
        assert not cut, "the sound ends within a command"
        return UNTIMED + "".join(f" {sentence}" for _, _, sentence in whole)
    parts = [f"{stamp(start)} {sentence}{stamp(end)}" for start, end, sentence in whole]
    return "".join([*parts, *map(stamp, cut)]) or stamp(0)


def stamp(step: int) -> str:
    return f"<|{step / STEPS:.2f}|>"


def lines(
    name: str, commands: Sequence[Command], tested: bool, random: np.random.Generator
) -> Iterator[tuple[str, str]]:
    """Yields the windows of a talk, each as its file and its target."""
    for begin in begins(commands, random):
        whole, cut = heard(commands, begin)
        timed = bool(cut or random.integers(2))
        if not tested:
            yield f"{name}#{begin / STEPS:.2f}", text_of(commands, begin, timed)
        elif whole and not cut:
            yield f"{name}#{begin / STEPS:.2f}", " ".join(one.sentence for one in whole)


def write(path: Path, samples: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())


def write_start(folder: Path, encoder_layers: int = 3, decoder_layers: int = 4) -> None:
    """Writes the target before its training, with its tokenizer and settings."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    words = sorted({*" ".join([*PATTERNS, *WORDS.values()]).split()})
    spaced = [f" {word}" for word in words if "{" not in word]
    made.train_from_iterator(spaced, trainers.BpeTrainer(vocab_size=PIECES, show_progress=False))
    pieces = made.get_vocab_size()
    made.add_special_tokens([END, START, UNTIMED])
    times = [AddedToken(stamp(step), normalized=False) for step in range(WINDOW + 1)]
    made.add_tokens(times)
    config = WhisperConfig(
        vocab_size=pieces + 3 + len(times),
        emb_dim=128,
        num_heads=4,
        mlp_dim=256,
        num_encoder_layers=encoder_layers,
        num_decoder_layers=decoder_layers,
        mel_bins=40,
        input_positions=WINDOW,
        context=64,
        decoder_start_id=pieces + 1,
        pad_id=pieces + 1,
        stop_ids=(pieces,),
    )
    checkpoints.save(
        folder, Whisper(config).init(jax.random.key(0)), config=config, format="huggingface"
    )
    made.save(str(folder / "tokenizer.json"))
    names = {"bos_token": END, "eos_token": END, "unk_token": END, "pad_token": START}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    settings = {
        "decoder_start_token_id": pieces + 1,
        "pad_token_id": pieces + 1,
        "eos_token_id": pieces,
        "is_multilingual": False,
        "no_timestamps_token_id": pieces + 2,
    }
    (folder / "generation_config.json").write_text(json.dumps(settings))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    write_start(args.folder / "start")
    for seed, split in enumerate(SPOKEN):
        (args.folder / split).mkdir(exist_ok=True)
        random = np.random.default_rng(seed)
        drawn = itertools.islice(examples(split, random), SPOKEN[split])
        said = [(example.sentence, spoken(example)) for example in drawn]
        with open(args.folder / f"{split}.tsv", "w", encoding="utf-8") as file:
            for number in range(TALKS[split]):
                count = random.integers(COMMANDS[0], COMMANDS[1] + 1)
                chosen = random.integers(len(said), size=count)
                samples, commands = talk([said[one] for one in chosen], random)
                name = f"{split}/{number:05}.wav"
                write(args.folder / name, samples)
                for line in lines(name, commands, split == "test", random):
                    file.write("\t".join(line) + "\n")
    samples, commands = talk(said[:LONG], random)
    write(args.folder / "talk.wav", samples)
    shown = [{"start": a / STEPS, "end": b / STEPS, "text": text} for a, b, text in commands]
    (args.folder / "talk.srt").write_text(subtitles(shown, "srt"))


if __name__ == "__main__":
    main()
