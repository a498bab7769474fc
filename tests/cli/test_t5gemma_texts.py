"""A T5Gemma's directory through the commands: pytest tests/cli/test_t5gemma_texts.py

The texts are those that transformers generates; see tests/golden/README.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from specdec import checkpoints, cli, tasks
from specdec.models.families import model_of

TARGET = Path(__file__).resolve().parents[1] / "golden" / "prompts" / "t5gemma"
GENERATED = json.loads((TARGET / "generated.json").read_text())
LENGTHS = (
    '--gin.TASK_FEATURE_LENGTHS={"inputs":24,"targets":12}',
    "--gin.BUCKETS=()",
    "--gin.BATCH_SIZE=2",
)


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    """A draft of the same vocabulary, which is near the target, as transformers saves it."""
    folder = tmp_path_factory.mktemp("t5gemma") / "draft"
    text, config = checkpoints.text_model_from(TARGET), checkpoints.config_from(TARGET)
    params = checkpoints.load(TARGET, config=config)
    noise = model_of(config).init(jax.random.key(0))
    params = jax.tree.map(lambda a, b: a + 0.1 * b, params, noise)
    checkpoints.save(folder, params, config=config, format="huggingface", **text.kept())
    return folder


@pytest.mark.ci
def test_a_pair_writes_the_ids_and_texts_of_transformers(draft, cache, tmp_path):
    file, out = tmp_path / "texts.txt", tmp_path / "out.jsonl"
    file.write_text("".join(f"{one['input']}\n" for one in GENERATED))
    flags = [f"--target={TARGET}", f"--draft={draft}", "--gamma=2", f"--input_file={file}"]
    flags += [f"--output_file={out}", f"--compilation_cache_dir={cache}", *LENGTHS]
    assert cli.main(["decode", *flags]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for line, one in zip(lines, GENERATED, strict=True):
        assert (line["tokens"], line["prediction"]) == (one["output"], one["text"])
    assert any(sum(line["accepted"]) for line in lines)


def test_inputs_are_framed_as_in_transformers():
    vocabulary = tasks.for_texts(tasks.recorded_vocabulary(*checkpoints.vocabulary_from(TARGET)))
    for one in GENERATED:
        assert tasks.input_ids(vocabulary, one["input"]) == one["ids"]
        assert vocabulary.decode(one["output"]) == one["text"]
    text = checkpoints.text_model_from(TARGET)
    assert (text.start_id, text.pad_id, text.stop_ids) == (2, 0, (1, 6))
    assert ("inputs", "begin with [2], and have no EOS") in list(text.lines())
