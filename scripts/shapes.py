"""What parts of the captions' target draft, as they are and once they have learned, and what heads
of some ids do.

  python scripts/shapes.py --outputs OUTPUTS --folder DIR [--steps 200] [--only parts|heads]

OUTPUTS has texts that the target drew at temperature 1, as configs/train_multi30k_aligned.gin
reads them. `specdec trim` makes each part in DIR, which then learns for so many steps what the
target says (that file's objective). Alpha is that of scripts/objectives.py, on the same texts.

JSON lines go as they are made to docs/results/DEVICE/shapes/lines.jsonl; what has one is not
measured again. The tables go to stdout. Needs ../shared/multi30k, from the root of a checkout.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from lossy import built
from objectives import SAMPLINGS, TOKENS, Asked, alpha, pair_at
from remeasure import RESULTS, device_name

from specdec import checkpoints, tasks, theory
from specdec.models import families
from specdec.models.t5 import T5DraftConfig
from specdec.records import Lines

TARGET, DRAFT = "../shared/multi30k/target", "../shared/multi30k/draft"
ALL = 3072
HEADS = (256, 512, 1024, 2048, ALL)  # ids
GAMMA = 4  # draft tokens that the memory-bound speed-up is of
SHARED, OWN = "the target's", "its own"
PARTS = [  # the decoder's layers, and the encoder
    ("first:1", SHARED),
    ("last:1", SHARED),
    ("first:2", SHARED),
    ("spread:2", SHARED),
    ("last:2", SHARED),
    ("first:1", OWN),
    ("spread:2", OWN),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--outputs", required=True, metavar="OUTPUTS")
    parser.add_argument("--folder", required=True, metavar="DIR")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="0: as they are")
    parser.add_argument("--only", choices=KINDS, help="of the two tables one")
    args = parser.parse_args()
    path = RESULTS / device_name() / "shapes" / "lines.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = Lines(path)
    for kind in [args.only] if args.only else KINDS:
        measured, table = KINDS[kind]
        for line in measured(args, list(lines)):
            lines.append(line)
            print(line, flush=True)
        print("", *table(list(lines), args.steps), sep="\n")


def of_parts(args: argparse.Namespace, lines: Sequence[Mapping[str, Any]]) -> Iterator[dict]:
    """A line of each part as it is, and of each that has learned, where there is none yet."""
    known = {(one["layers"], one["encoder"], one["steps"]) for one in lines if "layers" in one}
    for steps in dict.fromkeys((0, args.steps)):
        for layers, encoder in PARTS:
            own_as_it_is = encoder == OWN and not steps  # what it reads is the same
            if own_as_it_is or (layers, encoder, steps) in known:
                continue
            path = part(args, layers, encoder)
            path = trained(args, path) if steps else path
            yield {
                "layers": layers,
                "encoder": encoder,
                "steps": steps,
                "tokens": TOKENS,
                "alphas": alphas(path),
            }


def part(args: argparse.Namespace, layers: str, encoder: str) -> Path:
    name = f"{layers.replace(':', '_')}{'_shared' * (encoder == SHARED)}"
    path = Path(args.folder) / name
    if not path.exists():
        flags = [f"--input={TARGET}", f"--output={path}", f"--decoder_layers={layers}"]
        specdec("trim", *flags, *["--shared_encoder"] * (encoder == SHARED))
    return path


def trained(args: argparse.Namespace, part: Path) -> Path:
    """The export of a run that begins with a part, and goes on if it was interrupted."""
    directory = part.with_name(f"{part.name}_{args.steps}")
    macros = {
        "OUTPUTS": repr(str(Path(args.outputs).resolve())),
        "STEPS": args.steps,
        "WARMUP": args.steps // 10,
        "MODEL": "@part/checkpoints.model_from()",
        "part/checkpoints.model_from.path": repr(str(part)),
        "INITIAL_CHECKPOINT_PATH": repr(str(part)),
    }
    config = "--gin_file=configs/train_multi30k_aligned.gin"
    flags = [f"--gin.{name}={value}" for name, value in macros.items()]
    specdec("train", config, *flags, f"--output_dir={directory}")
    return directory / "export"


def specdec(*flags: str) -> None:
    subprocess.run([sys.executable, "-m", "specdec", *flags], check=True)


@functools.cache
def asked() -> dict[int, Asked]:
    return {temperature: pair_at("captions", temperature) for temperature in SAMPLINGS}


def alphas(path: Path) -> dict[str, list[float]]:
    """Of a drafter's checkpoint, with their intervals, by temperature."""
    found = {}
    for temperature, given in asked().items():
        sampling = f"--gin_file=sampling/{SAMPLINGS[temperature]}.gin"
        draft = f"--gin.DRAFT_CHECKPOINT_PATH={str(path.resolve())!r}"
        run = built(1000, "--gin.BATCH_SIZE=32", "--gin_file=verifiers/block.gin", sampling, draft)
        found[f"T={temperature}"] = alpha(given._replace(run=run), str(path))
    return found


