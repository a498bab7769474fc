"""Measures drafts of a model of pixels: the law of its pictures, calls, and the distance rule.

  python scripts/studies/pixels.py FOLDER DATA [--parts law coupled distance calls example]

DATA has what scripts/data/make_digits.py made. FOLDER has the target that configs/pixels/ has
trained, "target", and drafts such as "layers_1". Lines go to pixels/. Run it from the root of a
checkout; make_figures.py draws the pictures of part "example".
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import Outputs, Results, Run, interval

from specdec.certificate.subject import taught_scores
from specdec.decoding import row_keys
from specdec.decoding.program import DecodeProgram
from specdec.plan import Plan
from specdec.schedules import Fixed
from specdec.testing import compare_samples, divergences
from specdec.types import Params
from specdec.verifiers import Block, Coupled, Distance, Lenient, SpeculativeSampling

TEXTS = 180  # all of a held-out split
GAMMAS = (2, 4, 8)
GREYS = (0, 16)  # the ids that have an order
BOUNDS = (0, 1, 2, 4)
SHAPES, QUARTILES = 2, 4  # kinds of pictures of a class, and of log-probabilities of a kind
# The second one gives up exactness, to show what the test sees.
VERIFIERS = (SpeculativeSampling(), Lenient(0.5), Block())


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--samples", type=int, default=60, metavar="N", help="of each test prompt")
    parts = {one.__name__: one for one in (law, coupled, distance, calls, example)}
    parser.add_argument("--parts", nargs="+", choices=parts, default=[*parts], metavar="PART")
    args = parser.parse_args()
    for part in args.parts:
        parts[part](args)


def run_of(args: argparse.Namespace, draft: str, config: str = "drawn") -> Run:
    """Returns the run of the target and a draft on held-out digits."""
    paths = {"": Path("target"), "DRAFT_": Path(draft, "draft")}
    flags = [
        harness.checkpoint_flag(args.folder / path / "export", role) for role, path in paths.items()
    ]
    files = f"--gin_file=configs/pixels/{config}.gin", f"--gin.DATA={str(args.data)!r}"
    return harness.run_of([*files, *flags], TEXTS, batch_size=TEXTS)


def drafts(args: argparse.Namespace) -> list[str]:
    return sorted(path.parents[1].name for path in args.folder.glob("*/draft/export"))


def law(args: argparse.Namespace) -> None:
    """Compares samples of each verifier with one of the target alone, and prints a table."""
    lines = Results.of(args, "pixels/law", "sample")
    run = run_of(args, drafts(args)[0])
    plans = {str(one): dataclasses.replace(run.plan, verifier=one) for one in VERIFIERS}
    plans["the target alone, once more"] = run.plan.baseline()
    first = harness.outputs(run, run.plan.baseline(), run.engine.params, args.samples, seed=1000)
    print(harness.head("sample", "chi2", "degrees", "p", "passed", "TV seen"), flush=True)
    for seed, (name, plan) in enumerate(plans.items()):
        found = harness.outputs(run, plan, run.engine.params, args.samples, seed=seed)
        cells = cells_of(run, first, found)
        outcome = compare_samples(*cells, groups=10)
        line = {"sample": name, "draft": drafts(args)[0], **dataclasses.asdict(outcome)}
        lines.put(line | {"passed": outcome.passed} | harness.about())
        figures = f"{outcome.statistic:.0f}", outcome.degrees, f"{outcome.p_value:.2g}"
        print(
            harness.row(name, *figures, outcome.passed, f"{outcome.detectable_tv:.3f}"), flush=True
        )


def cells_of(run: Run, *samples: Outputs) -> list[np.ndarray]:
    """Returns the cells of two samples: the class, the most similar of a few real digits of it, and
    the quartile of the target's log-probability within both."""
    classes, pictures = references(run)
    kinds = []
    for sample in samples:
        far = np.sum((sample.ids[:, :, None] - pictures[None]) ** 2, axis=-1)
        kinds.append(SHAPES * classes[None] + np.argmin(far, axis=2))
    log_probs = np.stack([sample.log_probs for sample in samples])
    kinds, cells = np.stack(kinds), np.zeros(log_probs.shape, int)
    for kind in np.unique(kinds):
        there = kinds == kind
        edges = np.quantile(log_probs[there], np.arange(1, QUARTILES) / QUARTILES)
        cells[there] = QUARTILES * kind + np.searchsorted(edges, log_probs[there])
    return [one.ravel() for one in cells]


