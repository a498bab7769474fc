"""Adafactor as T5 was trained with it, and its learning rate."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from specdec.types import Array
from specdec.values import is_integer, is_number

DECAYS = ("constant", "rsqrt", "linear")


@dataclasses.dataclass(frozen=True)
class LearningRate:
    """Linear warm-up to `peak`, `hold` steps at it, then a decay. Steps count from 1.

    decay: 'constant'; 'rsqrt', peak * sqrt(s / step) with s the last step at the peak; or 'linear',
      which is 0 at step `end`.
    """

    peak: float = 0.03
    warmup: int = 1000
    hold: int = 0
    decay: str = "constant"
    end: int | None = None

    def __post_init__(self):
        if self.decay not in DECAYS:
            raise ValueError(f"LearningRate.decay is {self.decay!r}; known: {', '.join(DECAYS)}")
        if not is_number(self.peak) or self.peak <= 0:
            raise ValueError(f"LearningRate.peak is {self.peak!r}; give a positive number")
        if not is_integer(self.warmup, 1):
            raise ValueError(f"LearningRate.warmup is {self.warmup!r}; give a positive integer")
        if not is_integer(self.hold, 0):
            raise ValueError(f"LearningRate.hold is {self.hold!r}; give an integer from 0 on")
        if self.end is not None and not is_integer(self.end, 1):
            raise ValueError(f"LearningRate.end is {self.end!r}; give a positive integer or None")
        if (self.decay == "linear") != (self.end is not None):
            raise ValueError(
                f"LearningRate.end is {self.end} with decay {self.decay!r}; it belongs to 'linear'"
            )
        if self.end is not None and self.end <= self.warmup + self.hold:
            raise ValueError(
                f"LearningRate.end is {self.end}; give more than warmup + hold, "
                f"{self.warmup + self.hold}"
            )

    def __call__(self, count: ArrayLike) -> Array:
        """The rate of the update after `count` updates, float32."""
        step = jnp.asarray(count, jnp.float32) + 1
        top = float(self.warmup + self.hold)
        rate = self.peak * jnp.minimum(1.0, step / self.warmup)
        if self.decay == "rsqrt":
            rate *= jnp.sqrt(top / jnp.maximum(step, top))
        elif self.end is not None:
            rate *= jnp.clip((self.end - step) / (self.end - top), 0.0, 1.0)
        return rate


@dataclasses.dataclass(frozen=True)
class Adafactor:
    """Shazeer and Stern 2018 as T5 uses it: no momentum, no weight decay, steps relative to the
    root mean square of each parameter, factored second moments from 128 x 128 on with
    beta2 = 1 - step^-0.8, and updates clipped to a root mean square of 1.

    clip_norm: bounds the gradient's global norm before anything else, None for no bound.
    """

    learning_rate: LearningRate = LearningRate()
    clip_norm: float | None = None

    def __post_init__(self):
        clip = self.clip_norm
        if clip is not None and (not is_number(clip) or clip <= 0):
            raise ValueError(f"Adafactor.clip_norm is {clip!r}; give a positive number or None")

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
