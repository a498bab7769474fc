"""Verifiers: they decide which draft tokens to keep, and which token comes after them.

A new verifier is one file here; `Verifier` says what it must have and may declare.
"""

from specdec.verifiers.block import Block
from specdec.verifiers.coupled import Coupled
from specdec.verifiers.decide import (
    GreedyMatch,
    SpeculativeSampling,
    Verifier,
    draft_distribution,
    next_distribution,
    verdict,
)
from specdec.verifiers.lossy import (
    BigLittle,
    Distance,
    Ensemble,
    Lenient,
    MinimumBlock,
    SpeculativeCascade,
    SyntheticAcceptance,
    TopBeta,
    TopK,
    Typical,
)

__all__ = [
    "BigLittle",
    "Block",
    "Coupled",
    "Distance",
    "Ensemble",
    "GreedyMatch",
    "Lenient",
    "MinimumBlock",
    "SpeculativeCascade",
    "SpeculativeSampling",
    "SyntheticAcceptance",
    "TopBeta",
    "TopK",
    "Typical",
    "Verifier",
    "draft_distribution",
    "next_distribution",
    "verdict",
]
