"""What each verifier keeps, what it costs in quality, and how fast it is, on captions.

  python scripts/lossy.py --costs FILE [--texts 1000]
  python scripts/lossy.py --draw FILE...

Every verifier decodes the captions of the test split in batches. A table goes to stdout, JSON lines
go to docs/results/DEVICE/verifiers/lines.jsonl as they are made. BLEU is against the references and
against the target's own greedy texts. Speed-ups are of whole texts at batch 1: their calls, times
what the parts take by FILE (costs.json of `specdec tune`), at T5-large's sizes for example.
--draw makes docs/figures/verifiers.svg of such lines, and of those of scripts/exits.py (needs the
extra `report`). Needs ../shared/multi30k, from the root of a checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from remeasure import RESULTS, device_name

from specdec import cli, evaluate, forecast, tasks
from specdec.benchmark.parts import Calls
from specdec.cli import run as runs
from specdec.cli import settings
from specdec.cli.run import DecodeRun
from specdec.decoding import row_keys
from specdec.forecast import Costs
from specdec.plan import Plan
from specdec.program import Decoder
from specdec.records import Lines
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.statistics import bootstrap
from specdec.types import Params, PyTree
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
QUALITIES = (("bleu", "BLEU"), ("own_bleu", "BLEU against the target's greedy texts"))
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


class Mode(NamedTuple):
    """What decodes."""

    name: str
    temperature: int
    gamma: int
    plan: Plan
    params: Params


class Outputs(NamedTuple):
    """Of a mode: [samples][texts] each."""

    texts: list[list[str]]
    tokens: np.ndarray
    calls: np.ndarray
    log_probs: np.ndarray  # means over tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--texts", type=int, default=1000, metavar="N")
    parser.add_argument("--costs", metavar="FILE", help="seconds of the parts")
    parser.add_argument("--only", metavar="PATTERN", help="modes whose lines are to be made anew")
    parser.add_argument("--draw", nargs="+", metavar="FILE", help="the figure of these lines alone")
    args = parser.parse_args()
    if args.draw:
        draw([one for path in args.draw for one in Lines(Path(path))])
        return
    path = RESULTS / device_name() / "verifiers" / "lines.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    if args.costs is None:
        parser.error("give --costs")
    print(HEAD, flush=True)
    found = {}
    if args.only:
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        found = {one["mode"]: one for one in lines}
    for one in measured(args.texts, forecast.read(args.costs, None), args.only or ""):
        found[one["mode"]] = one
        print(row(one), flush=True)
        write(path, list(found.values()))


def write(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines), encoding="utf-8")


def measured(texts: int, costs: Costs, only: str) -> Iterator[dict[str, Any]]:
    """A line for each mode whose name has a pattern in it, and for the target alone."""
    run = built(texts, "--gin.BATCH_SIZE=32")
    params, vocabulary = run.load(), runs.vocabulary_of(run)
    references = [text for batch in run.batches() for text in batch.target_texts or ()]
    exact: dict[tuple[int, int], Outputs] = {}
    alone: dict[str, Outputs] = {}
    for mode in modes_of(run, params):
        if not (mode.name.startswith("target alone") or re.search(only, mode.name)):
            continue
        found = outputs(run, mode, vocabulary)
        if not mode.plan.drafts:
            alone[mode.name] = found
        first = exact.setdefault((mode.temperature, mode.gamma), found)
        slow = alone[f"target alone{', drawn' * mode.temperature}"]
        if mode.name == "target alone":
            whole = mode
        took = (
            seconds(mode, found, costs, whole),
            costs.prefill_alone + means(slow.tokens) * costs.step,
        )
        one = line(mode, found, first, references, alone["target alone"].texts[0])
        yield one | {"speedup": of_sums([took[1], took[0]], lambda s: s[0] / s[1])}
    if not only:
        yield from cascades(alone, references, costs)


def seconds(mode: Mode, found: Outputs, costs: Costs, whole: Mode) -> np.ndarray:
    """[texts] of each text, decoded alone; means over samples. `whole` is the target alone."""
    if mode.plan.drafts:
        iteration = costs.iteration(mode.plan)
        assert iteration is not None, "the costs have every width"
        return costs.prefill + means(found.calls) * iteration
    if mode.name.startswith("target"):
        share = 1.0
        if mode.name.startswith("target of"):  # its step is not among the costs: by what it reads
            share = bytes_of_step(mode) / bytes_of_step(whole)
        return costs.prefill_alone + means(found.tokens) * costs.step * share
    own = costs.prefill - costs.prefill_alone
    return own + means(found.tokens) * costs.calls[Calls("draft", 1)]


def bytes_of_step(mode: Mode) -> int:
    """What a call of the target reads."""
    model: Any = mode.plan.target
    return sum(x.nbytes for x in jax.tree.leaves(model.read_by_decode(mode.params.target)))


def trimmed(target: Any, tree: PyTree) -> Iterator[tuple[str, Any, PyTree]]:
    """The target without its last decoder layers, as it is: nothing is trained anew."""
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
    """[texts] of [samples, texts]."""
    return values.mean(axis=0)


def built(texts: int, *flags: str, pair: str = "configs/multi30k.gin") -> DecodeRun:
    """The run of a pair, of the captions unless another is given."""
    argv = ["decode", f"--gin_file={pair}", f"--limit={texts}", "--gin.SPLIT='test'", *flags]
    args = cli.overview().parse_args(settings.joined(argv))
    with contextlib.ExitStack() as args.contexts:
        run = runs.build(args)
    return run.ending_with(runs.vocabulary_of(run).eos_id)


def modes_of(run: DecodeRun, params: Params) -> Iterator[Mode]:
    """The target and the draft alone, and every verifier."""
    plan, target = run.plan, run.alone
    tree = run.placement.read(target.target, run.checkpoint_path)
    drafter: Any = plan.drafter
    draft = dataclasses.replace(plan.alone(), target=drafter.model)
    for rule, temperature in ((Greedy(), 0), (Sampling(), 1)):
        drawn = ", drawn" * temperature
        fewer = () if temperature else trimmed(target.target, tree)
        for name, one, own in (
            ("target alone", target, tree),
            ("draft alone", draft, params.drafter),
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


def outputs(run: DecodeRun, mode: Mode, vocabulary: Any) -> Outputs:
    """All texts, in batches."""
    program = Decoder(mode.plan)
    found: list[list[tuple]] = []
    for sample in range(SAMPLES if mode.temperature else 1):
        found.append([])
        for batch in run.batches():
            keys = row_keys(run.data.seed, jnp.asarray(batch.index), sample)
            output = jax.device_get(program(mode.params, keys, jnp.asarray(batch.inputs)))
            for i in range(len(batch.input_texts)):
                length = int(output.length[i])
                text = tasks.detokenize(vocabulary, output.tokens[i, :length].tolist())
                mean = float(np.mean(output.log_probs[i, :length]))
                found[-1].append((text, length, int(output.trace.calls[i]), mean))
    columns = [[list(column) for column in zip(*sample, strict=True)] for sample in found]
    texts, *numbers = zip(*columns, strict=True)
    return Outputs(list(texts), *(np.array(x) for x in numbers))


def line(mode, found, exact, references, own) -> dict[str, Any]:
    """The figures of a mode, with 95 % intervals over texts."""
    bleu = tasks.Bleu()
    tokens, calls, exact_tokens, exact_calls = (
        x.sum(axis=0) for x in (found.tokens, found.calls, exact.tokens, exact.calls)
    )
    less = evaluate.differences(bleu, references, found.texts, exact.texts)["bleu"]
    return {
        "mode": mode.name,
        "temperature": mode.temperature,
        "gamma": mode.gamma,
        "exact": mode.plan.exact and not mode.name.startswith(("draft", "target of")),
        "texts": len(references),
        "samples": len(found.texts),
        "tokens_per_call": of_sums([tokens, calls], lambda s: s[0] / s[1]),
        "over_exact": of_sums(
            [tokens, calls, exact_tokens, exact_calls], lambda s: s[0] / s[1] / (s[2] / s[3])
        ),
        "bleu": evaluate.values(bleu, references, found.texts)["bleu"],
        "bleu_difference": list(less),
        "own_bleu": own_bleu(own, found.texts),
        "unchanged": float(
            np.mean([a == b for s in found.texts for a, b in zip(s, own, strict=True)])
        ),
    }


def own_bleu(own: Sequence[str], texts: Sequence[Sequence[str]]) -> list[float]:
    """BLEU against the target's greedy texts, and its interval."""
    less = evaluate.differences(tasks.Bleu(), own, texts, [own] * len(texts))["bleu"]
    return [100 + x for x in less]


