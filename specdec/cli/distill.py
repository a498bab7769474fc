"""`specdec distill`: of a target and texts a drafter, tuned and certified."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from specdec import records, tasks
from specdec.cli import eval as evaluation
from specdec.cli import machine, settings, shorthands, tune, verify
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.cli.trim import most_frequent
from specdec.models import families
from specdec.models.trim import Trim
from specdec.values import Checked, PositiveFloat, PositiveInt, Rule, is_integer, is_word

Split = Annotated[str, Rule(is_word, "the name of a split")]


@dataclasses.dataclass(frozen=True)
class Distillation(Checked):
    """The recipe of a drafter from its target; gin builds it.

    texts: the split whose inputs the target answers, for the drafter to learn from.
    held_out: the split for alpha while training, and for tuning.
    layers: of the drafter's decoder; they begin as the target's first ones, and read the output of
      its encoder.
    head: how many ids the drafter may say, the most frequent in what the target wrote; None for
      all. The target says the others all the same.
    steps, batch_size: updates, and texts in each; the target writes as many texts together.
    learning_rate: the highest; it grows for a tenth of the steps, and then falls to 0.
    divergences: see `training.Align`. Laws are compared at the temperature of the run, a greedy
      run's at 1.
    """

    texts: Split
    held_out: Split
    layers: PositiveInt
    head: PositiveInt | None
    steps: Annotated[int, Rule(lambda n: is_integer(n, 2), "2 or more, for the rate to fall")]
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    divergences: Mapping[str, Any]


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
    runs.add_flags(parser)
    parser.add_argument(
        "--output_dir", required=True, metavar="DIR", help="where all of it goes, to be kept"
    )
    parser.set_defaults(command=_command)
    return parser


def _command(args: argparse.Namespace) -> int:
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    alone = _with(args, DRAFTER=None)
    recipe = settings.build(Distillation, alone, {})
    run = runs.build(copy.copy(alone))
    _check(run, recipe)
    objective = _objective(run, recipe)
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    about = {"settings": runs.in_force(run), **dataclasses.asdict(recipe)}
    records.claim(
        folder,
        folder / "distill.json",
        records.as_json(about),
        begun=next(iter(folder.glob("texts/*")), None),
        instead="--output_dir",
    )
    for split in (recipe.texts, recipe.held_out):
        _say(f"what the target writes, {split}")
        _write(alone, run, recipe, split, folder / "texts" / split)
    _say("the drafter learns")
    _train(run, recipe, objective, folder)
    _say("how long to draft")
    export = os.path.abspath(folder / "draft" / "export")
    pair = _with(args, DRAFT_CHECKPOINT_PATH=export)
    tuned = folder / "tuned"
    _invoke(tune, _with(pair, SPLIT=recipe.held_out), f"--output_dir={tuned}")
    pays = "DRAFTER = None" not in (tuned / "tuned.gin").read_text(encoding="utf-8")
    pair.gin_file += [str(tuned / "tuned.gin")] * pays
    records.write(folder / "pair.gin", _settings(pair))
    _say("the certificate")
    pair.limit = min(pair.limit or verify.LIMIT, verify.LIMIT)
    code = _invoke(verify, pair, f"--output_file={folder / 'certificate.json'}")
    if not pays:
        print(f"the target alone is faster here; see {tuned} and train longer")
    print(f"specdec decode --gin_file={shlex.quote(str(folder / 'pair.gin'))}")
    return code


def _check(run: DecodeRun, recipe: Distillation) -> None:
    """Raises UsageError for what would fail late."""
    config: Any = run.plan.target.config  # type: ignore[attr-defined]
    try:
        families.trimming_of(config)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if recipe.layers > (there := config.num_decoder_layers):
        raise UsageError(f"DRAFT_LAYERS is {recipe.layers} but the target has {there}; give fewer")
    if run.data.task is None:
        raise UsageError("there is no task; set TASK in a gin file")
    known = tasks.get_task(run.data.task).splits
    for split in (recipe.texts, recipe.held_out, run.data.split):
        if split not in known:
            raise UsageError(f"the task has no split {split!r}; give one of {', '.join(known)}")
    if recipe.texts == recipe.held_out:
        raise UsageError(f"TEXTS and HELD_OUT are both {recipe.texts!r}; give two splits")


def _write(
    args: argparse.Namespace, run: DecodeRun, recipe: Distillation, split: str, folder: Path
) -> None:
    """Lets the target answer the inputs of a split."""
    own = getattr(tasks.get_task(run.data.task), "predict_metric_fns", ())
    metric = [] if own else ["--metric=bleu"]
    args = _with(args, SPLIT=split, BATCH_SIZE=recipe.batch_size)
    _invoke(evaluation, args, f"--output_dir={folder}", *metric)


def _objective(run: DecodeRun, recipe: Distillation) -> Any:
    """At the temperature of the run."""
    from specdec import training  # optax, which few commands need

    sampling: Any = run.plan.sampling
    try:
        return training.Align(recipe.divergences, 1.0 if sampling.greedy else sampling.temperature)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _train(run: DecodeRun, recipe: Distillation, objective: Any, folder: Path) -> None:
    from specdec import training

    target: Any = run.plan.target.stored()  # type: ignore[attr-defined]
    kept = Trim(tuple(range(recipe.layers)), shared_encoder=True)
    if recipe.head is not None:
        counts = tasks.token_counts(str(folder / "texts" / recipe.texts))
        kept = dataclasses.replace(kept, head_ids=most_frequent(counts, recipe.head))
    written = {x: str(folder / "texts" / x) for x in (recipe.texts, recipe.held_out)}
    task = tasks.predictions_task("distilled", written, runs.definition_of(run))
    rate = training.LearningRate(
        recipe.learning_rate, max(1, recipe.steps // 10), decay="linear", end=recipe.steps
    )
    made = training.TrainRun(
        model=families.model_of(families.resized(target.config, kept)),
        task=task,
        lengths={**run.data.lengths, "targets": run.plan.max_length},
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        optimizer=training.Adafactor(rate),
        objective=objective,
        target=target,
        target_path=run.checkpoint_path,
        initial_path=run.checkpoint_path,
        split=recipe.texts,
        seed=run.data.seed,
        evaluation_split=recipe.held_out,
        best_by=f"mbsu_5{'_greedy' if run.plan.sampling.greedy else ''}",
        evaluate_every=max(1, recipe.steps // 8),
        checkpoint_every=max(1, recipe.steps // 8),
    )
    try:
        training.train(made, folder / "draft")
    except training.TrainingError as error:
        raise UsageError(str(error)) from error


def _with(args: argparse.Namespace, **macros: Any) -> argparse.Namespace:
    """The flags with some more settings, which override."""
    args = copy.copy(args)
    args.gin_file = list(args.gin_file)
    args.gin_bindings = [*args.gin_bindings, *(f"{name}={x!r}" for name, x in macros.items())]
    return args


def _invoke(command: ModuleType, args: argparse.Namespace, *flags: str) -> int:
    """Another command, with the flags of this one and some of its own."""
    own = command.add_command(argparse.ArgumentParser().add_subparsers()).parse_args(flags)
    given = {k: v for k, v in vars(args).items() if k not in ("command", "output_dir")}
    return own.command(argparse.Namespace(**{**vars(own), **given})) or 0


def _settings(args: argparse.Namespace) -> str:
    """Returns the settings of the pair as a gin file."""
    before, after = shorthands.settings_of(args)
    files = [os.path.abspath(x) if os.path.exists(x) else x for x in [*before, *args.gin_file]]
    bindings = [binding.replace("=", " = ", 1) for binding in [*args.gin_bindings, *after]]
    return "\n".join([*(f"include {file!r}" for file in files), "", *bindings, ""])


def _say(what: str) -> None:
    print(f"\n# {what}", flush=True)
