"""`Plan`, the static configuration of decoding: target, drafter, verifier, schedule, sampling."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, Self

import jax.numpy as jnp

from specdec.common.values import Checked, PositiveInt, check, check_is, is_word
from specdec.drafters.drafter import Drafter
from specdec.models.contract.model import Model, Target, check_model
from specdec.sampling import draw_shared
from specdec.schedules.schedule import Schedule
from specdec.types import (
    UNKNOWN_CALL,
    Array,
    Context,
    DecodeState,
    Draft,
    Noise,
    Params,
    Part,
    PyTree,
    Request,
    SamplingRule,
    Scores,
    Table,
    TargetCall,
    Verdict,
    of_depth,
)
from specdec.verifiers.decide import Verifier

# The roles of the target's calls in speculation, and of the target alone in timings.
RESERVED = ("target", "alone")
_LONG_LISTS = {  # with more than eight elements
    "ids": re.compile(r"\((\d+, ){8,}\d+\)"),
    "sequences": re.compile(r"\((\(\d+(, \d+)*,?\), ){8,}\(\d+(, \d+)*,?\)\)"),
}


class BasePlan:
    """The base of `Plan` and `BeamPlan`: a plan's models, their parameters and their calls."""

    reads_previous = False  # whether the drafter reads previous outputs

    def models(self) -> dict[str, Target]:
        """Returns role -> model: "target", and the drafter's models."""
        raise NotImplementedError

    def with_models(self, models: Mapping[str, Target]) -> Self:
        """Returns this plan with the models of some roles replaced."""
        raise NotImplementedError

    def parts(self, calls: Iterable[TargetCall] = (UNKNOWN_CALL,)) -> tuple[Part, ...]:
        """Returns the model calls of an average iteration, with the widths that are computed.

        The average is over the target calls in `calls`. A field of a call that is None stands for
        all its possible values, equally often: buckets, sources, or numbers of layers. All calls
        must have the same fields.
        """
        raise NotImplementedError

    def tables(self) -> dict[str, Table]:
        """Returns role -> lookup table of the drafter or of the schedule."""
        return {}

    def owned(self) -> dict[str, Target | Table]:
        """Returns role -> everything that has parameters: `models` and `tables`."""
        return {**self.models(), **self.tables()}

    def params(self, trees: Mapping[str, PyTree]) -> Params:
        """Returns the `params` argument of `decode`: of `trees`, those of the roles in `owned`."""
        return Params(**{role: trees[role] for role in self.owned()})

    def own_calls(self) -> dict[str, Callable]:
        """Returns role -> functions of calls that are not plain calls of a model's `decode`."""
        return {}

    def holder(self, role: str) -> str:
        """Returns the role whose KV cache calls of `role` use: `role` if it has a model, else
        "target"."""
        return role if role in self.models() else "target"

    def laid_out(self, rows: int) -> Self:
        """Returns this plan with kernels in the layouts that are fastest here for `rows` rows."""
        models = self.models()
        calls: dict[str, dict[int, float]] = {role: {} for role in models}
        for role, width, count in self.parts():
            of = calls[self.holder(role)]
            of[rows * width] = of.get(rows * width, 0.0) + count
        laid = {role: model.laid_out(calls[role] or {rows: 1.0}) for role, model in models.items()}
        return self.with_models(laid)


