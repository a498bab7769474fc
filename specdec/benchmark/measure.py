"""The protocol: everything in one process, in turns, so that a slow minute slows all alike."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.benchmark.programs import Programs
from specdec.decoding import row_keys
from specdec.types import PyTree

WARM_UPS = 3
TEXTS_PER_TIMING = 4  # the parts are timed at every fourth text: they depend on shapes alone


class Generation(NamedTuple):
    """One text, decoded once. `tokens`, `drafted` and `accepted` are as `specdec decode` has them:
    ids with EOS, and one entry per target call."""

    mode: str  # "alone" or "speculative"
    text: int  # the example's index
    repeat: int
    seconds: float
    calls: int
    tokens: list[int]
    drafted: list[int]
    accepted: list[int]


class Elsewhere(NamedTuple):
    """A text of another split, decoded by speculation and not timed; fields as in `Generation`."""

    split: str
    text: int
    calls: int
    tokens: list[int]
    drafted: list[int]
    accepted: list[int]


class Timing(NamedTuple):
    """One run of a part, on a text's inputs."""

    part: str
    text: int
    repeat: int
    seconds: float
    steps: int  # model calls in those seconds


def measure(*arguments: Any, **options: Any) -> Iterator[Generation | Timing]:
    """All of `measure_by_text`, one text after the other."""
    return itertools.chain.from_iterable(measure_by_text(*arguments, **options))


def measure_by_text(
    programs: Programs,
    params: PyTree,
    texts: Mapping[int, np.ndarray],
    *,
    seed: int,
    repeats: int,
    skip: Collection[tuple[int, int]] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Iterator[Generation | Timing]]:
    """Times each text, first to last, `repeats` times: the target alone and speculation by turns.

    Whichever came second for a text comes first for the next one, and first for the same text in
    the next repeat. A repeat is another sample of each text: `row_keys(seed, text, repeat)`.

    Args:
      programs: compiled ones.
      params: their trees, by role.
      texts: example index -> inputs [1, S] int32.
      skip: pairs of a repeat and a text that have been measured before.
      clock: seconds; what lies between two readings is one program from call to finished result.

    Raises:
      RuntimeError: something was compiled while the clock ran.

    Returns:
      For each text the iterator of its records; each is to be exhausted before the next is taken,
      and other measurements may have their turn in between.
    """
    params = jax.device_put(params)
    on_device = {text: jax.device_put(inputs) for text, inputs in texts.items()}

    def one_text(repeat: int, place: int, text: int, inputs: Any) -> Iterator[Generation | Timing]:
        # First the parts: a text with both generations then has all that is measured of it.
        if place % TEXTS_PER_TIMING == 0:
            for part, seconds in _timed_parts(clock, programs, params, inputs):
                yield Timing(part, text, repeat, seconds, programs.parts[part].steps)
        keys = jax.block_until_ready(row_keys(seed, jnp.array([text]), repeat))
        modes = list(programs.generations)
        for mode in modes if (place + repeat) % 2 == 0 else reversed(modes):
            output, seconds = _timed(clock, programs.generations[mode], params, keys, inputs)
            yield _generation(mode, text, repeat, seconds, output)

    _warm_up(programs, params, seed, on_device)
    for repeat in range(repeats):
        for place, (text, inputs) in enumerate(on_device.items()):
            if (repeat, text) not in skip:
                yield one_text(repeat, place, text, inputs)


def decode_elsewhere(
    programs: Programs, params: PyTree, texts: Mapping[int, np.ndarray], *, seed: int, split: str
) -> Iterator[Elsewhere]:
    """Decodes texts of another split by speculation: the acceptance that is to be expected."""
    params = jax.device_put(params)
    for text, inputs in texts.items():
        keys = row_keys(seed, jnp.array([text]), 0)
        output = programs.generations["speculative"](params, keys, inputs)
        yield Elsewhere(split, text, **_decoded(output))


def profile(
    programs: Programs, params: PyTree, texts: Mapping[int, np.ndarray], *, seed: int, path: str
) -> None:
    """Writes an xprof trace of one text's generations, each under its mode's name; in it operations
    carry the scopes draft, verify and accept. Nothing is timed: tracing takes time itself."""
    params = jax.device_put(params)
    text, inputs = next(iter(texts.items()))
    keys = row_keys(seed, jnp.array([text]), 0)
    _warm_up(programs, params, seed, {text: inputs})
    with jax.profiler.trace(path):
        for mode, generate in programs.generations.items():
            with jax.profiler.TraceAnnotation(mode):
                jax.block_until_ready(generate(params, keys, inputs))


def _warm_up(programs: Programs, params: PyTree, seed: int, inputs: Mapping[int, Any]) -> None:
    """First runs are slower: pages, caches, threads."""
    for text in list(inputs)[:1]:
        keys = row_keys(seed, jnp.array([text]), 0)
        for _ in range(WARM_UPS):
            for generate in programs.generations.values():
                jax.block_until_ready(generate(params, keys, inputs[text]))
            list(_timed_parts(lambda: 0.0, programs, params, inputs[text]))


def _timed_parts(clock, programs: Programs, params, inputs) -> Iterator[tuple[str, float]]:
    given: dict[str | None, Any] = {None: inputs}
    for name, part in programs.parts.items():
        given[name], seconds = _timed(clock, part.function, params, given[part.source])
        yield name, seconds


def _timed(clock, function: Callable, *arguments) -> tuple[Any, float]:
    with _no_compilation():
        start = clock()
        result = jax.block_until_ready(function(*arguments))
        return result, clock() - start


@contextlib.contextmanager
def _no_compilation():
    """Refuses a figure that has a compilation in it."""
    events = []

    def listen(event: str, duration_secs: float, **details) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(details.get("fun_name", "a program"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    if events:
        raise RuntimeError(
            f"{events[0]} was compiled while the clock ran; compile every shape before measuring"
        )


def _generation(mode: str, text: int, repeat: int, seconds: float, output) -> Generation:
    return Generation(mode, text, repeat, seconds, **_decoded(output))


def _decoded(output) -> dict[str, Any]:
    """What was decoded for one text."""
    tokens, length, _, trace = jax.device_get(output)
    calls = int(trace.calls[0])
    return {
        "calls": calls,
        "tokens": tokens[0, : length[0]].tolist(),
        "drafted": trace.drafted[0, :calls].tolist(),
        "accepted": trace.accepted[0, :calls].tolist(),
    }
