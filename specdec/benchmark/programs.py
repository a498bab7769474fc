"""What is timed: whole generations, and the parts they are made of, each on its own.

A part has nothing around the models: no sampling, no keys, no trace. So the parts are a lower bound
of what a generation takes, and what is above them is the engine's own.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec.decoding import autoregressive_decode, capacity, decode, row_keys
from specdec.drafters import Autoregressive
from specdec.schedules import Fixed
from specdec.types import Drafter, Params, PyTree, SamplingRule, Schedule, Target, Verifier

READ_BYTES, READ_ROWS = 2**29, 1024  # of what `memory_read` reads
LONGEST_SCAN = 32  # steps; enough that a scan's start does not count


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is measured; the fields are the arguments of `specdec.decode`.

    alone: the target as it is kept where it decodes alone, which may be another layout than the
      best one for verification; None for the same.
    """

    target: Target
    drafter: Drafter
    verifier: Verifier
    schedule: Schedule
    sampling: SamplingRule
    max_length: int
    eos_id: int = 1
    alone: Target | None = None

    @property
    def gamma(self) -> int | None:
        """The draft length, if a model drafts that many tokens each time; else None, and there are
        no predictions."""
        if type(self.schedule) is Fixed and isinstance(self.drafter, Autoregressive):
            return self.schedule.gamma
        return None

    @property
    def same_output(self) -> bool:
        """Whether speculation gives the target's own tokens, and not only their distribution."""
        return self.sampling.greedy or getattr(self.verifier, "shared_noise", False)

    def models(self) -> dict[str, Target]:
        """The models by role; programs take their parameters by role too."""
        models = {"alone": self.alone or self.target, "target": self.target}
        if isinstance(self.drafter, Autoregressive):
            models["draft"] = self.drafter.model
        return models


class Part(NamedTuple):
    """One part of a generation."""

    function: Any  # (trees, what the source gave) -> a pytree
    source: str | None  # the part whose result it is given; None: the inputs
    steps: int  # model calls in one run


class Programs(NamedTuple):
    """What is timed, by name; each part comes after its source. `trees`: role -> parameters."""

    generations: Mapping[str, Any]  # (trees, keys [1], inputs [1, S]) -> DecodeOutput
    parts: Mapping[str, Part]


def lower(subject: Subject, trees: Mapping[str, PyTree], length: int) -> Programs:
    """Traces everything for one text of `length` tokens; its functions are `jax.stages.Lowered`.

    Args:
      trees: the parameters of each of `subject.models()`, or their shapes and dtypes.

    Raises:
      ValueError: the subject cannot be decoded.
    """
    keys = jax.eval_shape(functools.partial(row_keys, 0), jax.ShapeDtypeStruct([1], np.int32))
    inputs = jax.ShapeDtypeStruct([1, length], np.int32)
    generations = {
        mode: jax.jit(function).lower(trees, keys, inputs)
        for mode, function in _generations(subject).items()
    }
    given: dict[str | None, PyTree] = {None: inputs}
    parts = {}
    for name, part in _parts(subject).items():
        lowered = jax.jit(part.function).lower(trees, given[part.source])
        given[name] = lowered.out_info
        parts[name] = part._replace(function=lowered)
    return Programs(generations, parts)


def compiled(
    lowered: Programs, clock: Callable[[], float] = time.perf_counter
) -> tuple[Programs, dict[str, float]]:
    """Compiles what `lower` gave: the programs, and the seconds each one took."""
    seconds = {}

    def compile(name: str, program: Any) -> Callable:
        start = clock()
        executable = program.compile()
        seconds[name] = clock() - start
        return executable

    generations = {mode: compile(mode, program) for mode, program in lowered.generations.items()}
    parts = {
        name: part._replace(function=compile(name, part.function))
        for name, part in lowered.parts.items()
    }
    return Programs(generations, parts), seconds


def costs(programs: Programs) -> dict[str, dict[str, float]]:
    """FLOPs and bytes accessed of one call of each compiled part, by XLA's analysis of it, which
    counts the body of a loop once."""
    found = {}
    for name, part in programs.parts.items():
        analysis = part.function.cost_analysis() or {}
        kinds = {"flops": "flops", "bytes": "bytes accessed"}
        found[name] = {kind: analysis[key] for kind, key in kinds.items() if key in analysis}
    return found


