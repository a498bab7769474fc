"""`specdec eval`, on the tiny models of test_cli: pytest tests/cli/test_cli_eval.py"""

import json
import re
import shutil
import signal
import subprocess
import sys

import jax
import pytest
from support import check_lines
from tolerances import SMALL_LOGITS
from yard import records, the_line

from specdec import checkpoints, cli, tasks
from specdec.cli import run as runs
from specdec.common import hosts
from specdec.common.environment import version
from specdec.common.records import RecordsError
from specdec.common.terminal import counted
from specdec.measure.prediction_files import PredictionsFolder

SAMPLED = (
    "--gin_file=sampling/temperature.gin",
    "--num_samples=2",
    "--gin.BATCH_SIZE=3",
)
VERSION = version("specdec")
FIELDS = ("input", "target")
COMPARED = (*SAMPLED, "--compare", "--metric=bleu")


@pytest.fixture(scope="module")
def flags(folder, cache):
    """What every run is given."""
    return [f"--gin_file={folder / 'run.gin'}", f"--compilation_cache_dir={cache}"]


@pytest.fixture
def evaluate(flags, capsys):
    """Runs `specdec eval` into a folder; returns the exit code, stdout and stderr."""

    def run(path, *more):
        capsys.readouterr()
        return cli.main(["eval", *flags, f"--output_dir={path}", *more]), *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory):
    """The folder of a run that nothing interrupted."""
    path = tmp_path_factory.mktemp("whole")
    assert cli.main(["eval", *flags, f"--output_dir={path}", *COMPARED]) == 0
    return path


@pytest.fixture
def no_long_work(monkeypatch):
    monkeypatch.setattr(checkpoints, "load", lambda *_, **__: pytest.fail("long work"))


def files(path):
    """What must not depend on how often a run was interrupted."""
    return [(path / name).read_bytes() for name in ("predictions.jsonl", "metrics.json", "run.gin")]


def metrics(path):
    return json.loads((path / "metrics.json").read_text())


@pytest.mark.ci
def test_predictions_are_those_of_decode_batch_by_batch_and_sample_by_sample(
    whole, flags, tmp_path
):
    cli.main(["decode", *flags, *SAMPLED, f"--output_file={tmp_path / 'decoded.jsonl'}"])
    check_lines("eval", whole / "predictions.jsonl", whole / "run.gin")
    texts = records(whole / "predictions.jsonl")
    for text in texts:
        assert text.pop("alone") and text.pop("alone_tokens")
    assert texts == records(tmp_path / "decoded.jsonl")
    order = [(i, sample) for batch in ([0, 1, 2], [3, 4]) for sample in (0, 1) for i in batch]
    assert [(text["index"], text["sample"]) for text in texts] == order


@pytest.mark.ci
def test_metrics_follow_from_the_predictions_and_are_means_over_samples(
    evaluate, whole, tmp_path, no_long_work
):
    """Right are, of five texts: all and two, and of the target alone: one and none."""
    right = {("prediction", 0): 5, ("prediction", 1): 2, ("alone", 0): 1, ("alone", 1): 0}
    copy, texts = shutil.copytree(whole, tmp_path / "copy"), records(whole / "predictions.jsonl")
    with open(copy / "predictions.jsonl", "w", encoding="utf-8") as file:
        for text in texts:
            for (field, sample), count in right.items():
                if sample == text["sample"]:
                    text[field] = text["target"] if text["index"] < count else "wrong"
            print(json.dumps(text), file=file)
    assert evaluate(copy, *COMPARED, "--metric=squad")[0] == 0
    report = metrics(copy)
    assert report["metrics"]["speculative"] == {"bleu": 0, "em": 70, "f1": 70}
    assert report["metrics"]["alone"] == {"bleu": 0, "em": 10, "f1": 10}
    difference = report["difference"]["em"]
    assert difference["value"] == 60 and 0 < difference["low"] < 60 < difference["high"] <= 100


def test_the_report_says_how_it_was_computed_and_what_speculation_did(whole):
    report, texts = metrics(whole), records(whole / "predictions.jsonl")
    assert (report["texts"], report["samples"]) == (5, 2)
    assert report["signatures"] == {"bleu": tasks.bleu.signature}
    calls, tokens = (sum(t["calls"] for t in texts), sum(len(t["tokens"]) for t in texts))
    speculation = report["speculation"]
    assert (speculation["tokens"], speculation["target_calls"]) == (tokens, calls)
    assert speculation["tokens_per_call"] == tokens / calls


def test_the_tasks_own_metrics(evaluate, folder, tmp_path):
    def letters(targets, predictions):
        return {"letters": len("".join(targets))}

    data = {"test": str(folder / "test.tsv")}
    tasks.local_task("own_metrics", data, tasks.Bytes(), metric_fns=(letters, tasks.squad))
    code, out, err = evaluate(tmp_path, *SAMPLED, "--gin.TASK='own_metrics'", "--limit=2")
    assert code == 0, err
    assert metrics(tmp_path)["metrics"] == {
        "speculative": {"letters": len("einszwei Wörter"), "em": 0, "f1": 0}
    }
    assert out.startswith("letters: speculative 15.00\nem: speculative 0.00\n")


