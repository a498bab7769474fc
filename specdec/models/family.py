"""What a family of models says about itself, for the parts of the project that know none.

A family may leave everything out but its name, its config and its model; commands and formats that
need more then say that it is missing. An optional part is a module, or an object, with the
functions of its protocol. Whoever refuses something raises ValueError with one line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from specdec.models.growing import Config, Growth
from specdec.models.kept_parts import Trim
from specdec.models.model import Model
from specdec.types import PyTree

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Shape]  # by the parameters' names, 'decoder/decoder_norm/scale'
Record: TypeAlias = Mapping[str, Any]  # a JSON object
Arrays: TypeAlias = Mapping[str, np.ndarray]


class HuggingFace(Protocol):
    """Checkpoints of transformers, whose names and words are 'theirs'."""

    MODEL_TYPES: tuple[str, ...]  # the `model_type` of their records

    def to_config(self, record: Record, arrays: Arrays) -> Config:
        """The config that their record, and the arrays beside it, describe."""
        ...

    def to_record(self, config: Config) -> dict[str, Any]:
        """Their record of a model."""
        ...

    def parameters(self, record: Record, config: Config, arrays: Arrays) -> dict[str, np.ndarray]:
        """Their arrays under our names, as views; those that a model lacks keep theirs."""
        ...

    def names(self, config: Config) -> dict[str, str]:
        """{our name: theirs} of all parameters that a model of this depth may have."""
        ...

    def is_transposed(self, name: str) -> bool:
        """Whether they keep the array of our name the other way round."""
        ...

    def has_bytes(self, record: Record) -> bool:
        """Whether ids are UTF-8 bytes; the record has the tokenizer's too."""
        ...

    def extra_ids(self, record: Record, tokenizer: str) -> int:
        """Sentinels behind the pieces; `tokenizer` is the text of its own record."""
        ...

    def tokenizer_record(self, config: Config, pieces: int) -> dict[str, Any]:
        """Their record of a SentencePiece tokenizer with so many pieces."""
        ...


class Stack(NamedTuple):
    """The parameters that one array on disk holds."""

    names: tuple[str, ...]  # with an axis: of layers 0, 1, ..
    shape: Shape  # of each, in the model; the array may have its sides split
    axis: int | None = None  # of the layers


class Scanned(Protocol):
    """Checkpoints of T5X with another tree, as of layers that were trained in a scan."""

    def stacks(
        self, shapes: Shapes, config: Config | None, repeats: Callable[[str, int], bool]
    ) -> dict[str, Stack]:
        """What each array holds, also those of the usual tree.

        repeats: whether an array is the same all along an axis, which has its data read.
        """
        ...


class Trimming(Protocol):
    """A part of a trained model as a model of its own."""

    def trimmed(self, config: Config, trim: Trim) -> Config:
        """The config of the smaller model. Raises ValueError where there are no such parts."""
        ...

    def trim(self, params: PyTree, config: Config, trim: Trim) -> PyTree:
        """The parameters of the smaller model."""
        ...


def no_cause(found: Shapes, expected: Shapes) -> str:
    """A cause for families that do not look for one."""
    return "another config, or an incomplete or altered checkpoint"


@dataclasses.dataclass(frozen=True)
class Family:
    """Models of one architecture, which differ in their sizes.

    name: in `config.json` and in the table.
    config: the class of the configs: a frozen dataclass of plain values, which JSON can bring back,
      with a field `dtype`.
    model: makes the `Model` of a config.
    misfit: why the shapes found in a checkpoint are not those expected.
    huggingface, scanned, growth, trimming: see there; None for what the family does not have.
    from_record: makes the config of a checkpoint's fields, where that is not `config` itself.
    sizes_of: the family in whose file of gin/models the presets are that it grows to; itself if
      that is empty.
    """

    name: str
    config: type
    model: Callable[[Any], Model]
    growth: Growth | None = None
    misfit: Callable[[Shapes, Shapes], str] = no_cause
    huggingface: HuggingFace | None = None
    scanned: Scanned | None = None
    trimming: Trimming | None = None
    from_record: Callable[..., Config] | None = None
    sizes_of: str = ""

    def config_of(self, fields: Record) -> Config:
        """Returns the config that a checkpoint's fields are of."""
        return (self.from_record or self.config)(**fields)

    @property
    def presets(self) -> str:
        """The name of a file in gin/models."""
        return self.sizes_of or self.name
