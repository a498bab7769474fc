"""Programs compiled for TPUs that are not there: pytest tests/predict/test_compile.py

The tests that compile need libtpu, in an environment of its own (beside it JAX would look for a TPU
in every other test). It is installed into a folder for them, and they are skipped where that fails.
"""

import dataclasses
import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from support import tiny_t5

from specdec import cli, prefill, step
from specdec.common import theory
from specdec.common.values import UsageError
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import T5XBeams
from specdec.decoding.draft_beams import DraftBeams
from specdec.decoding.program import batch_shapes
from specdec.drafters import Autoregressive, Drafter, Hybrid, NoSource, PromptLookup
from specdec.models import partitioning
from specdec.models.t5 import T5Config, T5Target, calm
from specdec.plan import Plan
from specdec.predict.compilation import compile_for, program_count
from specdec.predict.compile_record import record
from specdec.predict.compile_report import explanation, lines
from specdec.predict.hardware import CHIPS, HOP_SECONDS, LAYER_SECONDS, Call, Topology
from specdec.predict.roofline import PAPER_ALPHAS, predict, silent_call
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Confidence, Disco, Fixed, Heuristic
from specdec.testing import Constant, TableTarget
from specdec.types import Part
from specdec.verifiers import SpeculativeSampling

ROOT = Path(__file__).resolve().parents[2]
LAYERS, HEADS, HEAD_DIM, VOCABULARY, GAMMA, LENGTH, MAX_LENGTH = 3, 8, 32, 512, 3, 24, 20

# Built like T5-XXL and T5-small, at a size that compiles in seconds.
RUN = f"""
from __gin__ import dynamic_registration
from specdec.models import t5

include 'decode.gin'
include 'drafters/autoregressive.gin'

MODEL = @target/t5.T5Target()
DRAFT_MODEL = @draft/t5.T5Target()
TASK = 'never_read'
TASK_FEATURE_LENGTHS = {{'inputs': {LENGTH}, 'targets': {MAX_LENGTH}}}
GAMMA = {GAMMA}

t5.T5Target.config = @t5.T5Config()
t5.T5Config.vocab_size = {VOCABULARY}
t5.T5Config.head_dim = {HEAD_DIM}
t5.T5Config.dtype = 'bfloat16'
target/t5.T5Config:
  emb_dim = 256
  num_heads = {HEADS}
  mlp_dim = 512
  num_encoder_layers = 2
  num_decoder_layers = {LAYERS}
draft/t5.T5Config:
  emb_dim = 128
  num_heads = 6
  mlp_dim = 256
  num_encoder_layers = 1
  num_decoder_layers = 2
"""


@pytest.fixture(scope="module")
def gin_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "tiny.gin"
    path.write_text(RUN)
    return path


@pytest.fixture(scope="module")
def libtpu(tmp_path_factory):
    """A folder with the libtpu that this JAX asks for, and nothing else."""
    wanted = [line for line in importlib.metadata.requires("jax") or () if "libtpu" in line]
    requirement = wanted[0].partition(";")[0].replace(" ", "")
    folder = tmp_path_factory.mktemp("libtpu")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, "--target", str(folder), requirement], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"{requirement} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return folder


@pytest.fixture(scope="module")
def report(libtpu, gin_file, tmp_path_factory):
    """What `specdec compile` says for a topology and more flags."""
    folder = tmp_path_factory.mktemp("reports")

    def compiled(topology: str, *flags: str) -> dict:
        path = folder / "report.json"
        command = [sys.executable, "-m", "specdec", "compile", f"--gin_file={gin_file}"]
        done = subprocess.run(
            [*command, f"--topology={topology}", f"--output_file={path}", *flags],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(libtpu)},
        )
        assert done.returncode == 0, done.stderr
        written = json.loads(path.read_text())
        assert topology in done.stdout and topology in Path(f"{path}.md").read_text()
        (found,) = written["topologies"]
        return found

    return compiled


@pytest.fixture(scope="module")
def four_chips(report):
    return report("v4:2x2x1")


def counts(found, kind, program="decode"):
    """{loop: {what: how many}}"""
    loops = found["programs"][program][kind]
    return {loop: {name: n["count"] for name, n in kinds.items()} for loop, kinds in loops.items()}


