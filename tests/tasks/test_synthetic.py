"""The demo's texts, the script that generates them, and their tasks: pytest -m ci
tests/tasks/test_synthetic.py"""

import bz2
import io
import itertools
from pathlib import Path

import pytest

from specdec import tasks
from specdec.tasks.synthetic import SIZES

pytestmark = pytest.mark.ci

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("specdec_ende", "specdec_highlights", "specdec_gec", "specdec_qa", "specdec_articles")
LENGTHS = {"inputs": 176, "targets": 144}


def pairs(name, split):
    """The (input, target) pairs of a file."""
    data = bz2.decompress((ROOT / "demo" / "texts" / f"{name}.{split}.tsv.bz2").read_bytes())
    return [tuple(line.split("\t")) for line in data.decode().splitlines()]


@pytest.fixture(scope="module")
def scripts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts" / "data"))
        import make_demo_pair
        import make_texts

        yield make_texts, make_demo_pair


# The files


@pytest.mark.parametrize("name", NAMES)
def test_the_script_writes_the_same_files(scripts, name):
    for split in SIZES:
        data = bz2.decompress(scripts[0].text_file(name, split)).decode()
        assert [tuple(line.split("\t")) for line in data.splitlines()] == pairs(name, split)


def test_the_texts_of_the_pairs_go_on_from_any_place(scripts):
    generated = scripts[1].generated
    train = pairs("specdec_gec", "train")
    assert list(itertools.islice(generated("specdec_gec", "train", 7_990), 10)) == train[-10:]
    assert len(list(itertools.islice(generated("specdec_gec", "train", 10**6), 20))) == 20
    assert (
        list(generated("specdec_gec", "validation", 490))
        == pairs("specdec_gec", "validation")[490:]
    )


def test_the_task_of_a_pair_is_generated(scripts):
    scripts[1].register_texts(scripts[1].PAIRS["copying"])
    task = tasks.get_task(scripts[1].TEXTS)
    assert task.num_input_examples("validation") == 1000 and not task.fits("train")
    found = [x.input_text for x in itertools.islice(task.stream("train", LENGTHS, 0), 50)]
    for name, prefix in (("specdec_gec", "correct: "), ("specdec_qa", "question: ")):
        texts = [text for text in found if text.startswith(prefix)]
        assert 10 < len(texts) and texts == [x for x, _ in pairs(name, "train")[: len(texts)]]


@pytest.mark.parametrize("name", NAMES)
def test_splits_share_nothing(name):
    """Compares inputs, but whole articles where the input is a first sentence, as these are few."""
    whole = name == "specdec_articles"
    train, *held_out = (
        {source + target * whole for source, target in pairs(name, split)} for split in SIZES
    )
    assert all(len(split) == 500 for split in held_out)  # nor is anything in there twice
    assert not train & held_out[0] and not train & held_out[1] and not held_out[0] & held_out[1]


# Tasks


@pytest.mark.parametrize(
    "name, inputs, targets",
    [
        ("specdec_ende", 48, 48),
        ("specdec_highlights", 144, 48),
        ("specdec_gec", 64, 64),
        ("specdec_qa", 176, 48),
        ("specdec_articles", 32, 144),
    ],
)
def test_texts_fit(name, inputs, targets):
    vocabulary = tasks.demo_vocabulary().load()
    for split in ("validation", "test"):
        for source, target in pairs(name, split):
            assert len(vocabulary.encode(source)) < inputs
            assert len(vocabulary.encode(target)) < targets


@pytest.mark.parametrize("name", NAMES)
def test_the_vocabulary_covers_everything(name):
    """No unknown piece, no byte piece but the question mark, and the text comes back."""
    from sentencepiece import SentencePieceProcessor

    pieces = SentencePieceProcessor(model_file=tasks.demo_vocabulary().path)
    assert (pieces.pad_id(), pieces.eos_id(), pieces.unk_id(), pieces.bos_id()) == (0, 1, 2, -1)
    for text in itertools.chain(*pairs(name, "train")[:2000], *pairs(name, "test")):
        ids = pieces.encode(text)
        bytes_ = [pieces.id_to_piece(i) for i in ids if pieces.is_byte(i)]
        assert pieces.unk_id() not in ids and bytes_ == ["<0x3F>"] * text.count("?")
        assert pieces.decode(ids) == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", SIZES)
def test_a_task_holds_the_examples(name, split):
    task = tasks.synthetic_task(name)
    assert tasks.synthetic_task(name) is task and tasks.get_task(name) is task
    found = list(task.examples(split, LENGTHS))
    assert len(found) == tasks.count(task, split) == SIZES[split]
    assert [(x.input_text, x.target_text) for x in found] == pairs(name, split)
    assert found[0].inputs.tolist() == [*task.vocabulary.encode(found[0].input_text), 1]
    assert all(x.targets[-1] == 1 for x in found)
    later = next(task.examples(split, LENGTHS, start=400))
    assert later.input_text == found[400].input_text


def test_texts_are_utf_8_whatever_the_machine_writes(monkeypatch):
    """Files without an encoding of their own are ASCII here."""
    monkeypatch.setattr(io, "text_encoding", lambda encoding, *_: encoding or "ascii")
    task = tasks.synthetic_task("specdec_ende")
    found = [x.target_text for x in itertools.islice(task.examples("test", LENGTHS), 20)]
    assert found == [target for _, target in pairs("specdec_ende", "test")[:20]]
    assert not all(map(str.isascii, found))


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: tasks.synthetic_task("ende"),
            "no synthetic task is named 'ende'; there are specdec_ende, specdec_highlights",
        ),
        (
            lambda: [tasks.synthetic_task(NAMES[0], each) for each in (None, tasks.Bytes())],
            "exists with another vocabulary; use one for each task",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(tasks.TaskError, match=message):
        call()
