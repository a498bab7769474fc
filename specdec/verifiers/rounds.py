"""Verification of a draft with several paths or a tree."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specdec.models.contract.draft_tree import follow
from specdec.sampling import draw
from specdec.types import Array, Draft, Noise, Scores
from specdec.verifiers.decide import Verifier, kept_tokens, leading, next_distribution


class PathVerdict(NamedTuple):
    """The outcome for one row: a path, the number of its tokens that are kept, and the next one."""

    nodes: Array  # [depths] int32, the path
    length: Array  # [] int32, the number of its tokens that were verified
    num_accepted: Array  # [] int32
    next_token: Array  # [] int32


def choose(verifier: Verifier, keys: Noise, draft: Draft, scores: Scores) -> PathVerdict:
    """Returns the verdict about one row of a draft with nodes.

    If `scores` are greedy, the target's likeliest tokens are followed through the nodes. Otherwise
    the paths are verified in rounds, see `by_rounds`. The keys `accept` [T] are those of the first
    path first. The scores [1+T, V] are those after the pending token and after each node.
    """
    if not scores.greedy:
        return by_rounds(verifier, keys, draft, scores)
    best = jnp.argmax(scores.logits, axis=-1).astype(jnp.int32)
    path = follow(draft.tree, draft.tokens, lambda depth, at: best[at + 1])
    last = jnp.where(path.kept > 0, path.nodes[path.kept - 1] + 1, 0)
    return PathVerdict(path.nodes, path.length, path.kept, best[last])


def by_rounds(verifier: Verifier, keys: Noise, draft: Draft, scores: Scores) -> PathVerdict:
    """Verifies independent paths one after the other.

    The first path is verified as if it were the only one. Let it keep n tokens s, after which the
    next token has the distribution r. Instead of drawing that token, the next path that begins with
    s is verified from there on, with r as the target's first distribution. The rest of that path is
    independent of all that was seen, and drawn from q. A rule that is exact for any target is
    therefore exact for this one, and by induction for all paths. Each round keeps what those before
    it have kept, so no path lowers the number of tokens.

    With `SpeculativeSampling`, these are the rounds of SpecInfer (Miao et al. 2024, arXiv
    2305.09781). With `Block` each round is block verification.

    Node k of each depth follows node k of the depth above.
    """
    width, total, q = draft.tree.width, draft.tokens.shape[0], draft.probs
    assert q is not None, "a tree of likely tokens is no draw; a plan refuses it"
    paths = jnp.arange(total, dtype=jnp.int32).reshape(-1, width).T  # [w, depths]
    tokens, lengths = draft.tokens[paths], leading(draft.tree.valid[paths])
    uniforms = jax.vmap(jax.random.uniform)(keys.accept).reshape(paths.shape)
    index = jnp.arange(paths.shape[1])

    def one_round(state, path):
        count, last, law = state
        shares = jnp.all((tokens[path] == tokens[last]) | (index >= count))
        alone = Draft(tokens[path], q[paths[path]], lengths[path])
        rows = jnp.append(0, paths[path] + 1)
        of_path = Scores(scores.logits[rows], scores.probs[rows])
        rest, opinion = remaining(alone, of_path, law, count)
        passed = uniforms[path] < verifier.accept(rest, opinion)
        n = kept_tokens(verifier, passed & (index < rest.length))
        after = next_distribution(verifier, rest, opinion, n)
        verified = shares & (rest.length > 0)
        law = jnp.where(verified, after, law)
        last = jnp.where(verified & (n > 0), path, last)
        return (jnp.where(verified, count + n, count), last, law), None

    first = jnp.int32(0)
    every = jnp.arange(width, dtype=jnp.int32)
    (count, last, law), _ = jax.lax.scan(one_round, (first, first, scores.probs[0]), every)
    return PathVerdict(paths[last], lengths[last], count, draw(keys.correct[count], law))


def remaining(draft: Draft, scores: Scores, law: Array, count: Array) -> tuple[Draft, Scores]:
    """Returns what a path proposes after its first `count` [] tokens, and the target's scores of
    it, with `law` [V] as the distribution of the next token."""
    arrays = scores.logits, scores.probs, draft.tokens, draft.probs
    logits, probs, tokens, q = jax.tree.map(lambda x: jnp.roll(x, -count, axis=0), arrays)
    length = jnp.maximum(draft.length - count, 0)
    return Draft(tokens, q, length), Scores(logits, probs.at[0].set(law))
