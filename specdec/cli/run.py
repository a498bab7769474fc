"""A run: a plan, the texts, and the devices, as described by gin files.

Several commands, such as `decode`, `verify` and `bench`, use the same files.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax

from specdec import checkpoints, tasks
from specdec.checkpoints import TextModel
from specdec.cli import given, machine, settings, shorthands
from specdec.cli.data import saved_vocabulary
from specdec.cli.table import TABLE
from specdec.common import progress, records, schemas
from specdec.common.environment import version
from specdec.common.terminal import visible
from specdec.common.values import UsageError, is_word
from specdec.decoding import NonFiniteLogits, PrefixError
from specdec.engine import (
    Engine,
    NotExact,
    Placement,
    Settings,
    check_eight_bits,
    in_eight_bits,
    obeying,
)
from specdec.models.contract.inputs import check_room
from specdec.plan import RESERVED, Plan
from specdec.sampling import MinLength, looks_back
from specdec.texts.beams import Beams
from specdec.texts.measured_run import Run
from specdec.texts.texts import Data, Previous, TextList, TextStream


@dataclasses.dataclass(frozen=True)
class DecodeRun(Settings):
    """All settings on which a run's output depends, including those of `Settings`; gin builds it.

    Args:
      plan: target, drafter, verifier, schedule and sampling.
      data: the texts.
      placement: the devices and how models are divided over them.
      checkpoint_path: the directory of the target's checkpoint.
      draft_checkpoint_paths: role -> path, for each model and table of the drafter; entries for
        other roles are ignored.
      schedule_table_path: the folder of the schedule's table, if it has one.
      compare: whether to decode every text with the target alone as well.
      beams: the settings of beam search, which is off by default.
    """

    plan: Plan
    data: Data
    placement: Placement
    checkpoint_path: str
    draft_checkpoint_paths: Mapping[str, str] = dataclasses.field(default_factory=dict)
    schedule_table_path: str | None = None
    compare: bool = False
    beams: Beams = Beams()

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.draft_checkpoint_paths, Mapping):
            raise ValueError(
                f"draft_checkpoint_paths is {self.draft_checkpoint_paths!r}; give role -> path, as "
                "in {'draft': 'path'}"
            )
        if both := self.draft_checkpoint_paths.keys() & set(RESERVED):
            raise ValueError(
                f"draft_checkpoint_paths names {', '.join(sorted(both))}; leave it out, "
                "and give the target's as CHECKPOINT_PATH"
            )
        for role, path in self.paths().items():
            if path is None:
                what = "TABLE_PATH" if role in self.plan.tables() else "CHECKPOINT_PATH"
                raise ValueError(_required(role, what))
            if not is_word(path):
                raise ValueError(f"the {role}'s checkpoint is {path!r}; give the path of one")
            if self.plan.owned()[role] is None:
                raise ValueError(_required(role, "MODEL"))
        if missing := self.plan.owned().keys() - self.paths().keys():
            raise ValueError(
                f"the drafter has no checkpoint for {', '.join(sorted(missing))}; give "
                "DRAFT_CHECKPOINT_PATHS, a path by role for each model and table"
            )
        if self.data.num_samples > 1 and self.plan.sampling.greedy:
            raise ValueError(
                f"num_samples is {self.data.num_samples} but greedy outputs are all the same; "
                "sample, with --gin_file=sampling/temperature.gin for example"
            )
        if self.compare and self.plan == self.plan.baseline():
            raise ValueError(
                "compare is set, but without a drafter the target decodes alone; leave it out"
            )
        check_eight_bits(self.plan, self.int8, self.int8_tokens)
        sampling, longest = self.plan.sampling, self.plan.max_length
        for processor in sampling.processors if looks_back(sampling) else ():
            if isinstance(processor, MinLength) and processor.length >= longest:
                raise ValueError(
                    f"MIN_LENGTH is {processor.length} but outputs hold {longest}; give a number "
                    "of tokens that leaves room for EOS"
                )

    def paths(self) -> dict[str, str]:
        """Returns the paths of the checkpoints and tables in `Plan.owned`, by role."""
        paths: dict[str, Any] = {"target": self.checkpoint_path, **self.draft_checkpoint_paths}
        paths |= dict.fromkeys(self.plan.schedule.tables(), self.schedule_table_path)
        return {role: path for role, path in paths.items() if role in self.plan.owned()}


def _required(role: str, macro: str) -> str:
    """Returns the error about a missing macro; its name has the role, except the target's."""
    name = macro if role == "target" else f"{role.upper()}_{macro}"
    if macro == "TABLE_PATH" and role != "schedule":
        name = "DRAFT_TABLE_PATH"
    return f"{name} is required; set it in a gin file or with --gin.{name}=VALUE"


