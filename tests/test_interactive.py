"""Texts through a pair of models in Python: pytest tests/test_interactive.py"""

import html
import json
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from support import tiny_t5
from tolerances import LOGITS

from specdec import checkpoints, cli, tasks
from specdec.certificate import Check, certifying
from specdec.common import demo, notebook
from specdec.common.theory import empirical_alpha
from specdec.decoding.beam_rules import HuggingFaceBeams
from specdec.drafters import PromptLookup
from specdec.engine import Engine
from specdec.integrations.interactive import Decoded, InteractiveModel
from specdec.integrations.pair import buckets_below
from specdec.integrations.shown_texts import Explained
from specdec.models.partitioning import Partitioner
from specdec.models.t5 import T5Target
from specdec.sampling import Sampling
from specdec.tasks import TaskError
from specdec.verifiers import GreedyMatch, TopK

TEXTS = [
    "translate English to German: Three bakers must prepare a tasty cherry that is small.",
    "translate English to German: In March, the boss sells ten white flowers carefully.",
    "translate English to German: The students sing.",
]
SEED = 5
LENGTHS = {"inputs": 32, "targets": 48}
SIZES = tiny_t5(512, 16, 32)


@pytest.fixture(scope="module")
def model():
    """The pair that ships, at temperature 1, two texts at a time."""
    return InteractiveModel.demo(gamma=3, sampling=Sampling(1.0), lengths=LENGTHS, batch_size=2)


