"""T5 1.1 XXL at full size on one accelerator: speed-ups, what they are made of, the floor.

  PYTHONPATH=. python scripts/devices/xxl.py --output_dir=DIR [--sizes=tiny] [--minutes=9] [--beams]

Measures the embedded pair, grown to 11.0 and 0.05 billion parameters: exact, with real texts. Then
the rows of Leviathan et al. (2211.17192), table 2, with their gammas and with others. These are NOT
EXACT: weights are random, and draft tokens are kept at the paper's alpha. Their times are real,
their texts mean nothing. `--beams` searches for four beams with the grown pair.

Needs no gin, seqio or TensorFlow. docs/reference/gpu-tables.md says how to read the tables.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec import checkpoints, tasks
from specdec.common import demo, published, records
from specdec.common.environment import environment
from specdec.decoding.beam_rules import T5XBeams
from specdec.decoding.beam_search import beam_search
from specdec.decoding.program import Program
from specdec.drafters import Autoregressive
from specdec.engine.beam_engine import beam_plan
from specdec.measure.file import File
from specdec.measure.measurement import Measurement, described
from specdec.measure.parts import (
    MEMORY,
    MEMORY_READ,
    PREFILL,
    PREFILL_ALONE,
    READ_BYTES,
    STEP,
    Calls,
    TimedPart,
    Workload,
    batch_shapes,
    name_of,
)
from specdec.models import families
from specdec.models.t5 import T5Config, T5Target
from specdec.models.t5.network import FUSED
from specdec.plan import Plan
from specdec.predict import hlo
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.tasks.synthetic import synthetic_task
from specdec.types import Params
from specdec.verifiers import Block, GreedyMatch, SyntheticAcceptance

SEED = 0
PAPER = published.rows()
STEPS = ("step", "verify", "draft 2", "draft 1")
DRAFTING = ("draft 2", "draft 1", "extend")


def t5(emb_dim: int, heads: int, mlp_dim: int, layers: int, **sizes: Any) -> T5Target:
    sizes = {"vocab_size": 32128, "head_dim": 64} | sizes
    sizes |= {"num_encoder_layers": layers, "num_decoder_layers": layers}
    config = T5Config(emb_dim=emb_dim, num_heads=heads, mlp_dim=mlp_dim, dtype="bfloat16", **sizes)
    return T5Target(config)


def by_importance(gammas: Sequence[int]) -> list[tuple[str, int]]:
    """The paper's rows with its gammas, small drafts first, then all of them with these gammas."""
    order = ("small", "base", "large", "ende", "cnndm", "t0", "t1")

    def rank(name: str) -> list[int]:
        task, draft, temperature = name.split("_")
        return [order.index(each) for each in (draft, task, temperature)]

    names = sorted(PAPER, key=rank)
    theirs = [(name, PAPER[name].gamma) for name in names]
    sweep = [(name, gamma) for name in names for gamma in gammas]
    return list(dict.fromkeys([*theirs[:2], ("ende_small_t1", 5), *theirs, *sweep]))


@dataclasses.dataclass(frozen=True)
class Sizes:
    """models: the drafts, and the target, "xxl". lengths: task -> tokens of each input and output;
    the paper gives none. rows: the paper's name and a gamma, most important first. readings:
    of how often 0.5 GiB the memory is, and how often the part `memory_read` reads that. kernels:
    how drafts are computed, one of `KERNELS`."""

    models: Mapping[str, T5Target]
    lengths: Mapping[str, tuple[int, int]]
    rows: Sequence[tuple[str, int]]
    grown: Sequence[tuple[float, int]]
    texts: int
    repeats: int
    readings: tuple[int, int]
    kernels: str = "xla"

    def draft(self, model: T5Target) -> T5Target:
        """Returns a draft with these kernels."""
        return model.in_layout(**KERNELS[self.kernels])


KERNELS: Mapping[str, Mapping[str, Any]] = {
    "xla": {},
    "joined": {"joined": True},
    "fused": {"fused": FUSED.get(jax.default_backend(), "triton")},
}
FULL = {
    "small": t5(512, 6, 1024, 8),
    "base": t5(768, 12, 2048, 12),
    "large": t5(1024, 16, 2816, 24),
    "xxl": t5(4096, 64, 10240, 24),
}
TINY = {
    "small": t5(16, 1, 32, 2, vocab_size=96, head_dim=16),
    "xxl": t5(32, 2, 64, 2, vocab_size=96, head_dim=16),
}
SIZES = {
    "full": Sizes(
        models=FULL,
        lengths={"ende": (64, 64), "cnndm": (512, 128)},
        rows=by_importance((3, 5, 7, 10)),
        grown=((0.0, 7), (0.0, 5), (1.0, 7)),
        texts=16,
        repeats=2,
        readings=(8, 8),
    ),
    "tiny": Sizes(
        models=TINY,
        lengths={"ende": (8, 10)},
        rows=[("ende_small_t0", 7), ("ende_small_t1", 5)],
        grown=(),
        texts=3,
        repeats=1,
        readings=(1, 1),
    ),
}


