"""`specdec distill`: makes a drafter for a target from texts, tuned and certified."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from specdec.cli.distilling import add_flags, distilled
from specdec.cli.given import lines_of
from specdec.common.values import UsageError


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "distill",
        help="make a drafter for a target from texts, tuned and certified",
        description="Lets the target answer inputs, trains a drafter to say what the target says "
        "there, finds out how long it should draft, and certifies the pair. --target=DIR "
        "--inputs=FILE is all that is needed. Or take gin files as `specdec decode` does, with "
        "distill.gin for their skeleton. A command that was stopped goes on when it is given "
        "again.",
        epilog="Give OUTPUT_DIR/pair.gin to the other commands. OUTPUT_DIR/texts has what the "
        "target wrote, draft/ the training and its export, tuned/ the search, certificate.json "
        "the checks.",
        allow_abbrev=False,
    )
    add_flags(parser)
    parser.set_defaults(command=_command, resumes_from="output_dir")
    return parser


def _command(args: argparse.Namespace) -> int:
    if args.target is None and args.input_file is None and not args.gin_file:
        raise UsageError(
            "nothing says what to run; give --target=DIR and --inputs=FILE, or --gin_file=FILE"
        )
    lines = None if args.input_file is None else _lines(args.input_file)
    ask = _ask if sys.stdin.isatty() and sys.stderr.isatty() else None
    found = distilled(args, lines, ask)
    if not found.certificate.passed:
        return 1
    print(found.summary())
    return 0


def _lines(path: str) -> Iterator[str]:
    """Yields the inputs of a file, without references; raises UsageError if it cannot be read."""
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            for line in lines_of("--inputs", file, path):
                yield line.partition("\t")[0]
    except OSError as error:
        raise UsageError(
            f"--inputs {path} cannot be read: {error.strerror}; give a file of one input per line"
        ) from error


def _ask(question: str) -> str:
    """Asks a question on the terminal and returns the answer."""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().removesuffix("\n")