def opened(
    args: argparse.Namespace,
    unmarked: bool = False,
    change: Callable[[DecodeRun], DecodeRun] = lambda run: run,
    texts: TextStream | None = None,
) -> Run:
    """Returns the run that the gin files and flags describe, with its engine.

    It first joins other hosts and sets the compilation cache. An inexact run must be marked as
    lossy unless `unmarked` is set. `change` is applied before the engine opens.
    """
    run = described(args)
    data, previous = given.filled(args, run.data)
    machine.prepare(args)
    data = data if texts is None else dataclasses.replace(data, texts=texts)
    run = change(_fitted(dataclasses.replace(run, data=data)))
    _refuse_unsuited(args, run, previous)
    with progress.stage("starting", "starting"):
        ready = dataclasses.replace(with_engine(run, unmarked), previous=previous)
        if "subtitles" in args:
            ready = ready.transcribing(args.explain)
    if ready.placement.mesh is not None:
        args.contexts.enter_context(jax.set_mesh(ready.placement.mesh))
    args.contexts.enter_context(_naming_target(ready))
    if data.texts is not None:
        note_missing_prefix(args, ready.engine.text, data.texts.first)
    return ready


def _fitted(run: DecodeRun) -> DecodeRun:
    """Returns the run with inputs long enough for all its texts and pictures.

    Texts that arrive one by one are not considered.
    """
    data, plan = run.data, run.plan
    if data.texts is None:
        return run
    vocabulary = vocabulary_of(run)
    if isinstance(data.texts, TextList):
        texts = (text for text, _ in data.texts[: data.limit])
        most = max(len(tasks.files_of(vocabulary, text)) for text in texts)
        if (roomy := plan.target.with_room(most)) != plan.target:
            plan = plan.with_models({"target": roomy})
    size = checkpoints.parameter_count(run.plan.target)
    data = data.within(_room(plan)).fitted(vocabulary, size)
    return dataclasses.replace(run, plan=plan, data=data)


def _room(plan: Plan) -> int | None:
    """Returns the longest input in tokens that all models have positions for; None: no limit."""
    rooms = [model.longest_text for model in plan.models().values()]
    return min((room - plan.max_length for room in rooms if room is not None), default=None)


def _refuse_unsuited(args: argparse.Namespace, run: DecodeRun, previous: Previous | None) -> None:
    """Raises UsageError for a run whose settings exclude each other or do not suit the command."""
    beams, plan, data = run.beams.num_beams, run.plan, run.data
    if beams and "num_beams" not in args:
        raise UsageError(
            f"NUM_BEAMS is {beams}, and this command does no beam search; leave it out, or use "
            "`specdec decode`, `eval`, `bench` or `verify`"
        )
    if plan.reads_previous and previous is None:
        raise UsageError(
            f"{plan.drafter} drafts from previous outputs, which are missing; give "
            "--previous=FILE or --live to `specdec decode`"
        )
    if previous is not None and not plan.reads_previous:
        raise UsageError(
            f"{plan.drafter} drafts from no previous output; leave --drafter out, or give "
            f"--drafter=hybrid --gin.{shorthands.PREVIOUS_FIRST}"
        )
    if previous is not None and previous.outputs is None and data.batch_size > 1:
        raise UsageError(
            f"--live decodes one text at a time and --batch_size is {data.batch_size}; omit that"
        )
    if plan.reads_previous and data.refill:
        raise UsageError(
            f"REFILL excludes previous outputs, and the drafter is {plan.drafter}; leave "
            "out REFILL, or give another drafter"
        )
    if beams and data.refill:
        raise UsageError(f"REFILL excludes beams, and NUM_BEAMS is {beams}; leave out one of them")


