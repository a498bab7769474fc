"""Measures rows of docs/log/performance-log.md on this machine, next to the committed ones.

  python scripts/studies/remeasure.py [--rows ende_t0 large_ende_t0_gamma07 ...] [--models DIR]

A row is a `specdec bench` whose lines go to docs/results/DEVICE/, named after the processor, its
instruction set and cores; one that was interrupted goes on. Models for the rows of grown pairs are
made in --models first, 2.5 GB. The rows of captions are not here: their models are trained on data
that do not come along.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import harness
import numpy as np

from specdec import cli
from specdec.common import demo
from specdec.measure.estimator import (
    MeasuredParts,
    calls,
    costs_of,
    medians,
    seconds,
    steps,
)
from specdec.measure.file import Timing, record
from specdec.measure.parts import Key
from specdec.types import Part

SMALL = ("--limit=50", "--forecast_split=validation", "--gin.SPLIT='test'", "--repeats=2")
GROWN = ("--gin_file=demo.gin", "--limit=12", *SMALL[1:])
SAMPLED = ("--gin_file=sampling/temperature.gin",)
ROWS = {
    "ende_t0": ("--gin_file=demo.gin", *SMALL),
    "ende_t1": (
        "--gin_file=demo_sampled.gin",
        "--gin_file=verifiers/speculative_sampling.gin",
        *SMALL,
    ),
    "highlights_t0": ("--gin_file=demo_highlights.gin", *SMALL),
    "highlights_t1": (
        "--gin_file=demo_highlights.gin",
        *SAMPLED,
        "--gin_file=verifiers/speculative_sampling.gin",
        *SMALL,
    ),
    "base_ende_t0_gamma04": (*GROWN, "--gin.GAMMA=4"),
    "large_ende_t0_gamma05": (*GROWN, "--gin.GAMMA=5"),
    "large_ende_t0_gamma07": (*GROWN, "--gin.GAMMA=7"),
    "large_ende_t0_gamma10": (*GROWN, "--gin.GAMMA=10"),
    "large_ende_t1_coupled": (*GROWN, *SAMPLED, "--gin_file=verifiers/coupled.gin"),
    "large_ende_t1_speculative_sampling": (
        *GROWN,
        *SAMPLED,
        "--gin_file=verifiers/speculative_sampling.gin",
    ),
}
# What drafts, on the grown targets: each with the draft length that suits it.
DRAFTERS = {
    "model": ("--gin.GAMMA=7",),
    "hybrid": ("--gin_file=drafters/hybrid.gin", "--gin.GAMMA=7"),
    "retrieval": ("--gin_file=drafters/retrieval.gin", "--gin.GAMMA=7"),
    "trigram": ("--gin_file=drafters/ngram.gin", "--gin.NGRAM_ORDER=3", "--gin.GAMMA=7"),
    "bigram": ("--gin_file=drafters/ngram.gin", "--gin.NGRAM_ORDER=2", "--gin.GAMMA=3"),
    "unigram": ("--gin_file=drafters/ngram.gin", "--gin.NGRAM_ORDER=1", "--gin.GAMMA=3"),
    "prompt_lookup": ("--gin_file=drafters/prompt_lookup.gin", "--gin.GAMMA=3"),
    "input_copy": ("--gin_file=drafters/input_copy.gin", "--gin.GAMMA=3"),
    "uniform": ("--gin_file=drafters/uniform.gin", "--gin.GAMMA=1"),
}
HIGHLIGHTS = ("--gin_file=demo_highlights.gin", "--limit=12", "--gin.SPLIT='test'", "--repeats=2")
ROWS |= {
    f"{size}_highlights_t0_{name}": (*HIGHLIGHTS, *flags)
    for size, (name, flags) in itertools.product(("base", "large"), DRAFTERS.items())
}
TABLES = {"retrieval": "store", "trigram": "ngram", "bigram": "ngram", "unigram": "ngram"}
TOKENS = 40_000  # that a table is made of
# What a grown pair is made of, by the first word of a row.
PRESETS = {"base": ("target", "t5_1_1_base"), "large": ("target", "t5_1_1_large")}
DRAFT = ("draft", "t5_1_1_small")


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS)[:4], metavar="ROW")
    parser.add_argument("--models", default="grown", metavar="DIR", help="of grown models")
    args = parser.parse_args()
    folder = args.results / harness.device_name()
    folder.mkdir(parents=True, exist_ok=True)
    for row in args.rows:
        flags = [*ROWS[row], *models(row, Path(args.models)), *table(row, Path(args.models))]
        if cli.main(["bench", *flags, f"--output_file={folder / row}.jsonl"]):
            raise SystemExit(f"{row} was not measured")
    print(*differences(args.rows, folder), sep="\n")


def models(row: str, folder: Path) -> list[str]:
    """The flags for a row's models; makes them if they are not there."""
    size = row.partition("_")[0]
    if size not in PRESETS:
        return []
    paths = folder / f"demo_{size}", folder / "demo_small"
    for path, (name, preset) in zip(paths, (PRESETS[size], DRAFT), strict=True):
        flags = [f"--input={demo.path(name)}", f"--preset={preset}", f"--output={path}"]
        if not path.exists() and cli.main(["grow", *flags]):
            raise SystemExit(f"{path} was not made")
    names = "CHECKPOINT_PATH", "DRAFT_CHECKPOINT_PATH"
    return [f"--gin.{name}={str(path)!r}" for name, path in zip(names, paths, strict=True)]