def same(texts: Sequence[str], others: Sequence[str]) -> float:
    """The share of texts that are."""
    return float(np.mean([a == b for a, b in zip(texts, others, strict=True)]))


def of_sums(values: Sequence[np.ndarray], figure: Any) -> list[float]:
    """The figure, and its interval."""
    stacked = np.stack(values).astype(float)
    return [float(figure(stacked.sum(axis=1))), *(float(x) for x in bootstrap(stacked, figure))]


def cascades(alone, references, costs: Costs) -> Iterator[dict[str, Any]]:
    """The draft answers, and the target is asked for the texts of which it is least sure."""
    bleu, big, small = tasks.Bleu(), alone["target alone"], alone["draft alone"]
    for share in ASKED:
        unsure = small.log_probs[0] < np.quantile(small.log_probs[0], share)
        pairs = zip(big.texts[0], small.texts[0], unsure, strict=True)
        texts = [asked if ask else answered for asked, answered, ask in pairs]
        less = evaluate.differences(bleu, references, [texts], big.texts)["bleu"]
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
            "bleu": evaluate.values(bleu, references, [texts])["bleu"],
            "bleu_difference": list(less),
            "own_bleu": own_bleu(big.texts[0], [texts]),
            "unchanged": same(texts, big.texts[0]),
            "speedup": of_sums([slow, took], lambda s: s[0] / s[1]),
        }


