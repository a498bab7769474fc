"""Reads the instructions and loops of a compiled XLA program from its HLO text.

`compiled.as_text()` is optimised HLO, after scheduling: one instruction per line, in named
computations that refer to each other. `read` follows these references from the entry, through
fusions, calls and conditionals, so each instruction is listed with the loop in which it runs. The
instructions of a computation are listed once for each place that calls the computation.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from math import ceil, prod
from typing import NamedTuple

COLLECTIVES = {
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "recv",  # these two between devices; between host and device they are host transfers
    "reduce-scatter",
    "send",
}
MOVES = {"copy", "slice", "dynamic-slice", "dynamic-update-slice"}  # only asynchronous ones
# These return an array without a copy.
ALIASES = {
    "bitcast",
    "call",
    "conditional",
    "get-tuple-element",
    "optimization-barrier",
    "parameter",
    "tuple",
    "while",
}
# These compute nothing when the program runs, or only through what they call.
PASSIVE = ALIASES | {"after-all", "constant", "partition-id", "replica-id"}
HOST_MEMORY = "S(5)"  # XLA's number for it in a layout; the other spaces are on the device

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)")
_CALLS = re.compile(
    r" (?:to_apply|calls|condition|body|select|scatter|true_computation|false_computation"
    r"|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_NAME = re.compile(r"[\w.\-]+")
_OPERAND = re.compile(r"[^)]*?%([\w.\-]+)")  # the first one
_NOTES = re.compile(r", (?:frontend_attributes|metadata|backend_config)=")
_SCOPE = re.compile(r'op_name="([^"]*)"')
_AROUND = re.compile(r"(?:^|/)while/(?:body|cond)(?=/|$)")  # an enclosing loop in a scope
_WRAPPED = re.compile(r"\w+\((.*)\)")  # jit(f), vmap(f)
_MACHINERY = re.compile(r"|while|cond|branch_\d+_fun|closed_call")
_CHANNEL = re.compile(r" channel_id=(\d+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_HOST_CALL = re.compile(r'custom_call_target="[^"]*(?:callback|host|MoveToDevice)', re.IGNORECASE)
_RESIZE = re.compile(r'custom_call_target="(?:PadToStatic|SliceToDynamic)"')
_JOINED = re.compile(r'custom_call_target="ConcatBitcast"')  # slices that were moved one by one
_SPARSE_CORE = re.compile(r'async_execution_thread="sparsecore"')
_LAYOUT = re.compile(r"\{[^{}]*\}|/\*.*?\*/")
_SPACE = re.compile(r"S\(\d+\)")
_ARRAY = re.compile(r"(\w+)\[([^\]]*)\]")


class Instruction(NamedTuple):
    """One HLO instruction; an asynchronous start and done pair is one instruction."""

    opcode: str  # such as "all-reduce", also for all-reduce-start
    name: str  # unique in the program
    shape: str  # of the result on one device, without layout: "bf16[1,8,4096]", or "(f32[8], ...)"
    bytes: int  # of the result on one device
    scope: str  # the traced JAX operation, metadata's op_name; "" if there is none
    loop: tuple[str, ...]  # names of the loops around the instruction, outermost first
    fused: bool  # within a fusion and not its result, so that no array is stored
    operand: str  # the shape of the first operand; "" if there is none
    cycles: int = 0  # the compiler's estimate; 0 if it states none, as on CPUs


@dataclasses.dataclass(frozen=True)
class Loop:
    """A while loop of a compiled program."""

    name: str  # the last name of a traced function in its scope; loops may share a name
    trip_count: int | None  # None if the compiler does not state it
    loops: tuple[Loop, ...]  # the loops directly inside this loop


@dataclass(frozen=True)
class Module:
    """The loops and instructions of a compiled program, in the program's order."""

    loops: tuple[Loop, ...]  # the outermost loops
    operations: tuple[Instruction, ...]  # computing instructions; a fusion is one; without moves
    collectives: tuple[Instruction, ...]
    copies: tuple[Instruction, ...]  # within one memory, possibly to another layout
    moves: tuple[Instruction, ...]  # asynchronous, such as prefetches to a faster memory
    host_transfers: tuple[Instruction, ...]
    dynamic_shapes: tuple[Instruction, ...]  # instructions with sizes known only at run time
    sparse_core: tuple[Instruction, ...]  # run on a SparseCore, with all that they call as one


