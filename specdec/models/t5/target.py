"""T5 as a `Model`: pure functions over an explicit parameter tree."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from specdec.models.stack import EncoderDecoder
from specdec.models.t5.config import SIZES, T5Config
from specdec.models.t5.network import T5


@dataclasses.dataclass(frozen=True)
class T5Target(EncoderDecoder):
    """T5 as a `Model`, for targets and drafters, with T5X's tree of parameters.

    Args:
      config: the architecture. The other fields are those of `StackModel`.
    """

    config: T5Config
    config_class: ClassVar[type[T5Config]] = T5Config
    size_names: ClassVar[tuple[str, ...]] = SIZES

    def network(self) -> T5:
        """Returns the module, in this target's layout."""
        stored = self.layout, self.orders, self.weights
        return T5(self.config, *stored, self.widened)
