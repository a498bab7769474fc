"""Tiny T5s saved by T5X: whatever drafts, the output is the target's own. Run from a checkout.

The weights are random, so an unrelated drafter is a bad one, and the target as its own drafter is a
perfect one. The first two samplings are compared token by token with the target alone.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from specdec import Params, autoregressive_decode, checkpoints, decode, row_keys, theory
from specdec.drafters import Autoregressive
from specdec.models.t5 import T5Config, T5Target
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Fixed
from specdec.testing import Bench, hostile
from specdec.verifiers import Coupled, GreedyMatch, SpeculativeSampling

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"


def load(name):
    config = T5Config(**json.loads((GOLDEN / name / "config.json").read_text()))
    return T5Target(config), checkpoints.load(GOLDEN / name / "t5x_native", config=config)


def main():
    target, params = load("wide_heads")
    other, other_params = load("v1_0")
    inputs = jnp.asarray(np.load(GOLDEN / "wide_heads" / "golden.npz")["encoder_input_tokens"])
    keys = row_keys(0, jnp.arange(len(inputs)))
    print(f"{'sampling':<12}{'drafter':<16}{'identical':>10}{'tokens per call':>18}")
    for sampling, verifier in ((Greedy(), GreedyMatch()), (Sampling(), Coupled())):
        alone = autoregressive_decode(
            params, keys, inputs, target=target, sampling=sampling, max_length=64
        )
        drafters = {
            "itself": (Autoregressive(target, sampling), params),
            "unrelated": (Autoregressive(other, sampling), other_params),
            "always wrong": (hostile(target, 128)["always wrong"], ()),
        }
        for name, (drafter, drafter_params) in drafters.items():
            output = decode(
                Params(params, drafter_params),
                keys,
                inputs,
                target=target,
                drafter=drafter,
                verifier=verifier,
                schedule=Fixed(4),
                sampling=sampling,
                max_length=64,
            )
            same = int((output.tokens == alone.tokens).all(axis=1).sum())
            tau = theory.block_efficiency(output.length, output.trace.calls)
            kind = type(sampling).__name__
            print(f"{kind:<12}{name:<16}{same:>5} of {len(inputs)}{tau:>18.2f}")
    bench = Bench.create()
    output = bench.run(SpeculativeSampling(), Fixed(4), Sampling())
    print("\nSpeculativeSampling on a model whose every output is enumerated:")
    print(bench.compare(output.tokens, Sampling()))


if __name__ == "__main__":
    main()