KINDS = [field.name for field in dataclasses.fields(Module)][1:]  # the fields with instructions


def read(text: str) -> Module:
    """Returns the loops and instructions of a program from `compiled.as_text()`."""
    # A collective that the compiler spreads over several fusions counts once. Instructions that a
    # SparseCore runs are not counted as operations, moves or copies.
    entry, computations = _parse(text)
    by_kind: dict[str, list[Instruction]] = {kind: [] for kind in KINDS}
    spread: set[str] = set()  # channels of the collectives met in fusions

    def walk(
        name: str, loop: tuple[str, ...], fused: bool, returned: bool, elsewhere: bool = False
    ) -> tuple[Loop, ...]:
        """Adds a computation's instructions to `by_kind`, and returns its loops."""
        computation = computations[name]
        loops: list[Loop] = []
        for line in computation.lines:
            has_array = not fused or (returned and line.name in computation.results)
            if not (fused and line.channel in spread):
                for kind in line.kinds:
                    if kind == "collectives" or not (elsewhere or (kind == "operations" and fused)):
                        by_kind[kind].append(line.instruction(loop, not has_array))
            if fused and line.channel:
                spread.add(line.channel)
            looped = line.opcode == "while"
            path = (*loop, line.loop_name) if looped else loop
            within = fused or line.opcode == "fusion"
            there = elsewhere or "sparse_core" in line.kinds
            inner = [
                each
                for callee in line.calls
                for each in walk(callee, path, within, has_array, there)
            ]
            if looped:
                trips = line.attribute(_TRIP_COUNT)
                inner = [Loop(line.loop_name, int(trips) if trips else None, tuple(inner))]
            loops += inner
        return tuple(loops)

    loops = walk(entry, (), False, True)
    return Module(loops, **{kind: tuple(instructions) for kind, instructions in by_kind.items()})


class _Line(NamedTuple):
    """A line of the HLO text with one instruction, split into fields."""

    name: str
    shape: str
    opcode: str
    operand: str  # the shape of the first operand, "" if there is none
    rest: str  # the text of operands and attributes
    kinds: tuple[str, ...]  # the fields of Module in which the instruction is listed
    calls: tuple[str, ...]  # names of the computations that it calls

    def attribute(self, pattern: re.Pattern) -> str:
        """Returns the value of an attribute, "" if it is missing."""
        match = pattern.search(self.rest)
        return match[1] if match else ""

    @property
    def channel(self) -> str:
        return self.attribute(_CHANNEL) if "collectives" in self.kinds else ""

    @property
    def loop_name(self) -> str:
        names = []
        for part in _AROUND.split(self.attribute(_SCOPE))[-1].split("/"):
            while match := _WRAPPED.fullmatch(part):
                part = match[1]
            if not _MACHINERY.fullmatch(part):
                names.append(part.lstrip("_"))
        return names[-1] if names else "while"

    def instruction(self, loop: tuple[str, ...], fused: bool) -> Instruction:
        shape = _LAYOUT.sub("", _result(self.opcode, self.shape))
        opcode, scope = self.opcode.removesuffix("-start"), self.attribute(_SCOPE)
        operand = _LAYOUT.sub("", self.operand)
        size, cycles = _bytes(shape), int(self.attribute(_CYCLES) or 0)
        return Instruction(opcode, self.name, shape, size, scope, loop, fused, operand, cycles)


@dataclass
class _Computation:
    lines: list[_Line] = field(default_factory=list)  # lines with a kind or a call
    results: set[str] = field(default_factory=set)  # names of the root, and of a tuple's elements


