"""Objectives of a model that drafts blocks by filling in masks, and of its confidence head."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from specdec.common.values import PositiveInt, Rule, is_number
from specdec.drafters.block_drafts import mask_ids, visible_in_block
from specdec.models.contract.inputs import read
from specdec.models.contract.model import Target, decode_block
from specdec.training.loss import Frozen, Learner, Pairs, Sums, cross_entropy, of_target, shifted
from specdec.training.objectives import Objective, Smoothing, fixed_key
from specdec.types import Array, ModelOutput, PyTree


def _are_shares(value: object) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return all(is_number(x) and 0 <= x < 1 for x in value)


Shares = Annotated[tuple[float, float], Rule(_are_shares, "two shares, as in (0.5, 0.3)")]


@dataclasses.dataclass(frozen=True)
class FillMasks(Objective):
    """Cross-entropy of the tokens at random masks, which trains the model of `drafters.Masked`.

    Xia et al. 2023 (2203.16487, section 3.1), with the glancing of Qian et al. 2021 (2008.07905):
    some random masks are replaced by the right tokens, and the loss is that of the other masks.

    Args:
      masks: the number of masks of a block, as in `Masked`.
      distinct: whether each position in a block has its own mask id, as in `Masked`.
      cached: whether text attends only to earlier text, so that `Masked.reread` is None.
      blocks: masked blocks per text and update, which do not attend to each other; 1 unless
        `cached`.
      glancing: the number of replaced masks divided by the number of wrong predictions, in the
        first and in the last update; (0, 0) for none.
      label_smoothing: 0 <= s < 1.
    """

    masks: PositiveInt = 8
    distinct: bool = True
    cached: bool = True
    blocks: PositiveInt = 4
    glancing: Shares = (0.5, 0.3)
    label_smoothing: Smoothing = 0.1

    def __post_init__(self):
        super().__post_init__()
        if not self.cached and self.blocks > 1:
            raise ValueError(
                f"FillMasks.blocks is {self.blocks}, and cached is False; give 1, or cached = True"
            )

    def check(self, model: Target, ids: int | None) -> None:
        """Raises ValueError unless the model has ids for masks, and all other ids in its head."""
        super().check(model, ids)
        masks = self.masks if self.distinct else 1
        if ids is not None and model.vocab_size < ids + masks:
            raise ValueError(
                f"the model has {model.vocab_size} ids and the vocabulary {ids}, which leaves none "
                f"for {masks} masks; give it vocab_size = {ids + masks}"
            )

    def update(self, learner: Learner, pairs: Pairs, key: Array, progress: Array) -> Sums:
        model, params, frozen = learner
        for_starts, for_glances = jax.random.split(key)
        blocks = _Blocks.of(self, model, pairs, for_starts, frozen)
        if any(self.glancing):
            first, last = self.glancing
            logits = jax.lax.stop_gradient(blocks.logits(model, params))
            blocks = blocks.glanced_at(logits, first + (last - first) * progress, for_glances)
        return blocks.sums(blocks.logits(model, params), self.label_smoothing)

    def sums(self, learner: Learner, pairs: Pairs, smoothing: float, key: Array | None) -> Sums:
        """Returns the sums for blocks of only masks; an update first reveals some of them."""
        model, params, frozen = learner
        blocks = _Blocks.of(self, model, pairs, fixed_key() if key is None else key, frozen)
        return blocks.sums(blocks.logits(model, params), smoothing)


@dataclasses.dataclass(frozen=True)
class ConfidenceHead(Objective):
    """Cross-entropy of whether a block's token is accepted if the tokens before it are accepted.

    It trains only the head by which `schedules.ForeseenCost` cuts blocks (after DSpark, 2026). A
    token counts as accepted if the model's likeliest token is the text's, as in greedy decoding of
    a target that wrote the text. Tokens after one that is not accepted do not count.

    Args:
      of: the objective that trained the rest of the model, for its masks, distinct, cached and
        blocks.
    """

    of: FillMasks

    def __post_init__(self):
        if not isinstance(self.of, FillMasks):
            raise ValueError(f"ConfidenceHead.of is {self.of!r}; give a FillMasks")

    def check(self, model: Target, ids: int | None) -> None:
        """Raises ValueError unless the model has a confidence head."""
        self.of.check(model, ids)
        if not model.has_confidence:
            raise ValueError(
                "ConfidenceHead trains the head of a model that has none; give it confidence_head "
                "= True"
            )

    def sums(self, learner: Learner, pairs: Pairs, smoothing: float, key: Array | None) -> Sums:
        """Returns the loss; `correct` counts predictions that are right at a threshold of 0.5."""
        model, params, frozen = learner
        blocks = _Blocks.of(self.of, model, pairs, fixed_key() if key is None else key, frozen)
        output = blocks.output(model, jax.lax.stop_gradient(params))
        agrees = output.logits.argmax(axis=-1) == blocks.targets
        before = jnp.cumprod(agrees, axis=2)[:, :, :-1] > 0
        counts = jnp.pad(before, ((0, 0), (0, 0), (1, 0)), constant_values=1)
        counts = (blocks.targets != blocks.pad_id) & counts
        odds = model.confidence(params, output.hidden).reshape(agrees.shape)
        nats = jax.nn.softplus(jnp.where(agrees, -odds, odds))
        right = ((odds > 0) == agrees) & counts
        return Sums(jnp.where(counts, nats, 0.0).sum(), right.sum(), counts.sum())


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Masked blocks of a batch of texts."""

    inputs: PyTree  # [B, ...]
    text: Array  # [B, T] int32, the decoder's inputs
    starts: Array  # [B, R] int32, tokens of the output before each block
    fed: Array  # [B, R, k] int32, masks or tokens
    targets: Array  # [B, R, k] int32, padding where the loss counts nothing
    before: Array  # [B, R, k] int32, the token before each place
    pad_id: int
    cached: bool
    given: PyTree  # the target's cache after the inputs; None if the model does not read it
    states: Array | None  # [B, T + R k, D] of the target; None if the model does not read them

    @classmethod
    def of(
        cls, objective: FillMasks, model: Target, pairs: Pairs, key: Array, frozen: Frozen | None
    ) -> _Blocks:
        """Returns blocks that start at random tokens, uniformly within each text."""
        targets = jnp.asarray(pairs.targets)
        rows, longest = targets.shape
        lengths = jnp.sum(targets != model.pad_id, axis=1, dtype=jnp.int32)[:, None]
        uniform = jax.random.uniform(key, (rows, objective.blocks))
        starts = jnp.minimum(jnp.int32(uniform * lengths), jnp.maximum(lengths - 1, 0))
        places = starts[:, :, None] + jnp.arange(objective.masks)[None, None]
        inside = jnp.minimum(places, longest - 1).reshape(rows, -1)
        behind = jnp.take_along_axis(targets, inside, axis=1).reshape(places.shape)
        ids = mask_ids(model.vocab_size, objective.masks, objective.distinct)
        text = shifted(model, pairs)
        from_target, states = of_target(model, pairs.inputs, text, frozen)
        if states is not None:
            of_masks = jnp.repeat(starts, objective.masks, axis=1)[:, :, None]
            of_masks = jnp.take_along_axis(states, of_masks, axis=1)
            states = jnp.concatenate([states, of_masks], axis=1)
        return cls(
            inputs=jax.tree.map(jnp.asarray, pairs.inputs),
            text=text,
            starts=starts,
            fed=jnp.broadcast_to(ids, places.shape),
            targets=jnp.where(places < longest, behind, model.pad_id),
            before=jnp.take_along_axis(text, inside, axis=1).reshape(places.shape),
            pad_id=model.pad_id,
            cached=objective.cached,
            given=from_target,
            states=states,
        )

    def logits(self, model: Target, params: PyTree) -> Array:
        """Returns [B, R, k, V], the logits of all blocks, which share one copy of their text."""
        return self.output(model, params).logits

    def output(self, model: Target, params: PyTree) -> ModelOutput:
        """Returns the logits [B, R, k, V], and the hidden states [B, R k, D] before the head."""
        rows, size = self.text.shape
        tokens = jnp.concatenate([self.text, self.fed.reshape(rows, -1)], axis=1)
        cache = read(model, params, self.inputs, tokens.shape[1], self.given)
        fed = {} if self.states is None else {"states": self.states}
        output, _ = decode_block(model, params, tokens, cache, self._ancestors(), **fed)
        hidden = output.hidden[:, size:]
        logits = model.logits(params, hidden)
        if model.has_markov:
            logits += model.markov(params, self.before.reshape(rows, -1))
        return ModelOutput(logits.reshape(*self.fed.shape, -1), hidden)

    def glanced_at(self, logits: Array, share: Array, key: Array) -> _Blocks:
        """Returns the blocks with random masks revealed: `share` times the wrong predictions."""
        real = self.targets != self.pad_id
        wrong = jnp.sum((logits.argmax(axis=-1) != self.targets) & real, axis=2, keepdims=True)
        order = jnp.where(real, jax.random.uniform(key, real.shape), 2.0).argsort(axis=2)
        reveal = (order.argsort(axis=2) < jnp.floor(wrong * share)) & real
        return dataclasses.replace(
            self,
            fed=jnp.where(reveal, self.targets, self.fed),
            targets=jnp.where(reveal, self.pad_id, self.targets),
        )

    def sums(self, logits: Array, label_smoothing: float = 0.0) -> Sums:
        rows = self.targets.shape[0]
        flat = logits.reshape(rows, -1, logits.shape[-1])
        return cross_entropy(flat, self.targets.reshape(rows, -1), self.pad_id, label_smoothing)

    def _ancestors(self) -> Array:
        """Returns [B, T + R k, T + R k] bool, which tokens attend to which.

        The text comes first. Each block attends to the text before it and to its own masks.
        """
        (_, size), (rows, blocks, masks) = self.text.shape, self.fed.shape
        if not self.cached:
            return visible_in_block(self.starts[:, 0] + 1, size, masks, cached=False)
        text = jnp.tri(size, size + blocks * masks, dtype=bool)
        of_text = jnp.arange(size)[None, None] <= self.starts[:, :, None]  # [B, R, T]
        inside = jnp.eye(blocks, dtype=bool)[None, :, :, None]
        inside = jnp.broadcast_to(inside, (rows, blocks, blocks, masks)).reshape(rows, blocks, -1)
        of_blocks = jnp.repeat(jnp.concatenate([of_text, inside], axis=2), masks, axis=1)
        text = jnp.broadcast_to(text, (rows, *text.shape))
        return jnp.concatenate([text, of_blocks], axis=1)
