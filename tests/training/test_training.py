"""Loss, optimizer, data, exact resume, `specdec train`: pytest tests/training/test_training.py"""

import dataclasses
import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import fails_at, tiny_t5

from specdec import checkpoints, cli, tasks, training
from specdec.common import hosts
from specdec.common.records import RecordsError
from specdec.models.t5 import T5Target
from specdec.training import (
    Adafactor,
    Batches,
    LearningRate,
    TeacherForced,
    TrainRun,
    training_loop,
)
from specdec.training.loss import Sums
from specdec.training.training_loop import Progress

pytestmark = pytest.mark.ci


ROOT = Path(__file__).resolve().parents[2]

LENGTHS = {"inputs": 8, "targets": 8}
CONFIG = tiny_t5(259, 32, 64, head_dim=16)
RUN = """
from __gin__ import dynamic_registration
from specdec import cli
from specdec import tasks
from specdec.models import t5

include 'train.gin'
include 'tasks/local.gin'

MODEL = @t5.T5Target()
t5.T5Target.config = @t5.T5Config()
t5.T5Config:
  vocab_size = 259
  emb_dim = 32
  num_heads = 2
  head_dim = 16
  mlp_dim = 64
  num_encoder_layers = 1
  num_decoder_layers = 1
VOCABULARY = @tasks.Bytes()
TASK_NAME = 'copies'
TASK_FILES = {'train': @train/cli.path_in(), 'validation': @train/cli.path_in()}
TASK_FEATURE_LENGTHS = {'inputs': 8, 'targets': 8}
STEPS = 12
BATCH_SIZE = 8
BUCKETS = 2
WARMUP = 10
CHECKPOINT_EVERY = 5
cli.path_in.folder = 'the folder'
train/cli.path_in.name = 'train.tsv'
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run's data: a file of short words, each its own translation."""
    folder = tmp_path_factory.mktemp("run")
    letters = random.Random(0)
    words = ["".join(letters.choices("abcd", k=letters.randint(1, 6))) for _ in range(300)]
    (folder / "train.tsv").write_text("".join(f"{word}\t{word}\n" for word in words))
    (folder / "run.gin").write_text(RUN.replace("the folder", str(folder)))
    return folder


@pytest.fixture(scope="module")
def run(folder):
    file = f"{folder}/train.tsv"
    task = tasks.local_task("copies", {"train": file, "validation": file}, tasks.Bytes())
    return TrainRun(
        model=T5Target(CONFIG),
        task=task,
        lengths=LENGTHS,
        steps=12,
        batch_size=8,
        optimizer=Adafactor(LearningRate(warmup=10)),
        buckets=2,
        checkpoint_every=5,
    )


@pytest.fixture
def command(folder, capsys):
    """Runs `specdec train` on the data; returns the exit code and stderr."""

    def run(output, *flags):
        code = cli.main(
            ["train", f"--gin_file={folder / 'run.gin'}", f"--output_dir={output}", *flags]
        )
        return code, capsys.readouterr().err

    return run


def batches_of(run, seed=0, **changes):
    options = {"batch_size": run.batch_size, "seed": seed, "buckets": run.buckets, "pad_id": 0}
    options |= changes
    return Batches(run.task, "train", run.lengths, **options)


def log(output):
    return (Path(output) / "log.jsonl").read_text().splitlines()


# Loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_the_definition(smoothing):
    random = np.random.default_rng(0)
    logits = random.normal(size=[2, 4, 5]).astype(np.float32)
    targets = np.array([[3, 1, 0, 0], [4, 2, 2, 1]])
    loss = correct = 0
    for row, position in zip(*np.nonzero(targets), strict=True):
        p = np.exp(logits[row, position].astype(np.float64))
        p /= p.sum()
        q = np.full(5, smoothing / 4)
        q[targets[row, position]] = 1 - smoothing
        loss += sum(a * math.log(a / b) for a, b in zip(q, p, strict=True) if a)
        correct += int(p.argmax() == targets[row, position])
    sums = training.cross_entropy(jnp.asarray(logits), jnp.asarray(targets), 0, smoothing)
    np.testing.assert_allclose(sums.loss, loss, rtol=1e-5)
    assert (int(sums.correct), int(sums.tokens)) == (correct, 6)


