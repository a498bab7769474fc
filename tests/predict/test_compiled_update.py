"""An update of a training run, compiled from shapes alone: pytest tests/predict

Eight CPU devices stand for a topology's; test_compile.py has the one test that needs libtpu.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from support import tiny_t5

from specdec import cli
from specdec.engine import Placement
from specdec.models import partitioning
from specdec.models.layers.layers import constrain
from specdec.models.t5 import T5Target
from specdec.predict import hlo, update
from specdec.predict.compilation import Compiled, DeviceMemory
from specdec.predict.hardware import CHIPS, GIB, Topology
from specdec.predict.update import (
    CompiledUpdate,
    Sizes,
    compile_update,
    largest_batch,
    needed,
)
from specdec.predict.update_report import (
    update_lines,
    update_markdown,
    update_record,
)
from specdec.training import Align, TrainingError, TrainRun

ROOT = Path(__file__).resolve().parents[2]
V, ROWS, INPUTS, TARGETS = 48, 64, 12, 10
V4 = Topology.parse("v4:2x2x2")
MODEL = T5Target(tiny_t5(V, 8, 24, heads=4, head_dim=4))
TARGET = T5Target(tiny_t5(V, 16, 32, heads=8, head_dim=4))
RUN = TrainRun(
    MODEL,
    "(none)",
    {"inputs": INPUTS, "targets": TARGETS},
    steps=10,
    batch_size=ROWS,
    objective=Align({"forward_kl": 1.0}),
    target=TARGET,
    target_path="(none)",
    placement=Placement(partitioning.Partitioner(num_partitions=4)),
)


def mesh(partitions: int = 4):
    return partitioning.make_mesh(partitions, jax.devices())


@functools.cache
def two_parts() -> Any:
    """Two micro-batches on a mesh of two by four devices."""
    return compile_update(dataclasses.replace(RUN, micro_batches=2), mesh())


@pytest.mark.ci
def test_neither_parameters_of_the_target_nor_logits_are_gathered():
    found = two_parts()
    assert list(found.gathered()) == []
    widest = {ROWS // 2 // 2 * TARGETS * V, 16 * V, 8 * V}  # logits of a device's rows, kernels
    gathered = [one for one in found.program.module.collectives if one.opcode == "all-gather"]
    assert not widest & {one.bytes // 4 for one in gathered}


def test_a_gathered_parameter_is_found():
    """In whatever order its axes are, and also as one of several results."""
    found, shape = fake(RUN, 1), "(f32[8], bf16[1,48,16])"
    one = hlo.Instruction("all-gather", "gathered", shape, 1536, "", (), False, "")
    others = [one._replace(opcode="all-reduce"), one._replace(shape="bf16[48,8]")]
    module = hlo.Module((), (), (one, *others), (), (), (), (), ())
    whole = dataclasses.replace(found.program, module=module)
    found = dataclasses.replace(found, program=whole, divided=frozenset([(16, 48)]))
    assert list(found.gathered()) == [one]


def test_the_gradient_of_a_layout_needs_no_sum_over_devices():
    def loss(x):
        with nn.logical_axis_rules((("batch", "data"),)):
            return constrain(x, "batch", None, tpu_order=(0, 1)).sum()

    with jax.set_mesh(mesh()):
        traced = str(jax.make_jaxpr(jax.grad(loss))(jnp.ones([2, 4])))
    assert "layout_constraint" in traced and "psum" not in traced


@pytest.mark.ci
def test_sizes_of_a_device():
    found, sizes = two_parts(), two_parts().sizes
    frozen = TARGET.parameter_shapes()
    whole = sum(4 * leaf.size for leaf in jax.tree.leaves(frozen))
    assert whole / 4 < sizes.target < whole / 3
    assert sizes.gradients == sizes.parameters
    assert sizes.target_logits == 4 * ROWS // 2 * TARGETS * V // 8
    memory = found.program.memory
    parts = sizes.parameters + sizes.optimizer + sizes.target
    batch = 4 * ROWS // 2 * (INPUTS + TARGETS)
    # Arrays of odd sizes are padded: 1 % in all, on every processor.
    assert memory.arguments == pytest.approx(parts + batch, rel=0.03)


@pytest.mark.ci
def test_every_micro_batch_counts():
    """XLA counts the loop over them once."""
    found = two_parts()
    assert found.texts == ROWS // 2
    again = found.program.flops - found.optimizer.flops
    assert 0 < again < found.program.flops
    assert found.costs()[0] == found.program.flops + again
    inside = sum(1 for each in found.program.module.collectives if each.loop)
    outside = len(found.program.module.collectives) - inside
    assert inside and found.collectives().total() == 2 * inside + outside


def fake(run: TrainRun, gib: float, chip=CHIPS["v4"]) -> CompiledUpdate:
    """Returns an update that needs `gib` GiB of memory."""
    memory, too_large = DeviceMemory(0, 0, int(gib * GIB), 0, 0), None
    if memory.total >= chip.memory:
        memory, too_large = None, f"memory required ({gib:.2f}G) exceeds available (30.75G)"
    whole = Compiled("update", 0.0, memory, too_large=too_large)
    sizes = Sizes(GIB, 0, GIB, 5 * GIB, 0, 0)
    return CompiledUpdate(run, {"data": 2, "model": 4}, whole, None, sizes, frozenset())


@pytest.fixture
def asked(monkeypatch):
    """Returns a function that searches where memory is `used(texts)` GiB.

    It returns the found texts and all texts that were compiled.
    """

    def search(begun: int, used: Callable[[int], float]) -> tuple[int, list[int]]:
        asked = []

        def compiled(run, mesh, optimizer=None, progress=None):
            asked.append(run.batch_size // run.micro_batches)
            return fake(run, used(asked[-1]))

        monkeypatch.setattr(update, "compile_update", compiled)
        over, run = mesh(), dataclasses.replace(RUN, batch_size=8 * begun, micro_batches=8)
        found = largest_batch(run, over, CHIPS["v4"], compiled(run, over))
        assert found is not None and all(each % 2 == 0 for each in asked)
        return found.texts, asked

    return search


@pytest.mark.parametrize("texts", [2, 16, 40, 200])
@pytest.mark.parametrize("of_a_text", [0.02, 0.4, 0.55, 3.0])
def test_the_largest_batch(asked, texts, of_a_text):
    """Wherever the search begins, a few programs are enough, also where memory is no line."""
    found, compiled = asked(texts, lambda n: 7 + of_a_text * n + 0.3 * (n % 3))
    room = (30.75 - 7) / of_a_text
    assert room * 0.8 - 4 <= found <= room
    assert len(compiled) <= 5, compiled


@pytest.mark.parametrize("fixed", [7, 9, 12])
@pytest.mark.parametrize("of_a_text", [0.02, 0.05, 0.1])
def test_memory_that_no_shape_shows_costs_one_more_program(asked, fixed, of_a_text):
    found, compiled = asked(16, lambda n: fixed + of_a_text * n)
    assert found >= 0.8 * (30.75 - fixed) / of_a_text
    assert len(compiled) <= 3, compiled


def test_not_even_one_text_fits(monkeypatch):
    monkeypatch.setattr(update, "compile_update", lambda run, *_, **__: fake(run, 99))
    assert largest_batch(RUN, mesh(), CHIPS["v4"], fake(RUN, 99)) is None


def test_what_does_not_fit_is_told_with_what_to_change():
    found = update_record(V4, fake(RUN, 40))
    assert found["memory"]["needed"] == 40 * GIB == needed(fake(RUN, 40))
    assert found["advice"].startswith("an update needs 40.00 GiB of 30.75 GiB; give more MICRO_")
    assert found["advice"] in "\n".join(update_lines(found))
    assert "does not fit" in update_markdown([found])


def test_rows_that_the_mesh_cannot_divide():
    with pytest.raises(TrainingError, match="batch_size is 1, which a mesh of 2"):
        compile_update(dataclasses.replace(RUN, micro_batches=ROWS), mesh())


GIN = "--gin_file=configs/xxl_align_small.gin"


@pytest.mark.parametrize(
    "flags, message",
    [
        ([GIN, "--gamma=5"], "--gamma is 5, and the gin files describe a training run"),
        ([GIN, "--alpha=0.5"], "--alpha is [0.5], and the gin files describe a training run"),
        ([GIN, "--whole_only"], "--whole_only is for decoding"),
        ([GIN, "--gin.MICRO_BATCHES=3"], "micro_batches is 3, which does not divide the batch"),
        (["--gin_file=demo.gin", "--largest_batch"], "--largest_batch is for training runs"),
    ],
)
def test_mistakes_are_one_line(capsys, flags, message):
    assert cli.main(["compile", "--topology=v4:2x2x1", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


RESULTS = sorted((ROOT / "docs" / "results" / "compiled_updates").glob("*.json"))
QUOTED = {
    "xxl_align_small_v4_over_2": "{} chip hours for T5-small",
    "xxl_align_shared_encoder_v4_over_1": "{} for a drafter of one layer",
}
TRAINED = {"small": "T5-small", "shared": "one layer, shared encoder"}


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_the_tables_of_compiled_updates_are_those_of_the_results(file):
    """The log has the whole row, and the page what two of them cost."""
    (found,) = json.loads(file.read_text())["topologies"]
    name = TRAINED[file.stem.split("_")[2]]
    *_, row = update_markdown([found]).splitlines()
    log = (ROOT / "docs" / "log" / "tpu-log.md").read_text()
    assert f"| {name} {row}" in log
    if file.stem in QUOTED:
        page = (ROOT / "docs" / "how-to" / "train-on-a-pod.md").read_text()
        hours = f"{10 * found['roofline']['chip_hours_per_1000_updates']:.1f}"
        assert QUOTED[file.stem].format(hours) in " ".join(page.split())
    assert found["gathered_target_parameters"] == []
