"""Exact speculative decoding for T5 and other language models, in JAX."""

import importlib.util

TYPE_CHECKING = False  # `typing` may not be imported yet: a file in the current folder may hide it
if TYPE_CHECKING:
    from specdec.cli.distill import distill
    from specdec.decoding import autoregressive_decode, decode, prefill, row_keys, score, step
    from specdec.integrations.interactive import InteractiveModel
    from specdec.plan import Plan
    from specdec.types import (
        Context,
        DecodeOutput,
        DecodeState,
        Draft,
        ModelOutput,
        Params,
        Scores,
        Trace,
        Verdict,
    )

__version__ = "0.1.0"

__all__ = [
    "Context",
    "DecodeOutput",
    "DecodeState",
    "Draft",
    "InteractiveModel",
    "ModelOutput",
    "Params",
    "Plan",
    "Scores",
    "Trace",
    "Verdict",
    "autoregressive_decode",
    "decode",
    "distill",
    "prefill",
    "row_keys",
    "score",
    "step",
]


def __getattr__(name: str):
    """Imports a public name at its first use, so that commands can print before JAX loads."""
    if name in __all__:
        homes = ("types", "plan", "decoding", "integrations.interactive", "cli.distill")
        modules = (vars(importlib.import_module(f"{__name__}.{home}")) for home in homes)
        return next(module[name] for module in modules if name in module)
    if importlib.util.find_spec(f"{__name__}.{name}"):  # a subpackage or a module
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