@pytest.mark.slow
def test_collectives_of_the_decode_program(four_chips):
    """Three sums for each layer and one for the embedding, the logits gathered once; none in the
    drafter's loops, nor anything else."""
    assert four_chips["mesh"] == {"data": 1, "model": 4}
    inside = counts(four_chips, "collectives")
    assert inside.pop("") == {"all-reduce": 2 * 2 + 1}  # the encoder
    assert inside == {"decode": {"all-reduce": 3 * LAYERS + 1, "all-gather": 1}}
    gathered = four_chips["programs"]["decode"]["collectives"]["decode"]["all-gather"]["bytes"]
    assert gathered == (GAMMA + 1) * VOCABULARY * 4
    for width in (1, GAMMA + 1):
        expected = {"": {"all-reduce": 3 * LAYERS + 1, "all-gather": 1}}
        assert counts(four_chips, "collectives", f"target {width}") == expected
        assert counts(four_chips, "collectives", f"draft {1 + (width > 1)}") == {}
    call = four_chips["calls"]["target"]
    assert (call["reductions"], call["gathers"]) == (3 * LAYERS + 1, 1)
    assert call["gathered"] == VOCABULARY * 4


def caches(*heads, rows=1, slots=(MAX_LENGTH + GAMMA, LENGTH)):
    """Returns the shapes of caches with these heads."""
    return {f"bf16[{rows},{h},{n},{HEAD_DIM}]" for h in heads for n in slots}


def copied(found, shapes):
    """Returns the loops that copy an array with one of these shapes."""
    copies = counts(found, "copies").items()
    return [loop for loop, made in copies if loop and made.keys() & set(shapes)]


def leaves(found):
    """Returns how often a program leaves the device, or has sizes known only when it runs."""
    whole = found["programs"]["decode"]
    return whole["host_transfers"] + whole["dynamic_shapes"]


