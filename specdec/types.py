"""The records that flow between the parts, and the protocols of the parts.

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

from collections.abc import Callable, Mapping
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


class Params(NamedTuple):
    """The parameters of everything that has some: three trees, one argument.

    `drafter` is the tree of the drafter's model or table; of several, a dict of them by role.
    """

    target: PyTree
    drafter: PyTree = ()
    schedule: PyTree = ()


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
    # The target itself, to which `Params.target` belongs.
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
    """One text and how it came about, as plain values; the last three have one entry per call."""

    tokens: list[int]
    proposed: list[list[int]]
    drafted: list[int]
    accepted: list[int]


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

    def row(self, index: int) -> Row:
        """One text of an output that is on the host."""
        trace, calls = self.trace, self.trace.calls[index]
        tokens = self.tokens[index, : self.length[index]]
        made = (x[index, :calls].tolist() for x in (trace.proposed, trace.drafted, trace.accepted))
        return Row(tokens.tolist(), *made)

    def sources(self, index: int) -> list[int]:
        """Which of the drafter's sources proposed in each call of a text; [] if it has but one."""
        return self._of_calls(self.trace.source, index)

    def depths(self, index: int) -> list[int]:
        """The layers of each call of a text; [] if calls go through all."""
        return self._of_calls(self.trace.depth, index)

    def _of_calls(self, column: Array | None, index: int) -> list[int]:
        return [] if column is None else column[index, : self.trace.calls[index]].tolist()


class Stop(NamedTuple):
    """A schedule's `stop`, bound to its parameters and to where it starts."""

    carry: PyTree
    ask: Callable[[PyTree, Array, Array, Array], tuple[PyTree, Array]]
    # ask(carry, index [], probs [B, V], tokens [B]) -> (carry, stop [B] bool)
    cut: Callable[[Array], Array] | None = None  # kept [B, K] -> [B], the schedule's, if it has one


class Target(Protocol):
    """A model, as two pure functions over an explicit parameter tree.

    Five more members are optional:

      active(inputs) -> [B] bool    rows that hold a text; without it all do
      stop_ids: tuple[int, ...]     what ends a text; without it `Plan.stop_ids` must say
      pad_id: int                   what fills up inputs, prefixes and targets; without it 0
      exact: bool                   whether it computes the model it names; a wrapper that skips
                                    some of it says False, and who says nothing is not exact
      logits(params, hidden)        [B, T, D] states -> [B, T, V], as `decode` projects them

    `decode` may have one more argument, `ancestors` [T, T] or [B, T, T] bool, for blocks that are
    not text: see `models.blocks`. Only drafters that feed such blocks need it. Two more are for who
    runs some of its layers:

      layers (a, b)                 runs layers a .. b - 1 only, and writes the keys and values of
                                    these; `ModelOutput.stream` is what the last of them left, and
                                    the logits are what the model's own head makes of that
      resume [B, T, D]              the stream of layer a - 1, where a > 0

    (0, e) and then (e, num_layers) on what that left is the whole call. The second one begins at
    the same length of the cache: each of them lengthens it by T.

    A target whose tokens may leave before the last layer says so in `ModelOutput.depth`, and has

      whole: Target                 itself without that: what it is measured against
      depths: tuple[int, ...]       how many layers a call may go through, ascending
      always(depth) -> Target       itself with calls that all go through so many, for timing; what
                                    it says that `decode` reads, and of its cache, is of these
    """

    def init(self, key: Array) -> PyTree:
        """Random parameters."""
        ...

    def axes(self) -> PyTree:
        """The parameters' logical axis names: the same tree, a tuple of names for each array."""
        ...

    def start(self, inputs: PyTree) -> Array:
        """The token that each row's output begins behind, [B] int32."""
        ...

    def prefill(self, params: PyTree, inputs: PyTree, capacity: int) -> Any:
        """Reads the inputs; a `Cache` of length 0 with room for `capacity` output positions."""
        ...

    def decode(self, params: PyTree, tokens: Array, cache: Any) -> tuple[ModelOutput, Any]:
        """Feeds [B, T] tokens at positions cache.length + (0..T-1); the cache's length grows by T.

        Position 0 is that of the start token, whatever a model keeps in front of it.
        """
        ...


