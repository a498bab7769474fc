"""The records that targets, drafters, verifiers and schedules exchange.

The axes of arrays have these letters in the whole package:

  B  rows of a batch             N  longest output, in tokens
  S  length of the encoder input K  longest draft, in tokens
  V  vocabulary of the target    D  width of the target
  T  tokens in one decoder call  C  slots in a KV cache (N + K)
  H  attention heads

Position i of the *decoder input* holds the start token for i = 0, and output token i - 1 otherwise.
`n` is the number of output tokens so far, called committed. Position n therefore holds the last of
them, the *pending* token, which was not yet fed to the target.

Static objects (targets, drafters, verifiers, schedules, samplings) are frozen, hashable
dataclasses. Values that change are the pytrees below. Parameters are an explicit first argument.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

Array: TypeAlias = jax.Array
Values: TypeAlias = jax.Array | np.ndarray  # on a device or on the host
PyTree: TypeAlias = Any
# Pairs (logical axis, mesh axis over which it is divided, or None).
AxisRules: TypeAlias = tuple[tuple[str, str | None], ...]


class Cache(Protocol):
    """The keys and values that a target has computed for a text, as a pytree.

    Entries are valid for positions < length. Later slots hold garbage, which readers mask and
    writers overwrite, so that a rollback only changes an integer.
    """

    @property
    def length(self) -> Array:  # [B] int32
        ...

    @property
    def capacity(self) -> int:  # C
        ...

    def rewind(self, length: Array) -> Self: ...

    def keep(self, start: Array, offsets: Array, width: int) -> Self: ...


@jax.tree_util.register_pytree_with_keys_class
class Params(dict[str, PyTree]):
    """The parameters of all models and tables, by role; the first argument of every program.

    `Params(target, draft)` has the roles "target" and "draft", each with a pytree of arrays. Other
    roles are keyword arguments.

    >>> Params({"w": 1}, table={"v": 2})
    {'target': {'w': 1}, 'table': {'v': 2}}
    """

    def __init__(self, target: PyTree = None, draft: PyTree = None, **others: PyTree):
        trees = {"target": target, "draft": draft, **others}
        super().__init__({role: tree for role, tree in trees.items() if tree is not None})

    def __or__(self, others: Mapping[str, PyTree]) -> Params:  # type: ignore[override]
        return Params(**{**self, **others})

    def tree_flatten_with_keys(
        self,
    ) -> tuple[list[tuple[object, PyTree]], tuple[str, ...]]:
        roles = tuple(sorted(self))
        return [(jax.tree_util.DictKey(role), self[role]) for role in roles], roles

    @classmethod
    def tree_unflatten(cls, roles: tuple[str, ...], trees: Iterable[PyTree]) -> Params:
        params = cls.__new__(cls)  # a tree of parameters may be None while JAX transforms it
        dict.__init__(params, zip(roles, trees, strict=True))
        return params


class ModelOutput(NamedTuple):
    """The output of a target for a block of tokens [B, T]."""

    logits: Array  # [B, T, V] float32; [:, i] predicts the token after the i-th token of the block
    hidden: Array  # [B, T, D] the states from which logits are computed
    # [B, T, D] the residual stream after the last layer that was run; None if all layers were
    stream: Array | None = None
    # [B, T] int32, the number of layers that each token went through; None if always all
    depth: Array | None = None


class Prompt(NamedTuple):
    """The prompts of a batch for a decoder-only model, which its outputs continue."""

    tokens: Array  # [B, S] int32, the prompt first and then garbage
    length: Array  # [B] int32


class History(struct.PyTreeNode):
    """The text before a token: the prompt if any, committed tokens, and preceding draft tokens.

    Without a prompt, `tokens[..., 0]` is the start token. Entries at or beyond `length` are
    garbage, so that a history is rewound by changing an integer. A logits processor gets the
    history of one token, with `tokens` [M], `length` [] and `begin` []. Elsewhere there is a
    history for each row, or for each of T next tokens of a row.
    """

    tokens: Array  # [B, M] int32
    length: Array  # [B] or [B, T] int32, including the start token and any prompt
    stop_ids: tuple[int, ...] = struct.field(pytree_node=False, default=())
    # [B] int32, the index of the start token, a prompt's last token; None without prompts
    begin: Array | None = None

    @property
    def output(self) -> Array | int:
        """The index of the first output token."""
        return 1 if self.begin is None else self.begin + 1

    @property
    def position(self) -> Array:
        """The index, within the output, of the next token."""
        return self.length - self.output

    def after(self, prompt: Prompt | None) -> History:
        """Returns the history with the prompt inserted before it, unchanged if `prompt` is None.

        The history's start token is the prompt's last token."""
        if prompt is None:
            return self
        begin = jnp.maximum(prompt.length - 1, 0)
        last = self.tokens.shape[1] - 1
        before = jnp.pad(prompt.tokens, ((0, 0), (0, last)))
        index = jnp.arange(before.shape[1])[None] - begin[:, None]
        output = jnp.take_along_axis(self.tokens, jnp.clip(index, 0, last), axis=1)
        tokens = jnp.where(index < 0, before, output)
        length = self.length + jnp.expand_dims(begin, range(1, self.length.ndim))
        return self.replace(tokens=tokens, length=length, begin=begin)

    def append(self, tokens: Array) -> History:
        """Returns the history with one more token [B] in each row, dropped if there is no room."""
        return self.ahead(tokens[:, None]).replace(length=self.length + 1)

    def ahead(self, block: Array) -> History:
        """Returns T + 1 histories per row: before a block [B, T], and after each of its tokens."""
        index = jnp.arange(self.tokens.shape[1])[None] - self.length[:, None]
        tokens, width = self.tokens, block.shape[1]
        if width:
            moved = jnp.take_along_axis(block, jnp.clip(index, 0, width - 1), axis=1)
            tokens = jnp.where((index >= 0) & (index < width), moved, tokens)
        lengths = self.length[:, None] + jnp.arange(width + 1)[None]
        return self.replace(tokens=tokens, length=lengths)


class Revised(NamedTuple):
    """Inputs with the outputs for previous versions of the texts, as the inputs of `decode`."""

    inputs: PyTree  # the target's inputs
    previous: Array  # [B, P] int32, the previous outputs, padded with the target's `pad_id`


class ContextTarget(Protocol):
    """The methods of `models.contract.model.Target` that every drafter may call."""

    pad_id: ClassVar[int]

    def prompt(self, inputs: PyTree, /) -> Prompt | None: ...

    def logits(self, params: PyTree, hidden: Array, /) -> Array: ...


class Context(struct.PyTreeNode):
    """The state of decoding that a drafter may read.

    `tokens[:, 0]` is the start token. `tokens[b, length[b] - 1]` is the pending token, and later
    entries are garbage. `hidden[b, i]` is the target's hidden state that produced token i: zero for
    the start token, garbage after the pending token. `hidden` is None unless the drafter's
    `reads_hidden` is true.
    """

    tokens: Array  # [B, 1+N] int32
    length: Array  # [B] int32, committed tokens including the start token
    inputs: PyTree  # the argument of `decode`: [B, S] int32 for T5
    cache: Cache  # the target's
    hidden: Array | None  # [B, at least 1+N, D]
    active: Array  # [B] bool, rows that are not finished
    # [B, P] int32, the previous output for each text, padded with `pad_id`; only set in calls of
    # `Drafter.init` of a drafter that reads it
    previous: Array | None = None
    # [B, K] the next tokens of a recorded text, for teacher forcing: the drafter then returns its
    # distributions after these tokens, not after the tokens that it drafts. None in decoding
    taught: Array | None = None
    vocab_size: int | None = struct.field(pytree_node=False, default=None)  # V
    stop_ids: tuple[int, ...] = struct.field(pytree_node=False, default=())
    pad_id: int = struct.field(pytree_node=False, default=0)  # of the inputs
    # the target, whose parameters are params["target"]
    target: ContextTarget = struct.field(pytree_node=False, default=None)
    # whether the target draws with the keys that the drafter gets, see `sampling.draw_shared`
    shared_noise: bool = struct.field(pytree_node=False, default=False)
    # whether the verifier reads `Draft.beliefs`
    beliefs: bool = struct.field(pytree_node=False, default=False)

    @property
    def prompt(self) -> Prompt | None:
        """The prompts if the target is decoder-only, else None."""
        return None if self.target is None else self.target.prompt(self.inputs)

    @property
    def history(self) -> History:
        """The text before the first token of the next draft, after the prompt if there is one."""
        return History(self.tokens, self.length, self.stop_ids).after(self.prompt)


class Resume(struct.PyTreeNode):
    """A target call whose lower layers have already run, because the drafter drafts with them.

    For a draft of L tokens, these layers have run on the first L positions of the call: the pending
    token, and all draft tokens but the last. Their keys and values are in `cache` and are not
    written again. The cache's length is unchanged. The decoding loop continues with this cache.
    """

    stream: Array  # [B, K, D] the residual stream at the first L positions, garbage after them
    cache: Cache
    layers: int = struct.field(pytree_node=False)  # the number of layers that have run


class DraftNodes(Protocol):
    """The arrangement of a draft's tokens as nodes of a tree: `models.draft_tree.Nodes`."""

    @property
    def parents(self) -> Array: ...  # [B, T] int32

    @property
    def valid(self) -> Array: ...  # [B, T] bool

    @property
    def width(self) -> int: ...

    @property
    def depths(self) -> Array: ...  # [T] int32

    def of_parents(self, values: Array, root: Array) -> Array: ...

    def restricted(self, allowed: Array) -> Self: ...

    def lead(self) -> Array: ...

    def ancestors(self) -> Array: ...


