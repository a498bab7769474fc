"""The parts of a generation, each timed alone, and the names of these parts in files.

A part is a program of model calls without sampling, random keys or trace. The sum of the parts is
therefore a lower bound of a generation's time. In files, a part has the name of a model's role and
the number of tokens of its calls, as in `Plan.parts`:

  target 8         the target verifies 7 draft tokens
  target/6 8       the same in an early-exit target, if all tokens leave after layer 6
  draft 2          the first step of a draft, see `drafters.Autoregressive`
  prefill          everything before the first iteration, for all models
  alone 1          a step of the target that decodes alone; with w beams, alone w
  alone prefill    everything before the first step of the target that decodes alone
  turn of 1 x draft 2, 6 x draft 1, 1 x target 8
                   the calls of one iteration, in this order
  memory_read      a read of 0.5 GiB that the part `memory` has allocated

If only one small model is called repeatedly, its parameters stay in the processor's cache. In an
iteration, the target's parameters evict them between two drafts. The part "turn of" measures how
much longer a draft then takes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from specdec.decoding.beam_plan import AnyPlan
from specdec.decoding.program import DecodeProgram, Program, batch_shapes
from specdec.models.contract import loops
from specdec.models.contract.cache import KVCache
from specdec.models.contract.inputs import read
from specdec.models.contract.model import Target
from specdec.plan import Plan
from specdec.predict.costs import Calls
from specdec.types import Cache, Params, Part, PyTree, TargetCall, verifies

READ_BYTES, READ_ROWS = 2**29, 1024  # of the array that `read_memory` reads
LONGEST_SCAN = 32  # steps; enough that the start of a scan is negligible
LONGEST_TURNS = 8  # iterations in one run of a turn's program


class Turn(NamedTuple):
    """The model calls of one iteration as one part, the target's last."""

    parts: tuple[Part, ...]  # with whole numbers of calls


Key: TypeAlias = Calls | Turn | str
Prefilled: TypeAlias = tuple[jax.Array, Cache]  # a model's start tokens [B], and its cache
# role -> a function of the target's inputs that returns the inputs of the role's model
Views: TypeAlias = Mapping[str, Callable[[PyTree], PyTree]]
MEMORY, MEMORY_READ, PREFILL, PREFILL_ALONE = "memory", "memory_read", "prefill", "alone prefill"
STEP = Calls("alone", 1)  # a step of the target alone
STEPS = STEP, Calls("alone", 2)  # by the number of tokens that the step is computed with
_TURN = "turn of "


def name_of(key: Key) -> str:
    """Returns the name of a part in files, such as "target 8"."""
    if isinstance(key, Calls):
        return key.name
    if isinstance(key, Turn):
        calls = (f"{part.calls} x {part.role} {part.width}" for part in key.parts)
        return _TURN + ", ".join(calls)
    return key


def key_of(name: str) -> Key:
    """Returns the part with this name in files; raises ValueError if there is none."""
    if name.startswith(_TURN):
        calls = (text.split(" ") for text in name.removeprefix(_TURN).split(", "))
        return Turn(tuple(Part(role, int(width), int(count)) for count, _, role, width in calls))
    if name.rpartition(" ")[2].isdigit():
        return Calls.of(name)
    if name not in (MEMORY, MEMORY_READ, PREFILL, PREFILL_ALONE):
        raise ValueError(f"has the part {name!r}, which is no part of a generation")
    return name


def step_of(keys: Iterable[Key]) -> Calls:
    """Returns the one of these parts that is a step of the target alone."""
    return next(key for key in keys if isinstance(key, Calls) and key.role == "alone")


def turn_of(plan: AnyPlan) -> Turn | None:
    """Returns the calls of the longest draft's iteration; None if they vary or no model drafts."""
    calls = () if plan.target.depths else plan.parts([TargetCall(plan.longest_draft)])
    if all(verifies(role) for role, _, _ in calls):
        return None
    rounded = (Part(role, width, math.ceil(times)) for role, width, times in calls)
    return Turn(tuple(sorted(rounded, key=lambda part: verifies(part.role))))


