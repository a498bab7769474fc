"""The parts of a model that a smaller one is made of."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Annotated

from specdec.common.values import Checked, row_of

Numbers = Annotated[
    tuple[int, ...], row_of(0, "ascending numbers from 0 on, as in (0, 3)", ascending=True)
]


@dataclasses.dataclass(frozen=True)
class Trim(Checked):
    """The parts of a model that a smaller one consists of; the others are left out.

    decoder_layers, encoder_layers: numbers of layers, ascending from 0; None for all.
    shared_encoder: there is no encoder; the output of the larger model's is read in its place.
    head_ids: ids, ascending, of which the head says how likely they are; the others have no
      probability. None for all. Tokens of all ids can be read.
    """

    decoder_layers: Numbers | None = None
    encoder_layers: Numbers | None = None
    shared_encoder: bool = False
    head_ids: Numbers | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self):
        super().__post_init__()
        if self.shared_encoder and self.encoder_layers is not None:
            raise ValueError(
                f"Trim.encoder_layers is {self.encoder_layers} and shared_encoder says that there "
                "is no encoder; leave one of them out"
            )


# (how many, of so many) -> their numbers
_LAYERS: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    "first": lambda n, of: tuple(range(n)),
    "last": lambda n, of: tuple(range(of - n, of)),
    "spread": lambda n, of: tuple(i * (of - 1) // max(n - 1, 1) for i in range(n)),
}


def layers(name: str, given: str, of: int) -> tuple[int, ...]:
    """The numbers of the layers that a word stands for.

    Args:
      name: whose word it is, for the error.
      given: 'first:N', 'last:N' or 'spread:N', which is from the first to the last one; or numbers,
        '0,3'.
      of: how many layers there are.

    Raises:
      ValueError: it is none of these, or there are no such layers.
    """
    rule, _, count = given.partition(":")
    if rule in _LAYERS and count.isdecimal() and 1 <= int(count) <= of:
        return _LAYERS[rule](int(count), of)
    numbers = given.split(",")
    if all(number.strip().isdecimal() for number in numbers):
        found = tuple(map(int, numbers))
        if found == tuple(sorted(set(found))) and found[-1] < of:
            return found
    raise ValueError(
        f"{name} is {given!r} and the model has {of} layers; give first:N, last:N or spread:N with "
        f"N from 1 to {of}, or ascending numbers from 0 to {of - 1}, as in 0,{of - 1}"
    )


def most_frequent(counts: Counter[int], size: int) -> tuple[int, ...]:
    """Returns the ids that are there most often, of equals the smallest, ascending."""
    return tuple(sorted(sorted(counts, key=lambda i: (-counts[i], i))[:size]))
