"""`specdec decode`: the texts of a task's split through a target and a drafter."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from specdec import checkpoints, tasks, terminal
from specdec.cli import settings
from specdec.cli.settings import UsageError
from specdec.decoding import autoregressive_decode, decode, row_keys
from specdec.models.t5 import T5Target
from specdec.types import (
    DecodeOutput,
    Drafter,
    Params,
    PyTree,
    SamplingRule,
    Schedule,
    Verifier,
)

TextOf: TypeAlias = Callable[[Sequence[int]], str]


def add_command(subparsers) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "decode",
        help="decode a split of a task",
        description="Decodes a split of a task with a target and a drafter.",
        epilog="A terminal gets one line per text, coloured by who wrote each word. Anything else "
        "gets one plain text per line, or nothing if there is an --output_file.",
        allow_abbrev=False,
    )
    settings.add_flags(parser)
    parser.add_argument(
        "--output_file",
        metavar="FILE",
        help="write JSON lines, one object per text, and the settings in force, as a gin file "
        "that repeats the run, to FILE.gin",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="decode only the first N examples")
    parser.add_argument("--seed", type=int, metavar="N", help="of all random draws")
    parser.add_argument(
        "--compare",
        action="store_const",
        const=True,
        help="run the target alone as well, and count identical outputs",
    )
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument(
        "--compilation_cache_dir",
        default=str(cache / "specdec" / "xla"),
        metavar="DIR",
        help="where compiled programs are kept for the next run, '' for nowhere "
        "(default: %(default)s)",
    )
    parser.set_defaults(command=_command)
    return parser


@dataclasses.dataclass(frozen=True)
class DecodeRun:
    """Everything that decides what is decoded, and how; gin builds it.

    target, checkpoint_path: the model, and where its parameters are.
    task, split, lengths: a seqio task or the name of a registered one, one of its splits, and the
      longest 'inputs' and 'targets' in tokens.
    drafter, verifier, schedule, sampling: as `specdec.decode` takes them.
    draft, draft_checkpoint_path, draft_vocabulary: the drafter's model, if it has one.
    batch_size: rows that are decoded together.
    buckets: shorter input lengths to compile for, see `tasks.batches`.
    seed: of all random draws. The output for example i depends on it and on i alone.
    limit: how many examples to decode, None for all.
    compare: run the target alone as well.
    """

    target: T5Target
    checkpoint_path: str
    task: Any
    split: str
    lengths: Mapping[str, int]
    drafter: Drafter
    verifier: Verifier
    schedule: Schedule
    sampling: SamplingRule
    draft: T5Target | None = None
    draft_checkpoint_path: str | None = None
    draft_vocabulary: tasks.SentencePiece | tasks.Bytes | None = None
    batch_size: int = 1
    buckets: Sequence[int] = ()
    seed: int = 0
    limit: int | None = None
    compare: bool = False

    def __post_init__(self):
        kinds = {"checkpoint_path": str, "split": str, "lengths": Mapping, "seed": int}
        for name, kind in kinds.items():
            if not isinstance(value := getattr(self, name), kind):
                raise ValueError(f"DecodeRun.{name} is {value!r}; give a {kind.__name__}")
        if (self.draft is None) != (self.draft_checkpoint_path is None):
            raise ValueError("draft and draft_checkpoint_path belong together; give both or none")
        same_output = self.sampling.greedy or getattr(self.verifier, "shared_noise", False)
        if self.compare and not same_output:
            raise ValueError(
                f"compare is set, but {self.verifier} keeps the output's distribution, not the "
                "output; compare with Coupled() or Greedy()"
            )

    def models(self) -> dict[str, tuple[T5Target, str]]:
        """Role -> the model and its checkpoint."""
        models = {"target": (self.target, self.checkpoint_path)}
        if self.draft is not None and self.draft_checkpoint_path is not None:
            models["draft"] = (self.draft, self.draft_checkpoint_path)
        return models

    def params(self, tree_of: Callable[[T5Target, str], PyTree]) -> Params:
        """The parameters, `tree_of(model, checkpoint)` for each model."""
        trees = {role: tree_of(*model) for role, model in self.models().items()}
        return Params(trees["target"], trees.get("draft", ()))


class Text(NamedTuple):
    """One example and what became of it."""

    index: int
    input: str
    target: str | None
    prediction: str
    tokens: list[int]
    log_probs: list[float]
    proposed: list[list[int]]  # this and the next two: one entry per target call
    drafted: list[int]
    accepted: list[int]


def _command(args: argparse.Namespace) -> None:
    jax.config.update("jax_compilation_cache_dir", args.compilation_cache_dir or None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    overrides = {"limit": args.limit, "seed": args.seed, "compare": args.compare}
    run = settings.build(DecodeRun, args, overrides)
    vocabulary = _vocabulary(run)
    text_of = functools.partial(tasks.detokenize, vocabulary)
    batches = tasks.batches(
        run.task,
        run.split,
        run.lengths,
        batch_size=run.batch_size,
        limit=run.limit,
        buckets=run.buckets,
    )
    programs = _programs(run, vocabulary.eos_id)
    _refuse_unwritable(args.output_file)
    # All that can be wrong has been looked at; from here on it takes long.
    params = run.params(
        lambda model, path: checkpoints.load(path, config=model.config, dtype=model.config.dtype)
    )
    summary = terminal.Summary()
    texts = _texts(run, params, batches, programs, text_of, summary)
    try:
        _write(_with_progress(texts, run), text_of, args)
    finally:
        rules = f"{type(run.drafter).__name__}, {run.schedule}, {run.verifier}, {run.sampling}"
        print(rules, *summary.lines(), sep="\n", file=sys.stderr)


def _vocabulary(run: DecodeRun) -> Any:
    """The task's vocabulary, which must be that of both models."""
    vocabulary = tasks.get_task(run.task).output_features["targets"].vocabulary
    if run.draft_vocabulary and not tasks.same_vocabulary(run.draft_vocabulary.load(), vocabulary):
        raise UsageError(
            f"the draft's vocabulary, {run.draft_vocabulary}, is not the task's, {vocabulary}; "
            "a draft is read as the target's ids: use models of one vocabulary"
        )
    if run.draft_checkpoint_path is not None:
        checkpoints.check_pair(run.checkpoint_path, run.draft_checkpoint_path)
    for role, (model, path) in run.models().items():
        recorded = checkpoints.vocabulary_from(path)
        if recorded is not None:
            saved = tasks.SentencePiece(str(recorded), vocabulary.extra_ids).load()
            if not tasks.same_vocabulary(saved, vocabulary):
                raise UsageError(
                    f"the {role} checkpoint {path} was saved with another vocabulary, {recorded}; "
                    "give the task that one"
                )
        if model.config.vocab_size < vocabulary.vocab_size:
            raise UsageError(
                f"the {role} has {model.config.vocab_size} output ids but the vocabulary "
                f"{vocabulary.vocab_size}; the model and the vocabulary do not belong together"
            )
    return vocabulary


