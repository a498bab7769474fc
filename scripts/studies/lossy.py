"""Measures what each verifier keeps, what it costs in quality, and how fast it is.

  python scripts/studies/lossy.py --costs FILE [--pair captions] [--texts 1000] [--only PATTERN]

Every verifier decodes the texts of the test split in batches. Lines go to verifiers/lines.jsonl.
BLEU is against the references and against the target's own greedy texts. Speed-ups are of whole
texts at batch 1: their calls, times what the parts take by FILE (costs.json of `specdec tune`), at
T5-large's sizes for example. Run it from the root of a checkout; make_figures.py draws the lines.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import harness
import numpy as np
from harness import PAIRS, Outputs, Params, Plan, Results, Run, of_sums

from specdec.measure.parts import Calls
from specdec.predict.costs import Costs
from specdec.predict.stored_costs import read as read_costs
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.verifiers import (
    BigLittle,
    Block,
    Ensemble,
    GreedyMatch,
    Lenient,
    MinimumBlock,
    SpeculativeCascade,
    SpeculativeSampling,
    TopBeta,
    TopK,
    Typical,
)

GREEDY = (
    GreedyMatch(),
    *(TopBeta(*x) for x in ((2, 0.5), (3, 1.0), (5, 3.0))),
    TopK(2),
    *(Lenient(x) for x in (0.5, 0.3, 0.1)),
    MinimumBlock(GreedyMatch(), 1),
    *(BigLittle(*x) for x in ((0.6, 5.0), (0.4, 2.0))),
    *(Ensemble(x) for x in (0.7, 0.5)),
    *(SpeculativeCascade("token", x) for x in (0.3, 0.7)),
    SpeculativeCascade("chow", 0.3),
)
DRAWN = (
    SpeculativeSampling(),
    Block(),
    *(Lenient(x) for x in (0.5, 0.3, 0.1)),
    Typical(),
    BigLittle(0.4, 2.0),
    Ensemble(0.7),
    *(SpeculativeCascade("token", x) for x in (0.3, 0.7)),
)
LONGER = (SpeculativeSampling(), Block())  # at gamma 8 too
SAMPLES = 3  # of each drawn text
ASKED = (0.25, 0.5, 0.75)  # of the texts, by a cascade of whole texts
COLUMNS = (
    *("T", "gamma", "verifier", "tokens per call", "over exact"),
    *("BLEU", "less exact", "BLEU to own texts", "own texts", "speed-up"),
)


class Mode(NamedTuple):
    """A way to decode."""

    name: str
    temperature: int
    gamma: int
    plan: Plan
    params: Params


def main() -> None:
    parser = harness.parser(__doc__, texts=1000)
    parser.add_argument("--pair", choices=PAIRS, default="captions")
    parser.add_argument("--costs", required=True, metavar="FILE", help="seconds of the parts")
    parser.add_argument("--only", default="", metavar="PATTERN", help="measure these modes only")
    args = parser.parse_args()
    lines = Results.of(args, "verifiers/lines", "pair", "mode")
    print(harness.head(*COLUMNS), flush=True)
    for line in measured(args, read_costs(args.costs, None)):
        lines.put({"pair": args.pair, **line})
        print(row(line), flush=True)


def measured(args: argparse.Namespace, costs: Costs) -> Iterator[dict[str, Any]]:
    """Yields a line for each mode that is asked for, and for the target alone."""
    run = harness.run_of(harness.pair_flags(args.pair), args.texts)
    references = harness.references(run)
    exact: dict[tuple[int, int], Outputs] = {}
    alone: dict[str, Outputs] = {}
    for mode in modes_of(run, run.engine.read()):
        if not (mode.name.startswith("target alone") or re.search(args.only, mode.name)):
            continue
        found = harness.outputs(run, mode.plan, mode.params, SAMPLES if mode.temperature else 1)
        if not mode.plan.drafts:
            alone[mode.name] = found
        first = exact.setdefault((mode.temperature, mode.gamma), found)
        slow = alone[f"target alone{', drawn' * mode.temperature}"]
        if mode.name == "target alone":
            whole = mode
        took = seconds(mode, found, costs, whole)
        baseline = costs.prefill_alone + means(slow.tokens) * costs.step
        yield {
            "mode": mode.name,
            "temperature": mode.temperature,
            "gamma": mode.gamma,
            "exact": mode.plan.exact and not mode.name.startswith(("draft", "target of")),
            "texts": len(references),
            "samples": len(found.texts),
            "tokens_per_call": harness.tokens_per_call(found),
            "over_exact": harness.calls_over(found, first),
            **harness.quality(found.texts, first.texts, alone["target alone"].texts[0], references),
            "speedup": of_sums([baseline, took], lambda s: s[0] / s[1]),
        }
    if not args.only:
        yield from cascades(alone, references, costs)


def seconds(mode: Mode, found: Outputs, costs: Costs, whole: Mode) -> np.ndarray:
    """Returns [texts] of each text, decoded alone; means over samples. `whole` is the target."""
    if mode.plan.drafts:
        return costs.prefill + means(found.calls) * costs.iteration(mode.plan.parts()).seconds
    if mode.name.startswith("target"):
        share = 1.0
        if mode.name.startswith("target of"):  # its step is not among the costs: by what it reads
            share = read(mode) / read(whole)
        return costs.prefill_alone + means(found.tokens) * costs.step * share
    own = costs.prefill - costs.prefill_alone
    return own + means(found.tokens) * costs.calls[Calls("draft", 1)]


def read(mode: Mode) -> int:
    return harness.read_by_step(mode.plan.target, mode.params["target"])


def trimmed(target: Any, tree: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields the target without its last decoder layers: name, model and parameters, untrained."""
    stored, layers = target.to_stored(tree), target.config.num_decoder_layers
    for kept in range(1, layers):
        decoder = {k: v for k, v in stored["decoder"].items() if k not in dropped(kept, layers)}
        config = dataclasses.replace(target.config, num_decoder_layers=kept)
        model = dataclasses.replace(target.stored(), config=config)
        name = f"target of {kept} of {layers} decoder layers"
        yield name, model, model.from_stored(stored | {"decoder": decoder})


