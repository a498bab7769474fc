"""Where a figure was measured: software, device and compiler flags, for every report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import jax

PACKAGES = ("specdec", "jax", "jaxlib", "flax")


def environment() -> dict[str, Any]:
    """What decides how fast and how exactly a program runs here; plain values, for JSON.

    Starts JAX's backend. A package that is not installed has no version: None.
    """
    return {
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
        "system": platform.platform(),
        **hardware(),
        "matmul_precision": jax.config.values["jax_default_matmul_precision"],
    }


def hardware() -> dict[str, Any]:
    """The part of `environment` that times on two machines differ by, with the compiler's flags."""
    devices = jax.devices()
    return {
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "cpu": _cpu_model(),
        "cores": _cores(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def version(package: str) -> str | None:
    """Of an installed package; None if it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """The processor's name, which `platform` does not know on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _cores() -> int | None:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
