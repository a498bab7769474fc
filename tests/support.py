"""What several test files need: checkpoints that T5X wrote, TFDS data sets, runs of training that
fail, sampling rules and schedules that do what ours do not, contexts of drafters, and models that
read another one's states."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jsonschema import Draft202012Validator

from specdec import checkpoints
from specdec.common import schemas
from specdec.models.layers.products import ORDERS, Order
from specdec.models.placement.device import SIZES, Device
from specdec.models.t5 import T5Config, T5Target
from specdec.predict.hlo import Instruction
from specdec.schedules import Fixed, Schedule
from specdec.testing import TableTarget
from specdec.training.folder import Folder
from specdec.types import Context, Prompt, SamplingRule

GOLDEN = Path(__file__).parent / "golden"


def script(path: str) -> Any:
    """Returns a script of scripts/ as a module."""
    file = GOLDEN.parents[1] / "scripts" / path
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules[file.stem] = module  # where dataclasses look for their types
    specification.loader.exec_module(module)
    return module


def load(name: str, saved: str = "t5x_native", **changes):
    """A model of tests/golden, its parameters, and T5X's own figures of it."""
    config = T5Config(**json.loads((GOLDEN / name / "config.json").read_text()) | changes)
    params = checkpoints.load(GOLDEN / name / saved / "checkpoint_0", config=config)
    return T5Target(config), params, np.load(GOLDEN / name / "golden.npz")


def tiny_t5(
    vocab_size: int,
    width: int = 16,
    mlp_dim: int | None = None,
    *,
    heads: int = 2,
    head_dim: int = 8,
    encoder: int = 1,
    decoder: int = 1,
    **more,
) -> T5Config:
    """Returns a config of a few layers; the MLP is as wide as the model unless `mlp_dim` is given.

    encoder, decoder: numbers of layers.
    more: other fields.
    """
    return T5Config(
        vocab_size=vocab_size,
        emb_dim=width,
        num_heads=heads,
        head_dim=head_dim,
        mlp_dim=mlp_dim or width,
        num_encoder_layers=encoder,
        num_decoder_layers=decoder,
        **more,
    )


def teacher_forced(model, params, inputs, tokens):
    """Returns the logits of tokens [B, T] that are fed at once, by a compiled program."""

    @jax.jit
    def run(params, inputs, tokens):
        cache = model.prefill(params, inputs, tokens.shape[1])
        return model.decode(params, tokens, cache)[0].logits

    return run(params, jax.tree.map(jnp.asarray, inputs), jnp.asarray(tokens))


def cells(*axes: Iterable[Any], often: Iterable[tuple], ci: Iterable[tuple] = ()) -> list:
    """Returns the cases of a test with several parameters: all combinations of their values.

    Args:
      axes: the values of each parameter.
      often: the combinations that run wherever the test does; all others are marked.
      ci: those marked `ci`. The rest is marked `slow`.
    """
    marks = dict.fromkeys(ci, pytest.mark.ci) | dict.fromkeys(often, ())
    every = itertools.product(*axes)
    return [pytest.param(*case, marks=marks.get(case, pytest.mark.slow)) for case in every]


def few(cases: Iterable[Any], count: int = 1) -> list:
    """Returns the cases of a parameter; those after the first `count` are marked slow."""
    cases = list(cases)
    return [*cases[:count], *(pytest.param(case, marks=pytest.mark.slow) for case in cases[count:])]


@contextlib.contextmanager
def fails_at(step: int) -> Iterator[None]:
    """A run of training raises RuntimeError before it has logged this step."""
    write = Folder.log

    def fail(self, record):
        if record["step"] == step:
            raise RuntimeError("planted")
        write(self, record)

    with mock.patch.object(Folder, "log", fail):
        yield


def device_of(fastest: Mapping[int, Order]) -> Device:
    """A device on which an order takes half the time of the others, by the tokens of a call.

    The time grows with the tokens, so that no call is faster with more of them.
    """
    times = {
        order: {tokens: tokens * (1.0 + (best != order)) for tokens, best in fastest.items()}
        for order in ORDERS
    }
    return Device({}, {size.name: times for size in SIZES})


def check_lines(command: str, path: Path, settings: Path | None = None) -> None:
    """Compares the lines that a command wrote with their schema, and the version beside them."""
    validator = Draft202012Validator(schemas.schema(command))
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines
    for line in lines:
        validator.validate(json.loads(line))
    beside = (settings or Path(f"{path}.gin")).read_text(encoding="utf-8").splitlines()
    assert f"# format of {command} = {schemas.version(command)}" in beside


def context_of(tokens, length=None, **given) -> Context:
    """A drafter's view of committed texts [B, M]; all of each text unless `length` [B] is given."""
    tokens = jnp.asarray(tokens, jnp.int32)
    whole = jnp.full(len(tokens), tokens.shape[1], jnp.int32)
    nothing = {"inputs": None, "cache": None, "hidden": None, "active": whole > 0}
    length = whole if length is None else jnp.asarray(length, jnp.int32)
    return Context(**nothing | {"tokens": tokens, "length": length} | given)


