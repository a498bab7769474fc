"""Measures drafters without a model: tokens per target call, and what a store's size and kind do.

  python scripts/studies/lookups.py --task NAME PASSES STORE [--task ...]

PASSES is what `specdec acceptance --output_file` wrote of a greedy run with a model as its drafter,
STORE the `texts.jsonl` of `specdec train --table=store` of other texts of the same target, or - for
none. Without a store the model and a hybrid are measured, by what PASSES says of the model, and
InputCopy is told of what all sources begin with. The loop decodes the texts of
PASSES with a recording of the target, so that counts are exact and nothing but the drafter runs.
With several tasks each one's texts are also looked up in the others' stores. A table goes to
stdout, lines go to docs/results/lookups.jsonl; make_figures.py draws them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import Results

from specdec.checkpoints import tables
from specdec.common.records import Lines
from specdec.decoding import decode, row_keys
from specdec.drafters import (
    Autoregressive,
    Hybrid,
    InputCopy,
    NGram,
    PromptLookup,
    Retrieval,
    SuffixDecoding,
)
from specdec.plan import Plan
from specdec.predict.schedule_replay import Recorded
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.verifiers import GreedyMatch

ROWS = 64
SHARES = (0.01, 0.1, 1.0)
LENGTHS = (3, 8)
COPIED = (8, 24, 48)  # where outputs are copies


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--task", nargs=3, action="append", required=True, metavar="X")
    args = parser.parse_args()
    stores = {name: _texts(store) for name, _, store in args.task if store != "-"}
    print(harness.head("task", "drafter", "store", "K", "tokens per call", "95 % interval"))
    lines = Results(args.results, "lookups", "task", "drafter", "store", "K")
    for name, passes, _ in args.task:
        texts = list(Lines(Path(passes)))
        found = _measured(name, texts, stores) if name in stores else _copied(name, texts)
        for line in found:
            lines.put(line)
            low, high = line["interval"]
            cells = (line[x] for x in ("task", "drafter", "store", "K"))
            rate = f"{line['tokens_per_call']:.3f}"
            print(harness.row(*cells, rate, f"{low:.3f} to {high:.3f}"), flush=True)


def _texts(path: str) -> list[list[int]]:
    return [line["tokens"] for line in Lines(Path(path))]


def _measured(name: str, texts: Sequence[dict], stores: dict[str, Any]) -> Iterator[dict]:
    size = _ids(texts, *stores.values())
    count = functools.partial(_line, name, texts, size)
    own = stores[name]
    for longest in LENGTHS:
        yield count("PromptLookup", "", PromptLookup(), {}, longest)
        yield count("SuffixDecoding", "", SuffixDecoding(), {}, longest)
        yield count("InputCopy", "", InputCopy(), {}, longest)
        grams = {"table": _arrays(tables.count(own, size))}
        for order, called in enumerate(("unigram", "bigram", "trigram"), start=1):
            yield count(called, f"all {name}", NGram(order, Greedy()), grams, longest)
    for of, rows in stores.items():
        for share in SHARES:
            some = rows[: max(1, round(share * len(rows)))]
            store = {"store": _arrays(tables.store(some))}
            label = f"{share:.0%} {of}"
            yield count("Retrieval", label, Retrieval(), store, LENGTHS[-1]) | {
                "share": share,
                "of": of,
                "stored_texts": len(some),
            }


def _copied(name: str, texts: Sequence[dict]) -> Iterator[dict]:
    sources = [text["inputs"] for text in texts]
    prefix = [ids[0] for ids in zip(*sources, strict=False) if len(set(ids)) == 1]
    size = _ids(texts)
    (recording,) = (text["drafts"].values() for text in texts[:1])
    assert len(recording) == 1, "PASSES are not of a model that drafts"
    said = [next(iter(text["drafts"].values()))["proposed"] for text in texts]
    model = Autoregressive(Recorded(size), Greedy())
    for longest in COPIED:
        for drafter in (PromptLookup(), SuffixDecoding()):
            yield _line(name, texts, size, type(drafter).__name__, "", drafter, {}, longest)
        copy = InputCopy(tuple(prefix))
        yield _line(name, texts, size, "InputCopy", "", copy, {}, longest)
        for drafter in (model, Hybrid(PromptLookup(shortest=3), model)):
            called = type(drafter).__name__
            yield _line(name, texts, size, called, "", drafter, {}, longest, draft=said)


def _ids(texts: Sequence[dict], *stores: Sequence[Sequence[int]]) -> int:
    """A vocabulary that has all ids."""
    rows = [*(text[side] for text in texts for side in ("inputs", "output"))]
    return 1 + max(max(row) for row in (*rows, *(row for store in stores for row in store)))


def _arrays(table: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return {name: jnp.asarray(array) for name, array in table.items()}


def _line(
    name, texts, size, drafter_name, store, drafter, trees, longest: int, draft=None
) -> dict[str, Any]:
    """Tokens per call of a drafter with drafts of at most `longest` tokens.

    draft: of each text what its model proposes.
    """
    most = max(len(text["output"]) for text in texts) + 1
    plan = Plan(Recorded(size), drafter, GreedyMatch(), Fixed(longest), Greedy(), most, (1,))
    width, counts = max(len(text["inputs"]) for text in texts), []
    for start in range(0, len(texts), ROWS):
        rows = texts[start : start + ROWS]
        given = {"target": {"tokens": _filled([row["output"] for row in rows], most)}, **trees}
        if draft is not None:
            given["draft"] = {"tokens": _filled(draft[start : start + ROWS], most)}
        inputs = _filled([row["inputs"] for row in rows], width)
        keys = row_keys(0, jnp.arange(ROWS))
        active = jnp.arange(ROWS) < len(rows)
        output = decode(plan.params(given), keys, inputs, plan, active=active)
        for row, tokens in zip(rows, output.tokens.tolist(), strict=False):
            assert tokens[: len(row["output"])] == row["output"]
        counts.append(np.stack([output.length, output.trace.calls])[:, : len(rows)])
    both = np.concatenate(counts, axis=1).astype(float)
    value, low, high = harness.of_sums(both, lambda sums: sums[0] / sums[1])
    return {
        "task": name,
        "drafter": drafter_name,
        "store": store,
        "K": longest,
        "texts": len(texts),
        "tokens_per_call": round(value, 4),
        "interval": [round(low, 4), round(high, 4)],
    }


def _filled(rows: Sequence[Sequence[int]], width: int) -> jax.Array:
    block = np.zeros([ROWS, width], np.int32)
    for row, tokens in zip(block, rows, strict=False):
        row[: len(tokens)] = tokens
    return jnp.asarray(block)


if __name__ == "__main__":
    main()
