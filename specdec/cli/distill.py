"""`specdec distill`: of a target and texts a drafter, tuned and certified."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.cli import machine, settings, shorthands
from specdec.cli import run as runs
from specdec.cli.variants import announce, ready, say
from specdec.instrument.distillation import Distillation, Distilling
from specdec.instrument.runs import Variant


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "distill",
        help="make a drafter of a target and texts, tuned and certified",
        description="Lets the target answer the inputs of a task, trains a drafter to say what the "
        "target says there, finds out how long it should draft, and certifies the pair. Takes gin "
        "files as `specdec decode` does, with distill.gin for their skeleton. A run that was "
        "stopped goes on.",
        epilog="Give OUTPUT_DIR/pair.gin to the other commands. OUTPUT_DIR/texts has what the "
        "target wrote, draft/ the training and its export, tuned/ the search, certificate.json "
        "the checks.",
        allow_abbrev=False,
    )
    runs.add_flags(
        parser,
        draft="not here: the drafter is made; leave it out, or train yours with `specdec train`",
        text="not here: a drafter needs many texts; give --input_file",
    )
    parser.add_argument(
        "--output_dir", required=True, metavar="DIR", help="where all of it goes, to be kept"
    )
    parser.set_defaults(command=_command, resumes_from="output_dir")
    return parser


def _command(args: argparse.Namespace) -> int:
    files, bindings = shorthands.input_settings_of(args)
    args.gin_file, args.gin_bindings = [*files, *args.gin_file], [*args.gin_bindings, *bindings]
    args.target = args.vocabulary = args.input_file = args.task_prefix = args.batch_size = None
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    given, folder = Given(args), Path(args.output_dir)
    alone = {"DRAFTER": None}
    recipe = settings.build(Distillation, given.flags(alone), {})
    run, _ = runs.opened(given.flags(alone))
    ready_run, definition = ready(run), runs.definition_of(run)
    distilling = Distilling.of(given, recipe, ready_run, definition, folder)
    found = distilling.distill(say, announce)
    path = folder / "certificate.json"
    found.certificate.write(path)
    say(f"{found.certificate.verdict}; figures in {path}")
    if not found.pays:
        print(f"the target alone is faster here; see {folder / 'tuned'} and train longer")
    print(f"specdec decode --gin_file={shlex.quote(str(folder / 'pair.gin'))}")
    return 0 if found.certificate.passed else 1


@dataclasses.dataclass(frozen=True)
class Given:
    """The flags, as `Distilling` takes them."""

    args: argparse.Namespace

    @property
    def files(self) -> Sequence[str]:
        """Returns the names of the gin files."""
        return self.args.gin_file

    def flags(self, more: Mapping[str, Any], files: Sequence[str] = ()) -> argparse.Namespace:
        """Returns the flags with some more files and settings, which override."""
        own = copy.copy(self.args)
        own.gin_file = [*self.args.gin_file, *files]
        own.gin_bindings = [*self.args.gin_bindings, *(f"{k}={x!r}" for k, x in more.items())]
        return own

    def run(
        self,
        more: Mapping[str, Any],
        *,
        files: Sequence[str] = (),
        lines: str | None = None,
        limit: int | None = None,
    ) -> Variant:
        """Returns a run, see `Settings`."""
        own = self.flags(more, files)
        if limit is not None:
            own.limit = min(own.limit or limit, limit)
        return ready(runs.opened(own)[0], lines=lines)

    def text(self, more: Mapping[str, Any], files: Sequence[str]) -> str:
        """Returns the settings as a gin file."""
        own = self.flags(more, files)
        before, after = shorthands.settings_of(own)
        found = [os.path.abspath(x) if os.path.exists(x) else x for x in [*before, *own.gin_file]]
        bindings = [binding.replace("=", " = ", 1) for binding in [*own.gin_bindings, *after]]
        return "\n".join([*(f"include {file!r}" for file in found), "", *bindings, ""])