def _generations(subject: Subject) -> dict[str, Callable]:
    rules: dict[str, Any] = {
        "sampling": subject.sampling,
        "max_length": subject.max_length,
        "eos_id": subject.eos_id,
    }

    def alone(trees: Mapping[str, PyTree], keys, inputs):
        target = subject.models()["alone"]
        return autoregressive_decode(trees["alone"], keys, inputs, target=target, **rules)

    def speculative(trees: Mapping[str, PyTree], keys, inputs):
        return decode(
            Params(trees["target"], trees.get("draft", ())),
            keys,
            inputs,
            **rules,
            target=subject.target,
            drafter=subject.drafter,
            verifier=subject.verifier,
            schedule=subject.schedule,
        )

    return {"alone": alone, "speculative": speculative}


def _parts(subject: Subject) -> dict[str, Part]:
    """Of the target alone, and of speculation if it is predictable.

    One iteration of speculation is one `drafter_first`, gamma - 1 `drafter_step` and one
    `target_verify`; see `drafters.Autoregressive` for why the first step is two tokens wide.
    """
    models, steps = subject.models(), min(subject.max_length, LONGEST_SCAN)
    alone = {"alone": models.pop("alone")}
    parts = {
        "memory": Part(make_memory, None, 1),
        "memory_read": Part(read_memory, "memory", 1),
        "target_prefill": Part(prefills(alone, subject.max_length), None, 1),
        "target_step": Part(scan("alone", alone["alone"], 1, steps), "target_prefill", steps),
    }
    if subject.gamma is None:
        return parts
    slots = capacity(subject.max_length, subject.schedule)
    verify = scan("target", models["target"], subject.gamma + 1, steps)
    return parts | {
        "prefill": Part(prefills(models, slots), None, 1),
        "target_verify": Part(verify, "prefill", steps),
        "drafter_first": Part(scan("draft", models["draft"], 2, steps), "prefill", steps),
        "drafter_step": Part(scan("draft", models["draft"], 1, steps), "prefill", steps),
    }


def make_memory(trees: Mapping[str, PyTree], inputs: jax.Array) -> jax.Array:
    """Something to read that is larger than any cache."""
    return jnp.broadcast_to(
        inputs[0, 0].astype(jnp.float32), (READ_ROWS, READ_BYTES // READ_ROWS // 4)
    )


def read_memory(trees: Mapping[str, PyTree], memory: jax.Array) -> jax.Array:
    """Reads it once, as a decoder step reads its kernels."""
    return jnp.ones([READ_ROWS], jnp.float32) @ memory


def prefills(models: Mapping[str, Target], slots: int) -> Callable:
    """What comes before the first step: role -> (start token [1], cache)."""

    def run(trees: Mapping[str, PyTree], inputs: jax.Array) -> dict[str, tuple[jax.Array, Any]]:
        return {
            role: (model.start(inputs), model.prefill(trees[role], inputs, slots))
            for role, model in models.items()
        }

    return run


def scan(role: str, model: Target, width: int, steps: int) -> Callable:
    """Calls of a model `width` tokens wide, each one position after the last: [1, steps] tokens.

    The argmaxes of a call are fed to the next, so that none can be left out. The first of them is
    the model's greedy token at every width; the others are overwritten, as rejected drafts are.
    """

    def run(trees: Mapping[str, PyTree], prefilled) -> jax.Array:
        start, cache = prefilled[role]

        def advance(carry, _):
            tokens, cache = carry
            output, fed = model.decode(trees[role], tokens, cache)
            tokens = jnp.argmax(output.logits, axis=-1).astype(jnp.int32)
            return (tokens, fed.rewind(cache.length + 1)), tokens[:, 0]

        first = jnp.broadcast_to(start[:, None], (start.shape[0], width))
        _, tokens = jax.lax.scan(advance, (first, cache), length=steps)
        return tokens.T

    return run
