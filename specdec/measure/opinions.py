"""A drafter's distribution at each token of a text.

If the drafter is a model, one call computes all of them. Otherwise its `propose` is called at each
token, for one token or for a block.
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
from specdec.schedules.signals import signals
from specdec.types import Array, Context, Draft, Params, PyTree, Request

LENIENCE = (1.0, 0.5, 0.3, 0.1)
MOST = 1e6  # of a ratio: JSON has no infinity


class Taught(NamedTuple):
    """The target's scores of a batch of texts, all tokens in one call."""

    p: Array  # [B, T, V] under the plan's sampling
    likely: Array | None  # [B, T, V] softmax(logits) of a greedy target
    hidden: Array  # [B, T, D]
    depth: Array | None  # [B, T] int32, layers, of a target whose tokens may leave


class Opinions(NamedTuple):
    """A drafter's figures for each token of a batch of texts, given the tokens before it.

    For a drafter of blocks, arrays are [B, T, K] instead of [B, T], given the tokens before the
    block.
    """

    rates: Array  # [B, T, L] sum_x min(p(x) / l, q(x))
    proposed: Array  # [B, T] int32, the argmax of q; -1 where it proposes nothing
    ratio: Array  # [B, T] float32, q(y) / p(y) of the text's own token y, at most MOST
    # What a stopping rule would see, `schedules.signals.Signals`: of the token `proposed`, or of y
    # if drawn.
    confidence: Array  # [B, T] float32
    entropy: Array  # [B, T] float32
    top: Array  # [B, T, TOP] float32
    refused: Array  # [B, T] float32, q(x) of a token x that is drawn and refused there


def recorded(drafter: Drafter, name: str = "") -> Iterator[tuple[str, Drawing]]:
    """Yields (name, drafter) for each drafter whose distribution can be recorded.

    These drafters have a `sampling`, and their distribution of a token depends only on the text
    before it. They are the drafter itself, or those it is made of, such as 'second Autoregressive'.
    """
    if isinstance(drafter, Drawing):
        yield f"{name} {type(drafter).__name__}".strip(), drafter
    for field, inner in () if isinstance(drafter, Drawing) else drafter.inner().items():
        yield from recorded(inner, f"{name} {field}".strip())


@functools.partial(jax.jit, static_argnames="plan")
def teach(params: Params, inputs: Array, fed: Array, *, plan: Plan) -> Taught:
    """Returns the target's scores of tokens [B, T], the start token first."""
    cache = plan.target.prefill(params["target"], inputs, fed.shape[1])
    output = plan.target.decode(params["target"], fed, cache)[0]
    history = before_each(fed, plan.stop_ids, plan.target.prompt(inputs))
    left, probs = standardised(plan.sampling, output.logits, *history)
    likely = jax.nn.softmax(left, axis=-1) if plan.sampling.greedy else None
    return Taught(probs, likely, output.hidden, output.depth)


@functools.partial(jax.jit, static_argnames="plan")
def opinions(
    params: Params, inputs: Array, tokens: Array, length: Array, taught: Taught, *, plan: Plan
) -> Opinions:
    """Returns the figures of the plan's drafter for each token."""
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
    """Returns the figures of a drafter that proposes tokens [..., T] from q [..., T, V].

    A row of q that is 0 everywhere stands for no proposal. So does a row that is not a
    distribution, as in `decode`.
    """
    usable = is_distribution(q if likely is None else likely)[..., None]
    q = jnp.where(usable, q, 0)
    likely = None if likely is None else jnp.where(usable, likely, 0)
    own = tokens[..., None]
    p, q_own = (jnp.take_along_axis(x, own, axis=-1)[..., 0] for x in (taught.p, q))
    # A token that rounding gave no probability came out all the same: it is drafted, or it is not.
    ratio = jnp.where(p > 0, q_own / jnp.where(p > 0, p, 1), q_own > 0)
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
    """Returns a uniform random number for each token, from 0 to 1."""
    return jax.random.uniform(jax.random.key(0), tokens.shape)


def _refused(q: Array, p: Array, coins: Array) -> Array:
    """Returns [..., T], q of a token that is drawn from the rejected ones, (q - p)+."""
    below = jnp.cumsum(jnp.maximum(q - p, 0), axis=-1)
    drawn = jnp.argmax(below > coins[..., None] * below[..., -1:], axis=-1)
    return jnp.take_along_axis(q, drawn[..., None], axis=-1)[..., 0]


