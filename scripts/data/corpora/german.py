"""Renders a sentence tree in German: declension, conjugation, and the order of a clause's fields.

The order is the topological one: front field, finite verb (second in a main clause, last in a
subordinate one), middle field, and the right bracket of prefix, participle and infinitive.
"""

from __future__ import annotations

import functools

from corpora.lexicon import Adjective, GermanNoun, GermanVerb, table
from corpora.sentence_tree import Clause, Name, Nominal, NounPhrase, Pronoun, Sentence

Field = tuple[str, str]  # what it is in the clause, and its text

# Tables of endings and forms, each by the name of a case or of a verb.
_DER, _STRONG, _WEAK, _RELATIVE, _PRONOUNS, _PRESENT, _PAST = table("german", str.split).values()
_POSSESSIVES = ("mein", "dein", "sein", "ihr", "sein", "unser", "ihr")
_CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am"}
_CONTRACTIONS |= {"zu dem": "zum", "zu der": "zur", "von dem": "vom"}
_SEIN = GermanVerb("sein", "", "", "gewesen", "sein")
_SLOT = (0, 1, 2, 2, 2, 3, 3)  # of a person in the four forms


def article(lemma: str, case: str, column: int) -> str:
    """Returns 'der', 'dieser', 'ein', 'kein', 'mein' and similar words in their case.

    `column` is 0 to 2 for masculine, feminine and neuter, and 3 for the plural.
    """
    if lemma == "der":
        return _DER[case][column]
    if lemma in ("dies", "einig", "viel"):
        return lemma + _STRONG[case][column]
    return lemma + ("" if _bare(case, column) else _STRONG[case][column])


def _bare(case: str, column: int) -> bool:
    """Returns whether 'ein', 'kein' and possessives have no ending; adjectives then have the strong
    one."""
    return (case, column) in (("nominative", 0), ("nominative", 2), ("accusative", 2))


def adjective(word: Adjective, kind: str, case: str, column: int) -> str:
    """Returns an adjective with its ending.

    `kind` is weak (after 'der'), mixed (after 'ein'), or strong (without an article).
    """
    strong = kind == "strong" or (kind == "mixed" and _bare(case, column))
    return word.stem + (_STRONG if strong else _WEAK)[case][column]


def noun(word: GermanNoun, case: str, plural: bool) -> str:
    if plural:
        bare = case != "dative" or word.plural.endswith(("n", "s"))
        return word.plural if bare else f"{word.plural}n"
    return word.plural if word.weak and case != "nominative" else word.singular


@functools.cache
def present(infinitive: str, changed: str, person: int) -> str:
    """Returns the finite present of a verb without its prefix."""
    if infinitive in _PRESENT:
        return _PRESENT[infinitive][_SLOT[person]]
    stem = infinitive.removesuffix("n").removesuffix("e")
    slot = _SLOT[person]
    if slot == 3:
        return infinitive
    if slot == 0:
        return f"{stem[:-2]}le" if stem.endswith("el") else f"{stem}e"
    if not changed and stem.endswith(("t", "d", "gn", "chn", "ffn")):
        stem += "e"
    stem = changed or stem
    return f"{stem}t" if slot == 2 or stem.endswith(("s", "ß", "x", "z")) else f"{stem}st"


def past(infinitive: str, person: int) -> str:
    """Returns the preterite, which is only used of modals and of 'sein'."""
    return _PAST[infinitive][_SLOT[person]]


def nominal(thing: Nominal, case: str, negated: bool = False, preposition: str = "") -> str:
    """Returns the phrase in its case; `negated` turns 'ein' into 'kein'.

    A relative clause ends in a comma.
    """
    head = f"{preposition} " if preposition else ""
    if isinstance(thing, Pronoun):
        return head + _PRONOUNS[case][thing.person]
    if isinstance(thing, Name):
        return head + thing.words.german
    column = 3 if thing.plural else "mfn".index(thing.german.gender)
    determiner, kind = _determiner(thing, case, column, negated)
    if thing.determiner == "the" and head + determiner in _CONTRACTIONS:
        head, determiner = "", _CONTRACTIONS[head + determiner]
    words = [determiner] if determiner else []
    words += [adjective(each.german, kind, case, column) for each in thing.adjectives]
    text = head + " ".join([*words, noun(thing.german, case, thing.plural)])
    if thing.relative is None:
        return text
    gap = thing.relative.gap
    word = _RELATIVE["nominative" if gap == "subject" else gap][column]
    return f"{text}, {subordinate(thing.relative, word)},"


def _determiner(phrase: NounPhrase, case: str, column: int, negated: bool) -> tuple[str, str]:
    """Returns the determiner, and the kind of ending that adjectives have after it."""
    match phrase.determiner:
        case "a" if negated:
            return article("kein", case, column), "mixed"
        case "a":
            return ("", "strong") if phrase.plural else (article("ein", case, column), "mixed")
        case "possessive":
            return article(_POSSESSIVES[phrase.owner], case, column), "mixed"
        case "count" if phrase.count:
            return phrase.count.german, "strong"
        case "some":
            return article("einig", case, column), "strong"
        case "many":
            return article("viel", case, column), "strong"
        case "this":
            return article("dies", case, column), "weak"
    return article("der", case, column), "weak"


