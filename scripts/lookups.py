"""Measures drafters without a model: tokens per target call, and what a store's size and kind do.

  python scripts/lookups.py --task NAME PASSES STORE [--task ...] [--write]

PASSES is what `specdec acceptance --output_file` wrote of a greedy run with a model as its drafter,
STORE the `texts.jsonl` of `specdec train --table=store` of other texts of the same target, or - for
none. Without a store the model and a hybrid are measured, by what PASSES says of the model, and
InputCopy is told of what all sources begin with. The loop decodes the texts of
PASSES with a recording of the target, so that counts are exact and nothing but the drafter runs.
With several tasks each one's texts are also looked up in the others' stores. A table goes to
stdout; with --write lines go to docs/results/lookups.jsonl, in place of those of the same tasks,
and a figure to docs/figures/store.svg (needs the extra `report`).
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec import tables
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
from specdec.forecast import Recorded
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.statistics import bootstrap
from specdec.verifiers import GreedyMatch

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROWS = 64
SHARES = (0.01, 0.1, 1.0)
LENGTHS = (3, 8)
COPIED = (8, 24, 48)  # where outputs are copies
HEAD = """| task | drafter | store | K | tokens per call | 95 % interval |
|---|---|---|---:|---:|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", nargs=3, action="append", required=True, metavar="X")
    parser.add_argument("--write", action="store_true", help="to docs/")
    args = parser.parse_args()
    stores = {name: _texts(store) for name, _, store in args.task if store != "-"}
    print(HEAD)
    lines = []
    for name, passes, _ in args.task:
        texts = [json.loads(line) for line in Path(passes).read_text().splitlines()]
        found = _measured(name, texts, stores) if name in stores else _copied(name, texts)
        for line in found:
            lines.append(line)
            low, high = line["interval"]
            print(
                f"| {line['task']} | {line['drafter']} | {line['store']} | {line['K']} "
                f"| {line['tokens_per_call']:.3f} | {low:.3f} to {high:.3f} |",
                flush=True,
            )
    if args.write:
        path, measured = DOCS / "results" / "lookups.jsonl", {line["task"] for line in lines}
        before = [json.loads(line) for line in path.read_text().splitlines()]
        lines = [*(line for line in before if line["task"] not in measured), *lines]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        _draw(lines, DOCS / "figures" / "store.svg")


def _texts(path: str) -> list[list[int]]:
    return [json.loads(line)["tokens"] for line in Path(path).read_text().splitlines()]


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
    low, high = bootstrap(both, lambda sums: sums[0] / sums[1])
    value = both[0].sum() / both[1].sum()
    return {
        "task": name,
        "drafter": drafter_name,
        "store": store,
        "K": longest,
        "texts": len(texts),
        "tokens_per_call": round(float(value), 4),
        "interval": [round(float(low), 4), round(float(high), 4)],
    }


def _filled(rows: Sequence[Sequence[int]], width: int) -> jax.Array:
    block = np.zeros([ROWS, width], np.int32)
    for row, tokens in zip(block, rows, strict=False):
        row[: len(tokens)] = tokens
    return jnp.asarray(block)


def _draw(lines: Sequence[dict], path: Path) -> None:
    """Tokens per call over the share of the store, in and out of its own task."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "specdec"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    drawn = [line for line in lines if line["drafter"] == "Retrieval"]
    for task in dict.fromkeys(line["task"] for line in drawn):
        for of in dict.fromkeys(line["of"] for line in drawn):
            some = [line for line in drawn if (line["task"], line["of"]) == (task, of)]
            x, y = ([line[key] for line in some] for key in ("stored_texts", "tokens_per_call"))
            low, high = zip(*(line["interval"] for line in some), strict=True)
            style = "-o" if of == task else ":x"
            (curve,) = axes.plot(x, y, style, label=f"{task}, from {of}")
            axes.fill_between(x, low, high, alpha=0.15, color=curve.get_color())
    axes.set(xscale="log", xlabel="stored texts", ylabel="tokens per target call")
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    main()
