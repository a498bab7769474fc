"""A tokenizer.json gives the ids of the SentencePiece model that it was made of.

pytest tests/tasks/test_tokenizer_json.py
"""

import itertools
import json
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import sentencepiece as sentencepiece_library

from specdec import cli, tasks
from specdec.common import demo
from specdec.tasks import pieces

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tokenizer" / "tokenizer.json"
MODEL = demo.path("vocabulary.model")
# What is not in the demo's data: spaces, normalization, bytes, and what looks like special tokens.
HOSTILE = (
    "",
    " ",
    "  two  spaces ",
    "\ttab\nline\x00",
    "a </s> b<pad></s>",
    "<unk> <s>",
    "Ａ ﬁ ① e\u0301 \u200b \u00a0 😀 漢字",
    "{ ⁇ } a▁b",
)


def texts() -> list[str]:
    """Returns hundreds of lines: the two tasks' data, and the project's first pages."""
    pairs = tasks.synthetic_task("specdec_ende").source("train", 0)
    more = tasks.synthetic_task("specdec_highlights").source("train", 0)
    lines = [*itertools.chain(*itertools.islice(pairs, 100), *itertools.islice(more, 20))]
    for file in sorted(Path(__file__).resolve().parents[2].glob("*.md")):
        lines += file.read_text(encoding="utf-8").splitlines()
    return lines


@pytest.fixture(scope="module")
def sentencepiece():
    return tasks.SentencePiece(MODEL).load()


@pytest.fixture(scope="module")
def ours():
    return tasks.TokenizerJson(str(GOLDEN)).load()


@pytest.fixture
def edited(tmp_path):
    """The path of the golden file after a change of its record."""

    def edit(change) -> str:
        record = json.loads(GOLDEN.read_text())
        change(record)
        file = tmp_path / "tokenizer.json"
        file.write_text(json.dumps(record))
        return str(file)

    return edit


def without_sentinels(record):
    del record["model"]["vocab"][-4:], record["added_tokens"][-4:]


def error_of(path) -> str:
    with pytest.raises(tasks.TaskError) as error:
        tasks.TokenizerJson(str(path)).load()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_ids_and_texts_are_sentencepieces(ours, sentencepiece, edited):
    plain = tasks.TokenizerJson(edited(without_sentinels)).load()
    assert (plain.vocab_size, plain.extra_ids) == (2048, 0)
    assert (ours.vocab_size, ours.extra_ids) == (2052, 4)
    lines = [*texts(), *HOSTILE]
    assert len(lines) > 500
    for line in lines:
        ids = sentencepiece.encode(line)
        assert plain.encode(line) == ours.encode(line) == ids, line
        assert ours.decode(ids) == sentencepiece.decode(ids)


def test_any_ids_can_be_read(ours, sentencepiece):
    """Without pieces of bytes: random ones are no UTF-8."""
    random = np.random.default_rng(0)
    for length in random.integers(0, 12, 500):
        ids = random.choice([0, 1, 2, *range(259, 2048), 9999], length).tolist()
        assert ours.decode(ids) == sentencepiece.decode(ids), ids


@pytest.mark.parametrize("text", ["The <extra_id_0> house", "<extra_id_3> a <extra_id_1>"])
def test_sentinels_count_down_from_the_last_id(ours, text):
    theirs = tasks.SentencePiece(MODEL, 4).load()
    ids = ours.encode(text)
    assert ids == theirs.encode(text) and max(ids) >= 2048
    assert ours.decode(ids) == theirs.decode(ids) == text


def test_sentinels_among_the_pieces_of_mt5(edited):
    """As transformers 5 saves mT5's: with the mark of a space, and added as they are."""

    def marked(record):
        for token in record["model"]["vocab"][-4:]:
            token[0] = f"▁{token[0]}"
        for token in record["added_tokens"][-4:]:
            token["content"] = f"▁{token['content']}"

    ours = tasks.TokenizerJson(edited(marked)).plain()
    assert ours.extra_ids == 4
    assert ours.decode(ours.encode("The <extra_id_0> house")) == "The <extra_id_0> house"


def test_added_tokens_have_the_ids_after_the_models():
    """An added token that the model has as well is listed once."""
    added = [{"id": id, "content": content} for id, content in ((3, "<d>"), (2, "<c>"), (1, "<b>"))]
    models = (
        {"type": "BPE", "vocab": {"b": 1, "a": 0}},
        {"type": "Unigram", "vocab": [["a", -1], ["b", -2]]},
    )
    for model in models:
        text = json.dumps({"model": model, "added_tokens": added})
        assert pieces.names_of_tokenizer(text) == ["a", "b", "<c>", "<d>"]
        assert pieces.added_to_tokenizer(text) == {"<b>": 1, "<c>": 2, "<d>": 3}