@dataclasses.dataclass(frozen=True)
class Plan(BasePlan):
    """The static configuration of decoding; hashable, so that it is a static argument of `jax.jit`.

    Args:
      target: the model whose distribution the output has.
      drafter: proposes tokens; None decodes with the target alone, one token per call.
      verifier: decides how many draft tokens are accepted. Not used without a drafter.
      schedule: decides how many tokens are drafted. Not used without a drafter.
      sampling: turns logits into the distribution from which tokens are drawn.
      max_length: N, the maximum output in tokens, including the stop id.
      stop_ids: token ids that end a row; None for the target's. With `()`, every row has
        `max_length` tokens.
      same_bits: whether target calls of every width are computed such that a token's logits have
        the same bits. Greedy and `Coupled` outputs then equal those of the target alone also in
        bfloat16, on devices where `decoding.row_bits` finds no difference.

    Raises:
      ValueError: the components do not fit each other.
    """

    target: Target
    drafter: Drafter
    verifier: Verifier
    schedule: Schedule
    sampling: SamplingRule
    max_length: int
    stop_ids: tuple[int, ...] = None  # type: ignore[assignment]
    same_bits: bool = False

    def __post_init__(self):
        check_model("Plan.target", self.target)
        check_is("Plan.same_bits", self.same_bits, bool, "True or False")
        if self.same_bits:  # also after a layout was chosen
            object.__setattr__(self, "target", self.target.same_bits())
        check_is("Plan.sampling", self.sampling, SamplingRule, "a rule, such as Greedy()")
        if self.drafter is None or isinstance(self.drafter, Alone):
            width = 1 if self.drafter is None else self.drafter.width
            alone = Alone(width, self.sampling.greedy)
            for name in ("drafter", "verifier", "schedule"):
                object.__setattr__(self, name, alone)
        object.__setattr__(self, "stop_ids", stop_ids_of(self.stop_ids, self.target))
        self._check()

    @property
    def drafts(self) -> bool:
        """Whether the plan has a drafter."""
        return not isinstance(self.drafter, Alone)

    @property
    def exact(self) -> bool:
        """Whether the output has the target's distribution, by `exact` of target and verifier."""
        return self.target.exact and self.verifier.exact

    @property
    def same_output(self) -> bool:
        """Whether the output equals that of the target alone, not only in distribution."""
        return self.exact and (self.sampling.greedy or self.shared_noise)

    @property
    def shared_noise(self) -> bool:
        """Whether draft tokens and the target's tokens are drawn with the same random numbers."""
        return self.verifier.shared_noise

    @property
    def reads_beliefs(self) -> bool:
        """Whether the verifier reads the softmax of a greedy drafter."""
        return self.verifier.reads_beliefs and self.sampling.greedy

    @property
    def reads_hidden(self) -> bool:
        """Whether the drafter reads the target's hidden states."""
        return self.drafter.reads_hidden

    @property
    def reads_previous(self) -> bool:
        """Whether the drafter reads previous outputs."""
        return self.drafter.reads_previous

    @property
    def buckets(self) -> tuple[int, ...]:
        """The draft lengths for which target calls are compiled, ascending."""
        return self.schedule.buckets

    @property
    def longest_draft(self) -> int:
        """K, the largest draft length."""
        return self.buckets[-1]

    @property
    def gamma(self) -> int | None:
        """The draft length; None if it varies or the plan has no drafter."""
        return self.longest_draft if self.drafts and not self.lengths_vary else None

    @property
    def lengths_vary(self) -> bool:
        """Whether the number of draft tokens differs between calls."""
        return self.schedule.lengths_vary

    @property
    def width(self) -> int | None:
        """The number of tokens per target call; None if it varies."""
        return self.nodes_of(self.longest_draft) + 1 if len(self.buckets) == 1 else None

    def nodes_of(self, length: int) -> int:
        """Returns the number of tokens in a draft of `length` positions, over all its paths."""
        return length * (self.drafter.paths or 1)

    @property
    def capacity(self) -> int:
        """The number of slots that a KV cache needs.

        The last target call starts at position max_length - 1 or before, with the pending token and
        all draft tokens.
        """
        return self.max_length + self.nodes_of(self.longest_draft)

    def models(self) -> dict[str, Target]:
        return {"target": self.target, **self.drafter.models()}

    def tables(self) -> dict[str, Table]:
        return {**self.drafter.tables(), **self.schedule.tables()}

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the drafters inside a combined drafter; () for a single drafter."""
        return self.drafter.sources

    def with_models(self, models: Mapping[str, Target]) -> Plan:
        target = models.get("target", self.target)
        return dataclasses.replace(self, target=target, drafter=self.drafter.with_models(models))

    def parts(self, calls: Iterable[TargetCall] = (UNKNOWN_CALL,)) -> tuple[Part, ...]:
        times: dict[tuple[str, int], float] = collections.defaultdict(float)
        kinds = collections.Counter(kind for call in calls for kind in self._kinds(call))
        for (bucket, length, source, depth), count in kinds.items():
            share = count / kinds.total()
            times[of_depth(depth), self.nodes_of(bucket) + 1] += share
            for role, width, of in self.drafter.parts(length, source) if bucket else ():
                times[role, width] += share * of
        return self.computed(Part(*call_of_part, count) for call_of_part, count in times.items())

    def computed(self, calls: Iterable[Part]) -> tuple[Part, ...]:
        """Returns the calls with the widths that are computed; a layout may compute more tokens
        than count, see `Target.computed_width`."""
        models, times = self.models(), collections.defaultdict[tuple[str, int], float](float)
        for role, width, count in calls:
            times[role, models[self.holder(role)].computed_width(width)] += count
        return tuple(Part(*call, count) for call, count in times.items() if count)

    def call_of(self, role: str) -> Callable:
        """Returns the function that timings run for a call of `role`.

        It maps (parameters by role, tokens [B, T], cache) to (tokens [B, T], cache). It is the
        function in `own_calls`, or otherwise a plain call of the model's `decode`.
        """
        timed = self.own_calls().get(role)
        return timed or plain_call(role, self.models()[role])

    def own_calls(self) -> dict[str, Callable]:
        """Returns role -> functions of calls that are not plain calls of a model's `decode`.

        They are calls that the drafter defines, and calls through each number of layers of an
        early-exit target.
        """
        always = {of_depth(depth): self.target.always(depth) for depth in self.target.depths}
        of_target = {role: plain_call("target", target) for role, target in always.items()}
        return self.drafter.timed(self.target) | of_target

    def laid_out(self, rows: int) -> Plan:
        """Returns this plan in the fastest layouts for `rows` rows; draft models may use others."""
        plan = super().laid_out(rows)
        drafting = {role: model.drafting() for role, model in plan.drafter.models().items()}
        return plan.with_models(drafting)

    def context(self, state: DecodeState) -> Context:
        """Returns the context for the plan's drafter, from the state of decoding."""
        return Context(
            tokens=state.tokens,
            length=state.length,
            inputs=state.inputs,
            cache=state.cache,
            hidden=state.hidden,
            active=state.active,
            vocab_size=state.vocab_size,
            stop_ids=self.stop_ids,
            pad_id=self.target.pad_id,
            target=self.target,
            shared_noise=self.shared_noise,
            beliefs=self.reads_beliefs,
        )

    def alone(self, width: int = 1) -> Plan:
        """Returns the plan that decodes with the target alone.

        Args:
          width: tokens per target call, of which one counts; see `decoding.autoregressive_decode`.
        """
        return dataclasses.replace(self, drafter=Alone(width, self.sampling.greedy))

    def baseline(self) -> Plan:
        """Returns the plan with which speed-ups compare: the target alone, with all its layers."""
        return dataclasses.replace(self.alone(), target=self.target.whole)

    def __str__(self) -> str:
        """Returns the plan's components in one line."""
        inexact = self._rounded() + ("" if self.exact else ", NOT EXACT")
        if not self.drafts:
            return f"the target alone, {_in_words(self.sampling)}{inexact}"
        drafter = type(self.drafter).__name__
        parts = drafter, self.schedule, self.verifier, _in_words(self.sampling)
        return ", ".join(map(str, parts)) + inexact

    def _rounded(self) -> str:
        """Returns a note that names the models with int8 weights, or ""."""
        models = {role: x for role, x in self.models().items() if isinstance(x, Model)}
        note = ""
        for weights, tokens in (("int8", ""), ("int8_tokens", ", tokens too")):
            roles = [role for role, model in models.items() if model.weights == weights]
            note += f", {' and '.join(roles)} in int8{tokens}" if roles else ""
        return note

    def _kinds(self, call: TargetCall) -> Iterator[tuple[int, int, int | None, int | None]]:
        """Yields every possible (bucket, tokens drafted, source, layers) of a target call.

        `source` is None for a single drafter, and `layers` is None if every call runs all layers.
        """
        lengths = [(bucket, bucket) for bucket in self.buckets]
        if call.drafted is not None:
            lengths = [self._length(call.drafted)]
        sources = range(len(self.sources)) if call.source is None else [call.source]
        depths = self.target.depths if call.depth is None else [call.depth]
        for length, source, depth in itertools.product(
            lengths, sources or [None], depths or [None]
        ):
            yield *length, source, depth

    def _length(self, drafted: int) -> tuple[int, int]:
        """Returns the bucket of a measured call, and the number of tokens drafted for it."""
        bucket = self.longest_draft
        if self.lengths_vary:
            bucket = next(bucket for bucket in self.buckets if bucket >= drafted)
        if self.sources and not drafted:  # a combined drafter then runs no model
            return bucket, 0
        if not self.lengths_vary:
            return bucket, bucket
        # Other drafters run for one token at least, also if a row needs none.
        return bucket, max(drafted, 1) if bucket else 0

    def _check_roles(self) -> None:
        """Raises ValueError if a role is invalid, reserved or used by both drafter and schedule."""
        of_drafter, of_schedule = self.drafter.owned(), self.schedule.tables()
        for owner, owned in ((self.drafter, of_drafter), (self.schedule, of_schedule)):
            for role in owned:
                if not is_word(role) or role.partition("/")[0] in RESERVED:
                    raise ValueError(
                        f"{type(owner).__name__} has the role {role!r}; give it one that does not "
                        f"name the target ({', '.join(RESERVED)}), such as 'draft'"
                    )
        if both := of_drafter.keys() & of_schedule.keys():
            raise ValueError(
                f"{type(self.drafter).__name__} and {type(self.schedule).__name__} both own "
                f"{', '.join(sorted(both))}; give the drafter's another role"
            )

    def _check(self) -> None:
        if self.verifier is None or self.schedule is None:
            lacking = "verifier" if self.verifier is None else "schedule"
            raise ValueError(f"the plan has a drafter but its {lacking} is None; give one")
        remedy = "a drafter, such as Autoregressive(model, sampling)"
        check_is("Plan.drafter", self.drafter, Drafter, remedy)
        check_is("Plan.schedule", self.schedule, Schedule, "a schedule, such as Fixed(4)")
        check_is("Plan.verifier", self.verifier, Verifier, "a verifier, such as Coupled()")
        self._check_roles()
        check("max_length", self.max_length, PositiveInt)
        room = self.target.longest_output
        if room is not None and self.max_length > room:
            raise ValueError(
                f"max_length is {self.max_length}, and the target has positions for outputs of "
                f"{room} tokens; give {room} or fewer"
            )
        if self.verifier.greedy_only and not self.sampling.greedy:
            raise ValueError(
                f"{type(self.verifier).__name__} compares argmaxes but sampling is "
                f"{self.sampling}; use SpeculativeSampling() or Coupled() to sample, or Greedy()"
            )
        if self.drafter.paths:
            self._check_paths()
            if self.same_bits:
                raise ValueError(
                    f"same_bits is True and {type(self.drafter).__name__} drafts "
                    f"{self.drafter.paths} paths, whose tokens have other slots of the cache than "
                    "a text; give a drafter of one path, or same_bits=False"
                )

    def _check_paths(self) -> None:
        """Raises ValueError if a component does not support the drafter's several paths."""
        kind, wrong = type(self.drafter).__name__, ""
        if self.lengths_vary:
            wrong = f"lengths of {self.schedule} vary; give Fixed(gamma)"
        elif not self.verifier.several_paths:
            wrong = f"{self.verifier} takes one; give Block()"
        elif self.drafter.certain and not self.sampling.greedy:
            wrong = f"it is greedy and sampling is {self.sampling}; give both the same"
        elif self.target.depths:
            wrong = f"calls of {type(self.target).__name__} vary in layers; give a target without"
        if wrong:
            raise ValueError(f"{kind} drafts {self.drafter.paths} paths, but {wrong}")


