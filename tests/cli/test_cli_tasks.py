"""Real tasks from the command line, with data made here: pytest tests/cli/test_cli_tasks.py"""

from pathlib import Path

import jax
import numpy as np
import pytest
from support import make, tiny_t5, translations

from specdec import checkpoints, cli, tasks
from specdec.models.t5 import T5Target

ROOT = Path(__file__).resolve().parents[2]
REAL = {
    "wmt_ende": ("wmt_t2t_ende_v003", 256, 256),
    "newstest2014": ("wmt14_ende_v003", 256, 256),
    "cnndm": ("cnn_dailymail_v002", 512, 512),
    "xsum": ("xsum_v110", 512, 128),
    "squad": ("squad_v010_allanswers", 512, 97),
    "ende_cnndm": ("ende_cnndm", 512, 512),
}

RUN = """
from __gin__ import dynamic_registration
from specdec import tasks
from specdec.models import t5

include 'decode.gin'
include 'models/t5.gin'
include 'tasks/{fragment}.gin'

MODEL = @t5_1_1_xxl/t5.T5Target()
CHECKPOINT_PATH = 'there is none'
VOCABULARY = @tasks.Bytes()
TASK_FEATURE_LENGTHS = {{'inputs': 42, 'targets': 8}}
BATCH_SIZE = 2
"""


@pytest.fixture
def decode(tmp_path, capsys):
    """Runs `specdec decode` on the fragment of a task; the exit code, stdout and stderr."""

    def run(fragment, *flags):
        (tmp_path / "run.gin").write_text(RUN.format(fragment=fragment))
        capsys.readouterr()
        files = [f"--gin_file={tmp_path / 'run.gin'}", "--compilation_cache_dir="]
        code = cli.main(["decode", *files, *flags])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three pairs of newstest2014."""
    folder = tmp_path_factory.mktemp("tfds")
    pairs = [("One.", "Eins."), ("Two, at length.", "Zwei, ganz ausführlich."), ("Three.", "Drei.")]
    make(folder, "wmt14_translate/de-en/1.0.0", "test", translations(pairs))
    return f"--tfds_data_dir={folder}"


def test_every_fragment_is_here():
    others = {"local", "predictions", "series", "t5"}
    others |= {"synthetic", "synthetic_mixture", "synthetic_copying_mixture"}
    assert {file.stem for file in (ROOT / "gin" / "tasks").glob("*.gin")} == set(REAL) | others


@pytest.mark.parametrize("fragment", REAL)
def test_a_fragment_describes_its_task(fragment, tmp_path):
    """Data are neither needed nor read for this."""
    import argparse

    text = RUN.format(fragment=fragment)
    (tmp_path / "run.gin").write_text(text.replace("TASK_FEATURE_LENGTHS", "# "))
    args = argparse.Namespace(
        gin_file=[str(tmp_path / "run.gin")],
        gin_bindings=[],
        gin_search_paths=".",
        tfds_data_dir=None,
    )
    run = cli.settings.build(cli.DecodeRun, args, {})
    data = run.data
    found = (data.task.name, data.lengths["inputs"], data.lengths["targets"])
    assert found == REAL[fragment]


def test_a_dry_run_shows_the_run_and_the_first_batch(decode, data):
    code, out, err = decode("newstest2014", "--dry_run", data)
    assert code == 0 and err == ""
    encode = tasks.Bytes().load().encode
    inputs = ["translate English to German: " + text for text in ("One.", "Two, at length.")]
    _, batch = out.split("# The first batch: ")
    assert batch.splitlines() == [
        "inputs int32[2, 42]",
        "#                  targets int32[2, 8]",
        "# example 0",
        f"#   inputs: {inputs[0]!r}",
        f"#           {[*encode(inputs[0]), 1]}",
        "#   targets: 'Eins.'",
        f"#            {[*encode('Eins.'), 1]}",
        "# example 1",
        f"#   inputs: {inputs[1]!r}",
        f"#           {[*encode(inputs[1])[:41], 1]}",
        "#   targets: 'Zwei, ganz ausführlich.'",
        f"#            {[*encode('Zwei, ganz')[:7], 1]}",
    ]


def test_what_a_dry_run_prints_is_the_run(decode, data, tmp_path, capsys):
    _, out, _ = decode("newstest2014", "--dry_run", data, "--limit=1", "--gin.BATCH_SIZE=1")
    (tmp_path / "again.gin").write_text(out)
    assert "limit = 1" in out and "BATCH_SIZE = 1" in out
    assert cli.main(["decode", f"--gin_file={tmp_path / 'again.gin'}", "--dry_run", data]) == 0
    assert capsys.readouterr().out == out


def test_a_dry_run_of_texts_asks_the_checkpoint_for_its_vocabulary(tmp_path, capsys):
    target = T5Target(tiny_t5(259, 4, heads=1, head_dim=4))
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), target.parameter_shapes())
    checkpoints.save(tmp_path / "target", params, config=target.config)
    flags = ["--dry_run", f"--target={tmp_path / 'target'}", "--vocabulary=bytes", "--text=abc"]
    assert cli.main(["decode", "--compilation_cache_dir=", *flags]) == 0
    out = capsys.readouterr().out
    assert out.endswith(
        "int32[1, 32]\n# example 0\n#   inputs: 'abc'\n#           [100, 101, 102, 1]\n"
    )


def test_missing_data_are_one_line(decode, tmp_path):
    code, out, err = decode("cnndm", "--dry_run", f"--tfds_data_dir={tmp_path}")
    assert (code, out) == (2, "")
    assert err == (
        "specdec: task 'cnn_dailymail_v002' reads the TFDS data set cnn_dailymail:3.4.0, which is "
        f"not in {tmp_path}; say where it is with --tfds_data_dir=DIR, or make it: tfds build "
        "cnn_dailymail:3.4.0 --data_dir=DIR\n"
    )


def test_an_unreachable_vocabulary_is_one_line(decode, monkeypatch):
    import tensorflow as tf

    def refused(*_):
        raise OSError("could not resolve host")

    monkeypatch.setattr(tf.io.gfile, "GFile", refused)
    code, out, err = decode("xsum", "--gin.VOCABULARY=@t5/tasks.SentencePiece()")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model cannot be read (could not" in err
