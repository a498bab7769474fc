"""The compiled programs of `specdec decode`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec import decoding
from specdec.cli.run import DecodeRun, Program
from specdec.cli.settings import UsageError
from specdec.decoding import autoregressive_decode, decode, prefill, step
from specdec.types import DecodeOutput, PyTree


class Programs(NamedTuple):
    """What a run computes; nothing of it is compiled before it is needed."""

    ours: Program  # speculative; the target alone in a run without a drafter
    alone: Program | None  # the target alone, if the run compares


def programs_of(run: DecodeRun, prefix: list[int], eos_id: int, stepwise: bool) -> Programs:
    """Raises UsageError for a combination that cannot work, before anything is compiled."""
    models = {"target": run.target, "drafter": run.drafter, "schedule": run.schedule}
    rules = {"sampling": run.rule(eos_id), "eos_id": eos_id}
    given = jnp.tile(jnp.array(prefix, jnp.int32), (run.batch_size, 1)) if prefix else None
    output = {"max_length": run.lengths["targets"], "prefix": given}
    params = run.abstract()
    plain = functools.partial(autoregressive_decode, target=run.alone, **rules, **output)
    if run.drafter is None:
        ours = Program(lambda params, *rest: plain(params.target, *rest), params, run)
    else:
        rules["verifier"] = run.verifier
        ours = Program(functools.partial(decode, **models, **rules, **output), params, run)
        if stepwise and run.mesh is None:
            begin = functools.partial(prefill, **models, **output)
            ours = Stepwise(begin, functools.partial(step, **models, **rules), ours, params, run)
    try:
        ours.lower(run.lengths["inputs"])
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not run.compare:
        return Programs(ours, None)
    return Programs(ours, Program(plain, run.shape(run.alone, run.checkpoint_path), run))


class Stepwise(Program):
    """The same decoding, one dispatch for each target call, watched as it goes."""

    def __init__(self, begin: Callable, advance: Callable, whole: Program, params, run: DecodeRun):
        super().__init__(begin, params, run)
        self._advance = jax.jit(advance, donate_argnums=1)
        self.lower = whole.lower  # what cannot work shows there
        self.watch: Callable[[DecodeOutput], None] = lambda output: None

    def compile(self, length: int) -> float:
        start = time.perf_counter()
        if length not in self._compiled:
            shapes = (self._params, *self._shapes(length))
            state = jax.eval_shape(self._jitted, *shapes)
            begin = self._jitted.lower(*shapes).compile()
            advance = self._advance.lower(self._params, state).compile()
            self._compiled[length] = functools.partial(self._run, begin, advance)
        return time.perf_counter() - start

    def _run(self, begin, advance, params: PyTree, keys, inputs) -> DecodeOutput:
        state = begin(params, keys, inputs)
        while np.any(state.active):
            state = advance(params, state)
            self.watch(jax.device_get(decoding.output(state)))
        return decoding.output(state)
