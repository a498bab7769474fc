"""What a certificate is about, and the decoding that its checks share."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.decoding import autoregressive_decode, decode, row_keys
from specdec.drafters import Autoregressive
from specdec.sampling import Greedy, Sampling
from specdec.testing import divergences
from specdec.types import (
    Array,
    DecodeOutput,
    Drafter,
    Params,
    PyTree,
    SamplingRule,
    Schedule,
    Target,
    Verifier,
)

FLOAT32_GAP = 1e-4  # nats; rounding alone gives some 1e-6
# In bfloat16, of the largest logit: two to four units in its last place. Programs of different
# widths round differently in every layer; measured are gaps of 0.011 nats and log-probabilities
# off by 0.025 where the largest logit is 15, so this allows ten times as much.
BFLOAT16_GAP = 2.0**-6


class Taught(NamedTuple):
    """The target's view of finished texts, all tokens at once; 0 beyond the end of a text."""

    gap: Array  # [R, N] float32, of each token below the best one, in logits
    log_probs: Array  # [R, N] float32
    largest: Array  # [R] float32, of the logits' absolute values


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A pair, the texts it decodes, and how.

    params: of target, drafter and schedule.
    inputs: [R, S] int32, 0 = padding. Row i is drawn with the key of example i.
    target, drafter, verifier, schedule, sampling, max_length, eos_id: as `decode` takes them.
    seed: of all draws.
    batch_size: rows that are decoded together.
    dtype: what the target computes in, 'float32' or 'bfloat16'; says what rounding may excuse.
    clock: seconds.
    """

    params: Params
    inputs: np.ndarray
    target: Target
    drafter: Drafter
    verifier: Verifier
    schedule: Schedule
    sampling: SamplingRule
    max_length: int
    eos_id: int = 1
    seed: int = 0
    batch_size: int = 1
    dtype: str = "float32"
    clock: Callable[[], float] = time.perf_counter

    @property
    def drawn(self) -> SamplingRule:
        """The sampling of the checks that draw: the subject's own, T = 1 if it is greedy."""
        return Sampling() if self.sampling.greedy else self.sampling

    @property
    def greedy_only(self) -> bool:
        return getattr(self.verifier, "greedy_only", False)

    @property
    def width(self) -> int | None:
        """Tokens per verify call, None if that varies."""
        return self.schedule.buckets[0] + 1 if len(self.schedule.buckets) == 1 else None

    @property
    def exact(self) -> bool:
        """Whether only a rare near-tie may fall otherwise."""
        return self.dtype == "float32"

    @property
    def vocab_size(self) -> int:
        def logits(params: PyTree, inputs: Array) -> Array:
            cache = self.target.prefill(params, inputs, 1)
            return self.target.decode(params, self.target.start(inputs)[:, None], cache)[0].logits

        return jax.eval_shape(logits, self.params.target, self.inputs[:1]).shape[-1]

    def drafter_for(self, sampling: SamplingRule) -> Drafter:
        """The drafter, drawing with this sampling if it is another one than the subject's."""
        fields = {field.name for field in dataclasses.fields(self.drafter)}  # type: ignore
        if sampling == self.sampling or "sampling" not in fields:
            return self.drafter
        return dataclasses.replace(self.drafter, sampling=sampling)  # type: ignore

    def itself(self, sampling: SamplingRule) -> Drafter:
        """The target as a drafter, of the drafter's own class if that runs a model."""
        if isinstance(self.drafter, Autoregressive):
            return dataclasses.replace(self.drafter, model=self.target, sampling=sampling)
        return Autoregressive(self.target, sampling)

    def decode(
        self,
        sampling: SamplingRule,
        *,
        drafter: Drafter,
        verifier: Verifier,
        params: Params | None = None,
        rows: int | None = None,
    ) -> DecodeOutput:
        """The first `rows` texts by speculation; arrays on the host, `trace.steps` per batch."""
        return self._each_batch(
            functools.partial(
                decode,
                params or self.params,
                target=self.target,
                drafter=drafter,
                verifier=verifier,
                schedule=self.schedule,
                sampling=sampling,
                max_length=self.max_length,
                eos_id=self.eos_id,
            ),
            rows,
        )

    def alone(
        self, sampling: SamplingRule, width: int = 1, rows: int | None = None
    ) -> DecodeOutput:
        """The first `rows` texts by the target alone."""
        return self._each_batch(
            functools.partial(
                autoregressive_decode,
                self.params.target,
                target=self.target,
                sampling=sampling,
                max_length=self.max_length,
                eos_id=self.eos_id,
                width=width,
            ),
            rows,
        )

    def plain(self, sampling: SamplingRule, width: int = 1) -> DecodeOutput:
        """All texts by the target alone, decoded once."""
        if (sampling, width) not in self._plain:
            self._plain[sampling, width] = self.alone(sampling, width)
        return self._plain[sampling, width]

    @functools.cached_property
    def speculated(self) -> DecodeOutput:
        """All texts by speculation, greedy."""
        rule = Greedy()
        return self.decode(rule, drafter=self.drafter_for(rule), verifier=self.verifier)

    @functools.cached_property
    def taught(self) -> Taught:
        """The target's view of `speculated`."""
        output = self.speculated
        teach = jax.jit(functools.partial(_teach, target=self.target))
        parts = []
        for start in range(0, len(self.inputs), self.batch_size):
            texts = (self._block(x, start) for x in (self.inputs, output.tokens, output.length))
            parts.append(jax.device_get(teach(self.params.target, *texts)))
        return _joined(parts, len(self.inputs))

    def gap(self, row: int, ours: Array, plain: Array, sampling: SamplingRule) -> float:
        """How far two different outputs of a text are apart where they first differ, in nats."""
        keys = row_keys(self.seed, jnp.array([row]))
        inputs, ours, plain = (jnp.asarray(x)[None] for x in (self.inputs[row], ours, plain))
        (found,) = divergences(
            self.target, self.params.target, keys, inputs, ours, plain, sampling=sampling
        )
        return found.gap

    @functools.cached_property
    def tolerance(self) -> float:
        """The largest gap between two logits that rounding may turn around."""
        if self.exact:
            return FLOAT32_GAP
        return BFLOAT16_GAP * float(self.taught.largest.max())

    @functools.cached_property
    def _plain(self) -> dict[tuple[SamplingRule, int], DecodeOutput]:
        return {}

    @functools.cached_property
    def _batches(self) -> list[tuple[Array, Array]]:
        """Keys [B] and inputs [B, S], ready, so that nothing but decoding is timed."""
        return [
            (
                row_keys(self.seed, jnp.arange(start, start + self.batch_size)),
                jnp.asarray(self._block(self.inputs, start)),
            )
            for start in range(0, len(self.inputs), self.batch_size)
        ]

    def _block(self, array: np.ndarray | Array, start: int) -> np.ndarray:
        """[B, ...] the rows from `start` on, filled up with zeros."""
        block = np.asarray(array[start : start + self.batch_size])
        return np.pad(block, [(0, self.batch_size - len(block))] + [(0, 0)] * (block.ndim - 1))

    def _each_batch(self, function: Callable, rows: int | None) -> DecodeOutput:
        rows = len(self.inputs) if rows is None else rows
        count = -(-rows // self.batch_size)
        outputs = [jax.device_get(function(*batch)) for batch in self._batches[:count]]
        return _joined(outputs, rows)


def _joined(trees: list, rows: int) -> PyTree:
    """The batches' arrays end to end, without the rows that only fill up the last one."""

    def join(*parts: np.ndarray) -> np.ndarray:
        return np.concatenate([np.atleast_1d(part) for part in parts])[:rows]

    return jax.tree.map(join, *trees)


def _teach(params: PyTree, inputs: Array, tokens: Array, length: Array, *, target: Target):
    fed = jnp.concatenate([target.start(inputs)[:, None], tokens[:, :-1]], axis=1)
    cache = target.prefill(params, inputs, fed.shape[1])
    logits = target.decode(params, fed, cache)[0].logits
    within = jnp.arange(tokens.shape[1])[None] < length[:, None]

    def emitted(scores: Array) -> Array:
        return jnp.take_along_axis(scores, tokens[:, :, None], axis=2)[:, :, 0]

    gap = jnp.max(logits, axis=2) - emitted(logits)
    log_probs = emitted(jax.nn.log_softmax(logits, axis=-1))
    largest = jnp.max(jnp.where(within[:, :, None], jnp.abs(logits), 0), axis=(1, 2))
    return Taught(jnp.where(within, gap, 0), jnp.where(within, log_probs, 0), largest)
