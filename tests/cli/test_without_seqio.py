"""The quick start without seqio and TensorFlow: pytest tests/cli/test_without_seqio.py"""

import subprocess
import sys

import pytest

# As if they were not installed.
ABSENT = ("seqio", "tensorflow", "tensorflow_datasets", "tensorflow_text", "t5", "t5x", "clu")
PROGRAM = f"""
import sys
sys.modules |= dict.fromkeys({ABSENT})
from specdec.cli import main
sys.exit(main(sys.argv[1:]))
"""
DEMO = ("--gin_file=demo.gin", "--max_length=6", "--gamma=2", "--limit=2")
TWO_STEPS = (
    "--gin_file=train_demo_draft.gin",
    "--gin.STEPS=2",
    "--gin.WARMUP=1",
    "--gin.BATCH_SIZE=2",
    "--gin.BUCKETS=1",
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 8}",
    "--gin.EVALUATION_SPLIT=None",
)


def run(folder, *arguments):
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("decode", *DEMO), marks=pytest.mark.ci),
        pytest.param(("train", *TWO_STEPS, "--output_dir=drafter"), marks=pytest.mark.slow),
        pytest.param(("bench", *DEMO, "--repeats=1"), marks=pytest.mark.slow),
        pytest.param(("verify", *DEMO), marks=pytest.mark.slow),
    ],
    ids=lambda command: command[0],
)
def test_the_demo_needs_neither(tmp_path, command):
    done = run(tmp_path, *command)
    assert (done.returncode, done.stdout == "") == (0, command[0] == "train"), done.stderr


@pytest.mark.ci
def test_a_task_of_seqio_names_the_extra_in_one_line(tmp_path):
    done = run(tmp_path, "decode", *DEMO, "--gin.TASK='theirs'")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "specdec: no task is named 'theirs' (registered: none); one of seqio's needs seqio; "
        "pip install seqio tensorflow-datasets"
    ]
