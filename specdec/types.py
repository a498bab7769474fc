"""The records that flow between the parts: targets, drafters, verifiers, schedules.

Letters used for shapes everywhere:

  B  rows of a batch             N  longest output, in tokens
  S  length of the encoder input K  longest draft, in tokens
  V  vocabulary of the target    D  width of the target
  T  tokens in one decoder call  C  slots in a KV cache (N + K)
  H  attention heads

Two indices are used for the output. Position i of the *decoder input* holds the start token for
i = 0 and output token i - 1 after it. `n` is the number of output tokens that are committed, so
position n holds the *pending* token: committed, but not yet fed to the target.

Static things (targets, drafters, verifiers, schedules, samplings) are frozen, hashable
dataclasses; dynamic things are the pytrees below; parameters are an explicit first argument.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from flax import struct

Array: TypeAlias = jax.Array
PyTree: TypeAlias = Any
# Pairs of a logical axis and the mesh axis, or None, that it is divided over.
AxisRules: TypeAlias = tuple[tuple[str, str | None], ...]


class Cache(Protocol):
    """A target's memory of a text, as a pytree. Rollback is an integer: entries are valid for
    positions < length; slots at or beyond it are garbage, which readers mask and writers
    overwrite."""

    @property
    def length(self) -> Array:  # [B] int32
        ...

    @property
    def capacity(self) -> int:  # C
        ...

    def rewind(self, length: Array) -> Any: ...


@jax.tree_util.register_pytree_with_keys_class
class Params(dict[str, Any]):
    """The parameters of everything that has some: role -> tree, one argument of every program.

    Params(target, draft) has the roles "target" and "draft"; others are given by name.
    """

    def __init__(self, target: PyTree = None, draft: PyTree = None, **others: PyTree):
        given = {"target": target, "draft": draft, **others}
        super().__init__({role: tree for role, tree in given.items() if tree is not None})

    def __or__(self, others: Mapping[str, PyTree]) -> Params:  # type: ignore[override]
        return Params(**{**self, **others})

    def tree_flatten_with_keys(self) -> tuple[Any, tuple[str, ...]]:
        roles = tuple(sorted(self))
        return [(jax.tree_util.DictKey(role), self[role]) for role in roles], roles

    @classmethod
    def tree_unflatten(cls, roles: tuple[str, ...], trees: Any) -> Params:
        made = cls.__new__(cls)  # a tree of parameters may be None while JAX transforms it
        dict.__init__(made, zip(roles, trees, strict=True))
        return made


class ModelOutput(NamedTuple):
    """What a target computes for a block of tokens."""

    logits: Array  # [B, T, V] float32; row i predicts the token after the i-th token fed
    hidden: Array  # [B, T, D] the states the logits are projected from
    # [B, T, D] what the last layer left, before the final norm, of a call that ran some layers.
    stream: Array | None = None
    # [B, T] int32, the layers that each token went through, of a target whose tokens may leave.
    depth: Array | None = None


class History(struct.PyTreeNode):
    """The text before a token: what is committed and what is drafted of it, never a rejected one.

    `tokens[..., 0]` is the start token, and what is at or beyond `length` is garbage: like a cache
    it is rewound by an integer. A processor sees that of one token, [M] and []; everybody else one
    of each row, or of each of T tokens that come next, row by row.
    """

    tokens: Array  # [B, M] int32
    length: Array  # [B] or [B, T] int32, with the start token
    stop_ids: tuple[int, ...] = struct.field(pytree_node=False, default=())

    @property
    def position(self) -> Array:
        """The index of the output token that comes next."""
        return self.length - 1

    def append(self, tokens: Array) -> History:
        """With a token [B] more in each row; what no longer fits is dropped."""
        return self.ahead(tokens[:, None]).replace(length=self.length + 1)

    def ahead(self, block: Array) -> History:
        """Those of the T + 1 tokens that are next along a block [B, T]: before it, and behind each
        of its tokens."""
        index = jnp.arange(self.tokens.shape[1])[None] - self.length[:, None]
        tokens, width = self.tokens, block.shape[1]
        if width:
            moved = jnp.take_along_axis(block, jnp.clip(index, 0, width - 1), axis=1)
            tokens = jnp.where((index >= 0) & (index < width), moved, tokens)
        lengths = self.length[:, None] + jnp.arange(width + 1)[None]
        return self.replace(tokens=tokens, length=lengths)


class Context(struct.PyTreeNode):
    """What a drafter may read.

    `tokens[:, 0]` is the start token. `tokens[b, length[b] - 1]` is the pending token, and
    everything behind it is garbage. `hidden[b, i]` is the target's state that produced token i,
    zero for the start token and garbage behind the pending one; it is None unless the drafter says
    that it `reads_hidden`.
    """

    tokens: Array  # [B, 1+N] int32
    length: Array  # [B] int32, committed tokens including the start token
    inputs: PyTree  # as `decode` was given them: [B, S] int32 for T5
    cache: Cache  # the target's
    hidden: Array | None  # [B, at least 1+N, D]
    active: Array  # [B] bool, rows that are not finished
    # [B, K] a text's own tokens, where a drafter's opinion of them is asked for: they lead to the
    # next ones then, and what it drafts does not. None where it drafts.
    taught: Array | None = None
    vocab_size: int | None = struct.field(pytree_node=False, default=None)  # V
    stop_ids: tuple[int, ...] = struct.field(pytree_node=False, default=())
    # The target itself, to which params["target"] belongs.
    target: Any = struct.field(pytree_node=False, default=None)
    # The target draws with the very keys that `propose` is given: see `sampling.draw_shared`.
    shared_noise: bool = struct.field(pytree_node=False, default=False)
    # The verifier reads `Draft.beliefs`.
    beliefs: bool = struct.field(pytree_node=False, default=False)

    @property
    def history(self) -> History:
        """Of the first token of a draft."""
        return History(self.tokens, self.length, self.stop_ids)


class Resume(struct.PyTreeNode):
    """The target's next call, which a drafter has begun with the target's own lower layers.

    With a draft of L tokens they have seen the pending token and all of the draft but its last one:
    the first L positions of the call. Keys and values of these are in the cache, and nobody writes
    them again; its length is as the drafter found it. The cache is the loop's from here on.
    """

    stream: Array  # [B, K, D] what the lower layers left of these positions, garbage behind them
    cache: Any
    layers: int = struct.field(pytree_node=False)  # how many have run, from the first one


class Draft(struct.PyTreeNode):
    """Proposed tokens. Verifiers see one row of it, without the leading B.

    `probs[b, i]` is exactly the float32 distribution `tokens[b, i]` was drawn from; None stands for
    certainty (a one-hot on the token), which is what greedy and copying drafters propose with.
    Entries at i >= length are garbage.

    `source` says which of a drafter's `sources` made the draft; None where there is but one.
    `beliefs` is what a drafter holds likely where it does not draw: the softmax of a greedy one. It
    is None unless the context asks for it, and of a drafter that copies.
    `resume` is there of a drafter that runs layers of the target.
    """

    tokens: Array  # [B, K] int32
    probs: Array | None  # [B, K, V] float32
    length: Array  # [B] int32, 0..K
    source: Array | None = None  # [B] int32
    beliefs: Array | None = None  # [B, K, V] float32
    resume: Resume | None = None
    # [B] bool, set by the loop: it cut the draft because the drafter's output is not usable.
    broken: Array | None = None


class Scores(struct.PyTreeNode):
    """The target's opinion of one row of a draft: row i is about draft token i, row K about the
    token after it. Standardised means after processors, temperature, top-k and top-p; greedy, that
    it is a one-hot on the likeliest token."""

    logits: Array  # [K+1, V] float32, as the processors leave them, or else as the target gave them
    probs: Array  # [K+1, V] float32, standardised
    greedy: bool = struct.field(pytree_node=False, default=False)
    # Some logits may be -inf because a processor excludes the token.
    processed: bool = struct.field(pytree_node=False, default=False)


class Noise(NamedTuple):
    """Finished random keys of one row and one iteration; `decoding` says where they come from."""

    draft: Array  # [K] keys, for drawing draft token j
    accept: Array  # [K] keys, for the uniform that decides about draft token j
    correct: Array  # [K+1] keys, for drawing the target's token after j accepted ones


class Verdict(NamedTuple):
    """The outcome for one row: the first `num_accepted` draft tokens, then `next_token`."""

    num_accepted: Array  # [] int32, 0..length of the draft
    next_token: Array  # [] int32


class Trace(struct.PyTreeNode):
    """What happened, call by call. Column i is the row's i-th target call; later columns are 0.

    A call emits accepted + 1 tokens, except a row's last one, which emits `accepted` if
    `ended_in_draft` (a drafted stop id was accepted). `source` is that of each call's draft, None
    where the drafter has but one. `depth` is how many layers the row's tokens went through in each
    call, the deepest of them; None where all go through all.

    `broken_drafts` counts the drafts that the loop ended early because a token does not exist or
    its distribution q is not one. `failed` marks a row that ended without a stop id because the
    target's logits for its next token were NaN or infinite; its last call emits `accepted` tokens.
    """

    proposed: Array  # [B, N, K] int32, 0 at and after `drafted`
    drafted: Array  # [B, N] int32, draft tokens verified by the call
    accepted: Array  # [B, N] int32
    calls: Array  # [B] int32, target calls the row took part in
    ended_in_draft: Array  # [B] bool
    steps: Array  # [] int32, target calls of the whole batch
    broken_drafts: Array  # [B] int32
    failed: Array  # [B] bool
    source: Array | None = None  # [B, N] int32
    depth: Array | None = None  # [B, N] int32, layers


class DecodeState(struct.PyTreeNode):
    """Everything that changes while a batch is decoded."""

    # Evolving.
    tokens: Array  # [B, 1+N] int32, see Context
    length: Array  # [B] int32, see Context
    active: Array  # [B] bool
    cache: Cache  # the target's
    hidden: Array | None  # [B, 1+N+K+1, D], see Context; a call's fit behind the last token
    drafter: PyTree
    schedule: PyTree
    # Fixed.
    keys: Array  # [B, 4] each row's keys by purpose, see `decoding.keys`
    inputs: PyTree
    # Reported.
    log_probs: Array  # [B, N] float32
    trace: Trace
    vocab_size: int = struct.field(pytree_node=False)

    def context(self, plan: Any) -> Context:
        """The view of a `Plan`'s drafter."""
        return Context(
            tokens=self.tokens,
            length=self.length,
            inputs=self.inputs,
            cache=self.cache,
            hidden=self.hidden,
            active=self.active,
            vocab_size=self.vocab_size,
            stop_ids=plan.stop_ids,
            target=plan.target,
            shared_noise=plan.shared_noise,
            beliefs=plan.reads_beliefs,
        )