def forget_programs() -> None:
    """Has the package's own functions traced and compiled anew; JAX's small programs stay."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("specdec", "by_definition"):
            for value in list(vars(module).values()):
                if hasattr(value, "clear_cache"):
                    value.clear_cache()


def make(folder: Path, name: str, split: str, *files: list) -> None:
    """Writes a data set as `tfds build` would, each list of examples to a file of its own."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    data_set, *config, version = name.split("/")
    code = tfds.builder("/".join([data_set, *config]) + f":{version}", data_dir=folder)
    features, path = code.info.features, folder / name
    path.mkdir(parents=True)
    for number, examples in enumerate(files):
        file = f"{data_set}-{split}.tfrecord-{number:05}-of-{len(files):05}"
        with tf.io.TFRecordWriter(str(path / file)) as writer:
            for example in examples:
                writer.write(features.serialize_example(features.encode_example(example)))
    tfds.folder_dataset.write_metadata(
        data_dir=path,
        features=features,
        split_infos=[tfds.core.SplitInfo(split, [len(examples) for examples in files], 0)],
        filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        check_data=False,
    )


def translations(pairs):
    return [{"en": english, "de": german} for english, german in pairs]


@dataclasses.dataclass(frozen=True)
class ByPosition(SamplingRule):
    """Leaves one token: the index of the output token."""

    def probabilities(self, logits, positions=None, history=None):
        return jax.nn.one_hot(positions, logits.shape[-1])


@dataclasses.dataclass(frozen=True)
class StopAfterUnlikely(Fixed):
    """Up to gamma tokens, ending after one that was drawn with a probability below `threshold`."""

    threshold: float = 0.4
    stops_within: ClassVar[bool] = True

    def stop(self, params, carry, index, probs, tokens):
        drawn = jnp.take_along_axis(probs, tokens[:, None], axis=1)[:, 0]
        return carry, drawn < self.threshold


@dataclasses.dataclass(frozen=True)
class Cycle(Schedule):
    """Wants 0, 1, 2, .. K, 0, 1, .. tokens."""

    buckets: tuple[int, ...]

    def init(self, batch):
        return jnp.zeros([batch], jnp.int32)

    def want(self, state):
        return state % (self.buckets[-1] + 1)

    def update(self, state, draft, verdict):
        return state + 1


@dataclasses.dataclass(frozen=True)
class AfterAcceptance(Schedule):
    """One more token than was accepted last time: lengths that depend on the past output."""

    buckets: tuple[int, ...]

    def init(self, batch):
        return jnp.ones([batch], jnp.int32)

    def want(self, state):
        return jnp.minimum(state, self.buckets[-1])

    def update(self, state, draft, verdict):
        return verdict.num_accepted + 1