@pytest.mark.parametrize(
    "declared, control, ids",
    [
        ((0, 1, 2), [0], (0, 1, 2)),
        ((3, 1, 2), [0], (3, 1, 2)),
        ((-1, 1, 2), [0], (0, 1, 2)),
        ((-1, 1, 2), [1], (None, 1, 2)),
        ((-1, 2, 0), [], (None, 2, 0)),
        ((-1, 0, 2), [0], (None, 0, 2)),
        ((0, -1, 2), [], None),
        ((0, 1, -1), [], None),
    ],
)
def test_ids_of_padding_end_and_unknown_of_a_sentencepiece_model(declared, control, ids):
    pad, end, unknown = declared
    processor = mock.Mock(spec=sentencepiece_library.SentencePieceProcessor)
    processor.configure_mock(
        **{"pad_id.return_value": pad, "eos_id.return_value": end, "unk_id.return_value": unknown}
    )
    processor.get_piece_size.return_value = 3
    processor.is_control.side_effect = control.__contains__
    if ids is not None:
        assert pieces.special_ids(processor) == ids
        return
    with pytest.raises(
        ValueError, match="^it declares no EOS or no unknown piece; give the SentencePiece"
    ):
        pieces.special_ids(processor)


def test_a_sentencepiece_definition_of_it_is_told_the_right_one():
    with pytest.raises(tasks.TaskError, match=r"; a tokenizer.json is @tasks.TokenizerJson\(\)"):
        tasks.SentencePiece(str(GOLDEN)).plain()


def test_seqio_takes_it_as_a_vocabulary():
    import seqio

    ours = tasks.TokenizerJson(str(GOLDEN)).load()
    feature = seqio.Feature(ours)
    assert (feature.vocabulary.pad_id, ours.eos_id, ours.unk_id) == (0, 1, 2)
    ids = ours.encode_tf("The house is <extra_id_0>.")
    assert ids.numpy().tolist() == ours.encode("The house is <extra_id_0>.")
    assert ours.decode_tf(ids).numpy() == b"The house is <extra_id_0> ."
    assert isinstance(ours, seqio.Vocabulary)


def test_truncation_and_padding_are_not_the_files(edited, ours):
    def short(record):
        record["truncation"] = {
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        }

    text = "The house is wonderful"
    assert tasks.TokenizerJson(edited(short)).load().encode(text) == ours.encode(text)


def test_the_same_vocabulary_in_another_file(ours, sentencepiece, edited):
    def other(record):
        record["model"]["vocab"][300][0] = "other"

    assert tasks.same_vocabulary(ours, sentencepiece) and tasks.same_vocabulary(sentencepiece, ours)
    assert not tasks.same_vocabulary(ours, tasks.Bytes().load())
    theirs = tasks.TokenizerJson(edited(other)).load()
    assert not tasks.same_vocabulary(ours, theirs) and tasks.digest(ours) != tasks.digest(theirs)
    assert not tasks.same_vocabulary(sentencepiece, theirs)


def test_what_cannot_be_read(tmp_path, edited):
    assert "is not a file; give a tokenizer.json" in error_of(tmp_path / "none.json")
    junk = tmp_path / "junk.json"
    junk.write_text("{")
    assert f"vocabulary {junk} cannot be used: it is not JSON" in error_of(junk)
    file = edited(lambda record: record["model"].update(type="WordPiece"))
    assert "its model is WordPiece, and those read are Unigram and BPE" in error_of(file)


def test_an_eos_is_needed(edited):
    def without(record):
        record["model"]["vocab"][1][0] = "end"

    assert "no </s>" in error_of(edited(without))


def test_the_package_is_named_where_it_is_missing(monkeypatch, edited):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    path = edited(lambda record: record.update(version="other"))
    assert "needs the package tokenizers; pip install tokenizers" in error_of(path)


def test_a_flag_names_one(edited, capsys):
    path = edited(without_sentinels)
    flags = [f"--target={demo.path('draft')}", f"--vocabulary={path}", "--text=The house"]
    assert cli.main(["decode", "--dry_run", *flags]) == 0
    assert f"tasks.TokenizerJson.path = '{path}'" in capsys.readouterr().out.replace(
        " \\\n    ", " "
    )
