"""What drafters keep of a block, by its length, exactly and nearly so.

  python scripts/blocks.py [--pair captions] [--drafter NAME GIN DIR]... [--against NAME]
    [--relaxed NAME]... [--drawn NAME]... [--alpha NAME]... [--of NAME DIR]...

NAME is what a drafter is called, GIN its fragment (as drafters/masked.gin) and DIR its checkpoint;
"draft" is always there, the T5 that drafts token by token. Each decodes texts of the test split of
the pair greedily, drafts of 1 to 8 tokens, in batches. A table goes to stdout, JSON lines as they
are made to docs/results/DEVICE/blocks/lines.jsonl. Tokens per call are also compared with those of
--against, text by text. Drafters named by --relaxed decode with relaxed verification too, in drafts
of 8, with BLEU against the references and against the target's own texts. Those named by --drawn
decode at temperature 1 too, three samples of each text; of those by --alpha, which draft token by
token, lines have alpha, greedy, and what a draft step reads, over what a target step does. Those by
--of draft for another target, whose checkpoint is in DIR: its own texts are what is exact, and
lines have how many of them are those that it writes alone. Captions need ../shared/multi30k, from
the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from lossy import Mode, Outputs, built, of_sums, outputs, own_bleu
from objectives import PAIRS, TOKENS
from remeasure import RESULTS, device_name

from specdec import acceptance, evaluate, tasks
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.records import Lines
from specdec.sampling import Sampling
from specdec.schedules import Fixed
from specdec.types import Params
from specdec.verifiers import Block, Distance, GreedyMatch, MinimumBlock, TopBeta, TopK

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)
RELAXED = (
    *(TopBeta(*x) for x in ((2, 0.5), (3, 0.5), (3, 1.0), (3, 2.0), (5, 1.0), (5, 3.0))),
    *(TopK(x) for x in (2, 3)),
    Distance(1),
    MinimumBlock(GreedyMatch(), 1),
)
COLUMNS = ("drafter", "tokens", "verifier", "tokens per call", "against", "BLEU", "to own texts")
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--pair", choices=PAIRS, default="captions")
    parser.add_argument("--drafter", nargs=3, action="append", default=[], metavar="X")
    parser.add_argument("--against", default="draft", metavar="NAME")
    parser.add_argument("--relaxed", action="append", default=[], metavar="NAME")
    parser.add_argument("--drawn", action="append", default=[], metavar="NAME")
    parser.add_argument("--alpha", action="append", default=[], metavar="NAME")
    parser.add_argument("--of", nargs=2, action="append", default=[], metavar="X")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, metavar="N")
    parser.add_argument("--texts", type=int, default=1000, metavar="N")
    args = parser.parse_args()
    path = RESULTS / device_name() / "blocks" / "lines.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = Lines(path)
    drafters = {"draft": ("drafters/autoregressive.gin", None)}
    drafters |= {name: (gin, directory) for name, gin, directory in args.drafter}
    first = drafters.pop(args.against)
    print(HEAD, flush=True)
    against: dict[tuple[int, int], Outputs] = {}
    for name, given in {args.against: first, **drafters}.items():
        for line in measured(name, *given, args, against):
            known = [one for one in lines if key(one) != key(line)]
            lines.replace([*known, line])
            print(row(line), flush=True)


def measured(
    name: str,
    gin: str,
    directory: str | None,
    args: argparse.Namespace,
    against: dict[tuple[int, int], Outputs],
) -> Iterator[dict[str, Any]]:
    """A line for each length, and for each relaxed verifier."""
    flags = [f"--gin_file={gin}"]
    if directory:
        flags.append(f"--gin.DRAFT_CHECKPOINT_PATH={str(Path(directory).resolve())!r}")
    if other := dict(args.of).get(name):
        flags.append(f"--gin.CHECKPOINT_PATH={str(Path(other).resolve())!r}")
    run = built(args.texts, "--gin.BATCH_SIZE=32", *flags, pair=PAIRS[args.pair][0])
    params, vocabulary = run.load(), runs.vocabulary_of(run)
    references = [text for batch in run.batches() for text in batch.target_texts or ()]
    drafter: Any = run.plan.drafter
    about = {
        "pair": args.pair,
        "drafter": name,
        "kind": type(drafter).__name__,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params.drafter)),
        "texts": len(references),
    }
    if name in args.alpha:
        about |= {"alpha": alpha(run, params), "step": share_of_step(run, params)}
    alone = None
    if other:
        plan = run.plan.alone()
        alone = outputs(run, Mode("", 0, 0, plan, Params(params.target)), vocabulary).texts[0]
    longest = min(max(args.lengths), getattr(drafter, "block", max(args.lengths)))
    exact = None
    for length in args.lengths if longest else ():
        if length > longest:
            continue
        exact = decoded(run, params, vocabulary, GreedyMatch(), length)
        found = against.setdefault((0, length), exact)
        if alone:
            about |= {"alone": float(np.mean(np.array(exact.texts[0]) == np.array(alone)))}
        yield {**about, **figures(run, length, GreedyMatch(), exact, found, references, exact)}
        if name in args.drawn:
            drawn = decoded(run, params, vocabulary, Block(), length, Sampling())
            found = against.setdefault((1, length), drawn)
            line = figures(run, length, Block(), drawn, found, references, exact)
            yield {**about, **line, "temperature": 1}
    for verifier in RELAXED if name in args.relaxed and exact else ():
        relaxed = decoded(run, params, vocabulary, verifier, longest)
        yield {**about, **figures(run, longest, verifier, relaxed, exact, references, exact)}


def decoded(
    run: DecodeRun, params: Any, vocabulary: Any, verifier: Any, length: int, rule: Any = None
) -> Outputs:
    """All texts."""
    plan = dataclasses.replace(run.plan, verifier=verifier, schedule=Fixed(length))
    if rule is not None:
        drafter: Any = plan.drafter
        drafter = dataclasses.replace(drafter, sampling=rule)
        plan = dataclasses.replace(plan, sampling=rule, drafter=drafter)
    mode = Mode("", int(not plan.sampling.greedy), length, plan, params)
    return outputs(run, mode, vocabulary)


def alpha(run: DecodeRun, params: Any) -> list[float]:
    """Of what the target writes greedily, with its interval of texts."""
    batches = ((batch.index, batch.inputs) for batch in run.batches())
    given = {"seed": run.data.seed, "tokens": TOKENS}
    texts = acceptance.generate(run.plan, params.target, batches, **given)
    measured = acceptance.measure(run.plan, params, list(texts), tables=False)
    found = acceptance.summarize(measured).alphas["model"][0]
    return [found.value, found.low, found.high]


def share_of_step(run: DecodeRun, params: Any) -> float:
    """The numbers that a step of the draft reads, over those of the target's."""
    drafter: Any = run.plan.drafter
    target: Any = run.plan.target
    pairs = (drafter.model, params.drafter), (target, params.target)
    read = [sum(x.size for x in jax.tree.leaves(m.read_by_decode(tree))) for m, tree in pairs]
    return read[0] / read[1]


