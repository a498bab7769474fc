"""`specdec tune`: the drafter, the draft lengths and the rule of stopping that suit a pair best."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec import acceptance, forecast, progress, records
from specdec.acceptance import Accepted
from specdec.cli import acceptance as passes_command
from specdec.cli import bench, machine, passes
from specdec.cli import forecast as forecasts
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.common import resources
from specdec.forecast import Costs, Replayed, tuning
from specdec.forecast.tuning import Candidate, Tried
from specdec.plan import Plan
from specdec.records import Lines
from specdec.schedules import Fixed
from specdec.values import PositiveInt, check

TOKENS = 8_000
SAMPLES = 4  # of the coins, where texts are drawn
FEWEST = 20  # texts


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "tune",
        help="find out how long to draft, and with what",
        description="Writes texts of the target and what the drafter thinks of them, measures the "
        "parts of a generation, and replays the texts with every draft length and every schedule. "
        "What is fastest on one half of the texts is recommended, with what it promises on the "
        "other half. Tune on texts that nothing is reported of: --gin.SPLIT. A run that was "
        "stopped goes on. Takes the gin files of `specdec decode`.",
        epilog="Give OUTPUT_DIR/tuned.gin to the other commands as the last --gin_file.",
        allow_abbrev=False,
    )
    runs.add_flags(parser)
    parser.add_argument(
        "--output_dir",
        required=True,
        metavar="DIR",
        help="where the recommendation (tuned.gin), a figure (surface.svg), what was tried "
        "(tried.jsonl), the texts (passes.jsonl) and the costs (costs.json) go",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=TOKENS,
        metavar="N",
        help="to write, in whole texts (default: %(default)s)",
    )
    parser.add_argument(
        "--costs",
        metavar="FILE",
        help="seconds of the parts: of `specdec bench`, `specdec compile` or another `specdec "
        "tune` (default: they are measured here)",
    )
    parser.add_argument(
        "--topology", metavar="NAME", help="which of those that `specdec compile` wrote"
    )
    parser.add_argument(
        "--batch_size",
        type=int,
        default=1,
        metavar="N",
        help="texts that are decoded together (default: %(default)s)",
    )
    parser.add_argument(
        "--longest",
        type=int,
        metavar="N",
        help=f"the longest draft to try (default: {tuning.LONGEST}, as far as outputs have room)",
    )
    parser.add_argument(
        "--variant",
        action="append",
        metavar="NAME=VALUE;...",
        help="gin settings, or gin files, of one of several drafters, as of `specdec bench`; may "
        "repeat",
    )
    parser.set_defaults(command=_command)
    return parser


class Variant(NamedTuple):
    """A drafter, its texts and its costs.

    rows: texts that are decoded together.
    """

    name: str
    run: DecodeRun
    texts: Sequence[Accepted]
    costs: Costs
    rows: int

    @property
    def batches(self) -> int:
        """Of all texts, but for those that fill none."""
        return len(self.texts) // self.rows


def _command(args: argparse.Namespace) -> None:
    for name in ("tokens", "longest", "batch_size"):
        check(f"--{name}", getattr(args, name), PositiveInt | None, UsageError)
    forecasts.check_costs(args)
    names = args.variant or [""]
    bench.refuse_twice(names)
    given = forecast.read(args.costs, args.topology) if args.costs else None
    machine.refuse_unwritable_folder("--output_dir", args.output_dir)
    chosen = {name: _run(args, name) for name in names}
    _refuse_other_texts(chosen)
    longest = min(_longest(args.longest, run.plan) for run, _ in chosen.values())
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder, args, longest, given)
    variants: list[Variant] = []
    for name, (run, in_force) in chosen.items():
        texts = _texts(folder, variants, run, in_force, args)
        costs = given or _costs(folder, len(variants), run, texts, longest, args.batch_size)
        variants.append(Variant(name, run, texts, costs, args.batch_size))
    tried = list(_tried(folder, variants, longest))
    _report(folder, variants, tried, longest, args.gin_file)


def _run(args: argparse.Namespace, name: str) -> tuple[DecodeRun, str]:
    """Returns the run of a variant, and its settings, which gin has until the next one is built."""
    own = bench.with_variant(copy.copy(args), name)
    run = passes_command.plain(runs.build(own))
    plan = run.plan
    if not plan.exact:
        raise UsageError(f"VERIFIER is {plan.verifier}, which is not exact; give one that is")
    if run.placement.mesh is not None and not args.costs:
        raise UsageError("parts are measured on one device alone; give --costs of `specdec bench`")
    try:
        forecast.check(plan, ())
    except ValueError as error:
        raise UsageError(str(error)) from error
    return run, runs.in_force(run, "acceptance")


def _refuse_other_texts(chosen: Mapping[str, tuple[DecodeRun, str]]) -> None:
    """Raises UsageError for a variant whose target would write other texts than the first one's."""
    keys = {name: passes.key(*one) for name, one in chosen.items()}
    first = next(iter(keys.values()))
    for name, own in keys.items():
        if found := passes.difference(first, own):
            setting, old, new = found
            raise UsageError(
                f"--variant={name} has {setting} = {new}, and the first variant {old}; only "
                "drafters, draft lengths and verifiers may vary"
            )


