"""A run: an engine, the texts that it decodes, and how; variants of a run for comparison."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax

from specdec import checkpoints, tasks
from specdec.common.records import Lines
from specdec.common.values import UsageError
from specdec.engine import Engine, Placement
from specdec.engine.beam_engine import BeamEngine
from specdec.models.contract.model import Target, Weights
from specdec.models.partitioning import Share
from specdec.plan import Plan
from specdec.texts.beams import Beams
from specdec.texts.sources import Live, RevisedTexts, Sounds, Source
from specdec.texts.texts import Data, Previous, TextStream
from specdec.texts.transcripts import Transcriber, frames_of, has_timestamps


@dataclasses.dataclass(frozen=True)
class Run:
    """An engine and the texts that it decodes."""

    engine: Engine
    data: Data
    compare: bool = False  # whether the target alone decodes the texts as well
    lossy: bool = False  # whether the output may have another distribution than the target's
    beams: Beams = Beams()  # the beam search that replaces decoding, if any
    previous: Previous | None = None  # previous outputs of the texts, for the drafter
    # transcribes sounds of any length in place of the engine; None for other texts
    transcriber: Transcriber | None = None

    @property
    def plan(self) -> Plan:
        """The plan of the engine, also if a beam search replaces decoding."""
        return self.engine.plan

    @property
    def placement(self) -> Placement:
        """The devices of the engine, and how arrays are divided over them."""
        return self.engine.placement

    @functools.cached_property
    def search(self) -> BeamEngine | None:
        """The engine of the beam search that replaces decoding; None if there is none."""
        return self.beams.engine(self.engine) if self.beams else None

    @property
    def decoder(self) -> Engine | BeamEngine | Transcriber:
        """The engine that decodes the texts: of the beam search, the transcriber or `engine`."""
        return self.search or self.transcriber or self.engine

    @property
    def target_alone(self) -> Target:
        """The target in the layout in which it decodes alone."""
        return self.decoder.alone().plan.target

    @property
    def lengths(self) -> dict[str, int]:
        """The maximum lengths of "inputs" and "targets" in tokens; the plan's for "targets"."""
        return {**self.data.lengths, "targets": self.plan.max_length}

    def paths(self) -> dict[str, str]:
        """Returns role, such as "target" or "draft" -> path of its checkpoint or table."""
        return {role: str(path) for role, path in self.engine.weights.items()}

    @property
    def checkpoint_path(self) -> str:
        """The path of the target's checkpoint."""
        return self.paths()["target"]

    def source(self, *, everywhere: bool = False) -> Source:
        """Returns the texts that this host decodes; with `everywhere`, the texts of all hosts."""
        share = Share(0, 1) if everywhere else self.placement.share()
        rows = self.data.batch_size
        if self.placement.mesh is not None:
            rows //= share.count
        if self.transcriber is not None and self.data.texts is not None:
            sizes = {"batch_size": rows, "limit": self.data.limit}
            return Sounds(self.data.texts, self.transcriber.features, **sizes)
        source = self.data.source(share, rows, self.engine.vocabulary, self.plan.target)
        previous, width = self.previous, self.plan.max_length
        if previous is None:
            return source
        if previous.outputs is None:
            return Live(source, width)
        return RevisedTexts(source, previous.ids(self.engine.vocabulary), width, previous.name)

    def transcribing(self, explained: bool = False) -> Run:
        """Returns the run with a transcriber if some sounds may be longer than a window.

        Raises UsageError for settings that do not allow several windows. If sounds come one by one,
        their lengths are unknown; with such settings, long sounds are refused when they come.
        """
        engine, texts = self.engine, self.data.texts
        if texts is None or not tasks.is_sound(engine.vocabulary):
            return self
        frames, listed = frames_of(engine), () if isinstance(texts, TextStream) else texts
        several = has_timestamps(engine) or not all(
            tasks.fits_window(name, frames) for name, _ in listed[: self.data.limit]
        )
        if listed and not several:
            return self
        refused = {
            "--explain": explained,
            "REFILL": self.data.refill,
            "NUM_BEAMS": bool(self.beams),
            "--distributed": jax.process_count() > 1,
            "--live": self.previous is not None and self.previous.outputs is None,
            "--previous": self.previous is not None,
        }
        asked = [name for name, is_asked in refused.items() if is_asked]
        if asked and several:
            raise UsageError(
                f"{asked[0]} is for sounds of one window without timestamps; leave it out, or name "
                "parts with --text, as in talk.wav#0 and talk.wav#30"
            )
        if asked:
            return self
        return dataclasses.replace(self, transcriber=Transcriber(engine, several))

    def batches(self, *, everywhere: bool = False) -> Iterator[tasks.Batch]:
        """Returns an iterator over the batches of `source(everywhere=everywhere)`."""
        return iter(self.source(everywhere=everywhere))


class Variant(NamedTuple):
    """One of several runs that a command compares, or its only run."""

    name: str  # the settings in which this run differs from the others, '' for none
    run: Run
    settings: str  # all settings of the run, as gin text

    @property
    def engine(self) -> Engine:
        """The engine of the run."""
        return self.run.engine

    @property
    def vocabulary(self) -> tasks.LoadedVocabulary:
        """The vocabulary of the run's texts."""
        return self.engine.vocabulary

    def lines(self, path: str | os.PathLike) -> Lines:
        """Opens or makes a file of JSON lines for this run; another run's file raises an error."""
        return Lines.of(Path(path), self.settings)


def described(run: Run) -> dict[str, object]:
    """Returns name -> fact about a run that every report has, such as dtypes and seed."""
    models = run.plan.models()
    return {
        "dtype": {role: model.dtype for role, model in models.items()},
        "parameters": parameter_counts(models),
        "lengths": run.lengths,
        "split": run.data.split,
        "seed": run.data.seed,
        "limit": run.data.limit,
    }


def parameter_counts(models: Mapping[str, Weights]) -> dict[str, int]:
    """Returns role -> the number of parameters in the model's checkpoint."""
    return {role: checkpoints.parameter_count(model) for role, model in models.items()}
