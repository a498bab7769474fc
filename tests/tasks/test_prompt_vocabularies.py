"""Tokenizers with byte-pair merges: pytest tests/tasks/test_prompt_vocabularies.py

The golden ids and texts are transformers'; see tests/golden/README.md.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers

from specdec import tasks
from specdec.checkpoints import tokenizer_files
from specdec.tasks import bpe
from specdec.tasks.added_tokens import AddedToken, Framing, Tokenization
from specdec.tasks.plain import parsed

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "prompts"
EXPECTED = json.loads((GOLDEN / "golden.json").read_text())
MESSAGE = "What is the river? "


def definition(folder):
    files = (folder / names[0] for names in tokenizer_files.VOCABULARIES)
    file = next(file for file in files if file.is_file())
    return tasks.recorded_vocabulary(file, 0, tokenizer_files.read(folder, file, 0))


@pytest.fixture(scope="module")
def llama2():
    return definition(GOLDEN / "llama2").plain()


@pytest.fixture
def edited(tmp_path):
    """Copies a golden tokenizer and edits its JSON files."""

    def edit(name, file="tokenizer_config.json", **entries):
        folder = shutil.copytree(GOLDEN / name, tmp_path / name, dirs_exist_ok=True)
        record = json.loads((folder / file).read_text()) | entries
        (folder / file).write_text(json.dumps(record))
        return folder

    return edit


def error_of(folder) -> str:
    with pytest.raises(ValueError) as error:
        definition(folder).plain()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", EXPECTED)
def test_ids_and_texts_are_those_of_transformers(name):
    expected, vocabulary = EXPECTED[name], definition(GOLDEN / name).plain()
    for text, ids in expected["ids"].items():
        assert vocabulary.input_ids(text) == ids, text
    for ids, text in expected["outputs"]:  # the text that follows a prompt, with its space
        assert vocabulary.decode(ids) == text, ids
    assert list(vocabulary.before) == expected["before"] and not vocabulary.ends
    assert vocabulary.continued == (name != "t5gemma")
    if vocabulary.continued:
        assert any(text.startswith(" ") for _, text in expected["outputs"])
    assert vocabulary.pad_id == (None if vocabulary.continued else 0)


@pytest.mark.parametrize("name", [name for name in EXPECTED if "chat" in EXPECTED[name]])
def test_a_chat_template_is_rendered_as_in_transformers(name):
    chatting = tasks.chatting(definition(GOLDEN / name)).plain()
    expected = EXPECTED[name]["chat"]
    assert chatting.input_ids(MESSAGE) == expected
    length = len(expected) - 3
    kept = [expected[0], *expected[1 - length :]] if chatting.continued else expected[:length]
    assert chatting.input_ids(MESSAGE, length) == kept


def test_settings_of_tokenizer_config_are_obeyed(edited):
    newer = definition(edited("llama2", legacy=False)).plain()
    assert newer.input_ids("a</s>b <s> c") == [1, 262, 2, 384, 369, 1, 357]
    assert newer.input_ids(" a") == [1, 262]
    spaced = definition(edited("opt", add_prefix_space=True)).plain()
    assert spaced.input_ids("The") == [2, *spaced.encode(" The")]
    for name in ("llama2", "llama2_json", "llama3"):
        ends = definition(edited(name, add_bos_token=False, add_eos_token=True)).plain()
        assert ends.ends and ends.input_ids("a") == [*ends.encode("a"), ends.eos_id]


def test_an_added_token_is_found_inside_a_word():
    """Where a space is put before each text, and would be before the token in its list too."""
    backend = Tokenizer(models.BPE(vocab={"_": 0, "a": 1, "b": 2}, merges=[]))
    backend.normalizer = normalizers.Prepend("_")
    added = AddedToken(3, "<x>"), AddedToken(4, "<y>", special=True)
    bpe._add_tokens(backend, Tokenization(added, framing=Framing()))
    assert backend.encode("a<x>b<y>").ids == [0, 1, 3, 0, 2, 4]


def test_a_file_of_sentencepiece_and_of_tokenizers_have_the_same_ids(llama2):
    other = definition(GOLDEN / "llama2_json").plain()
    assert tasks.same_vocabulary(llama2, other) and tasks.digest(llama2) != tasks.digest(other)
    opt = definition(GOLDEN / "opt").plain()
    assert not tasks.same_vocabulary(llama2, opt)


def test_a_prompt_goes_on_and_keeps_its_end(llama2, tmp_path):
    text = "The house is small."
    whole = [1, *llama2.encode(text)]
    short = [1, *whole[-4:]]
    lengths = {"inputs": 5, "targets": 9}
    (batch,) = tasks.text_batches([(text, "a")], llama2, lengths, batch_size=1, pad_id=-1)
    assert batch.inputs.tolist() == [short]
    assert batch.targets[0, : 1 + len(llama2.encode("a"))].tolist() == [*llama2.encode("a"), 2]
    lines = tmp_path / "lines.tsv"
    lines.write_text(f"{text}\ta\n")
    llama2_definition = definition(GOLDEN / "llama2")
    task = tasks.local_task("prompts", {"test": str(lines)}, llama2_definition)
    (example,) = task.examples("test", lengths)
    assert example.inputs.tolist() == short
    (example,) = task.examples("test", {"inputs": 99, "targets": 99})
    assert example.inputs.tolist() == whole and example.targets[-1] == 2
    record = {"input": text, "tokens": [5, 2]}
    (tmp_path / "predictions.jsonl").write_text(json.dumps(record) + "\n")
    task = tasks.predictions_task("said", {"train": str(tmp_path)}, llama2_definition)
    (example,) = task.examples("train", lengths)
    assert example.inputs.tolist() == short and example.targets.tolist() == [5, 2]


def test_an_encoder_reads_the_begin_of_a_text_that_is_too_long(edited, tmp_path):
    """A task cuts a long input as transformers does; a given text is refused."""
    found = definition(GOLDEN / "t5gemma")
    vocabulary, text = found.plain(), "The house is small."
    whole = [2, *vocabulary.encode(text)]
    assert (vocabulary.eos_id, vocabulary.input_ids(text, 4)) == (1, whole[:4])
    with pytest.raises(tasks.TaskError, match="text 1 is 5 tokens long"):
        list(tasks.text_batches([(text, None)], vocabulary, {"inputs": 4}, batch_size=1))
    lines = tmp_path / "lines.tsv"
    lines.write_text(f"{text}\ta\n")
    task = tasks.local_task("encoded", {"test": str(lines)}, found)
    (example,) = task.examples("test", {"inputs": 4, "targets": 9})
    assert example.inputs.tolist() == whole[:4]
    assert example.targets.tolist() == [*vocabulary.encode("a"), 1]
    with pytest.raises(tasks.TaskError, match="inputs that end in EOS, as T5's do"):
        tasks.t5_task("wmt14_ende_v003", found)
    alone = edited("t5gemma")
    (alone / "config.json").unlink()
    assert definition(alone).plain().continued


def test_id_0_is_a_word(llama2):
    vocabulary = definition(GOLDEN / "llama3").plain()
    (batch,) = tasks.text_batches([("!", None)], vocabulary, {"inputs": 4}, batch_size=1, pad_id=-1)
    assert batch.inputs.tolist() == [[380, 0, -1, -1]] and vocabulary.decode([0]) == "!"


def test_a_text_of_no_token_is_refused(edited):
    vocabulary = definition(edited("opt", add_bos_token=False)).plain()
    assert vocabulary.before == ()
    with pytest.raises(tasks.TaskError, match="text 1 is '', a prompt without a token; give"):
        list(tasks.text_batches([("", None)], vocabulary, {"inputs": 4}, batch_size=1, pad_id=-1))


def test_files_that_contradict_each_other_are_refused(edited):
    folder = edited("opt", "special_tokens_map.json", eos_token="<s>")
    assert "eos_token is '</s>' in tokenizer_config.json and '<s>' in special_t" in error_of(folder)
    folder = edited("llama3", eos_token="<|end|>")
    assert "its eos_token is '<|end|>', which is none of its tokens; set" in error_of(folder)
    added = {"400": {"content": "<|new|>", "special": True}}
    folder = edited("llama2", added_tokens_decoder=added)
    assert "'<|new|>' has the id 400 in its files and would get 420" in error_of(folder)
    folder = edited("opt", tokenizer_class="CLIPTokenizer")
    assert "has tokenizer_class 'CLIPTokenizer', and those read are GPT2Tok" in error_of(folder)


def test_other_tokenizers_are_refused(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / "llama3" / name, tmp_path / name)
    by_hand = tasks.vocabulary_file(str(tmp_path / "tokenizer.json"))
    with pytest.raises(tasks.TaskError, match="put it into the checkpoint's directory, and set n"):
        by_hand.plain()
    folder = shutil.copytree(GOLDEN / "llama2", tmp_path / "other")
    model = parsed((folder / "tokenizer.model").read_bytes())
    model.normalizer_spec.remove_extra_whitespaces = True
    (folder / "tokenizer.model").write_bytes(model.SerializeToString())
    assert "it is not like LLaMA's, which puts a space before each text and" in error_of(folder)
    (folder / "tokenizer.model").write_bytes(b"junk")
    assert "tokenizer.model: it is not a SentencePiece model; use the tokeni" in error_of(folder)
    with pytest.raises(tasks.TaskError, match="inputs that end in EOS, as T5's do"):
        tasks.t5_task("wmt14_ende_v003", definition(GOLDEN / "llama2"))


def test_half_of_vocab_and_merges_is_refused(tmp_path):
    folder = shutil.copytree(GOLDEN / "opt", tmp_path / "opt")
    merges = folder / "merges.txt"
    merges.write_text(merges.read_text() + "a b c\n")
    assert "merges.txt has the line 'a b c'; copy it again" in error_of(folder)
    merges.unlink()
    assert "merges.txt is not a file" in error_of(folder)


@pytest.mark.parametrize("file", ("tokenizer_config.json", "chat_template.jinja"))
def test_a_chat_template_that_cannot_be_used_is_named(edited, file):
    source = "{{ raise_exception('no user') }}"
    folder = edited("llama2", chat_template=source if file.endswith("json") else "unread")
    if not file.endswith("json"):
        (folder / file).write_text(source)
    with pytest.raises(tasks.TaskError) as found:
        tasks.chatting(definition(folder)).plain().input_ids("a")
    said = str(found.value)
    assert said.startswith(f"the chat template of {folder / file} cannot be used (")
    assert said.endswith("); correct it, or decode without chat") and "\n" not in said


def test_a_chat_template_that_is_no_text_is_named(edited):
    (file := edited("llama2") / "chat_template.jinja").write_bytes(b"\xff")
    assert error_of(file.parent).startswith(f"{file}: 'utf-8' codec can't decode")


def test_a_chat_needs_a_template_and_jinja2(edited, monkeypatch):
    where = "which is chat_template.jinja or chat_template in tokenizer_config.json; decode without"
    with pytest.raises(tasks.TaskError, match=f"^{GOLDEN}/opt has no chat template, {where} chat"):
        tasks.chatting(definition(GOLDEN / "opt"))
    with pytest.raises(tasks.TaskError, match=r"^Bytes\(.*\) has no chat template, which"):
        tasks.chatting(tasks.Bytes())
    monkeypatch.setitem(sys.modules, "jinja2", None)
    missing = tasks.chatting(definition(edited("llama2", chat_template="c")))
    with pytest.raises(tasks.TaskError, match="a chat template needs jinja2; pip install jinja2"):
        missing.plain()


def test_the_default_of_several_chat_templates_is_used(edited):
    named = [{"name": "tools", "template": "b"}, {"name": "default", "template": "a"}]
    chatting = tasks.chatting(definition(edited("llama2", chat_template=named))).plain()
    assert chatting.input_ids("x") == chatting.encode("a")
