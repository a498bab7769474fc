"""T5 as a `Model`: pure functions over an explicit parameter tree."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, TypeVar

import jax

from specdec.models.bases.networks import StackNetwork
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
      config: the architecture. The other fields are those of `StackModel`; fused kernels are those
        of `t5.fused` ("triton") and `t5.streamed` ("mosaic").

    Raises:
      ValueError: kernels are joined or fused, and others are not as in checkpoints.
    """

    config: T5Config
    config_class: ClassVar[type[T5Config]] = T5Config
    network_class: ClassVar[type[StackNetwork]] = T5
    size_names: ClassVar[tuple[str, ...]] = SIZES
    has_joined: ClassVar[bool] = True
    has_fused: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        joined, fused = self.layout.joined, self.layout.fused
        if (joined or fused) and not self.keeps_kernels or joined and fused:
            name = type(self).__name__
            raise ValueError(
                f"{name}.layout.joined is {joined} and fused is {fused!r}, its storage "
                f"{self.layout.storage!r} and its weights {self.weights!r}; give one of both at "
                "most, and only with 'checkpoint' and 'stored'"
            )

    def drafting(self: Self) -> Self:
        """Returns this model with joined or fused kernels, where they were measured to be faster.

        Fused ones compute calls at batch 1 on one and two tokens. On a TPU the logits remain, so a
        call on one token may still be computed with two.
        """
        chosen = self.layout.joined or self.layout.fused
        if chosen or not self.keeps_kernels or self.axis_rules or not device.measures_calls():
            return self
        others = [self.in_layout(joined=True)]
        if fused := FUSED.get(jax.default_backend()):
            width = 1 if fused == "triton" else self.layout.least_width
            others.append(self.in_layout(fused=fused, least_width=width))
        return single_rows.fastest((self, *others))
