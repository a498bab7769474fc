"""What tells one checkpoint from another: pytest tests/checkpoints/test_fingerprint.py"""

import shutil

import pytest
from support import GOLDEN

from specdec import checkpoints
from specdec.checkpoints import CheckpointError


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(GOLDEN / "hf_v1_1", tmp_path / "copy")


def test_it_is_the_same_wherever_the_checkpoint_lies(copy):
    told = checkpoints.fingerprint(copy)
    assert told == checkpoints.fingerprint(GOLDEN / "hf_v1_1")
    assert len(told) == 16 and int(told, 16) >= 0


def other_weights(copy):
    file = copy / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def other_config(copy):
    file = copy / "config.json"
    file.write_text(file.read_text().replace(": 1e-06", ": 1e-05"))


def other_name(copy):
    (copy / "model.safetensors").rename(copy / "other.safetensors")
    (copy / "model.safetensors").write_bytes(b"")


def longer(copy):
    """The same at both ends, and more between them."""
    file = copy / "long.bin"
    file.write_bytes(bytes(1 << 18))
    before = checkpoints.fingerprint(copy)
    file.write_bytes(bytes((1 << 18) + 1))
    assert checkpoints.fingerprint(copy) != before


@pytest.mark.parametrize("change", [other_weights, other_config, other_name, longer])
def test_it_is_another_after_a_change(copy, change):
    before = checkpoints.fingerprint(copy)
    change(copy)
    assert checkpoints.fingerprint(copy) != before


@pytest.mark.parametrize("place", [0, (1 << 16) - 1, (1 << 18) - 1])
def test_both_ends_of_a_file_count(copy, place):
    file = copy / "long.bin"
    content = bytearray(1 << 18)
    file.write_bytes(content)
    before = checkpoints.fingerprint(copy)
    content[place] = 1
    file.write_bytes(content)
    assert checkpoints.fingerprint(copy) != before


def test_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint|not a checkpoint|does not exist"):
        checkpoints.fingerprint(tmp_path / "nothing")
