"""A real pair on 1,000 real captions (../shared/multi30k): pytest tests/test_multi30k.py

Extra: it needs data that is not part of the project, and is skipped without it. By default a batch
of captions is decoded; all of them take minutes: pytest tests/test_multi30k.py -m slow
"""

from __future__ import annotations

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from specdec import DecodeOutput, Params, Plan, checkpoints, decode, row_keys
from specdec.common import theory
from specdec.drafters import Autoregressive
from specdec.models.t5 import T5Config, T5Target
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.testing import divergences
from specdec.verifiers import Coupled, GreedyMatch

LENGTH, BATCH = 64, 100
NEAR_TIE = 1e-4


class Captions(NamedTuple):
    target: T5Target
    model: T5Target
    params: Params
    inputs: jax.Array  # [1000, 64]
    t5x_greedy: np.ndarray

    def plan(self, sampling, verifier) -> Plan:
        drafter = Autoregressive(self.model, sampling)
        return Plan(self.target, drafter, verifier, Fixed(5), sampling, LENGTH)

    def alone(self, sampling, seed=0) -> DecodeOutput:
        return self._all(self.plan(sampling, Coupled()).alone(), seed)

    def speculate(self, sampling, verifier, seed=0) -> DecodeOutput:
        return self._all(self.plan(sampling, verifier), seed)

    def keys(self, seed=0):
        return row_keys(seed, jnp.arange(len(self.inputs)))

    def _all(self, plan, seed) -> DecodeOutput:
        keys = self.keys(seed)
        batches = (slice(i, i + BATCH) for i in range(0, len(self.inputs), BATCH))
        parts = [
            jax.device_get(decode(self.params, keys[i], self.inputs[i], plan)) for i in batches
        ]
        return jax.tree.map(lambda *x: np.concatenate([np.atleast_1d(y) for y in x]), *parts)

    def differences(self, ours, plain, sampling):
        found = divergences(
            self.target,
            self.params["target"],
            self.keys(),
            self.inputs,
            jnp.asarray(ours),
            jnp.asarray(plain),
            sampling=sampling,
        )
        return [d for d in found if d.gap >= NEAR_TIE]


@pytest.fixture(scope="module")
def every_caption(shared) -> Captions:
    data = shared / "multi30k"
    pieces = sentencepiece.SentencePieceProcessor(str(data / "multi30k_ende_3k.model"))
    lines = (data / "test_2016.tsv").read_text().splitlines()
    english = [line.split("\t")[0] for line in lines]
    inputs = np.zeros((len(lines), LENGTH), np.int32)
    for row, text in zip(inputs, english, strict=True):
        ids = (pieces.encode(f"translate English to German: {text}") + [1])[:LENGTH]
        row[: len(ids)] = ids
    configs = {
        name: T5Config(**json.loads((data / name / "config.json").read_text()))
        for name in ("target", "draft")
    }
    params = Params(
        *(checkpoints.load(data / name, config=config) for name, config in configs.items())
    )
    return Captions(
        T5Target(configs["target"]),
        T5Target(configs["draft"]),
        params,
        jnp.asarray(inputs),
        np.load(data / "target" / "t5x_greedy_test2016.npy"),
    )


@pytest.fixture(params=[BATCH, pytest.param(1000, marks=pytest.mark.slow)])
def captions(every_caption, request) -> Captions:
    """The first of them, so many."""
    few = slice(request.param)
    return every_caption._replace(
        inputs=every_caption.inputs[few],
        t5x_greedy=every_caption.t5x_greedy[few],
    )


@pytest.mark.slow
def test_greedy_ids_are_those_of_t5x_with_and_without_speculation(captions):
    greedy = captions.alone(Greedy())
    assert captions.differences(greedy.tokens, captions.t5x_greedy, Greedy()) == []
    ours = captions.speculate(Greedy(), GreedyMatch())
    assert captions.differences(ours.tokens, greedy.tokens, Greedy()) == []
    np.testing.assert_array_equal(theory.emitted_tokens(ours.trace), ours.length)
    tau = theory.block_efficiency(theory.emitted_tokens(ours.trace), ours.trace.calls)
    tokens, expected = {100: (1_516, 2.78), 1000: (16_357, 2.61)}[len(captions.inputs)]
    assert greedy.length.sum() == tokens
    assert tau == pytest.approx(expected, abs=0.02)  # a near-tie may be decided otherwise


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_p=0.9)])
def test_coupled_texts_are_the_baselines_of_the_same_seed(captions, sampling):
    plain = captions.alone(sampling)
    ours = captions.speculate(sampling, Coupled())
    assert captions.differences(ours.tokens, plain.tokens, sampling) == []
    assert ours.trace.calls.sum() < 0.55 * plain.trace.calls.sum()
