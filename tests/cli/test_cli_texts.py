"""Texts in and out of the command line, and `specdec score`: pytest tests/cli/test_cli_texts.py"""

import io
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import check_lines
from tolerances import LOGITS, SMALL_LOGITS
from yard import LINES, records

import specdec
from specdec import checkpoints, cli, tasks
from specdec.cli import given, score
from specdec.common import terminal
from specdec.models.t5 import T5Target

TEXTS = [line.split("\t")[0] for line in LINES]
# Sizes of the run in test_cli, whose compiled programs serve here as well.
SIZES = [
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 8}",
    "--gin.BUCKETS=()",
    "--gin.GAMMA=2",
]


@pytest.fixture
def command(folder, cache, capsys):
    """Runs a command on the two checkpoints, without a gin file."""

    def run(name, *flags, draft=True):
        capsys.readouterr()
        pair = [f"--target={folder / 'target'}", "--vocabulary=bytes", *SIZES]
        pair += [f"--draft={folder / 'draft'}"] * draft
        code = cli.main([name, f"--compilation_cache_dir={cache}", *pair, *flags])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def expected(decode):
    """stdout of the run of gin files over the same texts."""
    return decode()[1]


def test_texts_of_flags(command, expected):
    assert command("decode", *(f"--text={text}" for text in TEXTS))[:2] == (0, expected)


