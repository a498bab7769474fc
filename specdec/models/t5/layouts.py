"""Layouts: T5X's parameters rewritten as a device reads the decoder fastest, and back.

A decoder step reads each of its kernels once, and which of a kernel's axes is contiguous decides
how fast. Least milliseconds for the matrices of 12 decoder layers at T5-large's sizes, 726 MB in
float32, XLA on 2 CPU cores; reading them alone takes 16.9:

    tokens in a call            1     2     8
    [in, out]                19.6  22.8  26.9
    [out, in]        17.2 to 18.0    35    40

    layout        kernels a decoder step reads    logits of a tied model
    "checkpoint"  [in, out], T5X's tree           from the table of tokens [V, D]
    "in_out"      [in, out]                       from a second array, the table's transpose [D, V]
    "out_in"      [out, in]                       from the table of tokens [V, D]

The encoder, and the keys and values of cross-attention, which it feeds, work on many tokens at once
and stay [in, out]. To fuse query, key and value, or the gates of an MLP, made no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import jax.numpy as jnp
from flax import traverse_util

from specdec.models.t5.config import T5Config
from specdec.types import PyTree

Layout: TypeAlias = Literal["checkpoint", "in_out", "out_in"]
Path: TypeAlias = tuple[str, ...]

# Bytes of parameters in a step, from which on [out, in] is faster for one token: it was for 320 MB
# (T5-base, float32), made no difference for 75 MB (small), and was slower for 48 MB.
LARGE = 2**27

_IN_PREFILL = {("encoder_decoder_attention", name, "kernel") for name in ("key", "value")}


def check_layout(name: str, layout: str) -> None:
    """Raises ValueError, with the name of what was given, unless it is a layout."""
    if layout not in get_args(Layout):
        *others, last = map(repr, get_args(Layout))
        raise ValueError(f"{name} is {layout!r}; use {', '.join(others)} or {last}")


def best_layout(platform: str, tokens: int, step_bytes: int) -> Layout:
    """The fastest layout for calls of so many tokens.

    It was measured on CPUs only. For TPUs XLA chooses the layouts of kernels itself.

    Args:
      platform: JAX's name, 'cpu', 'gpu' or 'tpu'.
      tokens: of all rows of a call.
      step_bytes: of the parameters that a call reads.

    Raises:
      ValueError: tokens is not positive.
    """
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}; give rows times tokens of a call, 1 or more")
    if platform != "cpu":
        return "checkpoint"
    return "out_in" if tokens == 1 and step_bytes >= LARGE else "in_out"


def from_stored(params: PyTree, config: T5Config, layout: Layout) -> PyTree:
    """T5X's tree in a layout.

    Arrays that keep their shape are shared, not copied; a transposed one is divided over the
    devices as it was. For a moment both trees are in memory: drop the first one.

    Raises:
      ValueError: there is no such layout.
    """
    check_layout("layout", layout)
    if layout == "out_in":
        return _with_kernels_transposed(params)
    if layout == "in_out" and config.logits_via_embedding:
        table = params["token_embedder"]["embedding"]
        logits = {"logits_dense": {"kernel": jnp.swapaxes(table, 0, 1)}}
        return params | {"decoder": params["decoder"] | logits}
    return params


def to_stored(params: PyTree, config: T5Config, layout: Layout) -> PyTree:
    """The inverse of `from_stored`, bit for bit; raises as it does."""
    check_layout("layout", layout)
    if layout == "out_in":
        return _with_kernels_transposed(params)
    if layout == "in_out" and config.logits_via_embedding:
        decoder = {name: leaf for name, leaf in params["decoder"].items() if name != "logits_dense"}
        return params | {"decoder": decoder}
    return params


def logits_from_table(config: T5Config, layout: Layout) -> bool:
    """Whether the table of tokens itself projects to the logits."""
    return config.logits_via_embedding and layout != "in_out"


def read_in_step(decoder: Mapping[Path, Any]) -> dict[Path, Any]:
    """Of a decoder's flattened parameters those that a step reads: the keys and values of the
    inputs are in the cache, and the kernels that made them are done with."""
    return {path: leaf for path, leaf in decoder.items() if path[-3:] not in _IN_PREFILL}


def _with_kernels_transposed(params: PyTree) -> PyTree:
    """With the kernels that a decoder step reads transposed; its own inverse."""
    decoder: dict[Path, Any] = dict(traverse_util.flatten_dict(params["decoder"]))
    for path, leaf in read_in_step(decoder).items():
        if path[-1] == "kernel":
            decoder[path] = jnp.swapaxes(leaf, 0, 1)
    return params | {"decoder": traverse_util.unflatten_dict(decoder)}