def _parse(text: str) -> tuple[str, dict[str, _Computation]]:
    """Returns the name of the entry computation, and name -> computation."""
    entry, computation = None, _Computation()
    computations: dict[str, _Computation] = {}
    shapes: dict[str, str] = {}  # names are unique
    for line in text.split("\n"):
        if match := _INSTRUCTION.match(line):
            root, name, shape, opcode, rest = match.groups()
            shapes[name] = shape
            if root:
                computation.results.add(name)
                if opcode == "tuple":
                    computation.results.update(_NAME.findall(rest.partition(")")[0]))
            if opcode.endswith(("-done", "-update")):
                continue  # noted where it starts
            kinds, calls = _kinds(opcode, shape, rest), _calls(rest)
            if kinds or calls:
                first = _OPERAND.match(rest)
                operand = shapes.get(first[1], "") if first else ""
                computation.lines.append(_Line(name, shape, opcode, operand, rest, kinds, calls))
        elif match := _COMPUTATION.match(line):
            computation = computations[match[2]] = _Computation()
            entry = match[2] if match[1] else entry
    called = {name for each in computations.values() for line in each.lines for name in line.calls}
    if entry is None:
        raise ValueError("the text has no ENTRY: pass all of compiled.as_text()")
    if missing := called - computations.keys():
        raise ValueError(f"the text calls {min(missing)} but lacks it: pass all of it")
    return entry, computations


def _kinds(opcode: str, shape: str, rest: str) -> tuple[str, ...]:
    """Returns the names of the fields of Module in which an instruction is listed."""
    base = opcode.removesuffix("-start")
    kinds = []
    if _touches_host(base, shape, rest):
        kinds.append("host_transfers")
    elif base in COLLECTIVES:
        kinds.append("collectives")
    elif opcode == "copy" or (opcode == "copy-start" and _stays(shape)):
        kinds.append("copies")
    elif opcode != base and base in MOVES:
        kinds.append("moves")
    if (
        "<=" in shape
        or base in ("set-dimension-size", "get-dimension-size")
        or (base == "custom-call" and _RESIZE.search(rest))
    ):
        kinds.append("dynamic_shapes")
    if _SPARSE_CORE.search(rest):
        kinds.append("sparse_core")
    elif base not in PASSIVE and "moves" not in kinds and not _JOINED.search(rest):
        kinds.append("operations")
    return tuple(kinds)


def _touches_host(base: str, shape: str, rest: str) -> bool:
    if base in ("infeed", "outfeed"):
        return True
    if base in ("send", "recv"):
        return "is_host_transfer=true" in rest
    if base == "custom-call" and _HOST_CALL.search(rest):
        return True
    return HOST_MEMORY in shape and base not in ALIASES


def _stays(shape: str) -> bool:
    """Returns whether a copy-start of shape (destination, source, context) keeps the memory."""
    destination, source, *_ = (_SPACE.findall(element) for element in _elements(shape))
    return destination == source


def _calls(rest: str) -> tuple[str, ...]:
    attributes = _NOTES.split(rest, maxsplit=1)[0]
    return tuple(name for called in _CALLS.findall(attributes) for name in _NAME.findall(called))


def _result(opcode: str, shape: str) -> str:
    """Returns the part of an instruction's shape that is its result."""
    elements = _elements(shape)
    if opcode in ("copy-start", "infeed", "recv", "send"):
        return elements[0]
    if opcode.endswith("-start") and opcode != "all-reduce-start":
        return elements[1]
    return shape


def _elements(shape: str) -> list[str]:
    """Returns the shapes of a tuple's elements; of another shape, a list of that shape."""
    if not shape.startswith("("):
        return [shape]
    elements, depth = [""], 0
    for character in shape[1:-1]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            elements.append("")
        else:
            elements[-1] += character
    return [element.strip() for element in elements]


def arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """Returns (dtype, sizes), such as ("bf16", (8, 4096)), of each array in a shape."""
    return [
        (dtype, tuple(int(size.removeprefix("<=")) for size in sizes.split(",") if size))
        for dtype, sizes in _ARRAY.findall(shape)
    ]


def _bytes(shape: str) -> int:
    return sum(ceil(prod(sizes) * _bits(dtype) / 8) for dtype, sizes in arrays(shape))


def _bits(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)
    return 8 if dtype == "pred" else int(digits[0]) if digits else 0
