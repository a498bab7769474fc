"""The structure that both renderers read: what is said, with the words chosen, in no word order."""

from __future__ import annotations

from typing import NamedTuple

from specdec.synthetic.lexicon import (
    Adjective,
    EnglishNoun,
    EnglishVerb,
    GermanNoun,
    GermanVerb,
    Link,
)

# Grammatical persons, the index into every table of pronouns and verb forms.
I, YOU, HE, SHE, IT, WE, THEY = range(7)  # noqa: E741
OF_GENDER = {"m": HE, "f": SHE, "n": IT}


class Words(NamedTuple):
    """A phrase that does not inflect."""

    english: str
    german: str


class Description(NamedTuple):
    """An adjective."""

    english: str
    german: Adjective


class Pronoun(NamedTuple):
    person: int


class Name(NamedTuple):
    words: Words
    person: int  # HE, SHE or THEY


class NounPhrase(NamedTuple):
    english: EnglishNoun
    german: GermanNoun
    determiner: str  # the, a (none in the plural), this, some, many, count or possessive
    plural: bool = False
    owner: int = I  # of a possessive
    count: Words | None = None
    adjectives: tuple[Description, ...] = ()
    relative: Clause | None = None  # its `gap` is this noun's part in it
    relative_word: str = ""  # English who, which or that

    @property
    def person(self) -> int:
        return THEY if self.plural else OF_GENDER[self.german.gender]


class Adverbial(NamedTuple):
    """A preposition and what it governs."""

    english: str
    german: str
    case: str
    noun: Nominal


Nominal = Pronoun | Name | NounPhrase


class Clause(NamedTuple):
    """A verb and what belongs to it.

    In a relative clause `gap` names what the relative pronoun stands for; there a subject is only
    agreed with, and an object is None. An infinitive clause does not say its subject either.
    """

    subject: Nominal
    english_verb: EnglishVerb | None  # None for the copula
    german_verb: GermanVerb | None
    tense: str  # present, progressive, past, perfect, future, modal, past modal or infinitive
    modal: str = ""
    modal_word: str = ""  # how English says it
    accusative: Nominal | None = None
    dative: Nominal | None = None
    to_dative: bool = True  # give it *to him*, not give him it
    prepositional: Nominal | None = None
    predicate: Description | None = None
    negated: bool = False
    frequency: Words | None = None
    manner: Words | None = None
    company: Nominal | None = None
    place: Adverbial | None = None
    time: Words | None = None
    english_front: str = "subject"  # or time
    german_front: str = "subject"  # or time, place
    gap: str = ""  # subject, accusative or dative


class Sentence(NamedTuple):
    """One or two clauses; `link` introduces the second, which may come first."""

    first: Clause
    second: Clause | None = None
    english_link: str = ""
    german_link: Link | None = None
    reversed: bool = False
