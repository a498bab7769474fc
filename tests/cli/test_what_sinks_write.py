"""The output of each sink, for each combination of flags: pytest tests/cli/test_what_sinks_write.py

The texts are made here, so no model runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from specdec.cli import sinks
from specdec.common.values import UsageError
from specdec.tasks.media import Spoken
from specdec.tasks.plain import PlainBytes
from specdec.texts.beam_texts import BeamText
from specdec.texts.beams import Beams
from specdec.texts.decoding_texts import Text
from specdec.texts.texts import Data, TextList, TextStream

LENGTHS = {"inputs": 64, "targets": 8}
SEGMENTS: list[Any] = [
    {"start": 0.0, "end": 1.01, "text": " one\ntwo"},
    {"start": 4.02, "end": 8.04, "text": " three"},
]
SRT = "1\n00:00:00,000 --> 00:00:01,010\none two\n\n2\n00:00:04,020 --> 00:00:08,040\nthree\n"


def text(index: int = 0, said: str = " one\ntwo three", **fields: Any) -> Text:
    made = {"tokens": [4, 5, 6, 1], "drafted": [2, 2], "accepted": [1, 1], "log_probs": [-0.5] * 4}
    made |= {"proposed": [[4, 9], [6, 8]], "sample": 0, "input": "in", "target": None}
    return Text(index=index, prediction=said, **made | fields)


def arguments(**flags: Any) -> argparse.Namespace:
    none = {"output_file": None, "subtitles": None, "quantiles": None, "color": "auto"}
    return argparse.Namespace(**none | flags)


def run(texts: Any = None, sound: bool = True, **fields: Any) -> Any:
    """A run of given texts, by default of one, with a drafter."""
    texts = texts or TextList([("a.wav", None)])
    given_sizes = ("num_samples", "batch_size")
    sizes = {name: fields.pop(name) for name in given_sizes if name in fields}
    vocabulary = Spoken(PlainBytes(0)) if sound else PlainBytes(0)
    names = {4: "g", 5: "a ", 6: "b", 8: "x", 9: "y", 1: ""}
    engine = types.SimpleNamespace(
        vocabulary=vocabulary,
        prefix=fields.pop("prefix", ()),
        text_of=lambda tokens, source: "".join(names[token] for token in tokens),
    )
    made = {"beams": Beams(), "transcriber": None, "plan": types.SimpleNamespace(drafts=True)}
    data = Data(None, "", LENGTHS, texts, **sizes)
    return types.SimpleNamespace(**{"engine": engine, "data": data} | made | fields)


@pytest.fixture
def shown(monkeypatch, capsys):
    """Writes texts to the sinks of some flags; returns what was printed."""
    monkeypatch.setattr(sinks.runs, "in_force", lambda run, command: f"# {command}\n")

    def show(args: argparse.Namespace, of: Any, *texts: Any, tty: bool = False) -> str:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: tty, raising=False)
        with sinks.opened(args, of) as sink:
            for one in texts:
                sink.write(one)
        return capsys.readouterr().out

    return show


@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("subtitles", [False, True])
@pytest.mark.parametrize("output_file", [False, True])
def test_a_pipe_gets_texts_that_no_file_gets(shown, tmp_path, output_file, subtitles, tty):
    """A terminal gets them anyway. Each file that is asked for has them."""
    lines, srt = tmp_path / "out.jsonl", tmp_path / "a.srt"
    args = arguments(
        output_file=str(lines) if output_file else None, subtitles=str(srt) if subtitles else None
    )
    one = text(segments=SEGMENTS)
    plain = run(plan=types.SimpleNamespace(drafts=False))
    printed = shown(args, plain, one, tty=tty)
    wanted = tty or not (output_file or subtitles)
    assert printed == (" one two three\n" if wanted else "")
    assert lines.exists() == output_file and srt.exists() == subtitles
    if output_file:
        assert [json.loads(x) for x in lines.read_text().splitlines()] == [one.record()]
        assert Path(f"{lines}.gin").read_text() == "# decode\n"
    if subtitles:
        assert srt.read_text() == SRT


@pytest.mark.parametrize(
    "texts, fields",
    [
        (TextList([("a.wav", None), ("b.wav", None)]), {}),
        (TextList([("a.wav", None)]), {"num_samples": 2}),
        (TextList([("a.wav", None)]), {"sound": False}),
        (TextStream([("a.wav", None)]), {}),
    ],
)
def test_subtitles_are_of_one_transcript(shown, tmp_path, texts, fields):
    args = arguments(subtitles=str(tmp_path / "a.srt"))
    says = "a.srt is for one transcript of one sound; give one --text, or leave it out"
    with pytest.raises(UsageError, match=says):
        shown(args, run(texts, **fields))


def test_each_series_has_quantiles_of_its_own_samples(capsys):
    """Samples of two series that come in turn; a line is printed with the last of a series."""
    sink = sinks.Quantiles([0.25, 0.5], samples=3)
    for index, values in [(0, "0, 10"), (1, "5, 5"), (0, "4, 30"), (1, "7, 1"), (0, "8, 20")]:
        sink.write(text(index, values))
    assert json.loads(capsys.readouterr().out) == {"0.25": [2.0, 15.0], "0.5": [4.0, 20.0]}
    sink.write(text(1, "6, 3"))
    assert json.loads(capsys.readouterr().out) == {"0.25": [5.5, 2.0], "0.5": [6.0, 3.0]}


def beam_text() -> BeamText:
    tokens = ((4, 1), (5, 1))
    return BeamText(0, "in", None, ("one", "two\n"), tokens, (-0.25, -12.5), steps=2, calls=1)


@pytest.mark.parametrize("output_file", [False, True])
@pytest.mark.parametrize("tty", [False, True])
def test_beams_have_their_scores_on_a_terminal(shown, tmp_path, tty, output_file):
    path = tmp_path / "out"
    args = arguments(output_file=str(path) if output_file else None)
    searched = run(sound=False, beams=Beams(2, 2))
    printed = shown(args, searched, beam_text(), tty=tty)
    scored = "  -0.2500  one\n -12.5000  two \n"
    assert printed == (scored if tty else "" if output_file else "one\ntwo \n")
    if output_file:
        assert Path(f"{path}.gin").read_text() == "# beams\n"


@pytest.mark.parametrize(
    "prefix, first", [((), "g"), ((4,), "<g>")], ids=["no prefix", "the first token is given"]
)
def test_words_on_a_terminal_have_their_origin(shown, monkeypatch, prefix, first):
    """Drafted and kept "g", own "a ", drafted and kept "b", own "": marks stand for colours."""
    monkeypatch.setenv("NO_COLOR", "1")
    drafts = {"drafted": [1, 2], "accepted": [1, 1], "proposed": [[4, 0], [6, 8]]}
    if prefix:
        drafts = {"drafted": [1, 2], "accepted": [0, 1], "proposed": [[9, 0], [6, 8]]}
    shown_run = run(sound=False, prefix=prefix, batch_size=2)
    printed = shown(arguments(), shown_run, text(said="ga b", **drafts), tty=True)
    marks = "drafted and accepted, {+the target's own+}, [-drafted and rejected-]"
    marks += ", <given>" if prefix else ""
    words = f"{first}{'[-y-]' if prefix else ''}{{+a+}} b[-x-]"
    assert printed == f"{marks}\n\nin\n{words}\n    ga b\n"


def test_what_several_windows_threw_away_is_not_shown(shown):
    one = text(segments=SEGMENTS)
    assert shown(arguments(), run(), one, tty=True).split("\n")[1:] == [" one two three", ""]
    empty = text(said="", segments=[])
    assert shown(arguments(), run(), empty, tty=True).split("\n")[1:] == ["", ""]


@pytest.mark.parametrize(
    "count, limit, samples, total",
    [
        (7, None, 1, 7),
        (7, 5, 1, 5),
        (3, 5, 2, 6),
        (7, 5, 2, 10),
        (None, 5, 2, 10),
        (None, None, 2, None),
    ],
)
def test_a_bar_counts_all_samples(monkeypatch, count, limit, samples, total):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(Data, "count", lambda self: count)
    task = types.SimpleNamespace(num_input_examples=lambda split: count)
    data = Data(task, "test", LENGTHS, limit=limit, num_samples=samples)
    bar = sinks.Bar.of(arguments(), types.SimpleNamespace(data=data, beams=None))  # type: ignore
    assert bar is not None
    with bar:
        assert bar._bar.total == total
        bar.write(text())
        assert bar._bar.n == 1


@pytest.mark.parametrize(
    "output_file, batch_size, watched", [(None, 1, True), ("out", 1, False), (None, 2, False)]
)
def test_a_text_is_watched_where_nothing_else_is_written(
    monkeypatch, tmp_path, output_file, batch_size, watched
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    painted_run = run(sound=False)
    data = Data(None, "", LENGTHS, painted_run.data.texts, batch_size=batch_size)
    painted_run.data = data
    sink = sinks.Painted.of(arguments(output_file=output_file), painted_run)
    assert sink is not None and (sink.watch is sink) == watched


# What is given.
