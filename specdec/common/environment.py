"""The software, device and compiler flags with which a figure was measured, for every report."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import TypedDict

import jax

DISTRIBUTION = "specdec-jax"  # the package index has another project called specdec
PACKAGES = ("specdec", "jax", "jaxlib", "flax")
# Instruction sets that decide how products are computed, as Linux names them.
FEATURES = ("sse4_2", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")


class Hardware(TypedDict):
    """The part of an `Environment` on which times depend."""

    backend: str
    device: str
    devices: int
    cpu: str
    features: list[str]
    cores: int | None
    xla_flags: str


class Environment(Hardware):
    """The facts that affect speed and rounding on a machine, and the date."""

    date: str
    versions: dict[str, str | None]
    system: str
    matmul_precision: str | None


def environment() -> Environment:
    """Returns the facts that affect speed and rounding on this machine, and the date, for JSON.

    This starts JAX's backend. A package that is not installed has the version None.
    """
    return {
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
        "system": platform.platform(),
        **hardware(),
        "matmul_precision": jax.config.values["jax_default_matmul_precision"],
    }


def hardware() -> Hardware:
    """Returns the part of `environment` on which times depend, with the compiler's flags."""
    devices, linux = jax.devices(), hasattr(os, "sched_getaffinity")
    return {
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "cpu": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "features": [name for name in FEATURES if name in _cpuinfo("flags").split()],
        "cores": len(os.sched_getaffinity(0)) if linux else os.cpu_count(),  # of this process
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def device_in_words(environment: Hardware) -> str:
    """Returns the device of an `environment`, such as '2 cores of AMD EPYC (avx512f)'."""
    if environment["backend"] != "cpu":
        return f"{environment['devices']} x {environment['device']}"
    vectors = [x for x in environment.get("features", ()) if x in ("sse4_2", "avx2", "avx512f")]
    widest = f" ({vectors[-1]})" if vectors else ""  # older files do not say
    cores = environment.get("cores")  # a damaged file may not say
    return f"{cores} core{'s' * (cores != 1)} of {environment.get('cpu')}{widest}"


def load_average() -> float | None:
    """Returns the mean number of processes that wanted to run in the last minute, on all cores."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def version(package: str) -> str | None:
    """Returns the version of an installed package, None if it is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION if package == "specdec" else package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cache_folder() -> str:
    """Returns the folder of files that later runs reuse, '' if there is no home folder."""
    with contextlib.suppress(RuntimeError):
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return str(Path(home) / "specdec")
    return ""


def _cpuinfo(wanted: str) -> str:
    """Returns the value of a line of /proc/cpuinfo, '' if there is none."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == wanted:
                return value.strip()
    return ""