def test_predicting_the_smoothed_label_costs_nothing():
    labels = np.full([1, 3, 259], 0.1 / 258, np.float32)
    targets = np.array([[5, 9, 1]])
    np.put_along_axis(labels, targets[..., None], 0.9, axis=-1)
    loss = training.cross_entropy(jnp.log(labels), jnp.asarray(targets), 0, 0.1).loss
    assert float(loss) == pytest.approx(0, abs=1e-5)  # float32 sums of 777 logarithms below 8


@pytest.mark.slow
def test_a_step_is_optax_by_hand(run):
    pairs = batches_of(run)[0]
    state = training.training_loop.init(run)
    params = jax.tree.map(jnp.copy, state.params)

    def loss(params):
        logits = jax.nn.log_softmax(training.teacher_forced(run.model, params, pairs))
        labels = jax.nn.one_hot(pairs.targets, 259) * (0.9 - 0.1 / 258) + 0.1 / 258
        real = (pairs.targets > 0)[..., None]
        return -(labels * logits * real).sum() / real.sum()

    gradient = jax.grad(loss)(params)
    by_hand = optax.adafactor(0.003)
    updates, _ = by_hand.update(gradient, by_hand.init(params), params)
    expected = optax.apply_updates(params, updates)
    new, _ = training.train_step(state, pairs, recipe=training.training_loop.Recipe.of(run))
    assert int(new.step) == 1
    # A thirtieth of a step, whose size is 0.003 times a parameter's: rounding of its gradient.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), new.params, expected)
    # The first step of Adafactor has beta2 = 0: the size of an entry is the rate times the root
    # mean square of the parameter.
    scale, slope = (tree["encoder"]["encoder_norm"]["scale"] for tree in (params, gradient))
    found = new.params["encoder"]["encoder_norm"]["scale"]
    np.testing.assert_allclose(found, scale - 0.003 * np.sign(slope), rtol=1e-5)


# Optimizer


# Data


def test_every_example_once_per_epoch_in_another_order(run):
    read = training.training_batches.reader(run.task, "train", LENGTHS, 0)
    shown = [tuple(example.inputs) for example in itertools.islice(read(0), 900)]
    first, second, third = shown[:300], shown[300:600], shown[600:]
    examples = training.training_batches.read_split(run.task, "train", LENGTHS)
    in_file = sorted(tuple(example.inputs) for example in examples)
    assert sorted(first) == sorted(second) == sorted(third) == in_file
    assert first != second and second != third
    later = [tuple(example.inputs) for example in itertools.islice(read(450), 450)]
    assert later == shown[450:]


def test_a_batch_depends_on_seed_and_number_alone(run):
    ahead, direct = batches_of(run), batches_of(run)
    inputs = [ahead[k].inputs for k in range(70)]
    for k in (69, 3, 40):
        np.testing.assert_array_equal(direct[k].inputs, inputs[k])
    other = batches_of(run, seed=1)
    assert any(not np.array_equal(other[k].inputs, inputs[k]) for k in range(3))


def test_batches_have_few_shapes(run):
    batches = batches_of(run)
    shapes = {tuple(x.shape for x in batches[k][:2]) for k in range(64)}
    assert shapes == {((8, 4), (8, 4)), ((8, 8), (8, 8))}


