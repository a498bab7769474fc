"""`specdec distill`: trains, tunes and certifies a drafter for a target, from texts."""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from specdec import tasks
from specdec.cli import machine, settings, shorthands
from specdec.cli import run as runs
from specdec.cli.flags import add_flags
from specdec.cli.gin_files import Own
from specdec.cli.given import file_lines
from specdec.cli.variants import announce, ready, say
from specdec.common import hosts, records
from specdec.common.gin_text import statements
from specdec.common.values import UsageError
from specdec.texts.measured_run import Variant
from specdec.training import cards
from specdec.training.distillation.distillation import Distillation, Distilled, Distilling
from specdec.training.distillation.distillation_inputs import Inputs


def command(args: argparse.Namespace) -> int:
    if args.target is None and args.input_file is None and not args.gin_file:
        raise UsageError(
            "nothing says what to run; give --target=DIR and --inputs=FILE, or --gin_file=FILE"
        )
    lines = None
    if args.input_file is not None:
        texts = file_lines("--inputs", args.input_file, "one input per line")
        lines = [text.partition("\t")[0] for text in texts]
    ask = _ask if sys.stdin.isatty() and sys.stderr.isatty() else None
    machine.join_other_hosts(args)
    pair = distilled(args, lines, ask)
    if not pair.certificate.passed:
        return 1
    if hosts.is_first():
        print(pair.summary())
    return 0


def _ask(question: str) -> str:
    """Asks a question on the terminal and returns the answer."""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().removesuffix("\n")


