"""Two processes train one model: pytest tests/training/test_training_hosts.py"""

import json
import random
import signal
import subprocess
import time

import jax
import numpy as np
import pytest
from support import two_hosts

from specdec import checkpoints, cli

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
  emb_dim = 16
  num_heads = 4
  head_dim = 4
  mlp_dim = 32
  num_encoder_layers = 1
  num_decoder_layers = 1
VOCABULARY = @tasks.Bytes()
TASK_NAME = 'copies_on_hosts'
TASK_FILES = {'train': @cli.path_in(), 'validation': @cli.path_in()}
cli.path_in.folder = 'the folder'
cli.path_in.name = 'train.tsv'
TASK_FEATURE_LENGTHS = {'inputs': 8, 'targets': 8}
STEPS = 6
BATCH_SIZE = 8
BUCKETS = 1
WARMUP = 10
CHECKPOINT_EVERY = 4
"""
MESH = ["--gin.NUM_PARTITIONS=2"]
LOSS, PARAMETERS = 1e-5, 1e-4  # sums over eight devices have another order


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The flags of a run."""
    folder, letters = tmp_path_factory.mktemp("run"), random.Random(0)
    words = ["".join(letters.choices("abcd", k=letters.randint(1, 6))) for _ in range(64)]
    (folder / "train.tsv").write_text("".join(f"{word}\t{word}\n" for word in words))
    (folder / "run.gin").write_text(RUN.replace("the folder", str(folder)))
    return [
        f"--gin_file={folder / 'run.gin'}",
        "--gin.EVALUATION_SPLIT='validation'",
        "--gin.EVALUATE_EVERY=5",
    ]


def start(run, output, steps):
    flags = [*run, *MESH, f"--output_dir={output}", f"--steps={steps}"]
    return two_hosts("train", *flags, stdout=subprocess.DEVNULL)  # Gloo's would fill a pipe


def trained(run, output, steps):
    """Trains on both hosts to the end, and returns what the second one said."""
    both = start(run, output, steps)
    said = [process.communicate(timeout=500)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return said[1]


def log(output):
    file = output / "log.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def close(output, other, steps):
    """Whether two logs and exports agree up to the order of sums."""
    assert [record.keys() for record in log(output)] == [record.keys() for record in log(other)]
    for record, same in zip(log(output), log(other), strict=True):
        assert record == pytest.approx(same, abs=LOSS)
    both = [checkpoints.load(folder / f"export/checkpoint_{steps}") for folder in (output, other)]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=PARAMETERS), *both)


@pytest.mark.ci
def test_two_hosts_train_what_one_process_does(run, tmp_path):
    """And one process goes on with what they have saved."""
    trained(run, tmp_path / "both", 6)
    for steps, folder in ((6, "alone"), (8, "alone"), (8, "both")):
        if steps == 8 and folder == "alone":
            close(tmp_path / "both", tmp_path / "alone", 6)
        flags = f"--output_dir={tmp_path / folder}", f"--steps={steps}"
        assert cli.main(["train", *run, *flags]) == 0
    close(tmp_path / "both", tmp_path / "alone", 8)


@pytest.mark.slow
def test_hosts_that_were_stopped_go_on_as_if_they_had_not_been(run, tmp_path):
    """The signals are: to one host, which both obey, and deaths of either."""
    out, begun = tmp_path / "out", 0
    for host, number, codes in (
        (1, signal.SIGTERM, {143}),
        (0, signal.SIGINT, {130}),
        (1, signal.SIGKILL, {-signal.SIGKILL, 2, -signal.SIGABRT}),
        (0, signal.SIGKILL, {-signal.SIGKILL, 2, -signal.SIGABRT}),
    ):
        both, deadline = start(run, out, 100_000), time.monotonic() + 300
        while len(log(out)) < begun + 6:
            ended = [one.communicate()[1] for one in both if one.poll() is not None]
            assert time.monotonic() < deadline and not ended, (host, ended)
            time.sleep(0.01)
        both[host].send_signal(number)
        said = [process.communicate(timeout=120)[1] for process in both]
        assert {process.returncode for process in both} <= codes, said
        if number != signal.SIGKILL:
            last = log(out)[-1]["step"]
            assert str(last) in {path.name for path in (out / "checkpoints").iterdir()}
            assert all("; to go on: specdec train" in lines for lines in said)
        begun = len(log(out))
    steps = log(out)[-1]["step"] + 3
    assert "going on with it" in trained(run, out, steps)
    trained(run, tmp_path / "calm", steps)
    assert log(out) == log(tmp_path / "calm")
    both = [checkpoints.load(folder / "export") for folder in (out, tmp_path / "calm")]
    jax.tree.map(np.testing.assert_array_equal, *both)