@pytest.fixture(scope="module")
def decoded(model):
    model.reset()
    return model.decode(TEXTS, seed=SEED)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random model of 512 ids, saved without a vocabulary."""
    path = tmp_path_factory.mktemp("tiny") / "checkpoint"
    checkpoints.save(path, T5Target(SIZES).init(jax.random.key(0)), config=SIZES)
    return path


@pytest.mark.ci
def test_texts_are_those_of_the_command_line(decoded, tmp_path):
    path = tmp_path / "out.jsonl"
    flags = [f"--target={demo.path('target')}", f"--draft={demo.path('draft')}"]
    flags += ["--gin_file=sampling/temperature.gin", f"--seed={SEED}", f"--output_file={path}"]
    flags += [f"--gin.TASK_FEATURE_LENGTHS={LENGTHS}", "--gin.BUCKETS=()", "--gin.GAMMA=3"]
    flags += ["--gin.BATCH_SIZE=2", "--compilation_cache_dir="]
    assert cli.main(["decode", *flags, *(f"--text={text}" for text in TEXTS)]) == 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for ours, theirs in zip(decoded, records, strict=True):
        assert (ours.input, ours.text) == (theirs["input"], theirs["prediction"])
        assert (ours.tokens, ours.drafted, ours.accepted) == (
            theirs["tokens"],
            theirs["drafted"],
            theirs["accepted"],
        )
        np.testing.assert_allclose(ours.log_prob, sum(theirs["log_probs"]), atol=LOGITS)


@pytest.mark.ci
def test_predict_is_the_text_and_needs_no_new_program(model, decoded):
    model.reset()
    assert model.predict(TEXTS, seed=SEED) == [one.text for one in decoded]
    assert model.predict(TEXTS[:1], seed=SEED) == [decoded[0].text]
    assert model.predict(TEXTS, seed=SEED + 1) != [one.text for one in decoded]
    assert model.predict([]) == []
    assert model.stats.compile_seconds == 0 and model.stats.texts == 7


def by_hand(tokens, drafted, accepted) -> Decoded:
    made = {"tokens": tokens, "drafted": drafted, "accepted": accepted}
    return Decoded(**made, input="in", text="out", log_prob=-2.0)


@pytest.mark.ci
def test_a_stream_has_the_text_of_predict(model, decoded):
    """The model decodes two texts at a time, and a stream one."""
    model.reset()
    pieces = list(model.stream(TEXTS[0], seed=SEED))
    assert "".join(pieces) == decoded[0].text and 3 < len(pieces) <= decoded[0].calls
    assert model.stats.texts == 1 and model.stats.tokens == len(decoded[0].tokens)
    assert 0 < model.stats.seconds < model.stats.compile_seconds
    for call in ({"seed": SEED, "sample": 1}, {"seed": 6, "temperature": 0, "max_length": 9}):
        (text,) = model.predict(TEXTS[:1], **call)
        assert "".join(model.stream(TEXTS[0], **call)) == text != decoded[0].text


def test_statistics_of_one_text():
    one = by_hand([4, 5, 6, 7, 1], [2, 2], [2, 0])
    assert (one.calls, one.tokens_per_call) == (2, 2.5)
    assert one.alpha == empirical_alpha([2, 0], [2, 2]) == 2 / 3
    nothing = by_hand([], [], [])
    assert math.isnan(nothing.tokens_per_call) and math.isnan(nothing.alpha)


def test_scores_are_those_of_decoding(model, decoded):
    same = [one for one in decoded if tasks_encode(model, one.text) == one.tokens]
    assert len(same) >= 2  # a sampled text can be cut into tokens in another way
    scores = model.score([one.input for one in same], [one.text for one in same])
    np.testing.assert_allclose(scores, [one.log_prob for one in same], atol=LOGITS)
    worse = model.score([one.input for one in same], ["Ja."] * len(same))
    assert all(a > b for a, b in zip(scores, worse, strict=True))


def tasks_encode(model, text):
    vocabulary = tasks.demo_vocabulary().load()
    return [*vocabulary.encode(text), vocabulary.eos_id]


def test_metrics_of_nothing_are_refused(model):
    with pytest.raises(ValueError, match=r"pairs is empty; give one \(input, target\) or more"):
        model.evaluate(iter([]))


def test_an_explained_text_is_the_decoded_one(model, decoded):
    found = model.explain(TEXTS[0], seed=SEED)
    assert found.text.tokens == decoded[0].tokens and found.text.prediction == decoded[0].text
    lines = repr(found).splitlines()
    assert len(lines) == 1 + decoded[0].calls and f"kept {decoded[0].accepted[0]}," in lines[1]
    shown = "".join("".join([*words[:kept], own]) for words, kept, own in found._calls())
    assert shown.lstrip() == decoded[0].text
    page = found._repr_html_()
    assert page.count("<tr>") == len(lines) and notebook.GREEN in page and notebook.BLUE in page


def test_each_call_has_the_words_that_it_kept_and_the_targets_own():
    """The last draft ends the text, so that the target adds nothing."""
    known = {
        "token_texts": ["A", " b", " c", " d", " e"],
        "proposed_texts": [["A", " x"], [], [" d", " e"]],
    }
    text = SimpleNamespace(prediction="A b c d e", accepted=[1, 0, 2], explained=known)
    shown = Explained(text)
    calls = [(["A", " x"], 1, " b"), ([], 0, " c"), ([" d", " e"], 2, "")]
    assert list(shown._calls()) == calls
    assert repr(shown).splitlines() == [
        "A b c d e",
        "call 1: drafted ['A', ' x'], kept 1, the target's own ' b'",
        "call 2: drafted nothing, the target's own ' c'",
        "call 3: drafted [' d', ' e'], kept 2, the target's own ''",
    ]
    coloured = notebook.coloured
    rows = [
        ("1", "A", " x", "1 of 2", " b"),
        ("2", "", "", "0 of 0", " c"),
        ("3", " d e", "", "2 of 2", ""),
    ]
    cells = [
        (
            number,
            coloured(good, notebook.GREEN) + coloured(bad, notebook.RED, struck=True),
            kept,
            coloured(own, notebook.BLUE),
        )
        for number, good, bad, kept, own in rows
    ]
    header = "target call", "drafted", "kept", "the target's own"
    assert shown._repr_html_() == f"<b>A b c d e</b>{notebook.table(cells, header)}"


@pytest.fixture(scope="module")
def pair(tiny):
    """Two random models of bytes."""
    lengths = {"inputs": 64, "targets": 8}
    return InteractiveModel(tiny, tiny, gamma=2, vocabulary=tasks.Bytes(), lengths=lengths)


@pytest.mark.ci
def test_a_model_shows_what_it_is(model, pair):
    shown = repr(model).splitlines()
    assert shown[0] == "InteractiveModel" and "16.8M parameters, float32" in shown[1]
    assert "exact: the distribution of the target alone" in repr(model)
    assert "exact: the tokens of the target alone" in repr(pair)
    page = pair._repr_html_()
    assert page.startswith("<b>InteractiveModel</b><table><tr>") and page.endswith("</table>")
    assert page.count("<tr>") == len(repr(pair).splitlines()) - 1
    assert "NOT EXACT" in repr(InteractiveModel.demo(verifier=TopK(2), lossy=True, lengths=LENGTHS))


def test_a_decoded_text_shows_itself():
    one = by_hand([4, 5, 6, 7, 1], [2, 2], [2, 0])
    assert repr(one) == "Decoded('out', 5 tokens in 2 target calls)"
    assert "<b>out</b>" in one._repr_html_()
    assert "1 token in 1 target call" in repr(by_hand([1], [2], [0]))


@pytest.mark.slow
def test_a_benchmark_is_of_the_given_texts(pair):
    found = pair.bench(["ab", "a longer text"], repeats=1)
    assert (found.summary.texts, found.summary.identical) == (2, 2)
    assert found.sentence in repr(found) and "2 tokens per draft" in found.sentence
    assert found._repr_html_().startswith(f"<b>{html.escape(found.sentence)}</b><pre>")


@pytest.mark.ci
def test_a_certificate_is_of_the_given_texts(pair, monkeypatch):
    """The checks have tests of their own."""
    seen = []

    def certify(subject, started, lossy, known):
        seen.append((subject.inputs.shape, lossy, dict(known)))
        started("greedy")
        yield Check("greedy", {"texts": 2}, {}, "2 of 2 outputs identical")

    monkeypatch.setattr(certifying.certificate, "certify", certify)
    found = pair.verify(["ab", "a longer text"])
    assert seen == [((2, 32), False, {})] and found.passed
    assert repr(found).startswith("CERTIFIED: all 1 checks passed\n")
    assert "2 of 2 outputs identical" in found._repr_html_()


@pytest.mark.ci
def test_a_certificate_of_beams(pair, monkeypatch):
    """The checks have tests of their own."""
    seen = []

    def certify(subject, started, lossy, known):
        seen.append((subject.inputs.shape, subject.search.beams))
        yield Check("beams", {"texts": 1}, {}, "1 of 1 texts the same")

    monkeypatch.setattr(certifying.certificate, "certify", certify)
    found = pair.verify(["ab"], num_beams=2, rule=HuggingFaceBeams())
    assert seen == [((1, 32), 2)] and found.passed
    assert found.record["beams"].startswith("2 beams, HuggingFaceBeams(")


def test_more_texts_than_beams_are_refused(pair):
    for measure in (pair.bench, pair.verify, pair.beams):
        with pytest.raises(ValueError, match="num_return is 3 but num_beams 2; give no more"):
            measure(["ab"], num_beams=2, num_return=3)


def test_what_cannot_be_measured_is_refused(model, pair, tiny):
    for measure in (pair.bench, pair.verify):
        with pytest.raises(ValueError, match="texts is empty; give one text or more"):
            measure([])
        with pytest.raises(TypeError, match="give a list of texts"):
            measure("one text")
    with pytest.raises(TaskError, match="inputs hold 64"):
        pair.bench(["much " * 40])
    alone = InteractiveModel(tiny, vocabulary=tasks.Bytes(), lengths={"inputs": 16, "targets": 8})
    with pytest.raises(ValueError, match="the target decodes alone; give a draft or a drafter"):
        alone.bench(["a"])


def test_texts_that_are_measured_have_the_rows_and_lengths_of_the_model(model):
    data = model._variant(model._engine, TEXTS, SEED).run.data
    assert (data.lengths, data.batch_size, data.seed) == (LENGTHS, 2, SEED)


@pytest.mark.parametrize(
    "longest, buckets", [(512, (32, 64, 128, 256)), (48, (32,)), (33, (32,)), (32, ()), (8, ())]
)
def test_buckets(longest, buckets):
    assert buckets_below(longest) == buckets


@pytest.mark.parametrize(
    "given, message",
    [
        ({"target": "absent"}, "absent does not exist"),
        ({"vocabulary": tasks.Bytes()}, "the target .* saved with another vocabulary"),
        ({"sampling": Sampling(1.0), "verifier": GreedyMatch()}, "GreedyMatch compares argmaxes"),
        ({"gamma": 0}, "gamma is 0"),
        ({"dtype": "int8"}, "'int8'"),
    ],
)
def test_what_cannot_work_is_refused_before_parameters_are_read(monkeypatch, given, message):
    def load(*_, **__):
        raise AssertionError("read")

    monkeypatch.setattr(checkpoints, "load", load)
    arguments = {"target": demo.path("target"), "draft": demo.path("draft"), "lengths": LENGTHS}
    with pytest.raises((ValueError, checkpoints.CheckpointError), match=message):
        InteractiveModel(**arguments | given)


class Broken(PromptLookup):
    """A drafter that no program can run."""

    def propose(self, params, request, state):
        raise ValueError("this drafter is broken")


def test_a_drafter_that_cannot_work_is_refused_before_parameters_are_read(monkeypatch):
    monkeypatch.setattr(Engine, "load", lambda self: pytest.fail("read"))
    with pytest.raises(ValueError, match="this drafter is broken"):
        InteractiveModel(demo.path("target"), drafter=Broken(), lengths=LENGTHS)


def test_models_without_a_vocabulary(tiny):
    with pytest.raises(ValueError, match="no vocabulary was saved with .*; give one"):
        InteractiveModel(tiny)
    with pytest.raises(ValueError, match="512 output ids but the vocabulary"):
        InteractiveModel(
            demo.path("target"), tiny, vocabulary=tasks.SentencePiece(demo.path("vocabulary.model"))
        )


def test_texts_that_are_not_taken(model):
    with pytest.raises(TypeError, match="texts is one text, 'one text'; give a list"):
        model.predict("one text")
    with pytest.raises(TaskError, match="text 1 is .* but inputs hold 32"):
        model.predict(["much " * 40])
    with pytest.raises(ValueError, match="2 inputs but 1 targets; give pairs"):
        model.score(["a", "b"], ["c"])


def test_a_revised_text_is_drafted_from_its_last_output(tiny):
    """Whatever was the output before, the output is that of the text alone."""
    lengths = {"inputs": 32, "targets": 12}
    model = InteractiveModel(tiny, vocabulary=tasks.Bytes(), lengths=lengths)
    own, other = model.decode(["Tee", "Tees"])
    assert len(own.tokens) == own.calls == 12 and own.tokens != other.tokens
    calls = []
    for text, previous in (("Tee", None), ("Tee", None), ("Tees", None), ("Tee", "")):
        found = model.revise(text, previous=previous, gamma=3)
        assert found.tokens == (own if text == "Tee" else other).tokens
        calls.append(found.calls)
    first, again, revised, anew = calls
    assert first == anew == 12 and again == 12 // (3 + 1) < revised


@pytest.mark.parametrize(
    "given, message",
    [
        ({"int8": ("drft",)}, "int8 is .*'drft'.*; give roles, of target, draft, as in"),
        ({"int8_tokens": True}, "int8_tokens is True, but int8 names no model; give both"),
    ],
)
def test_eight_bits_that_cannot_be(given, message):
    with pytest.raises(ValueError, match=message):
        InteractiveModel.demo(**given)


@pytest.mark.slow
def test_a_mesh_changes_no_text(decoded):
    given = {"gamma": 3, "sampling": Sampling(1.0), "lengths": LENGTHS, "batch_size": 4}
    model = InteractiveModel.demo(**given, partitioner=Partitioner(2))
    assert model._engine.placement.mesh is not None
    assert [one.tokens for one in model.decode(TEXTS, seed=SEED)] == [x.tokens for x in decoded]
    (score,) = model.score(TEXTS[:1], [decoded[0].text])
    np.testing.assert_allclose(score, decoded[0].log_prob, atol=LOGITS)


def test_models_in_eight_bits():
    model = InteractiveModel.demo(int8=("target", "draft"), int8_tokens=True, lengths=LENGTHS)
    models = model._engine.plan.models()
    assert [models[role].weights for role in ("target", "draft")] == ["int8_tokens"] * 2


@pytest.mark.ci
def test_a_prefix_begins_every_output_and_samples_differ():
    given = {"gamma": 3, "sampling": Sampling(1.0), "lengths": LENGTHS}
    model = InteractiveModel.demo(**given, prefix="Die")
    first, second = (model.decode(TEXTS[2:], seed=SEED, sample=x)[0] for x in (0, 1))
    assert first.text.startswith("Die") and second.text.startswith("Die")
    assert first.tokens != second.tokens
    assert model.stats.tokens == len(first.tokens) + len(second.tokens) - 2 * len(
        model._engine.prefix
    )


@pytest.mark.ci
def test_the_draft_of_beams_is_chosen(pair):
    wide = pair.beams(["ab"], num_beams=2, draft_beams=3, draft_steps=4)
    assert wide[0].tokens == pair.beams(["ab"], num_beams=2)[0].tokens
    with pytest.raises(ValueError, match="the target reads texts; give a Whisper"):
        pair.transcribe(["talk.wav"])


@pytest.mark.ci
def test_a_call_at_another_temperature_has_the_texts_of_such_a_model(pair, tiny):
    drawing = InteractiveModel(
        tiny,
        tiny,
        gamma=2,
        sampling=Sampling(1.0),
        vocabulary=tasks.Bytes(),
        lengths={"inputs": 64, "targets": 6},
    )
    texts = ["ab", "cde", "f"]
    drawn = pair.decode(texts, seed=SEED, temperature=1.0, max_length=6)
    assert [x.tokens for x in drawn] == [x.tokens for x in drawing.decode(texts, seed=SEED)]
    greedy = drawing.decode(texts, temperature=0, max_length=8)
    assert [x.tokens for x in greedy] == [x.tokens for x in pair.decode(texts)]
    assert [x.tokens for x in drawn] != [x.tokens[:6] for x in greedy]
