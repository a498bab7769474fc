"""The texts of a run and its figures, of outputs that no model has made: pytest tests/texts"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from made_outputs import Made, MadeBeams, beams_of, output_of

from specdec import tasks
from specdec.common import hosts
from specdec.common.terminal import Summary
from specdec.decoding.replay import Replay
from specdec.texts import explained, text_engine
from specdec.texts.beam_texts import BeamSummary, BeamText
from specdec.texts.explained import ExplainedBatch
from specdec.texts.sources import Sounds, Source
from specdec.texts.text_engine import TextEngine, gathered, total
from specdec.texts.texts import Data, TextList, TextStream

LETTERS = {2: "a", 3: "b", 4: "c", 5: "d", 6: "e", 7: "f"}


class Letters:
    """A vocabulary of a few letters, in which 1 ends a text."""

    eos_id = 1

    def decode(self, ids) -> str:
        ids = list(ids)
        return "".join(LETTERS[id] for id in ids[: ids.index(1) if 1 in ids else None])

    def encode(self, text: str) -> list[int]:
        return [1 + "abcdef".index(letter) for letter in text]


class Given:
    """An engine of two rows that gives outputs by the index of a batch's first text and sample."""

    prefix = (2,)
    vocabulary = Letters()
    params: dict = {}

    def load(self) -> None:
        pass

    def __init__(self, outputs: dict, compile_seconds: float):
        self._outputs, self.compile_seconds, self.asked = outputs, compile_seconds, []
        self.plan = types.SimpleNamespace(stop_ids=(1,))

    def outputs(self, work, *, seed: int = 0) -> Iterator:
        for batch, sample in work:
            self.asked.append((batch.index.tolist(), sample, seed))
            yield self._outputs[int(batch.index[0]), sample]

    def keys(self, batch, seed, sample) -> tuple:
        return batch.index.tolist(), seed, sample

    def inputs(self, batch):
        return batch.inputs

    def text_of(self, tokens, source: str) -> str:
        return tasks.detokenize(self.vocabulary, tokens, source)


def batch(begin: int, *texts: str) -> tasks.Batch:
    index = np.array([begin, begin + 1 if len(texts) > 1 else -1])
    ids = np.zeros([2, 1], np.int32)
    return tasks.Batch(ids, ids, index, [*texts], [text.upper() for text in texts], None)


def run(**data: Any) -> Any:
    """A run of two samples of each text."""
    given = {"num_samples": 2, "seed": 5} | data
    plan = types.SimpleNamespace(exact=True, stop_ids=(1,))
    data_of: Any = types.SimpleNamespace(**given)
    share = types.SimpleNamespace(first=True)
    placement = types.SimpleNamespace(share=lambda: share, mesh=None)
    return types.SimpleNamespace(
        data=data_of, plan=plan, beams=None, transcriber=None, placement=placement
    )


def ours(first: int, second: int, at: float) -> Made:
    """Three tokens in two calls; the first one is the prefix."""
    tokens = [2, first, second, 1]
    return Made(tokens, [at, at - 0.25, at - 0.5, at - 0.75], [2, 1], [1, 0], [[first, 7], [6]])


def plain(first: int, second: int, calls: int) -> Made:
    return Made([2, first, second, 1], [0.0] * 4, [0] * calls, [0] * calls)


EMPTY = Made()
OUTPUTS = {
    (4, 0): (output_of(ours(3, 4, -1.0), ours(4, 5, -2.0)), 1.0),
    (4, 1): (output_of(ours(5, 6, -3.0), ours(6, 7, -4.0)), 2.0),
    (6, 0): (output_of(ours(7, 3, -5.0), EMPTY), 4.0),
    (6, 1): (output_of(ours(3, 3, -6.0), EMPTY), 8.0),
}
ALONE = {
    (4, 0): (output_of(plain(3, 4, 3), plain(5, 4, 4)), 16.0),
    (4, 1): (output_of(plain(5, 6, 5), plain(6, 7, 6)), 32.0),
    (6, 0): (output_of(plain(7, 3, 7), EMPTY), 64.0),
    (6, 1): (output_of(plain(4, 3, 8), EMPTY), 128.0),
}
TEXTS = [  # index, sample, input, prediction, first log-probability, and the target's own text
    (4, 0, "x", "abc", -1.0, "abc"),
    (5, 0, "y", "acd", -2.0, "adc"),
    (4, 1, "x", "ade", -3.0, "ade"),
    (5, 1, "y", "aef", -4.0, "aef"),
    (6, 0, "z", "afb", -5.0, "afb"),
    (6, 1, "z", "abb", -6.0, "acb"),
]
IDS = {letter: id for id, letter in LETTERS.items()}


