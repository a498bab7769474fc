"""Fine-tunes the embedded target by policy gradient, with roll-outs drawn with and without a draft.

  python scripts/studies/rollouts.py [--seeds 3] [--updates 100]

The reward is sentence BLEU. There are three ways: the target alone, the embedded draft, and that
draft realigned on the roll-outs. Lines go to rollouts/; a run that is complete is not repeated. Run
it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import harness
import numpy as np
from harness import Results

from specdec import checkpoints, tasks
from specdec.common import demo
from specdec.drafters import Autoregressive
from specdec.plan import Plan
from specdec.sampling import Sampling
from specdec.schedules import Fixed
from specdec.training import Adafactor, Align, FineTuning, LearningRate, Pairs
from specdec.training.policy_gradient import padded
from specdec.training.training_batches import pack, reader
from specdec.training.updates import evaluate_step
from specdec.types import Params, Trace
from specdec.verifiers import Block

TASK, GAMMA = "specdec_ende", 4
LONGEST = {"inputs": 64, "targets": 64}  # of the task
LENGTHS = {"inputs": 32, "targets": 24}  # of the texts that are used
WAYS = ("alone", "draft", "realigned draft")
TEXTS, SAMPLES = 8, 4  # of an update
HELD_OUT, EVERY = 128, 20  # texts of an evaluation, and updates between two of them
RATES = {"target": 2e-3, "draft": 1e-3}
ALIGN = Align({"forward_kl": 1.0})
AFTER = 10**6  # the number of an evaluation's first batch, beyond those of updates
LEARNED = (
    "way",
    *("BLEU before", "after", "alpha before", "after", "tokens per call before", "after"),
    "BLEU of roll-outs over the target alone",
)
TIMED = ("rows", "part", "time over roll-outs by the target alone", "processor time", "load")


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--updates", type=int, default=100, metavar="N")
    parser.add_argument("--batches", type=int, default=8, metavar="N", help="that are timed")
    parser.add_argument("--repeats", type=int, default=2, metavar="N")
    parts = ("learned", "timed")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, metavar="PART")
    args = parser.parse_args()
    if "learned" in args.parts:
        learned(args)
    if "timed" in args.parts:
        timed(args)


def tuning(way: str, seed: int, updates: int) -> tuple[FineTuning, Params]:
    """Returns the settings of a run, and the parameters that it begins with."""
    paths = [demo.path(role) for role in ("target", "draft")]
    models = [checkpoints.model_from(path) for path in paths]
    params = Params(*(checkpoints.load(path, dtype="float32") for path in paths))
    drafter = Autoregressive(models[1], Sampling())
    longest = LENGTHS["targets"]
    plan = Plan(models[0], drafter, Block(), Fixed(GAMMA), Sampling(), longest)
    optimizers = [Adafactor(LearningRate(peak=rate, warmup=5)) for rate in RATES.values()]
    return FineTuning(
        plan.alone() if way == "alone" else plan,
        steps=updates,
        samples=SAMPLES,
        optimizer=optimizers[0],
        align=ALIGN if way == "realigned draft" else None,
        align_optimizer=optimizers[1],
        seed=seed,
    ), params


class Bleu:
    """The reward: BLEU of an output against the text's target, over the lengths that it has."""

    def __init__(self):
        self._vocabulary = tasks.demo_vocabulary().load()

    def __call__(self, target: list[int], output: list[int]) -> float:
        texts = (tasks.detokenize(self._vocabulary, ids) for ids in (target, output))
        return tasks.Bleu().sentence(*texts)


def batches(split: str, seed: int, size: int = TEXTS) -> Iterator[Pairs]:
    """Yields batches of texts whose targets can be written in full; "train" is repeated."""
    examples = reader(tasks.synthetic_task(TASK), split, LONGEST, seed)(0)
    short = (x for x in examples if len(x.targets) <= LENGTHS["targets"])
    while rows := list(itertools.islice(short, size)):
        yield pack(rows, LENGTHS, size, buckets=1, pad_id=0)[0]


def learned(args: argparse.Namespace) -> None:
    """Fine-tunes in each way, with each seed, and prints a table."""
    lines = Results.of(args, "rollouts/learned", "way", "seed", "updates")
    for seed in range(args.seeds):
        for way in WAYS:
            if (way, str(seed), str(args.updates)) not in lines.known():
                about = {"way": way, "seed": seed, "updates": args.updates}
                lines.put(about | run(way, seed, args.updates) | harness.about())
    print(harness.head(*LEARNED))
    for way in WAYS:
        own = [line for line in lines if line["updates"] == args.updates]
        print(harness.row(way, *cells(own, way)))


