"""Files of weights that are damaged, or that say two things.

pytest tests/checkpoints/test_weight_files.py

Reading and `specdec check` have one reader, so both have to give the same answer.
"""

import dataclasses
import json
import re
import shutil
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flax import serialization
from support import GOLDEN

from specdec import checkpoints, cli
from specdec.checkpoints import CheckpointError, contents, safetensors, tree
from specdec.models.t5 import T5Config
from specdec.tasks import TaskError

QUERY, KEY = (f"decoder.block.0.layer.0.SelfAttention.{x}.weight" for x in "qk")  # float32 [12, 16]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"


def parts_of(file: Path) -> tuple[dict, bytes]:
    """The header and the data of a file in safetensors' format."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write(file: Path, header: dict | str | bytes, data: bytes) -> None:
    """Writes such a file, whatever its header is. Memory maps of the former file stay valid."""
    text = header if isinstance(header, str | bytes) else json.dumps(header)
    text = text.encode() if isinstance(text, str) else text
    file.unlink(missing_ok=True)
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def refusal(directory: Path) -> str:
    """The one line with which reading refuses a checkpoint; `specdec check` says the same."""
    with pytest.raises(CheckpointError) as raised:
        checkpoints.load(directory, config=checkpoints.config_from(directory))
    message = str(raised.value)
    assert "\n" not in message and message.isprintable()
    found = [finding for finding in contents.examine(directory) if not finding.sound]
    assert message in [finding.note for finding in found]
    return message


def assert_identical(directory: Path, expected: Path) -> None:
    """Both have the same parameters, and `specdec check` finds nothing."""
    ours, theirs = (tree.flatten(checkpoints.load(path)) for path in (directory, expected))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], name)
    assert all(finding.sound for finding in contents.examine(directory))


@pytest.fixture
def of(tmp_path):
    """Copies a golden checkpoint."""
    return lambda name: Path(shutil.copytree(GOLDEN / name, tmp_path / "model"))


def change(directory: Path, **fields) -> Path:
    """Replaces fields of a config, also those inside others: text_config__num_layers."""
    file = directory / "config.json"
    record = json.loads(file.read_text())
    for path, value in fields.items():
        *outer, name = path.split("__")
        inside = record
        for each in outer:
            inside = inside[each]
        inside[name] = value
    file.write_text(json.dumps(record))
    return directory


# Headers. The library of safetensors 0.8.0 refuses each of these too.


def twice(header, data):
    text = json.dumps(header)
    entry = json.dumps(header[KEY])
    return text.replace("{", "{" + f"{json.dumps(QUERY)}: {entry}, ", 1), data


def shared(header, data):
    header[QUERY]["data_offsets"] = header[KEY]["data_offsets"]
    return header, data


def reverse(header, data):
    header[QUERY]["data_offsets"].reverse()
    return header, data


def late(header, data):
    header[QUERY]["data_offsets"][0] += 4
    return header, data


def gap(header, data):
    """Every array after the key has moved by eight bytes, and the data with it."""
    begin = header[KEY]["data_offsets"][0]
    for name, entry in header.items():
        if name != "__metadata__" and entry["data_offsets"][0] >= begin:
            entry["data_offsets"] = [n + 8 for n in entry["data_offsets"]]
    return header, data[:begin] + bytes(8) + data[begin:]


def narrow(header, data):
    """The bytes of the key are twice those of its shape."""
    header[KEY]["shape"] = [12, 8]
    return header, data


@pytest.mark.parametrize(
    "damage, says",
    [
        (twice, f"the header of .*/model.safetensors has '{QUERY}' twice; copy it again"),
        (shared, r"is float32\[12, 16\] at bytes \d+ to \d+, and the array before it ends at"),
        (reverse, "they do not fit; copy it again"),
        (late, r"at bytes 1540 to 2304, and the array before it ends at 1536: they do not fit"),
        (gap, rf"{re.escape(KEY)}.* and the array before it ends at \d+: they do not fit"),
        (narrow, rf"{re.escape(KEY)}.* is float32\[12, 8\] at bytes"),
        (lambda header, data: (header, data + bytes(4096)), "has 4096 bytes after its last array"),
        (lambda header, data: (header, data[:-1]), "is cut short: .* is missing; copy it again"),
    ],
)
def test_a_header_that_does_not_fit_its_data_is_refused(of, damage, says, capsys):
    directory = of("hf_v1_0")
    file = directory / "model.safetensors"
    write(file, *damage(*parts_of(file)))
    assert re.search(says, refusal(directory))
    assert cli.main(["check", str(directory)]) == 1
    assert "DAMAGED" in capsys.readouterr().out


def test_names_may_have_another_order_than_the_data(of):
    directory = of("hf_v1_0")
    header, data = parts_of(directory / "model.safetensors")
    write(directory / "model.safetensors", dict(reversed(header.items())), data)
    assert_identical(directory, GOLDEN / "hf_v1_0")


ENTRY = {"dtype": "F32", "shape": [16, 16], "data_offsets": [0, 1024]}


@pytest.mark.parametrize(
    "header, says",
    [
        *(
            ({"a": entry}, "does not say where 'a' is; copy it again")
            for entry in (
                *(None, 3, [], {}, "x"),
                ENTRY | {"dtype": None},
                ENTRY | {"dtype": ["F32"]},
                ENTRY | {"shape": 16},
                ENTRY | {"shape": [16.0, 16]},
                ENTRY | {"shape": [-16, -16]},
                ENTRY | {"shape": [True, 256]},
                ENTRY | {"data_offsets": [0]},
                ENTRY | {"data_offsets": [0, "1024"]},
                ENTRY | {"data_offsets": {"0": 0, "1": 1024}},
            )
        ),
        ({"a": ENTRY | {"shape": [10**30]}}, r"a in .* is float32\[100000000000000000000000000000"),
        ({"a": ENTRY | {"data_offsets": [0, 2**63]}}, "they do not fit"),
        ({"a": ENTRY | {"shape": [0, 10**30], "data_offsets": [0, 0]}, "b": ENTRY}, "cannot map a"),
        ({"a": ENTRY | {"shape": [1] * 70 + [256]}}, "cannot map a of .* dimension"),
        ({"a": ENTRY | {"dtype": "F4"}}, "a in .* is F4, which is not read; save the model again"),
        ('{"a": {"dtype": "F32", "dtype": "F16"}}', "has 'dtype' twice"),
        ("[" * 100_000 + "]" * 100_000, "the header of .* is not JSON; copy it again"),
        (b'{"\xff": 1}', "is not JSON"),
        ("[]", "is no JSON object"),
    ],
)
def test_a_header_of_other_kinds_is_refused(of, header, says):
    directory = of("hf_v1_0")
    write(directory / "model.safetensors", header, bytes(1024))
    assert re.search(says, refusal(directory))


@pytest.mark.parametrize("length", [0, 10**8 + 1, 2**62, 2**64 - 1])
def test_the_length_of_a_header_is_compared_with_the_file(of, length):
    directory = of("hf_v1_0")
    file = directory / "model.safetensors"
    file.write_bytes(struct.pack("<Q", length) + file.read_bytes()[8:])
    assert "the header of" in refusal(directory)


# Arrays that a family leaves out.


@pytest.mark.parametrize(
    "model, name, dtype",
    [
        ("hf_gpt2", "transformer.h.0.attn.bias", bool),
        ("hf_gpt2", "transformer.h.0.attn.masked_bias", np.uint8),
        ("hf_llava", "vision_tower.vision_model.embeddings.position_ids", np.int64),
    ],
)
def test_arrays_that_are_not_used_may_be_of_any_type(of, model, name, dtype):
    directory = of(model)
    file = directory / "model.safetensors"
    header, data = parts_of(file)
    kind = {"bool": "BOOL", "uint8": "U8", "int64": "I64"}[np.dtype(dtype).name]
    more = np.ones([1, 1, 5, 5], dtype).tobytes()
    place = {"shape": [1, 1, 5, 5], "data_offsets": [len(data), len(data) + len(more)]}
    write(file, header | {name: {"dtype": kind} | place}, data + more)
    assert_identical(directory, GOLDEN / model)
    used = next(name for name in header if name.endswith("wte.weight") or "embed_tokens" in name)
    header[used]["dtype"] = "I32"
    write(file, header, data)
    assert "token_embedder/embedding in" in (message := refusal(directory))
    assert "is int32, and parameters must be floating" in message


# Indexes.


def sharded(directory: Path) -> tuple[Path, dict]:
    """The index of a golden checkpoint in four files, and its contents."""
    index = directory / "model.safetensors.index.json"
    return index, json.loads(index.read_text())


def test_the_index_says_which_copy_of_an_array_is_read(of):
    directory = of("hf_byt5")
    _, record = sharded(directory)
    name, files = "shared.weight", sorted(set(record["weight_map"].values()))
    first = record["weight_map"][name]
    header, data = parts_of(directory / first)
    begin, end = header[name]["data_offsets"]
    for file in files:
        if file != first:  # before the first one and after it, with other numbers
            theirs, own = parts_of(directory / file)
            stale = header[name] | {"data_offsets": [len(own), len(own) + end - begin]}
            write(directory / file, theirs | {name: stale}, own + bytes(end - begin))
    assert_identical(directory, GOLDEN / "hf_byt5")


def test_arrays_that_an_index_does_not_place_are_named(of):
    directory = of("hf_byt5")
    index, record = sharded(directory)
    places = record["weight_map"]
    files = sorted(set(places.values()))
    name = "shared.weight"
    places[name] = next(file for file in files if file != places[name])
    index.write_text(json.dumps(record))
    assert f"/{places[name]} lacks 1 arrays that the index says it has ('shared.weight')" in (
        refusal(directory)
    )
    places[name] = next(file for file in files if name in parts_of(directory / file)[0])
    header, data = parts_of(directory / files[0])
    for file in files[:2]:  # in two files, and in no index
        theirs, own = parts_of(directory / file)
        place = {"dtype": "F32", "shape": [1], "data_offsets": [len(own), len(own) + 4]}
        write(directory / file, theirs | {"extra.weight": place}, own + bytes(4))
    index.write_text(json.dumps(record))
    assert f"/{files[1]} has an array 'extra.weight', which" in refusal(directory)


FIRST = "model-00001-of-00004.safetensors"


@pytest.mark.parametrize(
    "places, says",
    [
        *((value, "has no weight_map with the file of each") for value in (None, [], {}, 3, "x")),
        *(
            ({"a": name}, f"names the file {re.escape(repr(name))}, which is not in its folder")
            for name in (
                *("../x", "/etc/passwd", r"C:\x", "a/b", "", "a\nb", "x" * 300),
                *(None, 3, ["x"], {"x": 1}),
            )
        ),
        ({"a": FIRST, "b": "away"}, r"1 of the 2 files that .*index.json names are missing \(away"),
        ({"a": "config.json"}, "."),
    ],
)
def test_an_index_of_other_kinds_is_refused(of, places, says):
    directory = of("hf_byt5")
    index, record = sharded(directory)
    index.write_text(json.dumps(record | {"weight_map": places}))
    assert re.search(says, refusal(directory))


def test_an_index_that_names_an_array_twice_is_refused(of):
    directory = of("hf_byt5")
    index, _ = sharded(directory)
    text = index.read_text()
    index.write_text(text.replace('"weight_map": {', '"weight_map": {"shared.weight": "x",'))
    assert "index.json has 'shared.weight' twice; copy it again" in refusal(directory)
    index.write_text("[" * 100_000)
    assert "index.json is not JSON; copy it again" in refusal(directory)


# Git LFS and PyTorch.


@pytest.mark.parametrize(
    "model, file",
    [
        *(("hf_byt5", name) for name in ("config.json", FIRST, "model.safetensors.index.json")),
        *(("hf_v1_0", name) for name in ("model.safetensors", "spiece.model", "tokenizer.json")),
        *(("hf_v1_0", name) for name in ("merges.txt", "generation_config.json")),
        ("v1_1/t5x_native/checkpoint_0", "checkpoint"),
        ("v1_1/t5x_orbax/checkpoint_0", "state/manifest.ocdbt"),
    ],
)
def test_a_pointer_of_git_lfs_is_named(of, model, file):
    directory = of(model)
    if file == "merges.txt":
        (directory / "vocab.json").write_text("{}")
    if file.endswith("safetensors") and model == "hf_v1_0":
        (directory / "tf_model.h5").write_bytes(POINTER)  # is not read
        checkpoints.load(directory)
    (directory / file).write_bytes(POINTER)
    where = (directory / file).parent
    says = f"{directory / file} is a pointer of Git LFS, not the file itself; run `git lfs pull` in"
    for read in (checkpoints.load, checkpoints.vocabulary_from, lambda x: [*contents.examine(x)]):
        with pytest.raises(CheckpointError) as raised:
            read(directory)
        assert str(raised.value) == f"{says} {where}"


def test_a_vocabulary_that_is_a_pointer_is_named(tmp_path):
    from specdec.tasks import SentencePiece

    (tmp_path / "spiece.model").write_bytes(POINTER)
    with pytest.raises(TaskError, match=r"spiece.model is a pointer of Git LFS.*`git lfs pull` in"):
        SentencePiece(str(tmp_path / "spiece.model")).plain()


class Tensor:
    """Stands for PyTorch's class if PyTorch is not installed."""

    dtype = "torch.float32"

    def detach(self):
        return self

    def numpy(self):
        return np.ones(1, np.float32)


