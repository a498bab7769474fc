"""Short news articles that state facts once or twice, with highlights and questions."""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from corpora.dice import Dice
from corpora.lexicon import table

HIGHLIGHTS, QUESTIONS = 2, 4  # the first coordinate of `Dice`
MIN_SENTENCES, MAX_SENTENCES = 3, 8


class Fact(NamedTuple):
    long: tuple[str, ...]  # as it is first stated
    again: tuple[str, ...]  # as it is restated
    short: tuple[str, ...]  # as a highlight
    question: tuple[str, ...]  # that it answers


# The facts of each kind of report, what happened first.
REPORTS: tuple[tuple[Fact, ...], ...] = tuple(
    tuple(Fact(**{form: tuple(fact[form]) for form in Fact._fields}) for fact in facts)
    for facts in json.loads(Path(__file__).with_name("reports.json").read_text("utf-8")).values()
)
# What the names in their templates may stand for.
FILLERS: dict[str, list[str]] = table(
    "fillers",
    lambda parts: [
        " ".join(words).replace("_", " ")
        for words in itertools.product(*map(str.split, parts.split("|")))
    ],
)[""]


class Article(NamedTuple):
    """An article and the facts it is made of."""

    facts: tuple[Fact, ...]  # in the order in which they are first stated
    stated: tuple[str, ...]  # the sentence that first states each
    restated: tuple[str, ...]  # the sentences after those
    salient: tuple[int, ...]  # which facts are said twice, ascending
    slots: Mapping[str, str]  # what the names in their templates stand for

    @property
    def text(self) -> str:
        return " ".join([*self.stated, *self.restated])


def highlighted(split: str, index: int) -> tuple[str, str]:
    """Returns an article of 3 to 8 sentences and its highlights, 1 to 3 sentences.

    A salient fact is stated, and restated in other words further down. The highlights are its short
    form, in the article's order. One of two short forms is chosen at random, and so is the place of
    everything in the article. The arguments are those of `translation.example`.
    """
    dice = Dice(HIGHLIGHTS, split, index)
    article = sample(dice)
    highlights = [fill(dice.pick(article.facts[i].short), article.slots) for i in article.salient]
    return article.text, " ".join(highlights)


def asked(split: str, index: int) -> tuple[str, str]:
    """Returns a question with its article, and the sentence that first states the answer.

    The answer occurs in the article verbatim. The arguments are those of `translation.example`.
    """
    dice = Dice(QUESTIONS, split, index)
    article = sample(dice)
    fact = dice.pick(range(len(article.facts)))
    question = fill(dice.pick(article.facts[fact].question), article.slots)
    return f"{question} context: {article.text}", article.stated[fact]


def continued(split: str, index: int) -> tuple[str, str]:
    """Returns the first sentence of an article, and the rest of it: plain text to continue.

    The arguments are those of `translation.example`.
    """
    article = sample(Dice(HIGHLIGHTS, split, index))
    first, *others = [*article.stated, *article.restated]
    return first, " ".join(others)


def sample(dice: Dice) -> Article:
    """Returns an article of MIN_SENTENCES to MAX_SENTENCES sentences."""
    facts = dice.pick(REPORTS)
    slots = {name: dice.pick(values) for name, values in FILLERS.items()}
    salient = 1 + int(dice.chance(0.7)) + int(dice.chance(0.4))
    once = dice.pick(range(max(0, MIN_SENTENCES - 2 * salient), MAX_SENTENCES + 1 - 2 * salient))
    # The first fact says what happened: it always comes first, and is nearly always salient.
    lead, others = facts[0], dice.shuffled(facts[1:])
    chosen = (lead, *others[: salient + once - 1])
    repeated = (0, *sorted(dice.shuffled(range(1, len(chosen)))[: salient - 1]))
    stated = tuple(fill(dice.pick(fact.long), slots) for fact in chosen)
    again = [fill(dice.pick(chosen[i].again), slots) for i in repeated]
    return Article(chosen, stated, tuple(dice.shuffled(again)), repeated, slots)


def fill(template: str, slots: Mapping[str, str]) -> str:
    """Returns the template with its names replaced, as a sentence."""
    text = string.Formatter().vformat(template, (), slots)
    return text[0].upper() + text[1:]
