"""Added tokens of a tokenizer: pytest tests/test_added_tokens.py"""

from __future__ import annotations

import pytest

from specdec.checkpoints import tokenizer_files
from specdec.tasks.added_tokens import AddedToken, Tokenization, agree, cleaned_up, split
from specdec.tasks.plain import PlainBytes, WithAddedTokens

STRIPS = AddedToken(5, "<s>", lstrip=True, rstrip=True)
WORD = AddedToken(6, "x", single_word=True)
SHORT, LONG = AddedToken(7, "a+"), AddedToken(8, "a+b")


def test_added_tokens_agree_where_both_have_them():
    def agreed(*theirs):
        ours = ((5, "a"), (6, "b"))
        return agree(*((AddedToken(*x) for x in tokens) for tokens in (ours, theirs)))

    assert agreed() and agreed((5, "a")) and agreed((7, "c"), (6, "b"))
    assert not agreed((5, "c")) and not agreed((7, "a"))


@pytest.mark.parametrize(
    "text, tokens, parts",
    [
        ("ab", (), ["ab"]),
        ("a <s> b", (STRIPS,), ["a", STRIPS, "b"]),
        ("<s>b ", (STRIPS,), [STRIPS, "b "]),
        (" b<s>", (STRIPS,), [" b", STRIPS]),
        ("a x b", (WORD,), ["a ", WORD, " b"]),
        ("ax b", (WORD,), ["ax", " b"]),
        ("a xb", (WORD,), ["a ", "xb"]),
        ("a+ba+aab", (SHORT, LONG), [LONG, SHORT, "aab"]),
    ],
)
def test_a_text_is_split_at_its_added_tokens(text, tokens, parts):
    assert list(split(text, tokens)) == parts


def test_spaces_are_removed_in_the_order_of_transformers():
    assert cleaned_up("it 's ' so ' , he does n't .") == "it's'so ', he doesn't."


def test_bytes_and_added_tokens_are_joined():
    added = AddedToken(259, "<x>"), AddedToken(300, "\u00e4")
    vocabulary = WithAddedTokens(PlainBytes(0), Tokenization(added))
    ids = [*(byte + 3 for byte in "h\u00f6".encode()), 259, ord("e") + 3, 300, 299]
    assert vocabulary.decode(ids) == "h\u00f6<x>e\u00e4"
    assert vocabulary.decode([byte + 3 for byte in b"no ,"]) == "no ,", "nothing is cleaned up"


def test_the_files_of_a_tokenizer_other_than_its_vocabulary(tmp_path):
    for name in ("tokenizer_config.json", "tokenizer.json", "spiece.model", "other.json"):
        (tmp_path / name).touch()

    def names(vocabulary):
        return [file.name for file in tokenizer_files.present(tmp_path, vocabulary)]

    assert names(tmp_path / "spiece.model") == ["tokenizer_config.json", "tokenizer.json"]
    assert names(tmp_path / "tokenizer.json") == names(None) == ["tokenizer_config.json"]