def test_an_endless_task_is_read_on_from_any_place():
    import seqio
    import tensorflow as tf  # its hundreds of megabytes stay, so a test that has it imports it

    name, numbers = "endless", "abcdefghij"

    def text(i):
        return tf.gather(list(numbers), i % 10)

    def dataset(split, shuffle_files):
        numbers = tf.data.Dataset.range(10**9)
        return numbers.map(lambda i: {"inputs": text(i), "targets": text(i // 10)})

    vocabulary = tasks.Bytes().load()
    task = seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(dataset, splits=["train"]),
        preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
        output_features={f: seqio.Feature(vocabulary) for f in ("inputs", "targets")},
    )
    task = seqio.MixtureRegistry.add(f"{name}_mixture", [(name, 1)])
    options = {"batch_size": 2, "seed": 0, "buckets": 1, "pad_id": 0}
    ahead, direct = (Batches(task, "train", LENGTHS, **options) for _ in range(2))
    in_order = [ahead[k] for k in range(70)]
    for k in (69, 40):
        np.testing.assert_array_equal(direct[k].inputs, in_order[k].inputs)
        np.testing.assert_array_equal(direct[k].targets, in_order[k].targets)


# Runs


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """The log of a run that nobody disturbed."""
    output = tmp_path_factory.mktemp("whole") / "out"
    training.train(dataclasses.replace(run, evaluation_split="validation"), output)
    *steps, evaluation = log(output)
    assert json.loads(evaluation).keys() == {"step", "validation_loss", "validation_accuracy"}
    return steps


def test_a_run_that_fails_and_goes_on_computes_the_same(run, whole, tmp_path):
    with fails_at(9), pytest.raises(RuntimeError, match="planted"):
        training.train(run, tmp_path / "out")
    assert len(log(tmp_path / "out")) == 8  # and the checkpoint is of step 5
    with (tmp_path / "out" / "log.jsonl").open("a") as file:
        file.write('{"step": 9, "lo')
    training.train(run, tmp_path / "out")
    assert log(tmp_path / "out") == whole


def test_the_best_evaluation_is_exported(run, tmp_path, monkeypatch):
    """And stays, if a run that goes on finds nothing better."""
    right = iter([5, 9, 7, 9, 8, 6])  # of ten tokens

    def evaluated(*_, **__):
        return Sums(jnp.float32(0), jnp.int32(next(right)), jnp.int32(10))

    monkeypatch.setattr(training_loop, "evaluate_step", evaluated)
    monkeypatch.setattr(training_loop, "_evaluation", lambda run: [None])
    asked = dataclasses.replace(
        run, evaluation_split="validation", best_by="accuracy", evaluate_every=4, steps=11
    )
    training.train(asked, tmp_path / "out")
    assert [entry.name for entry in (tmp_path / "out/export").iterdir()] == ["checkpoint_8"]
    longer = dataclasses.replace(asked, steps=17)
    training.train(longer, tmp_path / "out")
    lines = map(json.loads, log(tmp_path / "out"))
    evaluated_at = [line["step"] for line in lines if "validation_loss" in line]
    assert evaluated_at == [4, 8, 11, 12, 16, 17]
    assert [entry.name for entry in (tmp_path / "out/export").iterdir()] == ["checkpoint_8"]
    assert checkpoints.load(tmp_path / "out/export", config=CONFIG)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"best_by": "mbsu_5"}, "best_by is 'mbsu_5'; give a figure of TeacherForced: accuracy"),
        ({"best_by": "accuracy"}, "best_by is 'accuracy' but nothing is evaluated"),
    ],
)
def test_what_cannot_be_the_best_is_refused(run, fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(run, **fields)


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_it_had_not_been(run, folder, tmp_path):
    flags = [f"--gin_file={folder / 'run.gin'}", f"--output_dir={tmp_path / 'out'}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "specdec", "train", *flags, "--steps=1000000"],
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "out/log.jsonl").exists() or len(log(tmp_path / "out")) < 8:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    steps = len(log(tmp_path / "out")) + 3
    longer = dataclasses.replace(run, steps=steps)
    training.train(longer, tmp_path / "out")
    training.train(longer, tmp_path / "undisturbed")
    assert len(log(tmp_path / "out")) == steps
    assert log(tmp_path / "out") == log(tmp_path / "undisturbed")


@pytest.mark.parametrize(
    "number, code, line",
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
    ],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_an_interrupt_saves(run, command, whole, tmp_path, monkeypatch, number, code, line):
    update = Progress.update

    def interrupt(self, step, *rest):
        update(self, step, *rest)
        if step == 3:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", interrupt)
        ended, err = command(tmp_path / "out")
    *_, last = err.splitlines()
    assert ended == code and last.startswith(
        f"specdec: {line}; to go on: specdec train --gin_file="
    )
    assert last.endswith(f"--output_dir={tmp_path / 'out'}")
    assert [entry.name for entry in (tmp_path / "out/checkpoints").iterdir()] == ["3"]
    code, err = command(tmp_path / "out")
    assert code == 0 and "holds a run of 3 steps" in err
    assert log(tmp_path / "out") == whole


def test_a_signal_to_another_host_acts_here(command, whole, tmp_path, monkeypatch):
    """The hosts' largest number of a signal is that of one of them."""
    calls = itertools.count(1)
    with monkeypatch.context() as patch:
        patch.setattr(hosts, "largest", lambda own: signal.SIGTERM if next(calls) >= 3 else own)
        ended, err = command(tmp_path / "out")
    assert ended == 143 and err.splitlines()[-1].startswith("specdec: terminated; to go on")
    assert [entry.name for entry in (tmp_path / "out/checkpoints").iterdir()] == ["3"]
    assert command(tmp_path / "out")[0] == 0
    assert log(tmp_path / "out") == whole


@pytest.mark.parametrize(
    "change, message",
    [
        ({"seed": 1}, "seed = 0, and now it is 1"),
        ({"batch_size": 4}, "batch_size = 8, and now it is 4"),
        ({"optimizer": Adafactor()}, "optimizer.learning_rate.warmup = .*, and now it is 1000;"),
        ({"objective": TeacherForced(0.0)}, "objective.label_smoothing = 0.1, and now it is 0.0"),
        (
            {"model": T5Target(dataclasses.replace(CONFIG, mlp_dim=65))},
            f"model.mlp_dim = {CONFIG.mlp_dim}, and now it is 65; take",
        ),
    ],
)
def test_other_settings_are_refused(run, tmp_path, change, message):
    training.train(dataclasses.replace(run, steps=1), tmp_path)
    with pytest.raises(RecordsError, match=message):
        training.train(dataclasses.replace(run, **change), tmp_path)


def test_a_run_goes_on_that_began_before_a_field_was_there(run, tmp_path):
    training.train(dataclasses.replace(run, steps=1), tmp_path)
    path = tmp_path / "settings.json"
    settings = json.loads(path.read_text())
    assert settings["model"].pop("relative_bias_per_layer") is False
    settings["model"] |= {"states_dim": None, "confidence_head": False}  # they were a T5's
    path.write_text(json.dumps(settings))
    assert training.train(dataclasses.replace(run, steps=2), tmp_path).step == 2


def test_a_loss_that_is_not_finite_stops_the_run(run, tmp_path):
    wild = dataclasses.replace(run, optimizer=Adafactor(LearningRate(1e30, warmup=1)))
    with pytest.raises(training.TrainingError, match="loss is nan at step .*; lower the learning"):
        training.train(wild, tmp_path)


def test_a_model_with_other_padding_than_its_target_is_refused(run):
    other = T5Target(dataclasses.replace(CONFIG, pad_id=3))
    with pytest.raises(ValueError, match="TrainRun.model pads with 3 and its target with 0; give"):
        dataclasses.replace(run, model=other, target=run.model, target_path="target")


# Command line


def test_a_folder_of_something_else_is_refused(command, tmp_path):
    (tmp_path / "thesis.txt").write_text("do not touch")
    code, err = command(tmp_path)
    assert code == 2 and "is no training run" in err and err.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_command_reports_and_keeps_its_settings(command, tmp_path, whole):
    flags = ("--gin.LOG_EVERY=5", "--gin.EVALUATION_SPLIT='validation'")
    code, err = command(tmp_path / "out", *flags)
    assert code == 0
    lines = err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "step 5 of 12",
        "step 10 of 12",
        "step 12 of 12",
        "step 12",
    ]
    for part in ("loss", "accuracy", "learning rate", "tokens/s", "left"):
        assert part in lines[0]
    assert log(tmp_path / "out")[:-1] == whole
    kept = (tmp_path / "out" / "train.gin").read_text()
    assert "WARMUP = 10" in kept
