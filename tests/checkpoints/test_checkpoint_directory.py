"""Formats, configs and vocabularies: pytest tests/checkpoints/test_checkpoint_directory.py"""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
from checkpoint_files import error_of
from support import tiny_t5

from specdec import tasks
from specdec.checkpoints import (
    CheckpointError,
    Vocabulary,
    check_pair,
    config_from,
    model_from,
    read_config,
    vocabulary_from,
)
from specdec.checkpoints.directory import locate
from specdec.checkpoints.vocabulary_fit import check_fit
from specdec.common import demo
from specdec.models.t5 import T5Config, T5Draft, T5DraftConfig, T5Target

BYTES = b"no SentencePiece model but UTF-8 bytes"


@pytest.fixture
def ours(tmp_path, config_of):
    """Makes a directory that looks like one of our checkpoints, with a vocabulary of `content`."""
    from specdec.checkpoints import orbax

    def make(name: str, content: bytes | None):
        vocabulary = None
        if content == BYTES:
            vocabulary = Vocabulary(None, 125)
        elif content is not None:
            vocabulary = Vocabulary(tmp_path / f"{name}.model", 100)
            vocabulary.path.write_bytes(content)
        orbax.write(tmp_path / name, {"a": 1.0}, config_of("v1_1"), vocabulary)
        return tmp_path / name

    return make


@pytest.mark.parametrize(
    "format, folder", [("t5x", "v1_0/t5x_native"), ("t5x_orbax", "v1_0/t5x_orbax")]
)
def test_formats_are_told_apart(golden, format, folder):
    for path in (golden / folder, golden / folder / "checkpoint_0", str(golden / folder)):
        assert locate(path) == (format, golden / folder / "checkpoint_0")


def test_our_format_is_told_apart(ours):
    assert locate(ours("mine", None)).format == "orbax"


def test_paths_are_relative_to_the_working_directory_or_the_home(golden, monkeypatch):
    monkeypatch.chdir(golden)
    monkeypatch.setenv("HOME", str(golden))
    for path in ("v1_0/t5x_native", "~/v1_0/t5x_native"):
        assert locate(path).directory == golden / "v1_0/t5x_native/checkpoint_0"


def test_wrong_paths(tmp_path, golden, copy):
    message = error_of(locate, tmp_path / "a" / "b")
    assert message == f"checkpoint {tmp_path}/a/b does not exist; {tmp_path} holds nothing"
    for name in ("my-t5", "my-t5.jsonl", ".my-t5.jsonl.lock"):
        (tmp_path / name).touch()
    message = error_of(locate, tmp_path / "my-t6")
    assert message.endswith(f"{tmp_path} holds my-t5, my-t5.jsonl; did you mean my-t5?")

    message = error_of(locate, golden / "v1_0")
    assert re.match("no checkpoint in .*/v1_0: looked for checkpoint_<step> directories", message)
    assert "found config.json, golden.npz, t5x_native, t5x_orbax; give the directory" in message

    file = golden / "v1_0/t5x_native/checkpoint_0/checkpoint"
    assert (
        error_of(locate, file) == f"checkpoint {file} is a file; give its directory, {file.parent}"
    )

    message = error_of(locate, "s3://bucket/model")
    assert (
        "'s3://bucket/model' is a URL, and only local directories and gs:// can be read" in message
    )
    assert "names no bucket; give gs://BUCKET/PATH" in error_of(locate, "gs://")

    (tmp_path / "checkpoint_7").mkdir()
    assert re.match(
        "no checkpoint in .*/checkpoint_7: .* found nothing", error_of(locate, tmp_path)
    )
    for name in "gfedcba":
        (tmp_path / "checkpoint_7" / name).touch()
    assert "found a, b, c, d, e and 2 more" in error_of(locate, tmp_path)


def test_a_config_beside_a_t5x_checkpoint(golden, copy, tmp_path, config_of):
    checkpoint = copy("v1_1/t5x_native")
    assert "does not record its model; give its config" in error_of(config_from, checkpoint)
    shutil.copy(golden / "v1_1" / "config.json", tmp_path)
    assert config_from(checkpoint) == config_from(tmp_path) == config_of("v1_1")
    assert config_from(checkpoint, dtype="bfloat16").dtype == "bfloat16"
    shutil.copy(golden / "wide_heads" / "config.json", checkpoint)
    assert config_from(checkpoint) == config_of("wide_heads")  # its own comes before its parent's


@pytest.mark.parametrize(
    "content, complaint",
    [
        ('{"d_model": 512}', "unexpected keyword argument 'd_model'.* fields must be those of T5C"),
        ('{"vocab_size": 32}', "missing 6 required positional arguments"),
        ("{", r"config\.json is not JSON \(.*line 1"),
        ("[1]", "is no such JSON object: expected object, got array; copy it again"),
        ('{"version": 2}', "format version 2 and this specdec reads version 1; update"),
        ('{"family": "gpt"}', r"config\.json: family is 'gpt', and those known are t5"),
    ],
)
def test_a_config_that_is_something_else(copy, content, complaint):
    checkpoint = copy("v1_1/t5x_native")
    (checkpoint / "config.json").write_text(content)
    assert re.search(complaint, error_of(config_from, checkpoint))