TENSORS = {"a.weight": Tensor()}


@pytest.mark.parametrize(
    "saved, says",
    [
        ({"epoch": 3, "state_dict": TENSORS}, "has its arrays under 'state_dict', as training scr"),
        (
            {"optimizer": {"state": {}}, "model": TENSORS},
            r"has its arrays under 'model', as .* torch.save\(torch.load\(FILE\)\['model'\], F",
        ),
        (TENSORS | {"epoch": 3}, "has a value of type int under 'epoch', and only arrays with n"),
        ({3: Tensor()}, "has a value of type Tensor under 3, and only arrays with names"),
        ([TENSORS], r"has a value of type list; save model.state_dict\(\) alone"),
    ],
)
def test_what_is_around_a_state_dict_is_named(of, saved, says, monkeypatch):
    torch = SimpleNamespace(Tensor=Tensor, load=lambda *_, **__: saved, bfloat16="torch.bfloat16")
    monkeypatch.setitem(sys.modules, "torch", torch)
    directory = of("hf_v1_0")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    assert re.match(f"{directory}/pytorch_model.bin {says}", refusal(directory))


def test_the_first_line_of_an_error_of_pytorch_is_shown(of, monkeypatch):
    def load(*given, **named):
        raise RuntimeError("the archive is broken\nat line 7")

    torch = SimpleNamespace(Tensor=Tensor, load=load, bfloat16="torch.bfloat16")
    monkeypatch.setitem(sys.modules, "torch", torch)
    directory = of("hf_v1_0")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    said = refusal(directory)
    file = directory / "pytorch_model.bin"
    assert said.startswith(f"cannot read {file} (RuntimeError('the archive is broken")
    assert said.endswith("; copy it again") and "line 7" not in said


