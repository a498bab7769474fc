"""The time of a decoder step's matrix products on this device: measured once, and kept in a file.

Which of the `ORDERS` of a product is fast differs between CPUs, even of one maker, and with the
number of tokens: see docs/log/performance-log.md. It is measured before the first model is laid
out, on the matrices of MLPs of two sizes, in a few seconds and with 350 MB. A measurement made
while the processor was busy is repeated when it is idle. Products of int8 operands are measured
before the first model that has them, together with the others.

The environment variable SPECDEC_PRODUCTS overrides the measurement: "stored" leaves kernels as in
checkpoints, and anything else is the file of a measurement.
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
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

import jax
import numpy as np

from specdec.common import environment, progress, records
from specdec.common.json_values import parsed
from specdec.models.layers.products import BLOCK, INT8_ORDERS, ORDERS, Order, product

SETTING = "SPECDEC_PRODUCTS"
STORED = "stored"
FORMAT = 2
TOKENS = (1, 2, 8, 64)
ROUNDS = 16  # of all programs in turn; the least time of each counts
BUSY = 0.5  # mean load of a core in the last minute


class Size(NamedTuple):
    """The sizes of the two kernels of a T5's MLP, whose products are timed.

    If `cached`, the timed programs share the kernels. Otherwise each program has its own, so that
    they are read from memory, as a model's are: programs run alternately, and hundreds of megabytes
    are read between two runs of one program. Two kernels alone would stay in a server's cache.
    """

    name: str
    emb_dim: int
    mlp_dim: int
    cached: bool

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The shapes [in, out] of the kernels."""
        return (self.emb_dim, self.mlp_dim), (self.mlp_dim, self.emb_dim)

    @property
    def bytes(self) -> int:
        """The bytes of all kernels in float32."""
        return 4 * sum(inputs * outputs for inputs, outputs in self.shapes)


SIZES = Size("small", 256, 1024, cached=True), Size("large", 1024, 2816, cached=False)
LARGE = 2**21  # bytes in float32 from which on a kernel's time follows from the size "large"
INT8 = "int8_"  # before an order of products whose operands both have eight bits

_Program = tuple[jax.stages.Compiled, list[tuple[jax.Array, jax.Array]]]  # and its arguments
Milliseconds = Mapping[str, Mapping[str, Mapping[int, float]]]  # by size, order and tokens


@dataclasses.dataclass(frozen=True)
class Device:
    """A device, and the milliseconds of each size's products on it."""

    about: Mapping[str, object]  # the facts that the times depend on
    milliseconds: Milliseconds  # by size, order and number of tokens
    load: float = 0.0  # the mean load of a core in the minute before

    @property
    def busy(self) -> bool:
        """Whether other processes may have slowed some of the products."""
        return self.load > BUSY

    def seconds(self, kernel_bytes: int, tokens: int, order: Order) -> float:
        """Returns the seconds of a product of tokens with a kernel of these bytes in float32."""
        size = SIZES[kernel_bytes >= LARGE]
        if order == "kernel_first" and tokens > BLOCK // 2:
            tokens = -(-tokens // BLOCK) * BLOCK
        times = self.milliseconds[size.name][order]
        milliseconds = np.interp(tokens, list(times), list(times.values()))
        return float(milliseconds) / 1e3 * kernel_bytes / size.bytes

    def in_int8(self) -> Device | None:
        """Returns the device with the times of products in eight bits; None if none were measured.

        The names of their orders are those of float32 products.
        """
        times = {
            size: {name.removeprefix(INT8): x for name, x in each.items() if name.startswith(INT8)}
            for size, each in self.milliseconds.items()
        }
        return dataclasses.replace(self, milliseconds=times) if all(times.values()) else None

    def measured(self, name: str) -> bool:
        """Returns whether times of the order `name` are there; those of old files may lack it."""
        return all(name in times for times in self.milliseconds.values())

    def fastest(
        self, kernels: Mapping[int, int], tokens: int, orders: Sequence[Order] = ORDERS
    ) -> tuple[float, Order]:
        """Returns the seconds of a call in its fastest order, and that order; `kernels` counts the
        call's kernels by their bytes in float32."""
        return min(
            (sum(n * self.seconds(size, tokens, order) for size, n in kernels.items()), order)
            for order in orders
            if order in self.milliseconds[SIZES[0].name]
        )

    def as_json(self) -> dict[str, object]:
        """Returns the measurement as plain values."""
        named = {"about": self.about, "load": self.load, "milliseconds": self.milliseconds}
        return {"format": FORMAT, **named}


def this(int8: bool = False) -> Device | None:
    """Returns the default device, measured now if it never was; None to keep kernels as stored.

    Only CPUs are measured. On other devices XLA chooses the layout of kernels.
    """
    setting = os.environ.get(SETTING)
    if setting == STORED or jax.default_backend() != "cpu":
        return None
    return read(Path(setting)) if setting else _this(str(file(int8)), int8)


def measures_calls() -> bool:
    """Returns whether calls on one and two tokens are timed on the default device.

    This is so on devices other than CPUs; on CPUs single products are timed.
    """
    return jax.default_backend() != "cpu" and os.environ.get(SETTING) != STORED


@functools.cache
def _this(path: str, int8: bool) -> Device:
    file_path = Path(path)
    with contextlib.suppress(ValueError, OSError):
        stored = read(file_path)
        complete = all(map(stored.measured, _names(int8)))
        if complete and (not stored.busy or load() > BUSY):
            return stored
    with progress.stage("measuring", "measuring this device once, a few seconds"):
        device = measure(int8)
    with contextlib.suppress(OSError):  # a cache that cannot be written is none
        file_path.parent.mkdir(parents=True, exist_ok=True)
        records.write(file_path, records.as_json(device.as_json(), indent=1) + "\n")
    return device


def load() -> float:
    """Returns the mean number of processes that wanted a core in the last minute, per core."""
    return round((environment.load_average() or 0.0) / (os.cpu_count() or 1), 2)


def about() -> dict[str, object]:
    """Returns the facts about hardware and software that the times depend on, by name."""
    names = ("backend", "device", "cpu", "features", "cores", "xla_flags")
    known: Mapping[str, object] = {**environment.hardware()}
    facts = {name: known[name] for name in names}
    return facts | {name: environment.version(name) for name in ("jax", "jaxlib")}


def file(int8: bool = False) -> Path:
    """Returns the file in which this device's measurement is kept; `int8` is that of `this`."""
    digest = hashlib.sha256(json.dumps(about(), sort_keys=True).encode()).hexdigest()[:16]
    name = f"{digest}-int8.json" if int8 else f"{digest}.json"
    return Path(environment.cache_folder() or os.devnull) / "devices" / name


def read(path: Path) -> Device:
    """Returns the device whose measurement a file holds; raises ValueError if it holds none."""
    try:
        record = parsed(path.read_bytes(), _Record)
        if record["format"] != FORMAT:
            raise KeyError("format")
        stored = {size.name: record["milliseconds"][size.name] for size in SIZES}
        times = {name: _times(by_order) for name, by_order in stored.items()}
        return Device(record["about"], times, record.get("load", 0.0))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{SETTING} is {path}, which holds no measured device; give a file that `specdec list "
            f"device` names, or {STORED!r}, or unset it"
        ) from error


