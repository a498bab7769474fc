"""What is timed: whole generations, and the parts they are made of, each on its own.

A part has nothing around the models: no sampling, no keys, no trace. So the parts are a lower bound
of what a generation takes, and what is above them is the engine's own. They are named by a model's
role and the width of its calls, as `Plan.parts` has them:

    target 8         the target verifies 7 draft tokens
    target/6 8       the same, where tokens may leave the target and all leave behind layer 6
    draft 2          the first step of a draft, see `drafters.Autoregressive`
    prefill          what comes before the first iteration, all models
    alone 1          the target's step where it decodes alone
    alone prefill    likewise
    turn of 1 x draft 2, 6 x draft 1, 1 x target 8
                     these calls, one model after the other
    memory_read      0.5 GiB, once, that `memory` makes

A model that is called again and again has its parameters in the processor's cache, where they fit.
In an iteration the target's go through that cache between two drafts. What this costs a draft is
known by the turn, which is made of model calls alone, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from specdec.models.cache import KVCache
from specdec.models.inputs import read
from specdec.models.model import Target
from specdec.plan import Plan, plain_call
from specdec.program import Decoder, Program, batch_shapes
from specdec.types import Params, Part, PyTree, TargetCall, verifies

READ_BYTES, READ_ROWS = 2**29, 1024  # of what `memory_read` reads
LONGEST_SCAN = 32  # steps; enough that a scan's start does not count
TURN, LONGEST_TURNS = "turn of ", 8  # how its name begins; how many in one run


class TimedPart(NamedTuple):
    """One part of a generation."""

    program: Program  # (trees, what the source gave) -> a pytree
    source: str | None  # the part whose result it is given; None: the inputs
    steps: int  # model calls in one run


class Workload(NamedTuple):
    """Programs by name, of two plans; each part comes after its source.

    Parameters are given as trees by role: "alone", and those of `plan.models()`.
    """

    plan: Plan  # speculation
    alone: Plan  # its target alone, in a layout of its own
    generations: Mapping[str, Program]  # (Params, keys [1], inputs [1, S]) -> DecodeOutput
    parts: Mapping[str, TimedPart]
    mesh: Mesh | None = None

    @classmethod
    def of(cls, plan: Plan, alone: Plan, mesh: Mesh | None = None) -> Workload:
        """What is timed of speculation and of its target alone, on the devices of a mesh."""
        decoders = {"alone": Decoder(alone, mesh=mesh), "speculative": Decoder(plan, mesh=mesh)}
        return cls(plan, alone, decoders, _parts(plan, alone), mesh)

    def params(self, trees: Mapping[str, PyTree]) -> dict[str, Params]:
        """What each generation is given."""
        return {"alone": Params(trees["alone"]), "speculative": self.plan.params(trees)}

    def check(self, trees: Mapping[str, PyTree], length: int) -> None:
        """Traces the generations; `trees` may be shapes.

        Raises:
          ValueError: the plans cannot be decoded.
        """
        batch = batch_shapes(1, length, self.mesh)
        for mode, params in self.params(trees).items():
            self.generations[mode].lower(params, *batch)

    def compile(self, trees: Mapping[str, PyTree], length: int) -> dict[str, float]:
        """Compiles everything for one text of `length` tokens: the seconds of each program."""
        return {name: program.seconds for name, program, _ in self.compiled(trees, length)}

    def costs(self, trees: Mapping[str, PyTree], length: int) -> dict[str, dict[str, float]]:
        """FLOPs and bytes of one call of each part, see `Program.costs`."""
        return {
            name: program.costs(*given)
            for name, program, given in self.compiled(trees, length)
            if name in self.parts
        }

    def compiled(
        self, trees: Mapping[str, PyTree], length: int
    ) -> Iterator[tuple[str, Program, tuple[PyTree, ...]]]:
        """Each program, compiled, with the shapes that it is compiled for."""
        batch = batch_shapes(1, length, self.mesh)
        for mode, params in self.params(trees).items():
            self.generations[mode].compile(params, *batch)
            yield mode, self.generations[mode], (params, *batch)
        given: dict[str | None, PyTree] = {None: batch[1]}
        for name, part in self.parts.items():
            arguments = trees, given[part.source]
            given[name] = part.program.compile(*arguments).out_info
            yield name, part.program, arguments


def name_of(role: str, width: int) -> str:
    """The name of the part whose calls of a model are so wide."""
    return f"{role} {width}"


def drafts(name: str) -> bool:
    """Whether a part's calls are those of a draft, by its name."""
    role, _, width = name.rpartition(" ")
    return width.isdigit() and role != "alone" and not verifies(role)


