"""MADLAD, LLaVA and Whisper with drafts, compiled: pytest tests/predict/test_compiled_pairs.py"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from support import few

from specdec import checkpoints, cli
from specdec.predict.hardware import GIB

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
RECORDS = {"madlad": 4, "llava": 2, "whisper": 1}  # folder of configs/ -> the records at least
ALPHAS = ("0.3", "0.5", "0.7", "0.9")
# Parameters in millions, of the files as they are published; our draft's are its own.
SIZES = {"madlad_3b": (2_940, 312.5), "madlad_7b": (8_297, 625), "madlad_10b": (10_713, 709)}


def run_of(name: str, folder: str = "madlad") -> cli.DecodeRun:
    paths = ["CHECKPOINT_PATH = '-'", "DRAFT_CHECKPOINT_PATH = '-'", "TASK = None"]
    args = argparse.Namespace(
        gin_file=[f"{folder}/{name}.gin"],
        gin_bindings=paths,
        gin_search_paths=".",
        tfds_data_dir=None,
    )
    return cli.settings.build(cli.DecodeRun, args, {})


@pytest.mark.ci
@pytest.mark.parametrize("name", few(SIZES))
def test_a_pair_has_the_published_sizes(name):
    models = run_of(name).plan.models()
    target, draft = models["target"], models["draft"]
    assert (target.pad_id, target.stop_ids, target.config.decoder_start_id) == (1, (2,), 0)
    assert (draft.pad_id, len(draft.head_ids), draft.num_layers) == (1, 8192, 1)
    millions = [checkpoints.parameter_count(model) / 1e6 for model in (target, draft)]
    assert millions == pytest.approx(SIZES[name], rel=1e-3)


def pays_from(costs: dict) -> float:
    """The acceptance rate from which one draft token pays."""
    return costs["cost_ratio"] + costs["verify_cost"][1] - 1


def row(found: dict) -> list[str]:
    memory, costs = found["memory"], found["with_layers"]
    inside = found["programs"]["decode"]["collectives"].get("decode", {})
    speeds = costs["speedups"]
    best = {alpha: max(speeds[alpha]) for alpha in ALPHAS if alpha in speeds}
    return [
        found["topology"],
        *(f"{memory[name] / GIB:.2f}" for name in ("parameters", "caches", "total", "limit")),
        str(sum(kind["count"] for kind in inside.values())),
        f"{1e3 * costs['target']:.2f}",
        f"{costs['cost_ratio']:.3f}",
        f"{pays_from(costs):.2f}",
        *(f"{best[alpha]:.2f} ({1 + speeds[alpha].index(best[alpha])})" for alpha in best),
    ]


@pytest.mark.ci
def test_llava_has_the_published_sizes():
    models = run_of("llava_1_5_7b", "llava").plan.models()
    target, draft = models["target"], models["draft"]
    assert (target.pad_id, draft.pad_id, target.stop_ids) == (32001, 32001, (2,))
    millions = [checkpoints.parameter_count(model) / 1e6 for model in (target, draft)]
    assert millions == pytest.approx([7_063, 117], rel=3e-3)  # 7.06B, Gagrani et al.'s 115M


@pytest.mark.parametrize("folder", RECORDS)
def test_the_table_is_that_of_the_records(folder):
    page = (ROOT / "docs" / "log" / "tpu-log.md").read_text(encoding="utf-8")
    files = sorted((RESULTS / f"compiled_{folder}").glob("*.json"))
    assert len(files) >= RECORDS[folder]
    for file in files:
        (found,) = json.loads(file.read_text(encoding="utf-8"))["topologies"]
        name = file.stem.removesuffix("_" + found["topology"].replace(":", "_"))
        assert f"| `{name}` | {' | '.join(row(found))} |" in page
        run, program = run_of(name, folder), found["programs"]["decode"]
        plan = run.plan
        assert found["gamma"] == plan.gamma and found["inputs"] == run.data.lengths["inputs"]
        assert program["host_transfers"] == program["dynamic_shapes"] == 0
        for loop, copies in program["copies"].items():
            caches = [one for one in copies if str(plan.capacity) in one and ",128]" in one]
            assert not loop or not caches