class Row:
    """A row of the paper, or the same with another gamma, which its name then has."""

    split = "random ids, acceptance drawn"

    def __init__(self, sizes: Sizes, paper: str, gamma: int):
        task, draft, temperature = paper.split("_")
        self.sizes, self.gamma, self.alpha = sizes, gamma, PAPER[paper].alpha
        self.published = PAPER[paper].measured if gamma == PAPER[paper].gamma else None
        self.name = paper if self.published else f"{paper}_gamma{gamma}"
        self.inputs, self.outputs = sizes.lengths[task]
        sampling = Greedy() if temperature == "t0" else Sampling(1.0)
        self.plan = Plan(
            target=sizes.models["xxl"],
            drafter=Autoregressive(sizes.draft(sizes.models[draft]), sampling),
            verifier=SyntheticAcceptance(self.alpha),
            schedule=Fixed(gamma),
            sampling=sampling,
            max_length=self.outputs,
            stop_ids=(),
        )

    def texts(self) -> dict[int, np.ndarray]:
        """Returns random inputs [1, S] int32 by number."""
        vocabulary, shape = (
            self.sizes.models["xxl"].config.vocab_size,
            (self.sizes.texts, 1, self.inputs),
        )
        inputs = np.random.default_rng(SEED).integers(1, vocabulary, shape, np.int32)
        return dict(enumerate(inputs))

    def trees(self, tree_of: Callable[[T5Target], Any]) -> dict[str, Any]:
        """Parameters by role, as a `Workload` takes them."""
        trees = {role: tree_of(model) for role, model in self.plan.models().items()}
        return {"alone": trees["target"], **trees}

    def about(self) -> dict[str, Any]:
        """Returns what `specdec bench` writes about a run and `specdec report` reads."""
        models = self.plan.models()
        leaves = {role: jax.tree.leaves(shapes(model)) for role, model in models.items()}
        return {
            "dtype": {role: model.dtype for role, model in models.items()},
            "parameters": {role: sum(leaf.size for leaf in of) for role, of in leaves.items()},
            "lengths": {"inputs": self.inputs, "targets": self.outputs},
            "split": self.split,
            "seed": SEED,
            "limit": self.sizes.texts,
            "repeats": self.sizes.repeats,
            "variant": self.name,
            "draft_kernels": self.sizes.kernels,
        }

    def settings(self) -> str:
        """Returns all that the times depend on, as lines of `name = value`."""
        place = environment()
        named = {name: place[name] for name in ("device", "versions", "xla_flags")}
        named |= described(self.plan) | self.about()
        return "".join(f"{name} = {value!r}\n" for name, value in named.items())


class Grown(Row):
    """Real texts of the embedded pair, grown to these sizes: what it writes and accepts is its own.

    Nothing is drawn, so the speed-up is that of exact speculation. In bfloat16 the grown models are
    not quite the small ones; at T = 0 the summary counts the texts that both modes write alike.
    """

    split = "test"

    def __init__(self, sizes: Sizes, temperature: float, gamma: int):
        self.sizes, self.gamma, self.published = sizes, gamma, None
        self.name = f"grown_ende_t{temperature:g}_gamma{gamma}"
        self.inputs, self.outputs = 48, 48
        sampling = Sampling(temperature) if temperature else Greedy()
        self.plan = Plan(
            target=grown_model(sizes, "target"),
            drafter=Autoregressive(sizes.draft(grown_model(sizes, "draft")), sampling),
            verifier=Block() if temperature else GreedyMatch(),
            schedule=Fixed(gamma),
            sampling=sampling,
            max_length=self.outputs,
            stop_ids=(1,),
        )

    def texts(self) -> dict[int, np.ndarray]:
        lengths = {"inputs": self.inputs, "targets": self.outputs}
        task = synthetic_task("specdec_ende")
        batches = tasks.batches(task, self.split, lengths, batch_size=1, limit=2 * self.sizes.texts)
        return {number: batch.inputs for number, batch in enumerate(batches)}