@pytest.mark.slow
def test_no_cache_and_no_kernel_is_copied(four_chips):
    """Neither in a loop nor before it, but for kernels that only the drafter's encoder reads."""
    sides = {(256, HEADS // 4 * HEAD_DIM), (256, 512 // 4), (128, 6 * HEAD_DIM), (128, 256)}
    kernels = {f"bf16[{a},{b}]" for pair in sides for a, b in (pair, pair[::-1])}
    shapes = caches(HEADS // 4, 6) | kernels
    assert not copied(four_chips, shapes)
    outside = counts(four_chips, "copies").get("", {})
    assert not outside.keys() & shapes - {f"bf16[128,{6 * HEAD_DIM}]"}


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["v4:1x1x1", "v5e:1x1", "v6e:1x1"])
def test_a_draft_in_one_kernel(chip, report, tmp_path):
    """No layer of the draft has a fusion, and its cache is neither copied nor moved in a loop."""
    file = tmp_path / "fused.gin"
    file.write_text(
        "from __gin__ import dynamic_registration\nfrom specdec.models import t5\n"
        "from specdec.models.placement import layouts\ndraft/t5.T5Config.num_heads = 4\n"
        "draft/t5.T5Target.layout = @layouts.Layout()\nlayouts.Layout.fused = 'mosaic'\n"
    )
    found = report(chip, f"--gin_file={file}")
    parts = found["compiler"]["parts"]
    for name in ("draft 1", "draft 2"):
        assert (parts[name]["kernels"], parts[name]["fusions_per_layer"]) == (1, None)
    assert parts["target 4"]["kernels"] == 0 and found["compiler"]["cost_ratio"] is None
    sides = [(4, n, HEAD_DIM) for n in (MAX_LENGTH + GAMMA, LENGTH)]
    others = {f"bf16[{h},{d},{n}]" for h, n, d in sides} | {
        f"bf16[{h * d},{n}]" for h, n, d in sides
    }
    assert {"decode", "decode/extend"} <= counts(found, "copies").keys()
    assert not copied(found, caches(4) | others)


@pytest.mark.slow
def test_processors_copy_nothing_and_gather_nothing_more(report, four_chips):
    """They work on logits that are gathered anyway, and on the tokens."""
    given = ("--no_repeat_ngram_size=3", "--repetition_penalty=1.2", "--min_length=4")
    found = report("v4:2x2x1", "--whole_only", *given)
    assert counts(found, "collectives") == counts(four_chips, "collectives")
    assert not copied(found, caches(HEADS // 4, 6))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [8, 32])
@pytest.mark.parametrize("paths", [1, 3])
def test_no_cache_is_copied_with_several_rows(rows, paths, report):
    flags = ["--drafter=multi_path", f"--gin.NUM_PATHS={paths}"] if paths > 1 else []
    found = report("v4:1x1x1", "--whole_only", f"--gin.BATCH_SIZE={rows}", *flags)
    drafting = "decode/extend" if paths == 1 else "decode/draft"
    assert {"decode", "decode/catch_up", drafting} <= counts(found, "copies").keys()
    slots = MAX_LENGTH + paths * GAMMA, LENGTH
    assert not copied(found, caches(HEADS, 6, rows=rows, slots=slots))


@pytest.mark.slow
def test_no_cache_is_copied_where_rows_are_refilled(report):
    """Neither in the token loop nor at a refill."""
    rows = 32
    flags = "--whole_only", f"--gin.BATCH_SIZE={rows}", "--gin.REFILL=True"
    found = report("v4:1x1x1", *flags)
    pairs = [pair for n in (MAX_LENGTH + GAMMA, LENGTH) for pair in ((n, HEAD_DIM), (HEAD_DIM, n))]
    shapes = {f"bf16[{rows},{heads},{n},{m}]" for heads in (HEADS, 6) for n, m in pairs}
    loops = counts(found, "copies")
    assert {"", "refill", "refill/catch_up", "refill/extend"} <= loops.keys()
    assert not [loop for loop, copies in loops.items() if copies.keys() & shapes]
    assert found["memory"]["donated"] > found["memory"]["caches"]


BLOCKS = {
    "masks": """
from specdec.models import t5
include 'drafters/masked.gin'
MASKS = 3
DRAFT_MODEL = @t5.T5Draft()
t5.T5Draft.config = @t5.T5DraftConfig()
t5.T5DraftConfig:
  vocab_size = 640
  emb_dim = 128
  num_heads = 6
  head_dim = 32
  mlp_dim = 256
  num_decoder_layers = 2
  dtype = 'bfloat16'
  num_encoder_layers = 0
  encoded_dim = 256
  states_dim = 256
  markov_rank = 16
""",
    "heads": """
from specdec.models import heads
include 'drafters/blockwise.gin'
DRAFT_MODEL = @heads.Heads()
heads.Heads.config = @heads.HeadsConfig()
heads.HeadsConfig:
  vocab_size = 512
  states_dim = 256
  heads = 3
  mlp_dim = 128
  dtype = 'bfloat16'
""",
}


DECODERS = f"""
from __gin__ import dynamic_registration
from specdec.models import llama

MODEL = @target/llama.Llama()
DRAFT_MODEL = @draft/llama.Llama()

llama.Llama.config = @llama.LlamaConfig()
llama.LlamaConfig.vocab_size = {VOCABULARY}
llama.LlamaConfig.head_dim = {HEAD_DIM}
llama.LlamaConfig.dtype = 'bfloat16'
target/llama.LlamaConfig:
  emb_dim = 256
  num_heads = {HEADS}
  num_kv_heads = {HEADS}
  mlp_dim = 512
  num_decoder_layers = {LAYERS}
draft/llama.LlamaConfig:
  emb_dim = 128
  num_heads = 6
  num_kv_heads = 6
  mlp_dim = 256
  num_decoder_layers = 2
"""


GIN = {
    **BLOCKS,
    "exit": "include 'drafters/early_exit.gin'\nEXIT_LAYERS = 1\n",
    "calm": "from specdec.models import t5\nMODEL = @t5.calm()\n"
    "t5.calm.model = @target/t5.T5Target()\nLOSSY = True\n",
}


@pytest.fixture
def reported(report, tmp_path):
    """What the command says of a run with more gin; what it copies and sends is looked at."""

    def one(kind, chips):
        file = tmp_path / "more.gin"
        file.write_text(f"from __gin__ import dynamic_registration\n{GIN[kind]}")
        found = report(f"v4:{chips}", f"--gin_file={file}")
        slots = (MAX_LENGTH + GAMMA, LENGTH, MAX_LENGTH + 1 + GAMMA)
        assert not copied(found, caches(HEADS, HEADS // 4, 6, slots=slots)) and not leaves(found)
        return found, counts(found, "collectives")

    return one


CHIPS_OF_V4 = pytest.mark.parametrize("chips", ["1x1x1", "2x2x1"])


@pytest.mark.slow
@CHIPS_OF_V4
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_drafter_on_the_targets_states(kind, chips, reported):
    """One call for a block, and the states of all tokens are not copied; what devices say to each
    other is what the target's calls say, and one more gathering where heads project with it."""
    found, said = reported(kind, chips)
    slots = 1 + MAX_LENGTH + GAMMA + 1
    assert not copied(found, {f"bf16[1,{slots},{width}]" for width in (256, 64)})
    heads = int(kind == "heads")
    target = {"all-reduce": 3 * LAYERS + 1, "all-gather": 1 + heads} if chips == "2x2x1" else {}
    assert said.get("decode", {}) == target
    assert found["calls"]["draft"]["layers"] == 2 - heads


@pytest.mark.slow
@CHIPS_OF_V4
def test_the_targets_first_layers_as_a_drafter(chips, reported):
    """They run with the pending token, with each draft token, and with the last one when it is
    verified; the others once."""
    found, said = reported("exit", chips)
    lower = 3 + 1  # a layer, and the embedding
    if chips == "2x2x1":
        both = {"all-reduce": 2 * lower + 3 * (LAYERS - 1), "all-gather": 2}
        assert said["decode"] == both
        assert said["decode/extend"] == {"all-reduce": lower, "all-gather": 1}
    assert found["calls"]["exit"]["layers"] == 1
    assert found["calls"]["exit"]["bytes"] < found["calls"]["target"]["bytes"]


@pytest.mark.slow
@CHIPS_OF_V4
def test_tokens_that_leave_the_target_early(chips, reported):
    """Layers that nobody needs are loops of no trip."""
    found, _ = reported("calm", chips)
    assert any(loop.startswith("decode/verify") for loop in counts(found, "copies"))
    assert [one["layers"] for one in found["exits"]] == list(range(1, LAYERS + 1))
    calls = [found["calls"][f"target/{depth}"] for depth in range(1, LAYERS + 1)]
    assert calls == sorted(calls, key=lambda call: (call["bytes"], call["reductions"]))
    assert bool(calls[0]["reductions"]) == (chips == "2x2x1")


@pytest.mark.slow
def test_decoders_without_an_encoder(report, tmp_path):
    """Two sums for each layer and one for the embedding, the logits gathered once."""
    (tmp_path / "decoders.gin").write_text(DECODERS)
    found = report("v4:2x2x1", "--whole_only", f"--gin_file={tmp_path / 'decoders.gin'}")
    inside = counts(found, "collectives")
    assert inside.pop("") == {"all-reduce": 2 * LAYERS - 1}  # the last layer's MLP is not read
    assert inside == {"decode": {"all-reduce": 2 * LAYERS + 1, "all-gather": 1}}
    assert not copied(found, caches(HEADS // 4, 6, slots=[LENGTH - 1 + MAX_LENGTH + GAMMA]))


@pytest.mark.slow
@CHIPS_OF_V4
def test_beams(chips, report):
    """Chips say what they say in one target call, no cache is copied, and nothing has the size of
    the inputs' keys for every beam. Inputs are long, so that this is much."""
    inputs, beams, width, steps = 1024, 4, 8, 2
    lengths = f"--gin.TASK_FEATURE_LENGTHS={{'inputs': {inputs}, 'targets': {MAX_LENGTH}}}"
    found = report(f"v4:{chips}", lengths, f"--gin.NUM_BEAMS={beams}")
    heads = HEADS // 4 if chips == "2x2x1" else HEADS
    shapes = caches(heads, 6, slots=(beams * MAX_LENGTH + width * steps, inputs))
    assert "search" in counts(found, "copies")
    assert not copied(found, shapes | {shape.replace("[1,", "[") for shape in shapes})
    each_call = {"all-reduce": 3 * LAYERS + 1, "all-gather": 1}
    said = counts(found, "collectives")
    assert said.get("search", {}) == (each_call if chips == "2x2x1" else {})
    assert "search/replay" not in said and not leaves(found)
    of_target, of_draft = (f"f32[1,{n * VOCABULARY}]" for n in (beams, width))
    sorted_by = counts(found, "top_k")
    assert sorted_by["search"] == {of_target: 1, of_draft: 1}
    assert sorted_by["search/replay"][of_target] == 1
    for loop, largest in found["programs"]["decode"]["largest"].items():
        assert not loop or largest["bytes"] < beams * heads * HEAD_DIM * inputs * 2, largest
    assert [one["pays_from"] >= 1 for one in found["beams_predicted"]] == [True, True]


@pytest.mark.slow
def test_the_program_stays_on_the_device(four_chips):
    assert not leaves(four_chips)
    (loop,) = four_chips["programs"]["decode"]["loops"]
    assert loop["name"] == "decode"
    assert sorted(inner["name"] for inner in loop["loops"]) == ["catch_up", "extend"]


@pytest.mark.slow
def test_memory_of_a_device(four_chips):
    memory = four_chips["memory"]
    parts = ("arguments", "outputs", "temporaries", "code")
    assert memory["total"] == sum(memory[part] for part in parts) - memory["donated"]
    assert memory["fits"] and memory["left"] == CHIPS["v4"].memory - memory["total"]
    assert memory["parameters"] <= memory["arguments"] < 1.3 * memory["parameters"] + 2**20
    # All of the drafter's caches, a quarter of the target's.
    slots = MAX_LENGTH + GAMMA + LENGTH
    caches = 2 * 2 * slots * 32 * (LAYERS * HEADS // 4 + 2 * 6)
    assert memory["caches"] == caches
    for part in ("target 1", f"target {GAMMA + 1}", "draft 2", "draft 1"):  # updated where it lies
        donated = four_chips["programs"][part]["memory"]["donated"]
        assert donated > 0


@pytest.mark.slow
def test_rows_over_devices_need_no_collectives_but_one(report):
    flags = ["--gin.NUM_PARTITIONS=1", "--gin.BATCH_SIZE=4"]
    found = report("v4:2x2x1", "--whole_only", *flags)
    assert list(found["programs"]) == ["decode"] and "roofline" not in found
    assert found["mesh"] == {"data": 4, "model": 1}
    loops = found["programs"]["decode"]["collectives"]
    del loops[""]  # the output is gathered once
    # Whether all rows are done, and whether any drafter's cache lacks something.
    for kinds in loops.values():
        assert set(kinds) == {"all-reduce"} and kinds["all-reduce"]["bytes"] <= 4, loops


@pytest.mark.slow
def test_what_does_not_fit_is_told(report):
    found = report("v5e:1x1", "--gin.target/t5.T5Config.mlp_dim=8000000")
    assert not found["memory"]["fits"]
    assert re.search(
        r"memory required .*\(.*G\) exceeds .*\(15.75G\)", found["memory"]["too_large"]
    )


# Without libtpu.

ALONE = ("--gin.DRAFTER=None", "--gin.DRAFT_CHECKPOINT_PATHS={}")


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--topology=v9:2x2"], "topology 'v9:2x2' is not known; give a generation (v4, v5e, v5p"),
        (["--topology=v4"], "topology 'v4' is not known"),
        (["--topology=v4:2x2x1", "--alpha=1.5"], "--alpha is 1.5; give a probability"),
        (["--topology=v4:2x2x1", "--output_file=/none/x"], "--output_file /none/x cannot be"),
        (["--topology=v4:2x2x1", *ALONE], "the run has no drafter"),
        (
            ["--topology=v4:2x2x1", "--alpha=0.5", "--gin.NUM_BEAMS=4"],
            "--alpha is for runs without beams",
        ),
    ],
)
def test_mistakes_are_one_line(gin_file, capsys, flags, message):
    assert cli.main(["compile", f"--gin_file={gin_file}", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("flags", [(), ("--whole_only", *ALONE)])
def test_without_libtpu_the_install_command_is_told(gin_file, capsys, monkeypatch, flags):
    """A target alone, which writes the texts for a drafter, can be compiled as a whole."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["compile", f"--gin_file={gin_file}", "--topology=v4:2x2x1", *flags]) == 2
    assert "v4:2x2x1: compiling for a TPU needs libtpu; pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, weights", [((), "int8"), (("--gin.INT8_TOKENS=True",), "int8_tokens")]
)
def test_a_plan_in_eight_bits_is_compiled_in_eight_bits(
    gin_file, capsys, monkeypatch, flags, weights
):
    def compiled(topology, run, plan, bar, parts):
        raise UsageError(plan.target.weights)

    monkeypatch.setattr("specdec.cli.compile._compiled", compiled)
    given = f"--gin_file={gin_file}", "--topology=v4:2x2x1", "--gin.INT8=('target',)"
    assert cli.main(["compile", *given, *flags]) == 2
    assert capsys.readouterr().err.strip().endswith(f"specdec: {weights}")


def test_topologies():
    assert Topology.parse("v4:2x2x2").size == 8
    assert Topology.parse("v5e:2x4").shape == (2, 4)
    counts = {name: Topology.parse(name) for name in ("v4:2x2x2", "v5p:2x2x1", "tpu7x:2x2x1")}
    assert [(x.size, x.device_count) for x in counts.values()] == [(8, 8), (4, 4), (4, 8)]


def test_roofline_of_a_call():
    v4 = CHIPS["v4"]
    alone = Call(bytes=1228e6, flops=1e9, layers=10)
    assert alone.seconds(v4, 1) == pytest.approx(1e-3)
    assert alone.seconds(v4, 1, layer_seconds=1e-5) == pytest.approx(1.1e-3)
    assert alone.seconds(v4, 550) == pytest.approx(2e-3)  # arithmetic, from 275 tokens on
    narrow = Call(bytes=0, flops=1e9, int8=2e9, layers=10)
    v5e = CHIPS["v5e"]
    assert narrow.seconds(v5e, 197) == pytest.approx(2e-3)  # v5e is twice as fast in eight bits
    four = Call(1228e6, 1e9, 10, reductions=2, reduced=8e6, gathers=1, gathered=4e6, devices=4)
    messages = (2 * 2 + 1) * 3 * HOP_SECONDS
    moved = (2 * 8e6 + 4e6) * 3 / 4 / 100e9
    assert four.seconds(v4, 1) == pytest.approx(1e-3 + messages + moved)


def test_operations_are_counted_in_the_numbers_that_are_multiplied():
    config = tiny_t5(64, 24, 40, heads=4, decoder=2)
    counted = {}
    for weights in ("stored", "int8", "int8_tokens"):
        target = T5Target(config, weights=weights)
        mesh = {partitioning.DATA: 1, partitioning.MODEL: 1}
        call = silent_call(target, partitioning.abstract(target, None), 0, 1, mesh)
        counted[weights] = call
    assert counted["stored"].int8 == counted["int8"].int8 == 0
    both = counted["int8_tokens"]
    scales = 2 * config.vocab_size  # operations with those of the logits
    assert both.int8 > 0 and both.flops + both.int8 == counted["int8"].flops + scales
    assert both.bytes < counted["int8"].bytes < counted["stored"].bytes


@pytest.mark.parametrize(
    "draft, layers, cost_ratio",  # parameters of the decoder and the logits, layers; c of the paper
    [(512, 8, 0.02), (768, 12, 0.04), (1024, 24, 0.11)],
)
def test_with_layers_the_papers_cost_ratios_come_out(draft, layers, cost_ratio):
    def call(width, heads, mlp, depth):
        layer = 8 * width * heads * 64 + 3 * width * mlp
        return Call(2 * (depth * layer + width * 32128), 0, depth)

    drafts = {512: (512, 6, 1024), 768: (768, 12, 2048), 1024: (1024, 16, 2816)}
    calls = {"target": call(4096, 64, 10240, 24), "draft": call(*drafts[draft], layers)}
    alphas = PAPER_ALPHAS[draft]
    roofline, with_layers = predict(CHIPS["v4"], PLAN, calls, alphas)
    assert abs(with_layers.cost_ratio - cost_ratio) < 0.012  # 0.099 of 0.11
    assert roofline.cost_ratio < with_layers.cost_ratio
    assert with_layers.speedups["EnDe T=0"][6] == pytest.approx(
        theory.speedup(alphas["EnDe T=0"], 7, with_layers.cost_ratio, with_layers.verify_cost[7])
    )
    assert with_layers.layer_seconds == LAYER_SECONDS


TARGET = T5Target(T5Config(64, 32, 4, 8, 64, 1, 2))
DRAFT = T5Target(T5Config(64, 32, 2, 8, 64, 1, 1))
PLAN = Plan(
    TARGET,
    Autoregressive(DRAFT, Sampling()),
    SpeculativeSampling(),
    Fixed(GAMMA),
    Sampling(),
    max_length=MAX_LENGTH,
)


def test_a_wide_first_step_counts():
    """Where arithmetic takes the time, the draft's two tokens take twice that of one."""
    v4 = CHIPS["v4"]
    calls = {"target": Call(1228e6, 0, 0), "draft": Call(1, 275e6, 0)}  # 1 ms, and 1 us a token
    prediction, _ = predict(v4, PLAN, calls, {"half": 0.5}, longest=2)
    assert prediction.draft == pytest.approx(1e-6 * (GAMMA + 1) / GAMMA)
    assert prediction.verify_cost == [1, 1, 1]
    assert prediction.iteration == pytest.approx(1e-3 + (GAMMA + 1) * 1e-6)
    expected = [theory.speedup(0.5, 1, 2e-3), theory.speedup(0.5, 2, 1.5e-3)]
    assert prediction.speedups["half"] == pytest.approx(expected)


@dataclasses.dataclass(frozen=True)
class Table(TableTarget):
    """A model of no family, which compiles in no time."""

    dtype = "float32"
    num_layers = 1
    axis_rules = ()

    def read_by_decode(self, params):
        return params

    def cache_bytes(self, rows, slots, inputs_length, mesh=None):
        return 8 * rows * slots // (mesh or {"data": 1})["data"]


@dataclasses.dataclass(frozen=True)
class Pair(Drafter):
    """Drafts with one model, and calls another one once."""

    first: Table
    second: Table

    def models(self):
        return {"first": self.first, "second": self.second}

    def with_models(self, models):
        return Pair(models["first"], models["second"])

    def parts(self, length, source=None):
        return Part("first", 1, length), Part("second", 3, 1)

    def propose(self, *arguments):
        return Constant(3).propose(*arguments)


SMALL, LARGE = Table(5), Table(7)
TABLES = dataclasses.replace(PLAN, target=LARGE, drafter=Autoregressive(SMALL, Sampling()))


@functools.cache
def compiled(plan):
    """On one CPU, as if it were a chip."""
    return compiled_with(plan)


def compiled_with(plan, tables=None):
    mesh = partitioning.make_mesh(1, jax.devices()[:1])
    told = []
    compilation = compile_for(plan, (2, 16), mesh, tables=tables, progress=told.append)
    assert told == [each.name for each in compilation.programs]
    assert program_count(plan) == len(told)
    return compilation


@pytest.mark.parametrize(
    "drafter, parts, models",
    [
        (TABLES.drafter, ["draft 2", "draft 1"], {"target": LARGE, "draft": SMALL}),
        (Constant(3), [], {"target": LARGE}),
        (
            Pair(SMALL, LARGE),
            ["first 1", "second 3"],
            {"target": LARGE, "first": SMALL, "second": LARGE},
        ),
    ],
    ids=["one model", "no model", "two models"],
)
def test_a_drafter_has_any_number_of_models(drafter, parts, models):
    found = compiled(dataclasses.replace(TABLES, drafter=drafter))
    assert list(found.parts) == ["prefill", "target 1", f"target {GAMMA + 1}", *parts]
    caches = 8 * 2 * (MAX_LENGTH + GAMMA)
    assert found.cache_bytes == len(models) * caches
    for role, model in models.items():
        size = model.vocab_size**3
        assert found.calls[role] == Call(4 * size + caches, 2 * 2 * size, layers=1)
    told = record(Topology.parse("v4:1x1x1"), found, {"0.8": 0.8})
    assert (told["roofline"]["draft"] > 0) == bool(parts)


@pytest.mark.parametrize(
    "wrapped",
    [lambda x: Hybrid(PromptLookup(), x), pytest.param(lambda x: x, marks=pytest.mark.slow)],
)
def test_a_model_that_reads_no_source_is_compiled_without(wrapped):
    """Its prefill has inputs of one token, and its cache no room for more."""

    class Encoder(Table):
        def prefill(self, params, inputs, capacity):
            lengths.add((self.vocab_size, inputs.shape))
            return super().prefill(params, inputs, capacity)

        def cache_bytes(self, rows, slots, inputs_length, mesh=None):
            return super().cache_bytes(rows, slots, inputs_length, mesh) + rows * inputs_length

    lengths = set()
    drafter = wrapped(Autoregressive(Encoder(5), Greedy(), NoSource()))
    found = compiled(dataclasses.replace(TABLES, drafter=drafter, target=Encoder(7)))
    assert lengths == {(7, (2, 16)), (5, (2, 1))}
    assert found.cache_bytes == 2 * 8 * 2 * (MAX_LENGTH + GAMMA) + 2 * 16 + 2 * 1


CLASSIFIER = {
    "mean": [12],
    "scale": [12],
    "hidden": [12, 4],
    "hidden_bias": [4],
    "out": [4],
    "out_bias": [],
}


@pytest.mark.ci
@pytest.mark.parametrize(
    "schedule, tables",
    [
        pytest.param(Heuristic(2, (1, GAMMA)), {}, marks=pytest.mark.slow),
        pytest.param(Fixed(GAMMA, shorter=(1,)), {}, marks=pytest.mark.slow),
        pytest.param(Confidence(0.5, buckets=(1, GAMMA)), {}, marks=pytest.mark.slow),
        (Disco(0.5, buckets=(1, GAMMA)), {"schedule": CLASSIFIER}),
    ],
    ids=["lengths vary", "narrowed", "stops", "stops by a table"],
)
def test_every_width_of_a_schedule_is_compiled(schedule, tables):
    """And its costs are enough to tune by: a roofline has every width."""
    shapes = {
        role: {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in arrays.items()}
        for role, arrays in tables.items()
    }
    found = compiled_with(dataclasses.replace(TABLES, schedule=schedule), shapes)
    widths = {"target 1", "target 2", f"target {GAMMA + 1}"}
    assert found.parts.keys() == {"prefill", "draft 1", "draft 2", *widths}
    told = record(Topology.parse("v4:1x1x1"), found, {"0.8": 0.8})
    fixed = record(Topology.parse("v4:1x1x1"), compiled(TABLES), {"0.8": 0.8})
    assert (told["gamma"], told["roofline"]) == (GAMMA, fixed["roofline"])
    assert told["programs"]["decode"]["host_transfers"] == 0


def test_a_target_alone_is_compiled_and_nothing_predicted():
    found = compiled(TABLES.alone())
    assert list(found.parts) == ["prefill", "target 1"]
    told = record(Topology.parse("v4:1x1x1"), found, {"0.8": 0.8})
    assert "roofline" not in told and "speed-up" not in "\n".join(explanation([told]))
    also = "  also        0 host transfers, 0 dynamic shapes, {} on a SparseCore"
    assert also.format(0) in lines(told) and "warning" not in "\n".join(lines(told))
    module = found.program.module
    assert module is not None

    def told_with(*there):
        made = (module.operations[0]._replace(loop=loop, scope=scope) for loop, scope in there)
        changed = dataclasses.replace(module, sparse_core=tuple(made))
        whole = dataclasses.replace(found.program, module=changed)
        told = record(Topology.parse("tpu7x:1x1x1"), dataclasses.replace(found, program=whole), {})
        assert told["devices"] == 2
        return list(lines(told))

    gather, loop = "jit(decode)/jit(_take)/gather", ("decode", "draft")
    assert told_with(((), ""))[-1] == also.format(1)
    assert told_with(((), gather), (loop, gather), (loop, gather), (loop, ""), ((), ""))[-2:] == [
        also.format(5),
        "  warning     a SparseCore runs 1 gather in no loop, 2 gather in decode/draft, 1 other in "
        "decode/draft; waiting for it may take longer than running the same instructions in the "
        "program",
    ]


@pytest.mark.ci
def test_the_steps_from_which_drafted_beams_pay():
    """A call of the search without a draft feeds each beam's token; with one, a tree."""
    plan = BeamPlan(LARGE, 4, T5XBeams(), MAX_LENGTH, DraftBeams(SMALL, 8, 2))
    found = compiled(plan)
    assert list(found.parts) == ["prefill", "target 4", "target 20", "draft 8"]
    assert found.cache_bytes == 2 * 8 * 2 * (4 * MAX_LENGTH + 16)
    told = record(Topology.parse("v4:1x1x1"), found, {})
    assert {name: told[name] for name in ("beams", "draft_beams", "draft_steps")} == {
        "beams": 4,
        "draft_beams": 8,
        "draft_steps": 2,
    }
    target, draft, v4 = found.calls["target"], found.calls["draft"], CHIPS["v4"]
    for one, layer in zip(told["beams_predicted"], (0.0, LAYER_SECONDS), strict=True):
        step = target.seconds(v4, 4, layer)
        iteration = target.seconds(v4, 20, layer) + 2 * draft.seconds(v4, 8, layer)
        assert one["pays_from"] == pytest.approx(iteration / step)
    plain = record(Topology.parse("v4:1x1x1"), compiled(plan.alone()), {})
    assert [one["pays_from"] for one in plain["beams_predicted"]] == [1.0, 1.0]


@pytest.mark.ci
def test_tokens_that_leave_the_target_are_predicted_by_their_layers():
    """A call is compiled once, whatever its depth; one of all layers that asks exits reads more
    than the target's own."""
    config = T5Config(VOCABULARY, 64, 2, 32, 128, num_encoder_layers=1, num_decoder_layers=4)
    plan = dataclasses.replace(TABLES, target=calm(T5Target(config), exits=(1, 3))).alone()
    found = compiled(plan)
    assert list(found.parts) == ["prefill", "target 1"]
    layers, v4 = {role: call.layers for role, call in found.calls.items()}, CHIPS["v4"]
    assert layers == {"target": 4, "target/1": 1, "target/3": 3, "target/4": 4}
    read = [call.bytes for role, call in sorted(found.calls.items())]
    assert read[1] < read[2] < read[0] < read[3]
    told = record(Topology.parse("v4:1x1x1"), found, {})
    assert [one["layers"] for one in told["exits"]] == [1, 3, 4]
    for one in told["exits"]:
        call = found.calls[f"target/{one['layers']}"]
        assert one["seconds"] == (call.seconds(v4, 1), call.seconds(v4, 1, LAYER_SECONDS))
    fast, _, slow = (one["speedup"] for one in told["exits"])
    assert fast[0] > 1 > slow[0] and fast[1] > 1 > slow[1]


def test_every_label_is_explained():
    told = record(Topology.parse("v4:1x1x1"), compiled(TABLES), {"0.8": 0.8})
    both = [found["iteration"] for found in (told["roofline"], told["with_layers"])]
    rates = "/".join(f"{(GAMMA + 1) / seconds:.0f}" for seconds in both)
    assert f", {rates} at TAR {GAMMA + 1}" in "\n".join(lines(told))
    labels = {line[2:13].strip() for line in lines(told) if re.match("  [^ ]", line)}
    assert {"memory", "loops", "with layers", "tokens/s", "speed-up"} <= labels
    text = "\n".join(explanation([told]))
    loops = told["programs"]["decode"]["collectives"]
    assert [one for one in labels if f"{one}:" not in text and one not in loops] == ["no loop"]
    assert "no loop, or the name of a loop: " in text
    assert f"v({GAMMA}): seconds of a target call on a draft of {GAMMA} /" in text
    of_paths = "\n".join(explanation([{**told, "paths": 4}]))
    assert of_paths.removeprefix(text).startswith("\npaths: speed-ups count the model calls of all")


@pytest.mark.ci
def test_a_step_updates_its_state_where_it_lies():
    trees = {r: m.parameter_shapes() for r, m in PLAN.models().items()}
    params = PLAN.params(trees)
    shapes = batch_shapes(PLAN.target, 1, 16)
    state = jax.eval_shape(functools.partial(prefill, plan=PLAN), params, *shapes)
    advance = jax.jit(functools.partial(step, plan=PLAN), donate_argnums=1)
    program = advance.lower(params, state).compile()
    caches = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((state.cache, state.drafter)))
    assert program.memory_analysis().alias_size_in_bytes > caches
