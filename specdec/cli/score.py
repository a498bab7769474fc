"""`specdec score`: prints the target's log-probability of given outputs."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypedDict

import jax
import numpy as np
from msgspec import Meta

from specdec import tasks
from specdec.cli import output, settings
from specdec.cli import run as runs
from specdec.cli.given import STDIN, file_lines, lines_of, not_nothing
from specdec.common import terminal
from specdec.common.schemas import Count
from specdec.common.values import UsageError
from specdec.decoding import check_scores, naming_texts, score
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.texts.texts import TextStream
from specdec.types import SamplingRule


def command(args: argparse.Namespace) -> None:
    output.check_new(args)
    pairs = None if args.pairs is None else TextStream(_pairs(args.pairs))
    run = runs.opened(args, texts=pairs)
    source = run.source()
    in_force = runs.in_force(run, "score") if args.output_file else ""
    params, scores_of = run.engine.params["target"], _scores_of(run.plan)
    tokens, total = 0, 0.0
    file = settings.json_lines(args.output_file, in_force)
    for batch in source:
        if batch.targets is None:
            raise UsageError(
                "the texts have no outputs to score; give --input_file=FILE with lines of input "
                "TAB output"
            )
        scores = jax.device_get(scores_of(params, batch.inputs, batch.targets))
        with naming_texts(batch.index):
            check_scores(scores["log_probs"], run.plan.target)
        for record in _records(batch, scores):
            tokens += len(record["tokens"])
            total += record["log_prob"]
            if file:
                file.append(record)
            else:
                shown = terminal.one_line(record["target"])
                print(f"{record['log_prob']:.4f}\t{len(record['tokens'])}\t{shown}", flush=True)
    if tokens:
        print(
            f"{tokens} tokens, {total / tokens:.4f} nats each, "
            f"perplexity {math.exp(-total / tokens):.3f}",
            file=sys.stderr,
        )


def _pairs(path: str) -> Iterator[tuple[str, str]]:
    """Returns (input, output) pairs, from standard input as they come or from a checked file."""
    if path == "-":
        lines = not_nothing(lines_of("--pairs", sys.stdin), STDIN, "to score")
        return map(_pair, itertools.repeat(path), itertools.count(1), lines)
    lines = file_lines("--pairs", path, "input TAB output")
    lines = not_nothing(lines, f"--pairs {path}", "to score")
    return iter([_pair(path, number, line) for number, line in enumerate(lines, start=1)])


def _pair(path: str, number: int, line: str) -> tuple[str, str]:
    text, tab, output = line.partition("\t")
    if not tab:
        raise UsageError(f"--pairs {path}, line {number} has no TAB; give input TAB output")
    return text, output


def _scores_of(plan: Plan) -> Callable[..., dict[str, jax.Array]]:
    """Returns a jitted function from (params, inputs, targets) to log-probabilities by field name.

    It has `processed_log_probs` only if the run's sampling differs from plain greedy decoding.
    """
    rules: dict[str, SamplingRule | None] = {"log_probs": None}
    if plan.sampling != Greedy():
        rules["processed_log_probs"] = plan.sampling

    def scores(*args) -> dict[str, jax.Array]:
        options = {"target": plan.target, "stop_ids": plan.stop_ids}
        return {name: score(*args, **options, sampling=rule) for name, rule in rules.items()}

    return jax.jit(scores)


class ScoreLine(TypedDict):
    """One input and output, with the output's log-probabilities.

    Attributes:
      index: The position, from 0, of the example in its split, or of the text among the given
        texts.
      input: The text that was given, with its task prefix.
      target: The output that was scored.
      log_prob: The output's log-probability in nats at temperature 1, EOS included: the sum of
        log_probs.
      tokens: The output's token ids, with its EOS.
      log_probs: The log-probability in nats of each token, at temperature 1.
      processed_log_prob: The sum of processed_log_probs, null if one of them is null. It is absent
        if the run's sampling is greedy without processors.
      processed_log_probs: The log-probability in nats of each token after the run's processors,
        temperature, top-k and top-p. If the run is greedy: the log-softmax of the processed logits.
        null for an excluded token. It is absent if the run's sampling is greedy without processors.
    """

    index: Count
    input: str
    target: str
    log_prob: Annotated[float, Meta(le=0)]
    tokens: list[Count]
    log_probs: Annotated[list[float | None], list[float]]
    processed_log_prob: float | None
    processed_log_probs: list[float | None]


def _records(batch: tasks.Batch, scores: Mapping[str, np.ndarray]) -> Iterator[ScoreLine]:
    assert batch.targets is not None and batch.target_texts is not None
    for row, (text, target) in enumerate(zip(batch.input_texts, batch.target_texts, strict=True)):
        last = np.max(np.flatnonzero(batch.targets[row] != batch.pad_id), initial=-1)
        length = int(last) + 1
        record: Any = {
            "index": int(batch.index[row]),
            "input": text,
            "target": target,
            "tokens": batch.targets[row, :length].tolist(),
        }
        for name, values in scores.items():
            of_row = values[row, :length].tolist()
            record[name] = [_number(value) for value in of_row]
            record[name.removesuffix("s")] = _number(sum(of_row))
        yield record


def _number(value: float) -> float | None:
    """Rounds a number for JSON; returns None for infinity (an excluded token), which JSON lacks."""
    return round(value, 6) if math.isfinite(value) else None
