"""Verifiers: which draft tokens to keep, and what comes after them. A new one is one file here.

A verifier is a frozen dataclass with two functions of one row (`types.Verifier`): `accept`, the
probability of keeping each draft token, and `residual`, the distribution of the token after the
kept ones. They hold no randomness and keep the dtype of their input, so that the law of the output
can be computed exactly, in float64 (`testing.output_law`).

Class attributes:
  exact = True          the output has the target's law. A verifier that does not say so is not
                        exact, and every report says that.
and optional ones:
  shared_noise = True   the draft is drawn with the very noise the target draws with (`Coupled`);
                        valid only with accept-iff-equal.
  rule = 'last'         the accepted length is the last i whose test passes, not the one before the
                        first that fails.
  greedy_only = True    meaningless at a temperature; a `Plan` refuses it there.
  reads_beliefs = True  greedy drafters are to say what they hold likely (`Draft.beliefs`).
and one optional method, `verdict(keys, draft, scores) -> Verdict`, for a verifier that decides by
itself.
"""

from specdec.verifiers.big_little import BigLittle
from specdec.verifiers.block import Block
from specdec.verifiers.coupled import Coupled
from specdec.verifiers.decide import draft_distribution, next_distribution, verdict
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
    "draft_distribution",
    "next_distribution",
    "verdict",
]