def with_engine(run: DecodeRun, unmarked: bool = False) -> Run:
    """Opens the engine of a run; raises CheckpointError, or UsageError for other mistakes."""
    data = run.data
    try:
        check_room(run.plan.models(), data.lengths["inputs"], run.plan.max_length)
        engine = Engine.open(
            run.plan,
            run.paths(),
            vocabulary_of(run),
            run.placement,
            dataclasses.replace(run, lossy=run.lossy or unmarked),
            rows=data.batch_size,
            num_samples=data.num_samples,
            num_beams=run.beams.num_beams,
            prefix=data.decoder_prefix,
        )
    except checkpoints.CheckpointError:
        raise
    except NotExact as error:
        raise UsageError(unmarked_lossy(run.plan)) from error
    except PrefixError as error:
        raise UsageError(f"--decoder_prefix {data.decoder_prefix!r}: {error}") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    return Run(engine, data, run.compare, run.lossy, run.beams)


@contextlib.contextmanager
def _naming_target(run: Run) -> Iterator[None]:
    """Converts NonFiniteLogits to a UsageError that names the target's checkpoint."""
    try:
        yield
    except NonFiniteLogits as error:
        raise UsageError(f"target {run.checkpoint_path}: {error}") from error


def unmarked_lossy(plan: Plan) -> str:
    """Returns the error about an inexact run that is not marked as lossy."""
    verifier = plan.verifier
    inexact = plan.target if verifier.exact else verifier
    return (
        f"{inexact} does not keep the target's distribution, and the run does not say "
        "that it may be lossy; give --gin.LOSSY=True if that is what you want"
    )


def described(
    args: argparse.Namespace, unneeded: Mapping[str, object] = MappingProxyType({})
) -> DecodeRun:
    """Returns the run that the gin files and flags describe, before any device is used."""
    before, after = shorthands.settings_of(args)
    if args.target is not None or args.gin_file:  # other flags alone describe no run
        args.gin_file = [*before, *args.gin_file]
    args.gin_bindings = [*args.gin_bindings, *after]
    overrides: dict[str, object] = {
        name: vars(args).get(flag) for name, flag in TABLE["fields"].items()
    }
    overrides["Placement.checksums"] = False if args.skip_checksums else None
    needed = {}
    if (file := vars(args).get("subtitles")) is not None:
        overrides["Transcribed.timestamps"] = True
        says = f"--subtitles={file} is for sound; give --gin_file=transcribe.gin as well"
        needed["checkpoints.Transcribed"] = says
    run = settings.build(DecodeRun, args, overrides, unneeded, needed)
    _refuse_unread_draft(args, run)
    return _shortened(run)


def _refuse_unread_draft(args: argparse.Namespace, run: DecodeRun) -> None:
    """Raises UsageError if the run reads no model from `--draft`, unless there are variants."""
    if args.draft is None or vars(args).get("variant") or args.draft in run.paths().values():
        return
    raise UsageError(
        f"--draft is {args.draft}, and the run's drafter reads no such checkpoint; give "
        "--drafter=autoregressive as well, or leave --draft out"
    )


def resolved(args: argparse.Namespace) -> DecodeRun:
    """Returns the run as far as it is known without a vocabulary and devices.

    It includes int8 weights and the generation settings of the target's checkpoint, if that exists.
    """
    run = described(args)
    data, _ = given.filled(args, run.data)
    text = text_of(run.checkpoint_path)
    if data.texts is not None:
        note_missing_prefix(args, text, data.texts.first)
    of_texts = bool(data.decoder_prefix), data.num_samples, run.beams.num_beams
    plan = obeying(run.plan, text, run.generation_settings, *of_texts)
    plan = in_eight_bits(plan, run.int8, run.int8_tokens)
    return dataclasses.replace(run, plan=plan, data=data)