def test_texts_of_standard_input(command, expected, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{text}\n" for text in TEXTS)))
    assert command("decode")[:2] == (0, expected)


def test_a_line_of_standard_input_is_answered_before_the_next_is_read(
    command, monkeypatch, tmp_path
):
    path = tmp_path / "out.jsonl"

    class Typist(io.StringIO):
        def __iter__(self):
            for number, text in enumerate(TEXTS):
                assert not number or len(records(path)) == number
                yield f"{text}\n"

    monkeypatch.setattr("sys.stdin", Typist())
    assert command("decode", f"--output_file={path}")[0] == 0
    assert len(records(path)) == len(TEXTS)


def test_without_a_drafter_the_target_is_alone(command, expected):
    code, out, err = command("decode", *(f"--text={text}" for text in TEXTS), draft=False)
    assert (code, out) == (0, expected)
    assert "the target alone, Greedy()" in err and "1.00 tokens per call" in err
    assert "alpha" not in err


@pytest.mark.ci
def test_what_is_streamed_is_the_line_that_is_printed_at_once(command, decode, monkeypatch):
    whole = decode("--color=always")[1]
    shown = []
    show = terminal.Painter.show
    monkeypatch.setattr(
        "specdec.common.terminal.Painter.show",
        lambda self, *row: shown.append(row) or show(self, *row),
    )
    code, out, err = command("decode", "--color=always", *(f"--text={text}" for text in TEXTS))
    assert (code, plain(out)) == (0, plain(whole))
    calls = int(err.split(" target calls")[0].split()[-1])
    assert len(shown) == calls + len(TEXTS)  # after each call, and at the end


def plain(out):
    """Characters with their colours: a run of one colour may come in one piece or in two."""
    styled, style = [], ""
    for part in out.split("\x1b["):
        code, _, text = (
            part.partition("m") if "\x1b[" in out and part[:1].isdigit() else ("", "", part)
        )
        style = code
        styled += [(character, style) for character in text if character != " "]
    return styled


@pytest.mark.ci
def test_a_prefix(command, tmp_path):
    path = tmp_path / "out.jsonl"
    code, _, err = command("decode", "--text=one", "--decoder_prefix=ab", f"--output_file={path}")
    (text,) = records(path)
    assert code == 0 and text["prediction"].startswith("ab")
    assert text["tokens"][:2] == tasks.Bytes().load().encode("ab")
    assert len(text["log_probs"]) == len(text["tokens"])
    calls, added = text["calls"], len(text["tokens"]) - 2
    assert f"{added} tokens, {calls} target calls" in err
    alone = command("decode", "--text=one", "--decoder_prefix=ab", draft=False)[1]
    assert alone.rstrip("\n") == text["prediction"]
    coloured = command("decode", "--text=one", "--decoder_prefix=ab", "--color=always")[1]
    assert "\x1b[4m<given>\x1b[0m" in coloured and "\x1b[4m<ab>\x1b[0m" in coloured


@pytest.mark.ci
def test_samples(command, folder, tmp_path, monkeypatch):
    read, prefill = [], T5Target.prefill

    def counted(*given):
        jax.debug.callback(lambda: read.append(1))
        return prefill(*given)

    monkeypatch.setattr(T5Target, "prefill", counted)
    path = tmp_path / "out.jsonl"
    flags = ["--gin_file=sampling/temperature.gin", "--gin_file=verifiers/coupled.gin", "--seed=4"]
    command("decode", "--text=one", "--num_samples=3", f"--output_file={path}", *flags)
    texts = records(path)
    assert [(text["index"], text["sample"]) for text in texts] == [(0, 0), (0, 1), (0, 2)]
    assert len(read) == 2, "all samples share one prefill of each model"
    target = T5Target(checkpoints.config_from(folder / "target"))
    inputs = np.zeros([1, 16], np.int32)
    inputs[0, :4] = [*tasks.Bytes().load().encode("one"), 1]
    for sample, text in enumerate(texts):
        output = specdec.autoregressive_decode(
            checkpoints.load(folder / "target"),
            specdec.row_keys(4, jnp.array([0]), sample),
            jnp.asarray(inputs),
            target=target,
            sampling=specdec.sampling.Sampling(),
            max_length=8,
        )
        assert text["tokens"] == output.tokens[0, : output.length[0]].tolist()


@pytest.mark.ci
def test_score(command, decode, folder, tmp_path):
    path, pairs = tmp_path / "out.jsonl", tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{line}\n" for line in LINES[:1] + LINES[2:]), encoding="utf-8")
    code, out, err = command("score", f"--pairs={pairs}", f"--output_file={path}", draft=False)
    assert (code, out) == (0, "")
    check_lines("score", path)
    target = T5Target(checkpoints.config_from(folder / "target"))
    encode = tasks.Bytes().load().encode
    for line, record in zip(LINES[:1] + LINES[2:], records(path), strict=True):
        text, output = line.split("\t")
        assert (record["input"], record["target"]) == (text, output)
        assert record["tokens"] == [*encode(output), 1]
        inputs, targets = (jnp.array([[*encode(side), 1]]) for side in (text, output))
        log_probs = specdec.score(
            checkpoints.load(folder / "target"), inputs, targets, target=target
        )
        np.testing.assert_allclose(record["log_probs"], log_probs[0], rtol=0, atol=SMALL_LOGITS)
        np.testing.assert_allclose(record["log_prob"], log_probs.sum(), rtol=0, atol=LOGITS)
    tokens = sum(len(record["tokens"]) for record in records(path))
    assert err.startswith(f"{tokens} tokens, ")


def test_score_under_the_runs_sampling(command, tmp_path):
    """null is a token that it excludes: JSON has no infinity."""
    pairs, path = tmp_path / "pairs.tsv", tmp_path / "scores.jsonl"
    pairs.write_text("ab\txyxyxy\n", encoding="utf-8")
    flags = (f"--pairs={pairs}", f"--output_file={path}", "--no_repeat_ngram_size=2")
    code, _, err = command("score", *flags, draft=False)
    assert code == 0, err
    check_lines("score", path)
    (line,) = records(path)
    assert None not in line["log_probs"] and line["processed_log_prob"] is None
    # x y x y x y: the second y is the first one that makes two tokens come twice.
    assert [x is None for x in line["processed_log_probs"][:4]] == [False, False, False, True]
    assert line["processed_log_probs"][0] == pytest.approx(line["log_probs"][0], abs=SMALL_LOGITS)


def test_score_of_a_task_in_lines(folder, cache, capsys):
    flags = [f"--gin_file={folder / 'run.gin'}", f"--compilation_cache_dir={cache}", "--limit=1"]
    assert cli.main(["score", *flags]) == 0
    value, tokens, output = capsys.readouterr().out.rstrip("\n").split("\t")
    assert float(value) < 0 and (tokens, output) == ("5", "eins")


LINES_OF_OTHERS = b"\xef\xbb\xbfthe cook\r\na\rb\r\n\xef\xbb\xbf\n\r\nlast\r"
TEXTS_OF_OTHERS = ["the cook", "a b", "\ufeff", "", "last"]


def test_lines_of_other_systems_on_standard_input(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(LINES_OF_OTHERS), "utf-8")
    assert list(given.lines_of(None, stream)) == TEXTS_OF_OTHERS
    assert list(given.lines_of(None, stream)) == []  # given a second time
    assert list(given.lines_of(None, io.StringIO(LINES_OF_OTHERS.decode()))) == TEXTS_OF_OTHERS


def test_lines_of_other_systems_in_pairs(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_bytes(b"\xef\xbb\xbfa\tb\r\nc\rd\te\n")
    assert list(score._pairs(str(file))) == [("a", "b"), ("c d", "e")]


@pytest.mark.parametrize(
    "text, expected",
    [("\ufeffa\r\nb\r", "a\nb"), ("a\rb", "a b"), ("a\nb", "a\nb"), ("a\n", "a\n"), ("", "")],
)
def test_line_ends_in_a_flag(text, expected):
    assert given.utf8(text) == expected


@pytest.mark.ci
def test_previous_outputs_draft(command, expected, tmp_path, decode):
    """Drafts from a file of texts, from an earlier output, and from that before a draft model."""
    path = tmp_path / "old.jsonl"
    decode(f"--output_file={path}")
    (tmp_path / "old.txt").write_text("\n" + expected.split("\n", 1)[1])
    texts = [f"--text={text}" for text in TEXTS]
    calls = {}
    for name, draft in (("old.jsonl", False), ("old.txt", False), ("old.jsonl", True)):
        given = f"--previous={tmp_path / name}"
        code, out, err = command("decode", given, *texts, draft=draft)
        assert (code, out) == (0, expected), err
        assert ("Hybrid, Fixed" if draft else "PreviousOutput, Fixed") in err
        calls[name, draft] = int(re.search(r"(\d+) target calls", err).group(1))
    tokens = sum(len(record["tokens"]) for record in records(path))
    assert calls["old.jsonl", False] == calls["old.jsonl", True] <= -(-tokens // 3) + len(TEXTS)
    assert calls["old.txt", False] < tokens


@pytest.mark.ci
def test_a_live_text_is_drafted_from_its_last_version(command, expected, monkeypatch):
    """The same version twice: the second takes a call for every three tokens."""
    twice = "".join(f"{TEXTS[0]}\n" for _ in range(2))
    monkeypatch.setattr("sys.stdin", io.StringIO(twice))
    code, out, err = command("decode", "--live", "--compare", draft=False)
    first = expected.splitlines(keepends=True)[0]
    assert (code, out) == (0, 2 * first)
    tokens, calls = map(int, re.search(r"(\d+) tokens, (\d+) target calls", err).groups())
    assert calls == tokens // 2 + -(-(tokens // 2) // 3)
    assert "all 2 outputs identical" in err