class Draft(struct.PyTreeNode):
    """Draft tokens; entries at i >= length are garbage. A verifier gets one row, without axis B.

    `probs[b, i]` is exactly the float32 distribution q from which `tokens[b, i]` was drawn. None
    stands for a one-hot q, as of greedy and copying drafters. The preceding text alone must
    determine q, so that a draw with another key has the same q. `testing.check_drafter` and the
    certificate test this.

    `source` is the index in the drafter's `sources` of the component that made the draft, None for
    a single drafter. `beliefs` is the softmax of a greedy drafter's logits, None if the drafter
    copies or `Context.beliefs` is false. `resume` is set if the drafter runs layers of the target.
    """

    tokens: Array  # [B, K] int32
    probs: Array | None  # [B, K, V] float32
    length: Array  # [B] int32, 0..K
    source: Array | None = None  # [B] int32
    beliefs: Array | None = None  # [B, K, V] float32
    resume: Resume | None = None
    # [B] bool, set by the decoding loop: whether it cut the draft at an invalid token or q
    broken: Array | None = None
    # the arrangement of tokens in several paths or in a tree; None if they are one text. K is then
    # the number of nodes, and `length` counts depths in the tree
    nodes: DraftNodes | None = None

    @property
    def tree(self) -> DraftNodes:
        """`nodes`, which must not be None."""
        assert self.nodes is not None
        return self.nodes


