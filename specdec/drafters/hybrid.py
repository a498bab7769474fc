"""Two drafters, of which the first is asked first: copies where there are any, else a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specdec import roles
from specdec.types import Array, Context, Draft, Drafter, Params, Part, PyTree, Stop, Table
from specdec.values import check_has, is_integer


@dataclasses.dataclass(frozen=True)
class Hybrid:
    """Takes a row's draft from the first drafter, or from the second where that has none.

    first: costs next to nothing, such as `PromptLookup`.
    second: such as `Autoregressive`. It is run for the whole batch if a row needs it, in a loop of
      one trip; with no such row the loop has none, and the models rest. What it then misses it
      catches up with later, as `Autoregressive` does.
    shortest: tokens that the first one must propose, or as many as are wanted.

    Either may be a `Hybrid` itself; `sources` then has the names of all, in the order in which they
    are asked.

    Which of them proposes depends on committed tokens alone, so that every draft is drawn from what
    it says it is. Greedy drafts are all certain (`probs` None). If the second one draws, q is dense
    for all rows, B K V floats, with a one at each copied token.
    """

    first: Drafter
    second: Drafter
    shortest: int = 1

    def __post_init__(self):
        for name in ("first", "second"):
            remedy = "a drafter, such as PromptLookup()"
            check_has(f"Hybrid.{name}", getattr(self, name), "init propose", remedy)
            if hasattr(one := getattr(self, name), "itself"):
                raise ValueError(
                    f"Hybrid.{name} is {one}, which begins the target's call for all rows or for "
                    "none; give a drafter of another kind"
                )
        if not is_integer(self.shortest, 1):
            raise ValueError(f"Hybrid.shortest is {self.shortest!r}; give a positive integer")
        if both := roles.shared_roles([self.first, self.second]):
            raise ValueError(f"both drafters of Hybrid own {', '.join(both)}; give others")

    @property
    def sources(self) -> tuple[str, ...]:
        return *_names(self.first), *_names(self.second)

    def models(self) -> dict[str, Any]:
        return {**roles.models_of(self.first), **roles.models_of(self.second)}

    def tables(self) -> dict[str, Table]:
        return {**roles.tables_of(self.first), **roles.tables_of(self.second)}

    def with_models(self, models: Mapping[str, Any]) -> Hybrid:
        replaced = {
            name: roles.with_models(getattr(self, name), models) for name in ("first", "second")
        }
        return dataclasses.replace(self, **replaced)

    def parts(self, length: int, source: int) -> tuple[Part, ...]:
        """The first one is always asked: its calls count for the second one's drafts too, and are
        then those of its own last source, which is asked after all others."""
        own = len(_names(self.first))
        first = roles.parts_of(self.first, length, min(source, own - 1))
        return first if source < own else first + roles.parts_of(self.second, length, source - own)

    def init(self, params: Params, context: Context) -> PyTree:
        first, second = roles.divided(self, (self.first, self.second), params)
        return self.first.init(first, context), self.second.init(second, context)

    def propose(
        self,
        params: Params,
        keys: Array,
        context: Context,
        state: PyTree,
        want: Array,
        stop: Stop | None,
    ) -> tuple[Draft, PyTree]:
        first, second = roles.divided(self, (self.first, self.second), params)
        copied, of_first = self.first.propose(first, keys, context, state[0], want, None)
        taken = (copied.length > 0) & (copied.length >= jnp.minimum(want, self.shortest))
        wanted = jnp.where(taken, 0, want)

        def ask(loop: tuple[Array, Draft, PyTree]) -> tuple[Array, Draft, PyTree]:
            _, _, of_second = loop
            drawn = self.second.propose(second, keys, context, of_second, wanted, stop)
            return jnp.bool_(False), *drawn

        shapes = jax.eval_shape(ask, (jnp.bool_(True), None, state[1]))[1]  # type: ignore[arg-type]
        none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        loop = (jnp.any(wanted > 0), none, state[1])
        _, drawn, of_second = jax.lax.while_loop(lambda loop: loop[0], ask, loop)
        source = jnp.where(taken, _source(copied), len(_names(self.first)) + _source(drawn))
        merged = _merged(taken, copied, drawn, context)
        return merged.replace(source=source), (of_first, of_second)


def _names(drafter: Any) -> tuple[str, ...]:
    """Returns the names of the sources of one of the two: of a hybrid its own, else one name."""
    return roles.sources_of(drafter) or (type(drafter).__name__,)


def _source(draft: Draft) -> Array:
    """[B] the index of a draft's source among those of its drafter."""
    return jnp.zeros_like(draft.length) if draft.source is None else draft.source


def _merged(taken: Array, copied: Draft, drawn: Draft, context: Context) -> Draft:
    """Row by row the first draft or the second one, without their sources."""

    def either(first: Array | None, second: Array | None) -> Array | None:
        if first is None and second is None:
            return None
        assert context.vocab_size is not None
        certain = (jax.nn.one_hot(x.tokens, context.vocab_size) for x in (copied, drawn))
        given = zip((first, second), certain, strict=True)
        both = (one_hot if dense is None else dense for dense, one_hot in given)
        return jnp.where(taken[:, None, None], *both)

    return Draft(
        tokens=jnp.where(taken[:, None], copied.tokens, drawn.tokens),
        probs=either(copied.probs, drawn.probs),
        length=jnp.where(taken, copied.length, drawn.length),
        beliefs=either(copied.beliefs, drawn.beliefs),
    )