@pytest.mark.parametrize(
    "kept, torn, left", [(7, 20, 3), pytest.param(9, -1, 1, marks=pytest.mark.ci)]
)
def test_wherever_the_file_was_torn_the_rest_is_the_same(
    evaluate, whole, tmp_path, kept, torn, left
):
    """In the middle of a line, and before its end; both within a batch."""
    expected = files(whole)
    lines = expected[0].splitlines(keepends=True)
    (tmp_path / "run.gin").write_bytes(expected[2])
    (tmp_path / "predictions.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:torn])
    code, _, err = evaluate(tmp_path, *COMPARED)
    assert code == 0 and f"\n{counted(left, 'text')}, " in err
    assert files(tmp_path) == expected


def assert_same_but_for_rounding(path, other):
    """Compares predictions; another number of rows in a product rounds log_probs differently."""
    for one, expected in zip(records(path), records(other), strict=True):
        assert one.pop("log_probs") == pytest.approx(expected.pop("log_probs"), abs=SMALL_LOGITS)
        assert one == expected


@pytest.mark.ci
def test_refilled_rows_write_the_same_file_in_the_same_order(evaluate, whole, tmp_path):
    """Also where a run was stopped in the middle of a batch."""
    code, _, err = evaluate(tmp_path, *COMPARED, "--refill")
    assert code == 0, err
    path = tmp_path / "predictions.jsonl"
    assert_same_but_for_rounding(path, whole / "predictions.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:7]))
    (tmp_path / "metrics.json").unlink()
    code, _, err = evaluate(tmp_path, *COMPARED, "--refill")
    assert code == 0 and "\n3 texts, " in err
    assert_same_but_for_rounding(path, whole / "predictions.jsonl")


def test_a_finished_run_decodes_nothing_and_may_have_other_metrics(
    evaluate, whole, tmp_path, no_long_work
):
    copy = shutil.copytree(whole, tmp_path / "copy")
    code, out, err = evaluate(copy, f"--gin_file={whole / 'run.gin'}", "--metric=squad")
    assert code == 0, err
    assert metrics(copy)["metrics"]["alone"] == {"em": 0, "f1": 0}
    assert out.startswith("em: speculative 0.00, alone 0.00, difference +0.00 [+0.00, +0.00]\n")
    texts = records(whole / "predictions.jsonl")
    same = sum(text["tokens"] == text["alone_tokens"] for text in texts)
    assert f"identical outputs: {same} of 10\n" in out and same < 10


def test_another_run_is_refused_by_the_name_of_what_differs(evaluate, whole, no_long_work):
    before = files(whole)
    line = the_line(*evaluate(whole, *COMPARED, "--gin.GAMMA=3"))
    difference = "GAMMA = 2, and now it is 3; take the settings of"
    assert f"{whole} was begun with {difference} {whole}/run.gin, or give another" in line
    assert files(whole) == before


@pytest.mark.parametrize("column, left", [("input", 10), ("target", 7)])
def test_other_texts_under_the_same_name_are_refused(
    evaluate,
    whole,
    folder,
    tmp_path,
    no_long_work,
    column,
    left,
):
    copy = shutil.copytree(whole, tmp_path / "copy")
    lines = (copy / "predictions.jsonl").read_bytes().splitlines(keepends=True)[:left]
    (copy / "predictions.jsonl").write_bytes(b"".join(lines))
    data = folder / "test.tsv"
    before = data.read_text(encoding="utf-8")
    second = before.splitlines()[1].split("\t")
    changed = list(second)
    changed[FIELDS.index(column)] += "!"
    data.write_text(before.replace("\t".join(second), "\t".join(changed)), encoding="utf-8")
    try:
        line = the_line(*evaluate(copy, *COMPARED))
    finally:
        data.write_text(before, encoding="utf-8")
    place = f"{copy}/predictions.jsonl, line 2: {column} is {second[FIELDS.index(column)]!r}"
    assert place in line and "restore the data, or give another --output_dir" in line


def test_another_checkpoint_at_the_same_place_is_refused(
    evaluate,
    whole,
    folder,
    tmp_path,
    no_long_work,
):
    copy = shutil.copytree(whole, tmp_path / "copy")
    kept = shutil.copytree(folder / "draft", tmp_path / "kept")
    try:
        shutil.rmtree(folder / "draft")
        shutil.copytree(folder / "narrow", folder / "draft")
        shutil.copy(kept / "config.json", folder / "draft")  # found out before it is read
        line = the_line(*evaluate(copy, *COMPARED))
    finally:
        shutil.rmtree(folder / "draft")
        shutil.move(kept, folder / "draft")
    assert f"{copy} was begun with fingerprint of draft = " in line
    assert evaluate(copy, *COMPARED)[0] == 0


def test_another_version_of_the_code_is_refused(evaluate, whole, tmp_path, monkeypatch):
    copy = shutil.copytree(whole, tmp_path / "copy")
    assert f"\n# version of specdec = {VERSION}\n" in (copy / "run.gin").read_text()
    monkeypatch.setattr(runs, "version", lambda package: "0.0.9")
    line = the_line(*evaluate(copy, *COMPARED))
    assert f"version of specdec = {VERSION}, and now it is 0.0.9; take" in line


@pytest.mark.parametrize(
    "now, difference",
    [
        ("A = 1\n\n# B:\n", "B = 'x y', and now it is not set;"),
        ("A = 1\nB = 'x z'\n", "B = 'x y', and now it is 'x z';"),
        ("A = 1\nB = 'x y'\nC = 0\n", "C = not set, and now it is 0;"),
        ("A = 1\nB = \\\n    'x y'\n", None),
    ],
)
def test_settings_are_compared_as_settings(tmp_path, now, difference):
    PredictionsFolder(str(tmp_path), "A = 1\nB = 'x y'\n", (0, 1))
    if difference is None:
        PredictionsFolder(str(tmp_path), now, (0, 1))
    else:
        with pytest.raises(RecordsError, match=re.escape(difference)):
            PredictionsFolder(str(tmp_path), now, (0, 1))


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "predictions.jsonl").touch()
    for path, processes, message in (
        (tmp_path / "file", 1, "--output_dir .*/file cannot be used: "),
        (tmp_path, 1, "predictions.jsonl has no run.gin next to it"),
        (tmp_path, 2, "predictions.jsonl is of a run on another number of hosts than 2"),
        ("gs://b/x", 1, "--output_dir gs://b/x is not a local folder"),
    ):
        with pytest.raises(RecordsError, match=message):
            PredictionsFolder(str(path), "", (0, processes))
    (tmp_path / "predictions.jsonl").unlink()
    for host in (1, 0):
        (tmp_path / f"predictions-0000{host}-of-00002.jsonl").touch()
    with pytest.raises(RecordsError, match="predictions-00000-of-00002.jsonl has no run.gin"):
        PredictionsFolder(str(tmp_path), "", (1, 2))


@pytest.mark.ci
def test_hosts_share_the_texts_and_the_last_one_computes_the_metrics(
    evaluate, whole, tmp_path, monkeypatch
):
    def place(text):
        return text["sample"], text["index"]

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(hosts, "exchanged", lambda figures: [figures])  # one after the other
    for host in (1, 0):
        monkeypatch.setattr(jax, "process_index", lambda host=host: host)
        code, out, err = evaluate(tmp_path, *COMPARED)
        assert code == 0, err
        assert (tmp_path / "metrics.json").exists() == (host == 0) == bool(out)
    shards = [records(tmp_path / f"predictions-0000{host}-of-00002.jsonl") for host in (0, 1)]
    assert [{text["index"] for text in shard} for shard in shards] == [{0, 2, 4}, {1, 3}]
    assert sorted(sum(shards, []), key=place) == sorted(
        records(whole / "predictions.jsonl"), key=place
    )
    assert metrics(tmp_path) == metrics(whole)


def test_a_line_behind_the_last_text_is_refused(evaluate, whole, tmp_path, no_long_work):
    path = shutil.copytree(whole, tmp_path / "copy") / "predictions.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(before := b"".join([*lines, lines[-1]]))
    line = the_line(*evaluate(path.parent, *COMPARED))
    assert "line 11, is after the run's last text" in line and path.read_bytes() == before


def test_hosts_that_are_not_there_are_one_line(evaluate, tmp_path, monkeypatch, no_long_work):
    def no_hosts(**_):
        raise ValueError("none")

    monkeypatch.setattr(jax.distributed, "initialize", no_hosts)
    line = the_line(*evaluate(tmp_path / "out", "--distributed"))
    assert "--distributed: JAX finds no other hosts (none)" in line
    assert not (tmp_path / "out").exists()
    jax.config.update("jax_enable_preemption_service", True)  # as it is without hosts


KILLED = """
import os, signal, sys
from specdec import cli
from specdec import decoding

check_finite, calls = decoding.check_finite, []

def killed(*args, **others):
    calls.append(args)
    if len(calls) == 6:  # the target alone, on the second batch
        os.kill(os.getpid(), signal.SIGKILL)
    return check_finite(*args, **others)

decoding.check_finite = killed
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_stopped(evaluate, flags, whole, tmp_path):
    command = ["eval", *flags, *COMPARED, f"--output_dir={tmp_path}"]
    done = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(records(tmp_path / "predictions.jsonl")) == 6
    assert not (tmp_path / "metrics.json").exists()
    code, _, err = evaluate(tmp_path, *COMPARED)
    assert code == 0 and "\n4 texts, " in err
    assert files(tmp_path) == files(whole)
