"""`specdec decode`: the texts of a task's split through a target and a drafter."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from tqdm import tqdm

from specdec import tasks, terminal
from specdec.cli import run as runs
from specdec.cli import settings
from specdec.cli.programs import Programs, Stepwise, programs_of
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.decoding import row_keys
from specdec.types import DecodeOutput, Params

TextOf: TypeAlias = Callable[[Sequence[int]], str]


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "decode",
        help="decode a split of a task",
        description="Decodes a split of a task with a target and a drafter.",
        epilog="A terminal gets one line per text, coloured by who wrote each word. Anything else "
        "gets one plain text per line, or nothing if there is an --output_file.",
        allow_abbrev=False,
    )
    runs.add_flags(parser)
    runs.add_checkpoint_flags(parser)
    parser.add_argument(
        "--text",
        action="append",
        metavar="TEXT",
        help="decode this text, with its task prefix if it needs one, and not the task's; may "
        "repeat; - stands for standard input, one text per line, which is also where --target "
        "takes texts from if there is no --text",
    )
    parser.add_argument(
        "--decoder_prefix",
        metavar="TEXT",
        help="what every output is made to begin with; whole words, because a word that goes on "
        "may have been cut into tokens in another way",
    )
    parser.add_argument(
        "--num_samples", type=int, metavar="N", help="outputs for each text, if it samples"
    )
    parser.add_argument(
        "--output_file",
        metavar="FILE",
        help="write JSON lines, one object per text, and the settings in force, as a gin file "
        "that repeats the run, to FILE.gin",
    )
    parser.add_argument(
        "--compare",
        action="store_const",
        const=True,
        help="run the target alone as well, and count identical outputs",
    )
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    parser.set_defaults(command=_command)
    return parser


class Text(NamedTuple):
    """One example and what became of it."""

    index: int
    sample: int
    input: str
    target: str | None
    prediction: str
    tokens: list[int]
    log_probs: list[float]
    proposed: list[list[int]]  # this and the next two: one entry per target call
    drafted: list[int]
    accepted: list[int]


def _command(args: argparse.Namespace) -> None:
    run = runs.build(
        args,
        compare=args.compare,
        num_samples=args.num_samples,
        decoder_prefix=args.decoder_prefix,
    )
    vocabulary = runs.vocabulary_of(run)
    text_of = functools.partial(tasks.detokenize, vocabulary)
    prefix = _prefix(run, vocabulary)
    texts = _given(args)
    batches = run.batches() if texts is None else run.text_batches(texts, vocabulary)
    coloured = terminal.wants_colour(sys.stdout) if args.color == "auto" else args.color == "always"
    streaming = texts is not None and coloured and run.batch_size == 1 and not args.output_file
    programs = programs_of(run, prefix, vocabulary.eos_id, streaming)
    runs.refuse_unwritable(args.output_file)
    # All that can be wrong has been looked at; from here on it takes long.
    params = run.load()
    painter = terminal.Painter(text_of, len(prefix)) if coloured else None
    if isinstance(programs.ours, Stepwise) and painter:
        programs.ours.watch = lambda output: painter.show(*_row(output, 0))
    summary = terminal.Summary()
    decoded = _decoded(run, params, batches, programs, text_of, len(prefix), summary)
    try:
        _write(_with_progress(decoded, run, texts is not None), painter, args)
    finally:
        if summary.texts:
            print(_rules(run), *summary.lines(), sep="\n", file=sys.stderr)


def _given(args: argparse.Namespace) -> Iterator[tuple[str, None]] | None:
    """The texts of the command line and of standard input, None if the task's are meant."""
    if args.text is None and args.target is None:
        return None
    texts = args.text or ["-"]
    if "-" in texts and sys.stdin.isatty():
        print("one text per line; Ctrl-D ends", file=sys.stderr)
    lines = (sys.stdin if text == "-" else [text] for text in texts)
    return ((line.rstrip("\n"), None) for line in itertools.chain.from_iterable(lines))