def plain_call(role: str, model: Target) -> Callable:
    """Returns a function of one call of the model's `decode`, for timings.

    It maps (parameters by role, tokens [B, T], cache) to (argmaxes [B, T], cache)."""

    def call(trees: Mapping[str, PyTree], tokens: Array, cache: PyTree) -> tuple[Array, PyTree]:
        output, fed = model.decode(trees[role], tokens, cache)
        return jnp.argmax(output.logits, axis=-1).astype(jnp.int32), fed

    return call


def stop_ids_of(stop_ids: Iterable[int] | None, target: Target) -> tuple[int, ...]:
    """Returns stop ids as a tuple of integers, the target's if they are None; raises ValueError."""
    if stop_ids is None:
        stop_ids = target.stop_ids
    if stop_ids is None:
        raise ValueError(
            f"neither the plan nor {type(target).__name__} has stop ids; give Plan.stop_ids"
        )
    try:
        return tuple(int(token) for token in stop_ids)
    except (TypeError, ValueError) as error:
        remedy = "give a tuple of token ids, as in (1,)"
        raise ValueError(f"stop_ids is {stop_ids!r}; {remedy}") from error


@dataclasses.dataclass(frozen=True)
class Alone(Checked, Drafter, Schedule, Verifier):
    """The component in place of drafter, schedule and verifier if the target decodes alone."""

    width: PositiveInt = 1  # tokens per target call; only the first token counts
    greedy: bool = False  # whether the argmax is taken
    exact: ClassVar[bool] = True
    shared_noise: ClassVar[bool] = True
    several_paths: ClassVar[bool] = True

    @property
    def buckets(self) -> tuple[int, ...]:
        return (self.width - 1,)

    def tables(self) -> dict[str, Table]:
        return {}

    def init(self, *_) -> PyTree:
        return ()

    def want(self, state: PyTree) -> Array:
        return jnp.zeros([1], jnp.int32)

    def propose(self, params: Params, request: Request, state: PyTree) -> tuple[Draft, PyTree]:
        nothing = jnp.zeros(request.keys.shape, jnp.int32)
        return Draft(nothing, None, jnp.zeros(len(nothing), jnp.int32)), state

    def accept(self, draft: Draft, scores: Scores) -> Array:
        return jnp.zeros(draft.tokens.shape, scores.probs.dtype)

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        return scores.probs[n]

    def verdict(self, keys: Noise, draft: Draft, scores: Scores) -> Verdict:
        """Returns 0 accepted tokens and the target's next token."""
        if self.greedy:
            best = jnp.argmax(scores.logits[0])
        else:
            best = draw_shared(keys.correct[0], scores.probs[0])
        return Verdict(jnp.zeros([], jnp.int32), best.astype(jnp.int32))


def _in_words(sampling: SamplingRule) -> str:
    """Returns a sampling rule with the number of ids in place of a long list of them."""
    text = _LONG_LISTS["ids"].sub(lambda ids: f"({ids[0].count(',') + 1} ids)", str(sampling))
    return _LONG_LISTS["sequences"].sub(lambda x: f"({x[0].count('), (') + 1} sequences)", text)