def test_vocabularies_are_recorded_and_checked(ours, golden):
    path = ours("mine", b"pieces")
    file = path / "mine.model"
    assert vocabulary_from(path) == Vocabulary(file, 100) and file.read_bytes() == b"pieces"
    assert vocabulary_from(ours("spelt", BYTES)) == Vocabulary(None, 125)
    assert vocabulary_from(ours("none", None)) is None
    assert vocabulary_from(golden / "v1_1/t5x_native") is None

    file.write_bytes(b"other pieces")
    assert "mine.model (sha256 " in error_of(vocabulary_from, path)
    file.unlink()
    assert "missing or changed; put it back" in error_of(vocabulary_from, path)


def test_a_pair_needs_one_vocabulary(ours, golden):
    target, same, other = ours("target", b"a"), ours("same", b"a"), ours("other", b"b")
    check_pair(target, same)
    check_pair(target, ours("none", None))
    check_pair(golden / "v1_0/t5x_native", other)
    message = error_of(check_pair, target, other)
    assert re.match(
        r"target .*/target and draft .*/other have different vocabularies \(target\.model, sha256 "
        r"ca978112, and other\.model, sha256 3e23e816\)",
        message,
    )
    spelt = ours("spelt", BYTES)
    check_pair(spelt, ours("also", BYTES))
    assert "(target.model, sha256 ca978112, and UTF-8 bytes)" in error_of(check_pair, target, spelt)


def test_hugging_faces_tokenizers_are_compared_too(ours, tmp_path, monkeypatch):
    from specdec.checkpoints import huggingface

    model = Path(demo.path("vocabulary.model")).read_bytes()
    pieces, spelt = ours("pieces", model), ours("spelt", BYTES)
    found = tmp_path / "spiece.model"
    found.write_bytes(model)
    theirs = huggingface_directory(tmp_path / "theirs")
    monkeypatch.setattr(huggingface, "vocabulary", lambda _: (found, 100))
    assert vocabulary_from(theirs)[:2] == (found, 100)
    check_pair(pieces, theirs)
    message = error_of(check_pair, theirs, spelt)
    assert re.search(r"\(spiece.model, sha256 \w{8}, and UTF-8 bytes\)", message)

    def unreadable(_):
        raise CheckpointError("tokenizer.json only")

    monkeypatch.setattr(huggingface, "vocabulary", unreadable)
    check_pair(theirs, spelt)  # nothing is known about it
    assert vocabulary_from(theirs, needed=False) is None
    assert error_of(vocabulary_from, theirs) == "tokenizer.json only"


def huggingface_directory(folder):
    """What is enough to be taken for one."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "t5"}')
    (folder / "model.safetensors").touch()
    return folder


def test_the_record_is_readable(ours, config_of):
    path = ours("mine", b"pieces")
    record = json.loads((path / "config.json").read_text())
    assert (record["format"], record["version"]) == ("specdec", 1)
    assert record["family"] == "t5"
    assert record["model"]["mlp_activations"] == ["gelu", "linear"]
    assert config_from(path) == config_of("v1_1")


def test_a_record_without_a_family_is_of_a_t5(ours, config_of):
    path = ours("mine", None)
    record = json.loads((path / "config.json").read_text())
    assert record.pop("family") == "t5"
    (path / "config.json").write_text(json.dumps(record))
    assert config_from(path) == config_of("v1_1")
    assert model_from(path, "bfloat16") == T5Target(config_of("v1_1", dtype="bfloat16"))


def test_a_config_next_to_unopened_arrays_may_have_a_thousand_layers(tmp_path, config_of):
    (tmp_path / "checkpoint").touch()
    for layers in (1000, 1001):
        config = config_of("v1_1", num_decoder_layers=layers)
        record = {"family": "t5", "model": dataclasses.asdict(config)}
        (tmp_path / "config.json").write_text(json.dumps(record))
        if layers == 1000:
            assert config_from(tmp_path) == config
    assert "num_decoder_layers is 1001, far more than its" in error_of(config_from, tmp_path)


@pytest.mark.parametrize(
    "fields, kind",
    [
        ({"states_dim": None, "markov_rank": None, "exit_classifier": False}, T5Config),
        ({"states_dim": 8, "markov_rank": None, "exit_classifier": False}, T5DraftConfig),
        ({"exit_classifier": True}, T5DraftConfig),
        ({"head_ids": [1, 2]}, T5DraftConfig),
    ],
)
def test_a_record_of_a_t5_with_additions_is_a_drafts(fields, kind, config_of, tmp_path):
    plain = config_of("v1_1")
    record = {"family": "t5", "model": dataclasses.asdict(plain) | fields}
    (tmp_path / "config.json").write_text(json.dumps(record))
    found = read_config(tmp_path / "config.json")
    assert type(found) is kind
    assert found == (plain if kind is T5Config else T5DraftConfig.of(plain, **fields))


def test_a_vocabulary_fits_a_model_with_as_many_ids():
    vocabulary = tasks.for_texts(tasks.Bytes())

    def draft(size, **fields):
        return T5Draft(T5DraftConfig.of(tiny_t5(size), **fields))

    check_fit(vocabulary, draft(259), "target")
    check_fit(vocabulary, draft(259, head_ids=(1, 2)), "draft")
    check_fit(vocabulary, draft(261), "draft", spare=2)
    for model, role, spare, says in (
        (draft(258), "draft", 0, "the draft has 258 output ids but the vocabulary 259; use a"),
        (draft(260), "draft", 2, "has 260 output ids, of which the vocabulary's 259 leave none fo"),
        (draft(259, head_ids=(1, 2)), "target", 0, "the target's head has 2 of 259 ids .* drafter"),
    ):
        with pytest.raises(ValueError, match=says):
            check_fit(vocabulary, model, role, spare=spare)
