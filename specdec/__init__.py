"""Exact speculative decoding for T5 and other encoder-decoders, in JAX."""

from typing import TYPE_CHECKING

from specdec.decoding import autoregressive_decode, decode, prefill, row_keys, score, step
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

if TYPE_CHECKING:
    from specdec.cli.distilling import distill
    from specdec.integrations.interactive import InteractiveModel

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
    if name == "distill":
        from specdec.cli.distilling import distill

        return distill
    if name == "InteractiveModel":  # it reads texts: more than JAX and Flax
        from specdec.integrations.interactive import InteractiveModel

        return InteractiveModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
