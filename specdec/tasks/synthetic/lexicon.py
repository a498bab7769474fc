"""The entries that `words` writes down: what a speaker of both languages knows of a word.

An entry is one concept. Each language has one or more words for it with weights, and the two sides
are chosen independently of each other: neither text is a function of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from specdec.tasks.synthetic import words
from specdec.tasks.synthetic.dice import Weighted

T = TypeVar("T")


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
    particle: str = ""  # wake him *up*: behind a pronoun, before a noun
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


class EnglishPlace(NamedTuple):
    noun: EnglishNoun
    where: str
    whither: str


class GermanPlace(NamedTuple):
    noun: GermanNoun
    where: str  # with the dative
    whither: str


class Link(NamedTuple):
    word: str
    main: bool  # a main clause follows


class Entry(NamedTuple):
    english: Weighted
    german: Weighted


class VerbEntry(NamedTuple):
    english: Weighted[EnglishVerb]
    german: Weighted[GermanVerb]
    objects: tuple[str, ...]  # classes of nouns
    stative: bool  # has no progressive


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """(header, line) of every line below a [header]."""
    header = ""
    for line in filter(None, text.splitlines()):
        if line.startswith("["):
            header = line[1:-1]
        else:
            yield header, line


def _side(text: str, parse: Callable[..., T]) -> Weighted[T]:
    """'a b *3, c d' -> the words parsed, with weights 3 and 1; an underscore is a space."""
    items, weights = [], []
    for variant in text.split(", "):
        *fields, last = variant.split()
        weights.append(float(last[1:]) if last.startswith("*") else 1.0)
        fields += [] if last.startswith("*") else [last]
        items.append(parse(*fields))
    return Weighted.of(items, weights)


def _entry(line: str, english: Callable, german: Callable) -> Entry:
    left, right = line.split(" = ")
    return Entry(_side(left, english), _side(right, german))


def _read(text: str, english: Callable, german: Callable) -> dict[str, tuple[Entry, ...]]:
    entries = defaultdict(list)
    for header, line in _sections(text):
        entries[header].append(_entry(line, english, german))
    return {header: tuple(found) for header, found in entries.items()}


def _phrase(word: str) -> str:
    return word.replace("_", " ")


def _german_noun(singular: str, gender: str, plural: str) -> GermanNoun:
    return GermanNoun(singular, gender[0], plural, gender.endswith("!"))


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


def _verbs() -> dict[str, tuple[VerbEntry, ...]]:
    """Frame -> verbs. A frame of two words is a preposition and its case."""
    found = defaultdict(list)
    for header, line in _sections(words.VERBS):
        frame, _, objects = header.partition(":")
        english, german = _entry(line, _english_verb, _german_verb)
        if " " in frame:
            preposition, case = frame.split()
            governed = [verb._replace(preposition=preposition, case=case) for verb in german.items]
            german, frame = german._replace(items=tuple(governed)), "prepositional"
        stative = english.items[0].base in words.STATIVE
        found[frame].append(VerbEntry(english, german, tuple(objects.split()), stative))
    return {frame: tuple(verbs) for frame, verbs in found.items()}


def _link(word: str) -> Link:
    return Link(word.removesuffix("+"), word.endswith("+"))


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (pair.partition("=") for pair in text.split())]


def _dates() -> dict[str, tuple[Entry, ...]]:
    """Adverbials of time that are one frame with many names."""
    frames = [(words.SEASONS, "in {}", "im {}"), (words.MONTHS, "in {}", "im {}")]
    frames += [(words.DAYS, "on {}", "am {}"), (words.COUNTS, "at {} o'clock", "um {} Uhr")]
    one = [
        Entry(Weighted.of([english.format(left)], [1]), Weighted.of([german.format(right)], [1]))
        for names, english, german in frames
        for left, right in _pairs(names)
    ]
    return {"date": tuple(one)}


NOUNS: dict[str, tuple[Entry, ...]] = _read(words.NOUNS, EnglishNoun, _german_noun)
PLACES: dict[str, tuple[Entry, ...]] = _read(
    words.PLACES,
    lambda noun, where, whither: EnglishPlace(
        EnglishNoun(_phrase(noun), f"{_phrase(noun)}s"), where, whither
    ),
    lambda noun, gender, where, whither: GermanPlace(GermanNoun(noun, gender, ""), where, whither),
)
BESIDE: tuple[Entry, ...] = _read(words.BESIDE, _phrase, _phrase)[""]
VERBS: dict[str, tuple[VerbEntry, ...]] = _verbs()
ADJECTIVES: dict[str, tuple[Entry, ...]] = _read(words.ADJECTIVES, _phrase, _adjective)
ADVERBS: dict[str, tuple[Entry, ...]] = _read(words.ADVERBS, _phrase, _phrase) | _dates()
LINKS: dict[str, Entry] = {
    header: entries[0] for header, entries in _read(words.LINKS, _phrase, _link).items()
}
COUNTS: tuple[tuple[str, str], ...] = tuple(_pairs(words.COUNTS))