def run(way: str, seed: int, updates: int) -> dict[str, Any]:
    """Fine-tunes once.

    Returns:
      The figures of all updates by name, and of evaluations every `EVERY` updates.
    """
    (tuned, params), reward = tuning(way, seed, updates), Bleu()
    policy, texts = tuned.begin(params), batches("train", seed)
    judged = list(itertools.islice(batches("validation", 0), HELD_OUT // TEXTS))
    held_out = [{"update": 0, **evaluation(tuned, policy.params, judged, reward)}]
    found: list[dict[str, Any]] = []
    for step in range(1, updates + 1):
        policy, update = tuned.update(policy, next(texts), reward)
        found.append({**update._asdict(), "load": harness.load_average()})
        if step % EVERY == 0 or step == updates:
            judgement = evaluation(tuned, policy.params, judged, reward)
            held_out.append({"update": step, **judgement})
            print(way, seed, held_out[-1], file=sys.stderr, flush=True)
    columns = {name: [one[name] for one in found] for name in found[0]}
    return {**columns, "held_out": held_out}


def evaluation(
    tuned: FineTuning, params: Params, texts: list[Pairs], reward: Bleu
) -> dict[str, Any]:
    """Returns the mean reward on held-out texts at temperature 1, and figures of the draft."""
    rewards, log_probs, sums = [], [], np.zeros(4)
    for number, pairs in enumerate(texts):
        inputs, output, _ = tuned.roll_out(params, pairs, AFTER + number)
        rewards += tuned.rewards(pairs, output, reward).tolist()
        log_probs += output.log_probs.sum(axis=1).tolist()
        sums[:2] += output.length.sum(), output.trace.calls.sum()
        if "draft" in tuned.plan.models():
            recipe = dataclasses.replace(tuned, align=ALIGN).recipes["draft"]
            own = Pairs(inputs, padded(output, 0))
            found = evaluate_step(params["draft"], own, params["target"], recipe=recipe)
            sums[2:] += float(found.loss), float(found.tokens)
    line = {"reward": float(np.mean(rewards)), "log_prob": float(np.mean(log_probs))}
    line["tokens_per_call"] = float(sums[0] / sums[1])
    return line | ({"alpha": float(1 - sums[2] / sums[3])} if sums[3] else {})


def cells(lines: Sequence[Mapping[str, Any]], way: str) -> list[str]:
    """Returns a row of the table of ways: means over seeds, each with its 95 % interval."""
    own, alone = ({x["seed"]: x for x in lines if x["way"] == name} for name in (way, "alone"))
    found = []
    for name in ("reward", "alpha", "tokens_per_call"):
        for place in (0, -1):
            found.append(mean([x["held_out"][place].get(name, math.nan) for x in own.values()]))
    # The same texts in the same updates.
    both = [(x["reward"], alone[seed]["reward"]) for seed, x in own.items() if seed in alone]
    return [*found, mean([np.mean(a) - np.mean(b) for a, b in both])]


def mean(values: Sequence[float]) -> str:
    """Returns the mean of values of two or more seeds, with its 95 % interval by Student's t."""
    from scipy import special

    middle, count = np.mean(values), len(values)
    if np.isnan(middle):
        return "-"
    half = special.stdtrit(count - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(count)
    return f"{middle:.3f} ± {half:.3f}"


class Work(NamedTuple):
    """A batch for `harness.turns`: texts, and roll-outs to learn from."""

    index: list[int]
    texts: Pairs
    drawn: Pairs


def timed(args: argparse.Namespace) -> None:
    """Times roll-outs with and without the draft, and updates, in turns; prints a table."""
    lines = Results.of(args, "rollouts/timed", "rows", "text", "repeat")
    print(harness.head(*TIMED))
    for texts in (1, TEXTS):
        alone, params = tuning("alone", 0, 1)
        work, rows, reward = [], texts * SAMPLES, Bleu()
        for number, pairs in enumerate(itertools.islice(batches("train", 0, texts), args.batches)):
            inputs, output, _ = alone.roll_out(params, pairs, number)
            rewards = alone.rewards(pairs, output, reward)
            work.append(Work([number], pairs, alone.pairs(inputs, output, rewards)))
        about = {"rows": rows, **harness.about()}
        for line, made in harness.turns(ways(), work, args.repeats, about, lines):
            counts = {name: made[name] for name in ("alone", "draft")}
            line["calls"] = {name: int(x.calls.sum()) for name, x in counts.items()}
            line["steps"] = {name: int(x.steps) for name, x in counts.items()}
            lines.put(line)
        own = [line for line in lines if line["rows"] == rows]
        for name, _, found in harness.compared(own, "alone"):
            print(harness.row(rows, name, *found))
        for name, figure in saved(own).items():
            print(harness.row(rows, name, harness.interval(figure), "", ""))


def ways() -> dict[str, Callable[[Work], Any]]:
    """Returns the parts of an update, each a function of a batch."""
    tuned, params = tuning("realigned draft", 0, 1)
    alone, policy = tuning("alone", 0, 1)[0], [tuned.begin(params)]

    def roll_out(own: FineTuning, work: Work) -> Trace:
        return own.roll_out(params, work.texts, work.index[0])[1].trace

    def train(role: str, work: Work) -> None:
        pairs = work.drawn if role == "target" else work.drawn._replace(drawn=None)
        policy[0], _ = tuned.train(role, policy[0], pairs)

    return {
        "alone": functools.partial(roll_out, alone),
        "draft": functools.partial(roll_out, tuned),
        "update": functools.partial(train, "target"),
        "realignment": functools.partial(train, "draft"),
    }


def saved(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Returns ratios of sums over batches, with intervals: times, and counts of target calls."""
    alone, draft, update, realign = harness.medians(lines, "processor_seconds").values()
    first = [line for line in lines if line["repeat"] == 0]
    steps = [np.array([line["steps"][name] for line in first]) for name in ("draft", "alone")]
    plan = tuning("draft", 0, 1)[0].plan
    trees = {role: x.parameter_shapes() for role, x in plan.models().items()}
    read = {role: harness.read_by_step(x, trees[role]) for role, x in plan.models().items()}
    cost = 1 + GAMMA * read["draft"] / read["target"]
    return {
        "share of roll-outs without a draft": over([alone], [alone, update]),
        "an update with the draft": over([draft, update], [alone, update]),
        "an update with realignment": over([draft, update, realign], [alone, update]),
        "target calls of a batch": over(steps[:1], steps[1:]),
        "roll-outs if reading parameters takes all time": over([cost * steps[0]], steps[1:]),
    }


def over(above: list[np.ndarray], below: list[np.ndarray]) -> list[float]:
    """Returns the ratio of two sums over batches, with its interval."""
    return harness.of_sums([np.sum(above, axis=0), np.sum(below, axis=0)], lambda s: s[0] / s[1])


if __name__ == "__main__":
    main()