class Row(NamedTuple):
    """One text and how it came about, as plain values, with one entry for each call."""

    tokens: list[int]
    proposed: list[list[int]]
    drafted: list[int]
    accepted: list[int]
    sources: list[int]  # which of the drafter's sources proposed; [] if it has but one
    depths: list[int]  # layers; [] if calls go through all


class DecodeOutput(NamedTuple):
    """Decoded texts. `tokens` exclude the start token, include the stop id that ends a row, and are
    0 after `length`.

    `log_probs` are log-softmax values of the target's unmodified float32 logits (temperature 1, no
    filter) at the emitted tokens, 0 after `length`.
    """

    tokens: Array  # [B, N] int32
    length: Array  # [B] int32, 0..N
    log_probs: Array  # [B, N] float32
    trace: Trace

    def made(self, index: int) -> int:
        """Returns how many tokens a row has."""
        return int(self.length[index])

    def row(self, index: int) -> Row:
        """One text of an output that is on the host."""
        trace, calls = self.trace, self.trace.calls[index]
        tokens = self.tokens[index, : self.length[index]]
        columns = trace.proposed, trace.drafted, trace.accepted, trace.source, trace.depth
        made = ([] if x is None else x[index, :calls].tolist() for x in columns)
        return Row(tokens.tolist(), *made)


