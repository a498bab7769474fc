"""`specdec replicate`: the rows of a paper, published, predicted and measured."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from specdec import checkpoints
from specdec.cli import machine, settings
from specdec.cli import run as runs
from specdec.cli.gin_files import Own
from specdec.cli.given import given_texts
from specdec.cli.presets import preset
from specdec.common import resources
from specdec.common.records import Lines, locked
from specdec.common.values import PositiveInt, UsageError, check, one_line
from specdec.models import families
from specdec.models.contract.model import Model
from specdec.predict.hardware import Topology
from specdec.report.replicate import results
from specdec.report.replicate.replication import Described, Replication, chosen, overview
from specdec.report.replicate.steps import Choices, Ended, Journal
from specdec.report.replicate.study import Study, names, read

LOCAL = re.compile(r"(?!.*://)(?![\w-][\w.-]*/[\w-][\w.@/-]*$).+")  # no name of the hub either
CHECKPOINT = re.compile(r"CHECKPOINT_PATH|^--(target|draft)=")
UNREAD = {"CHECKPOINT_PATH": "(none)", "DRAFT_CHECKPOINT_PATH": "(none)"}


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "replicate",
        help="a paper's table: published, predicted and measured",
        description="Runs the rows of a study: predictions for chips, acceptance, speed-up, "
        "metrics. Says first what each row lacks. A study that was interrupted goes on when the "
        "command is given again. Writes page.md, page.html, page.tex and page.json.",
    )
    parser.add_argument("study", metavar="STUDY", help=f"{', '.join(names())}, or a TOML file")
    parser.add_argument(
        "--output_dir", metavar="DIR", help="gets all files (default: replicate_STUDY)"
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="print the plan, with memory, predictions and minutes, and measure nothing",
    )
    parser.add_argument(
        "--use",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="where something is that rows need: a path here, a gs:// path, or a name of the hub; "
        "may repeat",
    )
    parser.add_argument(
        "--rows", metavar="NAME,...", help="only these rows; * and ? stand for others"
    )
    parser.add_argument(
        "--topology",
        action="append",
        metavar="NAME",
        help="chips to predict for, as of `specdec compile`; may repeat (default: the study's)",
    )
    parser.add_argument(
        "--grown",
        metavar="PRESET",
        help="measure rows whose checkpoints are missing with the embedded pair, its target grown "
        "to this size, such as t5_1_1_base; their figures say GROWN",
    )
    parser.add_argument(
        "--synthetic",
        action="store_true",
        help="with --grown: keep draft tokens with the published acceptance rate; figures say "
        "SYNTHETIC NOT EXACT",
    )
    parser.add_argument(
        "--certify", action="store_true", help="also check that rows that sample are exact"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="texts of each measurement (default: the study's)"
    )
    parser.add_argument(
        "--compare", metavar="DIR", help="also show the figures of an earlier folder"
    )
    _add_run_flags(parser)
    parser.set_defaults(command=_command, resumes_from="study")
    return parser


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of all runs that are measured."""
    parser.add_argument(
        "--gin.NAME",
        dest="gin_bindings",
        action="append",
        default=[],
        metavar="VALUE",
        help="one setting of every run that is measured, such as --gin.DTYPE=\"'bfloat16'\"",
    )
    parser.add_argument(
        "--tfds_data_dir", metavar="DIR", help="where TFDS data sets have been prepared"
    )


def _command(args: argparse.Namespace) -> None:
    study, choices = _study_and_choices(args)
    earlier = results.earlier(args.compare, study) if args.compare else None
    machine.refuse_unwritable_folder("--output_dir", str(choices.folder))
    jax.config.update("jax_platforms", "cpu")  # devices belong to the commands of rows
    file = choices.folder / "replicate.jsonl"
    lock, is_new = choices.folder / ".lock", not choices.folder.exists()
    with locked(choices.folder, lock, "--output_dir", "*"):
        journal = Journal(Lines.of(file, _in_force(study, choices), kind=Ended))
        replication = Replication(study, choices, journal, functools.partial(_described, args))
        try:
            planned = replication.plan()
        except UsageError:
            if is_new and not file.exists():  # nothing has run
                shutil.rmtree(choices.folder)
            raise
        print(*overview(study, planned), sep="\n", flush=True)
        if args.dry_run:
            return
        for line in replication.run(planned):
            print(line, file=sys.stderr, flush=True)
        first, *others, last = replication.show(planned, earlier)
    print(f"wrote {choices.folder / first}, {', '.join(others)} and {last}")
    if "page.html" not in others:
        print("page.html and figures need jinja2 and matplotlib; pip install both and run it again")