def _prefix(run: DecodeRun, vocabulary: Any) -> list[int]:
    ids = list(vocabulary.encode(run.decoder_prefix))
    if len(ids) >= run.lengths["targets"]:
        raise UsageError(
            f"the decoder prefix {run.decoder_prefix!r} has {len(ids)} tokens but targets hold "
            f"{run.lengths['targets']}; raise 'targets' in the feature lengths"
        )
    return ids


def _rules(run: DecodeRun) -> str:
    if run.drafter is None:
        return f"the target alone, {run.sampling}"
    return f"{type(run.drafter).__name__}, {run.schedule}, {run.verifier}, {run.sampling}"


def _decoded(
    run: DecodeRun,
    params: Params,
    batches: Iterator[tasks.Batch],
    programs: Programs,
    text_of: TextOf,
    given: int,
    summary: terminal.Summary,
) -> Iterator[Text]:
    """Decodes batch by batch, and adds up what happened."""
    ours, alone = programs
    samples = range(run.num_samples)
    for batch, sample in ((batch, sample) for batch in batches for sample in samples):
        keys = row_keys(run.seed, jnp.asarray(batch.index), sample)
        summary.compile_seconds += ours.compile(batch.inputs.shape[1])
        output, seconds = ours(params, keys, batch.inputs)
        summary.seconds += seconds
        rows = len(batch.input_texts)
        if alone:
            summary.compile_seconds += alone.compile(batch.inputs.shape[1])
            baseline, seconds = alone(params.target, keys, batch.inputs)
            summary.baseline_seconds += seconds
            summary.baseline_calls += int(baseline.trace.calls.sum())
            summary.identical += int((output.tokens == baseline.tokens).all(1)[:rows].sum())
        for row in range(rows):
            text = _text(batch, sample, output, row, text_of)
            summary.texts += 1
            summary.tokens += len(text.tokens) - given
            summary.drafted += text.drafted
            summary.accepted += text.accepted
            yield text


def _text(batch: tasks.Batch, sample: int, output: DecodeOutput, row: int, text_of: TextOf) -> Text:
    tokens, proposed, drafted, accepted = _row(output, row)
    return Text(
        index=int(batch.index[row]),
        sample=sample,
        input=batch.input_texts[row],
        target=batch.target_texts[row] if batch.target_texts else None,
        prediction=text_of(tokens),
        tokens=tokens,
        log_probs=[round(float(value), 6) for value in output.log_probs[row, : len(tokens)]],
        proposed=proposed,
        drafted=drafted,
        accepted=accepted,
    )


def _row(output: DecodeOutput, row: int) -> tuple[list, list, list, list]:
    """One row's tokens, and its calls: proposed tokens, how many were drafted, and accepted."""
    trace, length, calls = output.trace, output.length[row], output.trace.calls[row]
    return (
        output.tokens[row, :length].tolist(),
        trace.proposed[row, :calls].tolist(),
        trace.drafted[row, :calls].tolist(),
        trace.accepted[row, :calls].tolist(),
    )


def _with_progress(texts: Iterator[Text], run: DecodeRun, given: bool) -> Iterable[Text]:
    """A bar on stderr while it is a terminal; none for texts that are given."""
    if given or not sys.stderr.isatty():
        return texts
    counts = (run.limit, tasks.count(run.task, run.split))
    total = min((n * run.num_samples for n in counts if n is not None), default=None)
    return tqdm(texts, total=total, unit="text", leave=False)


def _write(
    texts: Iterable[Text], painter: terminal.Painter | None, args: argparse.Namespace
) -> None:
    """Writes each text as soon as it is there: to the file, and to the terminal or pipe."""
    shown = painter or not args.output_file or sys.stdout.isatty()
    if painter:
        print(painter.legend(), flush=True)
    with settings.json_lines(args.output_file) as file:
        for text in texts:
            if file:
                print(_json(text), file=file, flush=True)
            if shown:
                with tqdm.external_write_mode(file=sys.stdout):
                    if painter:
                        painter.show(text.tokens, text.proposed, text.drafted, text.accepted)
                        painter.end()
                    else:
                        print(terminal.one_line(text.prediction), flush=True)


def _json(text: Text) -> str:
    record = text._asdict() | {"calls": len(text.drafted)}
    del record["proposed"]
    if text.target is None:
        del record["target"]
    return json.dumps(record, ensure_ascii=False)
