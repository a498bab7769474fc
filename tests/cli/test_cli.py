"""`specdec decode`, in process, on tiny random models and bytes: pytest tests/cli/test_cli.py"""

import argparse
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from support import check_lines, tiny_t5
from tolerances import LOGITS

import specdec
from specdec import checkpoints, cli, drafters, sampling, schedules, tasks, verifiers
from specdec.cli import sinks
from specdec.common import resources, terminal
from specdec.decoding import Replay, program
from specdec.models.t5 import T5Target
from specdec.testing import TableTarget
from specdec.texts import explained
from specdec.texts.text_engine import TextEngine

ROOT = Path(__file__).resolve().parents[2]
LINES = ["one\teins", "two words\tzwei Wörter", "three\tdrei", "a\tein", "five\tfünf"]
INPUTS, OUTPUTS = 16, 8

RUN = """
from __gin__ import dynamic_registration
from specdec import cli
from specdec import tasks

include 'decode.gin'
include 'drafters/autoregressive.gin'
include 'models/from_checkpoint.gin'
include 'tasks/local.gin'

FOLDER = 'the folder'
CHECKPOINT_PATH = @target/cli.path_in()
DRAFT_CHECKPOINT_PATH = @draft/cli.path_in()
VOCABULARY = @tasks.Bytes()
TASK_NAME = 'the task'
TASK_FILES = {'test': @test/cli.path_in()}
TASK_FEATURE_LENGTHS = {'inputs': 16, 'targets': 8}
GAMMA = 2

cli.path_in.folder = %FOLDER
target/cli.path_in.name = 'target'
draft/cli.path_in.name = 'draft'
test/cli.path_in.name = 'test.tsv'
"""


