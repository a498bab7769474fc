"""Decoder-only checkpoints with a tokenizer: stop ids, padding, files and chat.

pytest tests/engine/test_prompt_engine.py
"""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from specdec import Plan, checkpoints, cli, tasks
from specdec.checkpoints import CheckpointError, huggingface, tokenizer_files
from specdec.checkpoints.vocabulary_fit import check_fit
from specdec.drafters import Autoregressive
from specdec.engine import Engine
from specdec.integrations.interactive import InteractiveModel
from specdec.models.llama import Llama, LlamaConfig
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.tasks.plain import parsed
from specdec.verifiers import GreedyMatch

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "prompts"
EXPECTED = json.loads((GOLDEN / "golden.json").read_text())
EOT, END = 384, 381
CONFIG = LlamaConfig(385, 16, 2, 1, 8, 24, 1, stop_ids=(EOT, END))
LENGTHS = {"inputs": 16, "targets": 8}
TEXTS = [("The house", None), ("!", None)]
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def vocabulary_of(name, file):
    said = tokenizer_files.read(GOLDEN / name, GOLDEN / name / file, 0)
    files = tokenizer_files.present(GOLDEN / name, GOLDEN / name / file)
    return checkpoints.Vocabulary(GOLDEN / name / file, 0, said, files)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A checkpoint in transformers' format, with random parameters and LLaMA 3's tokenizer."""
    folder = tmp_path_factory.mktemp("prompts") / "llama3"
    params = jax.tree.map(lambda leaf: 8 * leaf, Llama(CONFIG).init(jax.random.key(0)))
    vocabulary = vocabulary_of("llama3", "tokenizer.json")
    settings = {"eos_token_id": [EOT, END], "bos_token_id": 380, "pad_token_id": EOT}
    given = {"vocabulary": vocabulary, "generation": settings, "format": "huggingface"}
    checkpoints.save(folder, params, config=CONFIG, **given)
    return folder


@pytest.fixture
def copy(path, tmp_path):
    return shutil.copytree(path, tmp_path / "copy")


def settle(folder, **entries):
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def opened(directory, drafter=None, **weights):
    drafts = (drafter, GreedyMatch(), Fixed(3)) if drafter else (None, None, None)
    plan = Plan(checkpoints.model_from(directory), *drafts, Greedy(), max_length=8)
    return Engine.open(plan, {"target": directory, **weights}, rows=2)


def decoded(engine):
    (batch,) = tasks.text_batches(
        TEXTS, engine.vocabulary, LENGTHS, batch_size=2, pad_id=engine.plan.target.pad_id
    )
    return engine.decode(batch)[0]


@pytest.mark.ci
def test_a_text_ends_at_any_of_several_ids(copy):
    free = decoded(opened(copy)).row(0).tokens
    assert len(free) == 8 and not {EOT, END} & set(free)
    last = free[3]
    settle(copy, eos_token_id=[EOT, last])
    assert opened(copy).plan.stop_ids == (EOT, last)
    assert decoded(opened(copy)).row(0).tokens == free[: free.index(last) + 1]
    model = InteractiveModel(copy, lengths=LENGTHS, batch_size=2)
    assert list(model.decode(["The house"])[0].tokens) == free[: free.index(last) + 1]


def test_every_format_keeps_what_tells_prompts_and_ends(path, tmp_path):
    own, back = tmp_path / "own", tmp_path / "back"
    assert cli.main(["convert", str(path), str(own), "--format=orbax"]) == 0
    assert cli.main(["convert", str(own), str(back), "--format=huggingface"]) == 0
    for folder in (own, back):
        for file in FILES:
            assert (folder / file).read_bytes() == (path / file).read_bytes(), file
        engine = opened(folder)
        assert engine.plan.stop_ids == (EOT, END) and engine.plan.target.pad_id == -1
        assert engine.vocabulary.eos_id == EOT
        assert tasks.input_ids(engine.vocabulary, "!") == [380, 0]
        assert cli.main(["check", str(folder)]) == 0


@pytest.mark.ci
def test_training_keeps_them_too(path, tmp_path):
    lines = tmp_path / "pairs.tsv"
    lines.write_text("The house\tDas Haus\n" * 2)
    flags = [f"--draft={path}", f"--input_file={lines}", f"--output_dir={tmp_path / 'run'}"]
    settings = ["--steps=1", "--gin.BATCH_SIZE=2", "--gin.TASK_NAME='kept'"]
    assert cli.main(["train", *flags, *settings]) == 0
    for file in FILES:
        made = tmp_path / "run" / "export" / "checkpoint_1" / file
        assert made.read_bytes() == (path / file).read_bytes(), file


def test_the_hubs_files_are_those_that_are_read():
    both = ("config.json", "model.safetensors", "tokenizer.model", *FILES)
    assert {*huggingface.wanted(both)} == {*both} - {"tokenizer.model"}
    word_piece = ("config.json", "model.safetensors", "vocab.txt")  # to be refused by its name
    assert huggingface.wanted(word_piece) == ["config.json", "vocab.txt", "model.safetensors"]
    names = ("config.json", "model.safetensors", "vocab.json", "merges.txt", "README.md")
    assert {*huggingface.wanted(names)} == {*names} - {"README.md"}


def test_models_of_a_pair_may_have_other_files(tmp_path):
    ours = vocabulary_of("llama2", "tokenizer.model")
    assert ours.same_ids(vocabulary_of("llama2_json", "tokenizer.json"))
    assert not ours.same_ids(vocabulary_of("opt", "vocab.json"))
    for name, piece, same in (("same", "", True), ("other", "x", False)):
        model = parsed(ours.path.read_bytes())
        model.trainer_spec.num_threads += 1
        model.pieces[300].piece += piece
        (tmp_path / name).mkdir()
        file = tmp_path / name / "tokenizer.model"
        file.write_bytes(model.SerializeToString())
        assert ours.same_ids(ours._replace(path=file)) == same


def test_vocab_and_merges_travel_together(tmp_path):
    config = dataclasses.replace(CONFIG, vocab_size=380, stop_ids=(2,), pad_id=1)
    params = Llama(config).init(jax.random.key(0))
    vocabulary = vocabulary_of("opt", "vocab.json")
    for format in ("orbax", "huggingface", "t5x"):
        folder = tmp_path / format
        checkpoints.save(folder, params, config=config, vocabulary=vocabulary, format=format)
        for file in ("vocab.json", "merges.txt", "tokenizer_config.json"):
            assert (folder / file).read_bytes() == (GOLDEN / "opt" / file).read_bytes()
        saved = tasks.for_texts(tasks.recorded_vocabulary(*checkpoints.vocabulary_from(folder)))
        assert saved.input_ids("The") == [2, *saved.encode("The")]


def test_a_draft_that_pads_with_another_id_reads_the_same_prompts(path, tmp_path):
    params = checkpoints.load(path)
    config = dataclasses.replace(CONFIG, pad_id=0)
    checkpoints.save(tmp_path / "draft", params, config=config)
    drafter = Autoregressive(checkpoints.model_from(tmp_path / "draft"), Greedy())
    engine = opened(path, drafter, draft=tmp_path / "draft")
    output = decoded(engine)
    assert np.all(output.trace.accepted == output.trace.drafted) and output.trace.drafted.sum()


def test_a_padding_id_that_is_a_word_is_refused(path):
    vocabulary = tasks.for_texts(tasks.recorded_vocabulary(*checkpoints.vocabulary_from(path)))
    for pad_id in (-1, 382):  # none, and a special token
        check_fit(vocabulary, Llama(dataclasses.replace(CONFIG, pad_id=pad_id)), "target")
    word = Llama(dataclasses.replace(CONFIG, pad_id=0))
    with pytest.raises(ValueError, match="none, 384 and 384, and the target pads with 0; use"):
        check_fit(vocabulary, word, "target")


def test_a_vocabulary_that_puts_eos_behind_prompts_is_refused():
    file = GOLDEN / "llama2" / "tokenizer.model"
    by_hand = tasks.for_texts(tasks.vocabulary_file(str(file)))
    config = dataclasses.replace(CONFIG, vocab_size=420, stop_ids=(2,))
    with pytest.raises(ValueError, match="continues prompts, but the vocabulary .* would end each"):
        check_fit(by_hand, Llama(config), "target")


@pytest.mark.parametrize("name, value", [("min_length", 5), ("forced_bos_token_id", 7)])
def test_settings_that_count_the_prompt_are_refused(copy, name, value):
    settle(copy, **{name: value})
    with pytest.raises(CheckpointError, match=f"{name} {value}, which counts from the start of a"):
        opened(copy)


@pytest.mark.parametrize(
    "name, value, given, others",
    [
        ("num_beams", 4, {"num_beams": 2}, [{}, {"num_samples": 4}]),
        ("num_return_sequences", 3, {"num_samples": 3}, [{}, {"num_samples": 4, "num_beams": 3}]),
        ("min_new_tokens", 2, {}, [{"prefix": "The"}]),
    ],
)
def test_settings_of_beams_samples_and_prefixes_are_obeyed_or_refused(
    copy, name, value, given, others
):
    settle(copy, **{name: value})
    plan = Plan(checkpoints.model_from(copy), None, None, None, Greedy(), max_length=8)
    assert Engine.open(plan, {"target": copy}, **given).plan.max_length == 8
    for other in others:
        with pytest.raises(CheckpointError, match=f"has {name} {value}, "):
            Engine.open(plan, {"target": copy}, **other)


def test_a_chat_is_decoded_from_the_templates_prompt(path, capsys):
    flags = [f"--target={path}", "--chat", "--text=What is the river? "]
    assert cli.main(["decode", "--dry_run", *flags]) == 0
    shown = capsys.readouterr().out
    assert str(EXPECTED["llama3"]["chat"]) in shown
    assert "prompts: begin with [380], and go on" in shown
    assert "ends [384, 381] (generation_config.json)" in shown
    model = InteractiveModel(path, lengths={"inputs": 99, "targets": 4}, chat=True)
    (batch,) = model._batches([("What is the river? ", None)])
    assert batch.inputs[batch.inputs >= 0].tolist() == EXPECTED["llama3"]["chat"]


def test_a_chat_needs_given_texts_and_a_template(path, copy, capsys):
    task = ["--gin_file=tasks/synthetic.gin", "--gin.TASK_NAME='specdec_ende'", "--gin.BUCKETS=()"]
    assert cli.main(["decode", f"--target={path}", "--chat", *task]) == 2
    assert "CHAT is for given texts, and the run has a task" in capsys.readouterr().err
    (copy / "chat_template.jinja").unlink()
    assert cli.main(["decode", f"--target={copy}", "--chat", "--text=a"]) == 2
    assert "has no chat template, which is chat_template.jinja" in capsys.readouterr().err