def _longest(asked: int | None, plan: Plan) -> int:
    """The longest draft that is tried."""
    room = forecast.longest(plan)
    if asked is not None and asked > room:
        raise UsageError(f"--longest is {asked} but {forecast.bound(plan)}; give a shorter one")
    return min(asked or tuning.LONGEST, room)


def _claim(folder: Path, args: argparse.Namespace, longest: int, given: Costs | None) -> None:
    """Raises RecordsError for a folder with a search of something else."""
    about = {
        "--tokens": args.tokens,
        "--batch_size": args.batch_size,
        "--longest": longest,
        "--variant": args.variant,
        "--costs": given and given._asdict(),
    }
    begun = folder / "tried.jsonl"
    records.claim(
        folder,
        folder / "tune.json",
        records.as_json(about),
        begun=begun if begun.exists() else None,
        instead="--output_dir",
    )


def _texts(
    folder: Path,
    before: Sequence[Variant],
    run: DecodeRun,
    in_force: str,
    args: argparse.Namespace,
) -> Sequence[Accepted]:
    """Returns the recorded texts of a variant. A drafter that only copies needs no recording of its
    own, so it reuses the first variant's."""
    number = len(before)
    path = folder / "passes.jsonl"
    if number:
        if not dict(acceptance.recorded(run.plan.drafter)):
            return before[0].texts
        path = folder / f"passes_{number}.jsonl"
    batches = run.batches()
    if (first := next(batches, None)) is None:
        raise UsageError(f"split {run.data.split!r} has no examples; nothing to tune on")
    lines = Lines.of(path, passes.with_record(run, in_force))
    all_batches = itertools.chain([first], batches)
    texts = list(passes_command.measured(run, all_batches, args.tokens, lines))
    if len(texts) < (least := FEWEST * args.batch_size):
        raise UsageError(
            f"{path} has {len(texts)} texts; raise --limit or --tokens, {least} are needed"
        )
    return texts


def _costs(
    folder: Path,
    number: int,
    run: DecodeRun,
    texts: Sequence[Accepted],
    longest: int,
    rows: int,
) -> Costs:
    """Of every width of a call, in the layout of the longest drafts; measured once."""
    path = folder / (f"costs_{number}.json" if number else "costs.json")
    if path.exists():
        return forecast.read(str(path), None)
    every = dataclasses.replace(run.plan, schedule=Fixed(longest, shorter=tuple(range(longest))))
    found = forecasts.measured(dataclasses.replace(run, plan=every), texts, {None: every}, rows)
    records.write(path, records.as_json(found[None]._asdict(), indent=1))
    return found[None]


def _tried(folder: Path, variants: Sequence[Variant], longest: int) -> Iterator[Tried]:
    """Every candidate; what was tried before is read."""
    lines = Lines(folder / "tried.jsonl")
    known = {(one["variant"], one["schedule"]): one for one in lines}
    lines.replace(known.values())
    for one in variants:
        first = [
            *tuning.fixed(longest),
            *tuning.varying(one.run.plan, one.costs, longest, one.texts),
        ]
        found = []
        with progress.bar("replaying", len(first), "schedule") as bar:
            for candidate in first:
                found.append(_one(lines, known, one, candidate))
                bar.update()
        more = tuning.shorter(found, _halves(one)[0], longest)
        yield from found
        yield from [_one(lines, known, one, candidate) for candidate in more]