def _parts(plan: Plan, alone: Plan) -> dict[str, TimedPart]:
    """The parts that predictions are made of, for all lengths that a draft may have."""
    of_alone = plain_call("alone", alone.target)
    parts = {
        "memory": TimedPart(Program(make_memory), None, 1),
        "memory_read": TimedPart(Program(read_memory), "memory", 1),
        "alone prefill": _prefill({"alone": alone.target}, alone.capacity),
        "alone 1": _calls("alone", of_alone, 1, "alone prefill", alone.max_length),
        "prefill": _prefill(plan.models(), plan.capacity, plan.drafter.views()),
    }
    for role, width, _ in plan.parts(TargetCall.each(range(plan.longest_draft + 1))):
        given = plan.holder(role), plan.call_of(role), width, "prefill", plan.max_length
        parts[name_of(role, width)] = _calls(*given)
    if turn := turn_of(plan):
        steps = min(plan.max_length, LONGEST_TURNS)
        parts[turn_name(turn)] = TimedPart(Program(turns(plan, turn, steps)), "prefill", steps)
    return parts


def turn_of(plan: Plan) -> tuple[Part, ...]:
    """The model calls of an iteration with the longest draft, in whole numbers and the draft's
    first; () if no model drafts, or calls go through more layers or fewer."""
    calls = () if plan.target.depths else plan.parts([TargetCall(plan.longest_draft)])
    if all(verifies(role) for role, _, _ in calls):
        return ()
    whole = (Part(role, width, math.ceil(times)) for role, width, times in calls)
    return tuple(sorted(whole, key=lambda part: verifies(part.role)))


def _prefill(
    models: Mapping[str, Target], slots: int, views: Mapping[str, Callable] = {}
) -> TimedPart:
    return TimedPart(Program(prefills(models, slots, views)), None, 1)


def _calls(role: str, call: Callable, width: int, prefill: str, max_length: int) -> TimedPart:
    steps = min(max_length, LONGEST_SCAN)
    return TimedPart(Program(scan(role, call, width, steps)), prefill, steps)


