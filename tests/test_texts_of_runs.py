"""Lines and figures of decoded texts, worked out by hand: pytest tests/test_texts_of_runs.py"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from specdec.common import hosts, terminal
from specdec.common.values import UsageError
from specdec.decoding.beam_rules import T5XBeams
from specdec.decoding.beam_search import BeamOutput
from specdec.models.partitioning import Share
from specdec.texts import (
    beam_texts,
    beams,
    decoding_texts,
    measured_run,
    sources,
)
from specdec.texts.beam_texts import BeamSummary, BeamText
from specdec.texts.beams import Beams
from specdec.texts.decoding_texts import Text
from specdec.texts.text_engine import gathered
from specdec.texts.texts import Previous, TextList, TextStream
from specdec.types import DecodeOutput, Trace


def spelled(vocabulary, ids, source):
    return f"{vocabulary} {source} {' '.join(map(str, ids))}"


@pytest.fixture(autouse=True)
def detokenize(monkeypatch):
    """Texts are their ids."""
    for module in (beam_texts, decoding_texts):
        monkeypatch.setattr(module.tasks, "detokenize", spelled)


BATCH = SimpleNamespace(
    inputs=None, index=np.array([8, 9]), input_texts=["x", "y"], target_texts=["X", "Y"]
)


def trace(calls):
    """The calls of two rows."""
    fields = dict.fromkeys(field.name for field in dataclasses.fields(Trace))
    numbers = np.array([[1, 0, 2], [3, 2, 1]])
    fields |= {"calls": np.array(calls), "drafted": numbers, "accepted": numbers - (numbers > 1)}
    return Trace(**fields | {"broken_drafts": np.array([0, 2])})


def decoded(tokens, calls) -> DecodeOutput:
    lengths = np.array([len(row) for row in tokens])
    padded = np.array([[*row, *[0] * (5 - len(row))] for row in tokens])
    log_probs = -np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]) / 3
    return DecodeOutput(padded, lengths, log_probs.astype(np.float32), trace(calls))


def test_a_text_has_its_own_row():
    output, alone = decoded([[4, 5], [6, 7, 8]], [1, 3]), decoded([[4, 5], [6, 7]], [2, 3])
    text = Text.row(BATCH, 1, output, alone, "V", sample=3)
    assert text.record() == {
        "index": 9,
        "sample": 3,
        "input": "y",
        "target": "Y",
        "prediction": "V y 6 7 8",
        "tokens": [6, 7, 8],
        "log_probs": [-2.0, -2.333333, -2.666667],
        "drafted": [3, 2, 1],
        "accepted": [2, 1, 1],
        "alone": "V y 6 7",
        "alone_tokens": [6, 7],
        "calls": 3,
    }
    assert text.alone_calls == 3 and text.broken_drafts == 2
    same = Text.row(BATCH, 0, output, alone, "V", sample=0)
    assert (same.target, same.tokens, same.drafted, same.calls) == ("X", [4, 5], [1], 1)
    summary = terminal.Summary()
    for one in (text, same):
        one.count_in(summary, 1)
    assert dataclasses.asdict(summary) == dataclasses.asdict(
        terminal.Summary(
            texts=2,
            tokens=3,
            drafted=[3, 2, 1, 1],
            accepted=[2, 1, 1, 1],
            broken_drafts=2,
            identical=1,
            baseline_calls=5,
        )
    )
    batch = SimpleNamespace(**vars(BATCH) | {"target_texts": None})
    plain = Text.row(batch, 0, output, None, "V", sample=0)
    assert not {"target", "alone", "alone_tokens"} & plain.record().keys()
    assert plain.alone_calls == 0
    plain.count_in(whole := terminal.Summary())
    assert whole.tokens == 2


def searched(tokens) -> BeamOutput:
    """Three beams of two texts; the last beam of the first text is empty."""
    lengths = np.array([[2, 1, 0], [1, 2, 2]])
    scores = -np.array([[1, 2, 9], [3, 4, 5]], np.float32) / 3
    steps = SimpleNamespace(steps=np.array([[2, 0], [2, 3]]), calls=np.array([1, 4]))
    return BeamOutput(np.array(tokens), lengths, scores, lengths > 0, steps)


def test_beams_have_their_own_row():
    found = [[[4, 5], [6, 0], [0, 0]], [[7, 0], [8, 9], [1, 2]]]
    other = [[[4, 5], [6, 0], [0, 0]], [[7, 0], [8, 9], [1, 3]]]
    first = BeamText.row(BATCH, 0, searched(found), searched(other), "V", 3)
    assert first.same and first.record() == {
        "index": 8,
        "input": "x",
        "target": "X",
        "predictions": ("V x 4 5", "V x 6"),
        "tokens": ((4, 5), (6,)),
        "scores": (-0.333333, -0.666667),
        "steps": 2,
        "calls": 1,
        "alone": ("V x 4 5", "V x 6"),
        "alone_tokens": ((4, 5), (6,)),
    }
    second = BeamText.row(BATCH, 1, searched(found), searched(other), "V", 2)
    assert not second.same  # its third beam differs, which is not kept
    assert second.tokens == second.alone_tokens == ((7,), (8, 9))
    assert second.scores == (-1.0, -1.333333) and (second.steps, second.calls) == (5, 4)
    summary = BeamSummary(compared=True, seconds=1.26, compile_seconds=2.0, baseline_seconds=3.75)
    for one in (first, second):
        one.count_in(summary)
    assert summary.lines() == [
        "2 texts, 7 steps of the search in 5 target calls, 1.40 steps per call",
        "1.3 s searching, 2.0 s compiling",
        "1 of 2 with the beams of the target alone, which took 3.8 s",
    ]
    summary = BeamSummary()
    BeamText.row(BATCH, 0, searched(found), None, "V", 3).count_in(summary)
    assert summary.lines({"decoding": 1.0, "other": 0.25})[0].startswith("1 text, 2 steps")
    assert summary.lines()[1:] == ["0.0 s searching, 0.0 s compiling"] and not summary.identical
    summary.compared = True
    assert summary.lines()[2].endswith(
        "0 of 1 with the beams of the target alone, which took 0.0 s"
    )


def test_closing_lines_word_by_word():
    one = terminal.Summary(2, 9, [2, 2, 0], [2, 1, 0], [4, 6, 5], 2.0, 3.0, 0, 1, True, 9, 5.0)
    assert one.lines() == [
        "2 texts, 9 tokens, 3 target calls: 3.00 tokens per call, alpha 0.750, 5.00 layers of the "
        "target a call",
        "2.0 s decoding, 3.0 s compiling",
        "3 target calls instead of 9, 2.50 times as fast as the target alone (5.0 s)",
        "1 of 2 outputs identical to the target's",
    ]
    assert terminal.whole({terminal.OTHER: 0.25, "decoding": 1.04, "loading": 0.04}) == (
        f"1.2 s: 1.0 s decoding, 0.2 s {terminal.OTHER}"
    )


def test_the_first_host_has_the_texts_of_all_in_order(monkeypatch):
    sent = []
    monkeypatch.setattr(hosts, "exchanged", lambda own: sent.append(own) or [own, [3, 0]])
    monkeypatch.setattr(hosts, "is_first", lambda: True)
    assert list(gathered([[2, 1], [5]], feeds=True, order=lambda x: (x,))) == [
        [0, 1, 2, 3],
        [0, 3, 5],
    ]
    assert list(gathered([[2, 1]], feeds=False, order=lambda x: (-x,))) == [[3, 0]]
    monkeypatch.setattr(hosts, "is_first", lambda: False)
    assert list(gathered([[2, 1]], feeds=True, order=lambda x: (x,))) == []
    assert sent == [[2, 1], [5], [], [2, 1]]


def test_a_first_batch_is_read_once(monkeypatch):
    read: list[int] = []
    batches = (read.append(width) or SimpleNamespace(ids=np.zeros([2, width])) for width in (4, 5))
    given = sources.Source(batches)
    assert given.length() == given.length() == 4 and read == [4]
    assert [batch.ids.shape[1] for batch in given] == [4, 5]
    assert sources.Source(iter(())).length() is None


def test_a_host_feeds_its_own_rows_unless_those_of_all_are_asked_for():
    asked: list = []
    placement = SimpleNamespace(share=lambda: Share(1, 2), mesh="a mesh")
    plan = SimpleNamespace(target="T", max_length=9)
    engine = SimpleNamespace(placement=placement, vocabulary="V", plan=plan)
    own = SimpleNamespace(batch_size=4, texts=None, source=lambda *given: asked.append(given))
    run = measured_run.Run(engine, own)  # type: ignore[arg-type]
    run.source()
    run.source(everywhere=True)
    assert asked == [(Share(1, 2), 2, "V", "T"), (Share(0, 1), 4, "V", "T")]


def spoken(texts, stamps=False, **others) -> measured_run.Run:
    """A run of sounds, of which those of one window begin with s."""
    data = SimpleNamespace(texts=texts, limit=2, refill=False)
    engine = SimpleNamespace(vocabulary="sound", stamps=stamps)
    return measured_run.Run(engine, data, **others)  # type: ignore[arg-type]


@pytest.fixture
def sounds(monkeypatch):
    monkeypatch.setattr(measured_run.tasks, "is_sound", lambda vocabulary: vocabulary == "sound")
    fits = lambda name, frames: name.startswith("s") and frames == 100  # noqa: E731
    monkeypatch.setattr(measured_run.tasks, "fits_window", fits)
    monkeypatch.setattr(measured_run, "frames_of", lambda engine: 100)
    monkeypatch.setattr(measured_run, "has_timestamps", lambda engine: engine.stamps)
    monkeypatch.setattr(measured_run, "Transcriber", lambda engine, several: ("made", several))


def test_sounds_of_several_windows_are_transcribed(sounds):
    """So are those that come one by one, and all whose transcripts have timestamps."""
    short, long = TextList([("s", None), ("s", None), ("l", None)]), TextList([("l", None)])
    stream = TextStream([("l", None)])
    for run, made in (
        (spoken(short), None),  # the third is beyond the limit
        (spoken(long), ("made", True)),
        (spoken(short, stamps=True), ("made", True)),
        (spoken(stream), ("made", False)),
        (spoken(stream, stamps=True), ("made", True)),
        (spoken(None), None),
    ):
        assert run.transcribing().transcriber == made
    other = spoken(long)
    other.engine.vocabulary = "text"
    assert other.transcribing() is other


def test_what_is_for_sounds_of_one_window_is_refused_by_name(sounds, monkeypatch):
    stream, long = TextStream([("l", None)]), TextList([("l", None)])
    for name, explained, others in (
        ("--explain", True, {}),
        ("NUM_BEAMS", False, {"beams": Beams(4, 2)}),
        ("--live", False, {"previous": Previous("--live", None)}),
        ("--previous", False, {"previous": Previous("--previous x", [])}),
    ):
        with pytest.raises(UsageError) as error:
            spoken(long, **others).transcribing(explained)
        assert str(error.value) == (
            f"{name} is for sounds of one window without timestamps; leave it out, or name parts "
            "with --text, as in talk.wav#0 and talk.wav#30"
        )
        assert spoken(stream, **others).transcribing(explained).transcriber is None
    run = spoken(long)
    run.data.refill = True
    with pytest.raises(UsageError, match="^REFILL is for"):
        run.transcribing()
    monkeypatch.setattr(measured_run.jax, "process_count", lambda: 2)
    with pytest.raises(UsageError, match="^--distributed is for"):
        spoken(long).transcribing()


def test_a_search_has_its_own_numbers(monkeypatch):
    asked = []
    monkeypatch.setattr(beams, "beam_plan", lambda *a, **b: asked.append((a, b)) or "plan")
    assert Beams(4, draft_beams=6, draft_steps=3).plan("of") == "plan"  # type: ignore[arg-type]
    assert Beams(4, 4).plan("of") == "plan"  # type: ignore[arg-type]
    assert asked == [
        (("of", 4, T5XBeams()), {"width": 6, "depth": 3, "best_only": True}),
        (("of", 4, T5XBeams()), {"width": None, "depth": 2, "best_only": False}),
    ]
    with pytest.raises(ValueError, match="num_return is 5 but num_beams 4; give no more texts"):
        Beams(4, 5)
