"""The directory of a training run, from which the run resumes after a kill at any moment.

Several hosts share it. Each writes its parts of a checkpoint, and the first host everything else.

settings.json          settings that change results; a run with others is rejected
train.gin              the settings in force, if they come from gin files
log.jsonl              one object per step, and one per evaluation
checkpoints/<step>/    parameters and optimizer, of the last two saves (Orbax), with checksums
export/checkpoint_<step>/   the latest parameters, or the best, for `checkpoints.load`;
                       of a model of parts, export/<part>/checkpoint_<step>/ of each
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
from flax import serialization

from specdec import checkpoints
from specdec.checkpoints import checksums, tree
from specdec.checkpoints.text_model import Kept
from specdec.common import hosts, records
from specdec.common.records import Lines
from specdec.models.contract.family import Config
from specdec.training.training_error import TrainingError
from specdec.types import PyTree

KEPT = 2  # checkpoints
LOCK = ".lock"
CHECKSUMS = "crc32"  # the key of checksums by name in a checkpoint's metadata


class Folder:
    """Opens or makes the directory of a run, and locks it until the context ends."""

    def __init__(
        self,
        path: str | os.PathLike,
        settings: Mapping[str, object],
        in_force: Callable[[], str] = str,
    ):
        import orbax.checkpoint as ocp

        self.path = Path(os.path.abspath(Path(path).expanduser()))
        self._contexts = contextlib.ExitStack()
        self._in_force = in_force
        self._saving = self.path  # the checkpoint that is being written, if any
        hosts.from_first(lambda: self._begin(settings))
        self._log = Lines(self.path / "log.jsonl", dict[str, float | None])
        self._arguments = ocp.args
        self._checkpoints = ocp.CheckpointManager(
            self.path / "checkpoints", options=ocp.CheckpointManagerOptions(max_to_keep=KEPT)
        )

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        with self._contexts:
            if kind is None:
                self.wait()
                self._checkpoints.close()
                self._keep_settings()
                return
            with contextlib.suppress(OSError):  # the first error is reported
                self._keep_settings()
            if jax.process_count() == 1:  # otherwise a lost host would be waited for
                with contextlib.suppress(Exception):  # the first error is reported
                    self._checkpoints.close()

    def _keep_settings(self) -> None:
        if (text := self._in_force()) and hosts.is_first():
            records.write(self.path / "train.gin", text)

    @property
    def step(self) -> int | None:
        """The step of the latest checkpoint."""
        return self._checkpoints.latest_step()

    def restore(self, abstract: PyTree) -> PyTree:
        """Returns the state of the latest checkpoint, with the shapes and shardings of `abstract`.

        Other hosts may have saved it, and over another mesh.
        """
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        placed = jax.tree.map(lambda leaf: leaf.update(sharding=leaf.sharding or here), abstract)
        step, arguments = self.step, self._arguments.StandardRestore(placed)
        where = self.path / "checkpoints" / str(step)
        remedy = "delete that folder, and the run resumes from the checkpoint before it"
        try:
            state = self._checkpoints.restore(step, args=arguments)
            recorded = (self._checkpoints.metadata(step).custom_metadata or {}).get(CHECKSUMS, {})
        except Exception as error:  # of any type: Orbax meets what it did not write
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise TrainingError(f"cannot read {where}: {reason}; {remedy}") from error
        arrays = tree.flatten(serialization.to_state_dict(state))
        for name in sorted(recorded.keys() & arrays.keys()):
            if wrong := checksums.damage(name, hosts.whole(arrays[name]), recorded):
                raise TrainingError(f"{where} is damaged: {wrong}; {remedy}")
        return state

    def save(self, step: int, state: PyTree) -> None:
        """Starts to write a checkpoint in the background, unless this step has one; see `wait`."""
        if step == self.step:
            return
        self.wait()
        arrays = tree.flatten(serialization.to_state_dict(state))
        recorded = {name: checksums.checksum(hosts.whole(x)) for name, x in arrays.items()}
        self._saving = self.path / "checkpoints" / str(step)
        arguments = self._arguments.StandardSave(state)
        with records.naming(self._saving):
            self._checkpoints.save(step, args=arguments, custom_metadata={CHECKSUMS: recorded})

    def wait(self) -> None:
        """Waits until the checkpoint is complete; raises OSError if it cannot be written."""
        with records.naming(self._saving):
            self._checkpoints.wait_until_finished()

    def export(self, step: int, params: PyTree, config: Config, text: Kept, part: str = "") -> None:
        """Writes the parameters where `checkpoints.load(path / 'export' / part)` finds them."""
        export = self.path / "export" / part
        new = export / f"checkpoint_{step}"
        if jax.process_count() > 1:  # one array at a time
            params = jax.tree.map(hosts.whole, params)

        def write() -> None:
            if not new.exists():
                checkpoints.save(new, params, config=config, **text)

        def remove_others() -> None:
            unfinished = export.glob(".checkpoint_*")  # of a process that was killed
            for old in (*export.glob("checkpoint_*"), *unfinished):
                if old != new:
                    shutil.rmtree(old)

        hosts.from_first(write)
        self.wait()
        hosts.from_first(remove_others)

    def cut_log(self, step: int) -> None:
        """Removes the records of steps after `step` from the log."""

        def cut() -> None:
            self._log.replace(record for record in self._log if (record.get("step") or 0) <= step)

        hosts.from_first(cut)

    def log(self, record: Mapping[str, object]) -> None:
        """Appends a record to the log."""
        if hosts.is_first():
            self._log.append(record)

    def is_best(self, name: str, value: float) -> bool:
        """Returns whether a value exceeds all values of the figure `name` in the log."""
        return hosts.from_first(
            lambda: all(value > x for record in self._log if (x := record.get(name)) is not None)
        )

    def _begin(self, settings: Mapping[str, object]) -> None:
        """Makes, locks and claims the directory; raises an error if it has anything else."""
        file = self.path / "settings.json"
        if not file.exists():
            self._make()
        lock = records.locked(self.path, self.path / LOCK, "output directory", "*")
        self._contexts.enter_context(lock)
        text = f"{json.dumps(settings, indent=2)}\n"
        records.claim(self.path, file, text, begun=None, instead="output directory")

    def _make(self) -> None:
        if self.path.exists() and not self._is_empty():
            raise TrainingError(
                f"{self.path} exists and is no training run; give a new output directory"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrainingError(f"cannot make {self.path}: {error.strerror}") from error

    def _is_empty(self) -> bool:
        """Returns whether the directory has only the files of a run killed at its start."""
        return self.path.is_dir() and all(
            file.name.endswith((LOCK, ".part")) for file in self.path.iterdir()
        )
