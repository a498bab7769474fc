"""The parts of a model that a trimmed one keeps, and functions for the trimming of all families."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Annotated

import jax.numpy as jnp
import numpy as np

from specdec.common.values import Checked, row_of
from specdec.types import PyTree

Numbers = Annotated[
    tuple[int, ...], row_of(0, "ascending numbers from 0 on, as in (0, 3)", ascending=True)
]


@dataclasses.dataclass(frozen=True)
class Trim(Checked):
    """The parts of a model that a smaller one consists of."""

    # numbers of decoder layers, ascending from 0; None for all
    decoder_layers: Numbers | None = None
    # numbers of encoder layers, ascending from 0; None for all
    encoder_layers: Numbers | None = None
    # whether the model has no encoder and reads the larger model's encoder output
    shared_encoder: bool = False
    # ids, ascending, that the output head keeps; other ids get no probability. None for all. The
    # model can still read tokens of all ids.
    head_ids: Numbers | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self):
        super().__post_init__()
        if self.shared_encoder and self.encoder_layers is not None:
            raise ValueError(
                f"Trim.encoder_layers is {self.encoder_layers} and shared_encoder says that there "
                "is no encoder; leave one of them out"
            )


# (layers kept, layers in all) -> their numbers
_LAYERS: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    "first": lambda n, of: tuple(range(n)),
    "last": lambda n, of: tuple(range(of - n, of)),
    "spread": lambda n, of: tuple(i * (of - 1) // max(n - 1, 1) for i in range(n)),
}


def layers(name: str, text: str, of: int) -> tuple[int, ...]:
    """Returns the layers, of `of` in all, that the text of an argument such as first:2 selects."""
    rule, _, count = text.partition(":")
    if rule in _LAYERS and count.isdecimal() and 1 <= int(count) <= of:
        return _LAYERS[rule](int(count), of)
    numbers = text.split(",")
    if all(number.strip().isdecimal() for number in numbers):
        indices = tuple(map(int, numbers))
        if indices == tuple(sorted(set(indices))) and indices[-1] < of:
            return indices
    raise ValueError(
        f"{name} is {text!r} and the model has {of} layers; give first:N, last:N or spread:N with "
        f"N from 1 to {of}, or ascending numbers from 0 to {of - 1}, as in 0,{of - 1}"
    )


def sizes(config: object, trim: Trim) -> dict[str, int]:
    """Returns the config's numbers of layers after trimming, by field, where they change."""
    counts = {}
    for stack in ("decoder", "encoder"):
        if (numbers := getattr(trim, f"{stack}_layers")) is None:
            continue
        if numbers[-1] >= (there := getattr(config, f"num_{stack}_layers")):
            raise ValueError(
                f"Trim.{stack}_layers is {numbers} and the last of the model's layers is number "
                f"{there - 1}; give numbers up to this"
            )
        counts[f"num_{stack}_layers"] = len(numbers)
    return counts


def check_head(known: tuple[int, ...] | None, ids: tuple[int, ...]) -> None:
    """Raises ValueError if a head of the ids `known`, None for all, lacks some of `ids`."""
    if known is not None and not set(ids) <= set(known):
        raise ValueError(
            f"Trim.head_ids has {len(set(ids) - set(known))} ids that the model's head lacks "
            "(head_ids); trim a model whose head has them"
        )


def head(params: PyTree, tied: bool, known: tuple[int, ...] | None, ids: tuple[int, ...]) -> PyTree:
    """Returns the decoder's entry for an output head [D, K] of K ids; `known` are those it had."""
    if tied:
        kernel = jnp.take(params["token_embedder"]["embedding"], jnp.asarray(ids), axis=0).T
    else:
        places = ids if known is None else np.searchsorted(known, ids)
        kernel = params["decoder"]["logits_dense"]["kernel"]
        kernel = jnp.take(kernel, jnp.asarray(places), axis=1)
    return {"logits_dense": {"kernel": kernel}}


def of_layers(stack: PyTree, numbers: tuple[int, ...]) -> PyTree:
    """Returns a stack's parameters with only the layers `numbers`, numbered from 0 on."""
    others = {name: leaf for name, leaf in stack.items() if not name.startswith("layers_")}
    return others | {f"layers_{new}": stack[f"layers_{old}"] for new, old in enumerate(numbers)}


def most_frequent(counts: Counter[int], size: int) -> tuple[int, ...]:
    """Returns the `size` most frequent ids, ascending; among equals the smallest ids."""
    return tuple(sorted(sorted(counts, key=lambda i: (-counts[i], i))[:size]))
