"""`specdec compile`: a run's programs, compiled for TPUs that need not be present."""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
from tqdm import tqdm

from specdec.cli import compile_training, output, settings
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.common import progress
from specdec.common.environment import environment
from specdec.common.records import as_json, write
from specdec.common.values import Probability, UsageError, check
from specdec.decoding.beam_plan import AnyPlan
from specdec.engine import in_eight_bits
from specdec.models import families, partitioning
from specdec.models.contract.inputs import check_room
from specdec.models.contract.model import Model
from specdec.plan import Plan
from specdec.predict import compile_record, compile_report
from specdec.predict.compilation import Compilation, compile_for, program_count
from specdec.predict.hardware import Topology
from specdec.predict.roofline import PAPER_ALPHAS

OF_PAPER = families.DEFAULT  # the family whose acceptance rates the paper has
# What a run must set, and nothing here reads.
UNREAD = ("CHECKPOINT_PATH", "DRAFT_CHECKPOINT_PATH")


def command(args: argparse.Namespace) -> None:
    output.check(args, holding="topologies")
    for alpha in args.alpha or ():
        check("--alpha", alpha, Probability, UsageError)
    try:
        topologies = [Topology.parse(name) for name in args.topology]
    except ValueError as error:
        raise UsageError(str(error)) from error
    jax.config.update("jax_platforms", "cpu")  # with libtpu installed JAX would look for a TPU
    jax.config.update("jax_compilation_cache_dir", None)  # what is read from it has no code to read
    if compile_training.describes(args):
        write = functools.partial(_write, args.output_file)
        return compile_training.compile_run(args, topologies, write)
    if args.largest_batch:
        raise UsageError("--largest_batch is of training runs, gin files of `specdec train`")
    args.gin_bindings.append("TASK=None")  # it would ask for its data set and its vocabulary
    has_texts, args.text, args.input_file = args.text or args.input_file, None, None
    run = runs.described(args, unneeded=dict.fromkeys(UNREAD, "(none)"))
    if has_texts:
        lengths = {**run.data.lengths, "targets": run.plan.max_length}
        print(
            f"compile: no text is read; programs are for the lengths {lengths}, which "
            "--gin.TASK_FEATURE_LENGTHS changes",
            file=sys.stderr,
        )
    plan = run.placement.divided(in_eight_bits(run.plan, run.int8, run.int8_tokens))
    alphas = acceptance_rates(args.alpha, run)
    if run.beams:
        if args.alpha:
            raise UsageError("--alpha is of tokens, and the run searches with beams; leave it out")
        plan = run.beams.plan(plan)
    elif not args.whole_only:  # the target alone has no speed-up to predict
        runs.require_baseline(run)
    records, parts = [], not args.whole_only
    count = len(topologies) * program_count(plan, parts)
    with progress.bar("compiling", count, "program") as bar:
        for topology in topologies:
            compilation = _compiled(topology, run, plan, bar, parts=parts)
            records.append(compile_record.record(topology, compilation, alphas))
            with bar.external_write_mode(file=sys.stdout):
                print(*compile_report.lines(records[-1]), sep="\n", flush=True)
            _write(args.output_file, records, compile_report.markdown(records))
    print(*compile_report.explanation(records), sep="\n")


def acceptance_rates(alphas: list[float] | None, run: DecodeRun) -> dict[str, float]:
    """Returns the acceptance rates to predict for, by label; those of a paper if none are given."""
    models = run.plan.models().values()
    target, *drafts = (model for model in models if isinstance(model, Model))
    is_pair = alphas is None and len(drafts) == 1
    if is_pair and families.family_of(target.config).presets == OF_PAPER:
        if of_paper := PAPER_ALPHAS.get(drafts[0].sizes.get("emb_dim", 0)):
            return dict(of_paper)
    return {f"{alpha:g}": alpha for alpha in alphas or (0.5, 0.6, 0.7, 0.8, 0.9)}


def _compiled(
    topology: Topology, run: DecodeRun, plan: AnyPlan, bar: tqdm, *, parts: bool
) -> Compilation:
    """Returns the run's programs for a topology; the bar shows the one that is being compiled."""
    done = itertools.count(int(bar.n))

    def show(name: str) -> None:
        bar.update(next(done) - bar.n)
        bar.set_description(f"{topology.name}: compiling {name}")

    try:
        devices = topology.devices()
        count = run.placement.partitioner.num_partitions or len(devices)
        mesh = partitioning.make_mesh(count, devices)
        check_room(plan.models(), run.data.lengths["inputs"], plan.max_length)
        placed, paths = run.placement.over(mesh), run.paths()
        tables = plan.tables() if isinstance(plan, Plan) else {}
        compilation = compile_for(
            plan,
            (run.data.batch_size, run.data.lengths["inputs"]),
            mesh,
            tables={role: placed.shape(x, paths[role]) for role, x in tables.items()},
            widths=run.data.widths if run.data.refill else (),
            parts=parts,
            progress=show,
        )
        bar.update(next(done) - bar.n)
        return compilation
    except (ValueError, RuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise
        raise UsageError(f"{topology.name}: {error}") from error


def _write(path: str | None, records: Sequence[Mapping[str, object]], tables: str) -> None:
    if path is None:
        return
    report = {
        "environment": environment(),
        "settings": settings.in_force(),
        "topologies": records,
    }
    write(Path(path), f"{as_json(report, indent=2)}\n")
    write(Path(f"{path}.md"), tables)
