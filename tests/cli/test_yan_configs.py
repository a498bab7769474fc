"""The pairs of configs/yan, from shapes alone: pytest tests/cli/test_yan_configs.py"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

from specdec import checkpoints, cli
from specdec.drafters import Autoregressive
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.verifiers import GreedyMatch

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "yan"
# Parameters in millions, of files as published and of the configs that come with them.
TARGETS = {"llama_65b": 65_286}
DRAFTS = {
    "llama_65b_68m": 68.0,
    "llama_65b_160m": 162.4,
    "llama_65b_sheared_1_3b": 1_345,
    "llama_65b_sheared_2_7b": 2_702,
    "llama_65b_wide_1_layer": 464.5,
    "llama_65b_wide_3_layers": 869.3,
    "llama_65b_wide_5_layers": 1_274,
}


def built(name: str) -> cli.DecodeRun:
    bindings = ["CHECKPOINT_PATH = '-'", "DRAFT_CHECKPOINT_PATH = '-'"]
    args = argparse.Namespace(
        gin_file=[f"yan/{name}.gin"],
        gin_bindings=bindings,
        gin_search_paths=".",
        tfds_data_dir=None,
    )
    return cli.settings.build(cli.DecodeRun, args, {})


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
    run = built(name)
    plan, models = run.plan, run.plan.models()
    assert plan.drafter == Autoregressive(models["draft"], Greedy())
    assert (plan.sampling, plan.verifier, plan.schedule) == (Greedy(), GreedyMatch(), Fixed(4))
    assert run.data.lengths == {"inputs": 512, "targets": 128}
    assert {model.dtype for model in models.values()} == {"bfloat16"}
    assert models["draft"].vocab_size == models["target"].vocab_size
    target = next(size for start, size in TARGETS.items() if name.startswith(start))
    assert millions(models["target"]) == pytest.approx(target, abs=0.5)
    assert millions(models["draft"]) == pytest.approx(DRAFTS[name], rel=5e-4)


@pytest.mark.parametrize("name", DRAFTS)
def test_a_header_has_its_command_and_what_is_not_known(name):
    text = (FOLDER / f"{name}.gin").read_text()
    assert f"#   specdec bench --gin_file=yan/{name}.gin --input_file=FILE \\\n" in text
    assert "in the paper are not known here.\n" in text
