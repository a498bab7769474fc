"""What the products of a decoder step take on this device: measured once, and kept.

Which of the `ORDERS` of a product is fast differs between CPUs, even of one maker, and with the
number of tokens: see docs/log/performance-log.md. So it is measured on the matrices of MLPs of two
sizes, before the first model is laid out. That takes about two seconds. Later it is read from a
file. A measurement made while others used the processor is repeated when they do not.

SPECDEC_PRODUCTS in the environment overrides that: "stored" leaves kernels as checkpoints have
them, and anything else is a file that was measured elsewhere.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from specdec.common import environment, progress, records
from specdec.models.products import BLOCK, ORDERS, Order, product

SETTING = "SPECDEC_PRODUCTS"
STORED = "stored"
FORMAT = 1
TOKENS = (1, 2, 8, 64)
ROUNDS = 8  # of all programs by turns; the least time of each counts
BUSY = 0.5  # mean load of a core in the last minute


class Size(NamedTuple):
    """The two kernels of an MLP of T5."""

    name: str
    emb_dim: int
    mlp_dim: int

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """[in, out] of each kernel."""
        return (self.emb_dim, self.mlp_dim), (self.mlp_dim, self.emb_dim)

    @property
    def bytes(self) -> int:
        """Of all of them, float32."""
        return 4 * sum(inputs * outputs for inputs, outputs in self.shapes)


# The kernels of one fit into most caches, those of the other into hardly any.
SIZES = Size("small", 256, 1024), Size("large", 1024, 2816)
LARGE = 2**21  # bytes of a kernel that counts as large

Milliseconds = Mapping[str, Mapping[str, Mapping[int, float]]]  # by size, order and tokens


@dataclasses.dataclass(frozen=True)
class Device:
    """Where and when it was measured, and the milliseconds of a size's matrices.

    load: of a core meanwhile, by whoever used it in the minute before.
    """

    about: Mapping[str, Any]
    milliseconds: Milliseconds
    load: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether others may have slowed some products and not others."""
        return self.load > BUSY

    def seconds(self, kernel_bytes: int, tokens: int, order: Order) -> float:
        """What a product of so many tokens with a kernel of so many bytes takes."""
        size = SIZES[kernel_bytes >= LARGE]
        if order == "kernel_first" and tokens > BLOCK // 2:
            tokens = -(-tokens // BLOCK) * BLOCK
        times = self.milliseconds[size.name][order]
        milliseconds = np.interp(tokens, list(times), list(times.values()))
        return float(milliseconds) / 1e3 * kernel_bytes / size.bytes

    def fastest(
        self, kernels: Mapping[int, int], tokens: int, orders: Sequence[Order] = ORDERS
    ) -> tuple[float, Order]:
        """The seconds that calls of so many tokens take, and the order in which they do.

        kernels: of the model, how many there are of each number of bytes.
        """
        return min(
            (sum(n * self.seconds(size, tokens, order) for size, n in kernels.items()), order)
            for order in orders
            if order in self.milliseconds[SIZES[0].name]
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        named = {"about": self.about, "load": self.load, "milliseconds": self.milliseconds}
        return {"format": FORMAT, **named}


def this() -> Device | None:
    """The default device, measured now if it never was; None if its kernels stay as stored.

    Only CPUs are measured: for others XLA chooses how kernels lie.

    Raises:
      ValueError: SPECDEC_PRODUCTS names no file of a measurement.
    """
    given = os.environ.get(SETTING)
    if given == STORED or jax.default_backend() != "cpu":
        return None
    return read(Path(given)) if given else _this(str(file()))


@functools.cache
def _this(path: str) -> Device:
    kept = Path(path)
    with contextlib.suppress(ValueError, OSError):
        found = read(kept)
        if not found.busy or load() > BUSY:
            return found
    with progress.stage("measuring", "measuring this device once, about two seconds"):
        device = measure()
    with contextlib.suppress(OSError):  # a cache that cannot be written is none
        kept.parent.mkdir(parents=True, exist_ok=True)
        records.write(kept, records.as_json(device.as_json(), indent=1) + "\n")
    return device


def load() -> float:
    """The mean number of processes that wanted a core in the last minute, for each core."""
    return round((environment.load_average() or 0.0) / (os.cpu_count() or 1), 2)


def about() -> dict[str, Any]:
    """What the times depend on, as far as it is known."""
    names = ("backend", "device", "cpu", "features", "cores", "xla_flags")
    found = {name: environment.hardware()[name] for name in names}
    return found | {name: environment.version(name) for name in ("jax", "jaxlib")}


def file() -> Path:
    """Where the measurement of this device is kept."""
    digest = hashlib.sha256(json.dumps(about(), sort_keys=True).encode()).hexdigest()[:16]
    return Path(environment.cache_folder() or os.devnull) / "devices" / f"{digest}.json"


def read(path: Path) -> Device:
    """A measurement that was kept.

    Raises:
      ValueError: the file is missing or of something else.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise KeyError("format")
        found = {size.name: record["milliseconds"][size.name] for size in SIZES}
        times = {name: _times(by_order) for name, by_order in found.items()}
        return Device(record["about"], times, float(record.get("load", 0)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{SETTING} is {path}, which holds no measured device; give a file that `specdec list "
            f"device` names, or {STORED!r}, or unset it"
        ) from error


def _times(by_order: Mapping[str, Mapping[str, float]]) -> dict[str, dict[int, float]]:
    """Those of a record, which may lack orders that came later."""
    known = [order for order in ORDERS if order in by_order]
    if known[:2] != ["in_out", "out_in"]:
        raise KeyError("in_out, out_in")
    return {order: {int(n): float(x) for n, x in by_order[order].items()} for order in known}


def measure() -> Device:
    """The default device's times: compiles some dozens of small programs and runs them by turns."""
    before = load()
    keys = [(size, order, tokens) for size in SIZES for order in ORDERS for tokens in TOKENS]
    kernels = {(size, turned): _kernels(size, turned) for size in SIZES for turned in (0, 1)}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        programs = list(pool.map(lambda key: _program(kernels, *key), keys))
    seconds: list[list[float]] = [[] for _ in keys]
    for _ in range(ROUNDS):
        for (execute, given), times in zip(programs, seconds, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(execute(given))
            times.append(time.perf_counter() - start)
    found: dict[str, Any] = {size.name: {order: {} for order in ORDERS} for size in SIZES}
    for (size, order, tokens), times in zip(keys, seconds, strict=True):
        found[size.name][order][tokens] = round(1e3 * min(times), 4)
    return Device(about(), found, before)


def _kernels(size: Size, transposed: int) -> list[jax.Array]:
    """Each has its memory, as a model's do; ones take as long as other numbers."""
    return [_ones(*(shape[::-1] if transposed else shape)) for shape in size.shapes]


def _program(
    kernels: Mapping[tuple[Size, int], Sequence[jax.Array]], size: Size, order: Order, tokens: int
) -> tuple[Any, Any]:
    """All products of a size, compiled, and what they are given."""

    def products(pairs):
        return [product(x, kernel, order, precision="highest") for x, kernel in pairs]

    mine = kernels[size, int(order != "in_out")]
    given = [(_ones(tokens, s[0]), kernel) for s, kernel in zip(size.shapes, mine, strict=True)]
    return jax.jit(products).lower(given).compile(), given


def _ones(*shape: int) -> jax.Array:
    return jax.device_put(np.ones(shape, np.float32))
