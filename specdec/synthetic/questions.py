"""Questions on the articles of `highlights`, each answered by a sentence of the article."""

from __future__ import annotations

from specdec.synthetic import highlights
from specdec.synthetic.dice import Dice

TASK = 4  # the first coordinate of `Dice`


def example(split: str, index: int, seed: int = 0) -> tuple[str, str]:
    """A question with its article, and the sentence that first states the fact asked for.

    The answer stands in the article letter by letter. Arguments as `translation.example`.
    """
    dice = Dice(TASK, split, index, seed)
    article = highlights.sample(dice)
    asked = dice.pick(range(len(article.facts)))
    question = highlights.fill(dice.pick(article.facts[asked].question), article.slots)
    return f"{question} context: {article.text}", article.stated[asked]
