"""Short news articles whose facts are said once or twice, and highlights of those said twice."""

from __future__ import annotations

import string
from collections.abc import Mapping

from specdec.synthetic.dice import Dice
from specdec.synthetic.reports import FILLERS, REPORTS

TASK = 2  # the first coordinate of `Dice`
MIN_SENTENCES, MAX_SENTENCES = 3, 8


def example(split: str, index: int, seed: int = 0) -> tuple[str, str]:
    """An article of 3 to 8 sentences and its highlights, 1 to 3 sentences.

    A salient fact is stated, and restated in other words further down; the highlights are its short
    form, in the article's order. Which of two short forms is taken is chance, and so is the place
    of everything in the article. Arguments as `translation.example`.
    """
    dice = Dice(TASK, split, index, seed)
    facts = dice.pick(REPORTS)
    slots = _slots(dice)
    salient = 1 + int(dice.chance(0.7)) + int(dice.chance(0.4))
    once = dice.pick(range(max(0, MIN_SENTENCES - 2 * salient), MAX_SENTENCES + 1 - 2 * salient))
    # The first fact says what happened: it always comes first, and is nearly always salient.
    lead, others = facts[0], dice.shuffled(facts[1:])
    chosen = [lead, *others[: salient + once - 1]]
    repeated = {0, *dice.shuffled(range(1, len(chosen)))[: salient - 1]}
    article = [_fill(dice.pick(fact.long), slots) for fact in chosen]
    again = [_fill(dice.pick(chosen[i].again), slots) for i in sorted(repeated)]
    article += dice.shuffled(again)
    highlights = [_fill(dice.pick(chosen[i].short), slots) for i in sorted(repeated)]
    return " ".join(article), " ".join(highlights)


def _slots(dice: Dice) -> dict[str, str]:
    """One value for every name that a template may mention."""
    return {name: dice.pick(values) for name, values in FILLERS.items()}


def _fill(template: str, slots: Mapping[str, str]) -> str:
    text = string.Formatter().vformat(template, (), slots)
    return text[0].upper() + text[1:]
