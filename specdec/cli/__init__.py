"""The command line: `specdec COMMAND ...` or `python -m specdec COMMAND ...`.

This is the only package that uses gin. A user's mistake ends in one line on stderr and exit code 2,
before any long work. Other errors keep their traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Sequence

from specdec import checkpoints, tasks
from specdec.checkpoints import tables
from specdec.cli import (
    acceptance,
    bench,
    check,
    compile,
    completion,
    convert,
    decode,
    distill,
    eval,
    flags,
    forecast,
    grow,
    listing,
    machine,
    replicate,
    report,
    score,
    settings,
    sinks,
    train,
    trim,
    tune,
    verify,
)
from specdec.cli.data import longest_target, saved_vocabulary, task_vocabulary, token_ids
from specdec.cli.given import given_texts
from specdec.cli.help import Overview
from specdec.cli.run import DecodeRun
from specdec.cli.settings import path_in
from specdec.common import progress
from specdec.common.records import RecordsError, holding
from specdec.common.terminal import visible
from specdec.common.values import UsageError
from specdec.engine import Placement
from specdec.texts.beams import Beams
from specdec.texts.texts import Data
from specdec.training.distillation.distillation import Distillation

__all__ = [
    "Beams",
    "Data",
    "DecodeRun",
    "Distillation",
    "Placement",
    "UsageError",
    "given_texts",
    "longest_target",
    "main",
    "path_in",
    "saved_vocabulary",
    "task_vocabulary",
    "token_ids",
]

COMMANDS = {  # modules with command(args) -> its exit code, or None
    "decode": decode,
    "score": score,
    "eval": eval,
    "verify": verify,
    "bench": bench,
    "tune": tune,
    "acceptance": acceptance,
    "forecast": forecast,
    "report": report,
    "compile": compile,
    "replicate": replicate,
    "train": train,
    "distill": distill,
    "convert": convert,
    "check": check,
    "grow": grow,
    "trim": trim,
    "list": listing,
    "completion": completion,
}
_OTHERS = tasks.TaskError, tables.TableError, checkpoints.CheckpointError  # in one line


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: the command-line arguments; None for `sys.argv[1:]`.

    Returns:
      The exit code: 0 done; 1 a failed certificate or a damaged checkpoint; 2 a user's mistake or
        an error of the machine; 130 interrupted; 141 stdout was closed by its reader;
        143 terminated.
    """
    code = 1  # of an error that ends in a traceback
    try:
        code = _run(argv)
    finally:
        if code:
            machine.leave(code)
    return code


def _run(argv: Sequence[str] | None) -> int:
    """Runs one command and returns its exit code, without ending the process."""
    argv = sys.argv[1:] if argv is None else argv
    machine.write_all_characters()
    parser = overview()
    args = parser.parse_args(settings.joined(argv))
    if "command" not in args:
        parser.print_help()
        return 0
    args.command_line = ["specdec", *argv]  # for the card of a checkpoint
    args.overview = parser  # `specdec completion` lists its flags
    if not args.traceback:
        machine.quiet()
    try:
        machine.refuse_closed_output()
        with (
            machine.terminable(),
            machine.notes_of_one_line(),
            progress.shown_on(sys.stderr),
            holding(),
            contextlib.ExitStack() as args.contexts,  # open until the command ends, such as a mesh
        ):
            return args.command(args) or _flushed()
    except (UsageError, RecordsError, *_OTHERS) as error:
        if args.traceback:
            raise
        print(f"specdec: {visible(error)}", file=sys.stderr)
        return 2
    except machine.Terminated:
        print(f"specdec: terminated; {_how_to_go_on(args, argv)}", file=sys.stderr)
        return 143
    except KeyboardInterrupt:
        print(f"specdec: interrupted; {_how_to_go_on(args, argv)}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of stdout has enough, as in `specdec decode ... | head`
        machine.leave_stdout()
        return 141
    except (OSError, RuntimeError, ValueError) as error:
        line = machine.of(error)
        if args.traceback or line is None:
            raise
        print(f"specdec: {visible(line)}", file=sys.stderr)
        return 2


def overview() -> Overview:
    """Returns the parser of all commands."""
    parser = Overview()
    for name, module in COMMANDS.items():
        command = flags.add_command(parser, name, module.command)
        if module is decode:
            sinks.add_flags(command)
    return parser


def _how_to_go_on(args: argparse.Namespace, argv: Sequence[str]) -> str:
    """Returns how to resume an interrupted command; `args.resumes_from` names the needed flag."""
    flag = vars(args).get("resumes_from")
    if flag is None:
        return "if repeated, the command starts over"
    if getattr(args, flag) is None:
        return f"if repeated, the command starts over; with --{flag} it resumes"
    return f"to go on: {shlex.join(['specdec', *argv])}"


def _flushed() -> int:
    """Flushes stdout and returns 0, so that a failed write is reported before Python exits."""
    sys.stdout.flush()
    return 0
