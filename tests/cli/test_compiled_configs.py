"""The pairs of configs/yan and configs/t5gemma, from shapes and from compiled programs.

pytest tests/cli/test_compiled_configs.py
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import script

from specdec import checkpoints
from specdec.cli import compile as command
from specdec.drafters import Autoregressive
from specdec.predict.compile_report import markdown
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.verifiers import GreedyMatch

ROOT = Path(__file__).resolve().parents[2]
CONFIGS, RESULTS = ROOT / "configs", ROOT / "docs" / "results"
LOG = (ROOT / "docs" / "log" / "tpu-log.md").read_text()
sys.path.append(str(ROOT / "scripts" / "devices"))  # t5gemma.py imports yan.py
yan, t5gemma = (script(f"devices/{name}.py") for name in ("yan", "t5gemma"))
FOLDERS = {"yan": RESULTS / "compiled_decoders", "t5gemma": RESULTS / "compiled_t5gemma"}
PREDICTED = {
    "yan": json.loads((FOLDERS["yan"] / "forecast.json").read_text())["forecasts"],
    "t5gemma": json.loads((FOLDERS["t5gemma"] / "predicted.json").read_text())["predictions"],
}
COMPILED = [
    (family, file)
    for family, folder in FOLDERS.items()
    for file in sorted(folder.glob("*.json"))
    if file.stem not in ("forecast", "predicted")
]

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
    assert {file.stem for file in (CONFIGS / "yan").glob("*.gin")} == {*DRAFTS, "common"}
    assert [one["pair"] for one in PREDICTED["yan"][::2]] == sorted(DRAFTS)
    assert t5gemma.pairs() == sorted({one["pair"] for one in PREDICTED["t5gemma"]})


@pytest.mark.parametrize("name", DRAFTS)
def test_a_pair_has_the_published_sizes(name):
    """Its header has its command, and what is not known."""
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
    text = (CONFIGS / "yan" / f"{name}.gin").read_text()
    assert f"#   specdec bench --gin_file=yan/{name}.gin --input_file=FILE \\\n" in text
    assert "in the paper are not known here.\n" in text
    page = (ROOT / "docs" / "reference" / "published-runs.md").read_text()
    layers = models["draft"].num_layers
    assert re.search(rf"^\| `{name}.gin` \| [^|]+ \| {layers} \| {DRAFTS[name]:,}M \|$", page, re.M)


def test_a_pair_of_t5gemma_is_what_its_name_says():
    """The sizes are checked in tests/models/test_decoder_presets.py."""
    widths = {"9b": 3584, "2b": 2304, "ml": 1152, "l": 1024, "b": 768, "s": 512}
    for pair in t5gemma.pairs():
        plan = yan.run_of(pair, "t5gemma").plan
        names = {"target": pair[:2], "draft": pair[6:].partition("_")[0]}
        for role, model in plan.models().items():
            assert model.sizes["emb_dim"] == model.sizes["encoder_emb_dim"] == widths[names[role]]
            assert (model.dtype, model.vocab_size) == ("bfloat16", 256_000)
        assert (plan.sampling, plan.schedule) == (Greedy(), Fixed(4))
        text = (CONFIGS / "t5gemma" / f"{pair}.gin").read_text()
        assert f"#   specdec decode --gin_file=t5gemma/{pair}.gin --input_file=FILE \\\n" in text


def test_a_draft_as_wide_as_a_t5_has_not_its_acceptance_rates():
    assert command.acceptance_rates(None, yan.run_of("llama_65b_68m")).keys() >= {"0.5", "0.9"}


@pytest.mark.parametrize("refill, widths", [(True, (3, 7)), (False, ())])
def test_the_widths_of_inputs_are_compiled_for_rows_that_are_refilled(monkeypatch, refill, widths):
    given, shown = [], []

    def compile_for(*arguments, progress, **options):
        given.append((*arguments, options))
        for name in ("loop", "target"):
            progress(name)
        return "programs"

    class Bar:
        n = 0

        def update(self, count):
            self.n += count

        def set_description(self, text):
            shown.append((self.n, text))

    monkeypatch.setattr(command, "_mesh", lambda *given: "mesh")
    monkeypatch.setattr(command, "compile_for", compile_for)
    data = SimpleNamespace(batch_size=4, lengths={"inputs": 7}, widths=(3, 7), refill=refill)
    placement = SimpleNamespace(over=lambda mesh: None)
    run: Any = SimpleNamespace(data=data, placement=placement, paths=dict)
    plan: Any = SimpleNamespace(models=dict, max_length=9)
    topology, bar = (SimpleNamespace(name="v5e"), Bar())
    found = command._compiled(topology, run, plan, bar, parts=False)  # type: ignore[arg-type]
    options = {"tables": {}, "widths": widths, "parts": False}
    assert found == "programs" and given == [(plan, (4, 7), "mesh", options)]
    assert shown == [(0, "v5e: compiling loop"), (1, "v5e: compiling target")] and bar.n == 2


@pytest.mark.parametrize("family, file", COMPILED, ids=lambda x: getattr(x, "stem", x))
def test_a_compiled_program_is_as_predicted(family, file):
    """Its collectives in the loop; and neither a cache nor an input's keys are copied there."""
    (found,) = json.loads(file.read_text())["topologies"]
    place = (pair := file.stem.rpartition("_")[0]), found["topology"]
    (one,) = [x for x in PREDICTED[family] if (x["pair"], x["topology"]) == place]
    target, width = one["whole"]["calls"]["target"], found["gamma"] + 1
    program, plan = found["programs"]["decode"], yan.run_of(pair, family).plan
    assert program["collectives"]["decode"] == {
        "all-reduce": {"count": target["reductions"], "bytes": width * target["reduced"]},
        "all-gather": {"count": 1, "bytes": width * target["gathered"]},
    }
    assert not {"decode/catch_up", "decode/extend"} & program["collectives"].keys()
    if family == "yan":  # a cache has the prompt too
        slots = [str(plan.capacity + found["inputs"] - 1)]
    else:
        heads = {model.sizes["head_dim"] for model in plan.models().values()}
        slots = [f",{plan.capacity},", f",{plan.capacity}]"]
        slots += [f"{head},{found['inputs']}]" for head in heads]
        slots += [f"{found['inputs']},{head}]" for head in heads]
    for loop, copies in program["copies"].items():
        assert not loop or not [x for x in copies if any(part in x for part in slots)], loop
    assert program["host_transfers"] == program["dynamic_shapes"] == 0
    assert f"| `{pair}` {markdown([found]).splitlines()[2]}\n" in LOG


def test_the_tables_of_the_log_are_those_of_the_results():
    tables = [yan.table(PREDICTED["yan"])]
    tables += [table(PREDICTED["t5gemma"]) for table in (t5gemma.table, t5gemma.needed)]
    for table in map("\n".join, tables):
        assert f"\n{table}\n" in LOG, table


@pytest.mark.ci
@pytest.mark.parametrize(
    "family, predict, pair",
    [
        ("yan", yan.forecast, "llama_65b_wide_1_layer"),
        ("t5gemma", t5gemma.predicted, "9b_9b_s_s"),
    ],
)
def test_the_prediction_is_that_of_the_results(family, predict, pair):
    """Predicts one pair again. Each other pair would take as long."""
    kept = [one for one in PREDICTED[family] if one["pair"] == pair]
    assert json.loads(json.dumps(list(predict(pair)))) == kept