def table_of_parts(lines: Sequence[Mapping[str, Any]], steps: int) -> Iterator[str]:
    """In Markdown: alpha of each part, before and after it has learned."""
    columns = [f"T={t}, {when}" for t in SAMPLINGS for when in ("as it is", f"{steps} steps")]
    yield f"| layers | encoder | {' | '.join(columns)} |\n|{'---|' * (2 + len(columns))}"
    of = {(one["layers"], one["encoder"], one["steps"]): one for one in lines if "layers" in one}
    for layers, encoder in PARTS:
        cells = [layers, encoder]
        for t in SAMPLINGS:
            for count in (0, steps):
                one = of.get((layers, encoder if count else SHARED, count))
                cells.append(interval(one["alphas"][f"T={t}"]) if one else "")
        yield f"| {' | '.join(cells)} |"


def of_heads(args: argparse.Namespace, lines: Sequence[Mapping[str, Any]]) -> Iterator[dict]:
    """A line of each head of the drafter that came with the pair, by the ids that it keeps."""
    known = {one["ids"] for one in lines if "ids" in one}
    written = {
        name: tasks.token_counts(str(Path(args.outputs) / name)) for name in ("train", "validation")
    }
    for size in HEADS:
        if size in known:
            continue
        path = Path(args.folder) / f"head_{size}"
        if size == ALL:
            path = Path(DRAFT)
        elif not path.exists():
            flags = [f"--head_size={size}", f"--predictions={args.outputs}/train"]
            specdec("trim", f"--input={DRAFT}", f"--output={path}", *flags)
        ids = checkpoints.model_from(path).head_ids or range(ALL)
        yield {
            "ids": size,
            "covered": {
                name: sum(counts[i] for i in ids) / counts.total()
                for name, counts in written.items()
            },
            "tokens": TOKENS,
            "alphas": alphas(path),
        }


def table_of_heads(lines: Sequence[Mapping[str, Any]], steps: int) -> Iterator[str]:
    """In Markdown: the share of other texts of the target that a head can say, that of the
    target's numbers which a step reads, alpha, and the memory-bound speed-up that follows."""
    columns = ["ids", "of the target's tokens", "of the target's step"]
    columns += [f"{name}, T={t}" for t in SAMPLINGS for name in ("alpha", "MBSU")]
    yield f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    of = {one["ids"]: one for one in lines if "ids" in one}
    for size in HEADS:
        if one := of.get(size):
            share = read(DRAFT, size) / read(TARGET)
            cells = [f"{size:,}", f"{one['covered']['validation']:.1%}", f"{share:.3f}"]
            for found in (one["alphas"][f"T={t}"] for t in SAMPLINGS):
                tokens = theory.expected_tokens(found[0], GAMMA)
                cells += [interval(found), f"{theory.mbsu(tokens, GAMMA, share):.2f}"]
            yield f"| {' | '.join(cells)} |"


def read(path: str, ids: int = ALL) -> int:
    """Numbers that a step of a model reads, with a head of so many ids."""
    config: Any = checkpoints.config_from(path)
    if ids != ALL:
        config = T5DraftConfig.of(config, head_ids=tuple(range(ids)))
    model = families.model_of(config)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(model.read_by_decode(shapes)))


def interval(given: Sequence[float]) -> str:
    value, low, high = given
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


KINDS = {"parts": (of_parts, table_of_parts), "heads": (of_heads, table_of_heads)}

if __name__ == "__main__":
    main()