class _Record(TypedDict):
    format: int
    about: dict[str, object]
    milliseconds: dict[str, dict[str, dict[str, float]]]
    load: NotRequired[float]


def _times(by_order: Mapping[str, Mapping[str, float]]) -> dict[str, dict[int, float]]:
    """Returns the times of a size by order and tokens, without orders that the record lacks."""
    known = [order for order in _names(int8=True) if order in by_order]
    if known[:2] != ["in_out", "out_in"]:
        raise KeyError("in_out, out_in")
    return {order: {int(n): x for n, x in by_order[order].items()} for order in known}


def _names(int8: bool) -> list[str]:
    return [*ORDERS, *(INT8 + order for order in INT8_ORDERS if int8)]


def measure(int8: bool = False) -> Device:
    """Measures the default device: compiles dozens of small programs and runs them alternately."""
    before, names = load(), _names(int8)
    return Device(about(), {size.name: _measured(size, names) for size in SIZES}, before)


def _measured(size: Size, names: Sequence[str]) -> dict[str, dict[int, float]]:
    """Returns the milliseconds of a size's products, by order and number of tokens."""
    keys = [(name, tokens) for name in names for tokens in _measured_tokens(name)]
    shared = {_stored(name): _kernels(size, name) for name in names} if size.cached else {}

    def compiled(key: tuple[str, int]) -> _Program:
        name, tokens = key
        kernels = shared.get(_stored(name)) or _kernels(size, name)
        return _program(kernels, size, name, tokens)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        programs = list(pool.map(compiled, keys))
    seconds: list[list[float]] = [[] for _ in keys]
    for _ in range(ROUNDS):
        for (execute, arguments), times in zip(programs, seconds, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(execute(arguments))
            times.append(time.perf_counter() - start)
    fastest: dict[str, dict[int, float]] = {name: {} for name in names}
    for (name, tokens), times in zip(keys, seconds, strict=True):
        fastest[name][tokens] = round(1e3 * min(times), 4)
    return {name: {n: x[n if n in x else 2] for n in TOKENS} for name, x in fastest.items()}


def _measured_tokens(name: str) -> list[int]:
    """Returns `TOKENS`, with 2 for 1 if products are in eight bits, as in `layers.matmul`."""
    return sorted({max(n, 2) for n in TOKENS}) if name.startswith(INT8) else list(TOKENS)


def _stored(name: str) -> tuple[bool, np.dtype]:
    """Returns whether the kernels of a product are transposed, and their dtype."""
    dtype = "float32"
    if name.startswith(INT8):
        dtype = "uint8" if name == INT8 + "unsigned" else "int8"
    return not name.endswith("in_out"), np.dtype(dtype)


def _kernels(size: Size, name: str) -> list[jax.Array]:
    """Returns kernels of ones, each with its own memory; the values do not affect the time."""
    transposed, dtype = _stored(name)
    return [_ones(dtype, *(shape[::-1] if transposed else shape)) for shape in size.shapes]


def _program(kernels: Sequence[jax.Array], size: Size, name: str, tokens: int) -> _Program:
    """Returns the compiled products of a size, and their arguments."""
    order = cast(Order, name.removeprefix(INT8))
    options: dict[str, Any] = {"precision": "highest"}
    if name != order:
        options = {"preferred_element_type": "int32"}

    def products(pairs):
        return [product(x, kernel, order, **options) for x, kernel in pairs]

    pairs = zip(size.shapes, kernels, strict=True)
    kind = np.dtype(np.int8) if order == "unsigned" else kernels[0].dtype
    arguments = [(_ones(kind, tokens, shape[0]), kernel) for shape, kernel in pairs]
    return jax.jit(products).lower(arguments).compile(), arguments


def _ones(kind: np.dtype, *shape: int) -> jax.Array:
    return jax.device_put(np.ones(shape, kind))