def make_memory(trees: Mapping[str, PyTree], inputs: jax.Array) -> jax.Array:
    """Something to read that is larger than any cache."""
    return jnp.broadcast_to(
        inputs[0, 0].astype(jnp.float32), (READ_ROWS, READ_BYTES // READ_ROWS // 4)
    )


def read_memory(trees: Mapping[str, PyTree], memory: jax.Array) -> jax.Array:
    """Reads it once, as a decoder step reads its kernels."""
    return jnp.ones([READ_ROWS], jnp.float32) @ memory


def prefills(
    models: Mapping[str, Target],
    slots: int,
    views: Mapping[str, Callable[[PyTree], PyTree]] = {},
) -> Callable:
    """What comes before the first step: role -> (start token [1], cache).

    views: what models read of the inputs, see `Drafter.views`.
    """

    def run(trees: Mapping[str, PyTree], inputs: PyTree) -> dict[str, tuple[jax.Array, Any]]:
        found: dict[str, tuple[jax.Array, Any]] = {}
        for role, model in models.items():
            seen = views[role](inputs) if role in views else inputs
            given = found["target"][1] if "target" in found else _encoded(model, inputs)
            found[role] = model.start(seen), read(model, trees[role], seen, slots, given)
        return found

    return run


def _encoded(model: Any, inputs: PyTree) -> KVCache | None:
    """Zeros in place of what an encoder has made, for a model that reads it and is timed alone."""
    if model.encoded_dim is None:
        return None
    encoded = jnp.zeros([*inputs.shape, model.encoded_dim], model.dtype)
    mask = jnp.ones(inputs.shape, bool)
    return KVCache((), (), jnp.zeros(len(inputs), jnp.int32), encoded=encoded, inputs_mask=mask)


def scan(role: str, call: Callable, width: int, steps: int) -> Callable:
    """Calls of a model `width` tokens wide, each one position after the last: [1, steps] tokens.

    The argmaxes of a call are fed to the next, so that none can be left out. The first of them is
    the model's greedy token at every width; the others are overwritten, as rejected drafts are.

    call: see `Drafter`; `plain_call` of the model, where the drafter has no other.
    """

    def run(trees: Mapping[str, PyTree], prefilled: Mapping[str, Any]) -> jax.Array:
        start, cache = prefilled[role]

        def advance(carry, _):
            tokens, cache = carry
            tokens, fed = call(trees, tokens, cache)
            return (tokens, fed.rewind(cache.length + 1)), tokens[:, 0]

        first = jnp.broadcast_to(start[:, None], (start.shape[0], width))
        _, tokens = jax.lax.scan(advance, (first, cache), length=steps)
        return tokens.T

    return run


def turn_name(turn: Sequence[Part]) -> str:
    """The name of the part that times it, from which `by_turns` knows what it is made of."""
    return TURN + ", ".join(f"{times} x {name_of(role, width)}" for role, width, times in turn)


def turns(plan: Plan, turn: Sequence[Part], steps: int) -> Callable:
    """Some calls of several models, one kind after the other, again and again: [1, steps] tokens.

    The argmaxes of each call are fed to the next one, whoever's it is, as in `scan`.

    turn: see `turn_of`.
    """
    call_of = {role: plan.call_of(role) for role, _, _ in turn}

    def run(trees: Mapping[str, PyTree], prefilled: Mapping[str, Any]) -> jax.Array:
        begun = {role: prefilled[plan.holder(role)] for role in call_of}
        widest = max(width for _, width, _ in turn)

        def calls(part: Part, tokens: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
            def advance(carry, _):
                tokens, cache = carry
                told, fed = call_of[part.role](trees, tokens[:, : part.width], cache)
                rest = tokens[:, : widest - part.width]
                return (jnp.concatenate([told, rest], axis=1), fed.rewind(cache.length + 1)), None

            return jax.lax.scan(advance, (tokens, cache), length=int(part.calls))[0]

        def advance(carry, _):
            tokens, caches = carry
            fed = dict(caches)
            for part in turn:
                tokens, fed[part.role] = calls(part, tokens, fed[part.role])
            back = {role: fed[role].rewind(caches[role].length + 1) for role in caches}
            return (tokens, back), tokens[:, 0]

        start = next(iter(begun.values()))[0]
        first = jnp.broadcast_to(start[:, None], (start.shape[0], widest))
        carry = first, {role: cache for role, (_, cache) in begun.items()}
        return jax.lax.scan(advance, carry, length=steps)[1].T

    return run


def by_turns(seconds: Mapping[str, float]) -> float:
    """How many times as long a draft's calls take in a turn as on their own, 1 if none was timed,
    and at least: what other models do between calls makes none faster.

    seconds: of each part, of one call.
    """
    for turn in (name for name in seconds if name.startswith(TURN)):
        alone = {"draft": 0.0, "verify": 0.0}
        for calls in turn.removeprefix(TURN).split(", "):
            times, _, name = calls.partition(" x ")
            alone["draft" if drafts(name) else "verify"] += int(times) * seconds[name]
        return max((seconds[turn] - alone["verify"]) / alone["draft"], 1.0)
    return 1.0
