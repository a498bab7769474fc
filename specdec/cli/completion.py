"""`specdec completion`: prints a script with which a shell completes commands and flags."""

from __future__ import annotations

import argparse
from typing import Any

from specdec.cli import gin_files, shorthands
from specdec.cli.help import Overview
from specdec.common.values import UsageError
from specdec.report.replicate import study

_GIN_FILES = {  # shell functions that offer specdec's and the user's gin files
    "bash": "_specdec_gin_files() {{ compgen -W '{names}' -- \"$1\"; compgen -f -X '!*.gin' -- "
    '"$1"; }}',
    "zsh": "_specdec_gin_files() {{ compadd -- {names}; _files -g '*.gin' }}",
}


def command(args: argparse.Namespace) -> None:
    print(script(args.overview, args.shell))


def script(parser: Overview, shell: str) -> str:
    """Returns the completion script of all commands for a shell; changes `parser` for shtab."""
    try:
        import shtab
    except ImportError as error:
        raise UsageError("completion needs shtab; pip install shtab") from error
    commands = parser.commands
    for choice in commands._choices_actions:  # zsh lists them with a line each
        commands.choices[choice.dest].description = choice.help
    for command in commands.choices.values():
        actions: list[Any] = command._actions
        for action in actions:
            if action.dest == "gin_file":
                action.complete = dict.fromkeys(_GIN_FILES, "_specdec_gin_files")
            elif action.dest == "study":
                action.choices = study.names()
            elif action.dest in shorthands.FRAGMENTS:
                action.choices = shorthands.names(action.dest)
            elif kind := {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}.get(action.metavar):
                action.complete = kind
    names = " ".join(gin_files.own_names())
    return shtab.complete(parser, shell, preamble=_GIN_FILES.get(shell, "").format(names=names))
