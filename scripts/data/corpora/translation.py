"""English sentences and their German translations, from a grammar written for this project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corpora import english, german
from corpora.dice import Dice
from corpora.lexicon import (
    ADJECTIVES,
    ADVERBS,
    BESIDE,
    COUNTS,
    LAWS,
    LINKS,
    MEN,
    NOUNS,
    PLACES,
    VERBS,
    WOMEN,
    Entry,
)
from corpora.sentence_tree import (
    HE,
    IT,
    SHE,
    THEY,
    WE,
    YOU,
    Adverbial,
    Clause,
    I,
    Name,
    Nominal,
    NounPhrase,
    Pronoun,
    Sentence,
    Words,
)

TASK = 1  # the first coordinate of `Dice`
MIN_WORDS, MAX_WORDS = 5, 30  # of either text


def example(split: str, index: int) -> tuple[str, str]:
    """Returns an English sentence and its German translation, which depend only on the arguments.

    Args:
      split: train, validation or test; no two splits share seeds.
      index: the number of the example; 0 <= index < 2**48.
    """
    tree = sample(Dice(TASK, split, index))
    return english.sentence_text(tree), german.sentence_text(tree)


def sample(dice: Dice) -> Sentence:
    """Returns a tree whose two texts have MIN_WORDS to MAX_WORDS words."""
    while True:
        tree = _sentence(dice)
        texts = english.sentence_text(tree), german.sentence_text(tree)
        if all(MIN_WORDS <= len(text.split()) <= MAX_WORDS for text in texts):
            return tree


# How often what is said. The rest of this file is what may be said.
_LAW, _MODALS, _TIMES, _AFTER = (LAWS[name] for name in ("law", "modal", "time", "after"))
_ADJECTIVES_OF = {"person": "person", "kin": "person"} | {
    name: name if name in ADJECTIVES else "object"
    for name in NOUNS
    if name not in ("person", "kin")
}
_PERSONS = (I, YOU, HE, SHE, WE, THEY)


def _words(dice: Dice, entry: Entry) -> Words[Any, Any]:
    """Returns English and German words for a concept."""
    return Words(dice.weigh(entry.english), dice.weigh(entry.german))


def _pick(dice: Dice, entries: Sequence[Entry]) -> Words[Any, Any]:
    return _words(dice, dice.pick(entries))


# Nominals


def _noun(
    dice: Dice, name: str, subject: Nominal | None = None, relative: float = 0.0
) -> NounPhrase:
    """Returns a noun of class `name` that `subject` may own, with a clause at probability
    `relative`."""
    entry = dice.pick(NOUNS[name])
    determiner = dice.weigh(_LAW["kin"] if name == "kin" else _LAW["determiner"])
    plural = determiner == "plural" or (name == "kin" and dice.chance(0.15))
    if determiner == "plural":
        determiner = dice.weigh(_LAW["plural"])
    adjective = dice.chance(0.1 if name == "kin" else 0.32)
    words = _words(dice, entry)
    phrase = NounPhrase(
        words.english,
        words.german,
        determiner,
        plural,
        _owner(dice, subject) if determiner == "possessive" else I,
        _pick(dice, COUNTS) if determiner == "count" else None,
        (_pick(dice, ADJECTIVES[_ADJECTIVES_OF[name]]),) if adjective else (),
    )
    if determiner in ("the", "a") and dice.chance(relative):
        return _with_relative(dice, phrase, name)
    return phrase


def _owner(dice: Dice, subject: Nominal | None) -> int:
    if subject is not None and subject.person != IT and dice.chance(0.7):
        return subject.person
    return dice.pick(_PERSONS)


def _name(dice: Dice) -> Name:
    if dice.chance(0.2):
        first, second = dice.pick(WOMEN), dice.pick(MEN)
        return Name(Words(f"{first} and {second}", f"{first} und {second}"), THEY)
    names, person = (WOMEN, SHE) if dice.chance(0.5) else (MEN, HE)
    name = dice.pick(names)
    return Name(Words(name, name), person)


def _subject(dice: Dice, relative: float = 0.0) -> Nominal:
    """Chooses a subject."""
    kind = dice.weigh(_LAW["subject"])
    if kind == "pronoun":
        return Pronoun(dice.pick(_PERSONS))
    return _name(dice) if kind == "name" else _noun(dice, kind, None, relative)


def _object(dice: Dice, name: str, subject: Nominal, relative: float = 0.0) -> Nominal:
    """Returns an object of class `name`; people may be pronouns or names."""
    kind = dice.weigh(_LAW["object"]) if name in ("person", "kin") else "noun"
    if kind == "name":
        return _name(dice)
    if kind == "pronoun":
        ours = subject.person in (I, WE)
        others = [p for p in _PERSONS if p != subject.person and not (ours and p in (I, WE))]
        return Pronoun(dice.pick(others))
    return _noun(dice, name, subject, relative)


def _with_relative(dice: Dice, phrase: NounPhrase, name: str) -> NounPhrase:
    """Returns the phrase with a relative clause, which agrees with its number and gender.

    A person may be the clause's subject, accusative or dative. A thing may be its accusative, or
    the subject of a copula.
    """
    person = name in ("person", "kin")
    tense = "past" if dice.chance(0.55) else "present"
    if dice.chance(0.55 if person else 0.25):
        frame = _copula if not person or dice.chance(0.2) else _verbal
        clause = frame(dice, phrase, tense, name, detail=0.5)
        clause = clause._replace(gap="subject", english_front="subject")
        word = "who" if person and dice.chance(0.75) else "that"
        return phrase._replace(relative=clause, relative_word=word)
    subject = _name(dice) if dice.chance(0.3) else Pronoun(dice.pick(_PERSONS))
    if person and dice.chance(0.3):
        verb, gap = dice.pick(VERBS["dative"]), "dative"
    else:
        verbs = [verb for verb in VERBS["transitive"] if name in verb.objects]
        verb, gap = dice.pick(verbs), "accusative"
    clause = Clause(subject, _words(dice, verb), tense, gap=gap)
    clause = _with_details(dice, clause, "relative", verb.stative, detail=0.4)
    word = "that" if dice.chance(0.6) else "whom" if person else "which"
    return phrase._replace(relative=clause, relative_word=word)


# Adverbials


def _place(dice: Dice, subject: Nominal, classes: tuple[str, ...], whither: bool) -> Adverbial:
    name = dice.pick(classes)
    there, dort = _pick(dice, PLACES[name])
    determiner = dice.weigh(_LAW["place"])
    noun = NounPhrase(
        there.noun,
        dort.noun,
        determiner,
        owner=_owner(dice, subject) if determiner == "possessive" else I,
        adjectives=(_pick(dice, ADJECTIVES["place"]),) if dice.chance(0.22) else (),
    )
    if whither:
        case = "dative" if dort.whither == "zu" else "accusative"
        return Adverbial(there.whither, dort.whither, case, noun)
    if name == "building" and dice.chance(0.2):
        beside = _pick(dice, BESIDE)
        return Adverbial(beside.english, beside.german, "dative", noun)
    return Adverbial(there.where, dort.where, "dative", noun)


def _with_details(dice: Dice, clause: Clause, frame: str, stative: bool, detail: float) -> Clause:
    """Adds time, frequency, manner, company, place and negation, as often as `detail` says."""
    changes = {}
    if clause.tense in _TIMES and dice.chance(0.6 * detail):
        changes["time"] = _pick(dice, ADVERBS[dice.weigh(_TIMES[clause.tense])])
        if frame != "relative":  # German mostly, but not always, begins with it where English does
            fronted = dice.chance(0.3)
            changes["english_front"] = "time" if fronted else "subject"
            ours = dice.chance(0.85 if fronted else 0.2)
            changes["german_front"] = "time" if ours else "subject"
    elif clause.tense in ("present", "past", "perfect") and dice.chance(0.3 * detail):
        changes["frequency"] = _pick(dice, ADVERBS["frequency"])
    if "frequency" not in changes and _may_be_negated(clause) and dice.chance(0.12):
        changes["negated"] = True
    if not stative and frame in ("intransitive", "activity", "motion", "transitive"):
        if dice.chance(0.18 * detail):
            changes["manner"] = _pick(dice, ADVERBS["manner"])
        elif dice.chance(0.12 * detail):
            name = "kin" if dice.chance(0.6) else "person"
            changes["company"] = _object(dice, name, clause.subject)
    somewhere = not stative and clause.place is None and frame not in ("copula", "prepositional")
    if somewhere and dice.chance(0.32 * detail):
        changes["place"] = _place(dice, clause.subject, tuple(PLACES), whither=False)
        if "time" not in changes and frame != "relative" and dice.chance(0.15):
            changes["german_front"] = "place"
    return clause._replace(**changes)


def _may_be_negated(clause: Clause) -> bool:
    """Returns whether 'not' and 'nicht' have the same scope."""
    if clause.tense in ("modal", "past modal"):
        scope = clause.modal in ("können", "wollen", "sollten") or clause.modal_word == "have to"
    else:
        scope = clause.tense != "infinitive"
    thing = clause.accusative
    quantified = isinstance(thing, NounPhrase) and thing.determiner in ("some", "many", "count")
    return scope and not quantified


# Clauses


def _clause(
    dice: Dice, subject: Nominal, tense: str, relative: float = 0.0, detail: float = 1.0
) -> Clause:
    """Returns a clause about what a subject does or is."""
    frame = dice.weigh(_LAW["frame"])
    if frame == "copula":
        return _copula(dice, subject, tense, "state", detail)
    return _verbal(dice, subject, tense, frame, detail, relative)


def _copula(dice: Dice, subject: Nominal, tense: str, name: str, detail: float = 1.0) -> Clause:
    """Returns a clause that describes a person (`name` = state) or a thing of class `name`."""
    if tense != "future":
        tense = "past" if tense in ("past", "past modal", "perfect") else "present"
    described = _ADJECTIVES_OF.get(name, "state")
    predicate = _pick(dice, ADJECTIVES["state" if described == "person" else described])
    clause = Clause(subject, None, tense, predicate=predicate)
    detail *= 0.5 if described in ("state", "person") else 0  # things are so at all times
    return _with_details(dice, clause, "copula", stative=True, detail=detail)


_FRAMES_OF_ACTION = tuple(name for name in _LAW["frame"].items if name != "copula")


def _verbal(
    dice: Dice, subject: Nominal, tense: str, frame: str, detail: float = 1.0, relative: float = 0.0
) -> Clause:
    """Returns a clause about an action; a `frame` without actions is replaced by one with them."""
    if frame not in _FRAMES_OF_ACTION:
        frame = dice.pick(_FRAMES_OF_ACTION)
    # Nobody goes to town in order to know somebody.
    entries = [one for one in VERBS[frame] if tense != "infinitive" or not one.stative]
    entry = dice.pick(entries)
    if tense == "progressive" and entry.stative:
        tense = "present"
    modal, _, modal_word = (dice.weigh(_MODALS[tense]) if tense in _MODALS else "").partition("/")
    clause = Clause(subject, _words(dice, entry), tense, modal, modal_word)
    clause = clause._replace(**_objects(dice, clause, entry, frame, relative))
    return _with_details(dice, clause, frame, entry.stative, detail)


def _objects(
    dice: Dice, clause: Clause, entry: Entry, frame: str, relative: float
) -> dict[str, object]:
    """Chooses the objects or the place that the verb needs."""
    if frame in ("intransitive", "activity"):
        return {}
    if frame == "motion":
        return {"place": _place(dice, clause.subject, entry.objects, whither=True)}
    name = dice.pick(entry.objects)
    if name in PLACES:
        thing: Nominal = _place(dice, clause.subject, (name,), whither=False).noun
    else:
        thing = _object(dice, name, clause.subject, relative)
    if frame == "transitive":
        return {"accusative": thing}
    if frame == "dative":
        return {"dative": thing, "to_dative": False}
    if frame == "prepositional":
        return {"prepositional": thing}
    receiver = _object(dice, "kin" if dice.chance(0.5) else "person", clause.subject)
    to = frame == "telling" or dice.chance(0.5)
    return {"accusative": thing, "dative": receiver, "to_dative": to}


def _weather(dice: Dice, tense: str) -> Clause:
    """Returns a clause about the weather."""
    subject = Pronoun(IT)
    tense = "past" if tense.startswith("past") else "present"
    if dice.chance(0.5):
        return Clause(subject, _pick(dice, VERBS["weather"]), tense)
    predicate = _pick(dice, ADJECTIVES["drink"][:3])  # cold, warm, hot
    return Clause(subject, None, tense, predicate=predicate)


# Sentences


def _sentence(dice: Dice) -> Sentence:
    link, tense = dice.weigh(_LAW["link"]), dice.weigh(_LAW["tense"])
    if link == "none":
        return Sentence(_lone(dice, tense))
    if link in ("that", "whether"):
        return _reported(dice, link, "past" if dice.chance(0.5) else "present")
    if link == "condition" and tense in ("past", "perfect"):
        link = "reason"  # 'wenn' in the past would be 'as often as'
    if link == "order" and tense == "perfect":
        tense = "past"
    subject = _subject(dice, relative=0.08)
    backwards = link in ("reason", "contrast", "condition", "order") and dice.chance(0.3)
    # Who is named in the clause that comes first can be a pronoun in the other.
    again = _pronoun_of(subject) if dice.chance(0.6) else _subject(dice)
    named, other = (again, subject) if backwards else (subject, again)
    if link == "purpose":
        first = _verbal(dice, subject, tense, "motion")._replace(negated=False)
        second = _verbal(dice, subject, "infinitive", dice.pick(("transitive", "dative")), 0.4)
    else:
        first = _clause(dice, named, tense, relative=0.08, detail=0.9)
        second = _second(dice, other, dice.weigh(_AFTER[first.tense]), link)
        if link == "order":  # no one does a thing before not doing another
            first = first._replace(negated=False, frequency=None)
            second = second._replace(negated=False, frequency=None)
        if first.time and link not in ("and", "but"):  # one time for both
            second = second._replace(time=None, german_front="subject")
    return _join(dice, first, second, link, backwards)


def _lone(dice: Dice, tense: str) -> Clause:
    """Returns a sentence of one clause, with more detail; sometimes about things or animals."""
    if dice.chance(0.12):
        name = dice.pick(("vehicle", "clothing", "reading", "food", "thing", "device"))
        return _copula(dice, _noun(dice, name, None, relative=0.7), tense, name, detail=1.6)
    if dice.chance(0.08):
        return _verbal(dice, _noun(dice, "animal", None), tense, "intransitive", detail=1.6)
    return _clause(dice, _subject(dice, relative=0.3), tense, relative=0.35, detail=1.3)


def _second(dice: Dice, subject: Nominal, tense: str, link: str) -> Clause:
    if link in ("reason", "contrast", "condition") and dice.chance(0.1):
        return _weather(dice, tense)
    clause = _clause(dice, subject, tense, relative=0.05, detail=0.7)
    return clause if link in ("and", "but") else clause._replace(english_front="subject")


def _pronoun_of(subject: Nominal) -> Nominal:
    return subject if subject.person == IT else Pronoun(subject.person)


def _reported(dice: Dice, link: str, tense: str) -> Sentence:
    """Returns a sentence in which a subject says that, or asks whether, another clause holds."""
    subject = _subject(dice)
    first = Clause(subject, _pick(dice, VERBS[link]), tense)
    if tense == "past" and dice.chance(0.35):
        time = _pick(dice, ADVERBS["past"])
        first = first._replace(time=time, english_front="time", german_front="time")
    other = _pronoun_of(subject) if dice.chance(0.3) else _subject(dice, relative=0.08)
    second = _clause(dice, other, dice.weigh(_AFTER[tense]), relative=0.08)
    return _join(dice, first, second._replace(english_front="subject"), link, backwards=False)


def _join(dice: Dice, first: Clause, second: Clause, link: str, backwards: bool) -> Sentence:
    entry = LINKS[link]
    english_link, german_link = _words(dice, entry)
    while backwards and german_link.main:  # 'denn' cannot come first
        german_link = dice.weigh(entry.german)
    if backwards:
        first = first._replace(english_front="subject", german_front="subject")
    return Sentence(first, second, english_link, german_link, backwards)
