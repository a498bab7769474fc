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
from specdec.verifiers.lossy.big_little import BigLittle
from specdec.verifiers.lossy.distance import Distance
from specdec.verifiers.lossy.lenient import Lenient
from specdec.verifiers.lossy.minimum_block import MinimumBlock
from specdec.verifiers.lossy.mixtures import Ensemble, SpeculativeCascade
from specdec.verifiers.lossy.synthetic_acceptance import SyntheticAcceptance
from specdec.verifiers.lossy.top_beta import TopBeta, TopK
from specdec.verifiers.lossy.typical import Typical

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
