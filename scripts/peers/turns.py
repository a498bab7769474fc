"""The command: a run of gin files, its engines, and their turns."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import engines
import jax
import table
from table import PEERS, Record
from tqdm import tqdm

from specdec import checkpoints, tasks
from specdec.cli import flags, output, settings
from specdec.cli import run as runs
from specdec.common.environment import environment
from specdec.common.records import RecordsError
from specdec.common.values import UsageError
from specdec.decoding.program import batch_shapes
from specdec.engine import Store
from specdec.measure import benchmarking
from specdec.measure.parts import Workload
from specdec.sampling import looks_back
from specdec.texts.measured_run import Run

PACKAGES = ("torch", "transformers", "ctranslate2")
WARM_UPS = 3
BUCKET = 16  # of tokens: our inputs are padded to a multiple of it, as BUCKETS does in a run


def main(argv: Sequence[str], threads: argparse.ArgumentParser) -> int:
    """Runs the command and returns the exit code; `threads` has the flag that is read before."""
    args = _parser(threads).parse_args(settings.joined(argv))
    try:
        with contextlib.ExitStack() as args.contexts:
            if args.table:
                _print_tables(args.table)
            else:
                _compare(args)
    except (UsageError, RecordsError, tasks.TaskError, checkpoints.CheckpointError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("compare: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


def _parser(threads: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compare",
        description="Times other engines on a run's weights, by turns with specdec, alone and "
        "speculative, in one process: greedy, one text at a time. Takes the gin files of `specdec "
        f"bench`. Measures {benchmarking.LIMIT} texts unless there is a limit. What was "
        "interrupted goes on when the command is given again.",
        parents=[threads],
        allow_abbrev=False,
    )
    flags.add_flags(parser)
    add = parser.add_argument
    add("--repeats", type=int, default=3, metavar="N", help="of each text (default: %(default)s)")
    add("--peers", metavar="A,B,...", help=f"some of {', '.join(PEERS)} (default: all there are)")
    add(
        "--pause",
        type=float,
        default=0.3,
        metavar="S",
        help="seconds before each generation, for the threads of the engine before to stop waiting "
        "for work (default: %(default)s)",
    )
    add("--output_file", metavar="FILE", help="write JSON lines, one object per generation")
    add(
        "--work_dir",
        metavar="DIR",
        help="where converted checkpoints are kept (default: checkpoints, beside the output file)",
    )
    add("--table", nargs="+", metavar="FILE", help="print what is in these files, measure nothing")
    return parser


def _print_tables(paths: Sequence[str]) -> None:
    for path in paths:
        if not Path(path).is_file():
            raise UsageError(f"--table {path} is not a file; give an earlier --output_file")
        print(f"\n{path}\n", *table.lines(table.read(path)), sep="\n")


def _compare(args: argparse.Namespace) -> None:
    _check(args)
    device = _device()
    names = _names(args.peers, device)
    run = _comparable(runs.opened(args))
    in_force = settings.in_force()
    texts = {text: ids[ids != 0].tolist() for text, ids in benchmarking.texts_of(run).items()}
    work = _work(run, texts.values(), args.threads, device)
    about = {
        "gin": in_force,
        "peers": names,
        "threads": args.threads,
        "pause": args.pause,
        **environment(),
        "versions_of_peers": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
    file = table.File(args.output_file, about)
    # All that can be wrong has been looked at; from here on it takes long.
    work_dir = Path(args.work_dir or Path(args.output_file).parent / "checkpoints").absolute()
    loaded = _ours(run, work) | _peers(names, run, work, work_dir)
    ready = warmed_up(loaded, texts.values(), work.lengths, run)
    skip = file.resume(ready)
    print(f"{len(ready)} engines on {device}, {args.threads} threads each", file=sys.stderr)
    records = measure(ready, texts, repeats=args.repeats, skip=skip, pause=args.pause)
    total = len(ready) * (len(texts) * args.repeats - len(skip))
    for record in tqdm(records, total=total, unit="generation", disable=not sys.stderr.isatty()):
        file.write(record)
    print(*table.lines(table.read(args.output_file)), sep="\n")


def measure(
    ready: Mapping[str, Any],
    texts: Mapping[int, list[int]],
    *,
    repeats: int,
    skip: Collection[tuple[int, int]] = (),
    pause: float = 0.0,
) -> Iterator[Record]:
    """Times every engine on each text, from ids on the host to ids on the host.

    Whichever came second for a text comes first for the next one, and for the same text in the
    next repeat (`turn`).

    Args:
      ready: name -> engine, in the order of the first turn.
      texts: example index -> ids without padding.
      skip: pairs of a repeat and a text that have been measured before.
      pause: seconds before each generation.
    """
    for repeat in range(repeats):
        for place, (text, ids) in enumerate(texts.items()):
            if (repeat, text) not in skip:
                for name in turn(list(ready), place + repeat):
                    time.sleep(pause)
                    start = time.perf_counter()
                    tokens = ready[name].generate(ids)
                    yield Record(name, text, repeat, time.perf_counter() - start, tokens)


def turn(names: Sequence[str], number: int) -> list[str]:
    """The order of the engines, each first in one of len(names) turns."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def _ours(run: Run, work: engines.Work) -> dict[str, Any]:
    """The programs of `specdec bench`, compiled for each length."""
    workload = Workload.of(run.plan, run.engine.alone().plan)
    trees = benchmarking.trees_of(run, Store(run.placement).read)
    params = jax.device_put(workload.params(trees))
    shapes = functools.partial(batch_shapes, run.plan.target, 1)
    return {
        mode: engines.Specdec(
            {x: program.compile(params[mode], *shapes(x)) for x in work.lengths},
            params[mode],
        )
        for mode, program in workload.generations.items()
    }


