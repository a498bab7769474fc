"""Shares what the measuring scripts need: runs, decoded texts, one timer, result lines and tables.

Scripts use the library's runs through this module, so that a change of its interfaces is made here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec import cli, tasks
from specdec.cli import run as runs
from specdec.cli import settings
from specdec.common import terminal
from specdec.common.environment import environment, hardware, load_average
from specdec.common.records import Lines
from specdec.common.statistics import bootstrap
from specdec.common.terminal import Origin
from specdec.decoding import row_keys
from specdec.decoding.program import DecodeProgram
from specdec.measure import alphas, output_metrics, recording
from specdec.measure.alphas import Accepted
from specdec.measure.recording import Texts, generate
from specdec.plan import Plan
from specdec.texts.measured_run import Run
from specdec.types import Params, PyTree

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PAIRS = {
    "ende": "demo.gin",
    "highlights": "demo_highlights.gin",
    "captions": "configs/multi30k.gin",  # needs ../shared/multi30k
}
# Other work of the machine makes the first one longer, and the second one, of all cores, hardly.
CLOCKS = {"seconds": time.perf_counter, "processor_seconds": time.process_time}
DEFAULTS = {"pair": "captions", "temperature": 0}  # of lines from before they had these fields


def parser(
    doc: str | None, *, texts: int | None = None, pairs: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """Returns a parser that the first line of a script's docstring describes.

    Args:
      texts: the default of --texts; None leaves the flag out.
      pairs: the default of --pairs; nothing leaves the flag out.
    """
    made = argparse.ArgumentParser(description=str(doc).partition("\n")[0])
    if texts:
        made.add_argument("--texts", type=int, default=texts, metavar="N")
    if pairs:
        names = {"nargs": "+", "choices": PAIRS, "metavar": "PAIR"}
        made.add_argument("--pairs", default=list(pairs), **names)
    where = "where result lines go, a folder for each device"
    made.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help=where)
    return made


def device_name() -> str:
    """Names the machine at hand by its processor, its widest vectors and its cores."""
    about = hardware()
    widest = [name for name in about["features"] if re.match("sse|avx2$|avx512f", name)][-1:]
    words = [about["cpu"] if about["backend"] == "cpu" else about["device"], *widest]
    slug = re.sub(r"[^a-z0-9]+", "_", " ".join(words).lower()).removesuffix("f")
    return f"{slug}_{about['cores']}_cores"


def about() -> dict[str, Any]:
    """Returns the fields of a result line that say where it was measured; XLA has a thread for each
    core."""
    found = environment()
    return found | {"threads": found["cores"]}


class Results(Lines):
    """A file of result lines. A line replaces an earlier one with the same values of `keys`."""

    def __init__(self, folder: Path, name: str, *keys: str):
        super().__init__(folder / f"{name}.jsonl")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._keys = keys

    @classmethod
    def of(cls, args: argparse.Namespace, name: str, *keys: str) -> Results:  # type: ignore[override]
        """Returns the lines of this device in --results."""
        return cls(args.results / device_name(), name, *keys)

    def key(self, line: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(line.get(name, DEFAULTS.get(name))) for name in self._keys)

    def known(self) -> set[tuple[str, ...]]:
        """Returns the keys of all lines, so that a script can leave out what was measured."""
        return set(map(self.key, self))

    def put(self, line: Mapping[str, Any]) -> None:
        """Writes a line immediately."""
        self.replace([*(one for one in self if self.key(one) != self.key(line)), line])


def run_of(flags: Sequence[str], texts: int, split: str = "test", batch_size: int = 32) -> Run:
    """Returns the run of gin files and settings on the first texts of a split."""
    data = f"--limit={texts}", f"--gin.BATCH_SIZE={batch_size}", f"--gin.SPLIT={split!r}"
    args = cli.overview().parse_args(settings.joined(["decode", *flags, *data]))
    with contextlib.ExitStack() as args.contexts:
        run = runs.opened(args)
    engine = run.engine.variant(stop_ids=(run.engine.vocabulary.eos_id,))
    return dataclasses.replace(run, engine=engine)


def pair_flags(pair: str, *files: str) -> list[str]:
    """Returns the flags for the gin files of a pair and more files."""
    return [f"--gin_file={name}" for name in (PAIRS[pair], *files)]


def checkpoint_flag(path: str | Path, role: str = "DRAFT_") -> str:
    """Returns the flag for the draft's checkpoint, or for the target's if the role is ''."""
    return f"--gin.{role}CHECKPOINT_PATH={str(Path(path).resolve())!r}"


def written(run: Run, params: Params, tokens: int = 10**9) -> list[Texts]:
    """Returns what the target writes on the run's texts, up to a number of tokens."""
    given = ((batch.index, batch.inputs) for batch in run.batches())
    return list(generate(run.plan, params["target"], given, seed=run.data.seed, tokens=tokens))


