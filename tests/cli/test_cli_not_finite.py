"""Checkpoints with NaN, through every command: pytest tests/cli/test_cli_not_finite.py"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from support import few
from yard import LINES

from specdec import checkpoints, cli

PACKAGE = Path(__file__).parents[2] / "specdec"


@pytest.fixture(scope="module")
def broken(folder, tmp_path_factory):
    """A target whose head is NaN throughout, and a drafter whose table has one row of NaN."""
    out = tmp_path_factory.mktemp("broken")
    for role, path, rows in (
        ("target", ("decoder", "logits_dense", "kernel"), slice(None)),
        ("draft", ("token_embedder", "embedding"), 0),
    ):
        params, config = checkpoints.load(folder / role), checkpoints.config_from(folder / role)
        tree = params
        for name in path[:-1]:
            tree = tree[name]
        tree[path[-1]] = jnp.asarray(np.array(tree[path[-1]])).at[rows].set(jnp.nan)
        checkpoints.save(out / role, params, config=config)
    return out


@pytest.fixture
def command(folder, broken, cache, capsys):
    """Runs a command on a target and a drafter, each sound or broken."""

    def run(name, *flags, target="sound", draft="sound"):
        capsys.readouterr()
        where = {"sound": folder, "broken": broken}
        paths = [f"--gin.CHECKPOINT_PATH='{where[target] / 'target'}'"]
        paths += [f"--gin.DRAFT_CHECKPOINT_PATH='{where[draft] / 'draft'}'"]
        run = [f"--gin_file={folder / 'run.gin'}", f"--compilation_cache_dir={cache}"]
        code = cli.main([name, *run, *paths, *flags])
        return code, *capsys.readouterr()

    return run


ERROR = "the logits of T5Target are NaN or infinite for output token 1 of "


@pytest.mark.ci
@pytest.mark.parametrize("name", few(["decode", "eval", "score", "acceptance", "bench", "verify"]))
def test_a_target_without_logits_is_one_line(command, broken, tmp_path, name):
    flags = {
        "score": [],
        "eval": ["--metric=bleu", f"--output_dir={tmp_path / 'out'}"],
        "bench": ["--repeats=1", f"--output_file={tmp_path / 'out'}"],
    }.get(name, [f"--output_file={tmp_path / 'out'}"])
    code, out, err = command(name, *flags, target="broken")
    assert code == 2, err
    line = err.splitlines()[-1]
    assert line.startswith(f"specdec: target {broken / 'target'}: {ERROR}"), line
    assert "text 0;" in line
    assert "see `specdec check`, and compute in float32" in line
    for file in tmp_path.rglob("*.json*"):
        assert "NaN" not in file.read_text()


@pytest.mark.ci
@pytest.mark.parametrize("sampling", few(["temperature", "greedy"]))
def test_broken_drafts_are_said_in_the_summary(command, tmp_path, sampling):
    flags = [f"--gin_file=sampling/{sampling}.gin", "--gin_file=verifiers/coupled.gin", "--compare"]
    code, out, err = command("decode", *flags, draft="broken")
    assert code == 0
    count = re.search(r"^(\d+) of \d+ drafts ended early, because the drafter's prob", err, re.M)
    assert count and int(count[1]) > 0
    assert f"all {len(LINES)} outputs identical" in err
    assert "ended early" not in command("decode", *flags)[2]


@pytest.mark.slow
def test_a_benchmark_counts_broken_drafts(command, tmp_path):
    file = tmp_path / "bench.jsonl"
    code, out, _ = command(
        "bench", "--repeats=1", "--limit=1", f"--output_file={file}", draft="broken"
    )
    assert code == 0 and re.search(r"^broken drafts +\d+  ended early", out, re.MULTILINE)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    (ours,) = (line for line in lines if line.get("mode") == "speculative")
    assert ours["broken_drafts"] > 0
    assert not any("broken_drafts" in line for line in lines if line is not ours)


def test_every_json_file_is_written_by_one_function():
    """`records.as_json` has no NaN. Others write what has no measured number in it."""
    others = {
        "checkpoints/directory.py",
        "checkpoints/huggingface_files.py",
        "checkpoints/safetensors.py",
        "models/placement/device.py",
        "common/records.py",
        "checkpoints/tables/files.py",
        "tasks/chat.py",
        "tasks/chat_process.py",
        "tasks/tokenizer_json.py",
        "training/folder.py",
        "training/laws.py",
    }
    found = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("dumps", "dump"):
                if ast.unparse(node.value) != "json":
                    continue
                found.add(str(file.relative_to(PACKAGE)))
    assert found == others
