"""`specdec forecast`: the speed-up at every draft length, from texts that were written once."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specdec import acceptance, forecast
from specdec.acceptance import Accepted
from specdec.cli import output, passes, settings
from specdec.cli import run as runs
from specdec.cli.bench import refuse_twice, with_variant
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.forecast import Costs, Forecast, Replayed
from specdec.plan import Plan
from specdec.schedules import Fixed
from specdec.types import PyTree
from specdec.values import PositiveInt, check
from specdec.verifiers import Block, SpeculativeSampling

GAMMAS = "1-10"


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "forecast",
        help="the speed-up at every draft length, from texts that were written once",
        description="Replays the texts that `specdec acceptance --output_file` has written, with "
        "the run's drafter at each draft length, which counts target calls; with the seconds of "
        "the parts that is a speed-up, beside that of the papers' formula and that of an oracle "
        "whose drafts stop just before their first refusal. At temperature 0 the calls are those "
        "of the engine. Takes the gin files of `specdec decode`.",
        allow_abbrev=False,
    )
    runs.add_flags(parser)
    parser.add_argument(
        "--passes",
        required=True,
        metavar="FILE",
        help="what `specdec acceptance --output_file=FILE` wrote of the same texts",
    )
    parser.add_argument(
        "--gammas",
        metavar="N,...",
        help=f"draft lengths, as 3, 1,2,4 or 1-10 (default: {GAMMAS}, as far as outputs have room)",
    )
    parser.add_argument(
        "--costs",
        metavar="FILE",
        help="seconds of the parts: the lines of `specdec bench`, or the JSON of `specdec compile` "
        "(default: they are measured here)",
    )
    parser.add_argument(
        "--topology", metavar="NAME", help="which of those that `specdec compile` wrote"
    )
    parser.add_argument(
        "--batch_size",
        type=int,
        default=1,
        metavar="N",
        help="texts that are decoded together, in the order of the passes (default: %(default)s)",
    )
    parser.add_argument(
        "--variant",
        action="append",
        metavar="NAME=VALUE;...",
        help="gin settings, or gin files, of one of several drafters, as of `specdec bench`; one "
        "that draws needs passes of its own; may repeat",
    )
    parser.add_argument(
        "--output_file",
        metavar="FILE",
        help="write JSON lines, one object per draft length, and the settings in force to FILE.gin",
    )
    parser.set_defaults(command=_command)
    return parser


class Variant(NamedTuple):
    """A drafter for the texts of the passes."""

    name: str
    run: DecodeRun
    in_force: str
    alpha: float | None  # of its own, teacher-forced


def _command(args: argparse.Namespace) -> None:
    gammas = _gammas(args.gammas or GAMMAS)
    check("--batch_size", args.batch_size, PositiveInt, UsageError)
    check_costs(args)
    reads = [file for file in (args.passes, args.costs) if file]
    output.check(args, inputs=[*reads, f"{args.passes}.gin"])
    given = forecast.read(args.costs, args.topology) if args.costs else None
    texts = passes.read(args.passes)
    if len(texts) < args.batch_size:
        raise UsageError(
            f"--batch_size is {args.batch_size} and --passes {args.passes} has {len(texts)} texts; "
            "give a smaller one"
        )
    variants = list(_variants(args, texts, gammas))
    room = min(forecast.longest(one.run.plan) for one in variants)
    gammas = [gamma for gamma in gammas if gamma <= room]
    # All that can be wrong has been looked at; from here on it takes long.
    lines = settings.json_lines(args.output_file, variants[0].in_force)
    for one in variants:
        lengths = (None, *range(1, gammas[-1] + 1))
        costs = (
            {x: given for x in lengths}
            if given
            else _measured(one.run, texts, gammas, args.batch_size)
        )
        source, found = next(iter(costs.values())).source, []
        for plan in _plans(one.run.plan, gammas):
            found.append(_forecast(one, plan, texts, costs, args.batch_size))
            if lines:
                lines.append(_line(one, plan, found[-1], source))
        if one.name:
            print(f"\n{one.name}")
        plan = one.run.plan
        name = type(plan.drafter).__name__ if plan.drafts else plan.target
        print(f"{name}, {plan.sampling}, {source}")
        print(*forecast.lines(found), sep="\n", flush=True)


def check_costs(args: argparse.Namespace) -> None:
    """Raises UsageError for flags about costs that do not go together."""
    if args.topology and not args.costs:
        raise UsageError(f"--topology is {args.topology} without --costs; give that file")
    if args.batch_size > 1 and args.costs:
        raise UsageError(
            f"--costs are of one text at a time and --batch_size is {args.batch_size}; leave one "
            "of them out"
        )


def _gammas(text: str) -> list[int]:
    """Ascending."""
    found = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if ends is None or int(ends[1]) < 1 or int(ends[2] or ends[1]) < int(ends[1]):
            raise UsageError(
                f"--gammas is {text!r}; give draft lengths from 1 on, as 1,2,4 or 1-10"
            )
        found |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return sorted(found)


def _variants(
    args: argparse.Namespace, texts: Sequence[Accepted], gammas: Sequence[int]
) -> Iterator[Variant]:
    """Each with its run; all of the texts and the target of the passes."""
    refuse_twice(args.variant or ())
    for name in args.variant or [""]:
        run = runs.build(with_variant(args, name))
        runs.require_baseline(run)
        in_force = runs.in_force(run, "forecast")
        names = dict(acceptance.recorded(run.plan.drafter))
        own = passes.check(args.passes, in_force, run, texts, names)
        _check(args, run, texts, gammas)
        tokens = sum(text.tokens for text in texts)
        alpha = sum(text.accepted["model"][0] for text in texts) / tokens if own else None
        yield Variant(name, run, in_force, alpha)


def _check(
    args: argparse.Namespace, run: DecodeRun, texts: Sequence[Accepted], gammas: Sequence[int]
) -> None:
    """Raises UsageError for a run that cannot be foretold."""
    plan = run.plan
    if gammas[0 if args.gammas is None else -1] > forecast.longest(plan):
        raise UsageError(
            f"--gammas has {gammas[-1]} but {forecast.bound(plan)}; give shorter drafts"
        )
    if not plan.verifier.exact:
        raise UsageError(f"VERIFIER is {plan.verifier}, which is not exact; give one that is")
    draws = any(forecast.kind_of(x) == "ratio" for _, x in acceptance.recorded(plan.drafter))
    known = isinstance(plan.verifier, Block | SpeculativeSampling)
    if draws and not plan.sampling.greedy and not known:
        raise UsageError(
            f"VERIFIER is {plan.verifier}, and passes of drawn texts say what block verification "
            "and speculative sampling keep; give verifiers/block.gin"
        )
    if run.placement.mesh is not None and not args.costs:
        raise UsageError("parts are measured on one device alone; give --costs of `specdec bench`")
    try:
        forecast.check(plan, texts)
    except ValueError as error:
        raise UsageError(f"--passes {args.passes}: {error}") from error


def _plans(plan: Plan, gammas: Sequence[int]) -> list[Plan]:
    """One for each draft length, and the run's own if its lengths vary, or nothing is drafted."""
    if not plan.drafts:
        return [plan]
    fixed = [dataclasses.replace(plan, schedule=Fixed(gamma)) for gamma in gammas]
    return [*fixed, plan] if plan.lengths_vary else fixed


