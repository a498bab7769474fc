"""`specdec decode`, in process, on tiny random models and bytes: pytest tests/cli/test_cli.py"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from support import check_lines
from yard import LINES, records

from specdec import checkpoints, cli, tasks, verifiers
from specdec.cli import gin_files, sinks
from specdec.common import resources, terminal
from specdec.decoding import program
from specdec.texts.text_engine import TextEngine

ROOT = Path(__file__).resolve().parents[2]
INPUTS, OUTPUTS = 16, 8


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
    assert [str(path) for path in gin_files.own_folders()] == beside
    inside = [str(package / "_gin"), str(package / "_configs")]
    for folder in inside:
        Path(folder).mkdir(parents=True)
    assert [str(path) for path in gin_files.own_folders()] == inside
    for folder in (*inside, tmp_path):
        (file := Path(folder) / "some.gin").touch()
        found = gin_files.path_of("some.gin", [str(folder)])
        assert found == str(file) and isinstance(found, gin_files.Own) == (folder != tmp_path)


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
    assert err.splitlines()[-1] == "specdec: interrupted; if repeated, the command starts over"
    assert len(records(tmp_path / "out.jsonl")) == 2


def test_traceback_on_request(decode):
    with pytest.raises(cli.UsageError):
        decode("--gin.GAMMA=0", "--traceback")


def test_an_unexpected_error_keeps_its_traceback(decode, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(checkpoints, "load", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        decode()


@pytest.mark.slow
def test_multi30k_as_its_header_says(capsys, cache, shared, monkeypatch):
    monkeypatch.chdir(ROOT)
    code = cli.main(
        [
            "decode",
            "--gin_file=configs/multi30k.gin",
            f"--compilation_cache_dir={cache}",
            "--limit=20",
            "--gin.BATCH_SIZE=4",
            "--compare",
        ]
    )
    out, err = capsys.readouterr()
    assert code == 0
    assert out.splitlines()[0] == "Ein Mann mit einem orangefarbenen Hut starrt auf etwas."
    assert "all 20 outputs identical" in err


@pytest.mark.ci
def test_a_reader_that_has_enough_is_no_error():
    program = """
import sys
from specdec import cli

class Endless:
    @staticmethod
    def command(args):
        for _ in range(99):
            print("x" * 9999)

cli.COMMANDS = {"check": Endless}
sys.exit(cli.main(["check", "DIR"]))
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
