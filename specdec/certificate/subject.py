"""The subject of a certificate, and the decoding that its checks share."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from specdec.common import hosts
from specdec.decoding import naming_texts, row_keys
from specdec.decoding.beam_plan import AnyPlan, BeamPlan
from specdec.decoding.program import DecodeProgram
from specdec.decoding.states import rows_of
from specdec.drafters import Autoregressive
from specdec.drafters.drafter import drawing_with
from specdec.models import partitioning
from specdec.plan import Plan
from specdec.sampling import Greedy, Sampling, before_each, instead, standardised
from specdec.testing import divergences
from specdec.types import Array, DecodeOutput, Params, PyTree, SamplingRule

FLOAT32_GAP = 1e-4  # nats; rounding alone gives some 1e-6
# In bfloat16, of the largest logit: two to four units in its last place. Programs of different
# widths round differently in every layer; measured are gaps of 0.011 nats and log-probabilities
# off by 0.025 where the largest logit is 15, so this allows ten times as much.
BFLOAT16_GAP = 2.0**-6
Batches: TypeAlias = list[tuple[Array, Array]]


def refuse(plan: AnyPlan) -> None:
    """Raises ValueError for a plan that cannot be certified: an inexact target, or no drafter.

    Args:
      plan: the plan.
    """
    if not plan.drafts:
        raise ValueError("the plan drafts nothing, so there is nothing to certify; give a drafter")
    if not plan.target.exact:
        raise ValueError(
            f"the target {type(plan.target).__name__} does not state that it is exact, so there is "
            "nothing to certify; use one with exact = True"
        )
    if isinstance(plan, BeamPlan) and plan.target.dtype != "float32" and not plan.same_bits:
        raise ValueError(
            f"the target computes in {plan.target.dtype}, whose rounding is as large as the gaps "
            "between beams; certify beams in float32, --gin.DTYPE=\"'float32'\", or with "
            "--gin.SAME_BITS=True"
        )


class TaughtTexts(NamedTuple):
    """The target's scores of finished texts, all tokens in one call; 0 beyond the end of a text."""

    gap: Array  # [R, N] float32, the best logit minus the token's
    log_probs: Array  # [R, N] float32
    largest: Array  # [R] float32, the largest absolute value of a logit


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A plan, and the texts on which it is checked.

    Args:
      plan: the plan.
      params: the parameters of target, drafter and schedule.
      inputs: [R, ...], the target's inputs; tokens are padded with its `pad_id`. Row i uses the key
        of example i.
      seed: the seed of all draws.
      batch_size: the number of rows that are decoded together.
      mesh: the devices that the models are divided over, None for one device.
      clock: returns seconds.
    """

    plan: Plan
    params: Params
    inputs: PyTree
    seed: int = 0
    batch_size: int = 1
    mesh: Mesh | None = None
    clock: Callable[[], float] = time.perf_counter
    # Kept results: programs and texts by plan, and batches by sample.
    _programs: dict[AnyPlan, DecodeProgram] = dataclasses.field(default_factory=dict, init=False)
    _texts: dict[Plan, DecodeOutput] = dataclasses.field(default_factory=dict, init=False)
    _by_sample: dict[int, Batches] = dataclasses.field(default_factory=dict, init=False)

    @property
    def count(self) -> int:
        """R, the number of texts."""
        return rows_of(self.inputs)

    @property
    def float32(self) -> bool:
        """Whether the target computes in float32, where rounding changes only near-ties."""
        return self.plan.target.dtype == "float32"

    @property
    def greedy_only(self) -> bool:
        """Whether the plan's verifier works only at temperature 0."""
        return self.plan.verifier.greedy_only

    @property
    def drawn(self) -> SamplingRule:
        """The sampling of checks that draw: the plan's own, or temperature 1 if it is greedy."""
        sampling = self.plan.sampling
        return instead(sampling, Sampling()) if sampling.greedy else sampling

    @property
    def greedy(self) -> SamplingRule:
        """The sampling of the checks that do not draw: greedy, with the plan's processors."""
        return instead(self.plan.sampling, Greedy())

    @property
    def vocab_size(self) -> int:
        """V, the width of the target's logits."""

        def logits(params: PyTree, inputs: Array) -> Array:
            target = self.plan.target
            cache = target.prefill(params, inputs, 1)
            return target.decode(params, target.start(inputs)[:, None], cache)[0].logits

        inputs = self._inputs(0)  # a batch, for any mesh
        return jax.eval_shape(logits, self.params["target"], inputs).shape[-1]

    def variant(self, sampling: SamplingRule, **parts: Any) -> Plan:
        """Returns the plan with other sampling, also in its drafter, and with other components."""
        if sampling != self.plan.sampling:
            parts = {"drafter": drawing_with(sampling, self.plan.drafter)} | parts
        return dataclasses.replace(self.plan, sampling=sampling, **parts)

    def itself(self, sampling: SamplingRule) -> tuple[Plan, Params]:
        """Returns the plan with the target as its own drafter, and parameters for that plan."""
        # A drafter that only has models of texts keeps its class, with the target in each role.
        target, drafter = self.plan.target, self.plan.drafter
        if drafter.runs_target:
            drafter = drawing_with(sampling, drafter.itself(target))
            return self.variant(sampling, drafter=drafter), self.params
        blocks = drafter.block is not None
        other = drafter.tables() or self.plan.sources or drafter.views() or blocks
        drafter = drawing_with(sampling, drafter)
        if len(self.plan.models()) == 1 or other:
            drafter = Autoregressive(target, sampling)
        plan = self.variant(sampling, drafter=drafter)
        plan = plan.with_models(dict.fromkeys(plan.models(), target))
        return plan, self.params | dict.fromkeys(plan.models(), self.params["target"])

    def alone(self, sampling: SamplingRule, width: int = 1) -> Plan:
        """Returns the plan in which the target decodes alone, in calls of `width` tokens."""
        return dataclasses.replace(self.plan.alone(width), sampling=sampling)

    def decode(
        self, plan: AnyPlan, params: Params | None = None, rows: int | None = None, sample: int = 0
    ) -> Any:
        """Decodes the first `rows` texts by a plan, and returns arrays on the host.

        The result is a `DecodeOutput`, or a `BeamOutput`. Its `trace.steps` has a value per batch.

        Args:
          plan: the plan.
          params: its parameters; None for the subject's.
          rows: the number of texts; None for all.
          sample: the index of this sample among several of each text.
        """
        program = self._programs.setdefault(plan, DecodeProgram(plan, mesh=self.mesh))
        rows, params = self.count if rows is None else rows, params or self.params
        outputs, read = [], 0
        for keys, inputs in self.batches(rows, sample):
            with naming_texts(range(read, read + len(keys))):
                outputs.append(program.fetch(params, keys, inputs, everywhere=True)[0])
            read += len(keys)
        return joined(outputs, rows)

    def texts(self, plan: Plan) -> DecodeOutput:
        """Returns all texts as a plan decodes them; each plan decodes only once."""
        if plan not in self._texts:
            self._texts[plan] = self.decode(plan)
        return self._texts[plan]

    def plain(self, sampling: SamplingRule, width: int = 1) -> DecodeOutput:
        """Returns all texts as the target alone decodes them, in calls of `width` tokens."""
        return self.texts(self.alone(sampling, width))

    @property
    def speculated(self) -> DecodeOutput:
        """All texts as the plan decodes them at temperature 0."""
        return self.texts(self.variant(self.greedy))

    @functools.cached_property
    def taught(self) -> TaughtTexts:
        """The target's teacher-forced scores of the texts in `speculated`."""
        output = self.speculated
        teach = jax.jit(functools.partial(_teach, plan=self.plan))
        return self.compared(teach, output.tokens, output.length)

    def compared(self, compare: Callable[..., PyTree], *outputs: Array) -> PyTree:
        """Applies `compare` to the target's parameters, inputs and `outputs`, batch by batch."""
        results = []
        for start, (_, inputs) in zip(self._starts, self._batches(0), strict=True):
            rows = (self._block(x, start, 0) for x in outputs)
            of_batch = compare(self.params["target"], inputs, *rows)
            results.append(jax.tree.map(hosts.whole, of_batch))
        return joined(results, self.count)

    def gap(self, row: int, ours: Array, plain: Array, sampling: SamplingRule) -> float:
        """Returns the gap in nats between two outputs of a text at the first token that differs."""
        rows = 1 if self.mesh is None else self.mesh.shape[partitioning.DATA]
        keys = row_keys(self.seed, jnp.full(rows, row))
        text = jax.tree.map(lambda x: x[row], self.inputs)
        inputs, ours, plain = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (rows, *x.shape)), (text, ours, plain)
        )
        difference, *_ = divergences(
            self.plan.target,
            self.params["target"],
            keys,
            inputs,
            ours,
            plain,
            sampling=sampling,
            stop_ids=self.plan.stop_ids,
        )
        return difference.gap

    @functools.cached_property
    def tolerance(self) -> float:
        """The largest gap between two logits that rounding may reverse."""
        if self.float32:
            return FLOAT32_GAP
        return BFLOAT16_GAP * float(self.taught.largest.max())

    def batches(self, rows: int, sample: int = 0) -> Batches:
        """Returns keys [B] and inputs [B, S] of the first `rows` texts, in whole batches."""
        return self._batches(sample)[: -(-rows // self.batch_size)]

    @property
    def _starts(self) -> range:
        """The first row of each batch."""
        return range(0, self.count, self.batch_size)

    def _batches(self, sample: int) -> Batches:
        """Returns keys [B] and inputs [B, S], made once, so that only decoding is timed."""
        if sample not in self._by_sample:
            self._by_sample[sample] = [
                (
                    row_keys(self.seed, jnp.arange(start, start + self.batch_size), sample),
                    jax.tree.map(jnp.asarray, self._inputs(start)),
                )
                for start in self._starts
            ]
        return self._by_sample[sample]

    def _inputs(self, start: int) -> PyTree:
        """Returns the inputs of the rows from `start` on, [B, ...]."""
        pad_id = self.plan.target.pad_id

        def block(x: np.ndarray) -> np.ndarray:
            return self._block(x, start, pad_id if x.dtype == np.int32 else 0)

        return jax.tree.map(block, self.inputs)

    def _block(self, array: np.ndarray | Array, start: int, padding: int) -> np.ndarray:
        """Returns [B, ...], the rows from `start` on, padded."""
        block = np.asarray(array[start : start + self.batch_size])
        missing = [(0, self.batch_size - len(block))] + [(0, 0)] * (block.ndim - 1)
        return np.pad(block, missing, constant_values=padding)


def joined(trees: list, rows: int) -> PyTree:
    """Returns the batches' arrays end to end, without rows that only pad the last one."""

    def join(*parts: np.ndarray) -> np.ndarray:
        return np.concatenate([np.atleast_1d(part) for part in parts])[:rows]

    return jax.tree.map(join, *trees)


def taught_scores(
    params: PyTree, inputs: Array, tokens: Array, *, plan: Plan
) -> tuple[Array, Array, Array]:
    """Returns teacher-forced logits [B, N, V], processed logits, and probabilities."""
    target = plan.target
    fed = jnp.concatenate([target.start(inputs)[:, None], tokens[:, :-1]], axis=1)
    cache = target.prefill(params, inputs, fed.shape[1])
    logits = target.decode(params, fed, cache)[0].logits
    history = before_each(fed, plan.stop_ids, target.prompt(inputs))
    return logits, *standardised(plan.sampling, logits, *history)


def _teach(params: PyTree, inputs: Array, tokens: Array, length: Array, *, plan: Plan):
    logits, processed, _ = taught_scores(params, inputs, tokens, plan=plan)
    within = jnp.arange(tokens.shape[1])[None] < length[:, None]

    def emitted(scores: Array) -> Array:
        return jnp.take_along_axis(scores, tokens[:, :, None], axis=2)[:, :, 0]

    gap = jnp.max(processed, axis=2) - emitted(processed)
    log_probs = emitted(jax.nn.log_softmax(logits, axis=-1))
    largest = jnp.max(jnp.where(within[:, :, None], jnp.abs(logits), 0), axis=(1, 2))
    return TaughtTexts(jnp.where(within, gap, 0), jnp.where(within, log_probs, 0), largest)