def record(index, sample, text, prediction, at, alone) -> dict:
    """Returns the line of JSON that `specdec decode --compare` writes."""
    return {
        "index": index,
        "sample": sample,
        "input": text,
        "target": text.upper(),
        "prediction": prediction,
        "tokens": [*(IDS[x] for x in prediction), 1],
        "log_probs": [at, at - 0.25, at - 0.5, at - 0.75],
        "drafted": [2, 1],
        "accepted": [1, 0],
        "alone": alone,
        "alone_tokens": [*(IDS[x] for x in alone), 1],
        "calls": 2,
    }


def source() -> Source:
    return Source([batch(4, "x", "y"), batch(6, "z")])


class Opened:
    """An engine that notes how it is opened."""

    given_prefix = (2,)
    plan = types.SimpleNamespace(exact=True)

    def __init__(self, asked: list, name: str = "run"):
        self._asked, self._name = asked, name

    def suited(self, **how: Any) -> Opened:
        self._asked.append((self._name, how))
        return self

    def check(self, length: int, *, compile: bool) -> None:
        self._asked.append((length, compile))

    def alone(self) -> Opened:
        return Opened(self._asked, "alone")


@pytest.mark.parametrize("compare, refill, explained", [(0, 0, 0), (1, 1, 1)])
def test_an_engine_has_the_programs_that_suit_the_run(monkeypatch, compare, refill, explained):
    """Compiling begins where a length is given; each program comes only if it is asked for."""
    monkeypatch.setattr(text_engine, "replayer", lambda plan, **how: (plan, how))
    asked: list = []
    opened = run(samples_together=3, widths=(4, 2), refill=refill, lengths={"inputs": 9})
    opened.compare, opened.decoder, opened.engine = compare, Opened(asked), Opened([], "engine")
    watch: Any = types.SimpleNamespace(grown="grown")
    more = {"explained": True, "watch": watch, "length": 5} if explained else {}
    made = TextEngine.open(opened, **more)
    how = {"samples": 2, "together": 3, "widths": (4, 2) if refill else ()}
    checked = (5, True) if explained else (9, False)
    assert asked == [
        ("run", how | {"watch": "grown" if explained else None}),
        checked,
        *([("alone", how)] if compare else []),
    ]
    assert made.run is opened and made.engine is opened.decoder
    assert (made.alone is not None, made.watch) == (compare, watch if explained else None)
    assert made.again == ((opened.plan, {"mesh": None, "prefix": (2,)}) if explained else None)


def test_lines_and_figures_of_several_batches_and_samples():
    """Both engines have compiled, and the prefix is no token of theirs."""
    engine, alone = Given(OUTPUTS, 0.25), Given(ALONE, 0.5)
    made = TextEngine(run(), engine, alone)  # type: ignore[arg-type]
    found = list(made.decode(source()))
    assert [text.record() for text in found] == [record(*text) for text in TEXTS]
    asked = [([4, 5], 0, 5), ([4, 5], 1, 5), ([6, -1], 0, 5), ([6, -1], 1, 5)]
    assert engine.asked == alone.asked == asked
    assert made.summary.lines() == [
        "6 texts, 18 tokens, 12 target calls: 1.50 tokens per call, alpha 0.333",
        "15.0 s decoding, 0.8 s compiling",
        "12 target calls instead of 33, 16.00 times as fast as the target alone (240.0 s)",
        "4 of 6 outputs identical to the target's",
    ]