def model(width: int, vocab_size: int) -> T5Target:
    return T5Target(tiny_t5(vocab_size, width, head_dim=4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run's data: a TSV, and two models of 259 bytes, padded to different widths."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "test.tsv").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    run = RUN.replace("the folder", str(folder)).replace("the task", folder.name)
    (folder / "run.gin").write_text(run)
    for name, width, vocab_size in (("target", 11, 261), ("draft", 7, 263), ("narrow", 7, 100)):
        target = model(width, vocab_size)
        params = target.init(jax.random.key(width))
        checkpoints.save(folder / name, params, config=target.config)
    return folder


@pytest.fixture
def decode(folder, cache, capsys):
    """Runs `specdec decode` on the data; returns the exit code, stdout and stderr."""

    def run(*flags, gin_file="run.gin"):
        capsys.readouterr()
        kept = f"--compilation_cache_dir={cache}"
        code = cli.main(["decode", f"--gin_file={folder / gin_file}", kept, *flags])
        return code, *capsys.readouterr()

    return run


def records(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def test_jsonl(decode, folder, tmp_path):
    code, out, err = decode(f"--output_file={tmp_path / 'out.jsonl'}")
    assert code == 0 and out == ""
    check_lines("decode", tmp_path / "out.jsonl")
    texts = records(tmp_path / "out.jsonl")
    assert [text["index"] for text in texts] == [0, 1, 2, 3, 4]
    assert [f"{text['input']}\t{text['target']}" for text in texts] == LINES
    for text in texts:
        assert len(text["log_probs"]) == len(text["tokens"]) <= OUTPUTS
        assert len(text["drafted"]) == len(text["accepted"]) == text["calls"]
    tokens = sum(len(text["tokens"]) for text in texts)
    calls = sum(text["calls"] for text in texts)
    assert f"5 texts, {tokens} tokens, {calls} target calls: {tokens / calls:.2f} tokens" in err
    whole, *parts = re.findall(r"(\d+\.\d) s ?([a-z]*)", err.splitlines()[2])
    assert "compiling" in {name for _, name in parts}
    assert float(whole[0]) == pytest.approx(sum(float(seconds) for seconds, _ in parts))


def explained_adds_up(text: dict) -> None:
    """At temperature 1, where p of what was kept is what the loop said of it."""
    explained, at = text["explained"], 0
    assert explained["plan"].startswith("Autoregressive, Fixed(gamma=2), Block()")
    assert explained["given"] == 0 and explained["batch"]["rows"] == 1
    assert "".join(explained["token_texts"]) == text["prediction"].rstrip("\ufffd")
    calls = zip(text["drafted"], text["accepted"], explained["p"], explained["own_p"], strict=True)
    for i, (drafted, accepted, p, own_p) in enumerate(calls):
        end = at + accepted
        assert len(p) == drafted and len(explained["proposed_texts"][i]) == drafted
        assert explained["proposed"][i][:accepted] == text["tokens"][at:end]
        kept = [*p[:accepted], *([] if own_p is None else [own_p])]
        np.testing.assert_allclose(np.log(kept), text["log_probs"][at : end + 1], atol=LOGITS)
        at = end + 1
    assert at >= len(text["tokens"])


def test_an_explained_text_after_a_prefix():
    """Its calls begin behind the prefix; a letter of two bytes stands where it ends."""
    tokens = [*"aé".encode()]  # a was given
    trace = specdec.Trace(
        proposed=np.array([[[*"éx".encode()], [0, 0, 0]]]),
        drafted=np.array([[3, 0]]),
        accepted=np.array([[2, 0]]),
        calls=np.array([1]),
        ended_in_draft=np.array([False]),
        steps=np.array(1),
        broken_drafts=np.zeros([1], int),
        failed=np.zeros([1], bool),
    )
    output = specdec.DecodeOutput(np.array([tokens]), np.array([3]), np.zeros([1, 3]), trace)
    of_drafts, own = np.float32([[[0.5, 1e-9, np.nan]] * 2]), np.float32([[0.25, 7]])
    replay = Replay(of_drafts, of_drafts, of_drafts, own, own)
    target = TableTarget(7)
    text_of = functools.partial(str, encoding="utf-8", errors="replace")
    batch = explained.ExplainedBatch(
        specdec.Plan(target, None, None, None, sampling.Greedy(), 3),
        lambda tokens, source: text_of(bytes(tokens)),
        1,
        output,
        replay,
        0.125,
    )
    told = batch.explained(0, "")
    assert told["token_texts"] == ["a", "", "é"]
    assert told["proposed"] == [tokens[1:3] + [*b"x"]]
    assert told["proposed_texts"] == [["", "é", "x"]]
    assert told["p"] == told["q"] == told["softmax"] == [[0.5, 1e-9, None]]
    assert told["own_p"] == [None] and told["given"] == 1
    assert told["batch"] == {"seconds": 0.125, "rows": 1, "calls": 1}


@pytest.mark.slow
def test_tokens_are_those_of_the_library(decode, folder, tmp_path):
    flags = ["--gin_file=sampling/temperature.gin", "--explain"]
    decode(f"--output_file={tmp_path / 'out.jsonl'}", *flags)
    target, draft = (T5Target(checkpoints.config_from(folder / m)) for m in ("target", "draft"))
    params = specdec.Params(checkpoints.load(folder / "target"), checkpoints.load(folder / "draft"))
    encode = tasks.Bytes().load().encode
    inputs = np.zeros([len(LINES), INPUTS], np.int32)
    for row, line in enumerate(LINES):
        ids = [*encode(line.split("\t")[0]), 1]
        inputs[row, : len(ids)] = ids
    rule = sampling.Sampling(1.0)
    drafter = drafters.Autoregressive(draft, rule)
    verifier, schedule = verifiers.Block(), schedules.Fixed(2)
    plan = specdec.Plan(target, drafter, verifier, schedule, rule, OUTPUTS)
    keys = specdec.row_keys(0, np.arange(len(LINES)))
    output = specdec.decode(params, keys, inputs, plan)
    for row, text in enumerate(records(tmp_path / "out.jsonl")):
        length = output.length[row]
        assert text["tokens"] == output.tokens[row, :length].tolist()
        np.testing.assert_allclose(text["log_probs"], output.log_probs[row, :length], atol=LOGITS)
        calls = text["calls"]
        assert calls == output.trace.calls[row]
        assert text["accepted"] == output.trace.accepted[row, :calls].tolist()
        explained_adds_up(text)


def test_a_pipe_gets_the_texts_and_nothing_else(decode, tmp_path):
    _, out, _ = decode()
    decode(f"--output_file={tmp_path / 'out.jsonl'}")
    texts = [terminal.one_line(t["prediction"]) for t in records(tmp_path / "out.jsonl")]
    assert out == "".join(f"{text}\n" for text in texts)


def test_a_terminal_gets_a_legend_and_each_text_with_marks_and_alone(decode, tmp_path):
    _, plain, _ = decode()
    _, coloured, _ = decode("--color=always", f"--output_file={tmp_path / 'out.jsonl'}")
    legend, *lines = re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines()
    assert "accepted" in legend and "\x1b[" in coloured
    texts = [line.split() for line in plain.splitlines()]
    inputs = [line.split("\t")[0] for line in LINES]
    assert (lines[::4], lines[1::4]) == ([""] * len(texts), inputs)
    assert [line.split() for line in lines[3::4]] == texts
    for trace, text in zip(lines[2::4], texts, strict=True):
        kept = re.sub(r"\[-.*?-\]|\{\+|\+\}", "", trace)
        assert "".join(kept.split()) == "".join(text).replace("\ufffd", "")
    assert len(records(tmp_path / "out.jsonl")) == len(LINES)


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {}])
def test_a_terminal_without_colours_has_marks(decode, monkeypatch, environment):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    out = decode("--limit=2")[1]
    assert ("\x1b[" in out) == (not environment)
    assert "{+" in out and out.startswith("drafted and accepted") == bool(environment)


def test_the_legend_is_there_before_the_bar(decode, monkeypatch):
    told = []
    begin = sinks.Bar.__enter__
    monkeypatch.setattr(sinks.Bar, "__enter__", lambda self: told.append("bar") or begin(self))
    legend = terminal.Painter.legend
    monkeypatch.setattr(
        terminal.Painter, "legend", lambda self: told.append("legend") or legend(self)
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    decode("--color=always", "--limit=1")
    assert told == ["legend", "bar"]


@pytest.mark.slow
def test_buckets_are_used_and_do_not_change_the_output(decode, tmp_path, monkeypatch):
    fetch, lengths = program.Program.fetch, []

    def noted(self, params, keys, inputs, **others):
        lengths.append(inputs.shape[1])
        return fetch(self, params, keys, inputs, **others)

    monkeypatch.setattr(program.Program, "fetch", noted)
    decode(f"--output_file={tmp_path / 'one.jsonl'}")
    assert lengths == [INPUTS] * 5
    decode("--gin.BUCKETS=(5, 8)", f"--output_file={tmp_path / 'buckets.jsonl'}")
    assert lengths[5:] == [5, INPUTS, 8, 5, 5]
    one, buckets = records(tmp_path / "one.jsonl"), records(tmp_path / "buckets.jsonl")
    assert [text["tokens"] for text in one] == [text["tokens"] for text in buckets]


def test_compare_counts_differences(decode, monkeypatch):
    class Other(program.DecodeProgram):
        def fetch(self, *arguments):
            output, seconds = super().fetch(*arguments)
            return output._replace(tokens=output.tokens + 1), seconds

    def decoder(plan, **options):
        return (program.DecodeProgram if plan.drafts else Other)(plan, **options)

    monkeypatch.setattr("specdec.engine.engine.DecodeProgram", decoder)
    assert "0 of 5 outputs identical" in decode("--compare")[2]


@pytest.mark.ci
def test_the_settings_in_force_repeat_the_run(decode, folder, tmp_path):
    first, again = tmp_path / "first.jsonl", tmp_path / "again.jsonl"
    decode(
        f"--output_file={first}",
        "--gin_file=sampling/temperature.gin",
        "--gin.TEMPERATURE=0.7",
        "--seed=5",
        "--limit=3",
    )
    settings = Path(f"{first}.gin").read_text()
    assert "TEMPERATURE = 0.7" in settings and "cli.Data.limit = 3" in settings
    code, _, err = decode(f"--output_file={again}", gin_file=f"{first}.gin")
    assert code == 0, err
    assert records(again) == records(first)


@pytest.fixture
def built(folder):
    """The run that gin files and bindings describe, without running it."""

    def build(*files, bindings=(), search_paths="."):
        files = [str(folder / "run.gin"), *map(str, files)]
        args = argparse.Namespace(
            gin_file=files,
            gin_bindings=list(bindings),
            gin_search_paths=search_paths,
            tfds_data_dir=None,
        )
        return cli.settings.build(cli.DecodeRun, args, {})

    return build


def test_later_files_and_flags_override(built, tmp_path):
    later = tmp_path / "later.gin"
    later.write_text("GAMMA = 3\n")
    assert built().plan.gamma == 2
    assert built(later).plan.gamma == 3
    assert built(later, bindings=["GAMMA=1"]).plan.gamma == 1
    assert built(bindings=["schedules.Fixed.gamma=5"]).plan.gamma == 5
    assert built(bindings=["SCHEDULE/schedules.Fixed.gamma=6"]).plan.gamma == 6
    assert built(bindings=["Data.batch_size=3", "GAMMA=4", "GAMMA=5"]).plan.gamma == 5


def test_search_paths(built, tmp_path):
    (tmp_path / "mine.gin").write_text("GAMMA = 7\n")
    with pytest.raises(cli.UsageError, match="mine.gin not found in ., "):
        built("mine.gin")
    assert built("mine.gin", search_paths=f".,{tmp_path}").plan.gamma == 7


def test_a_folder_with_the_name_of_a_fragment_is_no_package(built, tmp_path, monkeypatch):
    """Gin asks packages for a file as well; the folder of the tests themselves has such names."""
    (tmp_path / "verifiers").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert built("verifiers/coupled.gin").plan.verifier == verifiers.Coupled()


def test_an_installed_package_holds_its_gin_files(monkeypatch, tmp_path):
    package = tmp_path / "specdec"
    monkeypatch.setattr(resources, "__file__", str(package / "common" / "resources.py"))
    beside = [str(tmp_path / "gin"), str(tmp_path / "configs")]
    assert cli.settings._own_folders() == beside
    inside = [str(package / "_gin"), str(package / "_configs")]
    for folder in inside:
        Path(folder).mkdir(parents=True)
    assert cli.settings._own_folders() == inside


def test_a_registered_task_is_found_by_name(decode, folder):
    tasks.local_task("by_name", {"test": str(folder / "test.tsv")}, tasks.Bytes())
    code, out, err = decode("--gin.TASK='by_name'", "--limit=1")
    assert code == 0 and out.count("\n") == 1, err


@pytest.mark.ci
def test_programs_are_kept(decode, empty_cache):
    kept = f"--compilation_cache_dir={empty_cache}"
    decode("--limit=1", kept)
    programs = {
        entry.name for entry in empty_cache.iterdir() if entry.name.startswith("jit_decode")
    }
    assert programs
    decode("--limit=2", kept)
    assert programs == {e.name for e in empty_cache.iterdir() if e.name.startswith("jit_decode")}
    decode("--limit=1", "--compilation_cache_dir=")
    assert jax.config.jax_compilation_cache_dir is None


def test_ctrl_c_keeps_what_is_written(decode, tmp_path, monkeypatch):
    texts_of = TextEngine.decode

    def interrupted(*args, **kwargs):
        texts = texts_of(*args, **kwargs)
        yield next(texts)
        yield next(texts)
        raise KeyboardInterrupt

    monkeypatch.setattr(TextEngine, "decode", interrupted)
    code, _, err = decode(f"--output_file={tmp_path / 'out.jsonl'}")
    assert code == 130
    assert err.splitlines()[1].startswith("2 texts, ") and "Traceback" not in err
    assert err.splitlines()[-1] == "specdec: interrupted; given again, the command begins anew"
    assert len(records(tmp_path / "out.jsonl")) == 2


def the_line(code, out, err):
    """The one line of a mistake, after all that it must not come with."""
    assert code == 2 and out == ""
    (line,) = err.splitlines()
    assert line.startswith("specdec: ")
    return line


def test_traceback_on_request(decode):
    with pytest.raises(cli.UsageError):
        decode("--gin.GAMMA=0", "--traceback")


def test_an_unexpected_error_keeps_its_traceback(decode, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(checkpoints, "load", broken)
    with pytest.raises(ZeroDivisionError):
        decode()


@pytest.mark.ci
def test_a_reader_that_has_enough_is_no_error():
    program = """
import sys
from specdec import cli

class Endless:
    @staticmethod
    def add_command(subparsers):
        parser = subparsers.add_parser("endless")
        parser.set_defaults(command=lambda args: [print("x" * 9999) for _ in range(99)])
        return parser

cli.COMMANDS = {"test": (Endless,)}
sys.exit(cli.main(["endless"]))
"""
    pipe = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    pipe.stdout.close()
    err = pipe.stderr.read()
    assert pipe.wait() == 141 and err == b"", err