class Stop(NamedTuple):
    """A schedule's `stop`, bound to its parameters and to where it starts."""

    carry: PyTree
    ask: Callable[[PyTree, Array, Array, Array], tuple[PyTree, Array]]
    # ask(carry, index [], probs [B, V], tokens [B]) -> (carry, stop [B] bool)
    cut: Callable[[Array], Array] | None = None  # kept [B, K] -> [B], the schedule's, if it has one


class Request(NamedTuple):
    """What a drafter is asked for: `want` tokens of each row behind the text of a context."""

    context: Context
    keys: Array  # [B, K] finished keys, one per draft token
    want: Array  # [B] int32, 0..K: how many tokens are of use
    stop: Stop | None = None  # None: nothing ends a draft early

    @property
    def longest(self) -> int:
        """K, the tokens that a draft has room for."""
        return self.keys.shape[1]


class Table(NamedTuple):
    """Parameters that are no model's: arrays that `tables` reads and writes."""

    kind: str  # "ngram", "store" or "classifier"; what is in a table of a kind, `tables` says


class Part(NamedTuple):
    """One kind of work in an iteration: calls of one model, each `width` tokens wide."""

    role: str  # of the model, see `Plan.models` and `of_depth`
    width: int
    calls: float  # in an iteration; a mean where that varies


