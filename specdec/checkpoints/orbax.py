"""Our own format: `params/`, written by Orbax, beside a `config.json` that people can read too."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from specdec.checkpoints import directory
from specdec.models.t5 import T5Config
from specdec.types import PyTree


def write(folder: Path, params: PyTree, config: T5Config, vocabulary: Path | None) -> None:
    """Writes a checkpoint into `folder`, which does not exist. The config comes last: see MARKS."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "params", params)
    # It names the folder that was written to, which `save` is about to rename.
    (folder / "params" / "commit_success.txt").unlink(missing_ok=True)
    record: dict[str, Any] = {
        "format": "specdec",
        "version": directory.VERSION,
        "model": dataclasses.asdict(config),
    }
    if vocabulary is not None:
        copy = shutil.copyfile(vocabulary, folder / vocabulary.name)
        record["vocabulary"] = {"file": copy.name, "sha256": directory.sha256(copy)}
    (folder / directory.CONFIG).write_text(json.dumps(record, indent=2) + "\n")
