"""JSON from anybody, and records that a disk damaged: pytest tests/test_foreign_json.py

Each input was found in the wild, or by a fuzzer. Right is one line with the file and the place.
"""

import ast
import io
import json
import math
import shutil
import sys
from pathlib import Path
from typing import TypedDict

import pytest

from specdec import checkpoints, cli, tasks
from specdec.checkpoints import tokenizer_files
from specdec.cli import given
from specdec.common.json_values import parsed
from specdec.common.records import RecordsError
from specdec.common.values import UsageError
from specdec.measure import recorded_texts
from specdec.measure.file import File
from specdec.predict import stored_costs
from specdec.report import summaries
from specdec.report.replicate import results
from specdec.report.replicate.study import read as read_study
from specdec.tasks import series
from specdec.tasks.task_error import no_panic

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
DEEP = "[" * 100_000
BOLT = {"context_length": 2048, "input_patch_size": 16, "prediction_length": 64}


class Layer(TypedDict, total=False):
    size: int | None
    names: list[str]


class Model(TypedDict):
    layers: list[Layer]


@pytest.mark.parametrize(
    "content, says",
    [
        (DEEP, "is not JSON (too many brackets inside each other)"),
        ('{"layers": ' * 100_000, "is not JSON (too many brackets inside each other)"),
        ("{", "is not JSON (Expecting property name enclosed in double quotes: line 1 column 2"),
        (b'{"layers": "\xff"}', "is not JSON ('utf-8' codec can't decode byte 0xff in position 12"),
        ('{"layers": NaN}', "is not JSON (the number NaN)"),
        ('{"layers": -Infinity}', "is not JSON (the number -Infinity)"),
        ('{"layers": 1e999}', "is not JSON (the number 1e999)"),
        ("1" * 5000, "is not JSON (Exceeds the limit (4300 digits)"),
        ("[]", "is no such JSON object: expected object, got array"),
        ("{}", "is no such JSON object: object missing required field layers"),
        ('{"layers": {}}', "has a wrong layers: expected array, got object"),
        ('{"layers": [{}, {"size": 1.5}]}', "has a wrong layers[1].size: expected int | null, got"),
        ('{"layers": [{"size": true}]}', "has a wrong layers[0].size: expected int | null, got bo"),
        ('{"layers": [{"names": ["a", null]}]}', "has a wrong layers[0].names[1]: expected str, g"),
    ],
)
def test_json_of_another_kind_is_one_line_with_the_place(content, says):
    with pytest.raises(ValueError) as refused:
        parsed(content, Model)
    assert str(refused.value).startswith(says) and "\n" not in str(refused.value)


def test_json_of_its_kind_keeps_what_the_kind_does_not_name():
    """A mark of the byte order and integers of any size too, which tokenizers have."""
    value = {"layers": [{"size": 10**30, "more": [1, None]}], "other": {"ä": 1.5}}
    content = b"\xef\xbb\xbf" + json.dumps(value, ensure_ascii=False).encode()
    assert parsed(content, Model) == value
    assert math.isnan(parsed("[NaN]", list, nan=True)[0])