def _forced(
    params: Params, inputs: Array, fed: Array, taught: Taught, plan: Plan, drafter: Drawing
) -> tuple[Array, Array | None]:
    """Returns [B, T, V], q of a drafter that is a model, and its softmax if it is greedy.

    As in drafting, an id that one of the models lacks gets no probability from it.
    """
    ((role, model),) = drafter.models().items()
    view, tree = drafter.views().get(role), params[role]
    given = plan.target.prefill(params["target"], inputs, 1)  # dropped, unless the model reads it
    cache = read(model, tree, view(inputs) if view else inputs, fed.shape[1], given)
    logits = model.decode(tree, fed, cache)[0].logits
    logits = fit_vocabulary(logits, taught.p.shape[-1])
    sampling = drafter.sampling
    history = before_each(fed, plan.stop_ids, plan.target.prompt(inputs))
    logits, probs = standardised(sampling, logits, *history)
    return probs, jax.nn.softmax(logits, axis=-1) if sampling.greedy else None


def _asked(
    params: Params, inputs: Array, tokens: Array, length: Array, taught: Taught, plan: Plan
) -> Opinions:
    """Returns the figures of a drafter that is called at each position, with its state."""
    rows, longest = tokens.shape[0], tokens.shape[1] - 1
    block, vocab_size = plan.drafter.block or 1, taught.p.shape[-1]
    keys = jnp.broadcast_to(row_keys(0, jnp.arange(rows))[:, None], (rows, block))
    room = longest + max(block, plan.longest_draft)
    cache = plan.target.prefill(params["target"], inputs, room)
    cache = plan.target.decode(params["target"], tokens[:, :-1], cache)[1]
    ahead = jnp.arange(block)
    states = jnp.pad(taught.hidden, ((0, 0), (1, 0), (0, 0)))

    def at(position: Array) -> Context:
        given = jnp.arange(1 + longest)[None] <= position
        return Context(
            tokens=jnp.where(given, tokens, 0),
            length=jnp.full([rows], position + 1, jnp.int32),
            inputs=inputs,
            cache=cache.rewind(jnp.full([rows], position, jnp.int32)),
            hidden=jnp.where(given[:, :, None], states, 0) if plan.reads_hidden else None,
            active=position < length,
            taught=jnp.take(tokens, jnp.minimum(position + 1 + ahead, longest), axis=1),
            vocab_size=vocab_size,
            stop_ids=plan.stop_ids,
            pad_id=plan.target.pad_id,
            target=plan.target,
            beliefs=True,
        )

    def ask(state: PyTree, given: Any) -> tuple[PyTree, Opinions]:
        position, *own = given
        want = jnp.full([rows], block, jnp.int32)
        draft, state = plan.drafter.propose(params, Request(at(position), keys, want), state)
        draft = trim(draft, want, vocab_size, ())
        q, likely = _drawn_from(draft, vocab_size), draft.beliefs
        if plan.drafter.block is None:
            q, likely = q[:, 0], None if likely is None else likely[:, 0]
            return state, of(q, *own, likely=likely)
        places = jnp.minimum(position + ahead, longest - 1)
        here = jax.tree.map(lambda x: jnp.take(x, places, axis=1), (taught, tokens[:, 1:], coins))
        return state, of(q, *here, likely=likely)

    coins = tossed(tokens[:, 1:])
    own = [jnp.moveaxis(x, 1, 0) for x in (tokens[:, 1:], coins)]
    view = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), taught)
    state = plan.drafter.init(params, at(jnp.int32(0)))
    _, found = loops.scan(ask, state, (jnp.arange(longest), view, *own))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), found)


def _drawn_from(draft: Draft, vocab_size: int) -> Array:
    """Returns [B, K, V], the distribution of each token, 0 everywhere if nothing is proposed."""
    if draft.probs is None:
        q = jax.nn.one_hot(draft.tokens, vocab_size, dtype=jnp.float32)
    else:
        q = draft.probs
    index = jnp.arange(draft.tokens.shape[1])[None]
    return jnp.where((index < draft.length[:, None])[:, :, None], q, 0)


def _rates(taught: Taught, q: Array, lenience: float) -> Array:
    """Returns [..., T], the probability that a draft token from q is accepted."""
    if taught.likely is None or lenience == 1:
        return jnp.sum(jnp.minimum(taught.p / lenience, q), axis=-1)
    best = jnp.max(taught.likely, axis=-1, keepdims=True)
    return jnp.sum(jnp.where(taught.likely >= lenience * best, q, 0), axis=-1)
