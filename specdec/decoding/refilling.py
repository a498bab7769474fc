"""A program whose rows do not wait for each other: a finished row gets the next text."""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec import decoding
from specdec.decoding.program import DecodeProgram, GivenBatch, batch_shapes
from specdec.plan import Plan
from specdec.types import Array, DecodeOutput, DecodeState, PyTree


class _Batch:
    """A batch of which some texts may be finished before others.

    Attributes:
      left: the number of texts that are not finished.
      output: that of the finished ones.
    """

    def __init__(self, given: GivenBatch, shapes: DecodeOutput):
        rows = len(given.live)
        self.keys = np.asarray(jax.random.key_data(given.keys))
        self.inputs, self.live = np.asarray(given.inputs), given.live
        self.left = int(np.sum(given.live))
        self.output: DecodeOutput = jax.tree.map(
            lambda x: np.zeros((rows, *x.shape[1:]) if x.shape else (), x.dtype), shapes
        )

    def put(self, row: int, output: DecodeOutput, place: int) -> None:
        """Copies the text of row `place` of an output."""
        for own, found in zip(*map(jax.tree.leaves, (self.output, output)), strict=True):
            if own.ndim:
                own[row] = found[place]
        self.left -= 1

    def finished(self) -> DecodeOutput:
        """Returns the output; its steps are those of the text with the most target calls."""
        trace = self.output.trace
        return self.output._replace(trace=trace.replace(steps=np.max(trace.calls, initial=0)))


class _Text(NamedTuple):
    """A text of a batch."""

    batch: _Batch
    row: int


class _Stream:
    """The texts of batches, in order.

    Attributes:
      open: the batches that are not finished or not yielded.
    """

    def __init__(self, batches: Iterable[GivenBatch], shapes: DecodeOutput):
        self.open: collections.deque[_Batch] = collections.deque()
        self._batches, self._shapes = iter(batches), shapes
        self._waiting: collections.deque[_Text] = collections.deque()

    def more(self) -> bool:
        """Returns whether a text waits; reads the next batch if necessary."""
        while not self._waiting and (given := next(self._batches, None)):
            self.open.append(batch := _Batch(given, self._shapes))
            self._waiting.extend(_Text(batch, int(row)) for row in np.flatnonzero(batch.live))
        return bool(self._waiting)

    def take(self, count: int) -> list[_Text]:
        """Returns the next texts, at most `count`."""
        taken: list[_Text] = []
        while len(taken) < count and self.more():
            taken.append(self._waiting.popleft())
        return taken

    def due(self) -> Iterator[DecodeOutput]:
        """Yields the outputs of the first batches, up to the first that is not finished."""
        while self.open and not self.open[0].left:
            yield self.open.popleft().finished()


class Refilled(DecodeProgram):
    """Decodes a stream of batches in B rows, which are refilled as their texts end.

    One program prefills R = B / 4 texts, writes them into the finished rows of the state, and runs
    the token loop until R rows are finished again. The state's memory is donated from call to call,
    so that no cache is copied. Each text has the output that it has in a batch of its own.
    """

    def __init__(self, plan: Plan, rows: int, length: int, *, prefix: Array | None = None):
        """Compiles nothing yet.

        Args:
          plan: what decodes.
          rows: B, at least 2.
          length: S, the longest inputs; shorter ones are padded.
          prefix: [B, P] int32, the tokens that each output begins with, or None.

        Raises:
          ValueError: there is only one row.
        """
        if rows < 2:
            raise ValueError(
                f"REFILL needs several rows and BATCH_SIZE is {rows}; give --batch_size=16, or "
                "leave out REFILL"
            )
        self.rows, self.length, self.count = rows, length, max(1, rows // 4)
        super().__init__(
            plan,
            prefix=None if prefix is None else prefix[: self.count],
            function=decoding.refill,
            donate=(1,),
        )
        self._plan, self._prefix = plan, prefix

    def _shapes(self, params: PyTree) -> tuple[DecodeState, decoding.Refills]:
        """Returns the shapes of the state, and of what a call gives it."""
        begin = functools.partial(decoding.prefill, plan=self._plan, prefix=self._prefix)
        state = jax.eval_shape(begin, params, *batch_shapes(self.rows, self.length))
        refills = jax.eval_shape(functools.partial(self._refills, [], [None] * self.rows, False))
        return state, refills

    def _lower(self, params: PyTree, keys: Array, inputs: PyTree) -> Any:
        return self._jitted.lower(params, *self._shapes(params))

    def lower(self, params: PyTree, *_: PyTree) -> Any:
        """Traces; the shapes of batches do not matter."""
        return super().lower(params, *batch_shapes(self.rows, self.length))

    def outputs(
        self, params: PyTree, batches: Iterable[GivenBatch]
    ) -> Iterator[tuple[DecodeOutput, float]]:
        """Yields the output of each batch, in order, and the seconds since the last one.

        Batches are read as rows become free, and the next one before the last texts are decoded.

        Args:
          params: the parameters.
          batches: of any numbers of rows.
        """
        execute = self.compile(params, *batch_shapes(self.rows, self.length))
        shapes = self._shapes(params)[0]
        state, seconds = decoding.vacant(shapes), 0.0
        stream = _Stream(batches, jax.eval_shape(decoding.output, shapes))
        rows: list[_Text | None] = [None] * self.rows
        while (texts := stream.take(self.count)) or any(rows):
            start = time.perf_counter()
            state = execute(params, state, self._refills(texts, rows, stream.more()))
            self._collect(state, rows)
            seconds += time.perf_counter() - start
            for output in stream.due():
                decoding.check_finite(output, self._target)
                yield output, seconds
                seconds = 0.0
        for output in stream.due():  # batches without a text
            yield output, seconds

    def fetch(
        self, params: PyTree, keys: Array, inputs: PyTree, *, everywhere: bool = False
    ) -> tuple[DecodeOutput, float]:
        """Returns the output of one batch, all of whose rows are texts."""
        live = np.ones(len(inputs), bool)
        return next(self.outputs(params, [GivenBatch(keys, inputs, live)]))

    def _refills(
        self, texts: list[_Text], rows: list[_Text | None], more: bool
    ) -> decoding.Refills:
        """Returns the next texts for the device, and notes in `rows` where they go."""
        vacant = [row for row, text in enumerate(rows) if text is None][: self.count]
        keys = np.zeros([self.count, 2], np.uint32)
        inputs = np.full([self.count, self.length], self._target.pad_id, np.int32)
        for i, text in enumerate(texts):
            rows[vacant[i]] = text
            given = text.batch.inputs[text.row]
            keys[i], inputs[i, : len(given)] = text.batch.keys[text.row], given
        left = 0
        if more:  # until there is room for the next texts
            left = self.rows - self.count if rows.count(None) < self.count else self.rows
        return decoding.Refills(
            jnp.array(vacant, jnp.int32),
            jax.random.wrap_key_data(jnp.array(keys), impl="threefry2x32"),
            jnp.array(inputs),
            jnp.array(np.arange(self.count) < len(texts)),
            jnp.array(left, jnp.int32),
        )

    def _collect(self, state: DecodeState, rows: list[_Text | None]) -> None:
        """Copies the outputs of finished rows to their batches, and makes the rows vacant."""
        unread = {"cache", "hidden", "drafter", "schedule", "keys", "inputs"}
        host = jax.device_get(state.replace(**dict.fromkeys(unread, ())))
        output = decoding.output(host)
        for place, text in enumerate(rows):
            if text is not None and not host.active[place]:
                text.batch.put(text.row, output, place)
                rows[place] = None