def test_every_text_file_is_opened_with_an_encoding():
    """Python's own depends on the system: JSON of a checkpoint is UTF-8 on every one."""
    found = []
    for path in sorted((ROOT / "specdec").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            modes = [x.value for x in node.args if isinstance(x, ast.Constant)]
            named = any(keyword.arg == "encoding" for keyword in node.keywords)
            text = any(isinstance(mode, str) and "t" in mode for mode in modes[1:] or modes)
            is_open = name == "open" and (isinstance(node.func, ast.Name) or text)
            given = len(node.args) >= (1 if name == "read_text" else 2)
            binary = any("b" in mode for mode in modes[-1:] if isinstance(mode, str))
            if name in ("read_text", "write_text") and not named and not given:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
            if is_open and not named and not binary:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


def refused(function, *arguments) -> str:
    """The error of a call, without the folders of the test; it must be one line."""
    with pytest.raises(
        (checkpoints.CheckpointError, tasks.TaskError, UsageError, RecordsError)
    ) as e:
        function(*arguments)
    assert "\n" not in str(e.value) and len(str(e.value)) < 1000
    return str(e.value)


def copied(golden: str, folder: Path, file: str = "", content: bytes = b"", **changes) -> Path:
    """Copies a golden checkpoint, with the contents of a file, or some of its names, changed."""
    made = shutil.copytree(GOLDEN / golden, folder / "copy")
    if changes:
        content = json.dumps(json.loads((made / file).read_bytes()) | changes).encode()
    if file:
        (made / file).write_bytes(content)
    return made


@pytest.mark.parametrize(
    "golden, changes, says",
    [
        ("hf_v1_1", {"architectures": 5}, "a wrong architectures: expected array | null, got int"),
        ("hf_v1_1", {"model_type": ["t5"]}, "a wrong model_type: expected str | null, got array"),
        ("hf_v1_1", {"num_layers": -1}, "a wrong num_layers: expected int >= 0"),
        ("hf_v1_1", {"d_model": "64"}, "a wrong d_model: expected int | null, got str"),
        ("hf_v1_1", {"task_specific_params": [1]}, "a wrong task_specific_params: expected object"),
        ("hf_llama", {"num_attention_heads": {}}, "a wrong num_attention_heads: expected int"),
        ("hf_llama", {"rope_scaling": 5}, "a wrong rope_scaling: expected object | null, got int"),
        ("hf_v1_1", {"model": {"num_encoder_layers": "2"}}, "a wrong model.num_encoder_layers: ex"),
        ("hf_v1_1", {"model": {"num_decoder_layers": -1}}, "a wrong model.num_decoder_layers: exp"),
        ("hf_t5gemma2", {"encoder": {"text_config": []}}, "a wrong encoder.text_config: expected"),
        ("hf_chronos", {"chronos_config": -1}, "a wrong chronos_config: expected object, got int"),
        ("hf_chronos", {"chronos_config": BOLT}, "chronos_config is of a Chronos-Bolt, which read"),
        ("hf_chronos", {"chronos_config": {}}, "chronos_config has no tokenizer_class"),
    ],
)
def test_a_damaged_config_is_one_line(tmp_path, golden, changes, says):
    folder = copied(golden, tmp_path, "config.json", **changes)
    said = refused(checkpoints.config_from, folder)
    assert f"{folder / 'config.json'}" in said and says in said
    refused(checkpoints.text_model_from, folder)


def vocabulary(folder: Path):
    """The vocabulary of a folder of tokenizer files alone."""
    files = (folder / names[0] for names in tokenizer_files.VOCABULARIES)
    file = next(file for file in files if file.is_file())
    said = tokenizer_files.read(folder, file, 0)
    return tasks.recorded_vocabulary(file, 0, said).plain()


@pytest.mark.parametrize(
    "file, changes, says",
    [
        ("tokenizer_config.json", {"tokenizer_class": 5}, "a wrong tokenizer_class: expected str"),
        ("tokenizer_config.json", {"add_bos_token": "no"}, "a wrong add_bos_token: expected bool"),
        ("tokenizer_config.json", {"chat_template": 5}, "a wrong chat_template: expected str | ar"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"7": {}}}, "missing required field co"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1_0": {"content": "x"}}}, "id '1_0'"),
        ("special_tokens_map.json", {"additional_special_tokens": [5]}, "special_tokens[0]: expec"),
        ("tokenizer.json", {"added_tokens": [{"id": 10**12, "content": "x"}]}, "expected int <= 1"),
        ("tokenizer.json", {"added_tokens": [{"id": 5}]}, "a wrong added_tokens[0]: object missin"),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": "0"}}}, "a wrong model.vocab"),
    ],
)
def test_a_damaged_tokenizer_is_one_line(tmp_path, file, changes, says):
    folder = shutil.copytree(GOLDEN / "prompts" / "llama3", tmp_path / "copy")
    before = json.loads((folder / file).read_bytes()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps(before | changes))
    assert says in refused(vocabulary, folder)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [DEEP.encode(), b"\xff{}", b"{", b"null"])
def test_a_tokenizers_file_of_noise_is_one_line(tmp_path, file, content):
    folder = shutil.copytree(GOLDEN / "prompts" / "llama3", tmp_path / "copy")
    (folder / file).write_bytes(content)
    assert str(folder / file) in refused(vocabulary, folder)


def test_merges_with_line_ends_of_windows_are_the_same(tmp_path):
    folder = shutil.copytree(GOLDEN / "prompts" / "opt", tmp_path / "copy")
    text = "What is the river? It's  déjà-vu"
    ids = vocabulary(folder).input_ids(text)
    merges = (folder / "merges.txt").read_bytes()
    windows = shutil.copytree(folder, tmp_path / "windows")  # vocabularies are kept by their paths
    (windows / "merges.txt").write_bytes(b"\xef\xbb\xbf" + merges.replace(b"\n", b"\r\n"))
    assert b"\r\n" not in merges and vocabulary(windows).input_ids(text) == ids


