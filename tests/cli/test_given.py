"""Texts and previous outputs of flags and files, word by word: pytest tests/cli/test_given.py"""

from __future__ import annotations

import io
import itertools
from types import SimpleNamespace

import pytest

from specdec.cli import given
from specdec.common.values import UsageError
from specdec.texts.texts import Data, TextList


def flags(**others) -> SimpleNamespace:
    fields = {"reads_stdin": True, "text": None, "target": "a", "distributed": None}
    fields |= {"live": False, "previous": None, "task_prefix": None}
    return SimpleNamespace(**fields | others)


def data(**others) -> Data:
    return Data(None, "test", {"inputs": 8, "targets": 8}, **others)


def test_previous_outputs_of_a_file(tmp_path):
    """The first line of an index counts; texts without one have none."""
    lines, texts = tmp_path / "old.jsonl", tmp_path / "old.txt"
    lines.write_text('{"index": 2, "tokens": [5]}\n{"index": 0, "tokens": [3, 4]}\n')
    with lines.open("a") as file:
        file.write('{"index": 2, "tokens": [6, 7]}\n')
    _, previous = given.filled(flags(previous=str(lines)), data())
    assert previous.name == f"--previous {lines}" and previous.outputs == [[3, 4], (), [5]]
    texts.write_text("one\n\ntwo\n")
    assert given.filled(flags(previous=str(texts)), data())[1].outputs == ["one", "", "two"]
    with lines.open("a") as file:
        file.write('{"index": 1}\n')
    with pytest.raises(
        UsageError,
        match="old.jsonl, line 4 is no such JSON object: object missing required field tokens; ",
    ):
        given.filled(flags(previous=str(lines)), data())
    lines.write_text("")
    assert given.filled(flags(previous=str(lines)), data())[1].outputs == []


def test_standard_input_is_read_where_nothing_else_is_given(monkeypatch):
    """Or where --text=- says so, among other texts; a prefix is put before each."""

    def texts(own: Data, **others) -> list:
        monkeypatch.setattr("sys.stdin", io.StringIO("b\r\nc\n"))
        return list(given.filled(flags(**others), own)[0].texts or ())

    own = data(texts=TextList([("own", None)]))
    assert texts(data()) == [("b", None), ("c", None)]
    assert texts(own) == [("own", None)]
    assert texts(own, reads_stdin=False) == [("own", None)]
    assert texts(data(), target=None) == []
    assert texts(own, text=["a", "-", "d"], task_prefix="p: ") == [
        ("p: a", None),
        ("p: b", None),
        ("p: c", None),
        ("p: d", None),
    ]
    with pytest.raises(UsageError, match="--distributed: standard input is that of one host"):
        texts(data(), distributed=2)
    assert texts(own, distributed=2) == [("own", None)]
    assert given.filled(flags(live=True, text=["a"]), own)[1].name == "--live"
    assert given.filled(flags(live=True, reads_stdin=False), own)[1] is None


def test_a_terminal_is_told_how_to_end(monkeypatch, capsys):
    stdin = io.StringIO("a\n")
    for is_terminal, said in ((True, "one text per line; Ctrl-D ends\n"), (False, "")):
        stdin.seek(0)
        monkeypatch.setattr(stdin, "isatty", lambda value=is_terminal: value)
        monkeypatch.setattr("sys.stdin", stdin)
        assert list(given.filled(flags(), data())[0].texts) == [("a", None)]
        assert capsys.readouterr().err == said


def test_texts_of_a_file_have_references_or_none(tmp_path):
    file = tmp_path / "x.tsv"
    for text, pairs in {
        "a\tb\nc\td\n": [("p a", "b"), ("p c", "d")],
        "a\n\nc\n": [("p a", None), ("p ", None), ("p c", None)],
    }.items():
        file.write_text(text)
        assert list(given.given_texts(str(file), (), "p ")) == pairs
    for text, says in {
        "a\tb\nc\n": "line 2 has 0 TABs and the first line 1",
        "a\nc\td\n": "line 2 has 1 TABs and the first line 0",
        "a\tb\tc\n": "line 1 has 2 TABs and the first line 2",
    }.items():
        file.write_text(text)
        with pytest.raises(UsageError, match=f"--input_file {file}, {says}; give inputs alone"):
            given.given_texts(str(file))
    file.write_text("")
    with pytest.raises(UsageError, match=f"--input_file {file} has nothing in it; give one text"):
        given.given_texts(str(file))
    assert given.given_texts() is None
    assert list(given.given_texts(None, ("a", "b"))) == [("a", None), ("b", None)]


def test_lines_are_read_as_they_come():
    """Nothing is read beyond the first line before it is asked for."""
    lines = (f"{number}\n" for number in itertools.count())
    texts = given.not_nothing(given.lines_of(None, lines), "x", "y")  # type: ignore[arg-type]
    assert list(itertools.islice(texts, 3)) == ["0", "1", "2"] and next(lines) == "3\n"
    bad = iter(["a\n", "\udcff\n"])
    with pytest.raises(UsageError, match="line 2 or near it, is not UTF-8; convert it"):
        list(given.lines_of("--x", bad, "f"))  # type: ignore[arg-type]
