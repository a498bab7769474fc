"""Our own format: `params/`, written by Orbax, and a readable `config.json` with checksums."""

from __future__ import annotations

from pathlib import Path

import jax
import orbax.checkpoint as ocp

from specdec.checkpoints import checksums, directory
from specdec.checkpoints.directory import Vocabulary
from specdec.models.contract.family import Config
from specdec.types import PyTree


def write(folder: Path, params: PyTree, config: Config, vocabulary: Vocabulary | None) -> None:
    """Writes a checkpoint into a new `folder`, `config.json` last, which marks it as complete."""
    host = jax.process_index()  # several hosts may run, and one of them writes
    alone = ocp.options.MultiprocessingOptions(
        primary_host=host, active_processes={host}, barrier_sync_key_prefix=f"host{host}"
    )
    with ocp.StandardCheckpointer(multiprocessing_options=alone) as checkpointer:
        checkpointer.save(folder / "params", params)
    # This file names the folder that was written to, which `save` renames afterwards.
    (folder / "params" / "commit_success.txt").unlink(missing_ok=True)
    directory.describe(folder, config, vocabulary, checksums.of_tree(params))
