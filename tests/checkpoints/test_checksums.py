"""Damage is seen, in whichever bit: pytest tests/checkpoints/test_checksums.py"""

import shutil

import jax
import numpy as np
import pytest
from support import GOLDEN, tiny_t5

from specdec import checkpoints, cli
from specdec.checkpoints import CheckpointError
from specdec.checkpoints.checksums import checksum
from specdec.engine import Placement
from specdec.models.placement.layouts import Layout
from specdec.models.t5 import T5Target

CONFIG = tiny_t5(512, 8, head_dim=4)


def made():
    """Returns parameters; the scales of norms are 1."""
    draw, shapes = np.random.default_rng(0), T5Target(CONFIG).parameter_shapes()

    def numbers(leaf):
        wide = draw.standard_normal(leaf.shape) if leaf.ndim > 1 else np.ones(leaf.shape)
        return wide.astype(np.float32)

    return jax.tree.map(numbers, shapes)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "sound"
    checkpoints.save(path, made(), config=CONFIG)
    return path


@pytest.fixture
def copy(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "copy")


def flip(folder, draws) -> None:
    """One bit of one file of the arrays, longer files more often."""
    files = sorted(file for file in (folder / "params").rglob("*") if file.stat().st_size)
    files = [file for file in files if file.is_file()]
    sizes = np.array([file.stat().st_size for file in files])
    file = files[draws.choice(len(files), p=sizes / sizes.sum())]
    data = bytearray(file.read_bytes())
    data[draws.integers(len(data))] ^= 1 << draws.integers(8)
    file.write_bytes(data)


def loaded(path, **flags):
    """What loads, None if nothing does."""
    try:
        return jax.tree.map(np.asarray, checkpoints.load(path, **flags))
    except CheckpointError:
        return None


def same(a, b) -> bool:
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


@pytest.mark.ci
def test_a_flipped_bit_never_loads_as_other_numbers(sound, tmp_path):
    right, seen, silent = loaded(sound), 0, 0
    for seed in range(20):
        copy = shutil.copytree(sound, tmp_path / str(seed))
        flip(copy, np.random.default_rng(seed))
        if (found := loaded(copy)) is None:
            seen += 1
            silent += loaded(copy, checksums=False) is not None
        else:
            assert same(found, right)
    assert seen >= 8 and silent >= 4, f"{seen} seen, of which {silent} load without checksums"


def altered(folder) -> str:
    """Another number in one array, in a checkpoint that is otherwise sound; the array's name."""
    params = jax.tree.map(np.array, checkpoints.load(folder))
    params["decoder"]["decoder_norm"]["scale"][3] += 1e-3
    record = (folder / "config.json").read_text()
    shutil.rmtree(folder)
    checkpoints.save(folder, params, config=CONFIG)
    (folder / "config.json").write_text(record)
    return "decoder/decoder_norm/scale"


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_error_names_the_array_and_both_checksums(copy, dtype):
    name = altered(copy)
    message = rf"is damaged: {name} has the checksum \w{{8}}, and was saved with \w{{8}}; copy it"
    with pytest.raises(CheckpointError, match=message):
        checkpoints.load(copy, dtype=dtype)
    assert checkpoints.load(copy, checksums=False)["decoder"]["decoder_norm"]["scale"][3] != 1


@pytest.mark.parametrize("layout", ["checkpoint", "in_out", "out_in"])
def test_damage_is_seen_in_every_layout(copy, layout):
    altered(copy)
    model = T5Target(CONFIG, layout=Layout(layout))
    with pytest.raises(CheckpointError, match="is damaged: decoder/decoder_norm/scale has the"):
        Placement().read(model, str(copy))
    found = Placement(checksums=False).read(model, str(copy))
    assert found["decoder"]["decoder_norm"]["scale"][3] != 1


def test_casting_is_that_of_an_unchecked_load(sound):
    checked, unchecked = (loaded(sound, dtype="bfloat16", checksums=c) for c in (True, False))
    assert same(checked, unchecked)
    assert all(leaf.dtype.name == "bfloat16" for leaf in jax.tree.leaves(checked))


def test_parts_are_read_without_comparison_and_whole_arrays_with_one(copy):
    altered(copy)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("model",))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpoints.load(copy, shardings=whole)


def test_bits_and_not_values_count():
    assert checksum(np.zeros(3)) != checksum(-np.zeros(3))
    transposed = np.arange(6.0).reshape(2, 3).T
    assert checksum(transposed) == checksum(transposed.copy())
    assert checksum(np.float32(2)) == checksum(np.full([1], 2, np.float32))


@pytest.mark.parametrize("place", [0, 2**18, 2**20 - 1])
def test_every_element_of_a_large_array_counts(place):
    zeros = np.zeros(2**20, np.float32)
    other = zeros.copy()
    other[place] = 1e-30
    assert checksum(other) != checksum(zeros)


