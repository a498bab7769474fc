"""Shorthands: flags for the settings that are changed most, instead of gin.

  --target=DIR         text.gin and --gin.CHECKPOINT_PATH="'DIR'": no other gin file is needed
  --draft=DIR          drafters/autoregressive.gin and --gin.DRAFT_CHECKPOINT_PATH="'DIR'"
  --input_file=FILE    given.gin and --gin.INPUT_FILE="'FILE'"; --text in the same way
  --vocabulary=FILE    --gin.VOCABULARY, with the class for files of that name
  --batch_size=8       --gin.BATCH_SIZE=8
  --gamma=5            --gin.GAMMA=5
  --temperature=0.7    sampling/temperature.gin and --gin.TEMPERATURE=0.7; for 0 greedy.gin
  --min_length=20      --gin.MIN_LENGTH=20, a setting of sampling/processors.gin
  --verifier=coupled   the VERIFIER of verifiers/coupled.gin
  --previous=FILE      --drafter=previous_output --gamma=16, or with --draft=DIR --drafter=hybrid

These gin files come from the package, not from the current folder. A file of drafters/, verifiers/
or schedules/ may also be in a folder of `--gin_search_paths`. A shorthand overrides gin files, but
only in what it names: `--top_p=0.9` keeps the TEMPERATURE of the files, and `--schedule=fixed`
keeps their GAMMA. Giving a shorthand and the --gin flag for the same setting is an error.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specdec import tasks
from specdec.cli import gin_files
from specdec.cli.gin_files import Own
from specdec.cli.table import TABLE
from specdec.common import resources
from specdec.common.values import UsageError, did_you_mean
from specdec.tasks.local import line_text

SAMPLING = ("temperature", "top_k", "top_p")
MAX_LENGTH = "Plan.max_length"  # no macro: gin files compute it from the task's lengths
PREVIOUS_GAMMA = 16  # copying is free; the target's call limits it
PREVIOUS_FIRST = "HYBRID_FIRST=@drafters.PreviousOutput()"
FRAGMENTS = ("drafter", "verifier", "schedule")  # each names a file of a folder
OF_DECODING = tuple(TABLE["macros"])  # flags that change how texts are decoded


def names(flag: str, folders: Sequence[str] = ()) -> list[str]:
    """Returns the names that --drafter, --verifier or --schedule accepts, also from `folders`."""
    folder = f"{flag}s"
    files = gin_files.names([*folders, resources.folder("gin")], folder)
    return [name.removeprefix(f"{folder}/").removesuffix(".gin") for name in files]


def settings_of(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Returns the gin files, read first, and the bindings that all shorthands stand for."""
    _choose_drafter(args)
    folders = [*filter(None, vars(args).get("gin_search_paths", "").split(","))]
    input_files, input_bindings = input_settings_of(args)
    files: list[str] = []
    bindings = []
    for flag, value, macros in _given(args, TABLE["macros"]):
        if flag in FRAGMENTS:
            files.append(_fragment(flag, value, folders))
            bindings += _choices(files[-1], macros, folders)
        elif flag != "max_length" and not _is_greedy(flag, value):
            bindings.append(f"{flag.upper()}={value!r}")
    if sampling := [flag for flag in SAMPLING if getattr(args, flag) is not None]:
        files.append(_sampling(args, sampling))
        bindings += _choices(files[-1], ("SAMPLING",), folders)
    return [*files, *input_files], [*input_bindings, *bindings]


