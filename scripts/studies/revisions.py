"""Measures drafts from previous outputs: captions that grow word by word.

  python scripts/studies/revisions.py [--texts 1000]

Each caption's first word is a text, then its first two words, and so on. The output for the version
before drafts. Every output is compared with the target's own. Lines go to revisions/; the parts
"counted" and "timed" print a table each. Run it from the root of a checkout.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import harness
import numpy as np
from harness import Results, interval

from specdec import tasks
from specdec.drafters import PreviousOutput, PromptLookup
from specdec.engine import Engine
from specdec.schedules import Fixed
from specdec.texts.measured_run import Run

ROWS = 50
COUNTED = (
    *(("PreviousOutput", gamma) for gamma in (4, 8, 16)),
    ("PromptLookup", 4),
)
TIMED = ("PreviousOutput", 4), ("PreviousOutput", 16), ("a model", 4)
CHANGED = ("less than a third", "more")  # of the tokens of an output


def main() -> None:
    parser = harness.parser(__doc__, texts=1000)
    parser.add_argument("--timed_texts", type=int, default=12, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parts = ("counted", "timed")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, metavar="PART")
    args = parser.parse_args()
    run = harness.run_of(harness.pair_flags("captions"), args.texts)
    if "counted" in args.parts:
        counted(args, run)
    if "timed" in args.parts:
        timed(args, run)


def versions(run: Run, texts: int) -> list[tuple[int, str]]:
    """Returns the versions of each caption, the shortest first: (caption, input)."""
    found = []
    for batch in run.batches():
        for index, text in zip(batch.index, batch.input_texts, strict=False):
            prefix, _, caption = text.partition(": ")
            words = caption.split()
            ends = range(1, len(words) + 1)
            found += [(int(index), f"{prefix}: {' '.join(words[:end])}") for end in ends]
    return [one for one in found if one[0] < texts]


def batches(run: Run, texts: Sequence[str], rows: int) -> list[tasks.Batch]:
    """Returns inputs in batches, all of one width."""
    given = ((text, None) for text in texts)
    lengths = dict(run.data.lengths)
    return list(tasks.text_batches(given, run.engine.vocabulary, lengths, batch_size=rows))


def decoded(engine: Engine, given: Sequence[tasks.Batch]) -> Iterator[tuple[list[int], int]]:
    """Yields tokens and target calls of each text."""
    for batch in given:
        output, _ = engine.decode(batch)
        for row in range(len(batch.input_texts)):
            yield output.row(row).tokens, int(output.trace.calls[row])


def with_previous(
    found: Sequence[list[int]], captions: Sequence[int], given: Sequence[tasks.Batch], width: int
) -> list[tasks.Batch]:
    """Returns the batches with the output for the version before, which a first one lacks."""
    pairs = zip(captions, [None, *captions[:-1]], [[], *found[:-1]], strict=True)
    before = [ids if own == last else [] for own, last, ids in pairs]
    return [batch.revised([before[i] for i in batch.index if i >= 0], width) for batch in given]


def edits(text: Sequence[int], other: Sequence[int]) -> int:
    """Returns the edit distance of two texts."""
    row = np.arange(len(other) + 1)
    places = row.copy()
    for token in text:
        inserted, replaced = row + 1, row[:-1] + (np.asarray(other) != token)
        best = np.concatenate([inserted[:1], np.minimum(inserted[1:], replaced)])
        row = np.minimum.accumulate(best - places) + places
    return int(row[-1])


def ways(run: Run, rows: int, names: Sequence[tuple[str, int]]) -> dict[str, Engine]:
    """Returns an engine for each drafter and draft length."""
    engine, model = run.engine, run.plan.drafter
    drafters = {
        "PreviousOutput": PreviousOutput(),
        "PromptLookup": PromptLookup(),
        "a model": model,
    }
    found = {}
    for name, gamma in names:
        variant = engine.variant(drafter=drafters[name], schedule=Fixed(gamma))
        found[f"{name}, {gamma}"] = dataclasses.replace(variant, rows=rows)
    return found


def counted(args: Any, run: Run) -> None:
    """Counts the target calls of all versions, and prints a table."""
    lines = Results.of(args, "revisions/counted", "drafter", "changed")
    captions, texts = zip(*versions(run, args.texts), strict=True)
    given = batches(run, texts, ROWS)
    alone = [tokens for tokens, _ in decoded(run.engine.alone(), given)]
    given = with_previous(alone, captions, given, run.plan.max_length)
    later = [i for i in range(1, len(captions)) if captions[i] == captions[i - 1]]
    shares = {i: edits(alone[i], alone[i - 1]) / len(alone[i]) for i in later}
    classes = {
        "any": later,
        CHANGED[0]: [i for i in later if shares[i] < 1 / 3],
        CHANGED[1]: [i for i in later if shares[i] >= 1 / 3],
    }
    known = {name for name, _ in lines.known()}
    for name, engine in ways(run, ROWS, COUNTED).items():
        if name in known:
            continue
        found = list(decoded(engine, given))
        for changed, places in classes.items():
            lines.put(
                {
                    "drafter": name,
                    "changed": changed,
                    "captions": args.texts,
                    "outputs": len(places),
                    "identical": sum(found[i][0] == alone[i] for i in places),
                    "tokens_per_call": rate(found, captions, places),
                    **harness.about(),
                }
            )
    print(
        harness.head("drafter, K", "outputs change by", "outputs", "identical", "tokens per call")
    )
    for line in lines:
        cells = (line[x] for x in ("drafter", "changed", "outputs", "identical"))
        print(harness.row(*cells, interval(line["tokens_per_call"])))


def rate(
    found: Sequence[tuple[list[int], int]], captions: Sequence[int], places: Sequence[int]
) -> list[float]:
    """Returns tokens per call, with an interval over captions."""
    sums = np.zeros([2, max(captions) + 1])
    for i in places:
        sums[:, captions[i]] += len(found[i][0]), found[i][1]
    return harness.of_sums(sums, lambda s: s[0] / s[1])


def timed(args: Any, run: Run) -> None:
    """Times the versions of some captions, one at a time, in turns with the target alone."""
    lines = Results.of(args, "revisions/timed", "text", "repeat")
    captions, texts = zip(*versions(run, args.timed_texts), strict=True)
    given = batches(run, texts, 1)
    engines = {"alone": dataclasses.replace(run.engine, rows=1).alone()}
    engines |= ways(run, 1, TIMED)
    alone = [tokens for tokens, _ in decoded(engines["alone"], given)]
    given = with_previous(alone, captions, given, run.plan.max_length)
    later = [batch for batch in given if np.any(batch.previous)]
    calls = {name: functools.partial(_tokens, engine) for name, engine in engines.items()}
    for line, found in harness.turns(calls, later, args.repeats, harness.about(), lines):
        lines.put(line | {"identical": sum(x == found["alone"] for x in found.values())})
    print(harness.head("drafter, K", "time over the target's alone", "processor time", "load"))
    for name, _, cells in harness.compared(list(lines), "alone"):
        print(harness.row(name, *cells))


def _tokens(engine: Engine, batch: tasks.Batch) -> list[int]:
    output, _ = engine.decode(batch)
    return output.row(0).tokens


if __name__ == "__main__":
    main()
