"""Measures what eight bits cost in quality, and whether speculation still gives the target's texts.

  python scripts/studies/eight_bits.py [--pairs ende captions] [--texts 1000]

The pair in float is compared to the same pair in int8, with tokens in float and in int8: BLEU,
texts that stay the same, and the acceptance rate. Each pair decodes every text with its draft and
without, one at a time. Where the two outputs differ, the gap between the target's scores of the two
tokens tells a near-tie from a mistake. Lines go to eight_bits/lines.jsonl. Run it from the root of
a checkout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import harness
import jax.numpy as jnp
import numpy as np
from harness import Outputs, Results, Run, interval

from specdec.decoding import row_keys
from specdec.testing import audit

EIGHT_BITS = "--gin.INT8=('target', 'draft')"
WAYS = {
    "float": (),
    "int8 kernels": (EIGHT_BITS,),
    "int8": (EIGHT_BITS, "--gin.INT8_TOKENS=True"),
}
COLUMNS = (
    *("pair", "models", "texts", "BLEU", "less float", "same as float", "alpha"),
    *("tokens per call", "same without draft", "largest gap, nats"),
)


def main() -> None:
    parser = harness.parser(__doc__, texts=1000, pairs=("ende", "captions"))
    args = parser.parse_args()
    lines = Results.of(args, "eight_bits/lines", "pair", "models")
    print(harness.head(*COLUMNS), flush=True)
    for pair in args.pairs:
        for line in measured(pair, args.texts):
            lines.put({"pair": pair, **line, **harness.about()})
            print(row({"pair": pair, **line}), flush=True)


def measured(pair: str, texts: int) -> Iterator[dict[str, Any]]:
    """Yields a line for each of the WAYS."""
    in_float: Outputs | None = None
    for name, flags in WAYS.items():
        run = harness.run_of([*harness.pair_flags(pair), *flags], texts, batch_size=1)
        engine, references = run.engine, harness.references(run)
        fast = harness.outputs(run, engine.plan, engine.params)
        alone = engine.alone()
        slow = harness.outputs(run, alone.plan, alone.params)
        in_float = in_float or slow
        yield {
            "models": name,
            "texts": len(references),
            **harness.quality(slow.texts, in_float.texts, in_float.texts[0], references),
            "alpha": harness.alpha(harness.passes(run, engine.params)),
            "tokens_per_call": harness.tokens_per_call(fast),
            "gaps": gaps(run, fast.ids[0], slow.ids[0]),
        }


def gaps(run: Run, ours: np.ndarray, plain: np.ndarray) -> list[float]:
    """Returns the gap of each text that differs with and without a draft, in nats."""
    engine, found = run.engine, []
    for batch, *both in zip(run.batches(), ours, plain, strict=True):
        given = row_keys(run.data.seed, jnp.asarray(batch.index)), jnp.asarray(batch.inputs)
        rules: Any = {"sampling": run.plan.sampling, "stop_ids": run.plan.stop_ids}
        texts = (jnp.asarray(ids)[None] for ids in both)
        args = (run.plan.target, engine.params["target"], *given, *texts)
        found += [one.gap for one in audit.divergences(*args, **rules)]
    return found


def row(line: Mapping[str, Any]) -> str:
    """Returns a row of the table."""
    texts, differ = line["texts"], line["gaps"]
    return harness.row(
        *(line["pair"], line["models"], texts, f"{line['bleu']:.2f}"),
        *(interval(line["bleu_difference"]), f"{line['unchanged']:.1%}"),
        *(interval(line["alpha"], ".3f"), interval(line["tokens_per_call"])),
        *(f"{texts - len(differ)} of {texts}", f"{max(differ, default=0):.1e}"),
    )


if __name__ == "__main__":
    main()
