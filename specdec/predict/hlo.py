"""The contents of a compiled XLA program, read from its text.

`compiled.as_text()` is optimised HLO, after scheduling: one instruction per line, in named
computations that refer to each other. `read` follows these references from the entry, so that
each instruction is found in the loop in which it runs, however deep in fusions, calls and
conditionals it lies. What a computation contains is listed once for each place that calls it, and
not at all if nothing does.

The text is the only source: what the compiler does not write down, this module does not guess.
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
MOVES = {"copy", "slice", "dynamic-slice", "dynamic-update-slice"}  # where they are asynchronous
# These hand on an array where it lies.
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
_AROUND = re.compile(r"(?:^|/)while/(?:body|cond)(?=/|$)")  # of a scope, what encloses the loop
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
    """One instruction; an asynchronous pair counts once, where it starts."""

    opcode: str  # "all-reduce", also for all-reduce-start
    name: str  # unique in the text
    shape: str  # of the result on one device, without layout: "bf16[1,8,4096]", or "(f32[8], ...)"
    bytes: int  # of that result
    scope: str  # the traced operation it comes from, metadata's op_name; "" if there is none
    loop: tuple[str, ...]  # names of the loops around it, outermost first
    fused: bool  # within a fusion and not its result, so without an array of its own
    operand: str  # the shape of the first operand; "" if there is none
    cycles: int = 0  # by the compiler's own estimate; 0 where it states none, as on CPUs


@dataclasses.dataclass(frozen=True)
class Loop:
    """A while loop, by the last name in its scope that the user gave; several may share one."""

    name: str
    trip_count: int | None  # None where the compiler does not state it
    loops: tuple[Loop, ...]  # inside it


@dataclass(frozen=True)
class Module:
    """The loops and instructions of a compiled program, in the program's order."""

    loops: tuple[Loop, ...]  # that lie in no other
    operations: tuple[Instruction, ...]  # that are run on their own, a fusion as one; not moves
    collectives: tuple[Instruction, ...]
    copies: tuple[Instruction, ...]  # within a memory, or to another layout
    moves: tuple[Instruction, ...]  # asynchronous, such as prefetches to a faster memory
    host_transfers: tuple[Instruction, ...]
    dynamic_shapes: tuple[Instruction, ...]  # whatever makes or has a size not known before it runs
    sparse_core: tuple[Instruction, ...]  # each with all that it runs there, as one


KINDS = [field.name for field in dataclasses.fields(Module)][1:]  # of instructions


def read(text: str) -> Module:
    """Reads the contents of a compiled program from its text."""
    # A collective that the compiler spreads over several fusions counts once. What a SparseCore
    # runs is no operation, move or copy of the program's own.
    entry, computations = _parse(text)
    by_kind: dict[str, list[Instruction]] = {kind: [] for kind in KINDS}
    spread: set[str] = set()  # channels of the collectives met in fusions

    def walk(
        name: str, loop: tuple[str, ...], fused: bool, returned: bool, elsewhere: bool = False
    ) -> tuple[Loop, ...]:
        """Notes what a computation contains, and returns its loops."""
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
    """An instruction as it is written, with the fields that `read` needs."""

    name: str
    shape: str
    opcode: str
    operand: str  # the shape of the first operand, "" if there is none
    rest: str  # operands and attributes
    kinds: tuple[str, ...]  # the fields of Module it belongs to
    calls: tuple[str, ...]  # computations

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
    lines: list[_Line] = field(default_factory=list)  # those of some kind, or that call
    results: set[str] = field(default_factory=set)  # the root, and what it gathers if a tuple


def _parse(text: str) -> tuple[str, dict[str, _Computation]]:
    """Returns the name of the entry, and every computation by name."""
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
    """Returns the fields of Module to which an instruction belongs."""
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
    """Whether a copy-start, (destination, source, context), stays within one memory."""
    destination, source, *_ = (_SPACE.findall(element) for element in _elements(shape))
    return destination == source


def _calls(rest: str) -> tuple[str, ...]:
    """Returns the computations that an instruction runs."""
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
    """Returns the elements of a tuple's shape; any other shape is its own only element."""
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
    """Returns the dtype and the sizes of each array in a shape, as in ("bf16", (8, 4096))."""
    return [
        (dtype, tuple(int(size.removeprefix("<=")) for size in sizes.split(",") if size))
        for dtype, sizes in _ARRAY.findall(shape)
    ]


def _bytes(shape: str) -> int:
    """Returns the bytes of all arrays in a shape."""
    return sum(ceil(prod(sizes) * _bits(dtype) / 8) for dtype, sizes in arrays(shape))


def _bits(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)
    return 8 if dtype == "pred" else int(digits[0]) if digits else 0
