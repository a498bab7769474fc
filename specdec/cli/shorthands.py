"""Shorthands: flags for the settings that are changed most, instead of gin.

    --gamma=5            --gin.GAMMA=5
    --temperature=0.7    sampling/temperature.gin and --gin.TEMPERATURE=0.7; for 0 greedy.gin
    --min_length=20      --gin.MIN_LENGTH=20, and so the penalties of sampling/processors.gin
    --verifier=coupled   what verifiers/coupled.gin chooses

They override gin files, and of a fragment only what it chooses does: `--top_p=0.9` leaves the
TEMPERATURE of the files alone, and `--schedule=fixed` their GAMMA. What is given both ways is
refused.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from specdec.checkpoints.generation_settings import Choice
from specdec.cli import gin_files
from specdec.cli.help import did_you_mean
from specdec.common import resources
from specdec.common.values import UsageError

# Flag: the macros that a file of the folder, which is named like it, chooses.
FRAGMENTS = {
    "drafter": ("DRAFTER", "DRAFT_CHECKPOINT_PATHS"),
    "verifier": ("VERIFIER",),
    "schedule": ("SCHEDULE",),
}
SAMPLING = ("temperature", "top_k", "top_p")
PROCESSORS = (
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "no_repeat_ngram_size",
    "min_length",
)
MAX_LENGTH = "Plan.max_length"  # no macro: the task's lengths say it


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


_NATS = "nats off a token's logit"
_FLAGS = (
    ("gamma", int, "N", "draft tokens per target call"),
    ("temperature", _number, "T", "draw tokens at this temperature; 0: greedy"),
    ("top_k", int, "K", "draw from the K most likely tokens"),
    ("top_p", _number, "P", "draw from the most likely tokens of this mass"),
    ("max_length", int, "N", "the longest output, in tokens with its EOS"),
    ("repetition_penalty", _number, "P", "divide the logits of tokens that the text has"),
    ("frequency_penalty", _number, "X", f"{_NATS} for each time that the output has it"),
    ("presence_penalty", _number, "X", f"{_NATS} if the output has it"),
    ("no_repeat_ngram_size", int, "N", "no N tokens come twice"),
    ("min_length", int, "N", "the shortest output, in tokens before its EOS"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The shorthands, under a heading of their own."""
    group = parser.add_argument_group(
        "shorthands", "for what gin files and --gin.NAME say at length; they override gin files"
    )
    for name, kind, metavar, meaning in _FLAGS:
        group.add_argument(f"--{name}", type=kind, metavar=metavar, help=meaning)
    group.add_argument(
        "--generation_settings",
        choices=get_args(Choice),
        help="what to do with the settings in the target's generation_config.json: 'obey' them "
        "(default), or 'ignore' all but the ids that outputs start from and end in",
    )
    for flag in FRAGMENTS:
        known = ", ".join(names(flag))
        group.add_argument(f"--{flag}", metavar="NAME", help=f"a file of {flag}s/: {known}")


def names(flag: str, folders: Sequence[str] = ()) -> list[str]:
    """Lists the fragments that a flag may be given: those of some folders, and our own."""
    folder = f"{flag}s"
    found = gin_files.names([*folders, resources.folder("gin")], folder)
    return [name.removeprefix(f"{folder}/").removesuffix(".gin") for name in found]


def settings_of(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Returns the meaning of the shorthands: gin files to read before all others, and bindings.

    Raises:
      UsageError: an unknown fragment, or something that is given twice.
    """
    folders = args.gin_search_paths.split(",")
    files, bindings = [], []
    for flag, value, macros in _given(args):
        _refuse_twice(flag, value, macros, args.gin_bindings)
        if flag in FRAGMENTS:
            files.append(_fragment(flag, value, folders))
            bindings += _choices(files[-1], macros, folders)
        elif flag != "max_length" and not _is_greedy(flag, value):
            bindings.append(f"{flag.upper()}={value!r}")
    if sampling := [flag for flag in SAMPLING if getattr(args, flag) is not None]:
        files.append(_sampling(args, sampling))
        bindings += _choices(files[-1], ("SAMPLING",), folders)
    return files, bindings


def _given(args: argparse.Namespace) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yields flag, value, and the names in gin that would set the same."""
    meanings = {
        "gamma": ("GAMMA",),
        **{name: (name.upper(), "SAMPLING") for name in SAMPLING},
        "max_length": (MAX_LENGTH,),
        **{name: (name.upper(),) for name in PROCESSORS},
        "generation_settings": ("GENERATION_SETTINGS",),
        **FRAGMENTS,
    }
    for name, macros in meanings.items():
        if (value := getattr(args, name)) is not None:
            yield name, value, macros


def _refuse_twice(flag: str, value: Any, macros: tuple[str, ...], bindings: Sequence[str]) -> None:
    for binding in bindings:
        name = binding.partition("=")[0].strip()
        if name in macros or (flag == "max_length" and name.endswith(MAX_LENGTH)):
            raise UsageError(f"--{flag}={value} and --gin.{binding} say the same twice; give one")


def _fragment(flag: str, name: str, folders: Sequence[str]) -> str:
    known = names(flag, folders)
    if name not in known:
        hint = did_you_mean(name, known) or f"; give one of {', '.join(known)}"
        raise UsageError(f"--{flag} is {name!r}, and there is no {flag}s/{name}.gin{hint}")
    return f"{flag}s/{name}.gin"


def _choices(file: str, macros: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Returns a fragment's choices as bindings, which override what other files say after it."""
    found = gin_files.macros(gin_files.path(file, folders))
    return [f"{macro.name}={macro.value}" for macro in found if macro.name in macros]


def _sampling(args: argparse.Namespace, given: Sequence[str]) -> str:
    if not _is_greedy("temperature", args.temperature):
        return "sampling/temperature.gin"
    if len(given) > 1:
        other = given[-1]
        raise UsageError(
            f"--temperature=0 is greedy, and --{other}={getattr(args, other)} is about drawing; "
            "give one of the two"
        )
    return "sampling/greedy.gin"


def _is_greedy(flag: str, value: Any) -> bool:
    return flag == "temperature" and value == 0
