"""What `InteractiveModel` asks its engine, and what it makes of the answers.

No program runs: outputs are made here. pytest tests/test_interactive_calls.py
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from made_outputs import Made, output_of
from support import tiny_t5

from specdec import checkpoints, tasks
from specdec.common.terminal import Origin
from specdec.common.values import SEEDS
from specdec.engine import Engine, Placement
from specdec.integrations import opened_pair
from specdec.integrations.interactive import InteractiveModel
from specdec.integrations.pair import beams_of, weights_of
from specdec.models.partitioning import make_mesh
from specdec.models.t5 import T5Target
from specdec.sampling import Greedy, Sampling
from specdec.texts.beams import NO_BEAMS, Beams
from specdec.texts.decoding_texts import Text
from specdec.types import Table
from specdec.verifiers import Block

SIZES = tiny_t5(512, 16, 32)
LENGTHS = {"inputs": 16, "targets": 8}
BYTES = tasks.for_texts(tasks.Bytes(0))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A target of bytes that draws, two texts at a time."""
    path = tmp_path_factory.mktemp("tiny") / "checkpoint"
    shapes = T5Target(SIZES).parameter_shapes()
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    checkpoints.save(path, zeros, config=SIZES)
    given = {"vocabulary": tasks.Bytes(), "lengths": LENGTHS, "batch_size": 2}
    return InteractiveModel(path, sampling=Sampling(1.0), **given)


@pytest.fixture
def asked(model, monkeypatch):
    """Answers with texts that tell the seed, the sample and the index, and keeps the questions."""
    questions = []

    def decode(self, batch, *, seed=0, sample=0):
        questions.append((batch.index.tolist(), seed, sample, batch.previous))
        rows = [Made() if i < 0 else answer(seed, sample, i) for i in batch.index.tolist()]
        return output_of(*rows), 2.0 ** (len(questions) - 1)

    monkeypatch.setattr(Engine, "decode", decode)
    model.reset()
    return questions


def said(seed: int, sample: int, index: int) -> str:
    return f"{seed}{sample}{index}"


def answer(seed: int, sample: int, index: int) -> Made:
    """Three digits and EOS, in two calls: the first digit is drafted and the second one refused."""
    tokens = [*BYTES.encode(said(seed, sample, index)), BYTES.eos_id]
    log_probs = [-1.0, -2.0, -3.0, -0.5 - index]
    return Made(tokens, log_probs, [2, 1], [1, 1], [[tokens[0], 9], [tokens[2]]])


def test_texts_are_of_the_seed_and_of_the_sample_that_are_asked_for(model, asked):
    """Of two batches the second has one text; the figures are those of both."""
    assert model.predict(["a", "b", "c"], seed=7, sample=4) == ["740", "741", "742"]
    assert [one[:3] for one in asked] == [([0, 1], 7, 4), ([2, -1], 7, 4)]
    stats = model.stats
    assert (stats.texts, stats.tokens, stats.seconds) == (3, 12, 1.0 + 2.0)
    assert (stats.drafted, stats.accepted) == ([2, 1] * 3, [1, 1] * 3)
    assert stats.compile_seconds == 0  # no program was compiled since the last reset
    decoded = model.decode(["a"], seed=3, sample=2)
    assert [(one.text, one.log_prob) for one in decoded] == [("320", -6.5)]
    assert model.decode(["a"])[0].text == model.predict(["a"])[0] == "000"
    assert model.stats.seconds == 2**5 - 1 and model.stats.texts == 6
    model.reset()
    assert model.stats.texts == model.stats.seconds == 0


@pytest.fixture
def stepped(model, monkeypatch):
    """Answers in the steps of two calls; keeps the questions, and what is read of the answers."""
    questions: list[Any] = []
    clock = iter(range(100))
    monkeypatch.setattr(
        opened_pair, "time", SimpleNamespace(perf_counter=lambda: float(next(clock)))
    )

    def steps(self, batch, *, seed=0, sample=0):
        questions.append((self.rows, self.plan, batch.index.tolist(), seed, sample))
        made = answer(seed, sample, 0)
        for calls, end in enumerate((0, 2, 4)):
            yield output_of(
                Made(made.tokens[:end], made.log_probs[:end], *(x[:calls] for x in made[2:5]))
            )
            questions.append(end)

    monkeypatch.setattr(Engine, "steps", steps)
    model.reset()
    return questions


def test_a_stream_is_of_one_row_and_counts_a_text_at_its_end(model, stepped):
    """The clock ticks once for each look: a second for each step, none between the steps."""
    pieces = model.stream("a", seed=7, sample=4)
    assert next(pieces) == "74" and model.stats.texts == 0
    assert list(pieces) == ["0"]
    (rows, plan, index, seed, sample), *read = stepped
    assert (rows, index, seed, sample, read) == (1, [0], 7, 4, [0, 2, 4])
    assert plan.sampling == Sampling(1.0)
    assert (model.stats.texts, model.stats.tokens, model.stats.seconds) == (1, 4, 3.0)


