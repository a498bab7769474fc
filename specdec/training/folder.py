"""A run's directory. After a kill at any moment it holds what is needed to go on.

settings.json          what the run computes; another run is refused
log.jsonl              one object per step, and one per evaluation
checkpoints/<step>/    parameters and optimizer, of the last two saves (Orbax)
export/checkpoint_<step>/   the latest parameters, for `checkpoints.load`
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec import checkpoints
from specdec.models.t5 import T5Config
from specdec.training.errors import TrainingError
from specdec.types import PyTree

KEPT = 2  # checkpoints


class Folder:
    """Opens or makes the directory; raises TrainingError if it is another run's."""

    def __init__(self, path: str | os.PathLike, settings: Mapping[str, Any]):
        import orbax.checkpoint as ocp

        self.path = Path(os.path.abspath(Path(path).expanduser()))
        self._claim(json.loads(json.dumps(settings)))
        self._arguments = ocp.args
        self._checkpoints = ocp.CheckpointManager(
            self.path / "checkpoints",
            options=ocp.CheckpointManagerOptions(
                max_to_keep=KEPT, enable_async_checkpointing=False
            ),
        )
        self._log = None

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_) -> None:
        self._checkpoints.close()
        if self._log:
            self._log.close()

    @property
    def step(self) -> int | None:
        """Of the latest checkpoint."""
        return self._checkpoints.latest_step()

    def restore(self, abstract: PyTree) -> PyTree:
        """The latest checkpoint, which must exist."""
        return self._checkpoints.restore(self.step, args=self._arguments.StandardRestore(abstract))

    def save(self, step: int, state: PyTree) -> None:
        """Writes a checkpoint, unless there is one of this step."""
        if step != self.step:
            self._checkpoints.save(step, args=self._arguments.StandardSave(state))

    def export(
        self, step: int, params: PyTree, config: T5Config, vocabulary: checkpoints.Vocabulary | None
    ) -> None:
        """Puts the parameters where `checkpoints.load(path / 'export')` finds them."""
        export = self.path / "export"
        new = export / f"checkpoint_{step}"
        if not new.exists():
            checkpoints.save(new, params, config=config, vocabulary=vocabulary)
        for old in export.glob("checkpoint_*"):
            if old != new:
                shutil.rmtree(old)

    def open_log(self, step: int) -> None:
        """Opens the log for appending, without what it says about the steps after `step`."""
        path = self.path / "log.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = [line for line in lines if _whole(line, lambda record: record["step"] <= step)]
        new = path.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        new.rename(path)
        self._log = path.open("a", encoding="utf-8")

    def log(self, record: Mapping[str, Any]) -> None:
        assert self._log is not None, "open_log comes first"
        print(json.dumps(record), file=self._log, flush=True)

    def _claim(self, settings: dict[str, Any]) -> None:
        file = self.path / "settings.json"
        if file.exists():
            found = json.loads(file.read_text(encoding="utf-8"))
            for name in settings | found:  # in the order of `settings`, the plainest first
                if found.get(name) != settings.get(name):
                    raise TrainingError(
                        f"{self.path} holds a run with {name} {found.get(name)}, and this one has "
                        f"{settings.get(name)}; give another output directory, or the same settings"
                    )
            return
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise TrainingError(
                f"{self.path} exists and is no training run; give a new output directory"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrainingError(f"cannot make {self.path}: {error.strerror}") from error
        new = file.with_suffix(".new")
        new.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        new.rename(file)


def _whole(line: str, wanted: Callable[[dict[str, Any]], bool]) -> bool:
    """False also for a line that a kill cut short."""
    try:
        return wanted(json.loads(line))
    except ValueError:
        return False
