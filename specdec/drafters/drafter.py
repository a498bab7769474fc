"""The base classes of drafters: a new drafter is one file here that inherits one of them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from specdec.common.values import Rule
from specdec.drafters.draft_loop import Steps, draft_loop
from specdec.types import Array, Context, Draft, Params, Part, PyTree, Request, SamplingRule, Table

Self = TypeVar("Self", bound="Drafter")


class Drafter(abc.ABC):
    """Proposes tokens: a frozen dataclass, which has at least `propose`.

    All other methods have defaults, for a drafter that runs no model and keeps no state. For one
    that is made of other drafters, the defaults collect what these say (`inner`).
    """

    @abc.abstractmethod
    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        """Returns a draft, and the state for the next call. `params` are those of all roles."""

    def init(self, params: Params, context: Context) -> PyTree:
        """Returns the state before the first draft of a batch.

        Raises:
          ValueError: at tracing, for a target or inputs that it cannot draft for.
        """
        return ()

    def inner(self) -> Mapping[str, Drafter]:
        """Returns the drafters that it is made of, by the name of their field."""
        return {}

    def with_inner(self: Self, inner: Mapping[str, Drafter]) -> Self:
        """Returns this drafter with others in place of those that it is made of."""
        return dataclasses.replace(self, **inner) if inner else self  # type: ignore[type-var]

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the inner drafters if one of them proposes each draft, and `Draft.source`
        says which; else ()."""
        return ()

    @property
    def block(self) -> int | None:
        """The most tokens that are drafted at once, none of which has led to another; None for a
        drafter that proposes token by token."""
        return None

    @property
    def adapts(self) -> bool:
        """Whether a draft depends on more than the text before it and the keys."""
        return False

    @property
    def reads_hidden(self) -> bool:
        """Whether it reads `Context.hidden`."""
        return any(one.reads_hidden for one in self.inner().values())

    def models(self) -> dict[str, Any]:
        """Returns the models that it runs, by the role of their parameters."""
        return self._collected("models")

    def tables(self) -> dict[str, Table]:
        """Returns the tables that it looks things up in, by role."""
        return self._collected("tables")

    def owned(self) -> dict[str, Any]:
        """Returns everything that has parameters, by role: `models` and `tables`."""
        return {**self.models(), **self.tables()}

    def with_models(self: Self, models: Mapping[str, Any]) -> Self:
        """Returns this drafter with other models in the roles that are named."""
        inner = self.inner().items()
        return self.with_inner({name: one.with_models(models) for name, one in inner})

    def parts(self, length: int, source: int | None = None) -> tuple[Part, ...]:
        """Returns the model calls that a draft takes.

        Args:
          length: tokens of the draft; 0 for a call in which nothing was drafted.
          source: the index in `sources` of who proposed it.
        """
        return tuple(part for one in self.inner().values() for part in one.parts(length))

    def timed(self, target: Any) -> dict[str, Callable]:
        """Returns the calls of `parts` that are no plain calls of `decode`, by role.

        Each is call(trees, tokens [B, T], cache) -> (tokens, cache), `trees` by role; what such a
        call takes is measured with it. One of a role without a model is a call on the target's
        cache.
        """
        return self._collected("timed", target)

    def partial_models(self, target: Any) -> dict[str, Any]:
        """Returns the layers of the target that calls of `parts` run, as models, by role."""
        return self._collected("partial_models", target)

    def spare_ids(self) -> dict[str, int]:
        """Returns how many ids beyond those of texts it needs of its models, by role."""
        return self._collected("spare_ids")

    def views(self) -> dict[str, Callable[[PyTree], PyTree]]:
        """Returns what models read of the inputs, by role, where that is not all of them."""
        return self._collected("views")

    @property
    def runs_target(self) -> bool:
        """Whether it runs layers of the target, and so gives a `Draft.resume`."""
        return False

    def itself(self, target: Any) -> Drafter:
        """Returns this drafter, which runs layers of the target, with all of them."""
        raise NotImplementedError

    def _collected(self, method: str, *given: Any) -> dict[str, Any]:
        found = (getattr(one, method)(*given) for one in self.inner().values())
        return {role: value for of_one in found for role, value in of_one.items()}


Sampler = Annotated[
    SamplingRule, Rule(lambda rule: isinstance(rule, SamplingRule), "a rule, as Greedy()")
]


class Drawing(Drafter):
    """A drafter that draws what it proposes from a distribution of its own, by `sampling`. Its
    opinion of a token depends on the text before the token alone, and so can be recorded."""

    sampling: SamplingRule

    def drawing_with(self: Self, sampling: SamplingRule) -> Self:
        """Returns this drafter with another sampling."""
        return dataclasses.replace(self, sampling=sampling)  # type: ignore[type-var]


class TokenByToken(Drawing):
    """A drafter whose distribution of a draft token follows from the tokens before it. Several of
    them can vote on one draft (`Committee`)."""

    @abc.abstractmethod
    def begin(self, params: Params, context: Context, state: PyTree, longest: int) -> Steps:
        """Returns the logits [B, any width] of the first token of a draft of at most `longest`
        tokens, and what leads to the next ones."""

    def end(self, carry: PyTree, tokens: Array, context: Context, state: PyTree) -> PyTree:
        """Returns the state behind a draft of tokens [B, K], with what `Steps` carried."""
        return state

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context = request.context
        steps = self.begin(params, context, state, longest=request.longest)
        draft, carry = draft_loop(steps, request, self.sampling)
        return draft, self.end(carry, draft.tokens, context, state)


def shared_roles(drafters: Iterable[Drafter]) -> list[str]:
    """Returns the roles that several drafters have for parameters of their own; a table that they
    all read is no such role."""
    found: dict[str, list[Any]] = {}
    for drafter in drafters:
        for role, owned in drafter.owned().items():
            found.setdefault(role, []).append(owned)

    def one_table(owned: list[Any]) -> bool:
        return isinstance(owned[0], Table) and all(one == owned[0] for one in owned)

    return sorted(role for role, x in found.items() if len(x) > 1 and not one_table(x))
