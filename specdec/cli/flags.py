"""The flags of commands. `commands.toml` has their names, types, defaults and help texts.

In a text of that file, {NAME} is replaced by a value of `_values`. Flags that several commands have
are in its tables `shared`. A command's table `instead` has texts that replace the shared text of a
flag, or the {} in it.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import get_args

from specdec import checkpoints
from specdec.certificate import certifying
from specdec.checkpoints import tables
from specdec.checkpoints.generation_settings import Word
from specdec.cli import machine, shorthands
from specdec.cli.help import Overview
from specdec.cli.table import TABLE
from specdec.common.json_values import JsonObject
from specdec.measure import benchmarking
from specdec.measure.evaluation import METRICS
from specdec.predict import tuning
from specdec.predict.draft_lengths import GAMMAS
from specdec.predict.hardware import CHIPS
from specdec.predict.search import TOKENS
from specdec.report.replicate import study
from specdec.texts.beams import LIBRARIES
from specdec.training.distillation import made_tables

_NOT_HERE = "not here: "  # begins the remedy for a flag that makes no sense in a command


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


_TYPES: Mapping[str, Callable] = {"int": int, "float": float, "number": _number}


@functools.cache
def _values() -> JsonObject:
    """Returns the values that replace {NAME} in texts and choices of `commands.toml`, by NAME."""
    return {f"{flag.upper()}S": shorthands.names(flag) for flag in shorthands.FRAGMENTS} | {
        "CACHE": machine.cache_folder(),
        "CERTIFIED": certifying.LIMIT,
        "CHIPS": CHIPS,
        "FORMATS": checkpoints.FORMATS,
        "GAMMAS": GAMMAS,
        "KINDS": TABLE["kinds"],
        "LIBRARIES": LIBRARIES,
        "LONGEST": tuning.LONGEST,
        "METRICS": sorted(METRICS),
        "REPLAYED": TOKENS,
        "SETTINGS": get_args(Word),
        "STUDIES": study.names(),
        "TABLES": tables.KINDS,
        "TABLE_TOKENS": made_tables.TOKENS,
        "TEXTS_ELSEWHERE": benchmarking.TEXTS_ELSEWHERE,
        "TIMED": benchmarking.LIMIT,
    }


def add_command(overview: Overview, name: str, command: Callable) -> argparse.ArgumentParser:
    """Adds a command with its flags to the parser of all commands."""
    row = TABLE["commands"][name]
    texts = {key: filled(row[key], _values()) for key in ("description", "epilog") if key in row}
    form = argparse.RawDescriptionHelpFormatter if row.get("raw") else argparse.HelpFormatter
    parser = overview.add_command(row["group"], name, row["about"], formatter_class=form, **texts)
    parser.set_defaults(command=command)
    add_flags(parser, name)
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    return parser


def add_flags(parser: argparse.ArgumentParser, name: str = "") -> None:
    """Adds a command's flags to a parser; without a name, the flags that all runs have."""
    row = TABLE["commands"][name] if name else {"flags": {"run": "shared"}}
    instead: dict[str, str] = row.get("instead", {})
    remedies = {
        flag: text.removeprefix(_NOT_HERE)
        for flag, text in instead.items()
        if text.startswith(_NOT_HERE)
    }
    parser.set_defaults(refused_flags=remedies, **row.get("defaults", {}))
    _add(parser, row["flags"], instead)


def _add(parser: argparse._ActionsContainer, flags: JsonObject, instead: Mapping[str, str]) -> None:
    for name, options in flags.items():
        if options == "shared":
            shared = TABLE["shared"][name]
            title, about = shared.get("title"), shared.get("about")
            group = parser.add_argument_group(title, about) if title else parser
            _add(group, shared["flags"], instead)
            continue
        text = options.get("help", "")
        if name in instead:
            text = text.replace("{}", instead[name]) if "{}" in text else instead[name]
        options = {**options, "help": filled(text, _values()) or None}
        flag = name if options.pop("positional", False) else f"--{name}"
        if "type" in options:
            options["type"] = _TYPES[options["type"]]
        if isinstance(choices := options.get("choices"), str):
            options["choices"] = list(_values()[choices])
        if isinstance(default := options.get("default"), str):
            options["default"] = filled(default, _values())
        elif isinstance(default, list):  # a command may append to it
            options["default"] = [*default]
        parser.add_argument(flag, **options)


def filled(text: str, values: JsonObject) -> str:
    """Replaces each {NAME} in a text by its value; the elements of a list are joined by commas."""

    def shown(match: re.Match[str]) -> str:
        value = values[match[1]]
        return str(value) if isinstance(value, str | int) else ", ".join(map(str, value))

    return re.sub(r"\{([A-Z_]+)\}", shown, text)