@dataclasses.dataclass(frozen=True)
class AvoidsWhatWasUnlikely(Fixed):
    """Wants to end before the position where the last draft, beyond what was committed of it, had a
    token drawn with a probability below `threshold`. Exact as long as no noise is used twice."""

    threshold: float = 0.3

    def update(self, state, draft, verdict):
        drawn = jnp.take_along_axis(draft.probs, draft.tokens[:, :, None], axis=2)[:, :, 0]
        index = jnp.arange(self.gamma)[None]
        first = verdict.num_accepted[:, None] + 1  # about the output position that comes next
        unlikely = (index >= first) & (index < draft.length[:, None]) & (drawn < self.threshold)
        before = jnp.where(unlikely, index - first, self.gamma)
        return jnp.min(before, axis=1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class StatesTable(TableTarget):
    """A table that is fed with another one's states, and whose blocks have neighbours: both change
    its logits."""

    states_dim: int = 3
    has_markov: ClassVar[bool] = True

    @property
    def config(self) -> StatesTable:
        return self

    def init(self, key):
        tables, neighbours = jax.random.split(key)
        size = self.vocab_size
        return super().init(tables) | {"markov": jax.random.normal(neighbours, (size, size))}

    def decode(self, params, tokens, cache, *, states, ancestors=None):
        output, cache = super().decode(params, tokens, cache, ancestors=ancestors)
        classes, total, last = jnp.moveaxis(output.hidden, -1, 0)
        told = (total + jnp.sum(states, axis=-1)) % self.vocab_size
        hidden = jnp.stack([classes, told, last], axis=-1)
        return output._replace(logits=self.logits(params, hidden), hidden=hidden), cache

    def markov(self, params, tokens):
        return params["markov"][tokens]


@dataclasses.dataclass(frozen=True)
class ConfidentTable(StatesTable):
    """Which also looks up the log-odds that a place of a block is kept."""

    has_confidence: ClassVar[bool] = True

    def init(self, key):
        shape = self.classes, self.vocab_size, self.vocab_size
        odds = 2 * jax.random.normal(jax.random.fold_in(key, 1), shape)
        return super().init(key) | {"confidence": odds}

    def confidence(self, params, hidden):
        return params["confidence"][*jnp.moveaxis(hidden.astype(jnp.int32), -1, 0)]


@dataclasses.dataclass(frozen=True)
class PromptTable(TableTarget):
    """A table whose inputs are prompts, padded behind, that its outputs continue."""

    decoder_only: ClassVar[bool] = True

    def start(self, inputs):
        last = self.prompt(inputs).length - 1
        return jnp.take_along_axis(inputs, jnp.maximum(last, 0)[:, None], axis=1)[:, 0]

    def prompt(self, inputs):
        return Prompt(inputs, jnp.sum(inputs != self.pad_id, axis=1, dtype=jnp.int32))


@dataclasses.dataclass(frozen=True)
class TableHeads:
    """Heads on a table's states, each of which looks up another row; their parameter is by how far
    they turn it."""

    vocab_size: int
    heads: int
    states_dim: int = 3

    @property
    def config(self) -> TableHeads:
        return self

    def init(self, key):
        turn = jax.random.randint(key, [self.heads, 3], 1, self.vocab_size)
        return {"turn": turn.at[:, 0].set(0)}  # not the class of the input

    def ahead(self, params, states):
        turned = states[:, :, None] + params["turn"][None, None]
        rows = jnp.array([1e6, self.vocab_size, self.vocab_size])
        return turned % rows[None, None, None]


BYTES = """
from __gin__ import dynamic_registration
from specdec import cli
from specdec import tasks

include 'decode.gin'
include 'drafters/autoregressive.gin'
include 'models/from_checkpoint.gin'
include 'tasks/local.gin'

CHECKPOINT_PATH = 'the folder/target'
DRAFT_CHECKPOINT_PATH = 'the folder/draft'
VOCABULARY = @tasks.Bytes()
TASK_FEATURE_LENGTHS = {'inputs': 16, 'targets': 8}
GAMMA = 2
"""


def bytes_run(folder: Path, task: str, texts: Mapping[str, Iterable[str]], more: str = "") -> Path:
    """Returns the gin file of a run of two random models of bytes, which it writes with their
    checkpoints and the lines of its splits. Tasks of one process have names of their own."""
    for split, lines in texts.items():
        (folder / f"{split}.tsv").write_text("".join(f"{x}\n" for x in lines), encoding="utf-8")
    for name, width in (("target", 11), ("draft", 7)):
        config = tiny_t5(261, width, head_dim=4)
        draw = np.random.default_rng(width).normal
        shapes = T5Target(config).parameter_shapes()
        params = jax.tree.map(lambda x, draw=draw: draw(0, 0.3, x.shape).astype(x.dtype), shapes)
        checkpoints.save(folder / name, params, config=config)
    files = {split: str(folder / f"{split}.tsv") for split in texts}
    given = f"TASK_NAME = {task!r}\nTASK_FILES = {files}\n{more}"
    (folder / "run.gin").write_text(BYTES.replace("the folder", str(folder)) + given)
    return folder / "run.gin"


def inside(instructions: Iterable[Instruction], loop: str) -> list[Instruction]:
    """Returns the instructions of a compiled program that run in loops of that name."""
    return [each for each in instructions if loop in each.loop]


def opcodes(instructions: Iterable[Instruction]) -> dict[str, int]:
    """Counts the instructions of each opcode."""
    return dict(Counter(each.opcode for each in instructions))


def coupled_acceptance_rate(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Probability that p and q draw the same token from the same Gumbel noise.

        sum_i 1 / sum_j max(p_j / p_i, q_j / q_i)        over i with p_i > 0 and q_i > 0

    At least (1 - TV) / (1 + TV), at most 1 - TV. Daliri, Musco and Suresh, "Coupling without
    Communication and Drafter-Invariant Speculative Decoding" (2408.07978).
    """
    p, q = (array.astype(np.float64) for array in np.broadcast_arrays(p, q))
    # Sorted by p_j / q_j, the maximum is p_j / p_i from i on and q_j / q_i before it, so that two
    # cumulative sums replace V^2 terms.
    ratio = np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0)
    order = np.argsort(ratio, axis=-1)
    p, q = np.take_along_axis(p, order, -1), np.take_along_axis(q, order, -1)
    p_from = np.cumsum(p[..., ::-1], axis=-1)[..., ::-1]
    q_before = np.cumsum(q, axis=-1) - q
    total = q * p_from + p * q_before
    return np.sum(np.divide(p * q, total, out=np.zeros_like(p), where=total > 0), axis=-1)


def started(*arguments: str, devices: int, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Starts a command in a process with this many CPU devices."""
    flag = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    pipes: dict[str, Any] = {"stdout": stdout, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "specdec", *arguments]
    return subprocess.Popen(command, env=os.environ | {"XLA_FLAGS": flag}, **pipes)


def two_hosts(*arguments: str, stdout: int = subprocess.PIPE) -> list[subprocess.Popen[str]]:
    """Starts a command in two processes with four CPU devices each, which are one program."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    flags = [f"--distributed={address},2,{host}" for host in (0, 1)]
    return [started(*arguments, flag, devices=4, stdout=stdout) for flag in flags]
