"""T5 as a `Model`: pure functions over an explicit parameter tree."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, TypeVar

import jax

from specdec.models.bases.stack import EncoderDecoder
from specdec.models.placement import device, single_rows
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
      ValueError: `joined` or `fused` is True, and other parameters are not as in checkpoints.
    """

    config: T5Config
    config_class: ClassVar[type[T5Config]] = T5Config
    size_names: ClassVar[tuple[str, ...]] = SIZES
    has_joined: ClassVar[bool] = True
    has_fused: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if (self.joined or self.fused) and not self.keeps_kernels or self.joined and self.fused:
            name = type(self).__name__
            raise ValueError(
                f"{name}.joined is {self.joined} and fused is {self.fused}, its layout "
                f"{self.layout!r} and its weights {self.weights!r}; give one of both True at most, "
                "and only with 'checkpoint' and 'stored'"
            )

    def network(self) -> T5:
        """Returns the module, in this target's layout."""
        stored = self.layout, self.orders, self.weights
        return T5(self.config, *stored, self.widened, self.joined, self.fused)

    def drafting(self: Self) -> Self:
        """Returns this model with joined or fused kernels, where they were measured to be faster.

        On a TPU kernels may be joined, on a GPU also fused. Fused ones compute calls at batch 1 on
        one and two tokens.
        """
        if not self.keeps_kernels or self.axis_rules or not device.measures_calls():
            return self
        others = [dataclasses.replace(self, joined=True)]
        if jax.default_backend() == "gpu":
            others.append(dataclasses.replace(self, fused=True, least_width=1))
        return single_rows.fastest((self, *others))
