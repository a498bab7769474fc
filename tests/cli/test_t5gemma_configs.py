"""The pairs of configs/t5gemma on TPUs: pytest tests/cli/test_t5gemma_configs.py"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from specdec.predict.compile_report import markdown
from specdec.sampling import Greedy
from specdec.schedules import Fixed

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "compiled_t5gemma"
LOG = (ROOT / "docs" / "log" / "tpu-log.md").read_text()
COMPILED = sorted(file for file in RESULTS.glob("*.json") if file.stem != "predicted")
PREDICTED = json.loads((RESULTS / "predicted.json").read_text())["predictions"]
PAIRS = {one["pair"]: None for one in PREDICTED}


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(ROOT / "scripts" / "devices"))
    yield importlib.import_module("t5gemma")
    sys.path.remove(str(ROOT / "scripts" / "devices"))


def test_a_pair_is_what_its_name_says(script):
    """The sizes are checked in tests/models/test_decoder_presets.py."""
    assert script.pairs() == sorted(PAIRS)
    widths = {"9b": 3584, "2b": 2304, "ml": 1152, "l": 1024, "b": 768, "s": 512}
    for pair in PAIRS:
        plan = script.yan.run_of(pair, "t5gemma").plan
        names = dict(zip(("target", "draft"), (pair[:2], pair[6:].partition("_")[0]), strict=True))
        for role, model in plan.models().items():
            assert model.sizes["emb_dim"] == model.sizes["encoder_emb_dim"] == widths[names[role]]
            assert (model.dtype, model.vocab_size) == ("bfloat16", 256_000)
        assert (plan.sampling, plan.schedule) == (Greedy(), Fixed(4))
        text = (ROOT / "configs" / "t5gemma" / f"{pair}.gin").read_text()
        assert f"#   specdec decode --gin_file=t5gemma/{pair}.gin --input_file=FILE \\\n" in text


@pytest.mark.parametrize("file", COMPILED, ids=lambda file: file.stem)
def test_a_compiled_program_is_as_predicted(script, file):
    """Its collectives in the loop; and neither a cache nor an input's keys are copied there."""
    (found,) = json.loads(file.read_text())["topologies"]
    pair, topology = file.stem.rpartition("_")[0], found["topology"]
    (one,) = [one for one in PREDICTED if (one["pair"], one["topology"]) == (pair, topology)]
    target, width = one["whole"]["calls"]["target"], found["gamma"] + 1
    program, plan = found["programs"]["decode"], script.yan.run_of(pair, "t5gemma").plan
    assert program["collectives"]["decode"] == {
        "all-reduce": {"count": target["reductions"], "bytes": width * target["reduced"]},
        "all-gather": {"count": 1, "bytes": width * target["gathered"]},
    }
    assert not {"decode/catch_up", "decode/extend"} & program["collectives"].keys()
    heads = {model.sizes["head_dim"] for model in plan.models().values()}
    slots = [f",{plan.capacity},", f",{plan.capacity}]"]
    slots += [f"{head},{found['inputs']}]" for head in heads]
    slots += [f"{found['inputs']},{head}]" for head in heads]
    for loop, copies in program["copies"].items():
        assert not loop or not [x for x in copies if any(part in x for part in slots)], loop
    assert program["host_transfers"] == program["dynamic_shapes"] == 0
    assert f"| `{pair}` {markdown([found]).splitlines()[2]}\n" in LOG


def test_the_tables_of_the_log_are_those_of_the_results(script):
    for table in (script.table, script.needed):
        text = "\n".join(table(PREDICTED))
        assert f"\n{text}\n" in LOG, text


@pytest.mark.ci
def test_the_prediction_is_that_of_the_results(script):
    """Predicts one pair again."""
    kept = [one for one in PREDICTED if one["pair"] == "9b_9b_s_s"]
    assert json.loads(json.dumps(list(script.predicted("9b_9b_s_s")))) == kept
