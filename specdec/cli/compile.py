"""`specdec compile`: compiles a run's programs for TPUs that need not be present."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
from jax.sharding import Mesh
from tqdm import tqdm

from specdec.cli import output, settings, shorthands
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.common import progress
from specdec.common.environment import environment
from specdec.common.records import as_json, write
from specdec.common.values import Probability, UsageError, check, one_line
from specdec.decoding.beam_plan import AnyPlan
from specdec.engine import Placement, in_eight_bits
from specdec.models import families, partitioning
from specdec.models.contract.inputs import check_room
from specdec.models.contract.model import Model
from specdec.plan import Plan
from specdec.predict import compile_record, compile_report
from specdec.predict.compilation import Compilation, compile_for, program_count
from specdec.predict.hardware import Topology
from specdec.predict.roofline import PAPER_ALPHAS

OF_PAPER = families.DEFAULT  # the family whose acceptance rates the paper has
TRAINING = "training.TrainRun"  # what gin files of a training run bind
# Macros that a run must set and that compiling does not read.
UNREAD = ("CHECKPOINT_PATH", "DRAFT_CHECKPOINT_PATH")


def command(args: argparse.Namespace) -> None:
    output.check(args, holding="topologies")
    for alpha in args.alpha or ():
        check("--alpha", alpha, Probability, UsageError)
    with one_line():
        topologies = [Topology.parse(name) for name in args.topology]
    jax.config.update("jax_platforms", "cpu")  # with libtpu installed JAX would look for a TPU
    jax.config.update("jax_compilation_cache_dir", None)  # cached programs lack the code to analyse
    if settings.binds(args, TRAINING):
        return _compile_training(args, topologies)
    if args.largest_batch:
        raise UsageError("--largest_batch is for training runs, gin files of `specdec train`")
    args.gin_bindings.append("TASK=None")  # a task would read its data set and its vocabulary
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
            raise UsageError("--alpha is for runs without beams; leave it out")
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
    """Returns the acceptance rates to predict for, by label; by default published ones."""
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
    """Compiles the run's programs for a topology; the bar names the program being compiled."""
    done = itertools.count(int(bar.n))

    def show(name: str) -> None:
        bar.update(next(done) - bar.n)
        bar.set_description(f"{topology.name}: compiling {name}")

    with _one_line(topology):
        mesh = _mesh(topology, run.placement)
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


def _compile_training(args: argparse.Namespace, topologies: Sequence[Topology]) -> None:
    """Compiles the update step of a training run, and prints its memory and its predicted speed."""
    _refuse_flags_of_decoding(args)
    from specdec import training  # optax, which compiling for decoding does not need
    from specdec.predict import update_report
    from specdec.predict.update import compile_update, largest_batch

    shorthands.add_input_settings(args, training=True)
    args.gin_bindings.append("TASK='(none)'")  # a task would read its data set and vocabulary
    run = settings.build(training.TrainRun, args, {}, {"TARGET_CHECKPOINT_PATH": "(none)"})
    records = []

    def write_all() -> None:
        _write(args.output_file, records, update_report.update_markdown(records))

    with progress.bar("compiling", len(topologies), "topology") as bar:

        def show(name: str) -> None:
            bar.set_description(f"{topology.name}: compiling {name}")

        for topology in topologies:
            with _one_line(topology):
                mesh = _mesh(topology, run.placement)
                update = compile_update(run, mesh, progress=show)
                records.append(update_report.update_record(topology, update))
                write_all()
                if args.largest_batch:
                    largest = largest_batch(run, mesh, topology.chip, update, progress=show)
                    records[-1] = update_report.update_record(topology, update, largest)
            bar.update(1)
            with bar.external_write_mode(file=sys.stdout):
                print(*update_report.update_lines(records[-1]), sep="\n", flush=True)
            write_all()
    print(*update_report.update_explanation(), sep="\n")


def _refuse_flags_of_decoding(args: argparse.Namespace) -> None:
    """Raises UsageError for a flag that only decoding has."""
    for name in (*shorthands.OF_DECODING, "alpha", "limit", "seed"):
        if (value := getattr(args, name)) is not None:
            raise UsageError(
                f"--{name} is {value!r}, and the gin files describe a training run; it is for "
                "decoding, so leave it out"
            )
    if args.whole_only:
        raise UsageError("--whole_only is for decoding; leave it out for a training run")


def _mesh(topology: Topology, placement: Placement) -> Mesh:
    """Returns a mesh of a topology's chips, with all of them unless the placement says how many."""
    devices = topology.devices()
    count = placement.partitioner.num_partitions or len(devices)
    return partitioning.make_mesh(count, devices)


@contextlib.contextmanager
def _one_line(topology: Topology) -> Iterator[None]:
    """Converts errors about a topology to UsageErrors, except those of the compiler."""
    try:
        yield
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
