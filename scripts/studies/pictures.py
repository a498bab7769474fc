"""Measures drafts of the picture task: block efficiency, its memory-bound speed-up, and time.

  python scripts/studies/pictures.py FOLDER DATA [--texts 200]

FOLDER has the checkpoints that configs/pictures/ has trained: "target", "blind", "adapter" and
"full", each with its "export". DATA has the pictures of scripts/data/make_pictures.py. The target
writes some captions alone, then each draft at temperatures 0 and 1. Lines go to pictures/. Run it
from the root of a checkout.
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import Results, Run, interval

from specdec.common import theory
from specdec.decoding import row_keys
from specdec.decoding.program import DecodeProgram

GAMMA = 5  # as in Gagrani et al. and TABED
VIEW = "--gin.DRAFT_READS=None"
DRAFTS = {  # the settings, and the checkpoint of the draft
    "text only": ("pictures", "blind", ()),
    "adapter": ("pictures", "adapter", (VIEW,)),
    "full": ("pictures", "full", (VIEW,)),
    "committee": ("committee", "blind", ()),
    "adaptive committee": ("committee", "blind", ("--gin.COMMITTEE_DECAY=0.9",)),
}
TABLE = (
    "draft",
    "T",
    "parameters",
    "alpha",
    "tokens per call",
    "over text only",
    "MBSU",
    "identical",
)
TIMED = ("draft", "time over the target's alone", "processor time", "load")


def main() -> None:
    parser = harness.parser(__doc__, texts=200)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--timed_texts", type=int, default=8, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--drafts", nargs="+", choices=DRAFTS, default=list(DRAFTS))
    parts = ("counted", "timed", "example")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, metavar="PART")
    args = parser.parse_args()
    if "counted" in args.parts:
        counted(args)
    if "timed" in args.parts:
        timed(args)
    if "example" in args.parts:
        example(args)


def run_of(args: argparse.Namespace, draft: str, texts: int, *more: str, rows: int = 20) -> Run:
    """Returns the run of the target and a draft on held-out pictures."""
    name, own, settings = DRAFTS[draft]
    flags = [f"--gin_file=configs/pictures/{name}.gin", f"--gin.DATA={str(args.data)!r}"]
    paths = {"": "target", "DRAFT_": own} | ({"SEEING_": "full"} if name == "committee" else {})
    flags += [
        harness.checkpoint_flag(args.folder / path / "export", role) for role, path in paths.items()
    ]
    return harness.run_of(
        [*flags, *settings, f"--gin.GAMMA={GAMMA}", *more], texts, batch_size=rows
    )


def counted(args: argparse.Namespace) -> None:
    """Counts the tokens per call of each draft at two temperatures, and prints a table."""
    lines = Results.of(args, "pictures/counted", "draft", "temperature")
    base: dict[float, Any] = {}
    for draft, temperature in ((x, t) for t in (0.0, 1.0) for x in args.drafts):
        more = () if not temperature else ("--gin_file=sampling/temperature.gin",)
        run = run_of(args, draft, args.texts, *more)
        params = run.engine.params
        found = harness.outputs(run, run.plan, params)
        base.setdefault(temperature, found)
        sizes = {role: sum(x.size for x in jax.tree.leaves(tree)) for role, tree in params.items()}
        per_step = {
            role: harness.read_by_step(model, run.engine.abstract()[role])
            for role, model in run.plan.models().items()
        }
        ratio = sum(x for role, x in per_step.items() if role != "target") / per_step["target"]
        efficiency = harness.tokens_per_call(found)
        line = {
            "draft": draft,
            "temperature": temperature,
            "gamma": GAMMA,
            "texts": args.texts,
            "parameters": sum(x for role, x in sizes.items() if role != "target"),
            "target_parameters": sizes["target"],
            "parameter_ratio": ratio,
            "tokens_per_call": efficiency,
            "over_text_only": harness.calls_over(found, base[temperature]),
            "mbsu": [theory.mbsu(x, GAMMA, ratio) for x in efficiency],
        }
        if not run.plan.drafter.adapts:
            line["alpha"] = harness.alpha(harness.passes(run, params))
        if not temperature:
            alone = harness.outputs(run, run.plan.baseline(), params)
            line["identical"] = int(np.sum(np.array(alone.texts[0]) == np.array(found.texts[0])))
            right = np.array(harness.references(run)) == np.array(alone.texts[0])
            line["right"] = float(np.mean(right))
        lines.put(line | harness.about())
    print(harness.head(*TABLE))
    for line in lines:
        print(harness.row(*cells(line)))


def cells(line: dict[str, Any]) -> Iterator[str]:
    """Yields the cells of a row of the table."""
    yield line["draft"]
    yield f"{line['temperature']:g}"
    yield f"{line['parameters']:,}"
    yield interval(line["alpha"], ".3f") if "alpha" in line else "-"
    yield interval(line["tokens_per_call"])
    yield interval(line["over_text_only"])
    yield interval(line["mbsu"])
    yield f"{line['identical']} of {line['texts']}" if "identical" in line else "-"


def timed(args: argparse.Namespace) -> None:
    """Times each draft in turns with the target alone, greedy, and prints a table."""
    lines = Results.of(args, "pictures/timed", "text", "repeat")
    ways: dict[str, Any] = {}
    for draft in args.drafts:
        run = run_of(args, draft, args.timed_texts, rows=1)
        ways[draft] = way(run, run.plan)
    ways["alone"] = way(run, run.plan.baseline())
    batches = list(run.batches())
    for line, _ in harness.turns(ways, batches, args.repeats, harness.about(), lines):
        lines.put(line)
    print(harness.head(*TIMED))
    for name, _, found in harness.compared(list(lines), "alone"):
        print(harness.row(name, *found))


def example(args: argparse.Namespace) -> None:
    """Writes some captions word by word, and which words two drafts proposed, for the figure."""
    lines = Results.of(args, "pictures/example", "draft")
    for draft in ("text only", "full"):
        run = run_of(args, draft, 3, rows=3)
        (batch,) = run.batches()
        output = way(run, run.plan)(batch)
        line: dict[str, Any] = {"draft": draft, "pictures": [], "words": [], "accepted": []}
        for row, text in enumerate(batch.input_texts):
            file = text.partition("<image:")[2].partition(">")[0]
            line["pictures"].append(base64.b64encode(Path(file).read_bytes()).decode())
            ids = output.tokens[row, : output.length[row]].tolist()
            line["words"].append([run.engine.vocabulary.decode([id]) for id in ids[:-1]])
            line["accepted"].append(harness.accepted(output, row)[: len(ids) - 1])
        lines.put(line | harness.about())


def way(run: Run, plan: Any) -> Any:
    """Returns a function that decodes a batch by a plan."""
    program = DecodeProgram(plan)

    def decoded(batch: Any) -> Any:
        keys = row_keys(run.data.seed, jnp.asarray(batch.index))
        inputs = jax.tree.map(jnp.asarray, batch.inputs)
        return jax.device_get(program(run.engine.params, keys, inputs))

    return decoded


if __name__ == "__main__":
    main()
