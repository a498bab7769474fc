"""Makes synthetic series to train and try a Chronos pair on, as JSON lines.

  python scripts/data/make_series.py DIR

Each series is drawn from a Gaussian process whose kernel is composed at random, by sums and
products, of periodic, linear, smooth, rough, noise and constant kernels: KernelSynth of Chronos
(Ansari et al. 2024, 2403.07815, section 4.2), with periods that fit shorter series. DIR gets
train.jsonl, validation.jsonl and test.jsonl.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

LENGTH = 160
SIZES = {"train": 30_000, "validation": 200, "test": 200}
LARGEST_SUM = 5  # kernels of one series
PERIODS = (4, 6, 7, 12, 14, 24, 30, 48, 60, 96)  # in steps
Kernel = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of times, scaled to 0..1


def kernels(length: int) -> list[Kernel]:
    """Returns the kernels that a series may be composed of."""

    def periodic(period: float) -> Kernel:
        return lambda a, b: np.exp(-2 * np.sin(np.pi * (a - b) * length / period) ** 2)

    def linear(offset: float) -> Kernel:
        return lambda a, b: offset**2 + a * b

    def smooth(scale: float) -> Kernel:
        return lambda a, b: np.exp(-0.5 * ((a - b) / scale) ** 2)

    def rough(alpha: float) -> Kernel:
        return lambda a, b: (1 + (a - b) ** 2 / (2 * alpha)) ** -alpha

    def noise(size: float) -> Kernel:
        return lambda a, b: size * (a == b)

    return [
        *map(periodic, PERIODS),
        *map(linear, (0.0, 1.0, 10.0)),
        *map(smooth, (0.1, 1.0, 10.0)),
        *map(rough, (0.1, 1.0, 10.0)),
        *map(noise, (0.1, 1.0)),
        lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape)),
    ]


def series(random: np.random.Generator, known: Sequence[np.ndarray]) -> np.ndarray:
    """Returns one series from the prior of a random composition of covariances."""
    chosen = [
        known[i] for i in random.integers(len(known), size=random.integers(1, LARGEST_SUM + 1))
    ]
    covariance = chosen[0]
    for other in chosen[1:]:
        covariance = covariance + other if random.random() < 0.5 else covariance * other
    jitter = 1e-6 * np.trace(covariance) / len(covariance)
    root = np.linalg.cholesky(covariance + jitter * np.eye(len(covariance)))
    return root @ random.standard_normal(len(covariance))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--length", type=int, default=LENGTH, help="values of each series")
    parser.add_argument("--train", type=int, default=SIZES["train"], help="series to train on")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    time = np.linspace(0, 1, args.length)
    known = [kernel(time[:, None], time[None]) for kernel in kernels(args.length)]
    for number, split in enumerate(SIZES):
        random = np.random.default_rng([number, 46])
        count = args.train if split == "train" else SIZES[split]
        with open(args.folder / f"{split}.jsonl", "w", encoding="utf-8") as file:
            for _ in range(count):
                values = ", ".join(f"{value:.5g}" for value in series(random, known))
                file.write(f"[{values}]\n")


if __name__ == "__main__":
    main()