def test_figures_are_printed_after_the_plan_if_there_are_texts(monkeypatch, capsys):
    monkeypatch.setattr(text_engine.progress, "spent", dict)
    engine: Any = Given(OUTPUTS, 0.25)
    engine.plan, engine.load = "the plan", dict
    made = TextEngine(run(), engine)
    with made.running():
        pass
    assert capsys.readouterr().err == ""
    with made.running():
        list(made.decode(source()))
    assert capsys.readouterr().err.splitlines() == [
        "the plan",
        "6 texts, 18 tokens, 12 target calls: 1.50 tokens per call, alpha 0.333",
        "15.0 s decoding, 0.2 s compiling",
    ]


@pytest.mark.parametrize("skip, asked", [(0, 4), (1, 4), (2, 3), (3, 3), (4, 2), (5, 1), (6, 0)])
def test_texts_that_are_there_are_skipped(skip, asked):
    """In order of batches and samples; what has no text left is not decoded."""
    engine = Given(OUTPUTS, 0.0)
    made = TextEngine(run(), engine)  # type: ignore[arg-type]
    found = [(text.index, text.sample) for text in made.decode(source(), skip=skip)]
    assert found == [text[:2] for text in TEXTS][skip:] and len(engine.asked) == asked


def test_the_first_host_gets_the_texts_of_all(monkeypatch):
    """The other one has 7 and 8; each batch of this host goes with one of the other's."""
    others = iter([[(7, 0), (8, 0)], [(7, 1), (8, 1)], [], []])

    def exchanged(own: list) -> list[list]:
        theirs = [types.SimpleNamespace(index=i, sample=s, count_in=no) for i, s in next(others)]
        return [theirs, own]

    def no(*_) -> None:
        """Counts nothing."""

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(hosts, "exchanged", exchanged)
    engine = Given(OUTPUTS, 0.0)
    made = TextEngine(run(), engine)  # type: ignore[arg-type]
    found = [(text.index, text.sample) for text in made.decode(source(), everywhere=True)]
    first = [(4, 0), (5, 0), (7, 0), (8, 0)]
    assert found == [*first, (4, 1), (5, 1), (7, 1), (8, 1), (6, 0), (6, 1)]
    assert [(text.index, text.sample) for text in made.decode(source())] == [x[:2] for x in TEXTS]


