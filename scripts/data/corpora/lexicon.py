"""The words in `words/`, whose lines are concepts that a bilingual speaker knows.

English is left of ` = `, German is right of it. Each side lists its words for the concept, with
weights after a *; the default is 1. An underscore is a space. The two sides are chosen
independently, so neither text is a function of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from corpora.dice import Weighted

T = TypeVar("T")

MEN = "Peter Paul Thomas Max Felix Jonas Karl Martin".split()
WOMEN = "Anna Maria Lena Julia Clara Sophie Emma Lisa".split()
STATIVE = {"need", "see", "love", "know", "understand", "trust", "believe", "think", "hope", "hear"}
STATIVE |= {"forget", "miss", "notice", "find", "lose", "forgive", "like"}


class EnglishNoun(NamedTuple):
    singular: str
    plural: str


class GermanNoun(NamedTuple):
    singular: str
    gender: str  # m, f or n
    plural: str
    weak: bool = False  # der Student, den Studenten: every form but one ends in -en


class EnglishVerb(NamedTuple):
    base: str
    past: str
    participle: str
    particle: str = ""  # wake him *up*: after a pronoun, before a noun
    rest: str = ""  # look *for* him: never parted from the verb


class GermanVerb(NamedTuple):
    infinitive: str  # without its prefix
    prefix: str  # that separates, or ''
    changed: str  # the stem of the 2nd and 3rd person singular, '' if it is the infinitive's
    participle: str
    auxiliary: str  # haben or sein
    preposition: str = ""
    case: str = "accusative"  # of what follows the preposition


class Adjective(NamedTuple):
    predicative: str
    stem: str


class Place(NamedTuple):
    """A place in one of the languages; `where` takes the dative."""

    noun: EnglishNoun | GermanNoun
    where: str
    whither: str


class Link(NamedTuple):
    word: str
    main: bool  # a main clause follows


class Entry(NamedTuple):
    """A concept; the last two fields are those of a verb."""

    english: Weighted
    german: Weighted
    objects: tuple[str, ...] = ()  # classes of nouns that it takes
    stative: bool = False  # has no progressive


def _lines(name: str) -> Iterator[tuple[str, str, str]]:
    """Yields header, left and right side of a file's lines, below a [header]; # is a comment."""
    file = Path(__file__).parent / "words" / f"{name}.txt"
    header = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            header = line[1:-1]
        elif line and not line.startswith("#"):
            left, _, right = line.partition(" = ")
            yield header, left, right


def table(name: str, parse: Callable[[str], T]) -> dict[str, dict[str, T]]:
    """Returns header -> left side -> the parsed right side, for a file's lines."""
    found = defaultdict(dict)
    for header, left, right in _lines(name):
        found[header][left] = parse(right)
    return dict(found)


def _side(text: str, parse: Callable[..., T]) -> Weighted[T]:
    """Parses 'a b *3, c d' to words with weights 3 and 1; an underscore is a space."""
    items, weights = [], []
    for variant in text.split(", "):
        *fields, last = variant.split()
        weights.append(float(last[1:]) if last.startswith("*") else 1.0)
        fields += [] if last.startswith("*") else [last]
        items.append(parse(*fields))
    return Weighted.of(items, weights)


def _read(name: str, english: Callable, german: Callable) -> dict[str, tuple[Entry, ...]]:
    entries: dict[str, tuple[Entry, ...]] = defaultdict(tuple)
    for header, left, right in _lines(name):
        entries[header] += (Entry(_side(left, english), _side(right, german)),)
    return dict(entries)


def _phrase(word: str) -> str:
    return word.replace("_", " ")


def _german_noun(singular: str, gender: str, plural: str) -> GermanNoun:
    return GermanNoun(singular, gender[0], plural, gender.endswith("!"))


def _english_place(noun: str, where: str, whither: str) -> Place:
    return Place(EnglishNoun(_phrase(noun), f"{_phrase(noun)}s"), where, whither)


def _german_place(noun: str, gender: str, where: str, whither: str) -> Place:
    return Place(GermanNoun(noun, gender, ""), where, whither)


def _english_verb(base: str, past: str, participle: str = "") -> EnglishVerb:
    mark = "_" if "_" in base else "~"
    forms = [form.partition(mark) for form in (base, past, participle or past)]
    tail = forms[0][2].replace("~", " ")
    tails = (tail, "") if mark == "_" else ("", tail)
    return EnglishVerb(forms[0][0], forms[1][0], forms[2][0], *tails)


def _german_verb(infinitive: str, participle: str, auxiliary: str = "") -> GermanVerb:
    infinitive, _, changed = infinitive.partition("/")
    prefix, bar, rest = infinitive.partition("|")
    infinitive, prefix = (rest, prefix) if bar else (infinitive, "")
    return GermanVerb(infinitive, prefix, changed, participle, "sein" if auxiliary else "haben")


def _adjective(word: str) -> Adjective:
    predicative, _, stem = word.partition("/")
    return Adjective(predicative, stem or predicative.removesuffix("e"))


def _verbs() -> dict[str, tuple[Entry, ...]]:
    """Returns frame -> verbs. A frame of two words is a preposition and its case."""
    found: dict[str, tuple[Entry, ...]] = defaultdict(tuple)
    for header, entries in _read("verbs", _english_verb, _german_verb).items():
        frame, _, objects = header.partition(":")
        preposition, _, case = frame.partition(" ")
        for english, german, *_ in entries:
            if case:
                governed = (
                    one._replace(preposition=preposition, case=case) for one in german.items
                )
                german, frame = german._replace(items=tuple(governed)), "prepositional"
            stative = english.items[0].base in STATIVE
            found[frame] += (Entry(english, german, tuple(objects.split()), stative),)
    return dict(found)


NOUNS = _read("nouns", EnglishNoun, _german_noun)
PLACES = _read("places", _english_place, _german_place)
VERBS = _verbs()
ADJECTIVES = _read("adjectives", _phrase, _adjective)
ADVERBS = _read("adverbs", _phrase, _phrase)
BESIDE, COUNTS = _read("phrases", _phrase, _phrase).values()
_links = _read("links", _phrase, lambda word: Link(word.removesuffix("+"), word.endswith("+")))
LINKS = {header: entries[0] for header, entries in _links.items()}
LAWS = table("laws", lambda alternatives: _side(alternatives, _phrase))