class Scores(struct.PyTreeNode):
    """The target's scores for one draft: row i for draft token i, row K for the token after it.

    `probs` is the distribution after processors, temperature, top-k and top-p. If `greedy`, it is a
    one-hot on the likeliest token.
    """

    logits: Array  # [K+1, V] float32, after the processors if there are any
    probs: Array  # [K+1, V] float32, the distribution from which tokens are drawn
    greedy: bool = struct.field(pytree_node=False, default=False)
    # whether there are processors, so that logits of excluded tokens may be -inf
    processed: bool = struct.field(pytree_node=False, default=False)


class Noise(NamedTuple):
    """The random keys of one row in one iteration; `decoding.keys` derives them."""

    draft: Array  # [K] keys, to draw draft token j
    accept: Array  # [K] keys, of the uniform number that decides whether draft token j is accepted
    correct: Array  # [K+1] keys, to draw the target's token after j accepted draft tokens


class Verdict(NamedTuple):
    """A row's result: the output continues with `num_accepted` draft tokens, then `next_token`."""

    num_accepted: Array  # [] int32, 0..length of the draft
    next_token: Array  # [] int32


class Trace(struct.PyTreeNode):
    """The record of all target calls. Column i is a row's i-th call; columns after its last are 0.

    A call emits accepted + 1 tokens. A row's last call emits `accepted` tokens if `ended_in_draft`,
    because the stop id was an accepted draft token. `source` is the index in the drafter's
    `sources` that drafted, None for a single drafter. `depth` is the largest number of layers that
    a token of the row went through in the call, None if every call runs all layers.

    `broken_drafts` counts drafts that were cut because a token was outside of the vocabulary, or
    its q was not a distribution. `failed` marks a row that ended without a stop id, because the
    target's logits were NaN or infinite. The last call of such a row emits `accepted` tokens.
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
    """The state of decoding a batch."""

    # Evolving.
    tokens: Array  # [B, 1+N] int32, see Context
    length: Array  # [B] int32, see Context
    active: Array  # [B] bool
    cache: Cache  # the target's
    hidden: Array | None  # [B, 1+N+K+1, D], see Context; with room for one more call at the end
    drafter: PyTree  # the drafter's state
    schedule: PyTree  # the schedule's state
    # Fixed.
    keys: Array  # [B, 4] each row's keys by purpose, see `decoding.keys`
    inputs: PyTree
    # Reported.
    log_probs: Array  # [B, N] float32
    trace: Trace
    vocab_size: int = struct.field(pytree_node=False)


class Row(NamedTuple):
    """One decoded text and its target calls; all lists but `tokens` have one entry per call."""

    tokens: list[int]
    proposed: list[list[int]]
    drafted: list[int]
    accepted: list[int]
    sources: list[int]  # the index of the source that proposed; [] if there is only one
    depths: list[int]  # layers of each call; [] if all calls run all layers


class DecodeOutput(NamedTuple):
    """The decoded texts of a batch.

    `tokens` exclude the start token, include the stop id that ends a row, and are 0 after `length`.
    `log_probs` are the target's log-probabilities of these tokens, 0 after `length`: log-softmax of
    its unmodified float32 logits, at temperature 1 and without filters.
    """

    tokens: Array  # [B, N] int32
    length: Array  # [B] int32, 0..N
    log_probs: Array  # [B, N] float32
    trace: Trace

    def made(self, index: int) -> int:
        """Returns the number of output tokens of a row."""
        return int(self.length[index])

    def row(self, index: int) -> Row:
        """Returns a row as plain values; the output must be on the host (`jax.device_get`)."""
        trace, calls = self.trace, self.trace.calls[index]
        tokens = self.tokens[index, : self.length[index]]
        columns = trace.proposed, trace.drafted, trace.accepted, trace.source, trace.depth
        values = ([] if x is None else x[index, :calls].tolist() for x in columns)
        return Row(tokens.tolist(), *values)


class Stop(NamedTuple):
    """A schedule's rule that ends a draft early, for one call of a drafter."""

    carry: PyTree  # the rule's state before the first draft token
    ask: Callable[[PyTree, Array, Array, Array], tuple[PyTree, Array]]
    # ask(carry, index [], probs [B, V], tokens [B]) -> (carry, stop [B] bool)
    cut: Callable[[Array], Array] | None = None  # acceptance estimates [B, K] -> draft length [B]


