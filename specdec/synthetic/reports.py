"""What the articles are made of: kinds of report, their facts, and what fills the gaps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Fact(NamedTuple):
    long: tuple[str, ...]  # as it is first stated
    again: tuple[str, ...]  # as it is restated
    short: tuple[str, ...]  # as a highlight
    question: tuple[str, ...]  # that it answers


FILLERS: dict[str, tuple[str, ...]] = {
    "city": tuple(
        "Bremen Dresden Leipzig Oxford Bristol Dublin Boston Denver Austin Portland Lyon Turin "
        "Geneva Vienna Prague Oslo Bergen Porto Ghent Utrecht".split()
    ),
    "person": tuple(
        f"{first} {last}"
        for first in "Anna Maria Lena Julia Clara Emma Peter Paul Thomas Max Felix Martin".split()
        for last in "Weber Miller Brown Fischer Wilson Taylor Keller Clark Meyer Walker".split()
    ),
    "official": tuple(
        f"{first} {last}"
        for first in "David Susan Robert Helen George Laura".split()
        for last in "Stone Baker Young Hill Lewis Moore Hughes Bell".split()
    ),
    "day": tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()),
    "month": tuple("January March April May June July October November".split()),
    "hour": tuple("six seven eight nine ten eleven".split()),
    "few": tuple("three four five six seven eight nine twelve fifteen".split()),
    "many": tuple(f"{n}" for n in (20, 30, 40, 60, 80, 90, 120, 150, 200, 250, 300, 400, 600)),
    "money": tuple(f"{n} million" for n in (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50)),
    "share": tuple(f"{n} percent" for n in (5, 8, 10, 12, 15, 20, 25, 30, 40, 60)),
    "building": tuple("school;library;museum;hospital;theater;train station".split(";")),
    "firm": tuple("Norda;Helix;Brightwater;Kestrel;Solara;Ironbridge;Tessel;Marwick".split(";")),
    "product": tuple("bicycles;cameras;batteries;solar panels;trains;radios".split(";")),
    "team": tuple("Rovers;Falcons;Lions;Rangers;Comets;Wolves;Hawks;Pirates".split(";")),
    "rival": tuple("Royals;Tigers;Sharks;Eagles;Hornets;Kings".split(";")),
    "animal": tuple("bees;owls;wolves;salmon;bats;storks".split(";")),
    "cause": tuple("a broken lamp;an old heater;a candle;lightning;a faulty cable".split(";")),
}


def _read() -> Iterator[tuple[Fact, ...]]:
    """The facts of each kind of report, what happened first."""
    text = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    for facts in json.loads(text).values():
        yield tuple(Fact(**{form: tuple(fact[form]) for form in Fact._fields}) for fact in facts)


REPORTS: tuple[tuple[Fact, ...], ...] = tuple(_read())
