"""The derivation of random keys.

`decode` derives all keys; drafters and verifiers receive finished ones. Let r be a row's key, t the
index of an output token, and n the number of committed output tokens when an iteration starts:

  token key    T(t)      = fold_in(fold_in(r, 0), t)
  private key  P(s,n,j)  = fold_in(fold_in(fold_in(r, s), n), j)
               s = 1 draft, 2 accept, 3 correct

A verifier with shared noise uses the key T(n+j) for draw j of both draft and target. All others use
the private keys. `autoregressive_decode` draws token t with T(t). `sampling.draw_shared` draws a
token from a token key, `sampling.draw` from a private key.

Neither kind can replace the other. With private keys, `Coupled` would not reproduce the baseline.
With token keys, a token that was seen but not committed would be drawn again from the same noise.
That biases every other verifier as soon as a draft length depends on what was drawn.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from specdec.types import Array, Noise


def row_keys(seed: int, examples: Array, samples: Array | int = 0) -> Array:
    """Returns one key per row, which does not depend on the other rows or on the batch size.

    Args:
      seed: the seed of the run.
      examples: [B] int32, the index of each example in the unsharded task.
      samples: [] or [B] int32, the index of each row's sample of its example.

    Returns:
      [B] typed threefry keys.
    """
    key = jax.random.key(seed, impl="threefry2x32")
    examples = jnp.asarray(examples, jnp.uint32)
    samples = jnp.broadcast_to(jnp.asarray(samples, jnp.uint32), examples.shape)
    fold = jax.random.fold_in
    return jax.vmap(lambda e, s: fold(fold(key, e), s))(examples, samples)


def abstract_keys(rows: int, sharding: Sharding | None = None) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of `row_keys` for tracing.

    Args:
      rows: B.
      sharding: the sharding of the keys, if any.
    """
    examples = jax.ShapeDtypeStruct([rows], jnp.int32)
    return jax.eval_shape(functools.partial(row_keys, 0), examples).update(sharding=sharding)


def token_key(key: Array, position: Array | int) -> Array:
    """Returns T(t), the key with which the target alone and `Coupled` draw output token t.

    Args:
      key: the row's key.
      position: t.
    """
    return jax.random.fold_in(jax.random.fold_in(key, 0), position)


def purpose_keys(key: Array) -> Array:
    """Returns fold_in(r, 0..3), [4]: a row's keys for tokens, drafts, acceptance and correction."""
    return jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(4))


def noise(keys: Array, committed: Array, *, width: int, shared: bool) -> Noise:
    """Returns the keys of one row and one iteration, for a draft of `width` tokens.

    `keys` [4] are the row's `purpose_keys`, and `committed` [] is n.
    """
    fold_each = jax.vmap(jax.random.fold_in, (None, 0))
    index = jnp.arange(width + 1)
    if shared:
        token = fold_each(keys[0], committed + index)
        return Noise(draft=token[:-1], accept=token[:-1], correct=token)
    base = jax.vmap(jax.random.fold_in, (0, None))(keys[1:], committed)
    private = jax.vmap(fold_each, (0, None))(base, index)
    return Noise(draft=private[0, :-1], accept=private[1, :-1], correct=private[2])


def check_keys(keys: Array, rows: int) -> None:
    """Raises ValueError unless there is one typed threefry key for each of `rows` rows."""
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        raise ValueError(
            f"keys have dtype {keys.dtype}; give typed keys, one per row: specdec.row_keys(seed, "
            "examples), or jax.random.wrap_key_data(keys) of raw ones"
        )
    implementation = str(jax.random.key_impl(keys))
    if implementation != "threefry2x32":
        raise ValueError(
            f"keys are {implementation} keys, under which a row's numbers depend on its batch; "
            "make them with jax.random.key(seed, impl='threefry2x32')"
        )
    if keys.shape != (rows,):
        raise ValueError(
            f"keys have shape {list(keys.shape)} but inputs have {rows} rows; give one key per row "
            "(specdec.row_keys)"
        )