def table(row: str, folder: Path) -> list[str]:
    """The flag for a row's table, of other texts that the embedded target writes; likewise."""
    kind = TABLES.get(row.rpartition("_")[2])
    if kind is None:
        return []
    path = folder / f"highlights_{kind}"
    flags = ["--gin_file=demo_highlights.gin", "--gin.LIMIT=None", "--gin.BATCH_SIZE=32"]
    made = (path / "table").exists() or not cli.main(
        ["train", *flags, "--gin.SPLIT='train'", f"--tokens={TOKENS}", f"--table={kind}"]
        + [f"--output_dir={path}"]
    )
    if not made:
        raise SystemExit(f"{path} was not made")
    return [f"--gin.DRAFT_TABLE_PATH={str(path / 'table')!r}"]


def differences(rows: Sequence[str], folder: Path) -> Iterator[str]:
    """A table: each row here, and on each other device that has it."""
    head = "row", "device", "speed-up", "over that here", "c", "v", "identical"
    yield from ("", *harness.head(*head, "measured / predicted").splitlines())
    for row in rows:
        here = summary(folder / row)
        others = [path.parent for path in sorted(harness.RESULTS.glob(f"*/{row}.jsonl"))]
        for device in (folder, *(other for other in others if other != folder)):
            with contextlib.suppress(FileNotFoundError):
                found = cells(row, device.name, summary(device / row), here)
                yield harness.row(*found, over_predicted(device / row))


def cells(row: str, device: str, found: dict, here: dict) -> Iterator[str]:
    speedup, predicted = found["speedup"], found["prediction"]
    yield from (row, device)
    yield harness.interval([speedup[name] for name in ("ratio", "low", "high")])
    yield f"{speedup['ratio'] / here['speedup']['ratio']:.2f}"
    yield f"{predicted['cost_ratio']:.3f}"
    yield f"{predicted['verify_cost']:.2f}"
    pairs = found["texts"] * found["repeats"]
    yield "" if found["identical"] is None else f"{found['identical']} of {pairs}"


def over_predicted(stem: Path) -> str:
    """The ratio of speed-ups, with a 95 % interval: texts are drawn anew, and the timings of each
    part."""
    parts = [Part(*one) for one in summary(stem)["prediction"]["parts"]]
    lines = Path(f"{stem}.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record(json.loads(line)) for line in lines]
    measured = MeasuredParts.of(
        one for one in records if isinstance(one, Timing) or one.split is None
    )
    timings: dict[Key, list[float]] = {}
    for one in records:
        if isinstance(one, Timing):
            timings.setdefault(one.part, []).append(one.seconds / one.steps)
    modes = measured.alone, measured.speculative, measured.alone, measured.speculative
    of = seconds, seconds, steps, calls
    sums = [list(medians(*each).values()) for each in zip(modes, of, strict=True)]
    values = np.stack([*map(np.array, sums), np.ones(len(sums[0]))])

    def ratio(sums: np.ndarray, parts_take: dict[Key, float]) -> float:
        alone, speculative, steps, iterations, texts = sums
        costs = costs_of(parts_take)
        predicted = texts * costs.prefill_alone + steps * costs.step
        took = texts * costs.prefill + iterations * costs.iteration(parts).seconds
        return alone / speculative / (predicted / took)

    rng, found = np.random.default_rng(0), []
    for _ in range(1000):
        some = rng.integers(values.shape[1], size=values.shape[1])
        drawn = {name: np.median(rng.choice(x, len(x))) for name, x in timings.items()}
        found.append(ratio(values[:, some].sum(axis=1), drawn))
    value = ratio(values.sum(axis=1), dict(measured.seconds))
    return harness.interval([value, *np.percentile(found, (2.5, 97.5))])


def summary(stem: Path) -> dict:
    return json.loads(Path(f"{stem}.jsonl.summary.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
