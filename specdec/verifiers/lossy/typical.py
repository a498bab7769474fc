"""NOT EXACT: accepts tokens that are typical of the target, independent of the drafter."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax.scipy.special import entr

from specdec.common.values import Checked, Probability
from specdec.types import Array, Draft, Scores
from specdec.verifiers.decide import Verifier, token_probs


@dataclasses.dataclass(frozen=True)
class Typical(Checked, Verifier):
    """NOT EXACT. Typical acceptance (Cai et al. 2024, Medusa, arXiv 2401.10774, section 2.3.1).

    A token is kept if p(x) > min(epsilon, delta exp(-H(p))), where H is the entropy of p in nats.
    The less sure the target is, the more tokens are kept. After a rejected token comes a draw from
    p. If a token was drafted, and A is the set of tokens that are kept, x is emitted with
    probability

      q(x) [x in A] + (1 - q(A)) p(x).

    Args:
      epsilon: the threshold of p(x) at low entropy.
      delta: the factor of exp(-H(p)).
    """

    epsilon: Probability = 0.09
    delta: Probability = 0.3

    def accept(self, draft: Draft, scores: Scores) -> Array:
        p, _ = token_probs(draft, scores)
        entropy = jnp.sum(entr(scores.probs[:-1]), axis=-1)
        enough = jnp.minimum(self.epsilon, self.delta * jnp.exp(-entropy))
        return (p > enough).astype(p.dtype)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        return scores.probs[n]
