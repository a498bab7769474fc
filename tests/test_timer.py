"""The timer of programs that take turns: pytest tests/test_timer.py"""

import itertools

import jax
import jax.numpy as jnp
import pytest

from specdec.common.timer import interleaved, timed


def test_all_have_their_turn_in_every_round_and_warm_ups_do_not_count():
    """With a clock that only the runs advance, by more every time."""
    now, told, steps = [0.0], [], itertools.count(1)

    def ready(name: str):
        told.append(f"ready {name}")

        def run():
            told.append(name)
            now[0] += next(steps)

        return run

    runs = {name: (lambda name=name: ready(name)) for name in "ab"}
    done: list[None] = []
    seconds = interleaved(runs, 2, warm_ups=1, clock=lambda: now[0], done=lambda: done.append(None))
    assert told == ["ready a", "a", "ready b", "b"] * 3 and len(done) == 6
    assert seconds == {"a": [3, 5], "b": [4, 6]}


def test_a_compilation_under_the_clock_is_refused():
    double = jax.jit(lambda x: 2 * x)
    given = jnp.ones(3)
    with pytest.raises(RuntimeError, match="was compiled while the clock ran; compile every shape"):
        interleaved({"a": lambda: lambda: double(given)}, 1)
    result, seconds = timed(double, given)
    assert result.tolist() == [2, 2, 2] and seconds > 0