def _measured(
    run: DecodeRun, texts: Sequence[Accepted], gammas: Sequence[int], rows: int
) -> dict[int | None, Costs]:
    """Of all draft lengths up to the longest one, for the oracle; each plan in its own layout."""
    plans = {plan.gamma: plan for plan in _plans(run.plan, range(1, gammas[-1] + 1))}
    return measured(run, texts, plans, rows)


def measured(
    run: DecodeRun, texts: Sequence[Accepted], plans: Mapping[Any, Plan], rows: int = 1
) -> dict[Any, Costs]:
    """The costs of plans on this device, so many texts at a time and each plan in a layout of its
    own, as `specdec bench` does it with one."""
    data = dataclasses.replace(run.data, batch_size=rows, buckets=())
    run = dataclasses.replace(run, data=data)
    plans = {name: run.placement.laid_out(plan, rows) for name, plan in plans.items()}
    inputs = np.zeros([rows, data.lengths["inputs"]], np.int32)
    for row, text in zip(inputs, itertools.cycle(texts), strict=False):
        ids = text.inputs[: data.lengths["inputs"]]
        row[: len(ids)] = ids
    read: dict[Any, PyTree] = {}
    there: dict[Any, PyTree] = {}
    paths = {"alone": run.checkpoint_path, **run.paths()}

    def tree_of(role: str, model: Any) -> PyTree:
        key = model.layout, paths[role]
        if key not in there:
            there[key] = jax.device_put(run.placement.read(model, paths[role], read))
        return there[key]

    return forecast.measured(plans, run.alone, tree_of, inputs)


def replayed(
    run: DecodeRun, plan: Plan, texts: Sequence[Accepted], samples: int = forecast.SAMPLES
) -> Replayed:
    """The texts once more, by a plan of the run's models."""
    target: Any = plan.target
    paths, tables = run.paths(), plan.tables()
    return forecast.replay(
        plan,
        texts,
        vocab_size=target.vocab_size,
        length=run.data.lengths["inputs"],
        tables={
            role: run.placement.read(tables[role], paths[role])
            for role in sorted(forecast.needed(plan))
        },
        samples=samples,
        seed=run.data.seed,
    )


def _forecast(
    one: Variant,
    plan: Plan,
    texts: Sequence[Accepted],
    costs: Mapping[int | None, Costs],
    rows: int,
) -> Forecast:
    found = replayed(one.run, plan, texts)
    return forecast.forecast(plan, found, costs, len(texts), one.alpha, rows)


def _line(one: Variant, plan: Plan, found: Forecast, source: str) -> dict[str, Any]:
    record = dataclasses.asdict(found)
    for name in ("tokens_per_call", "speedup"):
        figure = getattr(found, name)
        record[name] = figure and figure.value
        record[f"{name}_interval"] = figure and [figure.low, figure.high]
    about = {
        "variant": one.name,
        "drafter": type(plan.drafter).__name__,
        "schedule": repr(plan.schedule),
        "sampling": repr(plan.sampling),
        "alpha": one.alpha,
        "costs": source,
    }
    return {k: v for k, v in (about | record).items() if v is not None}
