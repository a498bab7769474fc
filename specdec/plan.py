"""What is decoded with what: one record, which every part of the project takes."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp

from specdec.roles import (
    check_names,
    depths_of,
    holder,
    models_of,
    of_depth,
    owned_by,
    packed,
    parts_of,
    reads_hidden,
    sources_of,
    tables_of,
    unpacked,
)
from specdec.sampling import draw_shared
from specdec.types import (
    Array,
    Context,
    Draft,
    Drafter,
    Noise,
    Params,
    Part,
    PyTree,
    SamplingRule,
    Schedule,
    Scores,
    Table,
    Target,
    Verdict,
    Verifier,
)
from specdec.values import check_has, is_integer


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything static that decides about an output; hashable, so that `jax.jit` can take it.

    target: the model whose output is wanted.
    drafter: what proposes tokens; None for the target alone, one token per call.
    verifier, schedule: which proposals are kept, and how many are made; without a drafter they
      mean nothing.
    sampling: what turns logits into the distribution that is sampled from.
    max_length: N, the longest output in tokens, with the stop id that ends it.
    stop_ids: what ends a row; None for the target's own. With () every row has max_length tokens.

    Raises:
      ValueError: parts that do not go together.
    """

    target: Target
    drafter: Drafter
    verifier: Verifier
    schedule: Schedule
    sampling: SamplingRule
    max_length: int
    stop_ids: tuple[int, ...] = None  # type: ignore[assignment]

    def __post_init__(self):
        for name, methods, remedy in _ALWAYS:
            check_has(f"Plan.{name}", getattr(self, name), methods, remedy)
        if self.drafter is None or isinstance(self.drafter, Alone):
            width = 1 if self.drafter is None else self.drafter.width
            alone = Alone(width, self.sampling.greedy)
            for name in ("drafter", "verifier", "schedule"):
                object.__setattr__(self, name, alone)
        object.__setattr__(self, "stop_ids", _stop_ids(self.stop_ids, self.target))
        self._check()

    @property
    def drafts(self) -> bool:
        """Whether anything is drafted."""
        return not isinstance(self.drafter, Alone)

    @property
    def exact(self) -> bool:
        """Whether the output has the law of the target alone, as target and verifier state it.

        Who states nothing is not exact.
        """
        parts = (self.target, self.verifier)
        return all(getattr(part, "exact", False) for part in parts)

    @property
    def same_output(self) -> bool:
        """Whether the output is the target's own, token by token, and not only in distribution."""
        return self.exact and (self.sampling.greedy or self.shared_noise)

    @property
    def shared_noise(self) -> bool:
        """Whether draft and target are drawn with the same noise."""
        return getattr(self.verifier, "shared_noise", False)

    @property
    def reads_beliefs(self) -> bool:
        """Whether the verifier reads what a greedy drafter holds likely."""
        return getattr(self.verifier, "reads_beliefs", False) and self.sampling.greedy

    @property
    def reads_hidden(self) -> bool:
        """Whether the drafter reads the target's states."""
        return reads_hidden(self.drafter)

    @property
    def buckets(self) -> tuple[int, ...]:
        """The schedule's static draft lengths, ascending."""
        return self.schedule.buckets

    @property
    def longest_draft(self) -> int:
        """K, the draft tokens that a target call has room for."""
        return self.buckets[-1]

    @property
    def gamma(self) -> int | None:
        """The draft length, None if it varies or nothing is drafted."""
        return self.longest_draft if self.drafts and not self.lengths_vary else None

    @property
    def lengths_vary(self) -> bool:
        """Whether drafting takes now more steps and now fewer."""
        stops = any(hasattr(self.schedule, name) for name in ("stop", "cut"))
        return len(self.buckets) > 1 or stops or getattr(self.schedule, "stop_at_end", False)

    @property
    def width(self) -> int | None:
        """Tokens per target call, None if that varies."""
        return self.longest_draft + 1 if len(self.buckets) == 1 else None

    @property
    def capacity(self) -> int:
        """Slots that a cache needs: the last call starts at position max_length - 1 at the latest
        and feeds the pending token and K draft tokens."""
        return self.max_length + self.longest_draft

    def models(self) -> dict[str, Any]:
        """The models by role: "target", and those of the drafter."""
        return {"target": self.target, **models_of(self.drafter)}

    def tables(self) -> dict[str, Table]:
        """The tables by role: those of the drafter, and the schedule's."""
        return {**tables_of(self.drafter), **tables_of(self.schedule)}

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the drafters that the drafter is made of, () if it is one."""
        return sources_of(self.drafter)

    def with_models(self, models: Mapping[str, Any]) -> Plan:
        """This plan with other models in the roles that are named."""
        own = models_of(self.drafter)
        drafter: Any = self.drafter
        if own:
            drafter = drafter.with_models({role: models.get(role, own[role]) for role in own})
        target = models.get("target", self.target)
        return dataclasses.replace(self, target=target, drafter=drafter)

    def params(self, trees: Mapping[str, PyTree]) -> Params:
        """The argument of `decode`, from the parameters of each of `models()` and `tables()`."""
        return Params(trees["target"], packed(self.drafter, trees), packed(self.schedule, trees))

    def trees(self, params: Params) -> dict[str, PyTree]:
        """The parameters of each of `models()` and `tables()`: the inverse of `params`."""
        of_schedule = unpacked(self.schedule, params.schedule)
        return {"target": params.target, **unpacked(self.drafter, params.drafter), **of_schedule}

    def parts(
        self,
        drafted: Iterable[int] | None = None,
        sources: Iterable[int] | None = None,
        depths: Iterable[int] | None = None,
    ) -> tuple[Part, ...]:
        """The model calls of one iteration, beside which it takes next to nothing.

        Args:
          drafted: draft lengths of measured calls, over which the result is a mean; None for each
            of the schedule's buckets equally often.
          sources: which part of a drafter that is made of others proposed in each of these calls;
            None for each of them equally often.
          depths: how many layers each of these calls went through, of a target whose tokens may
            leave; None for each number of layers equally often.

        The arguments that are given describe the same calls, in the same order: a length belongs to
        the source that proposed it. What is not given is combined with all of them.

        Raises:
          ValueError: the arguments describe different numbers of calls.
        """
        calls: collections.Counter[tuple[str, int]] = collections.Counter()
        kinds = self._kinds(drafted, sources, depths)
        for (bucket, length, source, depth), times in kinds.items():
            share = times / kinds.total()
            calls[of_depth(depth), bucket + 1] += share  # type: ignore[assignment]
            for role, width, count in parts_of(self.drafter, length, source) if bucket else ():
                calls[role, width] += share * count  # type: ignore[assignment]
        return tuple(Part(*one, count) for one, count in calls.items() if count)

    def owned(self) -> dict[str, Any]:
        """Everything that has parameters, by role: `models` and `tables`."""
        return {"target": self.target, **owned_by(self.drafter), **owned_by(self.schedule)}

    @property
    def widest(self) -> dict[str, int]:
        """Tokens in the widest call of each model that `parts` has, by role."""
        return dict(sorted((role, width) for role, width, _ in self.parts()))

    def laid_out(self, rows: int) -> Plan:
        """This plan with its models in the layouts that this device reads fastest, in batches of so
        many rows; see `Model.laid_out`."""
        own = self.models()
        calls: dict[str, dict[int, float]] = {role: {} for role in own}
        for role, width, count in self.parts():
            of = calls[holder(role, own)]
            of[rows * width] = of.get(rows * width, 0.0) + count
        models = {role: model.laid_out(calls[role] or {rows: 1.0}) for role, model in own.items()}
        return self.with_models(models)

    def alone(self, width: int = 1) -> Plan:
        """The plan of the target by itself; see `decoding.autoregressive_decode` for the width."""
        return dataclasses.replace(self, drafter=Alone(width, self.sampling.greedy))

    def baseline(self) -> Plan:
        """What this plan is measured against: the target alone, and of one whose tokens may leave
        before the last layer the whole model."""
        whole = getattr(self.target, "whole", self.target)
        return dataclasses.replace(self.alone(), target=whole)

    def __str__(self) -> str:
        """How it decodes, in a line for people."""
        inexact = self._rounded() + ("" if self.exact else ", NOT EXACT")
        if not self.drafts:
            return f"the target alone, {self.sampling}{inexact}"
        drafter = type(self.drafter).__name__
        return f"{drafter}, {self.schedule}, {self.verifier}, {self.sampling}{inexact}"

    def _rounded(self) -> str:
        """Which models are not those of their checkpoints."""
        models = self.models().items()
        roles = [role for role, model in models if getattr(model, "weights", "stored") == "int8"]
        return f", {' and '.join(roles)} in int8" if roles else ""

    def _kinds(
        self,
        drafted: Iterable[int] | None,
        sources: Iterable[int] | None,
        depths: Iterable[int] | None,
    ) -> collections.Counter[tuple[int, int, int | None, int | None]]:
        """Counts calls by bucket, tokens drafted, source and layers; the last two are None where
        there is but one source and where all calls run all layers."""
        lengths = None if drafted is None else [self._length(length) for length in drafted]
        given = [lengths, sources, depths]
        possible = [
            [(bucket, bucket) for bucket in self.buckets],
            range(len(self.sources)) or [None],
            depths_of(self.target) or [None],
        ]
        of_calls = [i for i, one in enumerate(given) if one is not None]
        others = [i for i, one in enumerate(given) if one is None]
        measured = zip(*(given[i] for i in of_calls), strict=True) if of_calls else [()]
        kinds: collections.Counter[Any] = collections.Counter()
        for own, *rest in itertools.product(measured, *(possible[i] for i in others)):
            kind = dict(zip([*of_calls, *others], [*own, *rest], strict=True))
            kinds[*kind[0], kind[1], kind[2]] += 1
        return kinds

    def _length(self, drafted: int) -> tuple[int, int]:
        """Returns the bucket of a measured call, and the tokens that were drafted for it."""
        bucket = self.longest_draft
        if self.lengths_vary:
            bucket = next(bucket for bucket in self.buckets if bucket >= drafted)
        if self.sources and not drafted:  # such a drafter asks none of its models for no token
            return bucket, 0
        if not self.lengths_vary:
            return bucket, bucket
        # A drafter that is asked drafts one token at least, also for a row that wants none.
        return bucket, max(drafted, 1) if bucket else 0

    def _check(self) -> None:
        if self.verifier is None or self.schedule is None:
            lacking = "verifier" if self.verifier is None else "schedule"
            raise ValueError(f"the plan has a drafter but its {lacking} is None; give one")
        for name, methods, remedy in _PARTS:
            check_has(f"Plan.{name}", getattr(self, name), methods, remedy)
        decides = "verdict" if hasattr(self.verifier, "verdict") else "accept residual"
        check_has("Plan.verifier", self.verifier, decides, "a verifier, such as Coupled()")
        check_names(self.drafter, self.schedule)
        if not is_integer(self.max_length, 1):
            raise ValueError(f"max_length is {self.max_length!r}; give a positive number of tokens")
        if getattr(self.verifier, "greedy_only", False) and not self.sampling.greedy:
            raise ValueError(
                f"{type(self.verifier).__name__} compares argmaxes but sampling is "
                f"{self.sampling}; use SpeculativeSampling() or Coupled() to sample, or Greedy()"
            )


# What each part of a plan has, and what to give.
_ALWAYS = (
    ("target", "prefill decode", "a model, such as T5Target(config)"),
    ("sampling", "greedy probabilities", "a rule, such as Greedy()"),
)
_PARTS = (
    ("drafter", "init propose", "a drafter, such as Autoregressive(model, sampling)"),
    ("schedule", "buckets want", "a schedule, such as Fixed(4)"),
)


def _stop_ids(given: Any, target: Target) -> tuple[int, ...]:
    if given is None:
        given = getattr(target, "stop_ids", None)
    if given is None:
        raise ValueError(
            f"nothing says what ends a text of {type(target).__name__}; give Plan.stop_ids"
        )
    try:
        return tuple(int(token) for token in given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"stop_ids is {given!r}; give a tuple of token ids, as in (1,)") from error


@dataclasses.dataclass(frozen=True)
class Alone:
    """No drafter: the drafter, schedule and verifier of the target decoding alone.

    width: tokens of a target call, of which the first one counts.
    """

    width: int = 1
    greedy: bool = False
    exact: ClassVar[bool] = True
    shared_noise: ClassVar[bool] = True

    def __post_init__(self):
        if not is_integer(self.width, 1):
            raise ValueError(f"width is {self.width!r}; give a positive number of tokens per call")

    @property
    def buckets(self) -> tuple[int, ...]:
        return (self.width - 1,)

    def init(self, *_) -> PyTree:
        return ()

    def want(self, state: PyTree) -> Array:
        return jnp.zeros([1], jnp.int32)

    def update(self, state: PyTree, draft: Draft, verdict: Verdict) -> PyTree:
        return state

    def propose(
        self, params: Params, keys: Array, context: Context, state, want: Array, stop
    ) -> tuple[Draft, PyTree]:
        nothing = jnp.zeros(keys.shape, jnp.int32)
        return Draft(nothing, None, jnp.zeros(keys.shape[0], jnp.int32)), state

    def verdict(self, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
        """The target's own token, drawn as in a text that nobody drafts for."""
        if self.greedy:
            best = jnp.argmax(scores.logits[0])
        else:
            best = draw_shared(keys.correct[0], scores.probs[0])
        return Verdict(jnp.zeros([], jnp.int32), best.astype(jnp.int32))