def references(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Returns the classes [texts] of a run's prompts, and the first digits [texts, SHAPES, 64] of
    the same class among the run's own references."""
    batches = list(run.batches())
    classes = np.concatenate([batch.inputs[:, 0] for batch in batches])[:TEXTS]
    real = np.concatenate([batch.targets for batch in batches])[:TEXTS]
    first = {one: real[classes == one][:SHAPES] for one in np.unique(classes)}
    return classes - classes.min(), np.stack([first[one] for one in classes])


def coupled(args: argparse.Namespace) -> None:
    """Compares pictures of `Coupled` with those that the target alone draws with the same keys."""
    lines = Results.of(args, "pixels/coupled", "draft")
    known = lines.known()
    for draft in drafts(args):
        if (draft,) in known:
            continue
        run = run_of(args, draft)
        plan, params = dataclasses.replace(run.plan, verifier=Coupled()), run.engine.params
        fast, alone = (harness.outputs(run, one, params, 5) for one in (plan, plan.baseline()))
        (batch,) = run.batches()
        gaps = [
            found.gap
            for sample, (ours, plain) in enumerate(zip(fast.ids, alone.ids, strict=True))
            for found in divergences(
                plan.target,
                params["target"],
                row_keys(run.data.seed, jnp.asarray(batch.index), sample),
                batch.inputs,
                ours,
                plain,
                sampling=plan.sampling,
            )
        ]
        line = {
            "draft": draft,
            "pictures": int(np.prod(fast.ids.shape[:2])),
            "identical": int(np.all(fast.ids == alone.ids, axis=-1).sum()),
            "gaps": gaps,
            "tokens_per_call": harness.tokens_per_call(fast),
        }
        lines.put(line | harness.about())
        print(line, flush=True)


def distance(args: argparse.Namespace) -> None:
    """Checks the bound of the distance rule on greedy completions, and prints a table."""
    lines = Results.of(args, "pixels/distance", "draft", "bound")
    run = run_of(args, drafts(args)[0], "completed")
    params = run.engine.params
    alone = decoded(run, run.plan.baseline(), params).tokens
    columns = (
        "bound",
        "tokens per call",
        "drafted pixels kept",
        "changed",
        "furthest",
        "violations",
    )
    print(harness.head(*columns, "difference to exact pictures"), flush=True)
    for bound in BOUNDS:
        plan = dataclasses.replace(run.plan, verifier=Distance(bound, GREYS))
        output = decoded(run, plan, params)
        line = {"draft": drafts(args)[0], "bound": bound, **bounded(run, plan, params, output)}
        line["difference"] = float(np.abs(output.tokens - alone).mean())
        lines.put(line | harness.about())
        figures = [line[name] for name in ("kept", "changed", "furthest", "violations")]
        calls = interval(line["tokens_per_call"])
        print(harness.row(bound, calls, *figures, f"{line['difference']:.3f}"), flush=True)


def decoded(run: Run, plan: Plan, params: Params) -> Any:
    """Returns the output of all texts of a run, which are one batch."""
    (batch,) = run.batches()
    keys = row_keys(run.data.seed, jnp.asarray(batch.index))
    return jax.device_get(DecodeProgram(plan)(params, keys, jnp.asarray(batch.inputs)))


def bounded(run: Run, plan: Plan, params: Params, output: Any) -> dict[str, Any]:
    """Compares each kept draft token with the target's own, given the same text before it."""
    (batch,) = run.batches()
    inputs, tokens = jnp.asarray(batch.inputs), jnp.asarray(output.tokens)
    scores = jax.jit(lambda params: taught_scores(params, inputs, tokens, plan=plan)[1])
    own = np.argmax(scores(params["target"]), axis=2)
    kept = np.array([harness.accepted(output, row) for row in range(len(tokens))])
    far = np.abs(output.tokens - own)
    assert isinstance(plan.verifier, Distance)
    return {
        "pictures": len(tokens),
        "kept": int(kept.sum()),
        "changed": int((kept & (far > 0)).sum()),
        "furthest": int(far[kept].max()),
        "violations": int((kept & (far > plan.verifier.epsilon)).sum()),
        "own_differ": int((~kept & (far > 0)).sum()),  # by rounding, if any
        "tokens_per_call": harness.of_sums(
            [output.length, output.trace.calls], lambda s: s[0] / s[1]
        ),
    }


def calls(args: argparse.Namespace) -> None:
    """Counts tokens per call of each draft and draft length, and prints a table."""
    lines = Results.of(args, "pixels/calls", "draft", "gamma")
    known = {draft for draft, _ in lines.known()}
    print(harness.head("draft", "parameters", "alpha", "gamma", "tokens per call"), flush=True)
    for draft in drafts(args):
        if draft in known:
            continue
        run = run_of(args, draft)
        params, alpha = run.engine.params, harness.alpha(harness.passes(run, run.engine.params))
        size = sum(x.size for x in jax.tree.leaves(params["draft"]))
        for gamma in GAMMAS:
            plan = dataclasses.replace(run.plan, schedule=Fixed(gamma))
            found = harness.outputs(run, plan, params, 5)
            line = {"draft": draft, "parameters": size, "alpha": alpha, "gamma": gamma}
            line |= {"target_parameters": sum(x.size for x in jax.tree.leaves(params["target"]))}
            line |= {"pictures": 5 * TEXTS, "tokens_per_call": harness.tokens_per_call(found)}
            lines.put(line | harness.about())
            figures = f"{size:,}", interval(alpha, ".3f"), gamma, interval(line["tokens_per_call"])
            print(harness.row(draft, *figures), flush=True)


def example(args: argparse.Namespace) -> None:
    """Writes a picture of each class, by the target alone and with a draft, for the figure."""
    lines = Results.of(args, "pixels/example", "way")
    run = run_of(args, drafts(args)[0])
    (batch,) = run.batches()
    rows = [int(np.flatnonzero(batch.inputs[:, 0] == id)[0]) for id in np.unique(batch.inputs)]
    ways = {"alone": run.plan.baseline(), "speculative": run.plan}
    for way, plan in ways.items():
        output = decoded(run, plan, run.engine.params)
        line: dict[str, Any] = {"way": way, "pixels": [output.tokens[row].tolist() for row in rows]}
        line["accepted"] = [np.flatnonzero(harness.accepted(output, row)).tolist() for row in rows]
        line["calls"] = [int(output.trace.calls[row]) for row in rows]
        lines.put(line | harness.about())


if __name__ == "__main__":
    main()