class Request(NamedTuple):
    """The arguments of a drafter: `want` draft tokens for each row, after the text of `context`."""

    context: Context
    keys: Array  # [B, K] random keys, one for each draft token, to be used unchanged
    want: Array  # [B] int32, 0..K, the most draft tokens that a row can use
    stop: Stop | None = None  # the rule that ends a draft early; None for no rule

    @property
    def longest(self) -> int:
        """K, the most tokens that a draft may have."""
        return self.keys.shape[1]


class Table(NamedTuple):
    """A kind of parameters without a model, such as n-gram counts, in a file of its own."""

    kind: str  # "ngram", "store" or "classifier"; `checkpoints.tables` describes their arrays


class Part(NamedTuple):
    """The calls of one model on `width` tokens in an iteration."""

    role: str  # of the model, see `Plan.models` and `of_depth`
    width: int  # tokens per call
    calls: float  # calls per iteration; a mean if their number varies


class TargetCall(NamedTuple):
    """A target call that was measured; a field is None if it is unknown or does not vary."""

    drafted: int | None = None  # draft tokens
    source: int | None = None  # the index in the drafter's `sources` that drafted
    depth: int | None = None  # the layers that the call ran

    @classmethod
    def each(
        cls, drafted: Iterable[int], sources: Iterable[int] = (), depths: Iterable[int] = ()
    ) -> list[TargetCall]:
        """Returns a text's calls from lists of each field; empty sources and depths are unknown."""
        fields = [list(field) for field in (drafted, sources, depths)]
        unknown = [None] * len(fields[0])
        return [cls(*call) for call in zip(*(field or unknown for field in fields), strict=True)]


UNKNOWN_CALL = TargetCall()


def of_depth(depth: int | None) -> str:
    """Returns the role of target calls through `depth` layers: "target/6", or "target" for None."""
    return "target" if depth is None else f"target/{depth}"


def verifies(role: str) -> bool:
    """Returns whether calls of this role are target calls in speculation."""
    return role.partition("/")[0] == "target"


class SamplingRule(abc.ABC):
    """A rule that turns logits into the distribution from which tokens are drawn.

    Subclasses are frozen dataclasses."""

    greedy: ClassVar[bool] = False  # whether the likeliest token is always taken

    @abc.abstractmethod
    def probabilities(
        self, logits: Array, positions: Array | None = None, history: History | None = None
    ) -> Array:
        """Returns the distributions [..., V] of logits [..., V] float32.

        `positions` [...] int32 are the indices of these tokens in the output. `history` is the text
        before each token, for rules that read it.
        """


class LogitsProcessor(abc.ABC):
    """A rule that changes the logits of a token by the text before it; a frozen dataclass."""

    ids: ClassVar[tuple[int, ...]] = ()  # token ids in its settings, which must be valid

    @abc.abstractmethod
    def process(self, logits: Array, history: History) -> Array:
        """Returns changed logits [V] float32, with -inf for each excluded token.

        `history` is the text before the token, with `tokens` [M] and `length` [].
        """