def dropped(kept: int, layers: int) -> set[str]:
    return {f"layers_{i}" for i in range(kept, layers)}


def means(values: np.ndarray) -> np.ndarray:
    """Returns [texts] of [samples, texts]."""
    return values.mean(axis=0)


def modes_of(run: Run, params: Params) -> Iterator[Mode]:
    """Yields the target and the draft alone, and every verifier."""
    plan, target = run.plan, run.engine.alone().plan
    tree = run.placement.read(target.target, run.checkpoint_path)
    drafter: Any = plan.drafter
    draft = dataclasses.replace(plan.alone(), target=drafter.model)
    for rule, temperature in ((Greedy(), 0), (Sampling(), 1)):
        drawn = ", drawn" * temperature
        fewer = () if temperature else trimmed(target.target, tree)
        for name, one, own in (
            ("target alone", target, tree),
            ("draft alone", draft, params["draft"]),
            *((name, dataclasses.replace(target, target=x), y) for name, x, y in fewer),
        ):
            alone = dataclasses.replace(one, sampling=rule).alone()
            yield Mode(f"{name}{drawn}", temperature, 0, alone, Params(own))
        drafting = dataclasses.replace(drafter, sampling=rule)
        cases = [(4, one) for one in (DRAWN if temperature else GREEDY)]
        for gamma, verifier in [*cases, *((8, x) for x in LONGER if temperature)]:
            used = dataclasses.replace(
                plan, drafter=drafting, sampling=rule, verifier=verifier, schedule=Fixed(gamma)
            )
            yield Mode(f"{verifier}, gamma {gamma}{drawn}", temperature, gamma, used, params)


def cascades(
    alone: Mapping[str, Outputs], references: Sequence[str], costs: Costs
) -> Iterator[dict[str, Any]]:
    """Yields lines of draft texts, of which the least sure are left to the target."""
    big, small = alone["target alone"], alone["draft alone"]
    for share in ASKED:
        unsure = small.log_probs[0] < np.quantile(small.log_probs[0], share)
        pairs = zip(big.texts[0], small.texts[0], unsure, strict=True)
        texts = [asked if ask else answered for asked, answered, ask in pairs]
        slow = costs.prefill_alone + means(big.tokens) * costs.step
        first = costs.prefill - costs.prefill_alone
        took = first + means(small.tokens) * costs.calls[Calls("draft", 1)] + unsure * slow
        yield {
            "mode": f"cascade of whole texts, {share:.0%} asked",
            "asked": share,
            "temperature": 0,
            "gamma": 0,
            "exact": False,
            "texts": len(references),
            "samples": 1,
            "tokens_per_call": [1.0, 1.0, 1.0],
            "over_exact": [1.0, 1.0, 1.0],
            **harness.quality([texts], big.texts, big.texts[0], references),
            "speedup": of_sums([slow, took], lambda s: s[0] / s[1]),
        }


def row(one: Mapping[str, Any]) -> str:
    return harness.row(
        one["temperature"],
        one["gamma"] or "",
        one["mode"].partition(", gamma")[0],
        harness.interval(one["tokens_per_call"], ".3f"),
        harness.interval(one["over_exact"], ".3f"),
        f"{one['bleu']:.2f}",
        harness.interval(one["bleu_difference"]),
        harness.interval(one["own_bleu"], ".1f"),
        f"{one['unchanged']:.0%}",
        harness.interval(one["speedup"]),
    )


if __name__ == "__main__":
    main()
