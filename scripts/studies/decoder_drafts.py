"""Measures which shape of a draft suits a decoder-only target (Yan et al. 2024, 2402.01528).

  python scripts/studies/decoder_drafts.py FOLDER [--texts 300]

FOLDER has checkpoints that configs/train_articles.gin has trained: "target", and drafts such as
"d2x128". Each draft is judged by its loss on references, its acceptance rate and its tokens per
call, and timed in turns with the target alone. Then every model is the target of all smaller ones,
and a line of SDSL (2603.11053) is fitted: the greedy acceptance rate by the perplexities of both
models. So it is for the T5s of docs/results, which have one target.
Lines go to decoder_drafts/. Run it from the root of a checkout.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import Results, Run, interval

from specdec.common.records import Lines
from specdec.decoding import row_keys
from specdec.decoding.program import DecodeProgram
from specdec.measure.alphas import summarize
from specdec.training.loss import Pairs, cross_entropy, teacher_forced

TASK = (
    *("--gin_file=demo.gin", "--gin.TASK_NAME='specdec_articles'"),
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 144}",
)
DRAWN = "--gin_file=sampling/temperature.gin", "--gin_file=verifiers/block.gin"
GAMMAS = (4, 8)
ROLES = ("target", "draft")
JUDGED = (
    *("draft", "parameters", "loss of references", "loss of outputs", "alpha, T=0"),
    *("alpha, T=1", "tokens per call, gamma 4"),
)
TIMED = ("draft", "gamma", "time over the target's alone", "processor time", "load")


def main() -> None:
    parser = harness.parser(__doc__, texts=300)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--timed_texts", type=int, default=8, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parts = ("judged", "timed", "fitted")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, metavar="PART")
    args = parser.parse_args()
    names = sorted(folder.parent.name for folder in args.folder.glob("*/export"))
    drafts = [name for name in names if name != "target"]
    if "judged" in args.parts:
        judged(args, drafts)
    if "timed" in args.parts:
        timed(args, drafts)
    if "fitted" in args.parts:
        fitted(args, names)


def run_of(args: Any, draft: str, texts: int, *more: str, target: str = "target") -> Run:
    """Returns the run of two checkpoints of the folder on articles, by default greedy."""
    paths = {"": target, "DRAFT_": draft}
    flags = [
        harness.checkpoint_flag(args.folder / path / "export", role) for role, path in paths.items()
    ]
    return harness.run_of([*TASK, *flags, *more], texts)


def losses(run: Run, role: str, texts: Sequence[Pairs]) -> float:
    """Returns a model's nats per token of texts."""
    model = run.plan.models()[role]

    @jax.jit
    def sums(params: Any, pairs: Pairs) -> Any:
        logits = teacher_forced(model, params, pairs)
        return cross_entropy(logits, pairs.targets, model.pad_id)

    found = [jax.device_get(sums(run.engine.params[role], pairs)) for pairs in texts]
    return float(sum(one.loss for one in found) / sum(one.tokens for one in found))


def references(run: Run) -> list[Pairs]:
    return [Pairs(batch.inputs, batch.targets) for batch in run.batches()]


def outputs_as_pairs(run: Run, found: harness.Outputs) -> list[Pairs]:
    inputs = [batch.inputs[: len(batch.input_texts)] for batch in run.batches()]
    return [Pairs(np.concatenate(inputs), found.ids[0])]


def judged(args: Any, drafts: Sequence[str]) -> None:
    """Judges each draft on held-out articles, and prints a table."""
    lines = Results.of(args, "decoder_drafts/judged", "draft")
    known = lines.known()
    for draft in drafts:
        if (draft,) in known:
            continue
        run = run_of(args, draft, args.texts, "--gin.GAMMA=4")
        params, fast = run.engine.params, harness.outputs(run, run.plan, run.engine.params)
        drawn = run_of(args, draft, args.texts, *DRAWN)
        lines.put(
            {
                "draft": draft,
                "parameters": sum(x.size for x in jax.tree.leaves(params["draft"])),
                "texts": args.texts,
                "loss_of_references": losses(run, "draft", references(run)),
                "target_loss_of_references": losses(run, "target", references(run)),
                "loss_of_outputs": losses(run, "draft", outputs_as_pairs(run, fast)),
                "alpha": harness.alpha(harness.passes(run, params)),
                "alpha_drawn": harness.alpha(harness.passes(drawn, drawn.engine.params)),
                "tokens_per_call": harness.tokens_per_call(fast),
                **harness.about(),
            }
        )
    print(harness.head(*JUDGED))
    for line in sorted(lines, key=lambda line: line["parameters"]):
        figures = (f"{line[name]:.3f}" for name in ("loss_of_references", "loss_of_outputs"))
        alphas = (interval(line[name], ".3f") for name in ("alpha", "alpha_drawn"))
        calls = interval(line["tokens_per_call"])
        print(harness.row(line["draft"], f"{line['parameters']:,}", *figures, *alphas, calls))


