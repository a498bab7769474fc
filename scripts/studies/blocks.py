"""Measures what drafters keep of a block, by its length, exactly and nearly so.

  python scripts/studies/blocks.py [--pair captions] [--drafter NAME GIN DIR]... [--against NAME]
    [--relaxed NAME]... [--drawn NAME]... [--alpha NAME]... [--of NAME DIR]...

NAME is what a drafter is called, GIN its fragment (as drafters/masked.gin) and DIR its checkpoint;
"draft" is always there, the T5 that drafts token by token. Each decodes texts of the test split of
the pair greedily, drafts of 1 to 8 tokens, in batches. Lines go to blocks/lines.jsonl. Tokens per
call are also compared with those of --against, text by text. Drafters named by --relaxed decode
with relaxed verification too, in drafts of 8, with BLEU against the references and against the
target's own texts. Those named by --drawn decode at temperature 1 too, three samples of each text;
of those by --alpha, which draft token by token, lines have alpha, greedy, and what a draft step
reads, over what a target step does. Those by --of draft for another target, whose checkpoint is in
DIR: its own texts are what is exact, and lines have how many of them are those that it writes
alone. Run it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import harness
import numpy as np
from harness import PAIRS, Outputs, Results, Run, checkpoint_flag

from specdec import Params
from specdec.sampling import Sampling
from specdec.schedules import Fixed
from specdec.texts.measured_run import parameter_counts
from specdec.verifiers import Block, Distance, GreedyMatch, MinimumBlock, TopBeta, TopK

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)
RELAXED = (
    *(TopBeta(*x) for x in ((2, 0.5), (3, 0.5), (3, 1.0), (3, 2.0), (5, 1.0), (5, 3.0))),
    *(TopK(x) for x in (2, 3)),
    Distance(1),
    MinimumBlock(GreedyMatch(), 1),
)
SAMPLES, TOKENS = 3, 10_000  # of each drawn text; that alpha is of
COLUMNS = ("drafter", "tokens", "verifier", "tokens per call", "against", "BLEU", "to own texts")
KEYS = ("pair", "drafter", "length", "verifier", "temperature")


def main() -> None:
    parser = harness.parser(__doc__, texts=1000)
    parser.add_argument("--pair", choices=PAIRS, default="captions")
    parser.add_argument("--drafter", nargs=3, action="append", default=[], metavar="X")
    parser.add_argument("--against", default="draft", metavar="NAME")
    for name in ("relaxed", "drawn", "alpha"):
        parser.add_argument(f"--{name}", action="append", default=[], metavar="NAME")
    parser.add_argument("--of", nargs=2, action="append", default=[], metavar="X")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, metavar="N")
    args = parser.parse_args()
    lines = Results.of(args, "blocks/lines", *KEYS)
    drafters = {"draft": ("drafters/autoregressive.gin", None)}
    drafters |= {name: (gin, directory) for name, gin, directory in args.drafter}
    first = drafters.pop(args.against)
    print(harness.head(*COLUMNS), flush=True)
    against: dict[tuple[int, int], Outputs] = {}
    for name, given in {args.against: first, **drafters}.items():
        for line in measured(name, *given, args, against):
            lines.put(line)
            print(row(line), flush=True)


def measured(
    name: str,
    gin: str,
    directory: str | None,
    args: argparse.Namespace,
    against: dict[tuple[int, int], Outputs],
) -> Iterator[dict[str, Any]]:
    """Yields a line for each length, and for each relaxed verifier."""
    flags = harness.pair_flags(args.pair, gin)
    if directory:
        flags.append(checkpoint_flag(directory))
    if other := dict(args.of).get(name):
        flags.append(checkpoint_flag(other, ""))
    run = harness.run_of(flags, args.texts)
    params, references = run.engine.read(), harness.references(run)
    drafter: Any = run.plan.drafter
    about = {
        "pair": args.pair,
        "drafter": name,
        "kind": type(drafter).__name__,
        "parameters": parameter_counts(run.plan.models())["draft"],
        "texts": len(references),
    }
    if name in args.alpha:
        texts = harness.written(run, params, TOKENS)
        about["alpha"] = harness.alpha(harness.passes(run, params, texts))
        pairs = (drafter.model, params["draft"]), (run.plan.target, params["target"])
        read = [harness.read_by_step(*each) for each in pairs]
        about["step"] = read[0] / read[1]
    if other:
        alone = run.plan.alone()
        alone = harness.outputs(run, alone, Params(params.target)).texts[0]
    longest = min(max(args.lengths), getattr(drafter, "block", None) or max(args.lengths))

    def line(length: int, verifier: Any, found: Outputs, base: Outputs, own: Outputs) -> dict:
        return {
            **about,
            "length": length,
            "verifier": repr(verifier),
            "exact": dataclasses.replace(run.plan, verifier=verifier).exact,
            "tokens_per_call": harness.tokens_per_call(found),
            "against": harness.calls_over(found, base),
            **harness.quality(found.texts, own.texts * len(found.texts), own.texts[0], references),
        }

    exact: Any = None
    for length in (x for x in args.lengths if x <= longest):
        exact = decoded(run, params, GreedyMatch(), length)
        base = against.setdefault((0, length), exact)
        if other:
            about["alone"] = float(np.mean(np.array(exact.texts[0]) == np.array(alone)))
        yield line(length, GreedyMatch(), exact, base, exact)
        if name in args.drawn:
            drawn = decoded(run, params, Block(), length, Sampling())
            base = against.setdefault((1, length), drawn)
            yield line(length, Block(), drawn, base, exact) | {"temperature": 1}
    for verifier in RELAXED if name in args.relaxed and exact else ():
        relaxed = decoded(run, params, verifier, longest)
        yield line(longest, verifier, relaxed, exact, exact)


def decoded(run: Run, params: Any, verifier: Any, length: int, rule: Any = None) -> Outputs:
    """Decodes all texts in drafts of a length, drawn if there is a rule."""
    plan = dataclasses.replace(run.plan, verifier=verifier, schedule=Fixed(length))
    if rule is not None:
        drafter: Any = plan.drafter
        drafter = dataclasses.replace(drafter, sampling=rule)
        plan = dataclasses.replace(plan, sampling=rule, drafter=drafter)
    return harness.outputs(run, plan, params, 1 if plan.sampling.greedy else SAMPLES)


def row(line: Mapping[str, Any]) -> str:
    return harness.row(
        line["drafter"],
        line["length"],
        f"`{line['verifier']}`{', drawn' * line.get('temperature', 0)}",
        *(harness.interval(line[name]) for name in ("tokens_per_call", "against")),
        f"{line['bleu']:.2f}",
        harness.interval(line["own_bleu"]),
    )


if __name__ == "__main__":
    main()
