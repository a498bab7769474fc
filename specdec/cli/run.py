"""A run: what is decoded, and how. `decode`, `verify` and `bench` do different things with the same
gin files, which describe one."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from specdec import checkpoints, partitioning, tasks
from specdec.cli import settings
from specdec.cli.settings import UsageError
from specdec.decoding import row_keys
from specdec.drafters import Autoregressive
from specdec.models.serving import to_checkpoint, to_serving
from specdec.models.t5 import T5Target
from specdec.partitioning import Partitioner, Share
from specdec.sampling import MinLength
from specdec.types import Drafter, Params, PyTree, SamplingRule, Schedule, Verifier


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that works on a run."""
    settings.add_flags(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N examples")
    parser.add_argument("--seed", type=int, metavar="N", help="of all random draws")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument(
        "--compilation_cache_dir",
        default=str(cache / "specdec" / "xla"),
        metavar="DIR",
        help="where compiled programs are kept for the next run, '' for nowhere "
        "(default: %(default)s)",
    )


def add_checkpoint_flags(parser: argparse.ArgumentParser) -> None:
    """What stands in for a gin file where the texts are given."""
    parser.add_argument(
        "--target",
        metavar="DIR",
        help="the target's checkpoint; reads text.gin first, so that no other gin file is needed",
    )
    parser.add_argument(
        "--draft", metavar="DIR", help="the drafter's checkpoint; without one the target is alone"
    )
    parser.add_argument(
        "--vocabulary",
        metavar="FILE",
        help="a SentencePiece model, or 'bytes' (default: the one saved with the target)",
    )


def build(args: argparse.Namespace, **overrides: Any) -> DecodeRun:
    """The run of the gin files and flags; programs are kept from now on if the flags say where."""
    jax.config.update("jax_compilation_cache_dir", args.compilation_cache_dir or None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    run = described(args, **overrides)
    try:
        mesh = run.partitioner.mesh()
        if mesh is not None:
            run = run.over(mesh)
            run.abstract()
            args.contexts.enter_context(jax.set_mesh(mesh))
    except ValueError as error:
        raise UsageError(str(error)) from error
    return run.laid_out()


def described(
    args: argparse.Namespace, unneeded: Mapping[str, Any] = MappingProxyType({}), **overrides: Any
) -> DecodeRun:
    """The run of the gin files and flags, before any device is looked at."""
    overrides = {"limit": args.limit, "seed": args.seed} | overrides
    files, bindings = _checkpoint_settings(args)
    args.gin_file = [*files, *args.gin_file]
    args.gin_bindings = [*bindings, *args.gin_bindings]
    return settings.build(DecodeRun, args, overrides, unneeded)


def _checkpoint_settings(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """`add_checkpoint_flags` as gin files and bindings."""
    target, draft, vocabulary = (
        getattr(args, name, None) for name in ("target", "draft", "vocabulary")
    )
    if target is None:
        for flag, value in {"draft": draft, "vocabulary": vocabulary}.items():
            if value is not None:
                raise UsageError(f"--{flag} {value} needs --target, the checkpoint it belongs to")
        return [], []
    bindings = [f"CHECKPOINT_PATH={target!r}"]
    if draft is None:
        bindings += [f"{name}=None" for name in ("DRAFTER", "DRAFT_MODEL", "DRAFT_CHECKPOINT_PATH")]
    else:
        bindings.append(f"DRAFT_CHECKPOINT_PATH={draft!r}")
    if vocabulary == "bytes":
        bindings.append("VOCABULARY=@tasks.Bytes()")
    elif vocabulary is not None:
        bindings += [
            "VOCABULARY=@tasks.SentencePiece()",
            f"tasks.SentencePiece.path={vocabulary!r}",
        ]
    return ["text.gin"], bindings


@dataclasses.dataclass(frozen=True)
class DecodeRun:
    """Everything that decides what is decoded, and how; gin builds it.

    target, checkpoint_path: the model, and where its parameters are.
    task, split, lengths: a seqio task or the name of a registered one, one of its splits, and the
      longest 'inputs' and 'targets' in tokens.
    drafter, verifier, schedule, sampling: as `specdec.decode` takes them. Without a drafter the
      target decodes alone.
    draft, draft_checkpoint_path, draft_vocabulary: the drafter's model, if it has one.
    vocabulary: of texts that come from no task; None for the one saved with the target.
    batch_size: rows that are decoded together.
    buckets: shorter input lengths to compile for, see `tasks.batches`.
    seed: of all random draws. The output for example i depends on it and on i alone.
    limit: how many examples to decode, None for all.
    num_samples: outputs for each example; they differ in their draws.
    decoder_prefix: what every output is made to begin with.
    min_length: tokens that every output has before its EOS, at least.
    compare: run the target alone as well.
    partitioner: how the models are divided over devices; nothing else depends on it.
    mesh: of devices that they are divided over, see `over`.
    """

    target: T5Target
    checkpoint_path: str
    task: Any
    split: str
    lengths: Mapping[str, int]
    drafter: Drafter | None
    verifier: Verifier
    schedule: Schedule
    sampling: SamplingRule
    draft: T5Target | None = None
    draft_checkpoint_path: str | None = None
    draft_vocabulary: tasks.SentencePiece | tasks.Bytes | None = None
    vocabulary: tasks.SentencePiece | tasks.Bytes | None = None
    batch_size: int = 1
    buckets: Sequence[int] = ()
    seed: int = 0
    limit: int | None = None
    num_samples: int = 1
    decoder_prefix: str = ""
    min_length: int = 0
    compare: bool = False
    partitioner: Partitioner = Partitioner()
    mesh: Mesh | None = None

    def __post_init__(self):
        kinds = {
            "checkpoint_path": str,
            "split": str,
            "lengths": Mapping,
            "seed": int,
            "decoder_prefix": str,
        }
        for name, kind in kinds.items():
            if not isinstance(value := getattr(self, name), kind):
                raise ValueError(f"DecodeRun.{name} is {value!r}; give a {kind.__name__}")
        for side in ("inputs", "targets"):
            if not isinstance(length := self.lengths.get(side), int) or length < 1:
                raise ValueError(
                    f"no sequence length for {side!r} in {dict(self.lengths)}; give one, as in "
                    "{'inputs': 64, 'targets': 64}"
                )
        if (self.draft is None) != (self.draft_checkpoint_path is None):
            raise ValueError("draft and draft_checkpoint_path belong together; give both or none")
        if not isinstance(self.num_samples, int) or self.num_samples < 1:
            raise ValueError(f"num_samples is {self.num_samples!r}; give a positive integer")
        if self.num_samples > 1 and self.sampling.greedy:
            raise ValueError(
                f"num_samples is {self.num_samples} but greedy outputs are all the same; sample, "
                "with --gin_file=sampling/temperature.gin for example"
            )
        if self.compare and self.drafter is None:
            raise ValueError("compare is set, but without a drafter the target is alone anyway")
        if not isinstance(self.min_length, int) or not 0 <= self.min_length < self.max_length:
            raise ValueError(
                f"min_length is {self.min_length!r} but targets hold {self.max_length}; give a "
                "number of tokens from 0 on that leaves room for EOS"
            )
        if self.mesh is not None:
            partitioning.check_batch(self.batch_size, self.mesh)

    def over(self, mesh: Mesh) -> DecodeRun:
        """This run with its models divided over a mesh; raises ValueError as `check_batch` does."""
        rules = self.partitioner.logical_axis_rules, self.partitioner.draft_logical_axis_rules
        target, draft, drafter = partitioning.divided(self.target, self.draft, self.drafter, *rules)
        return dataclasses.replace(self, target=target, draft=draft, drafter=drafter, mesh=mesh)

    @property
    def max_length(self) -> int:
        """N, the longest output in tokens including EOS."""
        return self.lengths["targets"]

    def rule(self, eos_id: int) -> SamplingRule:
        """`sampling`, without EOS before `min_length`."""
        if not self.min_length:
            return self.sampling
        return MinLength(self.sampling, self.min_length, eos_id)

    def share(self) -> Share:
        """What this process feeds and decodes; without a mesh each one has programs of its own."""
        if self.mesh is None:
            return Share(jax.process_index(), jax.process_count())
        return partitioning.share(self.mesh)

    def batches(self) -> Iterator[tasks.Batch]:
        """The task's examples, of several hosts those that this one feeds; raises TaskError at the
        call."""
        if self.task is None:
            raise UsageError("there is no task and no text; set TASK in a gin file, or give --text")
        sizes, share = self._sizes(), self.share()
        if self.mesh is not None:
            sizes["batch_size"] //= share.count
        return tasks.batches(self.task, self.split, self.lengths, shard=share[:2], **sizes)

    def text_batches(
        self, texts: Iterable[tuple[str, str | None]], vocabulary: Any
    ) -> Iterator[tasks.Batch]:
        """Texts, with their targets or None, instead of the task's."""
        return tasks.text_batches(texts, vocabulary, self.lengths, **self._sizes())

    def _sizes(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "limit": self.limit, "buckets": self.buckets}

    def laid_out(self) -> DecodeRun:
        """This run with its models' kernels kept as this device reads them fastest. Over a mesh,
        where nothing was measured, they stay as they are."""
        rows, longest = self.batch_size, self.schedule.buckets[-1]
        target = self._kept(self.target, rows if self.drafter is None else rows * (longest + 1))
        draft = self.draft and self._kept(self.draft, 2 * rows)  # its first step is the widest
        drafter = self.drafter
        if isinstance(drafter, Autoregressive) and drafter.model == self.draft:
            drafter = dataclasses.replace(drafter, model=draft)
        return dataclasses.replace(self, target=target, draft=draft, drafter=drafter)

    @property
    def alone(self) -> T5Target:
        """The target as it is kept where it decodes alone."""
        return self._kept(self.target, self.batch_size)

    def params_alone(self, params: Params) -> PyTree:
        """The target's parameters as `alone` has them."""
        stored = to_checkpoint(params.target, self.target.config, self.target.layout)
        return to_serving(stored, self.target.config, self.alone.layout)

    def _kept(self, model: T5Target, tokens: int) -> T5Target:
        if self.mesh is not None:
            return model
        return model.laid_out(tokens=tokens)

    def load(self) -> Params:
        """Reads the checkpoints, in the models' dtypes; of each array a host reads what its devices
        are to have."""
        return self.params(self.read)

    def read(
        self, model: T5Target, path: str, trees: dict[tuple[T5Target, str], PyTree] | None = None
    ) -> PyTree:
        """A model's parameters, in its dtype and layout. What is in `trees` is not read again, and
        what is read is put there."""
        trees = {} if trees is None else trees
        stored = dataclasses.replace(model, layout="checkpoint")
        if (stored, path) not in trees:
            trees[stored, path] = checkpoints.load(
                path,
                config=model.config,
                dtype=model.config.dtype,
                shardings=self.mesh and partitioning.shardings(stored, model.rules, self.mesh),
            )
        if (model, path) not in trees:
            trees[model, path] = to_serving(trees[stored, path], model.config, model.layout)
        return trees[model, path]

    def abstract(self) -> Params:
        """The shapes and dtypes of what `load` gives, and where it is over a mesh.

        Raises:
          ValueError: a model cannot be divided over the mesh.
        """
        return self.params(self.shape)

    def shape(self, model: T5Target, path: str) -> PyTree:
        """The shapes and dtypes of what `read` gives; raises as `abstract` does."""
        return partitioning.abstract(model, model.rules, self.mesh, model.config.dtype)

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


def parameter_counts(run: DecodeRun) -> dict[str, int]:
    """How many numbers each model's checkpoint has."""
    counts = {"target": 0, "draft": 0}
    for role, (model, _) in run.models().items():
        stored = dataclasses.replace(model, layout="checkpoint")
        shapes = jax.eval_shape(stored.init, jax.random.key(0))
        counts[role] = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    return counts


def drafter_of(run: DecodeRun) -> Drafter:
    """The run's drafter, for commands that are about it."""
    if run.drafter is None:
        raise UsageError("the run has no drafter; set DRAFTER, see gin/drafters/")
    return run.drafter


def vocabulary_of(run: DecodeRun) -> Any:
    """The vocabulary of the task, or else the run's, which must be that of both models."""
    if run.task is not None:
        vocabulary = tasks.get_task(run.task).output_features["targets"].vocabulary
    else:
        vocabulary = _definition(run).load()
    if run.draft_vocabulary and not tasks.same_vocabulary(run.draft_vocabulary.load(), vocabulary):
        raise UsageError(
            f"the draft's vocabulary, {run.draft_vocabulary}, is not the target's, {vocabulary}; "
            "a draft is read as the target's ids: use models of one vocabulary"
        )
    if run.draft_checkpoint_path is not None:
        checkpoints.check_pair(run.checkpoint_path, run.draft_checkpoint_path)
    for role, (model, path) in run.models().items():
        recorded = checkpoints.vocabulary_from(path, needed=False)
        if recorded is not None:
            saved = tasks.recorded_vocabulary(recorded.path, vocabulary.extra_ids).load()
            if not tasks.same_vocabulary(saved, vocabulary):
                raise UsageError(
                    f"the {role} checkpoint {path} was saved with another vocabulary, "
                    f"{recorded.path or 'UTF-8 bytes'}; give the task that one"
                )
        if model.config.vocab_size < vocabulary.vocab_size:
            raise UsageError(
                f"the {role} has {model.config.vocab_size} output ids but the vocabulary "
                f"{vocabulary.vocab_size}; the model and the vocabulary do not belong together"
            )
    return vocabulary


def _definition(run: DecodeRun) -> tasks.VocabularyDefinition:
    if run.vocabulary is not None:
        return run.vocabulary
    recorded = checkpoints.vocabulary_from(run.checkpoint_path)
    if recorded is None:
        raise UsageError(
            f"no vocabulary was saved with {run.checkpoint_path}; name one: --vocabulary=FILE of a "
            "SentencePiece model, or --vocabulary=bytes"
        )
    return tasks.recorded_vocabulary(*recorded)


class Program:
    """A decoding function, compiled once for each input length.

    Over a mesh each process gives keys and inputs of its own rows of the batch, and gets theirs.
    """

    def __init__(self, function: Callable, params: PyTree, run: DecodeRun):
        self._mesh = run.mesh
        self._jitted = jax.jit(
            function, out_shardings=None if self._mesh is None else partitioning.whole(self._mesh)
        )
        self._params = params
        self._batch_size = run.batch_size
        self._own = None if run.mesh is None else run.share().rows(run.batch_size)
        self._compiled: dict[int, Callable] = {}

    def lower(self, length: int) -> jax.stages.Lowered:
        """Traces for inputs [B, length], which is where a combination that cannot work shows."""
        return self._jitted.lower(self._params, *self._shapes(length))

    def compile(self, length: int) -> float:
        """Makes ready for inputs [B, length]; returns the seconds that took."""
        start = time.perf_counter()
        if length not in self._compiled:
            self._compiled[length] = self.lower(length).compile()
        return time.perf_counter() - start

    def __call__(self, params: PyTree, keys: jax.Array, inputs: np.ndarray) -> tuple[Any, float]:
        """The output, on the host, and the seconds it took."""
        start = time.perf_counter()
        rows = (keys, inputs) if self._mesh is None else _over(self._mesh, keys, inputs)
        output = jax.device_get(self._compiled[inputs.shape[1]](params, *rows))
        if self._own is not None:  # all rows have been gathered once
            output = jax.tree.map(lambda x: x[self._own] if x.ndim else x, output)
        return output, time.perf_counter() - start

    def _shapes(self, length: int) -> tuple[Any, Any]:
        rows = None if self._mesh is None else partitioning.rows(self._mesh)
        index = jax.ShapeDtypeStruct([self._batch_size], np.int32)
        keys = jax.eval_shape(functools.partial(row_keys, 0), index).update(sharding=rows)
        return keys, jax.ShapeDtypeStruct([self._batch_size, length], np.int32, sharding=rows)


def _over(mesh: Mesh, keys: jax.Array, inputs: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """This process's rows as part of arrays of all rows."""
    data = partitioning.from_local_rows(np.asarray(jax.random.key_data(keys)), mesh)
    whole = jax.random.wrap_key_data(data, impl=str(jax.random.key_impl(keys)))
    return whole, partitioning.from_local_rows(inputs, mesh)


def refuse_unwritable(path: str | None) -> None:
    """Before any long work: an output file that cannot be made, or None."""
    if path is None:
        return
    checked = path if os.path.exists(path) else Path(path).parent
    if os.path.isdir(path) or not os.access(checked, os.W_OK):
        raise UsageError(f"--output_file {path} cannot be written; its folder must exist")
