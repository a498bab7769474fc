"""Files that a record names are in the record's folder: pytest tests/test_file_names.py"""

from __future__ import annotations

import functools
import json
import re

import numpy as np
import pytest
from flax import serialization

from specdec import tasks
from specdec.checkpoints import directory, huggingface_files, safetensors, t5x_format, tables
from specdec.common import file_names
from specdec.types import Table

PICTURES, SOUND = tasks.WithPictures(63, 2, text=tasks.Bytes()), tasks.WithSound(tasks.Bytes())


def index(of, folder, name):
    (folder / f"{of}.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    return huggingface_files.parts(folder)


def vocabulary(folder, name):
    (folder / "params").mkdir(exist_ok=True)
    (folder / "params" / "manifest.ocdbt").touch()
    record = {"vocabulary": {"file": name, "sha256": directory.sha256(folder / "there")}}
    (folder / "config.json").write_text(json.dumps(record))
    return directory.vocabulary_from(folder)


def t5x(spec, folder, name):
    array = {"driver": "zarr"} | json.loads(json.dumps(spec).replace('"NAME"', json.dumps(name)))
    record = {"version": 3, "optimizer": {"target": {"a": array}}}
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(record))
    return t5x_format.native(folder)


def table(folder, name):
    arrays = {name: {"shape": [1], "dtype": "int32", "crc32": "0"}}
    record = {"format": 1, "kind": "ngram", "vocabulary": None, "arrays": arrays}
    (folder / "table.json").write_text(json.dumps(record))
    return tables.shapes(folder, Table("ngram"))


def task(columns, line, vocabulary, folder, name):
    (folder / "test.tsv").write_text(line.replace("NAME", name))
    files = {"test": str(folder / "test.tsv")}
    return tasks.local_task(f"{folder}", files, vocabulary, columns=columns)


# What reads a name, and the record that has it.
RECORDS = {
    "index": (functools.partial(index, "model.safetensors"), "model.safetensors.index.json"),
    "PyTorch": (functools.partial(index, "pytorch_model.bin"), "pytorch_model.bin.index.json"),
    "vocabulary": (vocabulary, "config.json"),
    "T5X": (functools.partial(t5x, {"kvstore": {"path": "NAME"}}), "checkpoint"),
    "older T5X": (functools.partial(t5x, {"kvstore": {}, "path": "NAME"}), "checkpoint"),
    "table": (table, "table.json"),
}
TASKS = {
    "pictures": (("files", "inputs"), "there NAME\t<image> and <image>", PICTURES),
    "sound": (("files", "targets"), "NAME#0.5\ta text", SOUND),
    "a picture in an input": (("inputs",), "see <image:there> and <image:NAME>", PICTURES),
    "a sound in an input": (("inputs", "targets"), " NAME#30\ta text", SOUND),
}
BELOW = {name: (functools.partial(task, *row), "test.tsv, line 1") for name, row in TASKS.items()}
OUTSIDE = (
    "../there",
    "ABSOLUTE/there",
    "below/../../there",
    "..\\there",
    "C:\\there",
    "C:there",
    "\\\\server\\there",
    "//server/there",
)


@pytest.fixture
def folder(tmp_path):
    """A folder in which and around which there is a file that each name could mean."""
    (tmp_path / "inner" / "below").mkdir(parents=True)
    for place in (".", "inner", "inner/below"):
        (tmp_path / place / "there").write_text("some text")
    return tmp_path / "inner"


def refused(read, record, folder, name):
    said = re.escape(f"{folder}/{record} names the file {name!r}".removesuffix("'"))
    rest = "which is not in(side)? its folder; move the file there, and correct the name"
    with pytest.raises(ValueError, match=f"^{said}(#[0-9.]+)?'?, {rest}$"):
        read(folder, name)


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("place", [*RECORDS, *BELOW])
def test_a_name_that_leads_elsewhere_is_refused(folder, place, name):
    name = name.replace("ABSOLUTE", str(folder.parent))
    refused(*(RECORDS | BELOW)[place], folder, name)


@pytest.mark.parametrize("place", RECORDS)
def test_a_name_in_another_folder_is_refused(folder, place):
    for name in ("below/there", "below\\there"):
        refused(*RECORDS[place], folder, name)


@pytest.mark.parametrize("place", [*RECORDS, *BELOW])
def test_a_name_in_the_same_folder_is_read(folder, place, monkeypatch):
    monkeypatch.chdir(folder)
    read, _ = (RECORDS | BELOW)[place]
    assert read(folder, "there" if place in RECORDS else "below/there")


@pytest.mark.parametrize("name", (3, ["there"]))
@pytest.mark.parametrize("place", ("index", "T5X"))
def test_what_is_no_name_is_refused(folder, place, name):
    read, record = RECORDS[place]
    with pytest.raises(ValueError, match=re.escape(f"{record} names the file {name!r}, which")):
        read(folder, name)


@pytest.mark.parametrize("name, kind", ((3, "int"), (["there"], "array")))
def test_a_vocabulary_that_is_no_name_is_refused(folder, name, kind):
    read, record = RECORDS["vocabulary"]
    said = f"{record} has a wrong vocabulary.file: expected str | null, got {kind}; copy it again"
    with pytest.raises(ValueError, match=re.escape(said)):
        read(folder, name)


def test_a_name_in_a_text_of_words_is_text(folder):
    text = task(("inputs",), "see <image:../NAME>", tasks.Bytes(), folder, "there")
    assert text.num_input_examples("test") == 1


def test_a_name_has_at_most_255_characters():
    assert file_names.own_file("record", "a" * 255, ValueError) == "a" * 255
    with pytest.raises(ValueError, match="^record names the file 'a{256}', which is not in its fo"):
        file_names.own_file("record", "a" * 256, ValueError)


def test_a_link_out_of_the_folder_is_followed(tmp_path):
    """A snapshot in the cache of the Hugging Face Hub consists of links."""
    (blob := tmp_path / "blobs" / "1").parent.mkdir()
    spec = {"a": np.ones([2], np.float32)}
    safetensors.write(blob, spec, spec.__getitem__)
    (snapshot := tmp_path / "snapshots" / "main").mkdir(parents=True)
    (snapshot / "model-1.safetensors").symlink_to("../../blobs/1")
    named = index("model.safetensors", snapshot, "model-1.safetensors")
    assert named == ["model-1.safetensors"]
    assert huggingface_files.read(snapshot)["a"].tolist() == [1, 1]
