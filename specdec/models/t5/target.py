"""T5 as a `Model`: pure functions over an explicit parameter tree."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, TypeVar

import jax

from specdec.models.bases.stack import EncoderDecoder
from specdec.models.layers.products import Fused
from specdec.models.placement import device, single_rows
from specdec.models.t5.config import SIZES, T5Config
from specdec.models.t5.network import T5

Self = TypeVar("Self", bound="T5Target")

FUSED: Mapping[str, Fused] = {"gpu": "triton", "tpu": "mosaic"}  # by backend


@dataclasses.dataclass(frozen=True)
class T5Target(EncoderDecoder):
    """T5 as a `Model`, for targets and drafters, with T5X's tree of parameters.

    Args:
      config: the architecture. The other fields are those of `StackModel`; the kernels of `fused`
        are those of `t5.fused` ("triton") and `t5.streamed` ("mosaic").

    Raises:
      ValueError: `joined` or `fused` is given, and other parameters are not as in checkpoints.
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
                f"{name}.joined is {self.joined} and fused is {self.fused!r}, its layout "
                f"{self.layout!r} and its weights {self.weights!r}; give one of both at most, "
                "and only with 'checkpoint' and 'stored'"
            )

    def network(self) -> T5:
        """Returns the module, in this target's layout."""
        stored = self.layout, self.orders, self.weights
        return T5(self.config, *stored, self.widened, self.joined, self.fused)

    def drafting(self: Self) -> Self:
        """Returns this model with joined or fused kernels, where they were measured to be faster.

        Fused ones compute calls at batch 1 on one and two tokens. On a TPU the logits remain, so a
        call on one token may still be computed with two.
        """
        chosen = self.joined or self.fused
        if chosen or not self.keeps_kernels or self.axis_rules or not device.measures_calls():
            return self
        others = [dataclasses.replace(self, joined=True)]
        if fused := FUSED.get(jax.default_backend()):
            width = 1 if fused == "triton" else self.least_width
            others.append(dataclasses.replace(self, fused=fused, least_width=width))
        return single_rows.fastest((self, *others))
