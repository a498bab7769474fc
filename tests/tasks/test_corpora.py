"""The first texts of the generated corpora, and errors by hand: pytest tests/tasks/test_corpora.py

What all texts of a corpus have in common is tested in tests/synthetic.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re

import pytest

from specdec.tasks import corpora
from specdec.tasks.corpora import corrections, english
from specdec.tasks.corpora.dice import Dice, Weighted

# Of 30 examples each of train and test: the models in demo/ were trained on these very texts.
DIGESTS = {
    "specdec_ende": "476c182f1f08babe",
    "specdec_highlights": "3fc671641c5f333a",
    "specdec_gec": "6fd930a23f5dee9f",
    "specdec_qa": "8e6ded922fa50e3f",
    "specdec_articles": "75f1635791e5e922",
}


@pytest.mark.parametrize("name", corpora.PREFIXES)
def test_the_first_texts_of_a_corpus_stay(name):
    digest = hashlib.sha256()
    for split in ("train", "test"):
        for pair in itertools.islice(corpora.examples(name, split), 30):
            digest.update(repr(pair).encode())
    assert digest.hexdigest()[:16] == DIGESTS[name]


def test_alternatives_have_bounds_by_their_weights():
    weighted = Weighted.of("abc", [6, 1, 2])
    assert weighted == (("a", "b", "c"), (6 / 9, 7 / 9, 1.0))


@pytest.mark.parametrize(
    "index, seed, right",
    [
        (0, 0, True),
        (2**48 - 1, 2**32 - 1, True),
        (-1, 0, False),
        (0, -1, False),
        (2**48, 0, False),
        (0, 2**32, False),
    ],
)
def test_numbers_of_texts_and_seeds_have_a_range(index, seed, right):
    said = re.escape(f"(index, seed) is ({index}, {seed}); give 0 <= index < 2**48 and 0 <= seed <")
    with contextlib.nullcontext() if right else pytest.raises(ValueError, match=said):
        Dice(1, "train", index, seed)


@pytest.mark.parametrize(
    "base, third",
    [
        ("have", "has"),
        ("carry", "carries"),
        ("play", "plays"),
        ("go", "goes"),
        ("wash", "washes"),
        ("fix", "fixes"),
        ("sing", "sings"),
    ],
)
def test_the_third_person_of_a_verb(base, third):
    assert english.with_s(base) == third


@pytest.mark.parametrize(
    "kind, text, wrong, never",
    [
        ("article", "Now a dog sees the old cat.", ["Now an dog sees the old cat."]
         + ["Now a dog sees old cat."], []),
        ("article", "We saw the old cats and my son.", ["We saw the old cats and the my son."],
         ["We saw old cats and my son."]),  # which would be correct
        ("agreement", "Today they sing, but he was sad.", ["Today they sings, but he was sad."]
         + ["Today they sing, but he were sad."], []),
        ("agreement", "Now she cooks the soup.", [], ["Now she cook the soup."]),  # a cook
        ("form", "He has never drunk it.", ["He has never drank it."], []),
        ("form", "She did not sing.", ["She did not sang."], []),
        ("form", "You are singing to forget him.", ["You are sing to forget him."]
         + ["You are singing to forgot him."], []),
        ("preposition", "We wait for you in June.", ["We wait at you in June."]
         + ["We wait for you on June."], ["We wait you in June.", "We wait for you at June in."]),
        ("preposition", "I listen to you in the big park.", ["I listen you in the big park."]
         + ["I listen to you at the big park."], []),
        ("preposition", "I look for him, look at him and look after him.", [],  # all correct
         ["I look at him, look at him and look after him."]
         + ["I look for him, look for him and look after him."]
         + ["I look for him, look at him and look for him."]),
        ("preposition", "They want to sing.", ["They want sing."], []),
        ("preposition", "We wait for", [], ["We wait at"]),  # the last word has no place
        ("number", "Many old dogs see a cat.", ["Many old dog see a cat."]
         + ["Many old dogs see a cats."], ["Many olds dogs see a cat."]),
        ("spelling", "The teacher can see it.", ["The taecher can see it."]
         + ["The teaacher can see it."], ["The etacher can see it.", "The teacher cna see it."]),
        ("spelling", "An apple.", ["An aple."], []),
        ("spelling", "We choose it.", ["We chosoe it."], ["We chose it."]),  # correct
        ("doubled", "He gave her her book.", ["He gave gave her her book."],
         ["He gave her her her book."]),
        ("comma", "Now, he sings.", ["Now he sings."], []),
        ("capital", "He met Anna. I slept.", ["he met Anna. I slept.", "He met anna. I slept."]
         + ["He met Anna. i slept."], []),
    ],
)  # fmt: skip
def test_errors_follow_the_grammar(kind, text, wrong, never):
    words, found = text.split(), set()
    for at, instead in corrections.KINDS[kind](words, []):
        found.add(" ".join(filter(None, [*words[:at], instead, *words[at + 1 :]])))
    assert set(wrong) <= found and not set(never) & found, found
