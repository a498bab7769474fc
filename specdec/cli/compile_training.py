"""`specdec compile` of a training run: the program of an update, for TPUs that are not there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import jax
from tqdm import tqdm

from specdec.cli import settings, shorthands
from specdec.common import progress
from specdec.common.values import UsageError
from specdec.models import partitioning
from specdec.predict.hardware import Topology

RUN = "training.TrainRun"  # what gin files bind
# What a run must set, and nothing here reads.
UNREAD = {"TARGET_CHECKPOINT_PATH": "(none)"}


def describes(args: argparse.Namespace) -> bool:
    """Returns whether the gin files are those of a training run."""
    return settings.binds(args, RUN)


def compile_run(args: argparse.Namespace, topologies: Sequence[Topology], write) -> None:
    """Compiles the update of a training run, and prints its figures."""
    _refuse(args)
    from specdec import training  # optax, which compiling for decoding does not need
    from specdec.predict import update_report
    from specdec.predict.update import compile_update, largest_batch

    shorthands.add_input_settings(args, training=True)
    args.gin_bindings.append("TASK='(none)'")  # it would ask for its data set and its vocabulary
    run = settings.build(training.TrainRun, args, {}, UNREAD)
    records = []
    with progress.bar("compiling", len(topologies), "topology") as bar:
        for topology in topologies:
            show = _shower(bar, topology)
            try:
                devices = topology.devices()
                count = run.placement.partitioner.num_partitions or len(devices)
                mesh = partitioning.make_mesh(count, devices)
                update = compile_update(run, mesh, progress=show)
                records.append(update_report.update_record(topology, update))
                write(records, update_report.update_markdown(records))
                if args.largest_batch:
                    largest = largest_batch(run, mesh, topology.chip, update, progress=show)
                    records[-1] = update_report.update_record(topology, update, largest)
            except (ValueError, RuntimeError, training.TrainingError) as error:
                if isinstance(error, jax.errors.JaxRuntimeError):
                    raise
                raise UsageError(f"{topology.name}: {error}") from error
            bar.update(1)
            with bar.external_write_mode(file=sys.stdout):
                print(*update_report.update_lines(records[-1]), sep="\n", flush=True)
            write(records, update_report.update_markdown(records))
    print(*update_report.update_explanation(), sep="\n")


def _shower(bar: tqdm, topology: Topology):
    """Returns a function that shows on the bar what is being compiled."""
    return lambda name: bar.set_description(f"{topology.name}: compiling {name}")


def _refuse(args: argparse.Namespace) -> None:
    """Raises UsageError for flags that are of decoding."""
    for name in (*shorthands.OF_DECODING, "alpha", "limit", "seed"):
        if (value := getattr(args, name)) is not None:
            raise UsageError(
                f"--{name} is {value!r}, and the gin files describe a training run, which has "
                "none; leave it out"
            )
    if args.whole_only:
        raise UsageError("--whole_only is of decoding; leave it out for a training run")