def timed(args: Any, drafts: Sequence[str]) -> None:
    """Times each draft at several lengths, in turns with the target alone, and prints a table."""
    lines = Results.of(args, "decoder_drafts/timed", "text", "repeat")
    ways: dict[str, Any] = {}
    for draft in drafts:
        for gamma in GAMMAS:
            run = run_of(args, draft, args.timed_texts, f"--gin.GAMMA={gamma}")
            ways[f"{draft}, {gamma}"] = way(run, run.engine)
    ways["alone"] = way(run, run.engine.alone())
    one_each = [batch for batch in harness.run_of(TASK, args.timed_texts, batch_size=1).batches()]
    about = {"draft": "all", **harness.about()}
    for line, found in harness.turns(ways, one_each, args.repeats, about, lines):
        ids = {name: np.asarray(output.tokens).tobytes() for name, output in found.items()}
        lines.put(line | {"identical": sum(each == ids["alone"] for each in ids.values())})
    print(harness.head(*TIMED))
    speed: dict[str, float] = {}
    for name, seconds, cells in harness.compared(list(lines), "alone"):
        draft, _, gamma = name.partition(", ")
        print(harness.row(draft, gamma, *cells))
        speed[draft] = max(speed.get(draft, 0), 1 / seconds.sum())
    lines_of_drafts = {x["draft"]: x for x in Results.of(args, "decoder_drafts/judged", "draft")}
    for figure in ("loss_of_references", "loss_of_outputs", "tokens_per_call", "parameters"):
        values = [np.ravel(lines_of_drafts[draft][figure])[0] for draft in drafts]
        rank = spearman(values, [speed[draft] for draft in drafts])
        print(f"rank correlation of {figure} with the speed at the best gamma: {rank:+.2f}")


def way(run: Run, engine: Any) -> Any:
    """Returns a function that decodes a batch by an engine."""
    program = DecodeProgram(engine.plan)

    def decoded(batch: Any) -> Any:
        keys = row_keys(run.data.seed, jnp.asarray(batch.index))
        return jax.device_get(program(engine.params, keys, jnp.asarray(batch.inputs)))

    return decoded


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Returns the rank correlation of values without ties."""
    ranks = [np.argsort(np.argsort(values)) for values in (x, y)]
    return float(np.corrcoef(np.stack(ranks)).min())


def fitted(args: Any, names: Sequence[str]) -> None:
    """Fits alpha = a * draft's perplexity + b * target's perplexity + c over pairs of models."""
    lines = Results.of(args, "decoder_drafts/pairs", "target", "draft")
    for target in names:
        for draft in names:
            if (target, draft) in lines.known() or target == draft:
                continue
            run = run_of(args, draft, args.texts, target=target)
            sizes = [sum(x.size for x in jax.tree.leaves(run.engine.params[r])) for r in ROLES]
            if sizes[0] <= sizes[1]:
                continue
            perplexities = [np.exp(losses(run, role, references(run))) for role in ROLES]
            found = summarize(harness.passes(run, run.engine.params))
            lines.put(
                {
                    **{"target": target, "draft": draft, "texts": args.texts},
                    **{"perplexities": perplexities, "alpha": found.alphas["model"][1].value},
                    **harness.about(),
                }
            )
    of_target, of_draft = np.array([line["perplexities"] for line in lines]).T
    alphas = [line["alpha"] for line in lines]
    print(f"decoders: {law(alphas, draft=of_draft, target=of_target)}")
    for path in sorted(args.results.glob("*/drafts/judged.jsonl")):
        t5s = [line for line in Lines(path) if line["domain"] == "captions"]
        for of in ("references", "outputs"):
            perplexities = np.exp([line[f"loss_of_{of}"] for line in t5s])
            print(f"T5s, {of}: {law([line['alpha'][0] for line in t5s], draft=perplexities)}")


def law(alphas: Sequence[float], **perplexities: np.ndarray) -> str:
    """Describes the least-squares line of alpha over perplexities, by model, with its R2."""
    values = np.array(alphas)
    columns = np.stack([*perplexities.values(), np.ones(len(values))], axis=1)
    weights, *_ = np.linalg.lstsq(columns, values, rcond=None)
    left = values - columns @ weights
    r2 = 1 - left @ left / np.sum((values - values.mean()) ** 2)
    terms = (f"{w:+.3f} ppl({name})" for w, name in zip(weights, perplexities, strict=False))
    return f"alpha = {' '.join(terms)} {weights[-1]:+.3f}, R2 {r2:.3f}, {len(values)} pairs"


if __name__ == "__main__":
    main()
