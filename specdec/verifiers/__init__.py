"""Verifiers: which draft tokens to keep, and what comes after them. A new one is one file here.

`Verifier` says what one must have and may declare.
"""

from specdec.verifiers.big_little import BigLittle
from specdec.verifiers.block import Block
from specdec.verifiers.coupled import Coupled
from specdec.verifiers.decide import Verifier, draft_distribution, next_distribution, verdict
from specdec.verifiers.distance import Distance
from specdec.verifiers.greedy_match import GreedyMatch
from specdec.verifiers.lenient import Lenient
from specdec.verifiers.minimum_block import MinimumBlock
from specdec.verifiers.mixtures import Ensemble, SpeculativeCascade
from specdec.verifiers.speculative_sampling import SpeculativeSampling
from specdec.verifiers.synthetic_acceptance import SyntheticAcceptance
from specdec.verifiers.top_beta import TopBeta, TopK
from specdec.verifiers.typical import Typical

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