@pytest.mark.parametrize("feeds", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_rows_that_several_hosts_have_are_fed_once(monkeypatch, feeds, is_first):
    """A host that shares its rows with an earlier one gives none."""
    sent = []
    monkeypatch.setattr(hosts, "exchanged", lambda own: sent.append(own) or [[3], own, [1]])
    monkeypatch.setattr(hosts, "is_first", lambda: is_first)
    found = list(gathered([[2], [4]], feeds=feeds, order=lambda x: (x,)))
    assert sent == ([[2], [4]] if feeds else [[], []])
    merged = [[1, 2, 3], [1, 3, 4]] if feeds else [[1, 3], [1, 3]]
    assert found == (merged if is_first else [])


class Again:
    """The program of `explained.replayer`: probabilities that tell row, call and token."""

    seconds = 0.0625

    def __init__(self):
        self.asked = []

    def fetch(self, params, keys, inputs) -> tuple[Replay, float]:
        self.asked.append(keys)
        return replayed(), 99.0


def replayed() -> Replay:
    """Row, call and place are digits: 0.312 is row 1, call 2, place 3."""
    rows, calls, places = np.ogrid[0:2, 0:2, 0:2]
    drafted = 0.001 * rows + 0.01 * calls + 0.1 * places
    own = 0.001 * rows[:, :, 0] + 0.01 * calls[:, :, 0]
    q = drafted + 0.2
    q[1, 0, 1] = np.nan
    return Replay(drafted + 0.1, q, drafted + 0.3, own + 0.4, own + 0.5)


def test_an_explained_text_has_the_probabilities_of_its_own_tokens():
    """Of three rows the second, whose last draft ends the text: no token of the target's follows.

    The batch took three calls, because of its third row.
    """
    ends = Made([2, 3, 4, 1], [-1.0] * 4, [2, 2], [1, 1], [[3, 5], [1, 6]])
    output = output_of(ours(3, 4, -1.0), ends, plain(3, 4, 3))
    engine = Given({}, 0.0)
    plan: Any = types.SimpleNamespace(stop_ids=(1, 7), __str__=lambda _: "")
    made = ExplainedBatch(plan, engine.text_of, 1, output, replayed(), 0.1234567)
    found = dict(made.explained(1, "y"))
    assert found.pop("plan") == str(plan)
    assert found == {
        "given": 1,
        "stop_ids": [1, 7],
        "batch": {"seconds": 0.123457, "rows": 3, "calls": 3},
        "token_texts": ["a", "b", "c", ""],
        "proposed": [[3, 5], [1, 6]],
        "proposed_texts": [["b", "d"], ["", ""]],
        "p": [[0.101, 0.201], [0.111, 0.211]],
        "q": [[0.201, None], [0.211, 0.311]],
        "softmax": [[0.301, 0.401], [0.311, 0.411]],
        "own_p": [0.401, None],
        "own_q": [0.501, None],
    }
    first = made.explained(0, "x")
    assert (first["proposed"], first["p"]) == ([[3, 7], [6]], [[0.1, 0.2], [0.11]])
    assert (first["own_p"], first["own_q"]) == ([0.4, 0.41], [0.5, 0.51])


def test_texts_are_explained_with_the_keys_of_their_sample(monkeypatch):
    monkeypatch.setattr(text_engine, "Engine", Given)  # beams are not explained
    again, engine = Again(), Given(OUTPUTS, 0.25)
    one = Made([2, 3, 1], [-1.0] * 3, [2, 0], [1, 0], [[3, 5]])
    engine._outputs = {key: (output_of(one, one), 1.0) for key in OUTPUTS}
    made = TextEngine(run(), engine, again=again)  # type: ignore[arg-type]
    texts = list(made.decode(source()))
    assert again.asked == [([4, 5], 5, 0), ([4, 5], 5, 1), ([6, -1], 5, 0), ([6, -1], 5, 1)]
    assert [text.explained["p"][0][0] for text in texts] == [0.1, 0.101, 0.1, 0.101, 0.1, 0.1]
    assert made.summary.compile_seconds == 0.25 + 0.0625


BEAMS = {
    4: (
        beams_of(
            MadeBeams([[2, 3, 1], [2, 4, 1], [2, 5]], [-0.5, -0.75, -1.0], [2, 1]),
            MadeBeams([[3, 3, 1], [3, 4], []], [-1.5, -1.75, -9e9], [1, 1, 1]),
        ),
        1.0,
    ),
    6: (
        beams_of(
            MadeBeams([[4, 1], [5, 1], [6, 1]], [-2.5, -2.75, -3.0], [4]),
            MadeBeams([[], [], []], [0.0] * 3, []),
        ),
        2.0,
    ),
}
PLAIN = {
    4: (
        beams_of(  # the third beam of the first text is another
            MadeBeams([[2, 3, 1], [2, 4, 1], [2, 6]], [-0.5, -0.75, -1.0], [1, 1, 1]),
            MadeBeams([[3, 3, 1], [3, 4], []], [-1.5, -1.75, -9e9], [1, 1, 1]),
        ),
        4.0,
    ),
    6: (
        beams_of(
            MadeBeams([[4, 1], [6, 1], [5, 1]], [-2.5, -2.75, -3.0], [1] * 4),
            MadeBeams([[], [], []], [0.0] * 3, []),
        ),
        8.0,
    ),
}


def test_beams_of_several_batches():
    """Two of three are kept; those of the target alone are the same if all three are."""
    engine, alone = (
        Given({(index, 0): one for index, one in given.items()}, 0.25) for given in (BEAMS, PLAIN)
    )
    searched = run(num_samples=1)
    searched.beams = types.SimpleNamespace(num_return=2)
    made = TextEngine(searched, engine, alone)  # type: ignore[arg-type]
    texts = list(made.decode(source()))
    assert all(isinstance(text, BeamText) for text in texts)
    assert [text.record() for text in texts] == [
        {
            "index": 4,
            "input": "x",
            "target": "X",
            "predictions": ("ab", "ac"),
            "tokens": ((2, 3, 1), (2, 4, 1)),
            "scores": (-0.5, -0.75),
            "steps": 3,
            "calls": 2,
            "alone": ("ab", "ac"),
            "alone_tokens": ((2, 3, 1), (2, 4, 1)),
        },
        {
            "index": 5,
            "input": "y",
            "target": "Y",
            "predictions": ("bb", "bc"),
            "tokens": ((3, 3, 1), (3, 4)),
            "scores": (-1.5, -1.75),
            "steps": 3,
            "calls": 3,
            "alone": ("bb", "bc"),
            "alone_tokens": ((3, 3, 1), (3, 4)),
        },
        {
            "index": 6,
            "input": "z",
            "target": "Z",
            "predictions": ("c", "d"),
            "tokens": ((4, 1), (5, 1)),
            "scores": (-2.5, -2.75),
            "steps": 4,
            "calls": 1,
            "alone": ("c", "e"),
            "alone_tokens": ((4, 1), (6, 1)),
        },
    ]
    assert made.summary.lines() == [
        "3 texts, 10 steps of the search in 6 target calls, 1.67 steps per call",
        "3.0 s searching, 0.5 s compiling",
        "1 of 3 with the beams of the target alone, which took 12.0 s",
    ]


def test_a_beam_without_a_text_has_no_score():
    output, _ = BEAMS[4]
    found = BeamText.row(batch(4, "x", "y"), 1, output, None, Letters(), 3)  # type: ignore
    assert found.tokens == ((3, 3, 1), (3, 4)) and found.scores == (-1.5, -1.75)
    assert "alone" not in found.record() and found.record()["predictions"] == ("bb", "bc")


def test_sounds_are_read_batch_by_batch():
    read = []

    def features(name: str) -> np.ndarray:
        read.append(name)
        return np.full([1, 2], len(name))

    names = [(name, None) for name in ("a", "bb", "ccc", "dddd")]
    sounds = Sounds(iter(names), features, batch_size=2, limit=3)
    assert sounds.length() is None and not read
    batches = iter(sounds)
    first = next(batches)
    assert read == ["a", "bb"] and first.index.tolist() == [0, 1]
    (last,) = batches
    assert (last.index.tolist(), last.input_texts) == ([2, -1], ["ccc"])
    assert [x.tolist() for x in last.inputs] == [[[3, 3]]] and read == ["a", "bb", "ccc"]


@pytest.mark.parametrize(
    "limit, buckets, width, left",
    [
        (None, (4, 8, 16), 8, (4,)),  # the longest has 7 bytes and EOS
        (None, (4, 7, 16), 16, (4,)),  # no text needs 7
        (1, (4, 8, 16), 4, ()),
        (None, (4,), 32, (4,)),
    ],
)
def test_texts_are_padded_to_the_bucket_of_the_longest(limit, buckets, width, left):
    texts = TextList([("abc", None), ("abcdefg", None)])
    lengths = {"inputs": 32, "targets": 4}
    data = Data(None, "", lengths, texts, buckets=buckets, limit=limit)
    found = data.fitted(tasks.for_texts(tasks.Bytes(0)), 10**12)
    assert (found.lengths["inputs"], found.buckets) == (width, left)


@pytest.mark.parametrize(
    "parameters, left",
    [
        (2_500_000_000, ()),  # 2 * 128 + 64 tokens more cost as much as a program, 8e11
        (2_500_000_001, (96,)),
        (6_250_000_000, (96,)),  # 2 * 64 tokens more
        (6_250_000_001, (32,)),
        (12_500_000_000, (32,)),  # 64 tokens more
        (12_500_000_001, (32, 96)),
    ],
)
def test_a_bucket_is_left_out_where_padding_costs_less_than_a_program(parameters, left):
    """2 texts of 32 tokens, 1 of 96 and 1 of 160. No text needs 128, and none of them 256."""
    texts = TextList([(length * "a", None) for length in (159, 31, 95, 20)])
    lengths = {"inputs": 256, "targets": 4}
    data = Data(None, "", lengths, texts, buckets=(32, 64, 96, 128, 160))
    found = data.fitted(tasks.for_texts(tasks.Bytes(0)), parameters)
    assert (found.lengths["inputs"], found.buckets) == (160, left)


def test_a_list_of_texts_says_how_many_it_has():
    assert repr(TextList([(40 * "a", None), ("b", None)])) == f"2 texts, the first '{30 * 'a'}'"


@pytest.mark.parametrize("name", ["vocabulary", "draft_vocabulary"])
def test_a_task_may_be_named_and_a_vocabulary_may_not(name):
    lengths = {"inputs": 8, "targets": 4}
    assert Data("a task", "test", lengths).task == "a task"
    with pytest.raises(ValueError, match=f"Data.{name} is 'spiece.model'; give "):
        Data(None, "test", lengths, **{name: "spiece.model"})
    with pytest.raises(ValueError, match="Data.task is 5; give a task, or the name of a"):
        Data(5, "test", lengths)


def test_settings_of_texts_that_need_not_be_given():
    texts, lengths = TextList([("abc", None)]), {"inputs": 8, "targets": 4}
    data = Data(None, "", lengths, texts)
    assert data.count() == 1
    assert Data(None, "", lengths, TextStream([("abc", None)])).count() is None
    given = ("task", "split", "lengths", "texts")
    found = {name: value for name, value in vars(data).items() if name not in given}
    assert found == {
        "vocabulary": None,
        "draft_vocabulary": None,
        "batch_size": 1,
        "buckets": (),
        "seed": 0,
        "limit": None,
        "num_samples": 1,
        "samples_together": 1,
        "decoder_prefix": "",
        "chat": False,
        "refill": False,
    }
    assert data.widths == (8,) and dataclasses.replace(data, buckets=(2, 4)).widths == (2, 4, 8)


def test_a_token_that_is_a_space_has_the_space_and_not_the_token_after_it():
    pieces = {1: "", 2: " a", 3: " ", 4: "b", 5: " c"}

    def text_of(ids):
        return "".join(pieces[id] for id in ids).strip()  # as a vocabulary decodes

    assert explained._texts([2], [3, 4, 5, 1], text_of) == [" ", "b", " c", ""]
    assert explained._texts([2], [4, 3], text_of) == ["b", " "]
    assert explained._texts([2], [1, 5, 4], text_of) == ["", " c", "b"]
    assert explained._texts([], [3, 4, 5], text_of) == [" ", "b", " c"]  # the text begins with it


def test_the_figures_of_several_hosts_are_added(monkeypatch, capsys):
    """The third host decodes the rows of the second, so it counts none. The slowest host's seconds
    are the total."""
    ours = Summary(2, 30, [4, 4], [3, 4], seconds=2.0, identical=2, baseline_calls=30)
    theirs = Summary(1, 10, [4], [1], seconds=3.0, identical=0, baseline_calls=10)
    assert total([ours]) == ours
    both = total([ours, theirs])
    assert (both.texts, both.tokens, both.drafted, both.accepted) == (3, 40, [4] * 3, [3, 4, 1])
    assert (both.seconds, both.identical, both.baseline_calls, both.exact) == (3.0, 2, 40, True)
    beams = total([BeamSummary(1, 5, 2, compared=True), BeamSummary(2, 7, 3, compared=True)])
    assert (beams.texts, beams.steps, beams.calls, beams.compared) == (3, 12, 5, True)
    made = TextEngine(run(), Given(OUTPUTS, 0.25))  # type: ignore[arg-type]
    object.__setattr__(made, "summary", ours)
    monkeypatch.setattr(text_engine.hosts, "exchanged", lambda own: [own, theirs, None])
    for is_first in (True, False):
        monkeypatch.setattr(text_engine.hosts, "is_first", lambda is_first=is_first: is_first)
        with made.running():
            pass
        assert ("3 texts, 40 tokens, 3 target calls" in capsys.readouterr().err) == is_first
    with pytest.raises(KeyboardInterrupt), made.running():
        raise KeyboardInterrupt
    assert "2 texts, 30 tokens" in capsys.readouterr().err