def distill(
    target: str | os.PathLike,
    inputs: Iterable[str],
    output_dir: str | os.PathLike,
    *,
    task_prefix: str | None = None,
    flags: Iterable[str] = (),
) -> Distilled:
    """Makes a drafter for a target from inputs alone, as `specdec distill` does.

      made = specdec.distill("my-t5", texts, "my-t5-drafter", task_prefix="")
      model = specdec.InteractiveModel("my-t5", made.draft, schedule=made.schedule)

    Args:
      target: the directory of the target's checkpoint.
      inputs: at least 40 texts. Some are held out.
      output_dir: the folder for all results. Repeating an interrupted call resumes it.
      task_prefix: the text that is put before every input, '' for none. None is an error if the
        target's config.json has prefixes and the inputs do not begin with them.
      flags: more flags of the command, such as '--gin.DRAFT_STEPS=500'.

    Returns:
      The drafter, its schedule, and its predicted speed-up.

    Raises:
      UsageError, RecordsError, TaskError, CheckpointError: with the message of the command.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser, "distill")
    paths = f"--target={os.fspath(target)}", f"--output_dir={os.fspath(output_dir)}"
    args = parser.parse_args(settings.joined([*paths, *flags]))
    del vars(args)["distributed"]  # this function runs on one host
    args.task_prefix = task_prefix if args.task_prefix is None else args.task_prefix
    with records.holding(), contextlib.ExitStack() as args.contexts:
        return distilled(args, inputs, None)


def distilled(
    args: argparse.Namespace, lines: Iterable[str] | None, ask: Callable[[str], str] | None
) -> Distilled:
    """Makes the drafter that the flags describe, with its schedule, from the inputs in `lines`."""
    shorthands.refuse_senseless(args)
    given = copy.copy(args)
    if (args.target is None) != (lines is None):
        raise UsageError("--target=DIR and --inputs=FILE go together; give both")
    if args.output_dir is None and args.target is None:
        raise UsageError("--output_dir is missing; give a folder for the results")
    if args.output_dir is None:
        args.output_dir = f"{Path(os.path.abspath(args.target)).name}-drafter"
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    if lines is not None:
        args.gin_file = [Own(_described(args, lines, ask)), *args.gin_file]
        args.target = args.vocabulary = args.input_file = args.task_prefix = None
    shorthands.add_input_settings(args)
    args.task_prefix = args.batch_size = None
    flags, folder = Given(args), Path(args.output_dir)
    alone = {"DRAFTER": None}
    recipe = settings.build(Distillation, flags.flags(alone), {})
    run = runs.opened(flags.flags(alone))
    if "distributed" in args:
        machine.refuse_no_mesh(args, run.placement.mesh)
    ready_run, definition = ready(run), runs.definition_of(run)
    distilling = Distilling.of(flags, recipe, ready_run, definition, folder)
    pair = distilling.distill(say, announce)
    path = folder / "certificate.json"
    if hosts.is_first():
        target = given.target or distilling.variant.run.checkpoint_path
        texts = given.input_file or tasks.get_task(distilling.variant.run.data.task).name
        sources = {"target": target, "texts": texts}
        command = vars(args).get("command_line", ())
        figures = {
            "predicted speed, relative to the target alone": f"{pair.speedup.value:.2f} "
            f"(95 % interval {pair.speedup.interval()}), with {pair.schedule}",
            "certificate": pair.certificate.verdict,
        }
        name, in_force = folder.resolve().name, distilling.variant.settings
        cards.write(folder / "draft", name, sources, command, in_force, figures)
        pair.certificate.write(path)
        say(f"{pair.certificate.verdict}; figures in {path}\n")
    return pair


def _described(
    args: argparse.Namespace, lines: Iterable[str], ask: Callable[[str], str] | None
) -> str:
    """Writes the gin file of a run over the inputs, and returns its path."""
    if any(binding.startswith("TASK_PREFIX=") for binding in args.gin_bindings):
        raise UsageError("--gin.TASK_PREFIX is for gin files; give --task_prefix")
    inputs = Inputs.of(lines, f"--inputs {args.input_file}" if args.input_file else "inputs")
    return inputs.described(
        args.target, Path(args.output_dir), args.task_prefix, args.vocabulary, ask
    )


@dataclasses.dataclass(frozen=True)
class Given:
    """The settings that `Distilling` reads, from the flags of the command."""

    args: argparse.Namespace

    @property
    def files(self) -> Sequence[str]:
        """Returns the paths of the gin files."""
        return self.args.gin_file

    def flags(self, more: Mapping[str, object], files: Sequence[str] = ()) -> argparse.Namespace:
        """Returns the flags with the bindings `more` and with gin files that tuning wrote."""
        args = copy.copy(self.args)
        bindings = self.args.gin_bindings
        if files:  # flags for the length of drafts would override them
            args.gamma = args.schedule = None
            texts = (Path(file).read_text(encoding="utf-8") for file in files)
            tuned = {"SCHEDULE", *(setting.name for text in texts for setting in statements(text))}
            bindings = [x for x in bindings if x.partition("=")[0].strip() not in tuned]
        args.gin_file = [*self.args.gin_file, *(Own(os.path.abspath(file)) for file in files)]
        args.gin_bindings = [*bindings, *(f"{k}={x!r}" for k, x in more.items())]
        return args

    def run(
        self,
        more: Mapping[str, object],
        *,
        files: Sequence[str] = (),
        lines: str | None = None,
        limit: int | None = None,
    ) -> Variant:
        """Opens the run of `flags(more, files)`, with at most `limit` texts."""
        args = self.flags(more, files)
        if limit is not None:
            args.limit = min(args.limit or limit, limit)
        return ready(runs.opened(args), lines=lines)

    def text(self, more: Mapping[str, object], files: Sequence[str]) -> str:
        """Returns a gin file with the settings of `flags(more, files)`, as text."""
        args = self.flags(more, files)
        before, after = shorthands.settings_of(args)
        paths = (
            os.path.abspath(x) if os.path.exists(x) and not isinstance(x, Own) else str(x)
            for x in [*before, *args.gin_file]
        )
        bindings = (binding.replace("=", " = ", 1) for binding in [*args.gin_bindings, *after])
        return "\n".join([*(f"include {path!r}" for path in paths), "", *bindings, ""])
