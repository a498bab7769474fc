"""What a compiled program's text says it contains: pytest tests/predict/test_hlo.py"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support import inside, opcodes

from specdec.predict.hlo import read


def computation(name, *lines, entry=False):
    """HLO text of a computation; what its header says of parameters and result is not read."""
    body = "\n".join(f"  {line}" for line in lines)
    return f"{'ENTRY ' if entry else ''}%{name} (p: f32[]) -> f32[] {{\n{body}\n}}\n"


def program(*lines, computations=()):
    """HLO text of a program whose entry has these lines."""
    header = 'HloModule jit_f, is_scheduled=true\n\nFileNames\n1 "f.py"\n'
    return "\n".join([header, *computations, computation("main.1", *lines, entry=True)])


def all_reduce(name, root=""):
    return f"{root}%{name} = f32[4]{{0}} all-reduce(%x), channel_id=1, to_apply=%add"


ADD = computation("add", "ROOT %sum = f32[] add(%a, %b)")
NESTED = program(
    all_reduce("before"),
    "%tuple.1 = (s32[]{:T(128)}, /*index=1*/f32[4]{0:T(256)S(1)}) tuple(%i, %x)",
    "%while.1 = (s32[]{:T(128)}, /*index=1*/f32[4]{0:T(256)S(1)}) while(%tuple.1), "
    'condition=%cond.1, body=%body.1, metadata={op_name="jit(decode)/jit(_decode)/while"}',
    all_reduce("after", root="ROOT "),
    computations=[
        ADD,
        computation("draft_cond", "ROOT %less = pred[] compare(%i, %n), direction=LT"),
        computation("draft_body", all_reduce("in_draft")),
        computation("branch_0", all_reduce("in_branch")),
        computation("branch_1", "ROOT %copy.1 = f32[4]{0} copy(%x)"),
        computation("fused", all_reduce("in_fusion")),
        computation("called", all_reduce("in_call"), all_reduce("in_call_too")),
        computation("cond.1", all_reduce("in_condition")),
        computation(
            "body.1",
            all_reduce("in_body"),
            "%while.2 = (s32[]) while(%t), condition=%draft_cond, body=%draft_body, "
            'metadata={op_name="jit(decode)/jit(_decode)/while/body/jit(step)/draft/while"}, '
            'backend_config={"known_init_step":{"init":"0","step":"1"},"known_trip_count":{"n":"7"}}',
            "%if = f32[4]{0} conditional(%b, %x, %y), branch_computations={%branch_0, %branch_1}",
            "%fusion.1 = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused, "
            'metadata={op_name="a, calls=%nothing"}',
            "ROOT %call.1 = f32[4]{0} call(%x), to_apply=%called",
        ),
        computation("never_called", all_reduce("unreachable")),
    ],
)


def names(instructions):
    return [instruction.name for instruction in instructions]


def test_every_collective_is_found_in_its_loop():
    where = {each.name: each.loop for each in read(NESTED).collectives}
    assert where == {
        "before": (),
        "in_condition": ("decode",),
        "in_body": ("decode",),
        "in_draft": ("decode", "draft"),
        "in_branch": ("decode",),
        "in_fusion": ("decode",),
        "in_call": ("decode",),
        "in_call_too": ("decode",),
        "after": (),
    }


def test_loops_are_nested_and_state_their_trip_count():
    (decode,) = read(NESTED).loops
    (draft,) = decode.loops
    assert (decode.name, decode.trip_count) == ("decode", None)
    assert (draft.name, draft.trip_count) == ("draft", 7)
    assert draft.loops == ()


def test_operations_are_what_runs_on_its_own():
    text = program(
        "%x = f32[4]{0} parameter(0)",
        "%k = f32[] constant(1)",
        "%m = (f32[4]{0:S(1)}, f32[4]{0}, u32[]) copy-start(%x)",
        "%n = f32[4]{0:S(1)} copy-done(%m)",
        "%f = f32[4]{0} fusion(%n), kind=kLoop, calls=%two",
        "%w = f32[4]{0} while(%f), condition=%cond, body=%body",
        "%t = (f32[4]{0}) tuple(%w)",
        computations=[
            computation("two", "%a = f32[4]{0} add(%p, %p)", "%b = f32[4]{0} multiply(%a, %a)"),
            computation("cond", "%lt = pred[] compare(%i, %j), direction=LT"),
            computation("body", "%s = f32[4]{0} sine(%p)", "%c = f32[4]{0} copy(%s)"),
        ],
    )
    assert [(one.name, one.loop) for one in read(text).operations] == [
        ("f", ()),
        ("lt", ("while",)),
        ("s", ("while",)),
        ("c", ("while",)),
    ]


def test_the_compilers_cycles_are_read():
    """Instructions with an estimate of their own are summed, asynchronous ones too."""
    estimated = 'backend_config={"window_config":{"estimated_cycles":"%s"},"flag_configs":[]}'
    text = program(
        f"%f = f32[4]{{0}} fusion(%x), kind=kLoop, calls=%two, {estimated % 1126}",
        f"%m = (f32[4]{{0:S(1)}}, f32[4]{{0}}, u32[]) copy-start(%x), {estimated % 90}",
        "ROOT %r = f32[4]{0} reshape(%f)",
        computations=[computation("two", f"%a = f32[4]{{0}} add(%p, %p), {estimated % 7}")],
    )
    module = read(text)
    assert [(one.name, one.cycles) for one in module.operations] == [("f", 1126), ("r", 0)]
    assert [one.cycles for one in module.moves] == [90]


def test_kinds_are_counted():
    text = program(
        all_reduce("a"),
        all_reduce("b"),
        "%c = (f32[1]{0}, f32[4]{0}) all-gather-start(%x), channel_id=2, dimensions={0}",
        "%d = f32[4]{0} all-gather-done(%c)",
        computations=[ADD],
    )
    assert opcodes(read(text).collectives) == {"all-reduce": 2, "all-gather": 1}


SPARSE = 'async_execution_thread="sparsecore"'
LOOKUP = 'metadata={op_name="jit(decode)/while/body/jit(_take)/gather"}'
# As libtpu 0.0.42 writes a lookup, with its operands where it starts, and as 0.0.46 does, with a
# start that has none. Both call a second start, of the same lookup.
OFFLOADED = program(
    f"%before = ((), (), s32[]) call-start(), {SPARSE}, to_apply=%called, {LOOKUP}",
    "%before.update = ((f32[9,2], s32[3]), f32[3,2]) call-update(%before, %x, %i)",
    "%before.done = f32[3,2] call-done(%before.update)",
    "%while.1 = (s32[]) while(%t), condition=%cond.1, body=%body.1, "
    'metadata={op_name="jit(decode)/while"}',
    computations=[
        ADD,
        computation("looked_up", "ROOT %fusion.7 = f32[3,2] fusion(%x, %i), kind=kCustom"),
        computation(
            "called",
            f"%again = ((f32[9,2], s32[3]), f32[3,2], u32[]) call-start(%x, %i), {SPARSE}, "
            "to_apply=%looked_up",
            "ROOT %again.done = f32[3,2] call-done(%again)",
        ),
        computation("summed", all_reduce("there", root="ROOT ")),
        computation("cond.1", "ROOT %less = pred[] compare(%i, %n), direction=LT"),
        computation(
            "body.1",
            f"%one = ((f32[9,2], s32[3]), f32[3,2]) call-start(%x, %i), {SPARSE}, "
            f"to_apply=%called, {LOOKUP}",
            "%one.done = f32[3,2] call-done(%one)",
            f"%two = ((), (), s32[]) async-start(), {SPARSE}, calls=%called, {LOOKUP}",
            f"%sum = ((f32[4]), f32[4]) async-start(%y), {SPARSE}, calls=%summed",
            '%other = ((f32[4]), f32[4]) call-start(%y), async_execution_thread="host", '
            "to_apply=%add",
            "ROOT %copy.1 = f32[4]{0} copy(%y)",
        ),
    ],
)


def test_what_a_sparse_core_runs_is_counted_once_where_it_starts():
    found = read(OFFLOADED)
    assert [(one.name, "/".join(one.loop)) for one in found.sparse_core] == [
        ("before", ""),
        ("one", "decode"),
        ("two", "decode"),
        ("sum", "decode"),
    ]
    assert names(found.collectives) == ["there"]
    assert names(found.operations) == ["less", "sum", "copy.1"]


@pytest.mark.parametrize(
    "scope, name",
    [
        ("jit(decode)/jit(_decode)/while", "decode"),
        ("jit(decode)/jit(_decode)/while/body/jit(step)/draft/while", "draft"),
        ("jit(f)/while/body/while", "while"),  # names around the outer loop are not the inner one's
        ("jit(f)/while/body/closed_call/while", "while"),
        ("jit(f)/while/cond/find/while", "find"),
        ("jit(f)/draft/cond/branch_1_fun/while", "draft"),
        ("jit(f)/while/body/vmap(jit(_uniform))/vmap(vmap())/while", "uniform"),
        ("jit(f)/cache/scatter", "scatter"),  # the compiler made a loop of it
        ("", "while"),
    ],
)
def test_a_loop_is_called_by_its_scope(scope, name):
    text = program(
        f'%while.1 = s32[] while(%i), condition=%c, body=%b, metadata={{op_name="{scope}" id=1}}',
        computations=[computation("c"), computation("b", all_reduce("r")), ADD],
    )
    (loop,) = read(text).loops
    assert loop.name == name
    assert read(text).collectives[0].loop == (name,)


def test_a_computation_is_listed_for_each_of_its_callers():
    text = program(
        "%call.1 = f32[4]{0} call(%x), to_apply=%shared",
        "%while.1 = s32[] while(%i), condition=%c, body=%shared",
        computations=[ADD, computation("c"), computation("shared", all_reduce("r"))],
    )
    assert [each.loop for each in read(text).collectives] == [(), ("while",)]


@pytest.mark.parametrize(
    "line, opcode, shape, size",
    [
        ("bf16[1,8,4]{2,1,0:T(8,128)(2,1)S(3)} all-reduce(%x)", "all-reduce", "bf16[1,8,4]", 64),
        ("bf16[8]{0} all-reduce-start(%x)", "all-reduce", "bf16[8]", 16),
        (
            "(f32[4]{0:T(8)(2,1)}, /*index=1*/bf16[2,3]{1,0}) all-reduce(%x, %y)",
            "all-reduce",
            "(f32[4], bf16[2,3])",
            28,
        ),
        (
            "(f32[4]{0}, bf16[2,3]{1,0}) all-reduce-start(%x, %y)",
            "all-reduce",
            "(f32[4], bf16[2,3])",
            28,
        ),
        ("(f32[2]{0}, f32[8]{0}) all-gather-start(%x)", "all-gather", "f32[8]", 32),
        (
            "((f32[2]{0}, s8[2]{0}), (f32[8]{0}, s8[8]{0})) all-gather-start(%x, %y)",
            "all-gather",
            "(f32[8], s8[8])",
            40,
        ),
        (
            "(f32[2]{0}, f32[3]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x)",
            "collective-permute",
            "f32[3]",
            12,
        ),
        ("((f32[8]{0}), f32[2]{0}, s32[]) reduce-scatter-start(%x)", "reduce-scatter", "f32[2]", 8),
        ("f32[2,4]{1,0} all-to-all(%x)", "all-to-all", "f32[2,4]", 32),
        ("(f32[2]{0}, u32[], token[]) send(%x, %t), channel_id=3", "send", "f32[2]", 8),
    ],
)
def test_a_collective_has_the_shape_of_its_result(line, opcode, shape, size):
    text = program(f'%c.1 = {line}, metadata={{op_name="jit(f)/out" stack_frame_id=1}}')
    (found,) = read(text).collectives
    assert found[:-1] == (opcode, "c.1", shape, size, "jit(f)/out", (), False, "")


def test_a_wrapped_collective_is_counted_where_it_starts():
    text = program(
        "%s = ((f32[8]{0}), f32[4]{0}, s32[]) async-start(%x), calls=%wrapped",
        "%d = f32[4]{0} async-done(%s), calls=%wrapped",
        computations=[ADD, computation("wrapped", all_reduce("r", root="ROOT "))],
    )
    assert names(read(text).collectives) == ["r"]


def test_a_collective_spread_over_fusions_is_one():
    """The TPU compiler interleaves an all-gather with matrix products: it stands in the fusion
    that starts it, in those that go on with it, and in the one that ends it."""

    def part(name, channel, target=""):
        gather = f"f32[8]{{0}} all-gather(%x), channel_id={channel}, dimensions={{0}}"
        end = f'(f32[8]{{0}}) custom-call(%g), custom_call_target="AsyncCollective{target}"'
        return computation(name, f"%gather.{name} = {gather}", f"ROOT %end.{name} = {end}")

    text = program(
        "%f.1 = (f32[8]{0}) fusion(%x), kind=kCustom, calls=%a.start",
        "%f.2 = (f32[8]{0}) fusion(%f.1), kind=kOutput, calls=%a.goes_on",
        "%f.3 = (f32[8]{0}) fusion(%f.2), kind=kCustom, calls=%a.end",
        "%f.4 = (f32[8]{0}) fusion(%f.3), kind=kCustom, calls=%b.start",
        computations=[
            part("a.start", 5, "Start"),
            part("a.goes_on", 5),
            part("a.end", 5, "Done"),
            part("b.start", 6, "Start"),
        ],
    )
    assert names(read(text).collectives) == ["gather.a.start", "gather.b.start"]


@pytest.mark.parametrize(
    "shape, size",
    [
        ("f32[]", 4),
        ("f32[0,4]", 0),
        ("pred[3]", 3),
        ("s4[3]", 2),
        ("u2[4]", 1),
        ("f8e4m3fn[5]", 5),
        ("c64[2]", 16),
        ("s32[<=3,2]", 24),
        ("token[]", 0),
        ("opaque[]", 0),
        ("((bf16[2], s8[1]), token[])", 5),
    ],
)
def test_bytes(shape, size):
    (found,) = read(program(f"%c.1 = {shape} copy(%x)")).copies
    assert found.bytes == size


def test_the_first_operand_has_its_shape_and_joined_moves_are_no_operation():
    text = program(
        "%p.1 = f32[1,8]{1,0:T(8,128)} parameter(0)",
        '%joined = f32[1,8]{1,0} custom-call(%p.1, %p.1), custom_call_target="ConcatBitcast"',
        '%top = (f32[1,2]{1,0}, s32[1,2]{1,0}) custom-call(%p.1), custom_call_target="TopK"',
        "%count = s32[1,8]{1,0} iota(), iota_dimension=1",
    )
    operands = {one.name: one.operand for one in read(text).operations}
    assert operands == {"top": "f32[1,8]", "count": ""}


def test_a_copy_is_fused_unless_it_is_what_a_fusion_returns():
    layout = "f32[4]{0} copy(%p)"
    text = program(
        f"%plain = {layout}",
        "%fusion.1 = f32[4]{0} fusion(%x), kind=kLoop, calls=%returns_it",
        "%fusion.2 = (f32[4]{0}, f32[4]{0}) fusion(%x), kind=kLoop, calls=%returns_two",
        "%fusion.3 = f32[4]{0} fusion(%x), kind=kOutput, calls=%outer",
        computations=[
            computation("returns_it", f"%operand = {layout}", f"ROOT %root = {layout}"),
            computation(
                "returns_two",
                f"%first = {layout}",
                f"%other = {layout}",
                "ROOT %t = (f32[4]{0}, f32[4]{0}) tuple(%first, %q)",
            ),
            computation("inner", f"ROOT %of_inner = {layout}"),
            computation(
                "outer",
                "%fusion.4 = f32[4]{0} fusion(%x), kind=kLoop, calls=%inner",
                "ROOT %dot = f32[4]{0} convolution(%fusion.4, %y)",
            ),
        ],
    )
    copies = read(text).copies
    assert [each.name for each in copies if not each.fused] == ["plain", "root", "first"]
    assert [each.name for each in copies if each.fused] == ["operand", "other", "of_inner"]


# What an instruction is; those of 16 bytes are copies, to wherever they go.
KINDS = {
    "copies": [
        "f32[4]{0:T(256)S(1)} copy(%x)",
        "(f32[4]{0:T(256)}, f32[4]{0}, u32[]{:S(2)}) copy-start(%x)",
        "(f32[4]{0:S(1)}, f32[4]{0:S(1)}, u32[]{:S(2)}) copy-start(%x)",
    ],
    "moves": [
        "(f32[4]{0:S(1)}, f32[4]{0}, u32[]{:S(2)}) copy-start(%x)",
        "(f32[4]{0}, f32[4]{0:S(1)}, u32[]{:S(2)}) copy-start(%x)",
        "((f32[9]{0}), f32[4]{0:S(1)}, s32[]{:S(2)}) slice-start(%x), slice={[0:4]}",
    ],
    "host_transfers": [
        "f32[4]{0:T(256)S(5)} copy(%x)",
        "(f32[4]{0:S(5)}, f32[4]{0}, u32[]{:S(2)}) copy-start(%x)",
        "(f32[4]{0}, f32[4]{0:S(5)}, u32[]{:S(2)}) copy-start(%x)",
        "((f32[9]{0:S(5)}), f32[4]{0}, s32[]) slice-start(%x), slice={[0:4]}",
        "((f32[4]{0}), token[]) infeed(%t)",
        "token[] outfeed(%x, %t)",
        "(f32[4]{0}, u32[], token[]) send(%x, %t), channel_id=1, is_host_transfer=true",
        "(f32[4]{0}, u32[], token[]) recv(%t), channel_id=1, is_host_transfer=true",
        '() custom-call(%x), custom_call_target="xla_ffi_python_cpu_callback"',
        'f32[4]{0} custom-call(%x), custom_call_target="MoveToHost"',
        'f32[4]{0} custom-call(%x), custom_call_target="MoveToDevice"',
        "f32[4]{0:T(256)S(5)} fusion(%x), kind=kLoop, calls=%add",
    ],
    "dynamic_shapes": [
        "s32[<=128]{0} parameter(0)",
        "(f32[4,<=8]{1,0}, s32[]) fusion(%x), kind=kLoop, calls=%add",
        "f32[8]{0} set-dimension-size(%x, %n), dimensions={0}",
        "s32[] get-dimension-size(%x), dimensions={0}",
        '(f32[8]{0}, s32[]) custom-call(%x), custom_call_target="PadToStatic"',
        'f32[8]{0} custom-call(%x, %n), custom_call_target="SliceToDynamic"',
    ],
    "": [  # what ends or resembles one of these, or stays where it lies
        "f32[8]{0} all-reduce-done(%c)",
        "f32[8]{0} async-done(%c), calls=%wrapped",
        "((f32[8]{0}), f32[8]{0}, s32[]) async-update(%c), calls=%wrapped",
        "f32[8]{0} copy-done(%c)",
        "f32[8]{0:S(5)} copy-done(%c)",
        "(f32[8]{0}, token[]) recv-done(%c), is_host_transfer=true",
        "u32[] partition-id()",
        'f32[8]{0} add(%a, %b), metadata={op_name="jit(f)/ all-reduce(x) copy(y)"}',
        'f32[4]{0} custom-call(%x), custom_call_target="AssumeGatherIndicesInBound"',
        "f32[4]{0:S(5)} parameter(0)",
        "f32[4]{0:S(5)} get-tuple-element(%p), index=1",
        "f32[4]{0:S(1)} add(%x, %y)",
        "f32[8]{0} parameter(0), sharding={devices=[4,1]<=[4]}",
        "f32[8]{0} dynamic-slice(%x, %i), dynamic_slice_sizes={8}",
    ],
}


@pytest.mark.parametrize(
    "line, kind", [(line, kind) for kind, lines in KINDS.items() for line in lines]
)
def test_an_instruction_is_of_one_kind(line, kind):
    computations = [ADD, computation("wrapped", all_reduce("r"))]
    found = read(program(f"%c.1 = {line}", computations=computations))
    kinds = {one: getattr(found, one) for one in ("collectives", *KINDS) if one}
    assert {one: names(made) for one, made in kinds.items() if made} == (
        {kind: ["c.1"]} if kind else {}
    )
    if kind and ("copy" in line or "slice-start" in line):
        (instruction,) = kinds[kind]
        assert (instruction.shape, instruction.bytes) == ("f32[4]", 16)


@pytest.mark.parametrize(
    "text, message",
    [
        ("HloModule jit_f\n" + computation("main"), "has no ENTRY"),
        (program("%call.1 = f32[] call(%x), to_apply=%lost"), "calls lost but lacks it"),
    ],
)
def test_a_text_that_is_not_whole_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        read(text)


@pytest.fixture(scope="module")
def compiled():
    """What XLA makes, for two CPU devices, of a loop with a sharded product and a scan in it."""
    mesh = jax.make_mesh((2,), ("model",), (AxisType.Auto,), devices=jax.devices()[:2])
    whole = NamedSharding(mesh, P())

    def verify(x, w):
        return jnp.tanh(jax.lax.with_sharding_constraint(x @ w, whole))

    def body(carry, w):
        step, x = carry
        with jax.named_scope("draft"):
            x, _ = jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=5)
        jax.debug.callback(lambda step: None, step)
        return step + 1, verify(x, w)

    @jax.jit
    def decode(x, w, steps):
        x = verify(verify(x, w), w)
        return jax.lax.while_loop(lambda carry: carry[0] < steps, lambda c: body(c, w), (0, x))

    x = jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=whole)
    w = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, P("model", None)))
    return read(decode.lower(x, w, 3).compile().as_text() or "")


def test_a_real_program_is_read(compiled):
    (decode,) = compiled.loops
    (draft,) = decode.loops
    assert (decode.name, decode.trip_count) == ("decode", None)
    assert (draft.name, draft.trip_count) == ("draft", 5)
    reduces = [each for each in compiled.collectives if each.opcode == "all-reduce"]
    assert [each.loop for each in reduces] == [(), (), ("decode",)]
    assert {(each.shape, each.bytes) for each in reduces} == {("f32[4,8]", 4 * 4 * 8)}
    assert "dot_general" in reduces[-1].scope
    assert not inside(compiled.collectives, "draft")
    assert [each.loop for each in compiled.host_transfers] == [("decode",)]
    assert not compiled.dynamic_shapes