class Model(Target, Protocol):
    """A target of some family (`models.families`), with what commands need to know: a frozen
    dataclass with the fields `config`, `axis_rules`, `layout`, `orders` and `weights`.

    config: the architecture, a frozen dataclass of plain values.
    axis_rules: how its arrays are divided over a mesh, () for not at all.
    layout: how its parameters are kept in memory, "checkpoint" for as they are stored.
    orders: how products are computed with them, see `models.products`; of no influence on how they
      are kept.
    weights: "int8" for kernels in eight bits, which is another model than the checkpoint's.
    pad_id, stop_ids, exact: see `Target`.
    """

    pad_id: ClassVar[int]
    stop_ids: ClassVar[tuple[int, ...]]
    exact: ClassVar[bool]

    @property
    def config(self) -> Any: ...

    @property
    def axis_rules(self) -> AxisRules: ...

    @property
    def layout(self) -> str: ...

    @property
    def orders(self) -> tuple[tuple[int, str], ...]: ...

    @property
    def weights(self) -> str: ...

    @property
    def vocab_size(self) -> int:
        """V, with ids that only pad the table."""
        ...

    @property
    def dtype(self) -> str:
        """The dtype of matrix products and of the cache, 'float32' or 'bfloat16'."""
        ...

    @property
    def num_layers(self) -> int:
        """Layers that a call of `decode` runs through."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes that make it small or large, by the name of the config's field."""
        ...

    def active(self, inputs: PyTree) -> Array:
        """[B] bool: rows that hold a text, and not only padding."""
        ...

    def laid_out(self, calls: Mapping[int, float], device: Any = None) -> Any:
        """This model in the layout that is fastest for its calls.

        calls: the tokens of a call, of all rows -> how often there is one.
        device: a `models.device.Device`; None for the default device.
        """
        ...

    def stored(self) -> Any:
        """This model with parameters as a checkpoint has them."""
        ...

    def from_stored(self, params: PyTree) -> PyTree:
        """Parameters as a checkpoint has them, in this layout."""
        ...

    def to_stored(self, params: PyTree) -> PyTree:
        """The inverse of `from_stored`, bit for bit."""
        ...

    def read_by_decode(self, params: PyTree) -> PyTree:
        """The part of the parameters that a call of `decode` reads as a whole: its bytes, and its
        numbers times 2 FLOPs a token, are what a step costs."""
        ...

    def cache_bytes(
        self, rows: int, slots: int, inputs_length: int, mesh: Mapping[str, int] | None = None
    ) -> int:
        """Bytes of keys and values on one device; `mesh` has the sizes of its axes."""
        ...


class Table(NamedTuple):
    """Parameters that are no model's: arrays that `tables` reads and writes."""

    kind: str  # "ngram", "store" or "classifier"; what is in a table of a kind, `tables` says


class Part(NamedTuple):
    """One kind of work in an iteration: calls of one model, each `width` tokens wide."""

    role: str  # of the model, see `Plan.models` and `roles.of_depth`
    width: int
    calls: float  # in an iteration; a mean where that varies