class TargetCall(NamedTuple):
    """One target call, as far as it is known; None for what is not."""

    drafted: int | None = None  # tokens
    source: int | None = None  # which of the drafter's sources proposed them
    depth: int | None = None  # layers that the call went through, of a target that tokens may leave

    @classmethod
    def each(
        cls, drafted: Iterable[int], sources: Iterable[int] = (), depths: Iterable[int] = ()
    ) -> list[TargetCall]:
        """Returns the calls of a text; sources and depths may be empty where they are not known.

        Raises:
          ValueError: the arguments describe different numbers of calls.
        """
        fields = [list(field) for field in (drafted, sources, depths)]
        unknown = [None] * len(fields[0])
        return [cls(*call) for call in zip(*(field or unknown for field in fields), strict=True)]


UNKNOWN_CALL = TargetCall()


def of_depth(depth: int | None) -> str:
    """Returns the role of the target's calls that go through `depth` layers, 'target/6' for
    example; 'target' where all calls go through all layers (None)."""
    return "target" if depth is None else f"target/{depth}"


def verifies(role: str) -> bool:
    """Returns whether calls of this role are the target's, and not those of a draft."""
    return role.partition("/")[0] == "target"


class SamplingRule(abc.ABC):
    """Turns logits into the distribution that is sampled from: a frozen dataclass, see `sampling`.

    greedy: whether the likeliest token is always taken.
    """

    greedy: ClassVar[bool] = False

    @abc.abstractmethod
    def probabilities(
        self, logits: Array, positions: Array | None = None, history: History | None = None
    ) -> Array:
        """[..., V] logits -> [..., V], of the output tokens with these indices [...]."""


class LogitsProcessor(abc.ABC):
    """Changes the logits of a token by the text before it: a frozen dataclass.

    ids: the tokens that it names, which a vocabulary must have.
    """

    ids: ClassVar[tuple[int, ...]] = ()

    @abc.abstractmethod
    def process(self, logits: Array, history: History) -> Array:
        """[V] logits -> [V], -inf for an excluded token; the history has `tokens` [M] and `length`
        []."""
