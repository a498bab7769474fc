"""Exact speculative decoding for T5 and other encoder-decoders, in JAX."""

from specdec.decoding import autoregressive_decode, decode, prefill, row_keys, score, step
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
    "ModelOutput",
    "Params",
    "Scores",
    "Trace",
    "Verdict",
    "autoregressive_decode",
    "decode",
    "prefill",
    "row_keys",
    "score",
    "step",
]
