"""The pairs of configs/yan, from shapes alone: pytest tests/cli/test_yan_configs.py"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from specdec import checkpoints
from specdec.cli import compile as command
from specdec.drafters import Autoregressive
from specdec.predict.compile_report import markdown
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.verifiers import GreedyMatch

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "configs" / "yan"
RESULTS = ROOT / "docs" / "results" / "compiled_decoders"
COMPILED = sorted(file for file in RESULTS.glob("*.json") if file.stem != "forecast")
specification = importlib.util.spec_from_file_location(
    "yan", ROOT / "scripts" / "devices" / "yan.py"
)
assert specification and specification.loader
yan = importlib.util.module_from_spec(specification)
specification.loader.exec_module(yan)

# Parameters in millions, of files as published and of the configs that come with them.
TARGETS = {"llama_65b": 65_300, "opt_66b": 65_700}
DRAFTS = {
    "llama_65b_68m": 68,
    "llama_65b_160m": 162,
    "llama_65b_sheared_1_3b": 1_345,
    "llama_65b_sheared_2_7b": 2_702,
    "llama_65b_wide_1_layer": 464.5,
    "llama_65b_wide_3_layers": 869.3,
    "llama_65b_wide_5_layers": 1_274,
    "opt_66b_125m": 125,
    "opt_66b_350m": 331,
    "opt_66b_1_3b": 1_320,
    "opt_66b_2_7b": 2_650,
    "opt_66b_6_7b": 6_660,
}


def forecasts() -> list[dict[str, Any]]:
    return json.loads((RESULTS / "forecast.json").read_text())["forecasts"]


@functools.cache
def millions(model: Any) -> float:
    """Parameters of a model, from those of models of one layer and of two."""
    one, two = (
        checkpoints.parameter_count(
            type(model)(dataclasses.replace(model.config, num_decoder_layers=layers))
        )
        for layers in (1, 2)
    )
    return (one + (model.config.num_decoder_layers - 1) * (two - one)) / 1e6


def test_all_pairs_are_known():
    assert {file.stem for file in FOLDER.glob("*.gin")} == {*DRAFTS, "common"}


@pytest.mark.parametrize("name", DRAFTS)
def test_a_pair_has_the_published_sizes(name):
    run = yan.run_of(name)
    plan, models = run.plan, run.plan.models()
    assert plan.drafter == Autoregressive(models["draft"], Greedy())
    assert (plan.sampling, plan.verifier, plan.schedule) == (Greedy(), GreedyMatch(), Fixed(4))
    assert run.data.lengths == {"inputs": 512, "targets": 128}
    assert {model.dtype for model in models.values()} == {"bfloat16"}
    assert models["draft"].vocab_size == models["target"].vocab_size
    target = next(size for start, size in TARGETS.items() if name.startswith(start))
    assert abs(millions(models["target"]) / target - 1) < 4e-3
    assert abs(millions(models["draft"]) / DRAFTS[name] - 1) < 4e-3


@pytest.mark.parametrize("name", DRAFTS)
def test_a_header_has_its_command_and_what_is_not_known(name):
    text = (FOLDER / f"{name}.gin").read_text()
    assert f"#   specdec bench --gin_file=yan/{name}.gin --input_file=FILE \\\n" in text
    assert "in the paper are not known here.\n" in text
    page = (ROOT / "docs" / "reference" / "published-runs.md").read_text()
    layers = yan.run_of(name).plan.models()["draft"].num_layers
    assert re.search(rf"^\| `{name}.gin` \| [^|]+ \| {layers} \| {DRAFTS[name]:,}M \|$", page, re.M)


def test_a_draft_as_wide_as_a_t5_has_not_its_acceptance_rates():
    assert command.acceptance_rates(None, yan.run_of("llama_65b_68m")).keys() >= {"0.5", "0.9"}


@pytest.mark.parametrize("file", COMPILED, ids=lambda file: file.stem)
def test_a_compiled_program_is_as_the_forecast_counts(file):
    """Its collectives in the loop; and no cache is copied there."""
    (found,) = json.loads(file.read_text())["topologies"]
    pair, topology = file.stem.rpartition("_")[0], found["topology"]
    (one,) = [one for one in forecasts() if (one["pair"], one["topology"]) == (pair, topology)]
    target, width = one["whole"]["calls"]["target"], found["gamma"] + 1
    program, plan = found["programs"]["decode"], yan.run_of(pair).plan
    kinds = program["collectives"]["decode"]
    assert kinds == {
        "all-reduce": {"count": target["reductions"], "bytes": width * target["reduced"]},
        "all-gather": {"count": 1, "bytes": width * target["gathered"]},
    }
    assert not {"decode/catch_up", "decode/extend"} & program["collectives"].keys()
    slots = plan.capacity + found["inputs"] - 1
    for loop, copies in program["copies"].items():
        assert not loop or not [shape for shape in copies if str(slots) in shape], loop
    assert program["host_transfers"] == program["dynamic_shapes"] == 0
    log = (ROOT / "docs" / "log" / "tpu-log.md").read_text()
    assert f"| `{pair}` {markdown([found]).splitlines()[2]}\n" in log


def test_the_table_of_the_log_is_that_of_the_results():
    assert [one["pair"] for one in forecasts()[::2]] == sorted(DRAFTS)
    text = "\n".join(yan.table(forecasts()))
    assert f"\n{text}\n" in (ROOT / "docs" / "log" / "tpu-log.md").read_text()


@pytest.mark.ci
def test_the_forecast_is_that_of_the_results():
    """Predicts one pair again. Each other pair would take as long."""
    pair = "llama_65b_wide_1_layer"
    kept = [one for one in forecasts() if one["pair"] == pair]
    assert json.loads(json.dumps(list(yan.forecast(pair)))) == kept