class Program:
    """A decoding function, compiled once for each input length."""

    def __init__(self, function: Callable, params: PyTree, batch_size: int):
        self._jitted = jax.jit(function)
        self._params = params
        self._batch_size = batch_size
        self._compiled: dict[int, Callable] = {}

    def lower(self, length: int) -> jax.stages.Lowered:
        """Traces for inputs [B, length], which is where a combination that cannot work shows."""
        index = jax.ShapeDtypeStruct([self._batch_size], np.int32)
        keys = jax.eval_shape(functools.partial(row_keys, 0), index)
        inputs = jax.ShapeDtypeStruct([self._batch_size, length], np.int32)
        return self._jitted.lower(self._params, keys, inputs)

    def compile(self, length: int) -> float:
        """Makes ready for inputs [B, length]; returns the seconds that took."""
        start = time.perf_counter()
        if length not in self._compiled:
            self._compiled[length] = self.lower(length).compile()
        return time.perf_counter() - start

    def __call__(self, params: PyTree, keys: jax.Array, inputs: np.ndarray) -> tuple[Any, float]:
        """The output, on the host, and the seconds it took."""
        start = time.perf_counter()
        output = jax.device_get(self._compiled[inputs.shape[1]](params, keys, inputs))
        return output, time.perf_counter() - start


class Programs(NamedTuple):
    """What a run computes; nothing of it is compiled before it is needed."""

    speculative: Program
    alone: Program | None  # the target alone, if the run compares


def _programs(run: DecodeRun, eos_id: int) -> Programs:
    rules = {
        "target": run.target,
        "sampling": run.sampling,
        "max_length": run.lengths["targets"],
        "eos_id": eos_id,
    }
    parts = {"drafter": run.drafter, "verifier": run.verifier, "schedule": run.schedule}
    params = run.params(_abstract)
    speculative = Program(functools.partial(decode, **rules, **parts), params, run.batch_size)
    try:
        speculative.lower(run.lengths["inputs"])
    except ValueError as error:
        raise UsageError(str(error)) from error
    alone = functools.partial(autoregressive_decode, **rules)
    return Programs(
        speculative, Program(alone, params.target, run.batch_size) if run.compare else None
    )