def test_a_state_dict_that_is_saved_alone_as_the_line_says_is_read(of):
    torch = pytest.importorskip("torch")
    directory = of("hf_v1_0")
    file = directory / "pytorch_model.bin"
    header, data = parts_of(directory / "model.safetensors")
    arrays = {
        name: torch.tensor(np.frombuffer(data[slice(*x["data_offsets"])], "f4").reshape(x["shape"]))
        for name, x in header.items()
        if name != "__metadata__"
    }
    (directory / "model.safetensors").unlink()
    torch.save({"state_dict": arrays, "epoch": 3}, file)
    remedy = re.search("in Python (.*)", refusal(directory))[1]
    assert remedy == "torch.save(torch.load(FILE)['state_dict'], FILE)"
    exec(remedy, {"torch": torch, "FILE": file})
    assert_identical(directory, GOLDEN / "hf_v1_0")


# Sizes.


def test_a_header_has_at_most_as_many_bytes_as_the_library_reads(tmp_path, monkeypatch):
    assert safetensors._HEADER_BYTES == 10**8
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    write(tmp_path / "a", {"a": entry}, bytes(4))
    monkeypatch.setattr(safetensors, "_HEADER_BYTES", len(json.dumps({"a": entry})))
    assert safetensors.read(tmp_path / "a")["a"].tolist() == [0.0]
    write(tmp_path / "b", {"bb": entry}, bytes(4))
    with pytest.raises(CheckpointError, match="the header of .*/b is not JSON; copy it again"):
        safetensors.read(tmp_path / "b")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Stands for the config of a model."""

    emb_dim: int = 1
    num_layers: int = 1
    max_distance: int = 1
    pad_id: int = 1
    rope_theta: int = 1


@pytest.mark.parametrize(
    "field, most, shapes",
    [
        ("emb_dim", 2**19, [(4, 2)]),
        ("emb_dim", 2**19 + 3, [(4, 2), (2, 2**19 + 3)]),
        ("num_layers", 50, [(4, 2)] * 50),
        ("num_layers", 51, [(4, 2)] * 51),
        ("max_distance", 2**20, [(4, 2)]),
        ("pad_id", 2**31 - 1, [(4, 2)]),
        ("rope_theta", sys.maxsize, [(4, 2)]),
    ],
)
def test_each_size_has_a_limit(field, most, shapes):
    tree.check_sizes(Sizes(**{field: most}), shapes, "a file")
    said = f"^a file has a config in which {field} is {most + 1}, far more than its arrays have; c"
    with pytest.raises(CheckpointError, match=said):
        tree.check_sizes(Sizes(**{field: most + 1}), shapes, "a file")


def swift(read, *arguments, **named) -> str:
    """The refusal of something that must not take long."""
    start = time.process_time()
    with pytest.raises(CheckpointError) as raised:
        read(*arguments, **named)
    assert time.process_time() - start < 2
    return str(raised.value)


@pytest.mark.parametrize(
    "model, field, ours",
    [
        ("hf_v1_0", "num_layers", "num_encoder_layers"),
        ("hf_v1_0", "d_kv", "head_dim"),
        ("hf_v1_0", "num_heads", "num_heads"),
        ("hf_v1_0", "vocab_size", "vocab_size"),
        ("hf_v1_0", "relative_attention_max_distance", "relative_attention_max_distance"),
        ("hf_v1_0", "relative_attention_num_buckets", "relative_attention_num_buckets"),
        ("hf_llama", "head_dim", "head_dim"),
        ("hf_llama", "num_hidden_layers", "num_decoder_layers"),
        ("hf_llama", "max_position_embeddings", "context"),
        ("hf_llava", "vision_config__num_hidden_layers", "vision.num_layers"),
        ("hf_llava", "vision_config__image_size", "vision.image_size"),
        ("hf_whisper", "max_source_positions", "input_positions"),
        ("hf_t5gemma", "decoder__num_hidden_layers", "num_hidden_layers"),
        ("hf_t5gemma2", "decoder__num_hidden_layers", "num_hidden_layers"),
    ],
)
def test_sizes_of_a_config_are_compared_with_the_file(of, model, field, ours):
    # No array has the length of rotary positions. The other one is a multiple of a patch.
    size = 2**31 if ours == "context" else 7 * 2**26
    directory = change(of(model), **{field: size})
    message = swift(checkpoints.config_from, directory)
    assert re.search(rf"\b{re.escape(ours)} is {size}[,;]", message)
    assert message == swift(checkpoints.load, directory)


def test_a_base_of_rotary_positions_is_no_size(of):
    directory = change(of("hf_llama"), rope_parameters__rope_theta=10**10)
    assert checkpoints.config_from(directory).rope_theta == 10**10


def test_no_heads_are_no_division_by_zero(of):
    directory = change(of("hf_gpt2"), n_head=0)
    assert "Gpt2Config.num_heads is 0; give a positive integer" in refusal(directory)


@pytest.mark.parametrize("format", ["t5x_native", "t5x_orbax"])
def test_a_config_beside_arrays_of_t5x_is_compared_with_them(of, config_of, format):
    directory = of(f"v1_1/{format}/checkpoint_0")
    deep = config_of("v1_1", num_decoder_layers=900)
    assert "num_decoder_layers is 900, far more than its arrays have" in swift(
        checkpoints.load, directory, config=deep
    )
    fields = json.loads((GOLDEN / "v1_1" / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(fields | {"num_decoder_layers": 2**31}))
    assert "num_decoder_layers is 2147483648" in swift(checkpoints.config_from, directory)
    change(directory, num_decoder_layers=1000)  # as deep as any
    assert checkpoints.config_from(directory).num_decoder_layers == 1000
    change(directory, num_decoder_layers=1001)
    assert "num_decoder_layers is 1001, far" in swift(checkpoints.config_from, directory)


def test_a_config_of_ours_is_compared_with_its_arrays(tmp_path):
    config = T5Config(8, 4, 2, 2, 4, 1, 1)
    shapes = {name: np.zeros(shape) for name, shape in tree.shapes_of(model_of(config)).items()}
    checkpoints.save(tmp_path / "ours", tree.unflatten(shapes), config=config)
    assert checkpoints.config_from(tmp_path / "ours") == config
    directory = change(tmp_path / "ours", model__num_decoder_layers=60)
    assert "num_decoder_layers is 60, far more" in swift(checkpoints.config_from, directory)


def model_of(config: T5Config):
    from specdec.models.t5 import T5Target

    return T5Target(config)


@pytest.mark.parametrize(
    "metadata, says",
    [
        ({"shape": [10**10, 10**10]}, r"\(10000000000, 10000000000\) in pieces of \(32, 64\), whi"),
        ({"shape": [10**6, 10**3]}, "is missing; the copy may be incomplete"),
        ({"chunks": [10**9, 8]}, r"in pieces of \(1000000000, 8\), which need 32 GB, more than th"),
        ({"x": "[" * 10**5}, "has more than 65536 bytes; the copy may be incomplete"),
    ],
)
def test_shapes_of_zarr_are_compared_with_the_machine(of, metadata, says):
    directory = of("v1_1/t5x_native/checkpoint_0")
    file = directory / "target.decoder.layers_0.mlp.wi_0.kernel" / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | metadata))
    assert re.search(says, swift(checkpoints.load, directory))


def test_layers_of_a_scan_are_bounded(tmp_path):
    folder = tmp_path / "target.decoder.decoder.mlp.wo.kernel"
    folder.mkdir()
    zarr = {"shape": [4, 10**8, 1], "chunks": [4, 1, 1], "dtype": "<f4", "zarr_format": 2}
    zarr |= {"compressor": None, "filters": None, "fill_value": None, "order": "C"}
    (folder / ".zarray").write_text(json.dumps(zarr))
    leaf = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{folder.name}/"}}
    record(tmp_path, {"decoder": {"decoder": {"mlp": {"wo": {"kernel": leaf}}}}})
    message = swift(checkpoints.load, tmp_path)
    assert "decoder/decoder/mlp/wo/kernel is 100000000; give an integer from 1 to 1000" in message


def record(folder: Path, target: object, version: object = 3) -> None:
    """Writes the msgpack file of T5X's format."""
    contents = {"version": version, "optimizer": {"target": target}}
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(contents))


@pytest.mark.parametrize(
    "target, version",
    [
        *((target, 3) for target in (None, 3, "x", [], {"a": 3}, {"a": None}, {"a": {"b": []}})),
        ({"a": {"driver": "zarr", "kvstore": None}}, 3),
        ({"a": {"driver": "zarr", "kvstore": ["x"]}}, 3),
        ({3: np.zeros(2, np.float32)}, 3),
        ({}, [3]),
        ({}, np.zeros(3)),
    ],
)
def test_a_msgpack_file_of_other_kinds_is_refused(tmp_path, target, version):
    record(tmp_path, target, version)
    assert re.search(
        r"/checkpoint (is not the msgpack file of a T5X|has version)",
        swift(checkpoints.load, tmp_path),
    )
