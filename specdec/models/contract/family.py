"""The description of a model family, for code that serves all families.

A family needs a name, a config and a model; the rest is optional. A command or format that needs
more says that it is missing. An optional part is a module, or an object, with the functions of its
protocol. Errors are ValueErrors with a message of one line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from specdec.common.json_values import JsonObject
from specdec.models.contract.model import Config, Model
from specdec.models.sizes.growing import Growth
from specdec.models.sizes.kept_parts import Trim
from specdec.types import PyTree

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Shape]  # by the parameters' names, 'decoder/decoder_norm/scale'
Record: TypeAlias = JsonObject
Arrays: TypeAlias = Mapping[str, np.ndarray]


C = TypeVar("C", bound=Config)


class HuggingFace(Protocol):
    """Checkpoints in transformers' format; a record is the contents of their `config.json`."""

    MODEL_TYPES: tuple[str, ...]  # the `model_type` of the records

    def to_config(self, record: Record, arrays: Arrays) -> Config:
        """Returns the config of the model in a checkpoint with this record and these arrays."""
        ...

    def to_record(self, config: Any) -> dict[str, object]:
        """Returns the contents of transformers' `config.json` for a model of this config."""
        ...

    def parameters(self, record: Record, config: Any, arrays: Arrays) -> dict[str, np.ndarray]:
        """Returns a checkpoint's arrays by our names, as views; arrays that the model lacks keep
        transformers' names."""
        ...

    def names(self, config: Any) -> dict[str, str]:
        """Returns {our name: transformers' name} of all parameters that a model may have.

        If several of our names have one name in transformers, that array joins their arrays, of
        equal shapes, along the last axis in this order.
        """
        ...

    def is_transposed(self, name: str) -> bool:
        """Returns whether transformers stores the transpose of the parameter with our `name`."""
        ...

    def has_bytes(self, record: Record) -> bool:
        """Returns whether token ids are UTF-8 bytes. The record includes the tokenizer's."""
        ...

    def extra_ids(self, record: Record, tokenizer: str) -> int:
        """Returns the number of sentinel ids; `tokenizer` is the text of the tokenizer's record."""
        ...

    def tokenizer_record(self, config: Any, pieces: int) -> dict[str, object]:
        """Returns transformers' record of a SentencePiece tokenizer with this number of pieces."""
        ...


class Stack(NamedTuple):
    """The parameters that one array on disk holds."""

    names: tuple[str, ...]  # with an axis: of layers 0, 1, ..
    shape: Shape  # of each, in the model; the array may have its sides split
    axis: int | None = None  # the axis along which layers are stacked; None for one parameter


class Scanned(Protocol):
    """Checkpoints of T5X with another tree, such as that of layers trained in a scan."""

    def stacks(
        self, shapes: Shapes, config: Config | None, repeats: Callable[[str, int], bool]
    ) -> dict[str, Stack]:
        """Returns, by the name of each array of a checkpoint, the parameters that it holds.

        Args:
          shapes: the shapes of the arrays by name.
          config: the model's config, if it is known.
          repeats: whether an array is constant along an axis; it reads the array's data.
        """
        ...


class Trimming(Protocol[C]):
    """Makes a part of a trained model a model of its own."""

    @property
    def has_encoder(self) -> bool:
        """Whether models of the family have an encoder, which a trimmed model may share."""
        ...

    def trimmed(self, config: C, trim: Trim) -> C:
        """Returns the trimmed model's config; raises ValueError if the model lacks these parts."""
        ...

    def trim(self, params: PyTree, config: C, trim: Trim) -> PyTree:
        """Returns the parameters of the smaller model."""
        ...


def no_cause(shapes: Shapes, expected: Shapes) -> str:
    """Returns a general cause of unexpected shapes, for families without a better diagnosis."""
    return "another config, or an incomplete or altered checkpoint"


@dataclasses.dataclass(frozen=True)
class Family:
    """Models of one architecture, which differ in their sizes.

    Args:
      name: the name in `config.json` and in the table.
      config: the class of the configs: a frozen dataclass of plain values, which JSON can restore,
        with a field `dtype`.
      model: makes the `Model` of a config.
      growth: how models are enlarged; None if they cannot be.
      misfit: explains why the shapes in a checkpoint are not those expected.
      huggingface: the checkpoints of transformers; None if the family has none.
      scanned: checkpoints with stacked layers; None if the family has none.
      trimming: how models are trimmed; None if they cannot be.
      from_record: makes the config from a checkpoint's fields, if `config` itself does not.
      sizes_of: the family whose file in gin/models has the presets to grow to; "" for this family.
    """

    name: str
    config: type
    model: Callable[..., Model]
    growth: Growth | None = None
    misfit: Callable[[Shapes, Shapes], str] = no_cause
    huggingface: HuggingFace | None = None
    scanned: Scanned | None = None
    trimming: Trimming | None = None
    from_record: Callable[..., Config] | None = None
    sizes_of: str = ""

    def config_of(self, fields: Record) -> Config:
        """Returns the config that a checkpoint's fields describe."""
        return (self.from_record or self.config)(**fields)

    @property
    def presets(self) -> str:
        """The name of the file in gin/models that has the family's sizes."""
        return self.sizes_of or self.name
