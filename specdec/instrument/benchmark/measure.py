"""The protocol: everything alternates in one process, so a slow minute affects all alike."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.common.timer import Clock, timed
from specdec.decoding import check_finite, naming_texts, row_keys
from specdec.decoding.beam_search import BeamOutput
from specdec.decoding.program import Program
from specdec.instrument.benchmark.file import Generation, Timing
from specdec.instrument.benchmark.parts import Key
from specdec.instrument.benchmark.workload import Workload
from specdec.types import DecodeOutput, PyTree

WARM_UPS = 3
TEXTS_PER_TIMING = 4  # the parts are timed at every fourth text: they depend on shapes alone


def measure_by_text(
    workload: Workload,
    trees: Mapping[str, PyTree],
    texts: Mapping[int, np.ndarray],
    *,
    seed: int,
    repeats: int,
    skip: Collection[tuple[int, int]] = (),
    clock: Clock = time.perf_counter,
) -> Iterator[Iterator[Generation | Timing]]:
    """Times each text `repeats` times: the target alone and speculation, alternating.

    Next to beams, greedy speculation is timed as well.

    The mode that came second for a text comes first for the next one, and for the same text in the
    next repeat. A repeat is another sample of each text: `row_keys(seed, text, repeat)`. Small
    models are run once, untimed, before each timed run, see `Program.warmed`, because in production
    nothing alternates.
    """
    trees = jax.device_put(trees)
    on_device = {text: jax.device_put(inputs) for text, inputs in texts.items()}
    params = workload.params(trees)

    def one_text(
        repeat: int, place: int, text: int, inputs: jax.Array
    ) -> Iterator[Generation | Timing]:
        # First the parts: a text with both generations then has all that is measured of it.
        if place % TEXTS_PER_TIMING == 0:
            for part, seconds in _timed_parts(clock, workload, trees, inputs):
                yield Timing(part, text, repeat, seconds, workload.parts[part].steps)
        keys = _keys(seed, text, repeat)
        modes = list(workload.generations)
        for mode in modes if (place + repeat) % 2 == 0 else reversed(modes):
            program = workload.generations[mode]
            output, seconds = _timed(clock, program, params[mode], keys, inputs)
            about = {"mode": mode, "text": text, "repeat": repeat, "seconds": seconds}
            yield _generation(workload, output, **about)

    _warm_up(workload, trees, seed, on_device)
    for repeat in range(repeats):
        for place, (text, inputs) in enumerate(on_device.items()):
            if (repeat, text) not in skip:
                yield one_text(repeat, place, text, inputs)


def decode_elsewhere(
    workload: Workload,
    trees: Mapping[str, PyTree],
    texts: Mapping[int, np.ndarray],
    *,
    seed: int,
    split: str,
) -> Iterator[Generation]:
    """Yields generations of another split, whose acceptance predicts that of the timed texts."""
    params = jax.device_put(workload.params(trees)["speculative"])
    for text, inputs in texts.items():
        output = workload.generations["speculative"](params, _keys(seed, text), inputs)
        yield _generation(workload, output, text=text, split=split)


def profile(
    workload: Workload,
    trees: Mapping[str, PyTree],
    texts: Mapping[int, np.ndarray],
    *,
    seed: int,
    path: str,
) -> None:
    """Writes an xprof trace of one text's generations, each under its mode's name.

    Operations have the scopes draft, verify and accept. Nothing is timed, because tracing takes
    time.
    """
    trees = jax.device_put(trees)
    text, inputs = next(iter(texts.items()))
    _warm_up(workload, trees, seed, {text: inputs})
    with jax.profiler.trace(path):
        for mode, params in workload.params(trees).items():
            with jax.profiler.TraceAnnotation(mode):
                generate = workload.generations[mode]
                jax.block_until_ready(generate(params, _keys(seed, text), inputs))


def _warm_up(
    workload: Workload, trees: Mapping[str, PyTree], seed: int, texts: Mapping[int, PyTree]
) -> None:
    """Runs each mode a few times, because first runs are slower: pages, caches, threads."""
    for text in list(texts)[:1]:
        for _ in range(WARM_UPS):
            for mode, params in workload.params(trees).items():
                generate = workload.generations[mode]
                jax.block_until_ready(generate(params, _keys(seed, text), texts[text]))
            list(_timed_parts(lambda: 0.0, workload, trees, texts[text]))


def _keys(seed: int, text: int, repeat: int = 0) -> jax.Array:
    return jax.block_until_ready(row_keys(seed, jnp.array([text]), repeat))


def _timed_parts(clock, workload: Workload, trees, inputs) -> Iterator[tuple[Key, float]]:
    given: dict[Key | None, PyTree] = {None: inputs}
    for name, part in workload.parts.items():
        given[name], seconds = _timed(clock, part.program, trees, given[part.source])
        yield name, seconds


def _timed(clock, program: Program, *arguments) -> tuple[PyTree, float]:
    return timed(program.warmed(*arguments), *arguments, clock=clock)


def _generation(
    workload: Workload, output: DecodeOutput | BeamOutput, *, text: int, **about: Any
) -> Generation:
    """Returns the record of an output; raises NonFiniteLogits if its row has failed."""
    with naming_texts([text]):
        check_finite(output, workload.plan.target)
    output = jax.device_get(output)
    if isinstance(output, BeamOutput):
        plan = workload.alone if about.get("mode") == "alone" else workload.plan
        return Generation.of_search(output, 0, plan.longest_draft, text=text, **about)
    return Generation.of(output, 0, text=text, **about)