def passes(run: Run, params: Params, texts: Sequence[Texts] | None = None) -> list[Accepted]:
    """Returns what `specdec acceptance` stores of texts, the run's own if none are given."""
    texts = written(run, params) if texts is None else texts
    return list(recording.measure(run.plan, params, texts, tables=False))


def alpha(found: Sequence[Accepted]) -> list[float]:
    """Returns the acceptance rate of the draft model, and its interval over texts."""
    one = alphas.summarize(found).alphas["model"][1]
    return [one.value, one.low, one.high]


def references(run: Run) -> list[str]:
    return [text for batch in run.batches() for text in batch.target_texts or ()]


class Outputs(NamedTuple):
    """The outputs of all texts of a run, [samples][texts] each; log_probs are means over tokens.

    `ids` are [samples, texts, N].
    """

    texts: list[list[str]]
    tokens: np.ndarray
    calls: np.ndarray
    log_probs: np.ndarray
    ids: np.ndarray


def outputs(
    run: Run, plan: Plan, params: Params, samples: int = 1, seed: int | None = None
) -> Outputs:
    """Decodes all texts of a run by a plan, in batches."""
    program, vocabulary, found = DecodeProgram(plan), run.engine.vocabulary, []
    seed = run.data.seed if seed is None else seed
    for sample in range(samples):
        rows: list[tuple] = []
        for batch in run.batches():
            keys = row_keys(seed, jnp.asarray(batch.index), sample)
            inputs = jax.tree.map(jnp.asarray, batch.inputs)
            output = jax.device_get(program(params, keys, inputs))
            for i in range(len(batch.input_texts)):
                length = int(output.length[i])
                ids, source = output.tokens[i, :length].tolist(), batch.input_texts[i]
                text = tasks.detokenize(vocabulary, ids, source)
                mean = float(np.mean(output.log_probs[i, :length]))
                rows.append((text, length, int(output.trace.calls[i]), mean, output.tokens[i]))
        found.append([list(column) for column in zip(*rows, strict=True)])
    texts, *numbers = zip(*found, strict=True)
    return Outputs(list(texts), *(np.array(x) for x in numbers))


def accepted(output: Any, row: int) -> list[bool]:
    """Returns whether each token of a row was drafted, [N]."""
    origins = (origin for _, origin in terminal.origins(*output.row(row)[:4]))
    return [origin is Origin.ACCEPTED for origin in origins if origin is not Origin.REJECTED]


def read_by_step(model: Any, tree: PyTree) -> int:
    """Returns how many numbers a decoding step of a model reads; `tree` may be shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(model.read_by_decode(tree)))


def turns(
    ways: Mapping[str, Callable[[Any], Any]],
    batches: Sequence[Any],
    repeats: int,
    about: Mapping[str, Any],
    lines: Results,
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Times ways of decoding a batch, all of them before the next one, and each first, second and
    last equally often. They compile before the first turn.

    Yields:
      Lines of `about`, "text", "repeat", "load" and each of the CLOCKS by way, which are not in
      `lines` yet, and what each way has made.
    """
    known, names, warm = lines.known(), list(ways), False
    for repeat in range(repeats):
        for place, batch in enumerate(batches):
            line = {**about, "text": int(batch.index[0]), "repeat": repeat}
            if lines.key(line) in known:
                continue
            if not warm:
                for way in ways.values():
                    way(batch)
                warm = True
            line |= {"load": load_average(), **{clock: dict.fromkeys(names) for clock in CLOCKS}}
            found, first = {}, (place + repeat) % len(names)
            for name in [*names[first:], *names[:first]]:
                start = {clock: now() for clock, now in CLOCKS.items()}
                found[name] = ways[name](batch)
                for clock, now in CLOCKS.items():
                    line[clock][name] = round(now() - start[clock], 5)
            yield line, found


