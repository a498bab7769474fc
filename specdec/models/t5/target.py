"""T5 as a `Model`: pure functions over an explicit parameter tree."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, TypeVar

import jax

from specdec.models import device, single_rows
from specdec.models.stack import EncoderDecoder
from specdec.models.t5.config import SIZES, T5Config
from specdec.models.t5.network import T5

Self = TypeVar("Self", bound="T5Target")


@dataclasses.dataclass(frozen=True)
class T5Target(EncoderDecoder):
    """T5 as a `Model`, for targets and drafters, with T5X's tree of parameters.

    Args:
      config: the architecture. The other fields are those of `StackModel`; the kernels of `fused`
        are those of `t5.fused`.

    Raises:
      ValueError: `fused` is True, and parameters are not those of checkpoints.
    """

    config: T5Config
    config_class: ClassVar[type[T5Config]] = T5Config
    size_names: ClassVar[tuple[str, ...]] = SIZES
    has_fused: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.fused and not self._as_in_checkpoints:
            name = type(self).__name__
            raise ValueError(
                f"{name}.fused is True, its layout {self.layout!r} and its weights "
                f"{self.weights!r}; give 'checkpoint' and 'stored', which fused kernels read"
            )

    def network(self) -> T5:
        """Returns the module, in this target's layout."""
        stored = self.layout, self.orders, self.weights
        return T5(self.config, *stored, self.widened, self.fused)

    def drafting(self: Self) -> Self:
        """Returns this model with fused kernels on a GPU where they were measured to be faster.

        They compute calls at batch 1 on one and two tokens.
        """
        on_gpu = jax.default_backend() == "gpu" and device.measures_calls()
        if not on_gpu or not self._as_in_checkpoints or self.axis_rules:
            return self
        if not single_rows.fused_is_faster(self.stored()):
            return self
        return dataclasses.replace(self, fused=True, least_width=1)

    @property
    def _as_in_checkpoints(self) -> bool:
        return self.layout == "checkpoint" and self.weights == "stored"