def test_a_stream_that_is_left_ends_the_decoding(model, stepped):
    for piece in model.stream("a", temperature=0):
        assert piece == "00"
        break
    del piece
    assert stepped[0][1].sampling == Greedy() and stepped[1:] == [0] and model.stats.texts == 0


def test_a_stream_over_a_mesh_is_one_piece(model, asked, monkeypatch):
    engine = model._engine
    over = engine.placement.over(make_mesh(1, jax.devices()[:1]))
    store = dataclasses.replace(engine.store, placement=over)
    monkeypatch.setattr(model, "_engine", dataclasses.replace(engine, store=store))
    assert list(model.stream("a", seed=3, sample=2)) == ["320"]


def test_metrics_are_of_the_texts_of_a_seed(model, asked):
    def both(targets, predictions):
        return {"pairs": list(zip(targets, predictions, strict=True))}

    pairs = [("a", "A"), ("b", "B")]
    assert model.evaluate(iter(pairs), [both], seed=9) == {"pairs": [("A", "900"), ("B", "901")]}
    assert model.evaluate(pairs).keys() == {"bleu"}


def test_a_text_is_revised_from_what_is_given_or_was_said_last(model, asked):
    """With EOS: a text that stays as it was is drafted to its end. '' begins anew."""
    first = model.revise("a", seed=5)
    assert model.revise("b", seed=6).text == "600" and first.text == "500"
    model.revise("c", previous="xy", seed=7)
    model.revise("d", previous="", seed=8)
    assert [one[1] for one in asked] == [5, 6, 7, 8]
    ids = [[], first.tokens, [*BYTES.encode("xy"), BYTES.eos_id], []]
    for (*_, previous), expected in zip(asked, ids, strict=True):
        width = previous.shape[1]
        assert previous[0].tolist() == [*expected, *[0] * (width - len(expected))]


def test_refused_words_are_painted(model, asked):
    (one,) = model.decode(["a"], seed=1)
    painted = model.paint(one)
    styles = [f"\x1b[{origin.value}m" for origin in (Origin.ACCEPTED, Origin.TARGET)]
    assert [painted.count(style) for style in styles] == [2, 1]
    assert painted.count(f"\x1b[{Origin.REJECTED.value}m") == 1


def test_a_score_is_the_sum_of_a_targets_tokens(model, monkeypatch):
    """Of three texts in batches of two."""
    shapes = []

    def score(self, batch):
        shapes.append(batch.targets.shape)
        return np.array([[-1.0, -2.0, 0.0], [-4.0, -8.0, -16.0]]) * len(shapes)

    monkeypatch.setattr(Engine, "score", score)
    assert model.score(["a", "b", "c"], ["x", "y", "z"]) == [-3.0, -28.0, -6.0]
    assert len(shapes) == 2


class Heard:
    """Transcribes a sound by its name, and keeps what it is asked."""

    def __init__(self):
        self.asked = []

    def features(self, name: str) -> np.ndarray:
        return np.zeros([1, len(name)], np.float32)

    def decode(self, batch, *, seed=0, sample=0):
        self.asked.append((batch.index.tolist(), [x.shape[1] for x in batch.inputs], seed, sample))
        made = [
            Text(
                index=int(index),
                sample=sample,
                input=name,
                target=None,
                prediction=name.upper(),
                tokens=[4, 1],
                log_probs=[-1.0, -2.0],
                drafted=[0, 0],
                accepted=[0, 0],
            )
            for index, name in zip(batch.index, batch.input_texts, strict=False)
        ]
        return made, 2.0 ** len(self.asked)


def test_sounds_of_several_batches_are_transcribed(model, monkeypatch):
    heard = Heard()
    monkeypatch.setattr(InteractiveModel, "_transcriber", heard)
    monkeypatch.setattr(tasks, "is_sound", lambda vocabulary: True)
    model.reset()
    found = model.transcribe(["a", "bb", "ccc"], seed=6, sample=3)
    assert [(one.index, one.prediction) for one in found] == [(0, "A"), (1, "BB"), (2, "CCC")]
    assert heard.asked == [([0, 1], [1, 2], 6, 3), ([2, -1], [3], 6, 3)]
    assert (model.stats.texts, model.stats.tokens, model.stats.seconds) == (3, 6, 2.0 + 4.0)
    with pytest.raises(TypeError, match="files is one text, 'a.wav'; give a list of files"):
        model.transcribe("a.wav")


