"""The compiler's own estimate of programs: pytest tests/predict/test_cycles.py"""

import dataclasses
import json
import runpy
import types
from pathlib import Path

import jax
import pytest
from support import tiny_t5

from specdec.common import theory
from specdec.drafters import Autoregressive
from specdec.models import partitioning
from specdec.models.t5 import T5Target
from specdec.plan import Plan
from specdec.predict import compilation
from specdec.predict.compilation import Compilation, Compiled, DeviceMemory, compile_for
from specdec.predict.compile_record import ProgramCycles, estimate, of_module, record
from specdec.predict.hardware import Topology
from specdec.predict.hlo import read
from specdec.sampling import Sampling
from specdec.schedules import Fixed
from specdec.verifiers import SpeculativeSampling

ROOT = Path(__file__).resolve().parents[2]
GAMMA = 3
MODEL = T5Target(tiny_t5(16, 8, 8, heads=2, decoder=2))
PLAN = Plan(
    MODEL,
    Autoregressive(MODEL, Sampling()),
    SpeculativeSampling(),
    Fixed(GAMMA),
    Sampling(),
    max_length=8,
)
MEMORY = DeviceMemory(1, 0, 2, 3, 0)
CYCLES = {"prefill": 5000, "target 1": 1000, "target 4": 1200, "draft 2": 100, "draft 1": 130}


def instruction(name, opcode, scope, cycles):
    """A line of HLO text, as a TPU's compiler writes it."""
    config = f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    source = f'metadata={{op_name="jit(decode)/T5.decode/{scope}"}}'
    called = ", calls=%fused" if opcode == "fusion" else ""
    return f"  %{name} = f32[4]{{0}} {opcode}(%x){called}, {source}, {config}"


def program(*given):
    """The contents of a program with these instructions."""
    fused = "%fused (p: f32[]) -> f32[] {\n  ROOT %s = f32[4]{0} sine(%p)\n}\n"
    body = "\n".join(instruction(f"i.{i}", *one) for i, one in enumerate(given))
    return read(f"{fused}ENTRY %main (p: f32[]) -> f32[] {{\n{body}\n}}\n")


def test_cycles_and_fusions_of_a_program():
    """Fusions of a decoder layer are those in its scope, and a layer of an encoder is not one."""
    found = of_module(
        program(
            ("fusion", "T5.run/decoder/layers_0/mlp/wi/dot_general", 700),
            ("fusion", "T5.run/decoder/layers_0/mlp/wo/dot_general", 300),
            ("fusion", "T5.run/decoder/layers_1/mlp/wi/dot_general", 50),
            ("fusion", "T5.encode/encoder/layers_0/mlp/wi/dot_general", 9),
            ("fusion", "T5.run/decoder/logits_dense/dot_general", 8),
            ("copy", "T5.run/decoder/layers_1/transpose", 6),
            ("custom-call", "T5.run/decoder/branch_0_fun/t5_streamed/pallas_call", 0),
            ("custom-call", "T5.run/decoder/top_k", 0),
        )
    )
    assert (found.cycles, found.fusions, found.fusions_per_layer) == (1073, 5, 1.5)
    assert found.kernels == 1
    encoder = program(("fusion", "T5.encode/encoder/layers_0/mlp/wi/dot_general", 9))
    assert of_module(encoder) == ProgramCycles(9, 1, None) == ProgramCycles(9, 1, None, kernels=0)


def compiled(cycles=CYCLES, **modules):
    """Returns a plan's compilation whose parts state these cycles, or have other contents."""
    scope = "T5.run/decoder/layers_0/mlp/wi/dot_general"
    made = {name: program(("fusion", scope, count)) for name, count in cycles.items()} | modules
    parts = {name: Compiled(name, 1.0, MEMORY, module) for name, module in made.items()}
    whole, mesh = Compiled("decode", 2.0, MEMORY), {"data": 1, "model": 1}
    return Compilation(PLAN, 1, 8, mesh, whole, parts, parameter_bytes=4, cache_bytes=5, calls={})


def test_costs_follow_from_the_cycles():
    found = estimate(compiled(), {"0.8": 0.8})
    assert found is not None
    assert {name: part.cycles for name, part in found.parts.items()} == CYCLES
    assert found.cost_ratio == pytest.approx((100 + 2 * 130) / 3 / 1000)
    assert found.verify_cost == pytest.approx(1.2)
    assert found.speedups["0.8"] == pytest.approx(theory.speedup(0.8, 3, 0.12, 1.2))
    assert estimate(compiled(dict.fromkeys(CYCLES, 0)), {"0.8": 0.8}) is None  # of a CPU


OWN = program(
    ("fusion", "T5.run/decoder/logits_dense/dot_general", 50),
    ("custom-call", "T5.run/decoder/t5_streamed/pallas_call", 0),
)


@pytest.mark.parametrize("name, module", [("target 4", None), ("draft 1", OWN)])
def test_a_part_without_all_cycles_leaves_the_costs_out(name, module):
    """It does not fit, or has a kernel whose cycles the compiler does not state."""
    changed = compiled(**{name: module})
    found = estimate(changed, {"0.8": 0.8})
    assert found is not None and found.cost_ratio is None and not found.speedups
    assert found.parts.keys() == {one for one in CYCLES if module or one != name}
    told = record(Topology.parse("v4:1x1x1"), changed, {"0.8": 0.8})
    assert told["compiler"] == dataclasses.asdict(found)


