"""Acceptance rate, entropy and so on of a drafter's distribution at each token of a text.

If the drafter is one model, a single call computes its distributions at all tokens. Otherwise its
`propose` is called at each token, for one token or for a block.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specdec.decoding import row_keys
from specdec.decoding.states import trim
from specdec.drafters import Drafter, Drawing
from specdec.models.contract import loops
from specdec.models.contract.inputs import read
from specdec.plan import Plan
from specdec.sampling import before_each, fit_vocabulary, is_distribution, standardised
from specdec.schedules.schedule import signals
from specdec.types import Array, Context, Draft, Params, PyTree, Request

LENIENCE = (1.0, 0.5, 0.3, 0.1)
MOST = 1e6  # the largest recorded ratio, as JSON has no infinity


class Taught(NamedTuple):
    """The target's outputs at each token of a batch of texts, by one teacher-forced call."""

    p: Array  # [B, T, V] float32, the target's distribution after the plan's sampling rule
    likely: Array | None  # [B, T, V] softmax(logits) if the target is greedy, else None
    hidden: Array  # [B, T, D] the target's last hidden states
    depth: Array | None  # [B, T] int32, the layers that a token ran; None if always all layers


class Opinions(NamedTuple):
    """Acceptance rates and stopping signals of a drafter's q at each token of a batch of texts.

    Drafters of blocks have one more axis, [B, T, K], for the positions of a block."""

    rates: Array  # [B, T, L] sum_x min(p(x) / l, q(x)), for each lenience l
    proposed: Array  # [B, T] int32, the argmax of q; -1 if the drafter proposes nothing
    ratio: Array  # [B, T] float32, q(y) / p(y) of the text's token y, at most MOST
    # `schedules.schedule.Signals` of `proposed` if the drafter is greedy, else of the text's token
    confidence: Array  # [B, T] float32
    entropy: Array  # [B, T] float32
    top: Array  # [B, T, TOP] float32
    refused: Array  # [B, T] float32, q(x) of a token x that was drawn from q and rejected


def recorded(drafter: Drafter, name: str = "") -> Iterator[tuple[str, Drawing]]:
    """Yields (name, drafter) of the drafter, or of its inner drafters, that draw from a q."""
    if isinstance(drafter, Drawing):
        yield f"{name} {type(drafter).__name__}".strip(), drafter
        return
    for field, inner in drafter.inner().items():
        yield from recorded(inner, f"{name} {field}".strip())


@functools.partial(jax.jit, static_argnames="plan")
def teach(params: Params, inputs: Array, fed: Array, *, plan: Plan) -> Taught:
    """Returns the target's outputs if the tokens `fed` [B, T] are forced, the start token first."""
    cache = plan.target.prefill(params["target"], inputs, fed.shape[1])
    output = plan.target.decode(params["target"], fed, cache)[0]
    history = before_each(fed, plan.stop_ids, plan.target.prompt(inputs))
    processed, probs = standardised(plan.sampling, output.logits, *history)
    likely = jax.nn.softmax(processed, axis=-1) if plan.sampling.greedy else None
    return Taught(probs, likely, output.hidden, output.depth)


@functools.partial(jax.jit, static_argnames="plan")
def opinions(
    params: Params, inputs: Array, tokens: Array, length: Array, taught: Taught, *, plan: Plan
) -> Opinions:
    """Returns the acceptance rates and so on of the plan's drafter at each of tokens[:, 1:]."""
    drafter = plan.drafter
    alone = len(drafter.models()) == 1 and not drafter.tables()
    alone &= drafter.block is None and not drafter.runs_target
    if alone and isinstance(drafter, Drawing):
        q, likely = _forced(params, inputs, tokens[:, :-1], taught, plan, drafter)
        return of(q, taught, tokens[:, 1:], tossed(tokens[:, 1:]), likely)
    return _asked(params, inputs, tokens, length, taught, plan)


def of(
    q: Array, taught: Taught, tokens: Array, coins: Array, likely: Array | None = None
) -> Opinions:
    """Returns the acceptance rates, confidence and so on of q [..., T, V] at tokens [..., T].

    `likely` is the softmax of a greedy drafter, and `coins` [..., T] are uniform random numbers."""
    # A row of q that is zero, or no distribution, stands for no proposal.
    usable = is_distribution(q if likely is None else likely)[..., None]
    q = jnp.where(usable, q, 0)
    likely = None if likely is None else jnp.where(usable, likely, 0)
    p_y, q_y = (jnp.take_along_axis(x, tokens[..., None], axis=-1)[..., 0] for x in (taught.p, q))
    # Rounding can make p(y) = 0 for a token y of the text; the ratio is then 1 if y can be drafted.
    ratio = jnp.where(p_y > 0, q_y / jnp.where(p_y > 0, p_y, 1), q_y > 0)
    best = jnp.argmax(q, axis=-1)
    seen = signals(q, tokens, 0) if likely is None else signals(likely, best, 0)
    return Opinions(
        rates=jnp.stack([_rates(taught, q, lenience) for lenience in LENIENCE], axis=-1),
        proposed=jnp.where(jnp.max(q, axis=-1) > 0, best, -1),
        ratio=jnp.minimum(ratio, MOST).astype(jnp.float32),
        confidence=jnp.asarray(seen.confidence),
        entropy=jnp.asarray(seen.entropy),
        top=jnp.asarray(seen.top),
        refused=_refused(q, taught.p, coins),
    )


