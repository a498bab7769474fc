"""The tree that both renderers read: the meaning and the chosen words, without a word order."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from corpora.lexicon import (
    Adjective,
    EnglishNoun,
    EnglishVerb,
    GermanNoun,
    GermanVerb,
    Link,
)

E = TypeVar("E")
G = TypeVar("G")

# Grammatical persons, the index into every table of pronouns and verb forms.
I, YOU, HE, SHE, IT, WE, THEY = range(7)  # noqa: E741
OF_GENDER = {"m": HE, "f": SHE, "n": IT}


class Words(NamedTuple, Generic[E, G]):
    """A phrase that does not inflect, an adjective or a verb, in both languages."""

    english: E
    german: G


class Pronoun(NamedTuple):
    person: int


class Name(NamedTuple):
    words: Words[str, str]
    person: int  # HE, SHE or THEY


class NounPhrase(NamedTuple):
    english: EnglishNoun
    german: GermanNoun
    determiner: str  # the, a (none in the plural), this, some, many, count or possessive
    plural: bool = False
    owner: int = I  # of a possessive
    count: Words[str, str] | None = None
    adjectives: tuple[Words[str, Adjective], ...] = ()
    relative: Clause | None = None  # its `gap` is this noun's part in it
    relative_word: str = ""  # English who, which or that

    @property
    def person(self) -> int:
        return THEY if self.plural else OF_GENDER[self.german.gender]


class Adverbial(NamedTuple):
    """A preposition and its object."""

    english: str
    german: str
    case: str
    noun: Nominal


Nominal = Pronoun | Name | NounPhrase


class Clause(NamedTuple):
    """A verb and its complements.

    In a relative clause, `gap` names what the relative pronoun stands for. A subject there only
    determines agreement, and an object is None. An infinitive clause has no visible subject either.
    """

    subject: Nominal
    verb: Words[EnglishVerb, GermanVerb] | None  # None for the copula
    tense: str  # present, progressive, past, perfect, future, modal, past modal or infinitive
    modal: str = ""
    modal_word: str = ""  # how English says it
    accusative: Nominal | None = None
    dative: Nominal | None = None
    to_dative: bool = True  # give it *to him*, not give him it
    prepositional: Nominal | None = None
    predicate: Words[str, Adjective] | None = None
    negated: bool = False
    frequency: Words[str, str] | None = None
    manner: Words[str, str] | None = None
    company: Nominal | None = None
    place: Adverbial | None = None
    time: Words[str, str] | None = None
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
