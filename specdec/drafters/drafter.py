"""The base classes of drafters. A new drafter is one file here that inherits one of them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from specdec.common.values import Rule
from specdec.drafters.draft_loop import Steps, draft_loop
from specdec.models.contract.model import Target
from specdec.types import Context, Draft, Params, Part, PyTree, Request, SamplingRule, Table

Self = TypeVar("Self", bound="Drafter")


class Drafter(abc.ABC):
    """The base of all drafters: frozen dataclasses that propose tokens, with at least `propose`.

    The other methods have defaults for a drafter without models and without state. For a drafter
    that is made of other drafters (`inner`), the defaults collect the inner drafters' results.
    """

    @abc.abstractmethod
    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        """Returns a draft, and the state for the next call.

        Args:
          params: the parameters of all roles.
          request: the text so far, the keys, and how many tokens each row wants.
          state: the state that `init` or the last call returned.
        """

    def init(self, params: Params, context: Context) -> PyTree:
        """Returns the state before the first draft of a batch.

        Args:
          params: the parameters of all roles.
          context: the batch before its first target call.

        Raises:
          ValueError: at tracing, if the drafter cannot draft for this target or these inputs.
        """
        return ()

    def inner(self) -> Mapping[str, Drafter]:
        """Returns the drafters that this one is made of, by field name."""
        return {}

    def with_inner(self: Self, inner: Mapping[str, Drafter]) -> Self:
        """Returns this drafter with its inner drafters replaced."""
        return dataclasses.replace(self, **inner) if inner else self  # type: ignore[type-var]

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the inner drafters if each draft comes from one of them, else ().

        `Draft.source` is an index into these names.
        """
        return ()

    @property
    def block(self) -> int | None:
        """The most tokens that one call drafts; None for a drafter without such a limit."""
        return None

    @property
    def paths(self) -> int | None:
        """The number w of tokens at each position of a draft with several paths; None for one path.

        A request for K tokens along each path has w K keys per row, those of the first path first.
        """
        return next((drafter.paths for drafter in self.inner().values() if drafter.paths), None)

    @property
    def certain(self) -> bool:
        """Whether a draft with several paths is a tree of the likeliest tokens, not of samples."""
        return any(drafter.certain for drafter in self.inner().values())

    @property
    def adapts(self) -> bool:
        """Whether a draft depends on more than the text before it and the random keys."""
        return any(drafter.adapts for drafter in self.inner().values())

    @property
    def reads_hidden(self) -> bool:
        """Whether the drafter reads `Context.hidden`."""
        return any(drafter.reads_hidden for drafter in self.inner().values())

    @property
    def reads_previous(self) -> bool:
        """Whether the drafter reads `Context.previous`."""
        return any(drafter.reads_previous for drafter in self.inner().values())

    def models(self) -> dict[str, Target]:
        """Returns the models that the drafter runs, by the role of their parameters."""
        return self._collected("models")

    def tables(self) -> dict[str, Table]:
        """Returns the tables that the drafter reads, by role."""
        return self._collected("tables")

    def owned(self) -> dict[str, Target | Table]:
        """Returns everything that has parameters, by role: `models` and `tables`."""
        return {**self.models(), **self.tables()}

    def with_models(self: Self, models: Mapping[str, Target]) -> Self:
        """Returns this drafter with its models replaced by those given for their roles."""
        inner = self.inner().items()
        return self.with_inner({name: drafter.with_models(models) for name, drafter in inner})

    def parts(self, length: int, source: int | None = None) -> tuple[Part, ...]:
        """Returns the model calls that a draft takes.

        Args:
          length: tokens of the draft; 0 for a target call without a draft.
          source: the index in `sources` of the drafter that proposed it.
        """
        return tuple(part for drafter in self.inner().values() for part in drafter.parts(length))

    def timed(self, target: Target) -> dict[str, Callable]:
        """Returns, by role, the calls in `parts` that are not plain calls of `decode`.

        Each has the form call(parameters by role, tokens [B, T], cache) -> (tokens, cache), and is
        used to measure its time. A call whose role has no model runs on the target's cache.
        """
        return self._collected("timed", target)

    def partial_models(self, target: Target) -> dict[str, Target]:
        """Returns, by role, a model of those target layers that a call in `parts` runs."""
        return self._collected("partial_models", target)

    def spare_ids(self) -> dict[str, int]:
        """Returns, by role, the number of ids for masks that a model has beyond the vocabulary."""
        return self._collected("spare_ids")

    def views(self) -> dict[str, Callable[[PyTree], PyTree]]:
        """Returns, by role, the function that maps the target's inputs to those of the model."""
        return self._collected("views")

    @property
    def runs_target(self) -> bool:
        """Whether the drafter runs layers of the target, and so sets `Draft.resume`."""
        return False

    def itself(self, target: Target) -> Drafter:
        """Returns this drafter with all of the target's layers; needed only if `runs_target`."""
        raise NotImplementedError

    def _collected(self, method: str, *arguments: Target) -> dict[str, Any]:
        collections = (getattr(drafter, method)(*arguments) for drafter in self.inner().values())
        return {role: value for of_one in collections for role, value in of_one.items()}


Sampler = Annotated[
    SamplingRule, Rule(lambda rule: isinstance(rule, SamplingRule), "a rule, as Greedy()")
]


class Drawing(Drafter):
    """A drafter that draws each token from a distribution that it computes, with `sampling`.

    The distribution depends only on the text before the token, so it can be recorded for a text.
    """

    sampling: SamplingRule

    def drawing_with(self: Self, sampling: SamplingRule) -> Self:
        """Returns this drafter with another sampling rule."""
        return dataclasses.replace(self, sampling=sampling)  # type: ignore[type-var]


class TokenByToken(Drawing):
    """A drafter whose distribution of a draft token depends on the draft tokens before it.

    Several such drafters can vote on one draft (`Committee`).
    """

    @abc.abstractmethod
    def begin(self, params: Params, context: Context, state: PyTree, longest: int) -> Steps:
        """Returns the logits of the first draft token, and the function that computes later ones.

        Args:
          params: the parameters of all roles.
          context: the text so far.
          state: the state that `init` or the last `end` returned.
          longest: the most tokens that the draft may have.
        """

    def end(self, carry: PyTree, draft: Draft, context: Context, state: PyTree) -> PyTree:
        """Returns the state after a draft; `carry` is the last carry of its `Steps`."""
        return state

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        context = request.context
        steps = self.begin(params, context, state, longest=request.longest)
        draft, carry = draft_loop(steps, request, self.sampling)
        return draft, self.end(carry, draft, context, state)


def shared_roles(drafters: Iterable[Drafter]) -> list[str]:
    """Returns the roles that several drafters use for different parameters.

    A table that all of them read under one role does not count.
    """
    by_role: dict[str, list[Target | Table]] = {}
    for drafter in drafters:
        for role, owned in drafter.owned().items():
            by_role.setdefault(role, []).append(owned)

    def one_table(owned: list[Target | Table]) -> bool:
        return isinstance(owned[0], Table) and all(table == owned[0] for table in owned)

    return sorted(role for role, x in by_role.items() if len(x) > 1 and not one_table(x))


def drawing_with(sampling: SamplingRule, drafter: Drafter) -> Drafter:
    """Returns the drafter with this sampling, if it has one, and its inner drafters too.

    Args:
      sampling: the rule that the target samples with.
      drafter: the drafter.
    """
    inner = drafter.inner().items()
    drafter = drafter.with_inner({name: drawing_with(sampling, x) for name, x in inner})
    return drafter.drawing_with(sampling) if isinstance(drafter, Drawing) else drafter