def test_a_vocabulary_of_wordpiece_is_named(tmp_path):
    folder = copied("hf_v1_1", tmp_path, "vocab.txt", b"[PAD]\nthe\n##er\n")
    said = refused(checkpoints.vocabulary_from, folder)
    assert said.startswith(f"{folder / 'vocab.txt'} is a vocabulary of WordPiece, as of a BertTok")
    assert checkpoints.vocabulary_from(folder, needed=False) is None


@pytest.mark.parametrize(
    "text", [DEEP, '{"target": ' + DEEP, "1_000,2,3", "١,٢,٣", "1,２", "[1_0]", "[1e999]", "{}"]
)
def test_texts_that_are_no_series(text):
    assert refused(series.values_of, text).startswith("series ")


def with_rule(folder: Path, **changes) -> Path:
    """Writes the tokenizer.json of a tokenizer of two letters with other rules."""
    token = {"id": 0, "content": "<s>", "special": True, "normalized": False}
    token |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    model = {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2}, "merges": []}
    record = {"version": "1.0", "added_tokens": [token], "model": model} | changes
    (folder / "tokenizer.json").write_text(json.dumps(record))
    config = {"eos_token": "<s>", "add_bos_token": False, "add_eos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def replacing(length: int, times: int) -> dict[str, object]:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * length}
    return {"type": "Sequence", "normalizers": [step] * times}


def test_a_tokenizer_that_makes_texts_long_is_refused(tmp_path):
    assert vocabulary(with_rule(tmp_path, normalizer=replacing(10, 3))).encode("ab") == [
        1
    ] * 1000 + [2]
    said = refused(vocabulary, with_rule(tmp_path, normalizer=replacing(100, 4)))
    assert (
        "it writes up to 100,000,000 characters for one (Replace), and 1,000 are the most" in said
    )
    refused(vocabulary, with_rule(tmp_path, decoder=replacing(1001, 1)))


def test_a_pattern_that_backtracks_for_ever_is_one_line(tmp_path, capfd):
    """The library panics, with an error that is no Exception, and writes of it on stderr."""
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    split["pattern"] = {"Regex": "(a+)+$"}
    said = refused(vocabulary, with_rule(tmp_path, pre_tokenizer=split))
    assert "tokenizer.json: the library tokenizers fails at its rules (Onig: Regex search" in said
    assert capfd.readouterr().err == ""


def test_a_long_panic_of_a_library_is_cut():
    class PanicException(BaseException):
        """The library tokenizers has a class of this name, which it does not export."""

    said = "^vocabulary a.json: the library tokenizers fails at its rules .x{200}.; use the model's"
    with pytest.raises(tasks.TaskError, match=said), no_panic("a.json"):
        raise PanicException("x" * 201 + "\ny")
    with pytest.raises(KeyboardInterrupt), no_panic("a.json"):
        raise KeyboardInterrupt


def test_a_long_error_of_a_chat_template_is_cut(tmp_path):
    folder = shutil.copytree(GOLDEN / "prompts" / "llama3", tmp_path / "copy")
    (folder / "chat_template.jinja").write_text("{{ raise_exception('x' * 10**8) }}")
    file = folder / "tokenizer.json"
    said = tokenizer_files.read(folder, file, 0)
    chatting = tasks.chatting(tasks.recorded_vocabulary(file, 0, said)).plain()
    assert f"cannot be used ({'x' * 300})" in refused(chatting.input_ids, "hello")


ACCEPTED = {"index": 0, "tokens": 2, "accepted": {"model": [1.5, 1.6, 1.7, 1.8]}, "output": [5, 1]}
TIMING = {"part": "target 8", "text": 0, "repeat": 0, "seconds": 0.5, "steps": 4}
GENERATION = {"mode": "alone", "text": 0, "repeat": 0, "seconds": 0.5, "tokens": [5, 1]}
GENERATION |= {"calls": 2, "drafted": [0, 0], "accepted": [0, 0]}


@pytest.mark.parametrize(
    "read, line, changes, says",
    [
        ("acceptance", ACCEPTED, {"tokens": "2"}, "line 2, has a wrong tokens: expected int, got"),
        ("acceptance", ACCEPTED, {"tokens": 0}, "line 2, has a wrong tokens: expected int >= 1"),
        ("acceptance", ACCEPTED, {"accepted": {"model": [None]}}, "a wrong accepted[...][0]: exp"),
        ("acceptance", ACCEPTED, {"accepted": {"model": [1.0]}}, "lists of other lengths than its"),
        ("acceptance", ACCEPTED, {"output": [5, 6, 1]}, "has lists of other lengths than its tok"),
        ("bench", TIMING, {"part": [5]}, "line 2, has a wrong part: expected str, got array"),
        ("bench", TIMING, {"steps": 0}, "line 2, has a wrong steps: expected int >= 1"),
        ("bench", GENERATION, {"repeat": [0]}, "line 2, has a wrong repeat: expected int | null"),
        ("bench", GENERATION, {"drafted": 5}, "line 2, has a wrong drafted: expected array, got"),
        ("bench", TIMING, {"part": "memori"}, "line 2, has the part 'memori', which is no part"),
        ("previous", {"index": 1, "tokens": [5]}, {"index": 10**12}, "line 2 has a wrong index: e"),
        ("previous", {"index": 1, "tokens": [5]}, {"tokens": ["5"]}, "line 2 has a wrong tokens[0"),
        ("predictions", {"input": "x", "tokens": [5]}, {"tokens": [-1]}, "a wrong tokens[0]: expe"),
    ],
)
def test_a_damaged_line_of_ours_is_named(tmp_path, read, line, changes, says):
    path = tmp_path / "predictions.jsonl"
    path.write_text(f"{json.dumps(line)}\n{json.dumps(line | changes)}\n")
    Path(f"{path}.gin").write_text("A = 1\n")
    readers = {
        "acceptance": lambda: recorded_texts.read(str(path)),
        "bench": lambda: File(str(path), "A = 1\n"),
        "previous": lambda: given.file_outputs(str(path)),
        "predictions": lambda: tasks.token_counts(str(tmp_path)),
    }
    said = refused(readers[read])
    assert str(path) in said and says in said


def test_a_damaged_page_and_costs_are_named(tmp_path):
    page = {"study": "leviathan", "rows": [{"row": "a", "measured": {"speedup": "2"}, "marks": []}]}
    (tmp_path / "page.json").write_text(json.dumps(page))
    study = read_study("leviathan")
    said = refused(results.earlier, str(tmp_path), study)
    assert "page.json has a wrong rows[0].measured[...]: expected float | null, got str" in said
    found = {"calls": {"target 8": None}, "prefill": 1, "prefill_alone": 1, "step": 1, "source": ""}
    (tmp_path / "costs.json").write_text(json.dumps(found))
    said = refused(stored_costs.read, str(tmp_path / "costs.json"), None)
    assert "costs.json has a wrong calls[...]: expected float, got null; measure again" in said


SUMMARY = next((ROOT / "docs" / "results").rglob("*_model.jsonl.summary.json"))


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("run", {}, "a wrong run: object missing required field"),
        ("environment", None, "a wrong environment: expected object, got null"),
        ("speedup", {"ratio": "2"}, "a wrong speedup"),
        ("alpha", [0.5], "a wrong alpha: expected float | null, got array"),
    ],
)
def test_a_damaged_summary_is_named(tmp_path, name, value, says):
    path = tmp_path / "a.jsonl.summary.json"
    path.write_text(json.dumps(json.loads(SUMMARY.read_bytes()) | {name: value}))
    with pytest.raises(ValueError) as e:
        summaries.read([str(path)])
    assert f"{path} is no summary; it has {says}" in str(e.value) and "\n" not in str(e.value)


def test_every_summary_of_ours_is_of_its_kind():
    for path in sorted((ROOT / "docs" / "results").rglob("*.summary.json")):
        if not json.loads(path.read_bytes()).get("beams"):
            summaries.read([str(path)])


def test_names_cannot_control_the_terminal(tmp_path, capsys):
    name = "a\x1b[2J\nb\u202ec\x9b"
    folder = shutil.copytree(GOLDEN / "hf_v1_1", tmp_path / name)
    assert cli.main(["check", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert r"a\x1b[2J\nb\u202ec\x9b" in shown and not set(shown) & set("\x1b\u202e\x9b")
    assert cli.main(["decode", f"--target={folder / 'none'}", "--text=x"]) == 2
    said = capsys.readouterr().err
    assert r"a\x1b[2J\nb\u202ec\x9b" in said and said.count("\n") == 1 and "\x1b" not in said


def test_what_an_encoding_lacks_is_written_in_ascii(tmp_path, monkeypatch):
    """As where standard output is a pipe on Windows."""
    folder = shutil.copytree(GOLDEN / "hf_v1_1", tmp_path / "▁é")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    assert cli.main(["check", str(folder)]) == 0
    sys.stdout.flush()
    assert b"\\u2581\xe9" in written.getvalue()