def _peers(names: list[str], run: Run, work: engines.Work, work_dir: Path) -> dict[str, Any]:
    paths = run.paths()
    folders = {
        role: engines.export(model.config, paths[role], role, work_dir)
        for role, model in run.plan.models().items()
    }
    return engines.peers(names, folders["target"], folders["draft"], work)


def warmed_up(
    loaded: Mapping[str, Any], texts: Iterable[list[int]], lengths: Sequence[int], run: Run
) -> dict[str, Any]:
    """Returns the engines that run, after some generations that are not timed.

    The first generations of a program are slower. Each padded length has a program of its own, so
    each engine generates from a text of each length.
    """
    of_each = list({engines.padded(ids, lengths).size: ids for ids in texts}.values())
    ready, left_out = {}, []
    for name, engine in loaded.items():
        try:
            for ids in WARM_UPS * of_each:
                engine.generate(ids)
            ready[name] = engine
        except IndexError:
            if not _has_deeper_decoder(run):
                raise
            left_out.append(table.LABELS[name])
    if left_out:
        print(
            f"compare: left out: {', '.join(left_out)}; for a decoder deeper than its encoder "
            "transformers makes too short a cache; `specdec grow` both models to a preset as deep "
            "on both sides",
            file=sys.stderr,
        )
    return ready


def _has_deeper_decoder(run: Run) -> bool:
    configs = [model.config for model in run.plan.models().values()]
    return any(config.num_decoder_layers > config.num_encoder_layers for config in configs)


def _check(args: argparse.Namespace) -> None:
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise UsageError(
            f"not installed: {', '.join(missing)}; pip install -r scripts/peers/requirements.txt"
        )
    if args.output_file is None:
        raise UsageError("nothing says where generations are written; give --output_file=FILE")
    if args.repeats < 1 or args.pause < 0:
        raise UsageError(f"--repeats is {args.repeats} and --pause {args.pause}; give more")
    output.check(args)


def _work(run: Run, texts: Collection[list[int]], threads: int, device: str) -> engines.Work:
    plan = run.plan
    if plan.gamma is None or plan.models().keys() != {"target", "draft"}:
        raise UsageError(
            f"the plan is {plan}; others draft a fixed number of tokens with a model: take "
            "drafters/autoregressive.gin and schedules/fixed.gin"
        )
    if len(plan.stop_ids) != 1:
        raise UsageError(f"stop_ids is {plan.stop_ids}; others end a text with one id")
    longest = run.data.lengths["inputs"]
    lengths = {min(-(-len(ids) // BUCKET) * BUCKET, longest) for ids in texts}
    return engines.Work(
        lengths=tuple(sorted(lengths)),
        max_length=plan.max_length,
        eos_id=plan.stop_ids[0],
        gamma=plan.gamma,
        threads=threads,
        device=device,
    )


def _comparable(run: Run) -> Run:
    """The run, one text at a time."""
    data, mesh = run.data, run.placement.mesh
    if not run.plan.sampling.greedy:
        raise UsageError(
            f"sampling is {run.plan.sampling}; greedy outputs are compared, leave it out"
        )
    if data.decoder_prefix or looks_back(run.plan.sampling):
        raise UsageError("decoder_prefix or a processor is set; leave them out, peers have none")
    if mesh is not None:
        raise UsageError(f"the run has {mesh.size} devices; leave NUM_PARTITIONS out")
    limit = benchmarking.LIMIT if data.limit is None else data.limit
    data = dataclasses.replace(data, batch_size=1, buckets=(), limit=limit)
    engine = dataclasses.replace(run.engine, rows=1)
    engine = engine.variant(stop_ids=(engine.vocabulary.eos_id,))
    return dataclasses.replace(run, data=data, engine=engine)


def _device() -> str:
    """JAX's, as the others call it."""
    import torch

    backend = jax.default_backend()
    if backend == "cpu":
        return "cpu"
    if backend == "gpu" and torch.cuda.is_available():
        return "cuda"
    raise UsageError(
        f"JAX runs on {backend} and this PyTorch cannot; set JAX_PLATFORMS=cpu, or install one "
        "for the same device"
    )


def _names(chosen: str | None, device: str) -> list[str]:
    """Of the peers, in our order."""
    absent = set() if device == "cuda" else {"huggingface_compiled"}
    absent |= set() if importlib.util.find_spec("t5x") else {"t5x"}
    known = [name for name in PEERS if name not in absent]
    names = known if chosen is None else chosen.split(",")
    if unknown := [name for name in names if name not in known]:
        raise UsageError(
            f"--peers has {unknown[0]!r}; here, on {device}, there are {', '.join(known)}"
        )
    return [name for name in known if name in names]