def _one(
    lines: Lines, known: Mapping[Any, Mapping[str, Any]], variant: Variant, candidate: Candidate
) -> Tried:
    said = repr(candidate.schedule)
    line = known.get((variant.name, said))
    if line is None:
        plan = dataclasses.replace(variant.run.plan, schedule=candidate.schedule)
        replayed = forecasts.replayed(variant.run, plan, variant.texts, SAMPLES)
        seconds = _seconds(variant, plan, replayed)
        if seconds is None:
            raise UsageError(f"--costs lack the calls of {plan}; measure them with `specdec bench`")
        line = {
            "variant": variant.name,
            "kind": candidate.kind,
            "setting": candidate.setting,
            "schedule": said,
            "tokens_per_call": round(float(replayed.tokens.sum() / replayed.calls.sum()), 4),
            "seconds": [float(f"{x:.6g}") for x in seconds],
        }
        lines.append(line)
    return Tried(variant.name, candidate, line["tokens_per_call"], np.array(line["seconds"]))


def _seconds(variant: Variant, plan: Plan, replayed: Replayed) -> np.ndarray | None:
    """[batches]."""
    batches = forecast.grouped(replayed, len(variant.texts), variant.rows)
    return forecast.seconds(plan, batches, variant.costs, variant.batches)


def _halves(variant: Variant) -> tuple[np.ndarray, np.ndarray]:
    """[batches] bool of those that decide, and of those that are reported of."""
    even = np.arange(variant.batches) % 2 == 0
    return even, ~even


def _report(
    folder: Path,
    variants: Sequence[Variant],
    tried: Sequence[Tried],
    longest: int,
    files: Sequence[str],
) -> None:
    """What is best and what it promises, on stdout and in files."""
    shown = []
    for one in variants:
        own = [x for x in tried if x.variant == one.name]
        others = _alone(one), _oracle(one, longest)
        shown.append(tuning.Result.of(one.name, own, *others, *_halves(one)))
        if one.name:
            print(f"\n{one.name}")
        print(f"{type(one.run.plan.drafter).__name__}, {one.run.plan.sampling}, {one.costs.source}")
        print(*tuning.lines(shown[-1]), sep="\n")
    best = max(shown, key=lambda result: result.speedup(result.best).value)
    text = f"# `specdec tune` of {', '.join(files)}: {best.promise()}.\n{_tuned(best)}"
    records.write(folder / "tuned.gin", text)
    print(f"\n{folder / 'tuned.gin'}:\n{text}", end="")
    try:
        from specdec.report import surface  # matplotlib, which no other command needs
    except ModuleNotFoundError as error:
        print(f"tune: no figure, {error.name} is not installed", file=sys.stderr)
        return
    surface.draw(shown, folder / "surface.svg")


def _alone(variant: Variant) -> np.ndarray:
    """[batches] seconds of the target alone."""
    costs, tokens = variant.costs, np.array([text.tokens for text in variant.texts])
    longest = tokens[: variant.batches * variant.rows].reshape(-1, variant.rows).max(axis=1)
    return costs.prefill_alone + longest * costs.step


def _oracle(variant: Variant, longest: int) -> np.ndarray:
    """[batches] seconds, if every draft stopped just before its first refusal."""
    plan = dataclasses.replace(variant.run.plan, schedule=Fixed(longest))
    replayed = forecasts.replayed(variant.run, plan, variant.texts, SAMPLES)
    batches = forecast.grouped(replayed, len(variant.texts), variant.rows)
    costs = dict.fromkeys([None, *range(1, longest + 1)], variant.costs)
    found = forecast.oracle_seconds(plan, batches, costs, variant.batches)
    assert found is not None, "costs of every width are known"
    return found


def _tuned(best: tuning.Result) -> str:
    """The settings of what is best, for behind the run's own."""
    if best.speedup(best.best).value <= 1:
        return "DRAFTER = None\n"
    items = [item for item in best.variant.split(";") if item]
    value, kind = best.best.candidate.schedule, best.best.candidate.kind
    file = f"schedules/{kind}.gin"
    fragment = (resources.folder("gin") / file).read_text(encoding="utf-8")
    macros = dict(re.findall(r"(\w+) = %(\w+)$", fragment, re.MULTILINE))  # some are required
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    name = f"schedules.{type(value).__name__}"
    lines = [
        "from __gin__ import dynamic_registration",
        "",
        "from specdec import schedules",
        "",
        *(f"include {item!r}" for item in items if item.endswith(".gin")),
        f"include {file!r}",
        "",
        *(item.replace("=", " = ", 1) for item in items if not item.endswith(".gin")),
        *(f"{macros.get(x, f'{name}.{x}')} = {value!r}" for x, value in fields.items()),
    ]
    return "\n".join(lines) + "\n"
