"""`specdec decode --quantiles`: the quantiles of predicted series in place of their samples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from specdec import tasks
from specdec.common.records import as_json
from specdec.common.values import UsageError
from specdec.instrument.decoding_texts import Text
from specdec.instrument.runs import Run


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Adds the flag."""
    parser.add_argument(
        "--quantiles",
        metavar="LEVELS",
        help="of series: print one line of JSON per series, the quantiles of its samples at these "
        "levels, such as 0.1,0.5,0.9, in place of the samples",
    )


class SeriesQuantiles:
    """The quantiles of series, each known when all of its samples are."""

    def __init__(self, levels: Sequence[float], samples: int):
        self._levels, self._samples = levels, samples
        self._found: dict[int, list[list[float]]] = {}

    @classmethod
    def of(cls, args: argparse.Namespace, run: Run) -> SeriesQuantiles | None:
        """Returns those that the flag asks for; None without the flag.

        Raises:
          UsageError: the flag has no levels, or the run no samples of series.
        """
        if args.quantiles is None:
            return None
        try:
            levels = [float(level) for level in args.quantiles.split(",")]
        except ValueError:
            levels = []
        if not levels or not all(0 < level < 1 for level in levels):
            raise UsageError(
                f"--quantiles is {args.quantiles}; give levels between 0 and 1, as 0.1,0.5,0.9"
            )
        if not isinstance(run.engine.vocabulary, tasks.Series) or run.beams:
            raise UsageError(
                "--quantiles is for samples of series, and the run has none; leave it out"
            )
        return cls(levels, run.data.num_samples)

    def line(self, text: Text) -> str | None:
        """Returns a line of JSON, level -> values; None while samples of the series are missing."""
        found = self._found.setdefault(text.index, [])
        found.append(tasks.values_of(text.prediction))
        if len(found) < self._samples:
            return None
        values = tasks.quantiles(self._found.pop(text.index), self._levels).tolist()
        return as_json({str(level): row for level, row in zip(self._levels, values, strict=True)})