@pytest.mark.slow
@pytest.mark.parametrize("of_draft, width, joined", [([3, 2, 1], 2, 1), ([100, 300, 200], 1, 0)])
def test_the_cycles_decide_how_calls_on_one_token_are_computed(
    of_draft, width, joined, monkeypatch
):
    """Calls on one token, on two, and of a draft with joined kernels; cycles are given."""
    real, cycles = compilation._compiled, iter([300, 100, *of_draft])
    scope = "T5.run/decoder/layers_0/mlp/wi/dot_general"

    def compiled(name, *given):
        part, executable = real(name, *given)
        if name in ("target", "draft"):
            part = dataclasses.replace(part, module=program(("fusion", scope, next(cycles))))
        return part, executable

    monkeypatch.setattr(compilation, "_platform", lambda mesh: "tpu")
    monkeypatch.setattr(compilation, "_compiled", compiled)
    mesh = partitioning.make_mesh(1, jax.devices()[:1])
    found = compile_for(PLAN, (1, 8), mesh)
    models = found.plan.models()
    assert (models["target"].least_width, models["draft"].least_width) == (2, width)
    assert (models["target"].joined, models["draft"].joined) == (False, joined)
    assert "draft 2" in found.parts and ("draft 1" in found.parts) == (width == 1)
    assert compile_for(PLAN, (2, 8), mesh, parts=False).plan == PLAN


PAIR = Plan(
    T5Target(tiny_t5(16, 8, 8, heads=2, decoder=2)),
    Autoregressive(T5Target(tiny_t5(16, 8, 12, heads=2)), Sampling()),
    SpeculativeSampling(),
    Fixed(GAMMA),
    Sampling(),
    max_length=8,
)


@pytest.mark.parametrize(
    "target, draft, widths, joined",
    [
        ([300, 100], [3, 2, 1], (2, 2), True),
        ([300, 100], [3, 1, 2], (2, 2), False),
        ([100, 300], [100, 300, 200], (1, 1), False),
        ([100, 100], [0, 0, 5], (1, 2), True),  # no cycles are no estimate
    ],
)
def test_calls_with_the_fewest_cycles_are_chosen(monkeypatch, target, draft, widths, joined):
    """Calls on one token are tried as they are, with two tokens, and a draft's with joined kernels.

    Nothing is compiled: the caches come from the prefill, which is of the models with two tokens.
    """
    cycles, asked = {"target": iter(target), "draft": iter(draft)}, []
    tried: list[tuple] = []
    cache = {role: {"x": jax.ShapeDtypeStruct([3], "float32")} for role in cycles}

    def compiled(name, call, *given):
        asked.append(name)
        if name == "prefill":
            return None, types.SimpleNamespace(
                out_info=jax.tree.map(lambda x: x.update(sharding=None), cache)
            )
        params, tokens, own = given
        assert tokens.shape == (1, 1) and own == cache[name]
        tried.append((name, params.layout.least_width, params.layout.joined))
        scope = "T5.run/decoder/layers_0/mlp/wi/dot_general"
        count = next(cycles[name])
        return types.SimpleNamespace(module=program(("fusion", scope, count))), None

    monkeypatch.setattr(compilation, "_platform", lambda mesh: "tpu")
    monkeypatch.setattr(compilation, "_compiled", compiled)
    monkeypatch.setattr(partitioning, "abstract", lambda model, mesh: model)
    mesh = partitioning.make_mesh(1, jax.devices()[:1])
    one, two = (jax.ShapeDtypeStruct([rows, 8], "int32") for rows in (1, 2))
    models = compilation._fewest_cycles(PAIR, one, mesh).models()
    assert (models["target"].layout.least_width, models["draft"].layout.least_width) == widths
    assert (models["target"].layout.joined, models["draft"].layout.joined) == (False, joined)
    ways = [("target", 1, False), ("target", 2, False), ("draft", 1, False), ("draft", 2, False)]
    assert tried == [*ways, ("draft", 2, True)] and asked == [
        "prefill",
        *(one for one, *_ in tried),
    ]
    cycles["target"], alone = iter([2, 1]), PAIR.alone()  # with calls on one token only
    assert compilation._fewest_cycles(alone, one, mesh).target.layout.least_width == 2
    assert compilation._fewest_cycles(PAIR, two, mesh) is PAIR  # no call on one token
    monkeypatch.setattr(compilation, "_compiled", lambda *_: (None, None))
    assert compilation._fewest_cycles(PAIR, one, mesh) is PAIR  # the prefill does not fit
    monkeypatch.undo()
    assert compilation._fewest_cycles(PAIR, one, mesh) is PAIR  # a CPU states no cycles


def test_the_tables_are_those_of_the_results():
    file = ROOT / "docs" / "results" / "cycles.jsonl"
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    tables = runpy.run_path(str(ROOT / "scripts" / "devices" / "cycles.py"))["tables"]
    page = (ROOT / "docs" / "log" / "tpu-log.md").read_text(encoding="utf-8")
    for table in "\n".join(tables(found)).split("\n\n"):
        assert table in page


def test_a_call_on_two_tokens_costs_no_more_than_one_on_eight():
    """A call of T5-XXL on one token costs more than one on two, as the compiler estimates it."""
    file = ROOT / "docs" / "results" / "cycles.jsonl"
    found = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    xxl = [one for one in found if one["model"] == "t5_1_1_xxl"]
    cycles = {(one["topology"], one["weights"], one["tokens"]): one["cycles"] for one in xxl}
    places = {key[:2] for key in cycles}
    assert len(places) >= 2
    for place in places:
        assert cycles[*place, 2] <= 1.1 * cycles[*place, 8] < cycles[*place, 1]
