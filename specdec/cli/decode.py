"""`specdec decode`: decodes the texts of a task's split, or given texts."""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import jax
import numpy as np
from tqdm import tqdm

from specdec import tasks
from specdec.cli import beams, machine, output, quantiles, revising, settings, sounds
from specdec.cli import run as runs
from specdec.cli.given import lines_of, not_nothing, utf8
from specdec.cli.run import DecodeRun
from specdec.common import hosts, progress, terminal
from specdec.common.values import UsageError
from specdec.decoding.program import Stepwise
from specdec.instrument.all_hosts import gathered
from specdec.instrument.decoding_texts import Text, TextOf, decoded, ways_of
from specdec.instrument.runs import Run

Given: TypeAlias = Iterator[tuple[str, None]]


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "decode",
        help="decode a split of a task",
        description="Decodes a split of a task with a target and a drafter.",
        epilog="A terminal gets each text twice, first with marks and colours that tell who wrote "
        "each word, then alone. Others get one plain text per line, or nothing with --output_file.",
    )
    runs.add_flags(
        parser,
        text="one text in place of a task's; may repeat; - stands for standard input, one text per "
        "line, which is also where --target takes texts from if there are no others",
    )
    parser.add_argument(
        "--decoder_prefix",
        metavar="TEXT",
        help="what every output is made to begin with; whole words, because a word that goes on "
        "may have been cut into tokens in another way",
    )
    parser.add_argument(
        "--chat",
        action="store_const",
        const=True,
        help="each text is a user's message; the chat template of the target's checkpoint makes "
        "prompts of them",
    )
    parser.add_argument(
        "--num_samples", type=int, metavar="N", help="outputs for each text, if it samples"
    )
    quantiles.add_flag(parser)
    sounds.add_flag(parser)
    parser.add_argument(
        "--output_file",
        metavar="FILE",
        help="write JSON lines, one object per text, and the settings in force, as a gin file "
        "that repeats the run, to FILE.gin",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="add to each line of --output_file what target and drafter thought of every drafted "
        "token, for `specdec report --html`; it decodes a second time",
    )
    parser.add_argument(
        "--compare",
        action="store_const",
        const=True,
        help="run the target alone as well, and count identical outputs",
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="print the settings in force and the first batch, and stop; no parameters are read",
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="'auto' has colours on terminals, unless NO_COLOR is set or TERM is dumb; 'always' "
        "shows who wrote each word also where there is no terminal (default: auto)",
    )
    machine.add_distributed_flag(
        parser,
        "share the texts with the other hosts that run this command; the first prints and writes "
        "all of them. With NUM_PARTITIONS one mesh spans the devices of all hosts",
    )
    runs.add_refill_flag(parser)
    beams.add_flags(parser)
    revising.add_flags(parser)
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> None:
    output.check_new(args)
    revising.choose_drafter(args)
    flags = {
        "DecodeRun.compare": args.compare,
        "Data.num_samples": args.num_samples,
        "Data.refill": args.refill,
        "Data.decoder_prefix": args.decoder_prefix,
        "Data.chat": args.chat,
        **beams.flags_of(args),
        **sounds.settings_of(args),
    }
    stdin = _standard_input(args)
    if args.dry_run:
        run = runs.resolved(runs.described(args, flags))
        return _show(run, stdin or _standard_input_without_texts(run, args))
    machine.join_other_hosts(args)
    run = runs.opened(args, flags, beams=True, previous=bool(args.previous or args.live))
    engine = run.engine
    _check(args, run)
    of_series = quantiles.SeriesQuantiles.of(args, run)
    text_of = functools.partial(tasks.detokenize, engine.vocabulary)
    stdin = stdin or _standard_input_without_texts(run, args)
    if (transcriber := sounds.transcriber_of(args, run, stdin)) is not None:
        return sounds.write(args, run, transcriber, stdin)
    batches = run.batches() if stdin is None else run.text_batches(stdin)
    if run.beams and run.search:
        in_force = runs.in_force(run, "beams") if args.output_file else ""
        given = run.beams.num_return, run.search, batches, text_of, run.compare, in_force
        return beams.write(args, *given, feeds=run.placement.share().first)
    previous = revising.Previous(engine, args)
    shows = run.plan.drafts and hosts.is_first() and not of_series
    painter = _painter(args.color, text_of, len(engine.prefix)) if shows else None
    given = stdin is not None or run.data.texts is not None
    one_by_one = given and run.data.batch_size == 1
    alone = jax.process_count() == 1
    streaming = one_by_one and painter is not None and not args.output_file and alone
    first = [] if stdin is not None else list(itertools.islice(batches, 1))
    batches = itertools.chain(first, batches)
    length = first[0].ids.shape[1] if first else None
    if streaming and painter:
        batches = _with_inputs(batches, painter)
    if run.plan.reads_previous:
        batches = previous.drafting(batches)
    how = {"stepwise": streaming, "explained": args.explain}
    ways = ways_of(run, engine, length=length, **how)
    in_force = runs.in_force(run, "decode") if args.output_file else ""
    # All that can be wrong has been looked at; from here on it takes long.
    engine.load()
    if painter:
        print(painter.legend(), flush=True)
    if isinstance(ways.ours.decoder, Stepwise) and painter:
        ways.ours.decoder.watch = lambda output: painter.show(*output.row(0)[:4])
    summary = terminal.Summary(exact=run.plan.exact)
    outputs = gathered(
        lambda batches, summary: decoded(run, batches, ways, summary),
        batches,
        summary,
        feeds=run.placement.share().first,
        order=lambda text: (text.sample, text.index),
    )
    try:
        outputs = previous.watching(outputs)
        shown = _with_progress(outputs, run, given or not hosts.is_first())
        _write(shown, painter, args, in_force, streamed=streaming, of_series=of_series)
    finally:
        if summary.texts:
            print(run.plan, *summary.lines(progress.spent()), sep="\n", file=sys.stderr)


