"""A drafter made of two in order of preference: usually one that copies, and then a model."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt, check_is
from specdec.drafters.drafter import Drafter, shared_roles
from specdec.models.contract import loops
from specdec.types import Array, Context, Draft, Params, Part, PyTree, Request


@dataclasses.dataclass(frozen=True)
class Hybrid(Checked, Drafter):
    """Takes a row's draft from the first drafter, or from the second if the first's is too short.

    Either drafter may itself be a `Hybrid`; `sources` then names all of them, in the order of
    preference. The choice depends only on committed tokens, so every draft token is drawn from the
    distribution that the draft reports. Greedy drafts are certain (`probs` is None). If the second
    drafter draws, q is dense for all rows (B K V floats), with a one at each copied token.

    Args:
      first: a drafter of negligible cost, such as `PromptLookup`.
      second: a drafter such as `Autoregressive`. It runs for the whole batch if any row needs it.
        Tokens of calls in which it did not run are fed to it later.
      shortest: the least length of a draft of the first drafter that is used; a draft of all wanted
        tokens may be shorter.
    """

    first: Drafter
    second: Drafter
    shortest: PositiveInt = 1

    def __post_init__(self):
        super().__post_init__()
        for name, drafter in self.inner().items():
            check_is(f"Hybrid.{name}", drafter, Drafter, "a drafter, such as PromptLookup()")
            if drafter.runs_target:
                raise ValueError(
                    f"Hybrid.{name} is {drafter}, which runs the target's first layers for all "
                    "rows or for none; give a drafter without the target's layers"
                )
            if drafter.paths:
                raise ValueError(
                    f"Hybrid.{name} is {drafter}, which drafts {drafter.paths} paths, and a "
                    "hybrid drafts one; give Autoregressive"
                )
        if both := shared_roles([self.first, self.second]):
            raise ValueError(f"both drafters of Hybrid use role {', '.join(both)}; give others")

    def inner(self) -> dict[str, Drafter]:
        return {"first": self.first, "second": self.second}

    @property
    def sources(self) -> tuple[str, ...]:
        return *_names(self.first), *_names(self.second)

    def parts(self, length: int, source: int | None = None) -> tuple[Part, ...]:
        """Returns the calls of the first drafter, and those of the second if it proposed the draft.

        The first drafter always runs. If the second one proposed the draft, all sources of the
        first have run, and its calls are those of its last source.
        """
        assert source is not None, "a hybrid has sources"
        count = len(_names(self.first))
        first = self.first.parts(length, min(source, count - 1))
        return first if source < count else first + self.second.parts(length, source - count)

    def init(self, params: Params, context: Context) -> PyTree:
        return self.first.init(params, context), self.second.init(params, context)

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context, want = request.context, request.want
        copied, of_first = self.first.propose(params, request._replace(stop=None), state[0])
        taken = (copied.length > 0) & (copied.length >= jnp.minimum(want, self.shortest))
        wanted = jnp.where(taken, 0, want)

        def ask(loop: tuple[Draft, PyTree]) -> tuple[Draft, PyTree]:
            return self.second.propose(params, request._replace(want=wanted), loop[1])

        shapes = jax.eval_shape(ask, (None, state[1]))[0]  # type: ignore[arg-type]
        none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        drawn, of_second = loops.at_most_once(jnp.any(wanted > 0), ask, (none, state[1]))
        source = jnp.where(taken, _source(copied), len(_names(self.first)) + _source(drawn))
        merged = _merged(taken, copied, drawn, context)
        return merged.replace(source=source), (of_first, of_second)


def _names(drafter: Drafter) -> tuple[str, ...]:
    """Returns the names of a drafter's sources, or its own name if it has none."""
    return drafter.sources or (type(drafter).__name__,)


def _source(draft: Draft) -> Array:
    """Returns [B], the index of each row's draft in its drafter's `sources`; 0 without sources."""
    return jnp.zeros_like(draft.length) if draft.source is None else draft.source


def _merged(taken: Array, copied: Draft, drawn: Draft, context: Context) -> Draft:
    """Returns the draft `copied` in the rows where `taken` [B] is True, and `drawn` in others."""

    def either(first: Array | None, second: Array | None) -> Array | None:
        if first is None and second is None:
            return None
        assert context.vocab_size is not None
        certain = (jax.nn.one_hot(x.tokens, context.vocab_size) for x in (copied, drawn))
        options = zip((first, second), certain, strict=True)
        both = (one_hot if dense is None else dense for dense, one_hot in options)
        return jnp.where(taken[:, None, None], *both)

    return Draft(
        tokens=jnp.where(taken[:, None], copied.tokens, drawn.tokens),
        probs=either(copied.probs, drawn.probs),
        length=jnp.where(taken, copied.length, drawn.length),
        beliefs=either(copied.beliefs, drawn.beliefs),
    )