def row(one: dict[str, Any]) -> str:
    """Of the table."""

    def between(figure: Sequence[float], digits: int = 3) -> str:
        value, low, high = (f"{x:.{digits}f}" for x in figure)
        return f"{value} ({low} to {high})"

    cells = (
        one["temperature"],
        one["gamma"] or "",
        one["mode"].partition(", gamma")[0],
        between(one["tokens_per_call"]),
        between(one["over_exact"]),
        f"{one['bleu']:.2f}",
        between(one["bleu_difference"], 2),
        between(one["own_bleu"], 1),
        f"{one['unchanged']:.0%}",
        between(one["speedup"], 2),
    )
    return f"| {' | '.join(map(str, cells))} |"


def draw(lines: Sequence[dict[str, Any]]) -> None:
    """Quality over speed at each temperature: by the references, and by the target's own texts."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "specdec"
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, 2, figsize=(11, 9))
    for temperature, column in enumerate(panels.T):
        families: dict[str, list[dict[str, Any]]] = {}
        for one in lines:
            if one.get("temperature") == temperature and "speedup" in one:
                family = one["mode"].partition("(")[0].partition(",")[0].partition(" of")[0]
                family = "trimmed target" if " decoder layers" in one["mode"] else family
                families.setdefault(family, []).append(one)
        for axes, (name, title) in zip(column, QUALITIES, strict=True):
            axes.set_prop_cycle(color=[*matplotlib.color_sequences["tab20"], "black", "gold"])
            for family, members in families.items():
                x = [one["speedup"][0] for one in members]
                y = [np.ravel(one[name])[0] for one in members]
                exact = all(one["exact"] for one in members)
                style = {"marker": "*", "markersize": 12} if exact else {"marker": "o"}
                axes.plot(x, y, label=family, linewidth=0.8, **style)
            axes.set(xscale="log", xlabel="speed-up over the target alone")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("{x:g}")
            axes.set_ylabel(title)
            axes.set_title(f"temperature {temperature}; stars are exact")
            axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(
        RESULTS.parent / "figures" / "verifiers.svg", metadata={"Date": None}, bbox_inches="tight"
    )


if __name__ == "__main__":
    main()