def grown_model(sizes: Sizes, role: str) -> T5Target:
    """Returns the embedded model of a role at the sizes of T5-XXL or T5-small, in bfloat16.

    It has one kernel where T5 1.1 has two, so its MLP is one and a half times as wide: as many
    parameters in all.
    """
    own = checkpoints.config_from(demo.path(role))
    assert isinstance(own, T5Config)
    to = sizes.models["xxl" if role == "target" else "small"].config
    names = ("emb_dim", "num_heads", "mlp_dim", "num_encoder_layers", "num_decoder_layers")
    changed = {name: max(getattr(own, name), getattr(to, name)) for name in names}
    changed["mlp_dim"] = max(own.mlp_dim, to.mlp_dim * 3 // 2)
    changed["vocab_size"] = max(own.vocab_size, to.vocab_size)
    return T5Target(dataclasses.replace(own, dtype="bfloat16", **changed))


@functools.cache
def grown_parameters(model: T5Target, role: str) -> Any:
    own = checkpoints.config_from(demo.path(role))
    small = jax.tree.map(lambda x: x.astype(jnp.bfloat16), checkpoints.load(demo.path(role)))
    growth = families.growth_of(own)
    return jax.block_until_ready(growth.grow(small, own, model.config, jax.random.key(SEED)))


@functools.cache
def shapes(model: T5Target) -> Any:
    """Its parameters in bfloat16, without values."""
    made = jax.eval_shape(model.init, jax.random.key(SEED))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), made)


@functools.cache
def parameters(model: T5Target) -> Any:
    """Returns a grown model's, or random ones, spread as T5's initial ones. They are made on the
    device, one array after the other."""
    for role in ("target", "draft"):
        if any(model.stored() == grown_model(sizes, role) for sizes in SIZES.values()):
            return model.from_stored(grown_parameters(model.stored(), role))

    def made(path: Any, leaf: Any) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name.endswith("scale"):
            return jnp.ones_like(leaf)
        fan_in = 1 if name.startswith("token_embedder") else leaf.shape[0]
        fan_in *= model.config.head_dim if "/query/" in name else 1
        return normal(jax.random.key(zlib.crc32(name.encode())), fan_in**-0.5, leaf.shape)

    return jax.block_until_ready(jax.tree_util.tree_map_with_path(made, shapes(model)))


@functools.partial(jax.jit, static_argnames="shape")
def normal(key: jax.Array, deviation: float, shape: tuple[int, ...]) -> jax.Array:
    return jax.random.normal(key, shape, jnp.bfloat16) * deviation


class Shared(Program):
    """A program that is compiled only if none of its text and arguments has been."""

    _known: dict[Any, Any]

    def __init__(self, program: Program, known: dict[Any, Any]):
        vars(self).update(vars(program), _known=known)

    def _compiled(self, lowered: Any) -> Any:
        key = hashlib.sha256(lowered.as_text().encode()).digest(), lowered.in_tree
        if key not in self._known:
            self._known[key] = lowered.compile()
        return self._known[key]


def workload(row: Row, known: dict[Any, Any]) -> Workload:
    """What is timed of a row. It reads more memory than usual, and often: 0.5 GiB take an H200
    0.1 ms, of which starting the program would be a large part."""
    given = Workload.of(row.plan, row.plan.alone())
    copies, trips = row.sizes.readings
    make, read = (
        Program(functools.partial(function, times))
        for function, times in ((make_memory, copies), (read_memory, trips))
    )
    memory = {
        MEMORY: TimedPart(make, None, 1),
        MEMORY_READ: TimedPart(read, MEMORY, copies * trips),
    }
    parts = {**given.parts, **memory}
    return given._replace(
        generations={mode: Shared(one, known) for mode, one in given.generations.items()},
        parts={x: one._replace(program=Shared(one.program, known)) for x, one in parts.items()},
    )


