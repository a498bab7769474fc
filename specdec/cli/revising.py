"""Previous outputs, from which `specdec decode` drafts the outputs for revised texts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence

from specdec import tasks
from specdec.cli.given import file_lines
from specdec.common.values import UsageError
from specdec.engine import Engine
from specdec.instrument.decoding_texts import Text

FLAG = "--previous"
GAMMA = 16  # a copy costs nothing, so that only the width of the target's call limits it
FIRST = "HYBRID_FIRST=@drafters.PreviousOutput()"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of revised texts."""
    parser.add_argument(
        "--previous",
        metavar="FILE",
        help="the previous outputs for these texts, which draft the new ones: a text a line, or "
        "the --output_file of an earlier decode (.jsonl)",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="each text is the next version of one text, which may have grown: the output for the "
        "version before it drafts",
    )


def choose_drafter(args: argparse.Namespace) -> None:
    """Makes previous outputs draft if they are given and no drafter is: before `--draft`, if any.

    Raises:
      UsageError: the flags exclude each other.
    """
    if args.previous is None and not args.live:
        return
    if args.previous is not None and args.live:
        raise UsageError("--previous and --live both say what drafts; leave one of them out")
    if args.drafter is None and args.draft is None:
        args.drafter = "previous_output"
    elif args.drafter is None:
        args.drafter = "hybrid"
        args.gin_bindings = [*args.gin_bindings, FIRST]
    given = any(binding.replace(" ", "").startswith("GAMMA=") for binding in args.gin_bindings)
    if args.gamma is None and args.schedule is None and not given:
        args.gamma = GAMMA


class Previous:
    """The previous outputs of a run's texts, as token ids.

    Args:
      engine: the run's.
      args: the flags `--previous` and `--live`.

    Raises:
      UsageError: a file cannot be read, or the texts cannot be decoded so.
    """

    def __init__(self, engine: Engine, args: argparse.Namespace):
        given = args.previous is not None or args.live
        if given and not engine.plan.reads_previous:
            raise UsageError(
                f"{engine.plan.drafter} drafts from no previous output; leave --drafter out, or "
                f"give --drafter=hybrid --gin.{FIRST}"
            )
        if args.live and engine.rows > 1:
            raise UsageError(
                f"--live decodes one text at a time and --batch_size is {engine.rows}; leave it out"
            )
        self._vocabulary, self._width = engine.vocabulary, engine.plan.max_length
        self._live, self._last = args.live, ()
        self._file = args.previous
        self._ids = None if args.previous is None else self._read(args.previous)

    def _read(self, path: str) -> list[Sequence[int]]:
        lines = file_lines(FLAG, path, "previous outputs, one a line")
        if not path.endswith(".jsonl"):
            ends = self._vocabulary.eos_id
            return [[*self._vocabulary.encode(line), ends] if line else () for line in lines]
        found: dict[int, Sequence[int]] = {}
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                found.setdefault(record["index"], [int(token) for token in record["tokens"]])
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"{FLAG} {path}, line {number} has no index and tokens; give the --output_file "
                    "of `specdec decode`"
                ) from error
        return [found.get(index, ()) for index in range(max(found, default=-1) + 1)]

    def drafting(self, batches: Iterable[tasks.Batch]) -> Iterator[tasks.Batch]:
        """Yields the batches with the previous output of each text.

        Raises:
          UsageError: there are more texts than previous outputs.
        """
        for batch in batches:
            yield batch.revised([self._of(int(i)) for i in batch.index if i >= 0], self._width)

    def _of(self, index: int) -> Sequence[int]:
        if self._ids is None:
            return self._last
        if index >= len(self._ids):
            raise UsageError(
                f"{FLAG} {self._file} has {len(self._ids)} outputs, and there is a text "
                f"{index + 1}; give one for each, an empty line for none"
            )
        return self._ids[index]

    def watching(self, texts: Iterable[Text]) -> Iterator[Text]:
        """Yields the texts, and keeps each as the previous output of the next."""
        for text in texts:
            self._last = text.tokens if self._live else ()
            yield text
