"""The settings of pictures that a checkpoint has, under transformers' names."""

from __future__ import annotations

import os

from specdec.checkpoints import directory, tokenizer_files
from specdec.checkpoints.errors import about
from specdec.checkpoints.huggingface_files import read_json
from specdec.tasks.pictures import PictureSettings

_NESTED = "image_processor"  # in `processor_config.json` of transformers 5


def picture_settings_from(path: str | os.PathLike) -> PictureSettings | None:
    """Returns how the model of a checkpoint reads pictures, or None if that is not recorded.

    Every format keeps the file if the checkpoint has a vocabulary.

    Args:
      path: as for `load`.

    Raises:
      CheckpointError: there is no checkpoint, or it asks for something that is not supported.
    """
    found = directory.locate(path).directory
    for name in tokenizer_files.PICTURES:
        file = found / name
        record = read_json(file) if file.is_file() else {}
        record = record.get(_NESTED, record if name == tokenizer_files.PICTURES[0] else {})
        if record:
            with about(file):
                return PictureSettings.from_record(record)
    return None