def _painter(colour: str, text_of: TextOf, given: int) -> terminal.Painter | None:
    """Returns the painter for a terminal; None for other outputs, which get plain texts."""
    if colour != "always" and not sys.stdout.isatty():
        return None
    wanted = terminal.wants_colour(sys.stdout) if colour == "auto" else colour == "always"
    return terminal.Painter(text_of, given, wanted)


def _check(args: argparse.Namespace, run: Run) -> None:
    """Raises UsageError for flags that exclude each other or the run."""
    plan = run.plan
    if run.data.refill and jax.process_count() > 1:
        raise UsageError(
            "REFILL and --distributed: hosts write batch by batch; leave out one of them, or use "
            "`specdec eval`"
        )
    if args.explain:
        if args.output_file is None:
            raise UsageError("--explain has no --output_file to write to; give one")
        runs.require_drafter(run)
        if run.beams and run.search:
            raise UsageError(
                "--explain tells of drafted tokens, not of beams; leave out one of them"
            )
    if run.compare and plan.exact and not plan.same_output:
        raise UsageError(
            f"compare is set, but {plan.verifier} keeps the output's distribution, not the output; "
            "compare with Coupled() or Greedy(), or compare metrics with `specdec eval`"
        )


def _standard_input(args: argparse.Namespace) -> Given | None:
    """Returns the texts of the command line if one of them stands for standard input."""
    texts = args.text or ()
    if "-" not in texts:
        return None
    args.text = None
    return _lines(texts, args)


def _standard_input_without_texts(run: DecodeRun | Run, args: argparse.Namespace) -> Given | None:
    """Returns the texts of standard input if there is a target, but neither a task nor texts."""
    nothing = run.data.task is None and run.data.texts is None
    return _lines(["-"], args) if nothing and args.target is not None else None


def _lines(texts: Sequence[str], args: argparse.Namespace) -> Given:
    """Returns texts as they come; - stands for standard input."""
    if args.distributed is not None:
        raise UsageError(
            "--distributed: standard input is that of one host; give --input_file=FILE, which all "
            "hosts can read"
        )
    if sys.stdin.isatty():
        print("one text per line; Ctrl-D ends", file=sys.stderr)
    given = (lines_of(None, sys.stdin) if text == "-" else [utf8(text)] for text in texts)
    lines = not_nothing(itertools.chain.from_iterable(given), "standard input", "to decode")
    first = next(lines)
    runs.note_missing_prefix(args, first)
    lines = itertools.chain([first], lines)
    return (((args.task_prefix or "") + line, None) for line in lines)


