"""The sinks of decoded texts: a terminal, a pipe, JSON lines, subtitles, quantiles, beams.

A new sink is a class here, or in a file of its own, and its name in `OUTPUTS` or `SCREENS`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import jax
from tqdm import tqdm

from specdec import tasks
from specdec.cli import run as runs
from specdec.common import hosts, records, terminal
from specdec.common.records import Lines, as_json
from specdec.common.subtitles import FORMATS, subtitles
from specdec.common.values import UsageError
from specdec.texts.beam_texts import BeamText
from specdec.texts.beams import Beams
from specdec.texts.decoding_texts import Text
from specdec.texts.measured_run import Run
from specdec.texts.text_engine import Watch
from specdec.texts.texts import Data, TextList
from specdec.types import DecodeOutput

T = TypeVar("T")  # `Text`, or `BeamText` of a run that searches


class Texts(NamedTuple):
    """The texts that a run will write, described before any decoding."""

    data: Data
    beams: Beams  # beam search, if the run uses it
    vocabulary: Callable[[], tasks.LoadedVocabulary]  # loads their vocabulary, which takes time

    def check(self, args: argparse.Namespace) -> None:
        """Raises UsageError if flags choose a sink that does not suit these texts."""
        for sink in (*OUTPUTS, *SCREENS):
            sink.check(args, self)


class Sink(contextlib.AbstractContextManager, Generic[T]):
    """Writes decoded texts: `with sink: sink.write(text)`. Of several hosts, only the first writes.

    A subclass has `of` and `write`. It has `add_flags` if it has flags, `check` if they may be
    wrong, `__enter__` if something is written before the first text, and `close` if something is
    after the last one.
    """

    watch: Watch | None = None  # receives each text while it is decoded

    @staticmethod
    def add_flags(parser: argparse.ArgumentParser) -> None:
        """Adds the flags that choose the sink."""

    @classmethod
    def check(cls, args: argparse.Namespace, texts: Texts) -> None:
        """Raises UsageError if flags choose the sink for unsuitable texts; also in a dry run."""

    @classmethod
    def of(cls, args: argparse.Namespace, run: Run) -> Sink | None:
        """Returns the sink if the flags of a command choose it, else None."""
        raise NotImplementedError

    def write(self, text: T) -> None:
        """Writes a text immediately."""
        raise NotImplementedError

    def close(self) -> None:
        """Completes the output; called after an error too."""

    def __exit__(self, *error: object) -> None:
        self.close()


class JsonLines(Sink[Text | BeamText]):
    """Writes a line of JSON per text to `--output_file`, and the settings in force next to it."""

    def __init__(self, path: str, in_force: str):
        self._path, self._in_force = Path(path), in_force

    @classmethod
    def of(cls, args: argparse.Namespace, run: Run) -> JsonLines | None:
        if args.output_file is None:
            return None
        in_force = runs.in_force(run, "beams" if run.beams else "decode")
        return cls(args.output_file, in_force) if hosts.is_first() else None

    def __enter__(self) -> JsonLines:
        self._lines = Lines.of(self._path, self._in_force)
        self._lines.replace(())
        return self

    def write(self, text: Text | BeamText) -> None:
        self._lines.append(text.record())


class Subtitles(Sink[Text]):
    """Writes the transcript of one sound, with its times, as a subtitle file."""

    def __init__(self, path: Path):
        self._path = path

    @classmethod
    def check(cls, args: argparse.Namespace, texts: Texts) -> None:
        if args.subtitles is None:
            return
        path, sounds = Path(args.subtitles), texts.data.texts
        if path.suffix[1:].lower() not in FORMATS:
            raise UsageError(f"--subtitles is {path}; give FILE.srt or FILE.vtt")
        if args.output_file and path == Path(args.output_file):
            raise UsageError(f"--subtitles and --output_file are both {path}; give two files")
        if path.exists() or not os.access(path.parent, os.W_OK):
            what = "exists; delete it, or give" if path.exists() else "cannot be written; give"
            raise UsageError(f"--subtitles: {path} {what} another file")
        is_one = isinstance(sounds, TextList) and len(sounds) == 1 == texts.data.num_samples
        if not is_one or not tasks.is_sound(texts.vocabulary()):
            raise UsageError(
                f"--subtitles={path} is for one transcript of one sound; give one --text, or leave "
                "it out"
            )

    @classmethod
    def of(cls, args: argparse.Namespace, run: Run) -> Subtitles | None:
        return None if args.subtitles is None else cls(Path(args.subtitles))

    def __enter__(self) -> Subtitles:
        records.hold(self._path, "--subtitles")
        return self

    def write(self, text: Text) -> None:
        records.write(self._path, subtitles(text.segments or (), self._path.suffix[1:].lower()))


class Quantiles(Sink[Text]):
    """Prints a line of JSON, level -> values, for each series once all its samples are decoded."""

    def __init__(self, levels: Sequence[float], samples: int):
        self._levels, self._samples = levels, samples
        self._known: dict[int, list[list[float]]] = {}

    @classmethod
    def check(cls, args: argparse.Namespace, texts: Texts) -> None:
        if args.quantiles is None:
            return
        levels = cls._levels_of(args)
        if not levels or not all(0 < level < 1 for level in levels):
            raise UsageError(
                f"--quantiles is {args.quantiles}; give levels between 0 and 1, as 0.1,0.5,0.9"
            )
        if texts.beams or not isinstance(texts.vocabulary(), tasks.Series):
            raise UsageError(
                "--quantiles is for samples of series, and the run has none; leave it out"
            )

    @staticmethod
    def _levels_of(args: argparse.Namespace) -> list[float]:
        """Returns the levels in --quantiles; [] if one of them is not a number."""
        try:
            return [float(level) for level in args.quantiles.split(",")]
        except ValueError:
            return []

    @classmethod
    def of(cls, args: argparse.Namespace, run: Run) -> Quantiles | None:
        if args.quantiles is None:
            return None
        return cls(cls._levels_of(args), run.data.num_samples)

    def write(self, text: Text) -> None:
        samples = self._known.setdefault(text.index, [])
        samples.append(tasks.values_of(text.prediction))
        if len(samples) == self._samples:
            values = tasks.quantiles(self._known.pop(text.index), self._levels).tolist()
            line = {str(level): row for level, row in zip(self._levels, values, strict=True)}
            print(as_json(line), flush=True)


class Painted(Sink[Text]):
    """Prints each text with marks and colours that show which model wrote a word, then plainly."""

    def __init__(self, painter: terminal.Painter, grows: bool):
        self._painter = painter
        self.watch = self if grows else None

    @classmethod
    def of(cls, args: argparse.Namespace, run: Run) -> Painted | None:
        wanted = args.color == "always" or sys.stdout.isatty()
        if not (wanted and run.plan.drafts and hosts.is_first()) or run.beams:
            return None
        if run.transcriber is not None and run.transcriber.several:
            return None
        colour = terminal.wants_colour(sys.stdout) if args.color == "auto" else wanted
        engine, one_by_one = run.engine, run.data.texts is not None and run.data.batch_size == 1
        painter = terminal.Painter(engine.text_of, len(engine.prefix), colour)
        return cls(painter, one_by_one and not args.output_file and jax.process_count() == 1)

    def __enter__(self) -> Painted:
        print(self._painter.legend(), flush=True)
        return self

    def begin(self, text: str) -> None:
        """Shows the input of the next output; the engine calls it."""
        self._painter.begin(text)

    def grown(self, output: DecodeOutput) -> None:
        """Shows the output as far as it is decoded; the engine calls it."""
        self._painter.show(*output.row(0)[:4])

    def write(self, text: Text) -> None:
        if text.segments is not None:  # not all tokens of its calls are part of the text
            return print(terminal.one_line(text.prediction), flush=True)
        if self.watch is None:
            self._painter.begin(text.input)
        self._painter.show(text.tokens, text.proposed, text.drafted, text.accepted)
        self._painter.end()


class Plain(Sink[Text | BeamText]):
    """A line of plain text for each output; on a terminal, beams have their scores in front."""

    def __init__(self, scores: bool):
        self._scores = scores

    @classmethod
    def of(cls, args: argparse.Namespace, run: Run) -> Plain | None:
        is_wanted = sys.stdout.isatty() or not (args.output_file or args.subtitles)
        return cls(sys.stdout.isatty()) if is_wanted else None

    def write(self, text: Text | BeamText) -> None:
        if not isinstance(text, BeamText):
            return print(terminal.one_line(text.prediction), flush=True)
        for score, prediction in zip(text.scores, text.predictions, strict=True):
            before = f"{score:9.4f}  " if self._scores else ""
            print(before + terminal.one_line(prediction), flush=True)


class Bar(Sink[Text]):
    """Shows a bar on stderr that counts the texts of a task."""

    def __init__(self, total: int | None):
        self._total = total

    @classmethod
    def of(cls, args: argparse.Namespace, run: Run) -> Bar | None:
        data = run.data
        if data.texts is not None or run.beams or not hosts.is_first() or not sys.stderr.isatty():
            return None
        counts = (data.limit, data.count())
        return cls(min((n * data.num_samples for n in counts if n is not None), default=None))

    def __enter__(self) -> Bar:
        self._bar = tqdm(total=self._total, unit="text", leave=False)
        return self

    def write(self, text: Text) -> None:
        self._bar.update()

    def close(self) -> None:
        self._bar.close()


class Several(Sink[Text | BeamText]):
    """Writes to several sinks, in order."""

    def __init__(self, sinks: Iterable[Sink]):
        self._sinks, self._open = list(sinks), contextlib.ExitStack()
        self.watch = next((sink.watch for sink in self._sinks if sink.watch is not None), None)

    def __enter__(self) -> Several:
        for sink in self._sinks:
            self._open.enter_context(sink)
        return self

    def write(self, text: Text | BeamText) -> None:
        with tqdm.external_write_mode(file=sys.stdout):
            for sink in self._sinks:
                sink.write(text)

    def close(self) -> None:
        self._open.close()


OUTPUTS: tuple[type[Sink], ...] = (JsonLines, Subtitles)  # each that the flags ask for
SCREENS: tuple[type[Sink], ...] = (Quantiles, Painted, Plain)  # one: the first that is wanted


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of all sinks."""
    for sink in (*OUTPUTS, *SCREENS):
        sink.add_flags(parser)


def opened(args: argparse.Namespace, run: Run) -> Sink:
    """Returns one sink that writes to all sinks that the flags choose."""
    Texts(run.data, run.beams, lambda: run.engine.vocabulary).check(args)
    outputs = [sink.of(args, run) for sink in OUTPUTS]
    screens = (sink.of(args, run) for sink in SCREENS)
    screen = next(filter(None, screens), None)
    return Several(filter(None, [*outputs, screen, Bar.of(args, run)]))
