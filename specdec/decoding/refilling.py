"""Decoding in rows that do not wait for each other: a finished row gets the next text."""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout

from specdec import decoding
from specdec.common.values import UsageError
from specdec.decoding.program import GivenBatch, Program, ProgramCall, batch_shapes
from specdec.models.contract.inputs import lengths_of
from specdec.plan import Plan
from specdec.types import Array, DecodeOutput, DecodeState, PyTree


class _Batch:
    """The outputs of a batch, of which some texts may be finished before others."""

    def __init__(self, batch: GivenBatch, shapes: DecodeOutput):
        rows = len(batch.live)
        self.keys = np.asarray(jax.random.key_data(batch.keys))
        self.inputs, self.live = jax.tree.map(np.asarray, batch.inputs), batch.live
        self.left = int(np.sum(batch.live))  # texts that are not finished
        self.output: DecodeOutput = jax.tree.map(
            lambda x: np.zeros((rows, *x.shape[1:]) if x.shape else (), x.dtype), shapes
        )

    def put(self, row: int, output: DecodeOutput, index: int) -> None:
        """Copies row `index` of an output to row `row` of this batch."""
        for target, source in zip(*map(jax.tree.leaves, (self.output, output)), strict=True):
            if target.ndim:
                target[row] = source[index]
        self.left -= 1

    def finished(self) -> DecodeOutput:
        """Returns the output; its steps are those of the text with the most target calls."""
        trace = self.output.trace
        return self.output._replace(trace=trace.replace(steps=np.max(trace.calls, initial=0)))


class _Text(NamedTuple):
    """A text of a batch."""

    batch: _Batch
    row: int
    length: int  # the tokens of its input, without padding; 0 if inputs have no tokens


class _Stream:
    """The texts of batches that wait to be decoded, in order."""

    def __init__(
        self,
        batches: Iterable[GivenBatch],
        shapes: DecodeOutput,
        widths: Sequence[int],
        pad_id: int,
    ):
        self.open: collections.deque[_Batch] = collections.deque()  # not yielded yet
        self._batches, self._shapes = iter(batches), shapes
        self._widths, self._pad_id = widths, pad_id
        self._waiting: list[_Text] = []

    def more(self, ahead: int = 1) -> bool:
        """Returns whether a text waits; reads batches until `ahead` texts wait."""
        while len(self._waiting) < ahead and (batch_of_texts := next(self._batches, None)):
            self.open.append(batch := _Batch(batch_of_texts, self._shapes))
            lengths = lengths_of(batch.inputs, self._pad_id)
            self._waiting += [
                _Text(batch, int(row), int(lengths[row])) for row in np.flatnonzero(batch.live)
            ]
        return bool(self._waiting)

    def take(self, count: int, ahead: int) -> list[_Text]:
        """Returns at most `count` texts: the next one, and preferably others of its width.

        If there are too few, narrower texts follow, which are padded, and then wider ones.
        """
        if not self.more(ahead):
            return []
        width_of_next = self.width(self._waiting[:1])

        def order(text: _Text) -> tuple[bool, int]:
            width = self.width([text])
            return width > width_of_next, -width

        chosen = sorted(self._waiting, key=order)[:count]
        places = {(id(text.batch), text.row) for text in chosen}
        self._waiting = [x for x in self._waiting if (id(x.batch), x.row) not in places]
        return chosen

    def width(self, texts: Sequence[_Text]) -> int:
        """Returns the smallest width that holds all of some texts."""
        longest = max((text.length for text in texts), default=0)
        return next(width for width in self._widths if width >= longest)

    def due(self) -> Iterator[DecodeOutput]:
        """Yields the outputs of the first batches, up to the first that is not finished."""
        while self.open and not self.open[0].left:
            yield self.open.popleft().finished()