def make_memory(trees: Mapping[str, PyTree], inputs: PyTree) -> jax.Array:
    """Returns a float32 array of 0.5 GiB, larger than any cache, on the device of the inputs."""
    first = jax.tree.leaves(inputs)[0].ravel()[0]
    return jnp.broadcast_to(first.astype(jnp.float32), (READ_ROWS, READ_BYTES // READ_ROWS // 4))


def read_memory(trees: Mapping[str, PyTree], memory: jax.Array) -> jax.Array:
    """Reads `memory` once by a matrix product, as a decoder step reads its kernels."""
    return jnp.ones([READ_ROWS], jnp.float32) @ memory


def prefill(
    trees: Mapping[str, PyTree],
    inputs: PyTree,
    *,
    models: Mapping[str, Target],
    slots: int,
    views: Views,
) -> dict[str, Prefilled]:
    """Reads the inputs with all models, and returns role -> (start tokens [B], cache)."""
    prefilled: dict[str, Prefilled] = {}
    for role, model in models.items():
        viewed = views[role](inputs) if role in views else inputs
        of_target = prefilled["target"][1] if "target" in prefilled else _encoded(model, inputs)
        cache = read(model, trees[role], viewed, slots, of_target)
        prefilled[role] = model.start(viewed), cache
    return prefilled


def _encoded(model: Target, inputs: PyTree) -> KVCache | None:
    """Returns a cache of zeros as encoder output, if the model reads it from the target's cache."""
    if model.encoded_dim is None:
        return None
    shape = model.encoded_shape(inputs)
    encoded = jnp.zeros([*shape, model.encoded_dim], model.dtype)
    mask = jnp.ones(shape, bool)
    return KVCache((), (), jnp.zeros(shape[0], jnp.int32), encoded=encoded, inputs_mask=mask)


def scan(role: str, call: Callable, width: int, steps: int) -> Callable:
    """Returns a program that calls a model `steps` times, each call one position further.

    It maps (trees, prefilled) to the first argmax of each call, [B, steps]."""
    # Argmaxes are fed to the next call, so no call is optimised away. The first one is the model's
    # greedy token at every width; the others are overwritten, like rejected draft tokens.

    def run(trees: Mapping[str, PyTree], prefilled: Mapping[str, Prefilled]) -> jax.Array:
        start, cache = prefilled[role]

        def advance(carry, _):
            tokens, cache = carry
            tokens, fed = call(trees, tokens, cache)
            return (tokens, fed.rewind(cache.length + 1)), tokens[:, 0]

        first = jnp.broadcast_to(start[:, None], (start.shape[0], width))
        _, tokens = loops.scan(advance, (first, cache), length=steps)
        return tokens.T

    return run


def turns(plan: AnyPlan, turn: Turn, steps: int) -> Callable:
    """Returns a program of `steps` iterations of the calls of `turn`, with the output of `scan`."""
    call_of = {role: plan.call_of(role) for role, _, _ in turn.parts}

    def run(trees: Mapping[str, PyTree], prefilled: Mapping[str, Prefilled]) -> jax.Array:
        begun = {role: prefilled[plan.holder(role)] for role in call_of}
        widest = max(width for _, width, _ in turn.parts)

        def calls(part: Part, tokens: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
            def advance(carry, _):
                tokens, cache = carry
                argmaxes, fed = call_of[part.role](trees, tokens[:, : part.width], cache)
                rest = tokens[:, : widest - part.width]
                tokens = jnp.concatenate([argmaxes, rest], axis=1)
                return (tokens, fed.rewind(cache.length + 1)), None

            return loops.scan(advance, (tokens, cache), length=int(part.calls))[0]

        def advance(carry, _):
            tokens, caches = carry
            fed = dict(caches)
            for part in turn.parts:
                tokens, fed[part.role] = calls(part, tokens, fed[part.role])
            back = {role: fed[role].rewind(caches[role].length + 1) for role in caches}
            return (tokens, back), tokens[:, 0]

        start = next(iter(begun.values()))[0]
        first = jnp.broadcast_to(start[:, None], (start.shape[0], widest))
        carry = first, {role: cache for role, (_, cache) in begun.items()}
        return loops.scan(advance, carry, length=steps)[1].T

    return run


def by_turns(seconds: Mapping[Key, float]) -> float:
    """Returns the seconds of a draft in an iteration / of its calls timed alone; 1 if not timed."""
    for turn in (key for key in seconds if isinstance(key, Turn)):
        alone = {True: 0.0, False: 0.0}  # whether a call drafts -> seconds
        for role, width, times in turn.parts:
            calls = Calls(role, width)
            alone[calls.drafts] += times * seconds[calls]
        return max((seconds[turn] - alone[False]) / alone[True], 1.0)
    return 1.0


def in_iterations(seconds: Mapping[Key, float], times: float) -> dict[Calls, float]:
    """Returns the seconds of each model call, with those of draft calls multiplied by `times`."""
    return {
        key: value * times if key.drafts else value
        for key, value in seconds.items()
        if isinstance(key, Calls) and key.role != "alone"
    }


class TimedPart(NamedTuple):
    """The program of one part of a generation."""

    program: Program  # (trees, the source's result) -> a pytree
    source: Key | None  # the part whose result the program takes; None: the text's inputs
    steps: int  # the number of model calls in one run


class Workload(NamedTuple):
    """The timed programs of speculation and of the target alone.

    Methods take `trees`: the speculative plan's parameters by role, the target's in the layout of
    its plan alone as "alone", and those of `greedy` under `of_greedy(role)`."""

    plan: AnyPlan  # speculation
    alone: AnyPlan  # the target alone, which may have another layout of its kernels
    generations: Mapping[str, Program]  # mode -> (Params, keys [1], inputs [1, S]) -> the output
    parts: Mapping[Key, TimedPart]
    mesh: Mesh | None = None
    greedy: Plan | None = None  # greedy speculation, timed in addition to a beam search

    @classmethod
    def of(
        cls, plan: AnyPlan, alone: AnyPlan, mesh: Mesh | None = None, greedy: Plan | None = None
    ) -> Workload:
        """Returns the programs of these plans, for the devices of a mesh."""
        plans = {"alone": alone, "speculative": plan} | ({"greedy": greedy} if greedy else {})
        programs = {mode: DecodeProgram(of_mode, mesh=mesh) for mode, of_mode in plans.items()}
        return cls(plan, alone, programs, timed_parts(plan, alone), mesh, greedy)

    def params(self, trees: Mapping[str, PyTree]) -> dict[str, Params]:
        """Returns mode -> the parameters that its program takes."""
        params = {"alone": Params(trees["alone"]), "speculative": self.plan.params(trees)}
        if self.greedy:
            greedy = {role: trees[of_greedy(role)] for role in self.greedy.owned()}
            params["greedy"] = Params(**greedy)
        return params

    def check(self, trees: Mapping[str, PyTree], length: int) -> None:
        """Traces the generations for inputs [1, length]; the leaves of `trees` may be shapes."""
        batch = self._shapes(length)
        for mode, params in self.params(trees).items():
            self.generations[mode].lower(params, *batch)

    def _shapes(self, length: int) -> tuple[PyTree, PyTree]:
        """Returns the shapes of the random keys [1] and of the inputs [1, length]."""
        return batch_shapes(self.plan.target, 1, length, self.mesh)

    def compile(self, trees: Mapping[str, PyTree], length: int) -> dict[Key, float]:
        """Compiles all programs for inputs [1, length]; returns part or mode -> compile seconds."""
        return {name: program.seconds for name, program, _ in self.compiled(trees, length)}

    def costs(self, trees: Mapping[str, PyTree], length: int) -> dict[Key, dict[str, float]]:
        """Returns part -> FLOPs and bytes of one run of its program, see `Program.costs`."""
        return {
            name: program.costs(*arguments)
            for name, program, arguments in self.compiled(trees, length)
            if name in self.parts
        }

    def compiled(
        self, trees: Mapping[str, PyTree], length: int
    ) -> Iterator[tuple[Key, Program, tuple[PyTree, ...]]]:
        """Yields (part or mode, compiled program, shapes of its arguments)."""
        batch = self._shapes(length)
        for mode, params in self.params(trees).items():
            self.generations[mode].compile(params, *batch)
            yield mode, self.generations[mode], (params, *batch)
        results: dict[Key | None, PyTree] = {None: batch[1]}
        for name, part in self.parts.items():
            arguments = trees, results[part.source]
            results[name] = part.program.compile(*arguments).out_info
            yield name, part.program, arguments


def of_greedy(role: str) -> str:
    """Returns the name in `trees` of a role's parameters for greedy speculation."""
    return f"greedy {role}"


def timed_parts(plan: AnyPlan, alone: AnyPlan, slots: int | None = None) -> dict[Key, TimedPart]:
    """Returns the parts for all draft lengths; caches have `slots` positions or the plans' own."""
    (step,) = (Calls("alone", width) for _, width, _ in alone.parts())
    of_target, views = alone.call_of("target"), plan.drafter.views() if plan.drafter else {}

    def of_alone(trees: Mapping[str, PyTree], *arguments: PyTree) -> PyTree:
        return of_target({"target": trees["alone"]}, *arguments)

    timed: dict[Key, TimedPart] = {
        MEMORY: TimedPart(Program(make_memory), None, 1),
        MEMORY_READ: TimedPart(Program(read_memory), MEMORY, 1),
        PREFILL_ALONE: _prefill({"alone": alone.target}, slots or alone.capacity, {}),
        step: _calls("alone", of_alone, step.width, PREFILL_ALONE, alone.max_length),
        PREFILL: _prefill(plan.models(), slots or plan.capacity, views),
    }
    for role, width, _ in plan.parts(TargetCall.each(range(plan.longest_draft + 1))):
        timed[Calls(role, width)] = _calls(
            plan.holder(role), plan.call_of(role), width, PREFILL, plan.max_length
        )
    if turn := turn_of(plan):
        steps = min(plan.max_length, LONGEST_TURNS)
        timed[turn] = TimedPart(Program(turns(plan, turn, steps)), PREFILL, steps)
    return timed


def _prefill(models: Mapping[str, Target], slots: int, views: Views) -> TimedPart:
    run = functools.partial(prefill, models=models, slots=slots, views=views)
    return TimedPart(Program(run), None, 1)


def _calls(role: str, call: Callable, width: int, prefill: str, max_length: int) -> TimedPart:
    steps = min(max_length, LONGEST_SCAN)
    return TimedPart(Program(scan(role, call, width, steps)), prefill, steps)
