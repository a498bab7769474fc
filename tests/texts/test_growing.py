"""The pieces of a text that grows are together the text, and no piece ends in half a character.

pytest tests/texts/test_growing.py
"""

from pathlib import Path

import numpy as np
import pytest

from specdec import tasks
from specdec.common import demo
from specdec.tasks.added_tokens import Tokenization
from specdec.texts.growing import Growing

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tokenizer" / "tokenizer.json"
VOCABULARIES = {
    "sentencepiece": tasks.SentencePiece(demo.path("vocabulary.model")),
    "cleaned up": tasks.SentencePiece(
        demo.path("vocabulary.model"), tokenization=Tokenization(clean_up=True)
    ),
    "tokenizer.json": tasks.TokenizerJson(str(GOLDEN)),
    "bytes": tasks.Bytes(0),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_pieces_are_together_the_text(name):
    """Texts with characters of two to four bytes, and ids that no text encodes to."""
    vocabulary, rng = VOCABULARIES[name].load(), np.random.default_rng(0)
    growing, given = Growing(vocabulary), "Zwölf Käse, 漢字 😀 😀. It's what they don't say !"
    for ids in (vocabulary.encode(given), *rng.integers(3, 250, (30, 25)).tolist()):
        steps = np.cumsum(rng.integers(1, 4, len(ids)))
        ends = [0, *(int(step) for step in steps if step < len(ids)), len(ids)]
        found = list(growing.pieces(ids[:end] for end in ends))
        assert "".join(found) == tasks.detokenize(vocabulary, ids)
        assert all(found) and not any(piece.endswith("\ufffd") for piece in found[:-1])


def test_pieces_come_as_soon_as_later_tokens_cannot_change_them():
    vocabulary = VOCABULARIES["bytes"].load()
    ids = vocabulary.encode("aé😀b")  # 1, 2, 4 and 1 bytes
    found = list(Growing(vocabulary).pieces(ids[:end] for end in range(9)))
    assert found == ["a", "é", "😀", "b"]


def test_a_run_of_bytes_waits_for_its_end():
    """A decoder writes each byte of a run as unknown if one of them is no text."""
    vocabulary = VOCABULARIES["tokenizer.json"].load()
    a, character, broken = (vocabulary.encode(text) for text in ("Ein", "漢", "漢"))
    assert tasks.byte_ids(vocabulary) >= set(character[1:]) and len(character) == 4
    of_text = [a, a + character[1:3], a + character[1:], a + character[1:] + a]
    of_text.append(of_text[-1] + a)
    assert list(Growing(vocabulary).pieces(of_text)) == ["Ein", "漢 Ein", " Ein"]
    broken = a + character[1:] + character[1:2]
    assert list(Growing(vocabulary).pieces([*of_text[:3], broken])) == ["Ein", 4 * "\ufffd"]


class Spelled:
    """A vocabulary whose text of the ids [n] is the n-th of some texts."""

    digest = None

    def __init__(self, *texts: str):
        self._texts = texts

    def decode(self, ids):
        return self._texts[ids[-1]] if ids else ""


@pytest.mark.parametrize(
    "texts, found",
    [
        ([], []),
        ([""], []),
        (["a", "a", "ab", "ab"], ["a", "b"]),
        (["a ", "a b"], ["a", " b"]),
        (["do", "do n", "do n'", "don't"], ["do", "n't"]),
        (["we", "we '", "we 'v", "we've"], ["we", "'ve"]),
        (["we", "we '", "we 'r", "we're"], ["we", "'re"]),
        (["it '", "it'"], ["it", "'"]),
        (["a n", "a no"], ["a", " no"]),  # it might have been "an't"
        (["a k", "a ko"], ["a k", "o"]),
        (["a\ufffd\ufffd", "a\ufffd\ufffd"], ["a", "\ufffd\ufffd"]),  # bytes that stay none
        (["a\ufffd", "a\ufffdb"], ["a", "\ufffdb"]),
        (["a  ", "a  b"], ["a ", " b"]),
    ],
)
def test_the_end_that_may_change_is_held_back(texts, found):
    growing = Growing(Spelled(*texts))
    assert list(growing.pieces([n] for n in range(len(texts)))) == found


def test_a_text_that_takes_words_back_is_refused():
    growing = Growing(Spelled("a b", "c")).pieces([[0], [1]])
    assert next(growing) == "a b"
    with pytest.raises(ValueError, match="the text 'c' does not begin with 'a b'"):
        next(growing)
