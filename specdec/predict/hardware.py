"""Published figures of TPU chips and topologies, and the roofline of a model call on a chip."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Mapping
from typing import Any

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """The figures of a chip, or of one of its devices, in Cloud TPU's documentation of v4 to 7x."""

    flops: float  # bfloat16 FLOP/s
    int8: float  # operations/s of products of two int8 operands
    bandwidth: float  # bytes/s of HBM
    memory: int  # bytes of HBM
    link: float  # bytes/s to a neighbour, one way
    host: tuple[int, int, int]  # chips of a host along each axis
    cores: str | None = None  # the compiler's name for two cores that act as one device
    devices: int = 1  # JAX devices per chip


CHIPS: Mapping[str, Chip] = {
    "v4": Chip(275e12, 275e12, 1228e9, int(30.75 * GIB), 50e9, (2, 2, 1), "megacore"),
    "v5e": Chip(197e12, 394e12, 819e9, int(15.75 * GIB), 50e9, (2, 4, 1)),
    "v5p": Chip(459e12, 918e12, 2765e9, int(95.74 * GIB), 100e9, (2, 2, 1), "megacore"),
    "v6e": Chip(918e12, 1836e12, 1640e9, int(31.25 * GIB), 100e9, (2, 4, 1)),
    "tpu7x": Chip(1153.5e12, 1153.5e12, 3690e9, int(94.75 * GIB), 100e9, (2, 2, 1), devices=2),
}

# Assumptions about unpublished figures.
HOP_SECONDS = 1e-6  # for a message to reach a neighbour
# The time of a decoder layer, without reading its parameters. With v4's bandwidth, 13 to 15 us per
# draft layer reproduce the cost ratios of Leviathan et al. (2211.17192), table 2.
LAYER_SECONDS = 14e-6


@dataclasses.dataclass(frozen=True)
class Topology:
    """A topology of TPU chips."""

    name: str  # as Cloud TPU writes it, such as v4:2x2x1 or v5e:2x4
    chip: Chip
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, name: str) -> Topology:
        """Returns the topology of a name such as v4:2x2x1; raises ValueError if unknown."""
        match = re.fullmatch(r"(\w+):([1-9]\d*(?:x[1-9]\d*){1,2})", name)
        if match is None or match[1] not in CHIPS:
            raise ValueError(
                f"topology {name!r} is not known; give a generation ({', '.join(CHIPS)}) and the "
                "chips along each axis, as in v4:2x2x1 or v5e:2x4"
            )
        return cls(name, CHIPS[match[1]], tuple(map(int, match[2].split("x"))))

    @property
    def size(self) -> int:
        """The number of chips."""
        return math.prod(self.shape)

    @property
    def device_count(self) -> int:
        """The number of JAX devices."""
        return self.size * self.chip.devices

    def devices(self) -> list[Any]:
        """Returns the JAX devices to compile for; neither a TPU nor its platform is used.

        Raises RuntimeError if libtpu is missing or lacks this topology."""
        from jax.experimental import topologies

        if importlib.util.find_spec("libtpu") is None:
            raise RuntimeError(
                "compiling for a TPU needs libtpu; pip install 'jax[tpu]', best in an environment "
                "of its own"
            )
        os.environ.update(_WITHOUT_A_TPU)
        shape = (*self.shape, 1)[:3]
        options: dict[str, Any] = {"chips_per_host_bounds": list(map(min, shape, self.chip.host))}
        if self.chip.cores:
            options["chip_config_name"] = self.chip.cores
        try:
            description = topologies.get_topology_desc(self.name, "tpu", **options)
        except Exception as error:  # jaxlib raises several kinds
            line = str(error).splitlines()[0]
            raise RuntimeError(f"libtpu has no topology {self.name}: {line}") from error
        return list(description.devices)


# Without these settings libtpu looks for a TPU in the machine, and warns that there is none.
_WITHOUT_A_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}


@dataclasses.dataclass(frozen=True)
class Call:
    """The work of one model call on one device, for any number of tokens."""

    bytes: float  # bytes of parameters and caches that a call of any width reads
    flops: float  # FLOPs per token, without those in `int8`
    layers: int  # decoder layers
    int8: float = 0.0  # operations per token in products of two int8 operands
    reductions: int = 0  # all-reduces per call
    reduced: float = 0.0  # bytes of the results of all-reduces, per token
    gathers: int = 0  # all-gathers per call
    gathered: float = 0.0  # bytes of the results of all-gathers, per token
    devices: int = 1  # the number of devices over which the model is divided

    def seconds(self, chip: Chip, width: int, layer_seconds: float = 0.0) -> float:
        """Returns the seconds of a call on `width` tokens.

        It is max(memory, arithmetic) + collectives + layers * layer_seconds."""
        # A collective is a ring in both directions; each message passes every other device.
        arithmetic = width * (self.flops / chip.flops + self.int8 / chip.int8)
        compute = max(self.bytes / chip.bandwidth, arithmetic)
        others = self.devices - 1
        hops = (2 * self.reductions + self.gathers) * others
        moved = (2 * self.reduced + self.gathered) * width * others / self.devices
        return compute + hops * HOP_SECONDS + moved / (2 * chip.link) + self.layers * layer_seconds