def input_settings_of(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Returns the gin files and bindings that the flags for models and texts stand for."""
    refuse_senseless(args)
    if args.target is None and not args.gin_file:
        for name in ("draft", "vocabulary", "input_file"):
            if (value := getattr(args, name)) is not None:
                raise UsageError(f"--{name} {value} needs --target; give that checkpoint")
    needed = {
        "text.gin": args.target is not None,
        "drafters/autoregressive.gin": args.draft is not None,
        "given.gin": args.target is None and (_texts(args) or args.input_file) is not None,
    }
    files: list[str] = [Own(file) for file, is_needed in needed.items() if is_needed]
    return files, _input_bindings(args, TABLE["input_macros"])


def training_settings_of(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Returns the gin files and bindings of the flags for models and texts in `specdec train`."""
    refuse_senseless(args)
    files: list[str] = []
    bindings = _input_bindings(args, {**TABLE["input_macros"], **TABLE["training_macros"]})
    if args.draft is not None:
        files.append(Own("further.gin"))
        bindings.append("MODEL=@initial/checkpoints.model_from()")
    elif not args.gin_file and args.target is not None:
        raise UsageError(
            f"--target={args.target}: the model that is trained drafts for it; give --draft=DIR, "
            "the checkpoint to train further, or let `specdec distill` make one"
        )
    if args.target is not None:
        files.append(Own("models/frozen_target.gin"))
    return files, bindings


def add_input_settings(args: argparse.Namespace, training: bool = False) -> None:
    """Adds the settings of the flags for models and texts to `args`, as gin files and bindings."""
    files, bindings = training_settings_of(args) if training else input_settings_of(args)
    args.gin_file, args.gin_bindings = [*files, *args.gin_file], [*args.gin_bindings, *bindings]


def refuse_senseless(args: argparse.Namespace) -> None:
    """Raises UsageError for a flag for models and texts that its command does not use."""
    for name, remedy in args.refused_flags.items():
        if (value := getattr(args, name)) is not None:
            shown = value[0] if isinstance(value, list) else value
            raise UsageError(f"--{name}={shown}: {remedy}")
    if args.text is not None and args.input_file is not None:
        raise UsageError("--text and --input_file both give texts; leave one of them out")
    if "-" in (args.text or ()) and not vars(args).get("reads_stdin"):
        raise UsageError(
            "--text=- is standard input, which `specdec decode` reads; give --input_file=FILE"
        )


def _input_bindings(args: argparse.Namespace, macros: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the gin bindings that the flags for models and texts stand for."""
    bindings, texts = [], _texts(args)
    for flag, value, names in _given(args, macros):
        if flag == "vocabulary" and value == "bytes":
            bindings.append("VOCABULARY=@tasks.Bytes()")
        elif flag == "vocabulary":
            path = resources.shipped(value)
            kind = type(tasks.vocabulary_file(path)).__name__
            bindings += [f"VOCABULARY=@tasks.{kind}()", f"tasks.{kind}.path={path!r}"]
        elif names[0] == "TASK_FILES":
            bindings.append(f"TASK_FILES={ {'train': value}!r}")
        elif flag == "text":
            inputs = tuple(utf8((args.task_prefix or "") + text) for text in texts or ())
            bindings += [f"INPUT_TEXTS={inputs!r}"] if inputs else []
        elif flag != "task_prefix" or texts is None:
            bindings.append(f"{names[0]}={value!r}")
    return bindings


def _texts(args: argparse.Namespace) -> list[str] | None:
    """Returns the texts of --text; None if it is not given, or if '-' (standard input) is one."""
    return None if "-" in (args.text or ()) else args.text


def _choose_drafter(args: argparse.Namespace) -> None:
    """Chooses a drafter that copies previous outputs if --previous or --live is given."""
    previous, live = (vars(args).get(name) for name in ("previous", "live"))
    if previous is None and not live:
        return
    if previous is not None and live:
        raise UsageError("--previous and --live are two sources of drafts; leave one of them out")
    if args.drafter is None and args.draft is None:
        args.drafter = "previous_output"
    elif args.drafter is None:
        args.drafter = "hybrid"
        args.gin_bindings = [*args.gin_bindings, PREVIOUS_FIRST]
    in_gin = any(binding.replace(" ", "").startswith("GAMMA=") for binding in args.gin_bindings)
    if args.gamma is None and args.schedule is None and not in_gin:
        args.gamma = PREVIOUS_GAMMA


def utf8(text: str) -> str:
    """Returns the text of a flag; raises UsageError if it is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = text.encode(errors="replace").decode()
        raise UsageError(f"--text {shown} is not UTF-8; convert it, or set LANG=C.UTF-8") from error
    return "\n".join(line_text(line, not i) for i, line in enumerate(text.split("\n")))


def _given(
    args: argparse.Namespace, macros: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Any, Sequence[str]]]:
    """Yields (flag, value, names of the same setting in gin) for each flag that has a value."""
    for flag, names in macros.items():
        if (value := getattr(args, flag)) is not None:
            _refuse_twice(flag, value, names, args.gin_bindings)
            yield flag, value, names


def _refuse_twice(flag: str, value: object, macros: Sequence[str], bindings: Sequence[str]) -> None:
    for binding in bindings:
        name = binding.partition("=")[0].strip()
        if name in macros or (flag == "max_length" and name.endswith(MAX_LENGTH)):
            raise UsageError(f"--{flag}={value} and --gin.{binding} say the same twice; give one")


def _fragment(flag: str, name: str, folders: Sequence[str]) -> str:
    known = names(flag, folders)
    if name not in known:
        hint = did_you_mean(name, known) or f"; give one of {', '.join(known)}"
        raise UsageError(f"--{flag} is {name!r}, and there is no {flag}s/{name}.gin{hint}")
    file = f"{flag}s/{name}.gin"
    is_theirs = any(os.path.isfile(os.path.join(folder, file)) for folder in folders)
    return file if is_theirs else Own(file)


def _choices(file: str, macros: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Returns a fragment's settings of `macros` as bindings, which override later gin files."""
    of_file = gin_files.macros(gin_files.path(file, folders))
    return [f"{macro.name}={macro.value}" for macro in of_file if macro.name in macros]


def _sampling(args: argparse.Namespace, flags: Sequence[str]) -> str:
    if not _is_greedy("temperature", args.temperature):
        return Own("sampling/temperature.gin")
    if len(flags) > 1:
        other = flags[-1]
        raise UsageError(
            f"--temperature=0 is greedy, and --{other}={getattr(args, other)} is about drawing; "
            "give one of the two"
        )
    return Own("sampling/greedy.gin")


def _is_greedy(flag: str, value: object) -> bool:
    return flag == "temperature" and value == 0