class Refilled:
    """Decodes a stream of batches in B rows, which are refilled as their texts end.

    One program prefills R = B / 4 texts. Another one writes them into the finished rows of the
    state, and runs the token loop until R rows are finished again. The state's memory is donated
    from call to call, so that no cache is copied. Each text has the output that it has in a batch
    of its own.
    """

    programs = 2

    def __init__(
        self, plan: Plan, rows: int, widths: Sequence[int], *, prefix: Array | None = None
    ):
        if rows < 2:
            raise ValueError(
                f"REFILL needs several rows and BATCH_SIZE is {rows}; give --batch_size=16, or "
                "leave out REFILL"
            )
        self.rows, self.widths, self.count = rows, tuple(widths), max(1, rows // 4)
        self._plan, self._target = plan, plan.target
        self._begin = Program(self._prefilled)
        self._loop: Program | None = None
        self._prefix = None if prefix is None else prefix[:1]

    @property
    def seconds(self) -> float:
        """The seconds of all compilations."""
        return self._begin.seconds + (self._loop.seconds if self._loop else 0.0)

    def parts(
        self, params: PyTree, keys: PyTree = None, inputs: PyTree = None
    ) -> Iterator[ProgramCall]:
        """Yields the program of the token loop; it does not depend on the shapes of batches."""
        states = [self._shapes(params, rows) for rows in (self.rows, self.count)]
        if self._loop is None:
            # In another layout than the loop's, each call would copy all caches to it and back.
            best = [jax.tree.map(_any_layout, state) for state in states]
            refill = functools.partial(decoding.refill, plan=self._plan)
            shardings = {"in_shardings": (None, *best, None, None), "out_shardings": best[0]}
            self._loop = Program(refill, donate=[1], **shardings)
        rows, unfinished = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ([self.count], []))
        yield self._loop, (params, *states, rows, unfinished)

    def _prefill(self, params: PyTree, keys: Array, inputs: PyTree, live: Array) -> DecodeState:
        prefix = self._prefix
        if prefix is not None:
            prefix = jnp.tile(prefix, (len(keys), 1))
        active = self._target.active(inputs) & live
        return decoding.prefill(params, keys, inputs, self._plan, active=active, prefix=prefix)

    def _prefilled(self, params: PyTree, keys: Array, inputs: PyTree, live: Array) -> DecodeState:
        """Prefills some texts, and pads their state to the shapes for the longest inputs."""
        new = self._prefill(params, keys, inputs, live)
        shapes = self._shapes(params, self.count)
        return decoding.widened(new, shapes, self._target.pad_id)

    def _shapes(self, params: PyTree, rows: int) -> DecodeState:
        """Returns the shapes of the state of some rows with the longest inputs."""
        batch = batch_shapes(self._target, rows, self.widths[-1])
        live = jax.ShapeDtypeStruct([rows], bool)
        return jax.eval_shape(self._prefill, params, *batch, live)

    def outputs(
        self, params: PyTree, batches: Iterable[GivenBatch]
    ) -> Iterator[tuple[DecodeOutput, float]]:
        """Yields the output of each batch, in order, and the seconds since the last one.

        At most 4 B texts are read ahead, in order to prefill texts of one width together.
        """
        ((loop, arguments),) = self.parts(params)
        go_on = loop.compile(*arguments)
        layouts = go_on.input_formats[0][1:3]  # of both states
        state, seconds = decoding.vacant(arguments[1]), 0.0
        shapes = jax.eval_shape(decoding.output, arguments[1])
        stream = _Stream(batches, shapes, self.widths, self._target.pad_id)
        rows: list[_Text | None] = [None] * self.rows
        while (texts := stream.take(self.count, 4 * self.rows)) or any(rows):
            new = self._texts(texts, stream.width(texts))
            begin = self._begin.compile(params, *new)
            start = time.perf_counter()
            places, unfinished = self._places(texts, rows, stream.more())
            both = map(_laid_out, (state, begin(params, *new)), layouts)
            state = go_on(params, *both, places, unfinished)
            self._collect(state, rows)
            seconds += time.perf_counter() - start
            for output in stream.due():
                decoding.check_finite(output, self._target)
                yield output, seconds
                seconds = 0.0
        for output in stream.due():  # batches without a text
            yield output, seconds

    def _texts(self, texts: Sequence[_Text], width: int) -> tuple[Array, Array, Array]:
        """Returns keys, inputs, and bool for the rows that have a text, of R rows each."""
        keys = np.zeros([self.count, 2], np.uint32)
        pad_id = self._target.pad_id
        inputs = jax.tree.map(
            lambda x: np.full(x.shape, pad_id if x.dtype == jnp.int32 else 0, x.dtype),
            self._target.inputs_shape(self.count, width),
        )
        for i, text in enumerate(texts):
            keys[i] = text.batch.keys[text.row]
            both = map(jax.tree.leaves, (inputs, text.batch.inputs))
            for target, source in zip(*both, strict=True):
                size = text.length if target.dtype == jnp.int32 else target.shape[1]
                if target.ndim > 2 and source.shape[1] > size:
                    raise UsageError(
                        f"REFILL has room for {size} pictures in each prompt of a task, and a "
                        f"batch has {source.shape[1]}; leave out REFILL"
                    )
                target[i, :size] = source[text.row, :size]
        wrapped = jax.random.wrap_key_data(jnp.array(keys), impl="threefry2x32")
        live = jnp.array(np.arange(self.count) < len(texts))
        return wrapped, jax.tree.map(jnp.array, inputs), live

    def _places(
        self, texts: Sequence[_Text], rows: list[_Text | None], more: bool
    ) -> tuple[Array, Array]:
        """Puts texts into vacant `rows`; returns their numbers, and the `unfinished` of `refill`.

        If `more` texts wait, the loop stops as soon as there is room for them.
        """
        vacant = [row for row, text in enumerate(rows) if text is None][: self.count]
        for row, text in zip(vacant, texts, strict=False):
            rows[row] = text
        unfinished = 0
        if more:  # until there is room for the next texts
            unfinished = self.rows - self.count if rows.count(None) < self.count else self.rows
        return jnp.array(vacant, jnp.int32), jnp.array(unfinished, jnp.int32)

    def _collect(self, state: DecodeState, rows: list[_Text | None]) -> None:
        """Copies the outputs of finished rows to their batches, and makes the rows vacant."""
        unread = {"cache", "hidden", "drafter", "schedule", "keys", "inputs"}
        host = jax.device_get(state.replace(**dict.fromkeys(unread, ())))
        output = decoding.output(host)
        for index, text in enumerate(rows):
            if text is not None and not host.active[index]:
                text.batch.put(text.row, output, index)
                rows[index] = None


def _is_key(leaf: Array | jax.ShapeDtypeStruct) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _any_layout(leaf: jax.ShapeDtypeStruct) -> Format | None:
    """Lets the compiler choose an array's memory layout; returns None for keys, which have none."""
    return None if _is_key(leaf) else Format(Layout.AUTO)


def _laid_out(state: DecodeState, layouts: PyTree) -> DecodeState:
    """Moves a state to the memory layouts of a program; arrays that have them are not copied."""

    def put(leaf: Any, layout: Format) -> Array:
        is_placed = _is_key(leaf) or leaf.format == layout
        return leaf if is_placed else jax.device_put(leaf, layout)

    return jax.tree.map(put, state, layouts)
