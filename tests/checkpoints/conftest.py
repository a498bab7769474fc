"""Golden T5X checkpoints for the tests of this folder: whole, and as copies to damage."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_files import rewrite
from support import GOLDEN

from specdec.checkpoints import huggingface_files
from specdec.models.t5 import T5Config


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of the golden models: {v1_0,v1_1,wide_heads}/{t5x_native,t5x_orbax}."""
    return GOLDEN


@pytest.fixture(scope="session")
def config_of() -> Callable[..., T5Config]:
    """Maps a golden model's name to its config, with fields replaced."""

    def config(model: str, **fields) -> T5Config:
        return T5Config(**json.loads((GOLDEN / model / "config.json").read_text()) | fields)

    return config


@pytest.fixture
def copy(tmp_path) -> Callable[..., Path]:
    """Copies a golden checkpoint ('v1_1/t5x_native'), by default to tmp_path/checkpoint_0."""

    def copied(checkpoint: str, name: str = "checkpoint_0") -> Path:
        return Path(shutil.copytree(GOLDEN / checkpoint / "checkpoint_0", tmp_path / name))

    return copied


@pytest.fixture
def edited(tmp_path) -> Callable[..., Path]:
    """Copies a golden directory of transformers, and changes it.

    Fields of a record, `file`, are replaced, or removed where they are None. Arrays get other
    names, or are added.
    """

    def copied(model: str, rename=None, more=None, file: str = "config.json", **fields) -> Path:
        directory = Path(shutil.copytree(GOLDEN / model, tmp_path / model, dirs_exist_ok=True))
        record = json.loads((directory / file).read_text()) | fields
        kept = {key: value for key, value in record.items() if value is not None}
        (directory / file).write_text(json.dumps(kept))
        if rename or more:
            arrays = huggingface_files.read(GOLDEN / model) | (more or {})
            arrays = {(rename or str)(key): array for key, array in arrays.items()}
            rewrite(directory / "model.safetensors", arrays)
        return directory

    return copied