def figures(
    run: DecodeRun,
    length: int,
    verifier: Any,
    found: Outputs,
    against: Outputs,
    references: Sequence[str],
    exact: Outputs,
) -> dict[str, Any]:
    """With 95 % intervals over texts."""
    sums = [x.sum(axis=0) for x in (found.tokens, found.calls, against.tokens, against.calls)]
    bleu = tasks.Bleu()
    return {
        "length": length,
        "verifier": repr(verifier),
        "exact": dataclasses.replace(run.plan, verifier=verifier).exact,
        "tokens_per_call": of_sums(sums[:2], lambda s: s[0] / s[1]),
        "against": of_sums(sums, lambda s: s[0] / s[1] / (s[2] / s[3])),
        "bleu": evaluate.values(bleu, references, found.texts)["bleu"],
        "own_bleu": own_bleu(exact.texts[0], found.texts),
        "unchanged": float(np.mean(np.array(found.texts[0]) == np.array(exact.texts[0]))),
    }


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    names = "drafter", "length", "verifier"
    pair, temperature = line.get("pair", "captions"), line.get("temperature", 0)
    return pair, *(line[name] for name in names), temperature


def row(line: dict[str, Any]) -> str:
    """A row of the table."""

    def of(name: str) -> str:
        value, low, high = line[name]
        return f"{value:.2f} ({low:.2f} to {high:.2f})"

    cells = (
        *(line[name] for name in ("drafter", "length")),
        f"`{line['verifier']}`{', drawn' * line.get('temperature', 0)}",
        of("tokens_per_call"),
        of("against"),
        f"{line['bleu']:.2f}",
        of("own_bleu"),
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