def _with_progress(texts: Iterator[Text], run: Run, given: bool) -> Iterable[Text]:
    """Returns the texts with a bar on stderr if that is a terminal; without one for given texts."""
    if given or not sys.stderr.isatty():
        return texts
    counts = (run.data.limit, run.data.count())
    total = min((n * run.data.num_samples for n in counts if n is not None), default=None)
    return tqdm(texts, total=total, unit="text", leave=False)


def _with_inputs(
    batches: Iterable[tasks.Batch], painter: terminal.Painter
) -> Iterator[tasks.Batch]:
    """Yields batches of one text. Each is shown when it is consumed, before it is decoded."""
    for batch in batches:
        painter.begin(batch.input_texts[0])
        yield batch


def _write(
    texts: Iterable[Text],
    painter: terminal.Painter | None,
    args: argparse.Namespace,
    in_force: str,
    streamed: bool,
    of_series: quantiles.SeriesQuantiles | None,
) -> None:
    """Writes each text immediately: to the file, and to the terminal or pipe."""
    shown = painter or of_series or not args.output_file or sys.stdout.isatty()
    file = settings.json_lines(args.output_file if hosts.is_first() else None, in_force)
    for text in texts:
        if file:
            file.append(text.record())
        if shown:
            with tqdm.external_write_mode(file=sys.stdout):
                if painter:
                    if not streamed:
                        painter.begin(text.input)
                    painter.show(text.tokens, text.proposed, text.drafted, text.accepted)
                    painter.end()
                elif (line := of_series.line(text) if of_series else text.prediction) is not None:
                    print(terminal.one_line(line), flush=True)


def _show(run: DecodeRun, texts: Iterable[tuple[str, str | None]] | None = None) -> None:
    """Prints the run as a gin file with its first batch, of `texts` or of the task, in comments.

    No parameters are read, and for a task no checkpoint is asked for its vocabulary.
    """
    target = run.plan.target
    if texts is None:
        vocabulary = runs.vocabulary_of(run) if run.data.texts is not None else None
        batches = run.data.batches(run.placement.share(), None, vocabulary, target)
    else:
        batches = run.data.text_batches(texts, runs.vocabulary_of(run), target)
    batch = next(batches, None)
    if batch is None:
        raise UsageError("there is no example, so nothing to decode; check the split and the data")
    print(settings.in_force())
    print(*_text_lines(run), *_batch_lines(batch), sep="\n")


def _text_lines(run: DecodeRun) -> Iterator[str]:
    """Yields the text side of the target's checkpoint: each fact with its file."""
    if (text := runs.text_of(run.checkpoint_path)) is not None:
        yield f"# The target's text side, from {text.directory}:"
        for what, note in text.lines():
            yield f"#   {what}: {note}"
        if run.generation_settings == "ignore":
            yield "#   its generation settings are ignored, ids aside"
        yield f"#   decoding: {run.plan.sampling}"


def _batch_lines(batch: tasks.Batch) -> Iterator[str]:
    """Yields shapes, then each example as text and as ids without padding."""
    yield f"# The first batch: {_shape('inputs', batch.ids)}"
    if batch.targets is not None:
        yield f"#                  {_shape('targets', batch.targets)}"
    for row, text in enumerate(batch.input_texts):
        yield f"# example {batch.index[row]}"
        yield from _feature("inputs", text, batch.ids[row], batch.pad_id)
        if batch.target_texts is not None and batch.targets is not None:
            targets = batch.target_texts[row], batch.targets[row]
            yield from _feature("targets", *targets, batch.pad_id)


def _shape(name: str, array: np.ndarray) -> str:
    return f"{name} {array.dtype}{list(array.shape)}"


def _feature(name: str, text: str, ids: np.ndarray, pad_id: int) -> Iterator[str]:
    yield f"#   {name}: {text!r}"
    yield f"#   {' ' * len(name)}  {ids[ids != pad_id].tolist()}"
