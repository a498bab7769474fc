"""The pair that ships with the project: pytest tests/test_demo.py"""

import dataclasses
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import LOGITS

from specdec import Params, Plan, checkpoints, cli, decode, row_keys, tasks
from specdec.common import demo
from specdec.drafters import Autoregressive
from specdec.models.t5 import T5Target
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.testing import divergences
from specdec.verifiers import GreedyMatch

ROOT = Path(__file__).resolve().parents[1]


TEXTS = 100


LENGTHS = {"inputs": 48, "targets": 48}


@pytest.fixture(scope="module")
def pair():
    configs = [checkpoints.config_from(demo.path(role)) for role in ("target", "draft")]
    trees = (checkpoints.load(demo.path(role), dtype="float32") for role in ("target", "draft"))
    return *(T5Target(config) for config in configs), Params(*trees)


def test_it_is_small_and_rounded():
    files = [file for file in (ROOT / "demo").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 40e6
    for role in ("target", "draft"):
        leaves = jax.tree.leaves(checkpoints.load(demo.path(role)))
        assert {leaf.dtype.name for leaf in leaves} == {"bfloat16"}
        assert checkpoints.vocabulary_from(demo.path(role)) is not None
    checkpoints.check_pair(demo.path("target"), demo.path("draft"))


def test_pages_and_results_state_its_parameters():
    """Each page rounds the count of the checkpoint, and no recorded line has another one."""
    config = checkpoints.config_from(demo.path("draft"))
    count = checkpoints.parameter_count(T5Target(config))
    shown = f"{count / 1e6:.1f}M"
    for page, pattern in {
        "demo/README.md": r"T5 of [\d.]+M parameters and its drafter of ([\d.]+M)",
        "docs/log/methods-log.md": r"\| the drafter in `demo/` \| a call a token \| ([\d.]+M) \|",
        "docs/log/performance-log.md": r"; target 16\.8M float32 and draft ([\d.]+M)",
    }.items():
        stated = re.findall(pattern, (ROOT / page).read_text(encoding="utf-8"))
        assert stated and set(stated) == {shown}, page
    for file in (ROOT / "docs" / "results").glob("*/blocks/lines.jsonl"):
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        of_demo = [one for one in lines if one.get("pair") in ("ende", "highlights")]
        counts = {one["parameters"] for one in of_demo if one["drafter"] == "draft"}
        assert counts <= {count}, file


@pytest.mark.slow
def test_the_target_is_better_and_speculation_does_not_change_it(pair):
    target, draft, params = pair
    task = tasks.synthetic_task("specdec_ende")
    vocabulary = tasks.demo_vocabulary().load()
    (batch,) = tasks.batches(task, "test", LENGTHS, batch_size=TEXTS, limit=TEXTS)
    keys, inputs = row_keys(0, jnp.asarray(batch.index)), jnp.asarray(batch.inputs)
    drafter = Autoregressive(draft, Greedy())
    plan = Plan(target, drafter, GreedyMatch(), Fixed(7), Greedy(), LENGTHS["targets"])

    def bleu(output):
        texts = [tasks.detokenize(vocabulary, row) for row in output.tokens]
        return tasks.bleu(batch.target_texts, texts)["bleu"]

    plain = decode(params, keys, inputs, plan.alone())
    of_drafter = dataclasses.replace(plan.alone(), target=draft)
    drafts = decode(Params(params["draft"]), keys, inputs, of_drafter)
    assert bleu(plain) > bleu(drafts) + 5
    ours = decode(params, keys, inputs, plan)
    found = divergences(
        target, params["target"], keys, inputs, ours.tokens, plain.tokens, sampling=Greedy()
    )
    assert len(found) <= 1 and all(divergence.gap < LOGITS for divergence in found)
    assert np.sum(ours.length) / np.sum(ours.trace.calls) > 3


def test_the_demo_is_one_command(tmp_path, capsys):
    flags = ["--limit=3", "--compare", f"--compilation_cache_dir={tmp_path / 'cache'}"]
    path = tmp_path / "out.jsonl"
    assert cli.main(["decode", "--gin_file=demo.gin", f"--output_file={path}", *flags]) == 0
    error = capsys.readouterr().err
    assert "all 3 outputs identical" in error
    assert re.search(r"\d+ target calls instead of \d+, [\d.]+ times as fast", error)
    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_a_file_that_does_not_ship():
    with pytest.raises(ValueError, match="has no 'tokenizer'; it has target, draft and vocabulary"):
        demo.path("tokenizer")