def make_memory(copies: int, trees: Any, inputs: jax.Array) -> jax.Array:
    return jnp.broadcast_to(inputs[0, 0].astype(jnp.float32), (copies, READ_BYTES // 4))


def read_memory(trips: int, trees: Any, memory: jax.Array) -> jax.Array:
    def read(last: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.max(jnp.abs(memory - last)), None  # not to be done before the last trip

    return jax.lax.scan(read, memory[0, 0], length=trips)[0]


def measure(row: Row, path: Path, known: dict[Any, Any]) -> None:
    """Measures what is left of a row; the records are written as they come, then the figures."""
    programs, trees = workload(row, known), row.trees(parameters)
    compile_together(programs, row)
    given = programs, trees, row.texts(), File(str(path), row.settings())
    measurement = Measurement(*given, seed=SEED, repeats=row.sizes.repeats)
    for records_of_text in measurement.by_text():
        for _ in records_of_text:
            pass
    measurement.conclude(row.about() | {"operations": operations(programs, trees, row)})


def compile_together(programs: Workload, row: Row) -> None:
    """Compiles all programs of a row side by side, which takes a machine of many cores less time
    than one program after the other."""
    trees, batch = row.trees(shapes), batch_shapes(programs.plan.target, 1, row.inputs)
    given: dict[Any, Any] = {None: batch[1]}
    calls: list[tuple[Program, tuple[Any, ...]]] = [
        (programs.generations[mode], (params, *batch))
        for mode, params in programs.params(trees).items()
    ]
    for name, part in programs.parts.items():
        arguments = trees, given[part.source]
        given[name] = part.program.lower(*arguments).out_info
        calls.append((part.program, arguments))
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(lambda call: call[0].compile(*call[1]), calls))


def operations(programs: Workload, trees: Mapping[str, Any], row: Row) -> dict[str, int]:
    """How many operations XLA runs on their own in a trip of a program's loop, a fusion as one: on
    a GPU each is a kernel or a copy. Catching up does not count, it has no trips here."""
    texts = {
        name_of(key): program.compile(*given).as_text()
        for key, program, given in programs.compiled(trees, row.inputs)
    }

    def count(name: str, drafting: bool = False) -> int:
        loops = [one.loop for one in hlo.read(texts[name]).operations]
        inside = [loop for loop in loops if loop and "catch_up" not in loop]
        return sum(("extend" in loop) == drafting for loop in inside)

    parts = {"step": name_of(STEP), "verify": name_of(Calls("target", row.gamma + 1))}
    found = {step: count(parts.get(step, step)) for step in STEPS}
    found["alone"] = count("alone")
    found["extend"] = count("speculative", drafting=True)
    found["iteration"] = count("speculative") + (row.gamma - 1) * found["extend"]
    return found


def costs(row: Row, found: Mapping[str, Any], kind: str) -> dict[str, float]:
    """Returns FLOPs or bytes of a generation in each mode, by XLA's analysis of the compiled parts.
    It counts the body of a loop once, so of the whole generation it would tell an iteration's."""
    one = {name: part.get(kind, math.nan) for name, part in found["run"]["costs"].items()}
    parts = row.plan.parts()
    iteration = sum(n * one[name_of(Calls(role, width))] for role, width, n in parts)
    calls = row.outputs / found["tau"]  # as if no text ended early
    return {
        "alone": one[name_of(PREFILL_ALONE)] + row.outputs * one[name_of(STEP)],
        "speculative": one[name_of(PREFILL)] + calls * iteration,
    }


def measured(row: Row, path: Path) -> dict[str, Any] | None:
    """Returns the figures of a row, if there are any; raises RecordsError for other settings."""
    if not summary_of(path).exists():
        return None
    beside = Path(f"{path}.gin")
    records.claim(path, beside, row.settings(), begun=path, instead="--output_dir")
    return json.loads(summary_of(path).read_text(encoding="utf-8"))


def summary_of(path: Path) -> Path:
    return Path(f"{path}.summary.json")


def speed(row: Row, found: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the first table."""
    predicted, baseline = found["prediction"], found["baseline"]
    share, bandwidth = baseline["floor"] / baseline["target_step"], baseline["bandwidth"]
    return {
        "row": row.name,
        "gamma": row.gamma,
        "alpha": f"{found['alpha']:.2f}" if isinstance(row, Grown) else row.alpha,
        "identical": "" if found["identical"] is None else f"{found['identical']} of {runs(found)}",
        "measured (95 %)": "{ratio:.2f} ({low:.2f} to {high:.2f})".format(**found["speedup"]),
        "predicted": f"{predicted['these_texts']:.2f}",
        "measured / predicted": f"{predicted['measured_over_predicted']:.3f}",
        "paper": row.published or "",
        "c": f"{predicted['cost_ratio']:.3f}",
        "v": f"{predicted['verify_cost']:.3f}",
        "step, ms": f"{1e3 * baseline['target_step']:.3f}",
        "floor / step": f"{share:.3f} at {bandwidth / 1e9:.0f} GB/s",
    }


def runs(found: Mapping[str, Any]) -> int:
    return found["texts"] * found["repeats"]


def contents(row: Row, found: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the second table; in brackets per decoder layer."""
    line: dict[str, Any] = {"row": row.name}
    models = row.plan.models()
    for name, count in found["run"]["operations"].items():
        layers = models["draft" if name in DRAFTING else "target"].num_layers
        line[name] = count if name == "iteration" else f"{count} ({count / layers:.1f})"
    for kind, unit in (("flops", "GFLOP"), ("bytes", "GB")):
        figures = costs(row, found, kind)
        line |= {f"{unit} {mode}": f"{x / 1e9:.3g}" for mode, x in figures.items()}
    return line


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    rows = [list(lines[0]), ["---"] * len(lines[0]), *(line.values() for line in lines)]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def measured_in_time(rows: Sequence[Row], folder: Path, end: float) -> dict[Row, Any]:
    """Returns the figures of rows by row; none begins that may end later than `end`."""
    figures: dict[Row, Any] = {}
    known, longest = {}, 0.0
    for row in rows:
        path, begun = folder / f"{row.name}.jsonl", time.monotonic()
        if measured(row, path) is None:
            if begun + longest >= end:
                continue  # a later one may have been measured before
            measure(row, path, known)
            longest = max(longest, time.monotonic() - begun)
            print(f"{row.name} took {time.monotonic() - begun:.0f} s", flush=True)
        figures[row] = measured(row, path)
    return figures


BEAM_SEARCHES = {"drafted": (8, 2), "drafted, deeper": (8, 3)}  # beams and steps of the draft


def measured_beams(sizes: Sizes, path: Path) -> list[dict[str, Any]]:
    """Returns a line for each search for four beams by the grown pair, timed alternately."""
    row = Grown(sizes, 0.0, 7)
    plans = {
        name: beam_plan(row.plan, 4, T5XBeams(), width=width, depth=depth)
        for name, (width, depth) in BEAM_SEARCHES.items()
    }
    plans = {"plain beams": plans["drafted"].alone(), **plans}
    trees = row.trees(parameters)
    searches = {
        name: (
            jax.jit(lambda params, inputs, plan=plan: beam_search(params, inputs, plan)),
            Params(**{role: trees[role] for role in plan.models()}),
        )
        for name, plan in plans.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    steps, calls, same = ({name: 0 for name in searches} for _ in range(3))
    texts = list(row.texts().values())
    for place, inputs in enumerate([texts[0], *texts]):
        found = {}
        for name, (search, params) in searches.items():
            start = time.perf_counter()
            found[name] = jax.device_get(search(params, inputs))
            if place:  # the first round compiles
                seconds[name].append(time.perf_counter() - start)
        for name, output in found.items() if place else ():
            steps[name] += int(output.trace.steps.sum())
            calls[name] += int(output.trace.calls.sum())
            same[name] += np.array_equal(output.tokens, found["plain beams"].tokens)
    plain = np.array(seconds["plain beams"])
    lines = [
        {
            "pair": "grown_ende",
            "beams": 4,
            "search": name,
            "texts": len(texts),
            "same beams": same[name],
            "steps per call": round(steps[name] / calls[name], 3),
            "ms per call": round(1e3 * sum(taken) / calls[name], 3),
            "times as fast": round(float(plain.sum() / sum(taken)), 3),
        }
        for name, taken in seconds.items()
    ]
    place = {"environment": environment()}
    path.write_text("".join(f"{records.as_json(one | place)}\n" for one in lines), "utf-8")
    return lines


def main() -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output_dir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sizes", choices=SIZES, default="full", help="tiny: a dry run on a CPU")
    parser.add_argument("--minutes", type=float, default=9, help="begin no row that may end later")
    parser.add_argument(
        "--kernels",
        choices=KERNELS,
        default="fused" if jax.default_backend() == "gpu" else "xla",
        help="of drafts (default: %(default)s)",
    )
    parser.add_argument("--beams", action="store_true", help="search for four beams too")
    args = parser.parse_args()
    try:
        args.output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output_dir {args.output_dir} cannot be made: {error.strerror}")
    sizes = dataclasses.replace(SIZES[args.sizes], kernels=args.kernels)
    rows = [*(Grown(sizes, *x) for x in sizes.grown), *(Row(sizes, *x) for x in sizes.rows)]
    try:
        figures = measured_in_time(rows, args.output_dir, started + 60 * args.minutes)
    except records.RecordsError as error:
        parser.error(str(error))
    for line in (speed, contents):
        if figures:
            print("", table([line(*one) for one in figures.items()]), sep="\n")
    if args.beams:
        print("", table(measured_beams(sizes, args.output_dir / "beams.jsonl")), sep="\n")
    print(f"\n{len(figures)} of {len(rows)} rows; where acceptance was drawn, only times are real")


if __name__ == "__main__":
    main()