def tossed(tokens: Array) -> Array:
    """Returns a uniform random number from 0 to 1 for each token.

    Arrays of equal shape get equal numbers.
    """
    return jax.random.uniform(jax.random.key(0), tokens.shape)


def _refused(q: Array, p: Array, coins: Array) -> Array:
    """Returns [..., T], q(x) of a token x drawn from the rejected tokens' weights (q - p)+."""
    below = jnp.cumsum(jnp.maximum(q - p, 0), axis=-1)
    drawn = jnp.argmax(below > coins[..., None] * below[..., -1:], axis=-1)
    return jnp.take_along_axis(q, drawn[..., None], axis=-1)[..., 0]


def _forced(
    params: Params, inputs: Array, fed: Array, taught: Taught, plan: Plan, drafter: Drawing
) -> tuple[Array, Array | None]:
    """Returns q [B, T, V] of a drafter that is one model, and its softmax if it is greedy."""
    ((role, model),) = drafter.models().items()
    view, tree = drafter.views().get(role), params[role]
    # The target's cache is used only if the drafter's model reads it.
    of_target = plan.target.prefill(params["target"], inputs, 1)
    cache = read(model, tree, view(inputs) if view else inputs, fed.shape[1], of_target)
    logits = fit_vocabulary(model.decode(tree, fed, cache)[0].logits, taught.p.shape[-1])
    history = before_each(fed, plan.stop_ids, plan.target.prompt(inputs))
    logits, probs = standardised(drafter.sampling, logits, *history)
    return probs, jax.nn.softmax(logits, axis=-1) if drafter.sampling.greedy else None


def _asked(
    params: Params, inputs: Array, tokens: Array, length: Array, taught: Taught, plan: Plan
) -> Opinions:
    """Returns a drafter's `Opinions` by calling its `propose` at each position of the texts."""
    rows, longest = tokens.shape[0], tokens.shape[1] - 1
    block, vocab_size = plan.drafter.block or 1, taught.p.shape[-1]
    keys = jnp.broadcast_to(row_keys(0, jnp.arange(rows))[:, None], (rows, block))
    room = longest + max(block, plan.longest_draft)
    cache = plan.target.prefill(params["target"], inputs, room)
    cache = plan.target.decode(params["target"], tokens[:, :-1], cache)[1]
    ahead = jnp.arange(block)
    states = jnp.pad(taught.hidden, ((0, 0), (1, 0), (0, 0)))

    def at(position: Array) -> Context:
        before = jnp.arange(1 + longest)[None] <= position
        return Context(
            tokens=jnp.where(before, tokens, 0),
            length=jnp.full([rows], position + 1, jnp.int32),
            inputs=inputs,
            cache=cache.rewind(jnp.full([rows], position, jnp.int32)),
            hidden=jnp.where(before[:, :, None], states, 0) if plan.reads_hidden else None,
            active=position < length,
            taught=jnp.take(tokens, jnp.minimum(position + 1 + ahead, longest), axis=1),
            vocab_size=vocab_size,
            stop_ids=plan.stop_ids,
            pad_id=plan.target.pad_id,
            target=plan.target,
            beliefs=True,
        )

    def ask(state: PyTree, scanned: Any) -> tuple[PyTree, Opinions]:
        position, *here = scanned
        want = jnp.full([rows], block, jnp.int32)
        draft, state = plan.drafter.propose(params, Request(at(position), keys, want), state)
        draft = trim(draft, want, vocab_size, ())
        q, likely = _drawn_from(draft, vocab_size), draft.beliefs
        if plan.drafter.block is None:
            q, likely = q[:, 0], None if likely is None else likely[:, 0]
            return state, of(q, *here, likely=likely)
        positions = jnp.minimum(position + ahead, longest - 1)
        block_here = jax.tree.map(lambda x: jnp.take(x, positions, axis=1), along)
        return state, of(q, *block_here, likely=likely)

    along = taught, tokens[:, 1:], tossed(tokens[:, 1:])
    by_position = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), along)
    state = plan.drafter.init(params, at(jnp.int32(0)))
    _, figures = loops.scan(ask, state, (jnp.arange(longest), *by_position))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), figures)


def _drawn_from(draft: Draft, vocab_size: int) -> Array:
    """Returns q [B, K, V] of each draft token, zeros after the end of the draft."""
    q = draft.probs
    if q is None:
        q = jax.nn.one_hot(draft.tokens, vocab_size, dtype=jnp.float32)
    index = jnp.arange(draft.tokens.shape[1])[None]
    return jnp.where((index < draft.length[:, None])[:, :, None], q, 0)


def _rates(taught: Taught, q: Array, lenience: float) -> Array:
    """Returns [..., T], the probability that a token drafted from q is accepted."""
    if taught.likely is None or lenience == 1:
        return jnp.sum(jnp.minimum(taught.p / lenience, q), axis=-1)
    best = jnp.max(taught.likely, axis=-1, keepdims=True)
    return jnp.sum(jnp.where(taught.likely >= lenience * best, q, 0), axis=-1)