def main_fields(clause: Clause) -> list[Field]:
    """Returns the fields of a main clause; the finite verb is the second."""
    finite, right = _verb(clause)
    fields = _middle(clause)
    front = next(field for field in fields if field[0] == clause.german_front)
    return [front, ("finite", finite), *(f for f in fields if f is not front), *right]


def subordinate_fields(clause: Clause, link: str) -> list[Field]:
    """Returns the fields of a subordinate clause, the finite verb or zu-infinitive last."""
    finite, right = _verb(clause)
    right = [text for _, text in right]
    verb = clause.verb.german if clause.verb else _SEIN
    prefix = verb.prefix
    if clause.tense == "infinitive":
        last = f"{prefix}zu{verb.infinitive}" if prefix else f"zu {verb.infinitive}"
        return [("link", link), *_middle(clause), ("infinitive", last)]
    if prefix and right == [prefix]:
        right, finite = [], prefix + finite
    return [
        ("link", link),
        *_middle(clause),
        *(("right", text) for text in right),
        ("finite", finite),
    ]


def subordinate(clause: Clause, link: str) -> str:
    return " ".join(text for _, text in subordinate_fields(clause, link))


def _verb(clause: Clause) -> tuple[str, list[Field]]:
    """Returns the finite form, and the right bracket: prefix, or participle, or infinitive."""
    person, verb = clause.subject.person, clause.verb and clause.verb.german
    if verb is None and clause.tense == "past":
        return past("sein", person), []
    verb = verb or _SEIN
    infinitive = verb.prefix + verb.infinitive
    match clause.tense:
        case "past" | "perfect":
            return present(verb.auxiliary, "", person), [("right", verb.participle)]
        case "future":
            return present("werden", "", person), [("right", infinitive)]
        case "modal":
            return present(clause.modal, "", person), [("right", infinitive)]
        case "past modal":
            return past(clause.modal, person), [("right", infinitive)]
    finite = present(verb.infinitive, verb.changed, person)
    return finite, [("right", verb.prefix)] if verb.prefix else []


def _middle(clause: Clause) -> list[Field]:
    """Returns everything but the verb, in the order of the middle field.

    Pronouns come first, known things before new ones, then time, manner and place. 'nicht' and
    'oft' stand after what is known and before manner and place.
    """
    fields: list[Field] = []

    def put(role: str, thing: Nominal | None, case: str, **how) -> None:
        if thing is not None:
            fields.append((role, nominal(thing, case, **how)))

    accusative, dative = clause.accusative, clause.dative
    determiner = accusative.determiner if isinstance(accusative, NounPhrase) else ""
    # What is indefinite is new, and stands late in the middle field.
    known = accusative is not None and determiner not in ("a", "some", "many", "count")
    kein = clause.negated and determiner == "a"
    if clause.gap != "subject" and clause.tense != "infinitive":
        put("subject", clause.subject, "nominative")
    if isinstance(accusative, Pronoun):
        put("accusative", accusative, "accusative")
    put("dative", dative, "dative")
    if known and dative is None and not isinstance(accusative, Pronoun):
        put("accusative", accusative, "accusative")
    if clause.time:
        fields.append(("time", clause.time.german))
    if known and dative is not None:
        put("accusative", accusative, "accusative")
    if clause.frequency:
        fields.append(("frequency", clause.frequency.german))
    if clause.negated and not kein:
        fields.append(("negation", "nicht"))
    put("company", clause.company, "dative", preposition="mit")
    if clause.manner:
        fields.append(("manner", clause.manner.german))
    if not known:
        put("accusative", accusative, "accusative", negated=kein)
    if clause.verb and clause.prepositional:
        verb = clause.verb.german
        put("prepositional", clause.prepositional, verb.case, preposition=verb.preposition)
    if place := clause.place:
        put("place", place.noun, place.case, preposition=place.german)
    if clause.predicate:
        fields.append(("predicate", clause.predicate.german.predicative))
    return fields


def clause_fields(sentence: Sentence) -> list[list[Field]]:
    """Returns the fields of the sentence's clauses, in the order of the text."""
    first = main_fields(sentence.first)
    if sentence.second is None or sentence.german_link is None:
        return [first]
    link = sentence.german_link
    if link.main:
        return [first, [("link", link.word), *main_fields(sentence.second)]]
    second = subordinate_fields(sentence.second, link.word)
    if not sentence.reversed:
        return [first, second]
    # The subordinate clause is the main one's front field. (`first` begins with its subject.)
    subject, finite, *rest = first
    return [second, [finite, subject, *rest]]


def sentence_text(sentence: Sentence) -> str:
    clauses = [" ".join(text for _, text in fields) for fields in clause_fields(sentence)]
    comma = " " if sentence.german_link and sentence.german_link.word == "und" else ", "
    text = comma.join(clauses).replace(",,", ",").removesuffix(",")
    return f"{text[0].upper()}{text[1:]}."
