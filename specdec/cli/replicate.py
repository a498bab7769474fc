"""`specdec replicate`: puts published, predicted and measured rows of a paper's table together."""

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
from specdec.report.replicate.study import Study, read

LOCAL = re.compile(r"(?!.*://)(?![\w-][\w.-]*/[\w-][\w.@/-]*$).+")  # nor a hub's name
CHECKPOINT = re.compile(r"CHECKPOINT_PATH|^--(target|draft)=")
UNREAD = {"CHECKPOINT_PATH": "(none)", "DRAFT_CHECKPOINT_PATH": "(none)"}


def command(args: argparse.Namespace) -> None:
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
        print(
            "page.html and figures need packages; pip install jinja2 matplotlib, and run it again"
        )


def _study_and_choices(args: argparse.Namespace) -> tuple[Study, Choices]:
    check("--limit", args.limit, PositiveInt | None, UsageError)
    study = read(args.study)
    study = chosen(study, args.rows.split(",") if args.rows else ())
    use = dict(_used(text, study) for text in args.use)
    if args.synthetic and args.grown is None:
        raise UsageError("--synthetic draws the acceptance of grown models; give --grown as well")
    if args.grown and not any(row.grown for row in study.rows):
        raise UsageError(
            f"--grown is {args.grown}, and no row of {study.name} can be grown; leave --grown out"
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
    """Returns the name and path of a `--use` flag; checks local paths and no remote ones."""
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
    """Returns the settings that must stay the same when a folder is used again; rows may change."""
    fields = "grown", "synthetic", "limit", "flags"
    lines = {"study": study.name, **{name: getattr(choices, name) for name in fields}}
    return "".join(f"{name} = {value!r}\n" for name, value in lines.items())


def _described(
    args: argparse.Namespace, flags: Sequence[str], sizes: Mapping[str, str]
) -> Described:
    """Returns the plan and input length that flags describe, with models resized to presets."""
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
