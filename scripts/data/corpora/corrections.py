"""English with a learner's errors, and the same English without them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from corpora import english, translation
from corpora.dice import Dice, Weighted
from corpora.lexicon import (
    ADJECTIVES,
    ADVERBS,
    COUNTS,
    LINKS,
    MEN,
    NOUNS,
    PLACES,
    VERBS,
    WOMEN,
    EnglishVerb,
    Entry,
)
from corpora.sentence_tree import HE, IT, Sentence

TASK = 3  # the first coordinate of `Dice`
MAX_WORDS = 30  # of the correct text, where it has two sentences

# How many errors a text has: 1.3 on average, as a sentence of a learner's essay.
_ERRORS = Weighted.of([0, 1, 2, 3], [25, 37, 23, 15])
_APART = 2  # words from one error to the next, so that what tells the right form is itself right
_ATTEMPTS = 12  # to find a kind of error that the text has a place for


class Edit(NamedTuple):
    """An error in the correct text."""

    kind: str
    at: int  # which word
    text: str  # what stands there instead: a word, two, or none


class Correction(NamedTuple):
    """A correct text and its errors."""

    words: tuple[str, ...]  # of the correct text
    edits: tuple[Edit, ...]

    @property
    def source(self) -> str:
        words = list(self.words)
        for edit in self.edits:
            words[edit.at] = edit.text
        return " ".join(filter(None, words))

    @property
    def target(self) -> str:
        return " ".join(self.words)


def example(split: str, index: int) -> tuple[str, str]:
    """Returns a text with 0 to 3 errors, and the text without them.

    The correct form of each error follows from the rest of the text. The arguments are those of
    `translation.example`.
    """
    correction = sample(Dice(TASK, split, index))
    return correction.source, correction.target


def sample(dice: Dice) -> Correction:
    """Returns one or two sentences, and their errors."""
    sentences = [translation.sample(dice), translation.sample(dice)]
    texts = [english.sentence_text(sentence).split() for sentence in sentences]
    if len(texts[0]) + len(texts[1]) > MAX_WORDS:
        del sentences[1], texts[1]
    words = [word for text in texts for word in text]
    edits: list[Edit] = []
    wanted = dice.weigh(_ERRORS)
    for _ in range(_ATTEMPTS):
        if len(edits) == wanted:
            break
        kind = dice.weigh(_KIND)
        places = [
            Edit(kind, at, text)
            for at, text in KINDS[kind](words, sentences)
            if all(abs(at - edit.at) > _APART for edit in edits)
        ]
        if places:
            edits.append(dice.pick(places))
    return Correction(tuple(words), tuple(sorted(edits, key=lambda edit: edit.at)))


# What the words are, by their looks. Only what is one thing alone is looked at as such.


def _items(entries: Iterable[Entry]) -> list:
    return [item for entry in entries for item in entry.english.items]


def _all(entries: Mapping[str, Sequence[Entry]]) -> list:
    return _items(itertools.chain(*entries.values()))


_SINGULAR = {noun.plural: noun.singular for noun in _all(NOUNS)}
_PLURAL = {noun.singular: noun.plural for noun in _all(NOUNS)}
_WHERE = {place.noun.singular.split()[-1]: place.where for place in _all(PLACES)}
_ADJECTIVE = set(_all(ADJECTIVES))
_PAST, _FREQUENCY = set(_items(ADVERBS["past"])), set(_items(ADVERBS["frequency"]))
_DATES = [phrase.split() for phrase in _items(ADVERBS["date"])]  # on Monday, at two o'clock
_NUMBERS = _items(COUNTS)
_OTHER = {word for one in (*_all(ADVERBS), *_items(LINKS.values())) for word in one.split()}
_VERBS: list[EnglishVerb] = list(dict.fromkeys(_all(VERBS)))


def _alone(verb: EnglishVerb) -> bool:
    """Returns whether no other word looks like the present, nor the past like the base form."""
    present = {verb.base, english.with_s(verb.base)}
    others = _PLURAL.keys() | _SINGULAR.keys() | _ADJECTIVE | _OTHER | {"have"}
    return verb.base != verb.past and not present & others


_FORMS = {verb.base: verb for verb in _VERBS if _alone(verb)}
_PARTICIPLES = {verb.participle: verb for verb in _FORMS.values()}
_PRESENT = {english.with_ing(base): verb for base, verb in _FORMS.items()}


def _conjugated(verb: EnglishVerb) -> tuple[str, ...]:
    base = verb.base
    return base, verb.past, verb.participle, english.with_s(base), english.with_ing(base)


_SPELLED = {*_PLURAL, *_SINGULAR, *_WHERE} | _ADJECTIVE | _OTHER
_SPELLED |= {form for verb in _VERBS for form in _conjugated(verb)}
_MODALS = {"can", "cannot", "could", "will", "must", "should", "may", "did", "does", "do"}
_AGREEMENT = {"is": "are", "are": "is", "am": "is", "was": "were", "were": "was"}
_AGREEMENT |= {"has": "have", "have": "has", "does": "do", "do": "does"}
_AGREEMENT |= {english.with_s(base): base for base in _FORMS}
_AGREEMENT |= {base: english.with_s(base) for base in _FORMS}
_PREPOSITIONS = ("in", "on", "at", "to", "for", "about", "of", "with")
_AT = {name: preposition for preposition, name, *_ in _DATES}
_PROPER = {*MEN, *WOMEN, *(name for _, name, *_ in _DATES if name.istitle()), "I"}


def _governed() -> dict[str, tuple[str, bool]]:
    """Returns form of a verb -> its one preposition, and whether it also occurs without it."""
    found: dict[str, set[str]] = {}
    for verb in _VERBS:
        found.setdefault(verb.base, set()).add(verb.rest or verb.particle)
    return {
        form: (verb.rest, "" in found[verb.base])
        for verb in _VERBS
        if verb.rest in _PREPOSITIONS and found[verb.base] <= {verb.rest, ""}
        for form in _conjugated(verb)
    }


_GOVERNED = _governed()

Places = Iterator[tuple[int, str]]  # which word, and what stands there instead


def _core(word: str) -> str:
    return word.rstrip(".,")


def _instead(word: str, core: str) -> str:
    """Returns `core` with the punctuation that `word` ends in."""
    return core + word[len(_core(word)) :]


def _begins(words: Sequence[str], at: int) -> bool:
    """Returns whether a sentence begins there."""
    return at == 0 or words[at - 1].endswith(".")


def _after(words: Sequence[str], at: int, skipped: set[str]) -> int:
    """Returns the place of the next word not skipped, or `at` if a clause ends before it."""
    place = at
    while place + 1 < len(words) and words[place][-1] not in ".,":
        place += 1
        if words[place] not in skipped:
            return place
    return at


def _article(words: Sequence[str], _) -> Places:
    """Yields 'a' for 'an', a missing 'the', or an article where none belongs."""
    for at, word in enumerate(words):
        if _begins(words, at):
            continue
        noun = _core(words[_after(words, at, _ADJECTIVE)])
        if word in ("a", "an"):
            yield at, "an" if word == "a" else "a"
        elif word == "the" and (noun in _PLURAL or noun in _WHERE):
            yield at, ""
        elif word in ("my", "your", "his", "our", "their") or _core(word) in (*MEN, *WOMEN):
            yield at, f"the {word}"


def _agreement(words: Sequence[str], _) -> Places:
    """Yields a wrong verb form after its subject: 'she sleep', 'they sleeps', 'will sleeps'."""
    for at, word in enumerate(words):
        core = _core(word)
        if core in _AGREEMENT and not _begins(words, at):
            yield at, _instead(word, _AGREEMENT[core])


def _form(words: Sequence[str], _) -> Places:
    """Yields a wrong form in a verb group: 'has sleep', 'is sleep', 'will slept', 'to slept'."""
    for at, word in enumerate(words):
        place = _after(words, at, _FREQUENCY | {"not"})
        core = _core(words[place])
        wrong = ""
        if word in ("has", "have") and core in _PARTICIPLES:
            verb = _PARTICIPLES[core]
            wrong = verb.base if verb.past == core else verb.past
        elif word in ("am", "is", "are") and core in _PRESENT:
            wrong = _PRESENT[core].base
        elif (word in _MODALS or word == "to") and core in _FORMS:
            wrong = _FORMS[core].past
        if wrong and wrong != core:
            yield place, _instead(words[place], wrong)


def _tense(words: Sequence[str], sentences: Sequence[Sentence]) -> Places:
    """Yields the present tense for something that happened yesterday."""
    for clause in (c for s in sentences for c in (s.first, s.second) if c):
        verb, time = clause.verb and clause.verb.english, clause.time
        if not (verb and time and clause.tense == "past" and time.english in _PAST):
            continue
        places = [at for at, word in enumerate(words) if _core(word) == verb.past]
        if verb.past != verb.base and not clause.negated and len(places) == 1:
            third = HE <= clause.subject.person <= IT
            wrong = english.with_s(verb.base) if third else verb.base
            yield places[0], _instead(words[places[0]], wrong)


def _preposition(words: Sequence[str], _) -> Places:
    """Yields a wrong or missing preposition: 'on June', 'at the kitchen', 'want sleep'."""
    for at in range(1, len(words) - 1):
        word, before = words[at], words[at - 1]
        if before in _GOVERNED and word == _GOVERNED[before][0]:
            yield from ((at, wrong) for wrong in _PREPOSITIONS[:-1] if wrong != word)
            if not _GOVERNED[before][1]:
                yield at, ""
        elif word in ("in", "on", "at") and not _begins(words, at):
            noun = words[_after(words, at, _ADJECTIVE | {"the", "a", "an", "this", "living"})]
            if word in (_AT.get(_core(words[at + 1])), _WHERE.get(_core(noun))):
                yield from ((at, wrong) for wrong in ("in", "on", "at") if wrong != word)
        elif word == "to" and before in ("want", "wants", "wanted", "like", "allowed", "supposed"):
            yield at, ""


def _number(words: Sequence[str], _) -> Places:
    """Yields a wrong number: 'many dog', 'this dogs'."""
    many = {"many", "some", "these", *_NUMBERS}
    for at, word in enumerate(words):
        forms = _SINGULAR if word.lower() in many else _PLURAL
        if forms is _PLURAL and word.lower() not in ("a", "an", "this"):
            continue
        place = _after(words, at, _ADJECTIVE)
        core = _core(words[place])
        if core in forms and forms[core] != core:
            yield place, _instead(words[place], forms[core])


def _spelling(words: Sequence[str], _) -> Places:
    """Yields two letters in the wrong order, one letter too many or one too few."""
    for at, word in enumerate(words):
        core = _core(word)
        if len(core) < 5 or not (core.isalpha() and core.islower()):
            continue
        for i in range(1, len(core) - 1):
            here, there = core[i], core[i + 1]
            if here == there:
                wrong = [core[:i] + core[i + 1 :]]
            else:
                wrong = [core[:i] + there + here + core[i + 2 :]]
                if core[i - 1] != here:
                    wrong.append(core[:i] + here + core[i:])
            yield from ((at, _instead(word, each)) for each in wrong if each not in _SPELLED)


def _doubled(words: Sequence[str], _) -> Places:
    """Yields a repeated word, but not 'her her', which may be right."""
    for at, word in enumerate(words):
        if word.isalpha() and word.islower() and word != "her":
            yield at, f"{word} {word}"


def _comma(words: Sequence[str], _) -> Places:
    """Yields a word without its comma."""
    yield from ((at, word[:-1]) for at, word in enumerate(words) if word.endswith(","))


def _capital(words: Sequence[str], _) -> Places:
    """Yields a sentence or a name without its capital letter."""
    for at, word in enumerate(words):
        if _begins(words, at) or _core(word) in _PROPER:
            yield at, word.lower()


# Where the words of correct sentences can go wrong, for each kind of error.
KINDS: Mapping[str, Callable[[Sequence[str], Sequence[Sentence]], Places]] = {
    "article": _article,
    "agreement": _agreement,
    "form": _form,
    "tense": _tense,
    "preposition": _preposition,
    "number": _number,
    "spelling": _spelling,
    "doubled": _doubled,
    "comma": _comma,
    "capital": _capital,
}
_KIND = Weighted.of(list(KINDS), [20, 14, 8, 6, 16, 10, 14, 5, 6, 6])
