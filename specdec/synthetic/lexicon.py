"""What a speaker of both languages knows of the words in `words/`, whose lines are concepts.

Left of ` = ` is English, right is German. Each side lists its words for the concept, with their
weights behind a *, 1 if there is none. An underscore is a space. The two sides are chosen
independently of each other: neither text is a function of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from specdec.synthetic.dice import Weighted

T = TypeVar("T")

SEASONS = "spring=Frühling summer=Sommer fall=Herbst winter=Winter"
MONTHS = "January=Januar March=März April=April May=Mai June=Juni July=Juli October=Oktober"
DAYS = "Monday=Montag Tuesday=Dienstag Wednesday=Mittwoch Thursday=Donnerstag Friday=Freitag"
DAYS += " Saturday=Samstag Sunday=Sonntag"
NUMBERS = "two=zwei three=drei four=vier five=fünf six=sechs seven=sieben eight=acht ten=zehn"
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
    """A concept."""

    english: Weighted
    german: Weighted


class VerbEntry(NamedTuple):
    english: Weighted[EnglishVerb]
    german: Weighted[GermanVerb]
    objects: tuple[str, ...]  # classes of nouns
    stative: bool  # has no progressive


def _sections(name: str) -> Iterator[tuple[str, str]]:
    """(header, line) of every line of a file, below a [header]; a # begins a comment."""
    file = Path(__file__).parent / "words" / f"{name}.txt"
    header = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            header = line[1:-1]
        elif line and not line.startswith("#"):
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


def _read(name: str, english: Callable, german: Callable) -> dict[str, tuple[Entry, ...]]:
    entries = defaultdict(list)
    for header, line in _sections(name):
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
    for header, line in _sections("verbs"):
        frame, _, objects = header.partition(":")
        english, german = _entry(line, _english_verb, _german_verb)
        if " " in frame:
            preposition, case = frame.split()
            governed = [verb._replace(preposition=preposition, case=case) for verb in german.items]
            german, frame = german._replace(items=tuple(governed)), "prepositional"
        stative = english.items[0].base in STATIVE
        found[frame].append(VerbEntry(english, german, tuple(objects.split()), stative))
    return {frame: tuple(verbs) for frame, verbs in found.items()}


def _link(word: str) -> Link:
    return Link(word.removesuffix("+"), word.endswith("+"))


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (pair.partition("=") for pair in text.split())]


def _dates() -> dict[str, tuple[Entry, ...]]:
    """Adverbials of time that are one frame with many names."""
    frames = [(SEASONS, "in {}", "im {}"), (MONTHS, "in {}", "im {}")]
    frames += [(DAYS, "on {}", "am {}"), (NUMBERS, "at {} o'clock", "um {} Uhr")]
    one = [
        Entry(Weighted.of([english.format(left)], [1]), Weighted.of([german.format(right)], [1]))
        for names, english, german in frames
        for left, right in _pairs(names)
    ]
    return {"date": tuple(one)}


NOUNS: dict[str, tuple[Entry, ...]] = _read("nouns", EnglishNoun, _german_noun)
PLACES: dict[str, tuple[Entry, ...]] = _read(
    "places",
    lambda noun, where, whither: EnglishPlace(
        EnglishNoun(_phrase(noun), f"{_phrase(noun)}s"), where, whither
    ),
    lambda noun, gender, where, whither: GermanPlace(GermanNoun(noun, gender, ""), where, whither),
)
BESIDE: tuple[Entry, ...] = _read("beside", _phrase, _phrase)[""]
VERBS: dict[str, tuple[VerbEntry, ...]] = _verbs()
ADJECTIVES: dict[str, tuple[Entry, ...]] = _read("adjectives", _phrase, _adjective)
ADVERBS: dict[str, tuple[Entry, ...]] = _read("adverbs", _phrase, _phrase) | _dates()
LINKS: dict[str, Entry] = {
    header: entries[0] for header, entries in _read("links", _phrase, _link).items()
}
COUNTS: tuple[tuple[str, str], ...] = tuple(_pairs(NUMBERS))
