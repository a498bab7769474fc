"""Conversions between the conventions of T5X and of specdec. They do not import T5X."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from specdec.decoding.beam_search import BeamOutput
from specdec.models.t5 import T5Config
from specdec.types import Array, DecodeOutput


def config_of(network: object) -> T5Config:
    """Returns the `T5Config` with the fields of the same names in a T5X network's `config`."""
    config = getattr(network, "config", None)
    if getattr(config, "scan_layers", False):
        raise ValueError(
            f"{type(network).__name__} scans its layers, which stacks their parameters; bind "
            "scan_layers=False and restore a checkpoint with one array per layer"
        )
    ours = dataclasses.fields(T5Config)
    values = {
        field.name: getattr(config, field.name) for field in ours if hasattr(config, field.name)
    }
    lacking = [
        field.name
        for field in ours
        if field.default is dataclasses.MISSING and field.name not in values
    ]
    if lacking:
        raise ValueError(
            f"{type(network).__name__} is not a network of t5x.examples.t5: its config has no "
            f"{', '.join(lacking)}"
        )
    return T5Config(**values)


def row_keys(rng: Array | None, rows: int, samples: int) -> Array:
    """Returns [rows * samples] threefry keys; those of one row's samples are adjacent.

    `rng` is a key of any kind, or its raw words; None stands for seed 0, as in T5X. T5X's
    interactive model passes words of `unsafe_rbg`, whose numbers for a row would depend on the
    batch. Therefore the words only seed new keys.
    """
    if rng is None:
        words = jnp.zeros([2], jnp.uint32)
    elif jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
        words = jax.random.key_data(rng)
    else:
        words = rng
    fold = jax.random.fold_in
    key = functools.reduce(fold, words, jax.random.key(0, impl="threefry2x32"))
    row, sample = jnp.divmod(jnp.arange(rows * samples), samples)
    return jax.vmap(lambda row, sample: fold(fold(key, row), sample))(row, sample)


def predictions(
    output: DecodeOutput, samples: int, return_all: bool
) -> tuple[Array, Mapping[str, Array]]:
    """Returns T5X's `(decodes, aux)` for B texts, whose samples are adjacent rows of `output`.

    `decodes` is [B, samples, N] int32 in the order of rising scores, or only the best samples, [B,
    N], unless `return_all`. `aux` has for each sample, [B, samples] or [B]:

      scores        float32, its log-probability in nats at temperature 1, EOS included
      tokens        int32, emitted
      target_calls  int32; tokens / target_calls is the tokens per call
      drafted       int32, draft tokens that were fed to the target
      tested        int32, draft tokens up to the first rejected one; accepted / tested is alpha
      accepted      int32, draft tokens
    """
    trace = output.trace
    rejections = trace.accepted < trace.drafted
    aux = {
        "scores": output.log_probs.sum(axis=1),
        "tokens": output.length,
        "target_calls": trace.calls,
        "drafted": trace.drafted.sum(axis=1),
        "tested": (trace.accepted + rejections).sum(axis=1),
        "accepted": trace.accepted.sum(axis=1),
    }
    decodes, aux = jax.tree.map(
        lambda leaf: leaf.reshape(-1, samples, *leaf.shape[1:]), (output.tokens, aux)
    )
    rising = jnp.argsort(aux["scores"], axis=1)  # [B, samples]
    rows = jnp.arange(rising.shape[0])
    returned = (rows[:, None], rising) if return_all else (rows, rising[:, -1])
    return jax.tree.map(lambda leaf: leaf[returned], (decodes, aux))


def beams(output: BeamOutput, return_all: bool) -> tuple[Array, Mapping[str, Array]]:
    """Returns T5X's `(decodes, aux)` of a beam search.

    `decodes` is [B, beams, N] int32 in the order of rising scores, or only the best beams, [B, N],
    unless `return_all`. `aux` has their scores, [B, beams] or [B], and for each text
    `search_steps` and `target_calls`, [B] int32.
    """
    returned = slice(None, None, -1) if return_all else 0
    steps = jnp.sum(output.trace.steps, axis=1)
    aux = {"scores": output.scores[:, returned], "search_steps": steps}
    return output.tokens[:, returned], aux | {"target_calls": output.trace.calls}


@functools.cache
def announce(plan: str) -> None:
    """Prints on stderr how texts are decoded, once for each plan."""
    print(f"specdec decodes with {plan}", file=sys.stderr)
