"""Where random numbers come from.

`decode` owns randomness; drafters and verifiers get finished keys. With r the row's key, t the
index of an output token and n the number of output tokens committed when an iteration starts:

    token key    T(t)      = fold_in(fold_in(r, 0), t)
    private key  P(s,n,j)  = fold_in(fold_in(fold_in(r, s), n), j)
                             s = 1 draft, 2 accept, 3 correct

A verifier with shared noise gives draw j of the draft and of the target the key T(n+j), all
others use the private keys. `autoregressive_decode` draws token t with T(t). From a token key a
token is drawn by `sampling.draw_shared`, from a private one by `sampling.draw`. Neither kind serves
for both: with private keys `Coupled` would not reproduce the baseline; with token keys a token
that was seen and not committed would be drawn again from the same noise, which biases every other
verifier as soon as a draft length depends on what was drawn.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from specdec.types import Array, Noise


def row_keys(seed: int, examples: Array, samples: Array | int = 0) -> Array:
    """[B] keys, a function of the seed, of each example's index in the unsharded task, and of which
    sample of that example it is: [B] int32 and [] or [B] int32."""
    key = jax.random.key(seed, impl="threefry2x32")
    examples = jnp.asarray(examples, jnp.uint32)
    samples = jnp.broadcast_to(jnp.asarray(samples, jnp.uint32), examples.shape)
    fold = jax.random.fold_in
    return jax.vmap(lambda e, s: fold(fold(key, e), s))(examples, samples)


def abstract_keys(rows: int, sharding: Any = None) -> jax.ShapeDtypeStruct:
    """The shape and dtype of `row_keys` for so many rows, for tracing."""
    examples = jax.ShapeDtypeStruct([rows], jnp.int32)
    return jax.eval_shape(functools.partial(row_keys, 0), examples).update(sharding=sharding)


def token_key(key: Array, position: Array | int) -> Array:
    """T(t): what the target alone, and `Coupled`, draw output token t of a row with."""
    return jax.random.fold_in(jax.random.fold_in(key, 0), position)


def purpose_keys(key: Array) -> Array:
    """[4] a row's key for tokens, drafts, acceptance and correction: the first fold of each."""
    return jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(4))


def noise(keys: Array, committed: Array, *, width: int, shared: bool) -> Noise:
    """The finished keys of one row and one iteration, for a draft of `width` tokens.

    Args:
      keys: [4] the row's `purpose_keys`.
      committed: [] n.
      shared: whether draft and target draw with the same noise.
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
    """Raises ValueError unless there is one typed threefry key for each of so many rows."""
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
