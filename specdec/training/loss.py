"""The teacher-forced loss of a model: the whole text in one call of its `decode`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specdec.models.contract.inputs import read
from specdec.models.contract.model import Target, Weights
from specdec.types import Array, Cache, PyTree, Values


class TopLaws(NamedTuple):
    """A target's distribution at each token of a batch: its likeliest ids, and the rest pooled."""

    ids: PyTree  # [B, T, m] int32, the likeliest first
    log_probs: PyTree  # [B, T, m+1] float32, the last one of all other ids together


class Drawn(NamedTuple):
    """Data of outputs that the trained model drew itself, for a policy gradient."""

    log_probs: Values  # [B, T] float32, of each token when it was drawn; 0 after the last
    lengths: Values  # [B] int32, in tokens
    advantages: Values  # [B] float32, the reward minus a baseline


class Pairs(NamedTuple):
    """A batch of texts; inputs and targets end in EOS, and the model's `pad_id` follows.

    A row of padding is ignored.
    """

    inputs: PyTree  # the target's inputs, arrays of NumPy or JAX
    targets: PyTree  # [B, T] int32, of NumPy or JAX
    laws: TopLaws | None = None  # the target's stored distributions, see `laws`
    drawn: Drawn | None = None  # data of roll-outs, see `policy_gradient`


class Sums(NamedTuple):
    """Sums over the target tokens of a batch, so that batches can be added."""

    loss: Array  # [] float32, nats
    correct: Array  # [] int32, tokens that are the argmax
    tokens: Array  # [] int32


class Frozen(NamedTuple):
    """The target, which is not trained and whose outputs the trained model reads."""

    model: Target
    params: PyTree
    reference: PyTree = ()  # of a reference drafter with the trained model's shapes, if used


class Learner(NamedTuple):
    """The model that is trained, its parameters, and its target if it reads one."""

    model: Any  # a `models.contract.model.Weights`
    params: PyTree
    frozen: Frozen | None


def reads_target(model: Weights) -> bool:
    """Returns whether a model reads its target's encoder output or states."""
    return model.encoded_dim is not None or model.states_dim is not None


def of_target(
    model: Weights, inputs: Array, text: Array, frozen: Frozen | None, cache: Cache | None = None
) -> tuple[PyTree, Array | None]:
    """Returns the target's cache after the inputs, and its states [B, T, D] before each token.

    Each is None if the model does not read it."""
    if not reads_target(model):
        return None, None
    assert frozen is not None, "TrainRun asks for it"
    if cache is None:
        cache = frozen.model.prefill(frozen.params, inputs, text.shape[1])
    if model.states_dim is None:
        return cache, None
    hidden = frozen.model.decode(frozen.params, text, cache)[0].hidden
    return cache, jnp.pad(hidden, ((0, 0), (1, 0), (0, 0)))[:, :-1]


def shifted(model: Target, pairs: Pairs) -> Array:
    """Returns [B, T] int32, the decoder's input: the start token, then all targets but the last."""
    start = model.start(pairs.inputs)[:, None]
    return jnp.concatenate([start, pairs.targets[:, :-1]], axis=1)


def teacher_forced(
    model: Target,
    params: PyTree,
    pairs: Pairs,
    frozen: Frozen | None = None,
    of_inputs: Cache | None = None,
) -> Array:
    """Returns [B, T, V] float32 logits: position t has read the inputs and the targets before t.

    Args:
      model: the model.
      params: its parameters.
      pairs: the batch.
      frozen: the target, if the model reads its outputs.
      of_inputs: the target's cache after the inputs, if it has read them.
    """
    text = shifted(model, pairs)
    from_target, _ = of_target(model, pairs.inputs, text, frozen, of_inputs)
    cache = read(model, params, pairs.inputs, text.shape[1], from_target)
    return model.decode(params, text, cache)[0].logits


def cross_entropy(
    logits: Array, targets: Values, pad_id: int, label_smoothing: float = 0.0
) -> Sums:
    """Returns the cross-entropy with smoothed labels, summed over the tokens that are not padding.

    With s = label_smoothing, the label q gives the token 1 - s and each other one s / (V - 1)
    (Szegedy et al. 2016, section 7). The loss is KL(q || p) = -sum q log p - H(q). Its entropy term
    makes a prediction of exactly q cost 0, as in T5X.

    Args:
      logits: [B, T, V] float32.
      targets: [B, T] int32.
      pad_id: the id of padding in them, static.
      label_smoothing: 0 <= s < 1, static.
    """
    others = logits.shape[-1] - 1
    high, low = 1.0 - label_smoothing, label_smoothing / others
    entropy = -high * math.log(high) - (others * low * math.log(low) if low else 0.0)
    log_total = jax.nn.logsumexp(logits, axis=-1)
    # Not a gather: its gradient is a scatter, which a CPU does entry by entry.
    chosen = jnp.arange(logits.shape[-1])[None, None] == targets[..., None]
    at_target = jnp.where(chosen, logits, 0.0).sum(axis=-1) - log_total
    loss = -(high - low) * at_target - entropy
    if low:
        loss -= low * (logits.sum(axis=-1) - logits.shape[-1] * log_total)
    real = targets != pad_id
    correct = (logits.argmax(axis=-1) == targets) & real
    return Sums(jnp.where(real, loss, 0.0).sum(), correct.sum(), real.sum())