class Drafter(Protocol):
    """Proposes tokens. `params` is always the whole `Params`.

    A drafter that runs models has three more methods:

      models() -> {role: Model}             those whose parameters are in `Params.drafter`
      with_models({role: Model}) -> itself  with these instead
      parts(length) -> tuple[Part, ...]     the calls that a draft of `length` tokens takes

    One that looks something up has `tables() -> {role: Table}`, which are in `Params.drafter` too.
    One that drafts a block of tokens, none of which has led to another, has `block`, how many it
    drafts at most. One that is made of others has `sources`, their names; its drafts say which of
    them proposed (`Draft.source`), and it is asked for `parts(length, source)`, with length 0 for a
    call in which nothing was drafted. One that reads
    `Context.hidden` has `reads_hidden`, True. One whose calls are not plain calls of `decode` has

      timed(target) -> {role: call}         call(trees, tokens [B, T], cache) -> (tokens, cache)

    for the roles of its `parts`: what such a call takes is measured with that, `trees` by role.

    One that runs layers of the target gives a `Draft.resume`. A part that is not of one of its
    models is a call on the target's cache, and `timed` says what; it has two more methods,

      partial_models(target) -> {role: Model}  the layers that such a part is, as a model
      itself(target) -> a drafter              of its class, with all layers of the target
    """

    def init(self, params: Params, context: Context) -> PyTree: ...

    def propose(
        self,
        params: Params,
        keys: Array,  # [B, K] finished keys, one per draft token
        context: Context,
        state: PyTree,
        want: Array,  # [B] int32, 0..K: how many tokens are of use
        stop: Stop | None,
    ) -> tuple[Draft, PyTree]: ...


class Verifier(Protocol):
    """Decides about one row of a draft; see `verifiers` for what it may declare."""

    exact: ClassVar[bool]  # whether the output has the target's law; who says nothing is not

    def accept(self, draft: Draft, scores: Scores) -> Array:
        """[K] the probability of accepting draft token i, given that those before it were."""
        ...

    def residual(self, draft: Draft, scores: Scores, n: Array) -> Array:
        """[V] the distribution of the next token after n accepted ones, n < length."""
        ...


class Schedule(Protocol):
    """Chooses draft lengths. It may also have a method

      stop(params, carry, index [], probs [B, V], tokens [B]) -> (carry, stop [B])

    asked after each draft token with `Params.schedule` (its carry starts as the schedule's state).
    A schedule may stop *after* a token it has seen; it must never have one discarded: dropping a
    token because of its value biases the output under sampling. A forecast can replay a rule that
    also has `stops(params, signals) -> stop`, see `schedules.stopping`.

    Or it has a method

      cut(kept [B, K] float32) -> [B] int32

    which a drafter of blocks asks how many tokens are enough, if it knows before it draws any how
    probable each is to be kept, those before it kept. It may not be told what depends on a token.

    One that has parameters has `tables() -> {role: Table}`, which are in `Params.schedule`.

    Drafting ends as well once each row has what it wants, or has drafted a stop id. With one bucket
    and no `stop` it is a loop of K steps, unless `stop_at_end` is True.
    """

    @property
    def buckets(self) -> tuple[int, ...]:
        """Static ascending draft lengths, the last one is K. The target call has the width of the
        smallest that holds what was drafted; with a bucket of 0 nobody drafts if nothing is wanted.
        """
        ...

    def init(self, batch: int) -> PyTree: ...

    def want(self, state: PyTree) -> Array:
        """[B] int32: how many tokens to draft next."""
        ...

    def update(self, state: PyTree, draft: Draft, verdict: Verdict) -> PyTree:
        """Learns from the outcome; fields have a leading B, and the draft its bucket's length."""
        ...


class SamplingRule(Protocol):
    """Turns logits into the distribution that is sampled from; see `sampling`."""

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        ...

    def probabilities(
        self, logits: Array, positions: Array | None = None, history: History | None = None
    ) -> Array:
        """[..., V] logits -> [..., V], of the output tokens with these indices [...]."""
        ...


class LogitsProcessor(Protocol):
    """Changes the logits of a token by the text before it: a frozen dataclass. It may also have
    `ids`, the tokens that it names, which a vocabulary must have."""

    def process(self, logits: Array, history: History) -> Array:
        """[V] logits -> [V], -inf for an excluded token; the history has `tokens` [M] and `length`
        []."""
        ...
