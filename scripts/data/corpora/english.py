"""Renders a sentence tree in English: agreement, the verb group, and the order of a clause."""

from __future__ import annotations

import functools

from corpora.sentence_tree import (
    HE,
    IT,
    Clause,
    I,
    Name,
    Nominal,
    NounPhrase,
    Pronoun,
    Sentence,
)

_SUBJECTS = ("I", "you", "he", "she", "it", "we", "they")
_OBJECTS = ("me", "you", "him", "her", "it", "us", "them")
_POSSESSIVES = ("my", "your", "his", "her", "its", "our", "their")
_DOUBLED = {"cut", "forget", "put", "run", "shop", "shut", "swim"}  # the consonant, before -ing


def _third(person: int) -> bool:
    return HE <= person <= IT


def _be(person: int, past: bool = False) -> str:
    if past:
        return "was" if person == I or _third(person) else "were"
    return "am" if person == I else "is" if _third(person) else "are"


@functools.cache
def with_s(base: str) -> str:
    """Returns the third person singular of the present."""
    if base == "have":
        return "has"
    if base.endswith("y") and base[-2] not in "aeiou":
        return f"{base[:-1]}ies"
    return base + ("es" if base.endswith(("s", "sh", "ch", "x", "z", "o")) else "s")


@functools.cache
def with_ing(base: str) -> str:
    """Returns the present participle."""
    if base in _DOUBLED:
        return f"{base}{base[-1]}ing"
    cut = base.endswith("e") and not base.endswith("ee")
    return f"{base[:-1] if cut else base}ing"


def nominal(thing: Nominal, subject: bool = False) -> str:
    if isinstance(thing, Pronoun):
        return (_SUBJECTS if subject else _OBJECTS)[thing.person]
    if isinstance(thing, Name):
        return thing.words.english
    words = [each.english for each in thing.adjectives]
    words.append(thing.english.plural if thing.plural else thing.english.singular)
    determiner = _determiner(thing, words[0])
    text = " ".join([determiner, *words] if determiner else words)
    return f"{text} {clause_text(thing.relative, thing.relative_word)}" if thing.relative else text


def _determiner(phrase: NounPhrase, following: str) -> str:
    match phrase.determiner:
        case "a" if phrase.plural:
            return ""
        case "a":
            return "an" if following[0] in "aeiou" and following[:3] != "uni" else "a"
        case "this":
            return "these" if phrase.plural else "this"
        case "possessive":
            return _POSSESSIVES[phrase.owner]
        case "count" if phrase.count:
            return phrase.count.english
    return phrase.determiner  # the, some, many


def _verb(clause: Clause) -> tuple[str, str]:
    """Returns the finite word, and the rest of the verb group, which follows 'not' and 'often'.

    If the finite word is the verb itself, and the verb is not 'be', the finite word is ''. 'not'
    and 'often' then stand before the verb.
    """
    person, verb = clause.subject.person, clause.verb and clause.verb.english
    base = verb.base if verb else "be"
    match clause.tense:
        case "infinitive":
            return "", base
        case "future":
            return "will", base
        case "progressive":
            return _be(person), with_ing(base)
        case "perfect":
            return "has" if _third(person) else "have", verb.participle if verb else "been"
        case "modal" | "past modal":
            return _modal(clause, person, base)
    past = clause.tense == "past"
    if verb is None:
        return _be(person, past), ""
    if clause.negated:
        return _do(person, past), verb.base
    return "", verb.past if past else with_s(verb.base) if _third(person) else verb.base


def _do(person: int, past: bool) -> str:
    return "did" if past else "does" if _third(person) else "do"


def _modal(clause: Clause, person: int, base: str) -> tuple[str, str]:
    """Returns the finite word and the rest for 'can', 'could', 'want to' and 'be allowed to'."""
    word = clause.modal_word
    past = clause.tense == "past modal"
    first, _, rest = word.partition(" ")
    rest = f"{rest} {base}" if rest else base
    if first == "be":
        return _be(person, past), rest
    if first not in ("want", "have"):
        return first, rest
    if clause.negated:
        return _do(person, past), f"{first} {rest}"
    finite = {"want": "wanted", "have": "had"}[first] if past else first
    return "", f"{with_s(first) if _third(person) and not past else finite} {rest}"


def clause_text(clause: Clause, link: str = "") -> str:
    """Returns the clause after its conjunction or relative pronoun."""
    time = clause.time.english if clause.time else ""
    fronted = bool(time) and clause.english_front == "time"
    parts = [link, f"{time}," if fronted else ""]
    if clause.gap != "subject" and clause.tense != "infinitive":
        parts.append(nominal(clause.subject, subject=True))
    finite, rest = _verb(clause)
    parts += [finite, "not" if clause.negated else ""]
    parts += [clause.frequency.english if clause.frequency else "", rest]
    parts += _complements(clause)
    parts.append(clause.manner.english if clause.manner else "")
    parts.append(f"with {nominal(clause.company)}" if clause.company else "")
    parts.append(f"{clause.place.english} {nominal(clause.place.noun)}" if clause.place else "")
    parts.append("" if fronted else time)
    return " ".join(filter(None, parts)).replace("can not", "cannot")


def _complements(clause: Clause) -> list[str]:
    if clause.verb is None:
        return [clause.predicate.english] if clause.predicate else []
    verb = clause.verb.english
    accusative = nominal(clause.accusative) if clause.accusative else ""
    dative = nominal(clause.dative) if clause.dative else ""
    if isinstance(clause.accusative, Pronoun):
        objects = [accusative, verb.particle]
    else:
        objects = [verb.particle, accusative]
    if clause.to_dative:
        objects.append(f"to {dative}" if dative else "")
    else:
        objects.insert(0, dative)
    prepositional = nominal(clause.prepositional) if clause.prepositional else ""
    return [verb.rest, *objects, prepositional]


def sentence_text(sentence: Sentence) -> str:
    text = clause_text(sentence.first)
    if sentence.second is not None:
        second = clause_text(sentence.second, sentence.english_link)
        comma = "," if sentence.english_link in ("and", "but") else ""
        text = f"{second}, {text}" if sentence.reversed else f"{text}{comma} {second}"
    return f"{text[0].upper()}{text[1:]}."