TEXT = ["a"]
CALLS: dict[str, Any] = {
    "texts[0] is None; give a text": lambda model: model.predict([None]),
    "texts is 5; give a list": lambda model: model.predict(5),
    "texts[1] is 3; give a text": lambda model: model.verify(["a", 3]),
    "text is ['a']; give a text": lambda model: model.explain(TEXT),
    "text is None": lambda model: model.revise(None),
    "previous is 4": lambda model: model.revise("a", previous=4),
    "gamma is 0; give an integer from 1 on": lambda model: model.revise("a", gamma=0),
    "sample is -1; give an integer from 0": lambda model: model.predict(TEXT, sample=-1),
    f"seed is {SEEDS}; give an integer from 0 to {SEEDS - 1}": (
        lambda model: model.decode(TEXT, seed=SEEDS)
    ),
    "seed is '1'": lambda model: model.decode(TEXT, seed="1"),
    "temperature is -1; give a number from 0 on": lambda model: model.predict(TEXT, temperature=-1),
    "max_length is 0": lambda model: model.decode(TEXT, max_length=0),
    "num_beams is 0; give an integer from 1 on": lambda model: model.beams(TEXT, 0),
    "a beam search has no argument draft_beam; did you mean draft_beams?": (
        lambda model: model.beams(TEXT, 2, draft_beam=3)
    ),
    "num_beams is -1": lambda model: model.verify(TEXT, num_beams=-1),
    "inputs is one text, 'a'": lambda model: model.score("a", ["b"]),
    "1 inputs but 2 targets": lambda model: model.score(["a"], ["b", "c"]),
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "drafter is 'prompt_lookup'; give a drafter, such as": {"drafter": "prompt_lookup"},
    "schedule is 'fixed'; give a schedule": {"schedule": "fixed"},
    "verifier is <class": {"verifier": Block},
    "sampling is 1.0; give a rule": {"sampling": 1.0},
    "vocabulary is 'x.model'; give SentencePiece": {"vocabulary": "x.model"},
    "partitioner is 2": {"partitioner": 2},
    "lengths is 64; give both in tokens": {"lengths": 64},
    "lengths is {'inputs': 64}": {"lengths": {"inputs": 64}},
    "lengths['targets'] is 0": {"lengths": {"inputs": 64, "targets": 0}},
    "batch_size is 0; give an integer from 1 on": {"batch_size": 0},
    "gamma is 1.5": {"gamma": 1.5},
    "prefix is None; give a text": {"prefix": None},
    "dtype is 'float16'; give 'float32' or 'bfloat16'": {"dtype": "float16"},
    "chat is 'yes'; give True or False": {"chat": "yes"},
    "same_bits is 1": {"same_bits": 1},
    "target is 3; give the directory": {"target": 3},
    "draft is 3; give the directory": {"draft": 3},
    "draft is {'x': 'dir'}; give {'draft': DIR}": {"draft": {"x": "dir"}},
    "schedule_table is 4": {"schedule_table": 4},
    "no argument temperature; give sampling=": {"temperature": 1.0},
    "no argument batchsize; did you mean batch_size?": {"batchsize": 2},
}


@pytest.mark.parametrize("message", CALLS)
def test_an_argument_of_a_call_is_refused_by_its_name(model, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)) as raised:
        CALLS[message](model)
    assert "--" not in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("message", ARGUMENTS)
def test_an_argument_of_the_model_is_refused_by_its_name(message):
    """Before anything is read: there is no such directory."""
    given = {"target": "no such directory", **ARGUMENTS[message]}
    with pytest.raises((ValueError, TypeError), match=re.escape(message)) as raised:
        InteractiveModel(**given)
    assert "--" not in str(raised.value) and "\n" not in str(raised.value)


def test_arguments_that_need_not_be_given():
    """The lengths and draft length that a pair has, and one text at a time."""
    known = inspect.signature(InteractiveModel).parameters.values()
    chosen = {x.name: x.default for x in known if x.default not in (None, inspect.Parameter.empty)}
    assert chosen == {
        "gamma": 4,
        "lengths": {"inputs": 512, "targets": 128},
        "batch_size": 1,
        "chat": False,
        "same_bits": False,
        "prefix": "",
        "progress": True,
    }


def test_a_call_at_another_temperature_reads_nothing_again(model, monkeypatch):
    monkeypatch.setattr(Placement, "read", lambda *_: pytest.fail("parameters are read again"))
    for temperature, rule in {0: Greedy(), 0.5: Sampling(0.5)}.items():
        engine = model._varied(temperature, 5)
        assert engine.plan.sampling == rule and engine.plan.max_length == 5
        assert engine.store is model._engine.store
        assert len(model.decode(["a"], temperature=temperature, max_length=5)[0].tokens) <= 5
        assert model._varied(temperature, 5) is engine  # with its compiled programs
    assert model._varied(None, None) is model._engine
    assert len(model.predict([np.str_("a")], sample=np.int64(1), max_length=3)) == 1


def test_settings_of_a_search_that_are_none_are_defaults():
    settings: Any = {"num_return": 2, "rule": None, "draft_beams": None, "draft_steps": 3}
    assert beams_of(4, settings) == Beams(4, num_return=2, draft_steps=3)
    assert beams_of(0, settings) == NO_BEAMS


def test_a_schedule_with_a_table_needs_its_folder():
    given: Any = (
        SimpleNamespace(owned=lambda: {"draft": "a model"}),
        SimpleNamespace(tables=lambda: {"schedule": Table("classifier")}),
    )
    assert weights_of("t", "d", *given, "c") == {"target": "t", "draft": "d", "schedule": "c"}
    with pytest.raises(ValueError, match="needs a table; give schedule_table"):
        weights_of("t", "d", *given, None)
    assert weights_of("t", None, None, None, None) == {"target": "t"}