def check(capsys, *arguments) -> tuple[int, str]:
    code = cli.main(["check", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_check_says_what_it_looked_at(sound, capsys):
    code, out = check(capsys, sound)
    assert code == 0 and "FAIL" not in out and out.splitlines()[-1] == "SOUND"
    assert out.splitlines()[0] == f"PASS format     orbax, in {sound}"
    assert "29 of 29 arrays have the checksum they were saved with" in out


def test_check_finds_damage_and_goes_on(copy, sound, capsys):
    name = altered(copy)
    code, out = check(capsys, copy, sound)
    assert code == 1 and f"FAIL data       {name} has the checksum" in out
    assert out.splitlines()[-1] == f"DAMAGED: {copy}"


def test_check_finds_a_number_that_is_none(tmp_path, capsys):
    params = made()
    params["token_embedder"]["embedding"][3, :2] = np.nan
    checkpoints.save(tmp_path / "t5x", params, config=CONFIG, format="t5x")
    code, out = check(capsys, tmp_path / "t5x")
    assert code == 1 and "token_embedder/embedding has 2 numbers that are not finite" in out


@pytest.mark.parametrize("format", ["t5x", "huggingface"])
def test_check_reads_every_format(sound, tmp_path, capsys, format):
    checkpoints.save(tmp_path / "copy", checkpoints.load(sound), config=CONFIG, format=format)
    code, out = check(capsys, tmp_path / "copy")
    assert code == 0
    assert ("chunks have checksums" if format == "t5x" else "no checksums are recorded") in out


def test_check_finds_another_vocabulary(copy, capsys):
    pieces = copy / "pieces.model"
    pieces.write_bytes(b"changed")
    record = (copy / "config.json").read_text().rstrip()[:-1]
    entry = '{"file": "pieces.model", "sha256": "0123456789"}'
    (copy / "config.json").write_text(f'{record}, "vocabulary": {entry}}}')
    code, out = check(capsys, copy)
    assert code == 1 and "FAIL vocabulary" in out and "missing or changed" in out


def test_checksums_can_be_recorded_later(copy, capsys):
    name = altered(copy)
    record = (copy / "config.json").read_text()
    (copy / "config.json").write_text(record.replace('"crc32"', '"other"'))
    code, out = check(capsys, copy)
    assert code == 0 and "no checksums are recorded" in out
    code, out = check(capsys, "--record", copy)
    assert code == 0 and "recorded the checksums of 29 arrays" in out
    assert loaded(copy)["decoder"]["decoder_norm"]["scale"][3] != 1
    altered(copy)
    with pytest.raises(CheckpointError, match=name):
        checkpoints.load(copy)


def test_record_is_of_our_own_format_only(sound, tmp_path, capsys):
    checkpoints.save(tmp_path / "copy", checkpoints.load(sound), config=CONFIG, format="t5x")
    assert cli.main(["check", "--record", str(tmp_path / "copy")]) == 2
    assert "format t5x, which stores no checksums" in capsys.readouterr().err


# What tells one checkpoint from another.


@pytest.fixture
def theirs(tmp_path):
    return shutil.copytree(GOLDEN / "hf_v1_1", tmp_path / "copy")


def test_it_is_the_same_wherever_the_checkpoint_lies(theirs):
    told = checkpoints.fingerprint(theirs)
    assert told == checkpoints.fingerprint(GOLDEN / "hf_v1_1")
    assert len(told) == 16 and int(told, 16) >= 0


def other_weights(theirs):
    file = theirs / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def other_config(theirs):
    file = theirs / "config.json"
    file.write_text(file.read_text().replace(": 1e-06", ": 1e-05"))


def other_name(theirs):
    (theirs / "model.safetensors").rename(theirs / "other.safetensors")
    (theirs / "model.safetensors").write_bytes(b"")


def longer(theirs):
    """The same at both ends, and more between them."""
    file = theirs / "long.bin"
    file.write_bytes(bytes(1 << 18))
    before = checkpoints.fingerprint(theirs)
    file.write_bytes(bytes((1 << 18) + 1))
    assert checkpoints.fingerprint(theirs) != before


@pytest.mark.parametrize("change", [other_weights, other_config, other_name, longer])
def test_it_is_another_after_a_change(theirs, change):
    before = checkpoints.fingerprint(theirs)
    change(theirs)
    assert checkpoints.fingerprint(theirs) != before


@pytest.mark.parametrize("place", [0, (1 << 16) - 1, (1 << 18) - 1])
def test_both_ends_of_a_file_count(theirs, place):
    file = theirs / "long.bin"
    content = bytearray(1 << 18)
    file.write_bytes(content)
    before = checkpoints.fingerprint(theirs)
    content[place] = 1
    file.write_bytes(content)
    assert checkpoints.fingerprint(theirs) != before


def test_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint|not a checkpoint|does not exist"):
        checkpoints.fingerprint(tmp_path / "nothing")
