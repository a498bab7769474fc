"""The inputs of a distillation, split into training and held-out inputs, and the run over them."""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from specdec import checkpoints, tasks
from specdec.checkpoints import TextModel
from specdec.common import hosts, records
from specdec.common.gin_text import FINGERPRINT, settings_in
from specdec.common.values import UsageError
from specdec.predict.search import FEWEST

SHARE = 5  # at most one input in this many is held out
MOST = 200  # held-out inputs, about
EPOCHS, BATCH_SIZE = 40, 32
STEPS = 100, 2000  # the fewest and the most
ROOM = 32  # tokens of an input, at least; powers of two, so that few programs are compiled
TARGETS = 128  # tokens of an output
SETTINGS = "run.gin"
FILES = {"train": "inputs/train.txt", "validation": "inputs/validation.txt"}


class Inputs(NamedTuple):
    """The inputs without repetitions, in the order of the file."""

    train: Sequence[str]
    held_out: Sequence[str]

    @classmethod
    def of(cls, texts: Iterable[str], name: str) -> Inputs:
        """Returns the inputs without empty ones, some of them held out; errors say `name`."""
        texts = [text for text in dict.fromkeys(texts) if text.strip()]
        if broken := next((text for text in texts if "\n" in text or "\r" in text), None):
            raise UsageError(f"{name} has {broken!r}, with a line break; give texts of one line")
        if len(texts) < 2 * FEWEST:
            raise UsageError(
                f"{name} has {len(texts)} different inputs; give at least {2 * FEWEST}, "
                f"of which {FEWEST} are held out for tuning"
            )
        stride = max(2, min(SHARE, len(texts) // FEWEST), len(texts) // MOST)
        held_out = texts[::stride]
        return cls([text for i, text in enumerate(texts) if i % stride], held_out)

    @property
    def all(self) -> list[str]:
        """All inputs, those for training first."""
        return [*self.train, *self.held_out]

    def steps(self) -> int:
        """Returns the number of updates: those of `EPOCHS` epochs, within the bounds `STEPS`."""
        fewest, most = STEPS
        return min(max(fewest, EPOCHS * len(self.train) // BATCH_SIZE), most)

    def described(
        self,
        target: str,
        folder: Path,
        prefix: str | None,
        vocabulary: str | None,
        ask: Callable[[str], str] | None,
    ) -> str:
        """Writes the inputs and a run over them to a folder, and returns the path of `run.gin`."""
        folder = Path(os.path.abspath(folder))
        target = os.path.abspath(target) if os.path.exists(target) else target  # or of the Hub
        text = checkpoints.text_model_from(target)
        definition = _definition(target, text, vocabulary)
        if prefix is None:
            prefix = _recorded_prefix(folder)
        if prefix is None:
            prefix = chosen_prefix(self.all, text.prefixes, ask, target)
        loaded = tasks.for_texts(definition)
        tokens = max(len(tasks.input_ids(loaded, prefix + text)) for text in self.all)
        length = max(ROOM, 1 << (tokens - 1).bit_length())
        self._write(folder, self._settings(folder, target, prefix, vocabulary, length))
        return str(folder / SETTINGS)

    def _settings(
        self, folder: Path, target: str, prefix: str, vocabulary: str | None, length: int
    ) -> str:
        """Returns the run as gin text."""
        vocabulary_lines = ["VOCABULARY = @cli.saved_vocabulary()"]
        vocabulary_lines += ["cli.saved_vocabulary.path = %CHECKPOINT_PATH"]
        if vocabulary == "bytes":
            vocabulary_lines = ["VOCABULARY = @tasks.Bytes()"]
        elif vocabulary is not None:
            kind = type(tasks.vocabulary_file(vocabulary)).__name__
            vocabulary_lines = [f"VOCABULARY = @tasks.{kind}()"]
            vocabulary_lines += [f"tasks.{kind}.path = {os.path.abspath(vocabulary)!r}"]
        digest = hashlib.sha256("\n".join(self.all).encode()).hexdigest()[:16]
        macros = {
            "CHECKPOINT_PATH": target,
            "TASK_NAME": f"inputs_{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}",
            "TASK_FILES": {split: str(folder / file) for split, file in FILES.items()},
            "TASK_COLUMNS": ("inputs",),
            "TASK_PREFIX": prefix,
            "TASK_FEATURE_LENGTHS": {"inputs": length, "targets": TARGETS},
            "SPLIT": "validation",
            "DRAFT_STEPS": self.steps(),
            "DRAFT_BATCH_SIZE": BATCH_SIZE,
        }
        return "\n".join(
            [
                "# The run that `specdec distill` made of a target and a file of inputs.",
                f"{FINGERPRINT}inputs = {digest}",
                "from __gin__ import dynamic_registration",
                "",
                "from specdec import cli",
                "from specdec import tasks",
                "",
                "include 'distill.gin'",
                "include 'tasks/local.gin'",
                "",
                *vocabulary_lines,
                *(f"{name} = {value!r}" for name, value in macros.items()),
                "",
            ]
        )

    def _write(self, folder: Path, settings: str) -> None:
        """Writes the settings and the inputs, unless the folder has results already."""
        folder.mkdir(parents=True, exist_ok=True)
        hosts.from_first(lambda: records.hold(folder / "distill.json", "--output_dir"))
        if (begun := _begun(folder)) is not None:
            records.claim(folder, folder / SETTINGS, settings, begun=begun, instead="--output_dir")
            return
        (folder / "inputs").mkdir(parents=True, exist_ok=True)
        for file, texts in zip(FILES.values(), self, strict=True):
            records.write(folder / file, "".join(f"{text}\n" for text in texts))
        records.write(folder / SETTINGS, settings)


def _definition(target: str, text: TextModel, vocabulary: str | None) -> tasks.VocabularyDefinition:
    if vocabulary == "bytes":
        return tasks.Bytes()
    if vocabulary is not None:
        return tasks.vocabulary_file(os.path.abspath(vocabulary))
    if text.vocabulary is None:
        raise UsageError(
            f"no vocabulary was saved with {target}; name one: --vocabulary=FILE of a "
            "SentencePiece model or of a tokenizer.json, or --vocabulary=bytes"
        )
    return tasks.recorded_vocabulary(*text.vocabulary)


def _recorded_prefix(folder: Path) -> str | None:
    """Returns the prefix of the run that a folder was begun with, None for a new folder."""
    file = folder / SETTINGS
    if _begun(folder) is None or not file.is_file():
        return None
    settings = settings_in(file.read_text(encoding="utf-8"))
    return ast.literal_eval(str(settings["TASK_PREFIX"])) if "TASK_PREFIX" in settings else None


def _begun(folder: Path) -> Path | None:
    """Returns a result that a folder has, None if it has none."""
    return next(iter(folder.glob("texts/*")), None)


def chosen_prefix(
    texts: Sequence[str], known: Mapping[str, str], ask: Callable[[str], str] | None, target: str
) -> str:
    """Returns the prefix of every input: '' if they have one already, else the answer of `ask`."""
    named = tuple(dict.fromkeys(known.values()))
    if named and all(text.startswith(named) for text in texts):
        return ""
    if ask is not None:
        listed = "".join(f"  {i}: {text!r}\n" for i, text in enumerate(named, start=1))
        answer = ask(
            f"Some T5 were trained with a prefix before every input.\n{listed}"
            f"The prefix{', or its number' if named else ''} (Enter for none): "
        )
        numbers = {str(i): text for i, text in enumerate(named, start=1)}
        return numbers.get(answer.strip(), answer)
    if named:
        raise UsageError(
            f"config.json of {target} names prefixes ({', '.join(map(repr, named))}) and the "
            "inputs have none; give --task_prefix='...', or --task_prefix='' for none"
        )
    return ""