def _abstract(model: T5Target, _: str) -> PyTree:
    """The shapes of a model's parameters as they will be loaded."""
    tree = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: leaf.update(dtype=np.dtype(model.config.dtype)), tree)


def _texts(
    run: DecodeRun,
    params: Params,
    batches: Iterator[tasks.Batch],
    programs: Programs,
    text_of: TextOf,
    summary: terminal.Summary,
) -> Iterator[Text]:
    """Decodes batch by batch, and adds up what happened."""
    speculative, alone = programs
    for batch in batches:
        keys = row_keys(run.seed, jnp.asarray(batch.index))
        summary.compile_seconds += speculative.compile(batch.inputs.shape[1])
        output, seconds = speculative(params, keys, batch.inputs)
        summary.seconds += seconds
        rows = len(batch.input_texts)
        if alone:
            summary.compile_seconds += alone.compile(batch.inputs.shape[1])
            baseline, seconds = alone(params.target, keys, batch.inputs)
            summary.baseline_seconds += seconds
            summary.baseline_calls += int(baseline.trace.calls.sum())
            summary.identical += int((output.tokens == baseline.tokens).all(1)[:rows].sum())
        for row in range(rows):
            text = _text(batch, output, row, text_of)
            summary.texts += 1
            summary.tokens += len(text.tokens)
            summary.drafted += text.drafted
            summary.accepted += text.accepted
            yield text


def _text(batch: tasks.Batch, output: DecodeOutput, row: int, text_of: TextOf) -> Text:
    length, calls = output.length[row], output.trace.calls[row]
    tokens = output.tokens[row, :length].tolist()
    return Text(
        index=int(batch.index[row]),
        input=batch.input_texts[row],
        target=batch.target_texts[row] if batch.target_texts else None,
        prediction=text_of(tokens),
        tokens=tokens,
        log_probs=[round(value, 6) for value in output.log_probs[row, :length].tolist()],
        proposed=output.trace.proposed[row, :calls].tolist(),
        drafted=output.trace.drafted[row, :calls].tolist(),
        accepted=output.trace.accepted[row, :calls].tolist(),
    )


def _with_progress(texts: Iterator[Text], run: DecodeRun) -> Iterable[Text]:
    """A bar on stderr while it is a terminal."""
    counts = (run.limit, tasks.count(run.task, run.split))
    total = min((n for n in counts if n is not None), default=None)
    hidden = not sys.stderr.isatty()
    return tqdm(texts, total=total, unit="text", leave=False, disable=hidden)


def _write(texts: Iterable[Text], text_of: TextOf, args: argparse.Namespace) -> None:
    """Writes each text as soon as it is there: to the file, and to the terminal or pipe."""
    coloured = args.color == "always"
    if args.color == "auto":
        coloured = terminal.wants_colour(sys.stdout)
    shown = coloured or not args.output_file or sys.stdout.isatty()
    if coloured:
        print(terminal.legend(), flush=True)
    with _json_lines(args.output_file) as file:
        for text in texts:
            if file:
                print(_json(text), file=file, flush=True)
            if shown:
                with tqdm.external_write_mode(file=sys.stdout):
                    print(_line(text, text_of, coloured), flush=True)


def _line(text: Text, text_of: TextOf, coloured: bool) -> str:
    if not coloured:
        return terminal.one_line(text.prediction)
    marked = terminal.origins(text.tokens, text.proposed, text.drafted, text.accepted)
    return terminal.paint(terminal.pieces(marked, text_of))


def _json(text: Text) -> str:
    record = text._asdict() | {"calls": len(text.drafted)}
    del record["proposed"]
    if text.target is None:
        del record["target"]
    return json.dumps(record, ensure_ascii=False)


def _refuse_unwritable(path: str | None) -> None:
    if path is None:
        return
    checked = path if os.path.exists(path) else Path(path).parent
    if os.path.isdir(path) or not os.access(checked, os.W_OK):
        raise UsageError(f"--output_file {path} cannot be written; its folder must exist")


def _json_lines(path: str | None) -> contextlib.AbstractContextManager[TextIO | None]:
    """The output file; the settings in force are put beside it."""
    if path is None:
        return contextlib.nullcontext()
    Path(f"{path}.gin").write_text(settings.in_force(), encoding="utf-8")
    return open(path, "w", encoding="utf-8")