def text_of(path: str) -> TextModel | None:
    """Returns what files next to a checkpoint say on texts; None if there is no checkpoint yet."""
    try:
        checkpoints.locate(path)
    except checkpoints.CheckpointError:
        return None  # an error is raised when its parameters are read
    return checkpoints.text_model_from(path, needed=False)


def note_missing_prefix(args: argparse.Namespace, known: TextModel | None, text: str) -> None:
    """Prints a note if the target's config.json names task prefixes and `text` begins with none.

    It prints nothing if the user gave a prefix.
    """
    in_gin = any(binding.startswith("TASK_PREFIX=") for binding in args.gin_bindings)
    if known is None or args.target is None or args.task_prefix is not None or in_gin:
        return
    prefixes = tuple(dict.fromkeys(known.prefixes.values()))
    if prefixes and not text.startswith(prefixes):
        note = (
            f"specdec: config.json of {args.target} names prefixes "
            f"({', '.join(map(repr, prefixes))}) and the first text has none; give "
            "--task_prefix='...', or --task_prefix='' for none"
        )
        print(visible(note), file=sys.stderr)


def _shortened(run: DecodeRun) -> DecodeRun:
    """Cuts drafts to the room in an output; prints a line on stderr if that shortens them."""
    plan, room = run.plan, max(1, run.plan.max_length - 1)  # the target's own token follows
    if not plan.drafts or plan.longest_draft <= room:
        return run
    schedule = plan.schedule.up_to(room)
    if schedule is None:
        raise UsageError(
            f"{plan.schedule} drafts up to {plan.longest_draft} tokens but outputs hold "
            f"{plan.max_length}; give shorter drafts, or raise 'targets' in the feature lengths"
        )
    print(
        f"specdec: drafts of {plan.longest_draft} tokens are cut to {room}; outputs hold "
        f"{plan.max_length}",
        file=sys.stderr,
    )
    return dataclasses.replace(run, plan=dataclasses.replace(plan, schedule=schedule))


def require_drafter(run: DecodeRun | Run) -> None:
    """Raises UsageError if a run has no drafter."""
    if not run.plan.drafts:
        raise UsageError("the run has no drafter; set DRAFTER, see gin/drafters/")


def require_baseline(run: DecodeRun | Run) -> None:
    """Raises UsageError for a run without a drafter that equals its own baseline."""
    if run.plan == run.plan.baseline():
        require_drafter(run)


def vocabulary_of(run: DecodeRun) -> tasks.LoadedVocabulary:
    """Returns the vocabulary of the task, or of the run if there is no task."""
    if run.data.task is not None:
        vocabulary = tasks.get_task(run.data.task).vocabulary
    else:
        vocabulary = tasks.for_texts(definition_of(run))
    drafts = run.data.draft_vocabulary
    if drafts and not tasks.same_vocabulary(tasks.for_texts(drafts), vocabulary):
        raise UsageError(
            f"the draft's vocabulary, {drafts}, is not the target's, {vocabulary}; "
            "a draft is read as the target's ids: use models of one vocabulary"
        )
    return vocabulary


def in_force(run: Run, lines: str | None = None) -> str:
    """Returns the settings in force as a gin file, with further facts as comments.

    The comments are fingerprints of the checkpoints and the vocabulary, the version of the code,
    and that of the lines that a command writes (`schemas.KINDS`). `records` compares those too.
    """
    facts: dict[str, object] = {
        f"# {name}": value for name, value in run.engine.fingerprints.items()
    }
    facts[f"{records.VERSION}specdec"] = version("specdec")
    if lines is not None:
        facts[f"{records.FORMAT}{lines}"] = schemas.version(lines)
    comments = "".join(f"{name} = {value}\n" for name, value in facts.items())
    return f"{settings.in_force()}\n{comments}"


def definition_of(run: DecodeRun | Run) -> tasks.VocabularyDefinition:
    """Returns the run's vocabulary, or else the one saved with the target's checkpoint."""
    definition = run.data.vocabulary or saved_vocabulary(run.checkpoint_path)
    return tasks.chatting(definition) if run.data.chat else definition