def medians(lines: Sequence[Mapping[str, Any]], clock: str = "seconds") -> dict[str, np.ndarray]:
    """Returns the seconds of each way by lines of `turns`, [texts]: medians over repeats."""
    texts = sorted({one["text"] for one in lines})
    found = {}
    for name in lines[0][clock]:
        seconds = ([x[clock][name] for x in lines if x["text"] == text] for text in texts)
        found[name] = np.array(list(map(np.median, seconds)))
    return found


def compared(
    lines: Sequence[Mapping[str, Any]], base: str
) -> Iterator[tuple[str, np.ndarray, list[str]]]:
    """Yields each way of lines of `turns`: its name, its seconds and the last cells of a row.

    These are its times and processor times over those of the way `base`, and the machine's load.
    """
    clocks = [medians(lines, clock) for clock in CLOCKS]
    low, *_, high = sorted(one["load"] for one in lines) * 2
    for name, seconds in clocks[0].items():
        both = ((x[name], x[base]) for x in clocks)
        ratios = (interval(of_sums(x, lambda s: s[0] / s[1])) for x in both)
        yield name, seconds, [*ratios, f"{low:.1f} to {high:.1f}"]


def size_of(run: Run) -> str:
    """Names the size of a run's target."""
    numbers = sum(leaf.size for leaf in jax.tree.leaves(run.engine.abstract()["target"]))
    return f"{numbers / 1e6:.1f}M parameters"


def of_sums(values: Iterable[np.ndarray], figure: Callable[[np.ndarray], Any]) -> list[float]:
    """Returns a figure of sums over texts, [texts] values each, and its 95 % interval."""
    stacked = np.stack(list(values)).astype(float)
    return [float(figure(stacked.sum(axis=1))), *(float(x) for x in bootstrap(stacked, figure))]


def tokens_per_call(found: Outputs) -> list[float]:
    return of_sums([found.tokens.sum(0), found.calls.sum(0)], lambda s: s[0] / s[1])


def calls_over(found: Outputs, other: Outputs) -> list[float]:
    """Returns the ratio of tokens per call to those of other outputs of the same texts."""
    sums = [x.sum(0) for x in (found.tokens, found.calls, other.tokens, other.calls)]
    return of_sums(sums, lambda s: s[0] / s[1] / (s[2] / s[3]))


def quality(
    found: Sequence[Sequence[str]],
    exact: Sequence[Sequence[str]],
    own: Sequence[str],
    references: Sequence[str],
) -> dict[str, Any]:
    """Returns BLEU of texts [samples][texts], with the difference to exact ones, BLEU against the
    target's own greedy texts, and the share of texts that are the target's own."""
    bleu = tasks.Bleu()
    less = output_metrics.differences(bleu, own, found, [own] * len(found))["bleu"]
    return {
        "bleu": output_metrics.values(bleu, references, found)["bleu"],
        "bleu_difference": list(output_metrics.differences(bleu, references, found, exact)["bleu"]),
        "own_bleu": [100 + x for x in less],
        "unchanged": float(np.mean([np.array(sample) == np.array(own) for sample in found])),
    }


def interval(figure: Sequence[float], form: str = ".2f") -> str:
    """Returns 'value (low to high)'."""
    value, low, high = (format(x, form) for x in figure)
    return f"{value} ({low} to {high})"


def row(*cells: Any) -> str:
    """Returns a row of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def head(*columns: str) -> str:
    """Returns the first two lines of a table in Markdown."""
    return f"{row(*columns)}\n|{'---|' * len(columns)}"
