"""The timer of this project. Runs are interleaved, so that a slow minute affects all of them."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TypeAlias, TypeVar

import jax

Clock: TypeAlias = Callable[[], float]  # seconds
T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


def timed(
    run: Callable[..., T], *arguments: object, clock: Clock = time.perf_counter
) -> tuple[T, float]:
    """Returns the result of a call, when it is finished, and the call's seconds."""
    with _no_compilation():
        start = clock()
        result = jax.block_until_ready(run(*arguments))
        return result, clock() - start


def interleaved(
    runs: Mapping[Key, Callable[[], Callable[[], object]]],
    rounds: int,
    *,
    warm_ups: int = 0,
    clock: Clock = time.perf_counter,
    done: Callable[[], object] = lambda: None,
) -> dict[Key, list[float]]:
    """Times every run once in each round; returns key -> seconds of each round.

    A value of `runs` is called untimed and returns the function to time. Warm-ups are not counted.
    """
    seconds: dict[Key, list[float]] = defaultdict(list)
    for turn in range(-warm_ups, rounds):
        for key, ready in runs.items():
            taken = timed(ready(), clock=clock)[1]
            if turn >= 0:
                seconds[key].append(taken)
            done()
    return dict(seconds)


@contextlib.contextmanager
def _no_compilation() -> Iterator[None]:
    """Raises RuntimeError if something is compiled inside."""
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