def _study_and_choices(args: argparse.Namespace) -> tuple[Study, Choices]:
    check("--limit", args.limit, PositiveInt | None, UsageError)
    study = read(args.study)
    study = chosen(study, args.rows.split(",") if args.rows else ())
    use = dict(_used(text, study) for text in args.use)
    if args.synthetic and args.grown is None:
        raise UsageError("--synthetic draws the acceptance of grown models; give --grown as well")
    if args.grown and not any(row.grown for row in study.rows):
        raise UsageError(
            f"--grown is {args.grown}, and no row of {study.name} has a stand-in; leave --grown out"
        )
    topologies = study.topologies if args.topology is None else args.topology
    with one_line():
        for name in topologies:
            Topology.parse(name)
    more = [f"--tfds_data_dir={args.tfds_data_dir}"] if args.tfds_data_dir else []
    return study, Choices(
        folder=Path(args.output_dir or f"replicate_{study.name}"),
        use=use,
        topologies=topologies,
        flags=[*more, *(f"--gin.{binding}" for binding in args.gin_bindings)],
        tfds_data_dir=args.tfds_data_dir,
        grown=args.grown,
        synthetic=args.synthetic,
        limit=args.limit,
        certify=args.certify,
    )


def _used(text: str, study: Study) -> tuple[str, str]:
    """Returns the name and the path of `--use`; names of the hub and gs:// paths are read later."""
    name, _, path = text.partition("=")
    if name not in study.needs or not path:
        known = ", ".join(study.needs) or "none, as the study needs nothing"
        raise UsageError(f"--use is {text!r}; give NAME=PATH, with a name of {known}")
    flag = study.needs[name].flag
    with one_line(f"--use={name}: "):
        if flag.startswith("--input_file"):
            given_texts(path)
        elif LOCAL.fullmatch(path) or os.path.exists(path):
            if CHECKPOINT.search(flag):
                checkpoints.locate(path)
            elif not os.path.exists(path):
                raise UsageError(f"{path} does not exist; give {study.needs[name].what}")
    return name, path


def _in_force(study: Study, choices: Choices) -> str:
    """Returns the settings that a folder was begun with; rows may come and go."""
    fields = "grown", "synthetic", "limit", "flags"
    lines = {"study": study.name, **{name: getattr(choices, name) for name in fields}}
    return "".join(f"{name} = {value!r}\n" for name, value in lines.items())


def _described(
    args: argparse.Namespace, flags: Sequence[str], sizes: Mapping[str, str]
) -> Described:
    """Returns the run of some flags, its models resized to presets; raises UsageError."""
    argv = ["eval", "--output_dir=-", *flags, "--gin.TASK=None"]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parsed = args.overview.parse_args(settings.joined(argv))
    except SystemExit as error:
        raise UsageError(errors.getvalue().removeprefix("specdec: ").strip()) from error
    parsed.input_file = None
    parsed.gin_file = [Own(file) if resources.gin_file(file) else file for file in parsed.gin_file]
    run = runs.described(parsed, UNREAD)
    models = {role: model for role, model in run.plan.models().items() if isinstance(model, Model)}
    larger = {
        role: families.model_of(
            families.resized(models[role].config, preset("--grown", name, models[role]).config)
        )
        for role, name in sizes.items()
    }
    plan = run.placement.divided(run.plan.with_models(larger))
    return Described(plan, run.data.lengths["inputs"])
