"""Adafactor, as T5 was trained with, and its learning rate."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from specdec.common.values import Checked, NonNegativeInt, PositiveFloat, PositiveInt
from specdec.types import Array


@dataclasses.dataclass(frozen=True)
class LearningRate(Checked):
    """A linear warm-up to `peak`, `hold` steps at it, then a decay. Steps count from 1.

    Args:
      peak: the highest rate.
      warmup: steps of the warm-up.
      hold: steps at the peak.
      decay: 'constant'; 'rsqrt', peak * sqrt(s / step) with s the last step at the peak; or
        'linear', which is 0 at step `end`.
      end: the last step of a linear decay.
    """

    peak: PositiveFloat = 0.03
    warmup: PositiveInt = 1000
    hold: NonNegativeInt = 0
    decay: Literal["constant", "rsqrt", "linear"] = "constant"
    end: PositiveInt | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.decay == "linear" and self.end is None:
            raise ValueError(
                "LearningRate.decay is 'linear' and end is None; give end, the step at which the "
                "rate is 0"
            )
        if self.decay != "linear" and self.end is not None:
            raise ValueError(
                f"LearningRate.end is {self.end} with decay {self.decay!r}; leave out end, or give "
                "decay 'linear'"
            )
        if self.end is not None and self.end <= self.warmup + self.hold:
            raise ValueError(
                f"LearningRate.end is {self.end}; give more than warmup + hold, "
                f"{self.warmup + self.hold}"
            )

    def __call__(self, count: ArrayLike) -> Array:
        """Returns the rate of the update after `count` updates, float32."""
        step = jnp.asarray(count, jnp.float32) + 1
        top = float(self.warmup + self.hold)
        rate = self.peak * jnp.minimum(1.0, step / self.warmup)
        if self.decay == "rsqrt":
            rate *= jnp.sqrt(top / jnp.maximum(step, top))
        elif self.end is not None:
            rate *= jnp.clip((self.end - step) / (self.end - top), 0.0, 1.0)
        return rate


@dataclasses.dataclass(frozen=True)
class Adafactor(Checked):
    """Adafactor (Shazeer and Stern 2018) with T5's settings.

    There is no momentum and no weight decay. Steps are relative to the root mean square of each
    parameter. Second moments are factored from 128 x 128 on, with beta2 = 1 - step^-0.8. Updates
    are clipped to a root mean square of 1.

    Args:
      learning_rate: the schedule of the rate.
      clip_norm: bounds the gradient's global norm before anything else, None for no bound.
    """

    learning_rate: LearningRate = LearningRate()
    clip_norm: PositiveFloat | None = None

    def transformation(self) -> optax.GradientTransformation:
        adafactor = optax.adafactor(
            self.learning_rate,
            min_dim_size_to_factor=128,
            decay_rate=0.8,
            clipping_threshold=1.0,
            multiply_by_parameter_scale=True,
            momentum=None,
            weight_decay_rate=None,
        )
        if self.clip_norm is None:
            return adafactor
        return optax.chain(optax.clip_by_global_norm(self.clip_norm), adafactor)
