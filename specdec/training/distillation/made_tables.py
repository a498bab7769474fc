"""Makes tables from texts, for lookup drafters and for schedules that learn."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

import numpy as np
from msgspec import Meta
from tqdm import tqdm

from specdec.checkpoints import tables
from specdec.common.json_values import JsonObject, check_kind
from specdec.common.records import Lines
from specdec.common.terminal import counted
from specdec.common.values import UsageError
from specdec.drafters import Drafter, Drawing
from specdec.measure import opinions, recorded_texts
from specdec.measure.alphas import Accepted
from specdec.measure.recording import generate
from specdec.predict.schedule_replay import kind_of
from specdec.schedules.stopping import logit
from specdec.tasks import LoadedVocabulary
from specdec.texts.measured_run import Variant
from specdec.training.classifier import Recording

TOKENS = 100_000  # of the texts that a table is made from
HELD_OUT = 5  # one text in five is held out
FEWEST = 2 * HELD_OUT  # texts


def make(
    variant: Variant,
    kind: str,
    folder: Path,
    *,
    tokens: int,
    passes: str,
    seed: int,
    steps: int | None,
    say: Callable[[str], None],
) -> str:
    """Writes a run's table of a `kind` to `folder`, and returns a line that describes the table.

    Tables other than 'classifier' are made from texts of the target, which texts.jsonl keeps.
    """
    if kind == "classifier":
        fitted = {} if steps is None else {"steps": steps}
        return Classifier.of(variant, passes).fit(folder, seed=seed, say=say, **fitted)
    run = variant.run
    folder.mkdir(parents=True, exist_ok=True)
    texts = list(_texts(variant, variant.lines(folder / "texts.jsonl"), tokens))
    if not texts:
        raise UsageError(f"split {run.data.split!r} has no examples; nothing to count")
    vocab_size = run.plan.models()["target"].vocab_size
    arrays = tables.count(texts, vocab_size) if kind == "ngram" else tables.store(texts)
    path = _save(folder, kind, arrays, variant.vocabulary)
    written = sum(len(text) - 1 for text in texts)
    if written < tokens:
        say(
            f"train: the run's texts end after {written} of {tokens} tokens; another SPLIT may "
            "have more"
        )
    size = sum(array.nbytes for array in arrays.values()) / 1e6
    return f"{path}: {written} tokens of {counted(len(texts), 'text')}, {size:.1f} MB"


def _save(
    folder: Path, kind: str, arrays: Mapping[str, np.ndarray], vocabulary: LoadedVocabulary
) -> Path:
    path = folder / "table"
    shutil.rmtree(path, ignore_errors=True)
    tables.save(path, kind, arrays, vocabulary)
    return path


def _texts(variant: Variant, lines: Lines, tokens: int) -> Iterator[list[int]]:
    """Yields texts of the target alone, the start token first: existing ones, then new ones."""
    before: dict[int, list[int]] = dict(lines.map(_line, "train"))
    lines.replace({"index": index, "tokens": text} for index, text in before.items())
    yield from before.values()
    missing = tokens - sum(len(text) - 1 for text in before.values())
    if missing <= 0:
        return
    run, params = variant.run, variant.engine.read()
    batches = ((batch.index, batch.inputs) for batch in run.batches())
    texts = generate(
        run.plan, params["target"], batches, seed=run.data.seed, tokens=missing, skip=list(before)
    )
    with tqdm(total=missing, unit="token", leave=False, disable=not sys.stderr.isatty()) as bar:
        for batch in texts:
            for row in np.flatnonzero(batch.length):
                text = batch.tokens[row, : 1 + batch.length[row]].tolist()
                lines.append({"index": int(batch.index[row]), "tokens": text})
                bar.update(len(text) - 1)
                yield text


def _line(fields: JsonObject) -> tuple[int, list[int]]:
    """Returns the index and the tokens of a line; raises TypeError for a line of something else."""
    if fields.keys() != {"index", "tokens"}:
        raise TypeError(fields)
    check_kind(fields, _TokensLine)
    return fields["index"], fields["tokens"]


class _TokensLine(TypedDict):
    index: int
    tokens: list[Annotated[int, Meta(ge=0, lt=2**31)]]


class Classifier(NamedTuple):
    """A classifier for `schedules.Disco`, ready to be fitted to recorded texts."""

    variant: Variant
    # for each text, a drafter's signals at each token and the probabilities of acceptance
    recordings: list[Recording]

    @classmethod
    def of(cls, variant: Variant, path: str) -> Classifier:
        """Returns a classifier for the recorded texts of a file."""
        name, drafter = _recorded(variant.run.plan.drafter, path)
        texts = recorded_texts.of_run(path, variant, [name])
        if len(texts) < FEWEST:
            raise UsageError(f"--passes {path} has {len(texts)} texts; give {FEWEST} or more")
        return cls(variant, [recording(text, name, kind_of(drafter), path) for text in texts])

    def fit(self, folder: Path, *, seed: int, say: Callable[[str], None], **steps: int) -> str:
        """Writes the table, and the losses to train.log, and returns a line with the result."""
        from specdec.training import classifier  # optax, which nothing else here needs

        longest = self.variant.run.plan.longest_draft
        parts: tuple[list, list] = ([], [])
        for number, recording in enumerate(self.recordings):
            parts[number % HELD_OUT == 0].append(recording)
        training, held_out = (classifier.examples(part, longest) for part in parts)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "train.log", "w", encoding="utf-8") as log:

            def logged(line: str) -> None:
                print(line, file=log, flush=True)
                say(line)

            arrays = classifier.fit(training, held_out, seed=seed, say=logged, **steps)
        path = _save(folder, "classifier", arrays, self.variant.vocabulary)
        fitted = classifier.separation(np.asarray(logit(arrays, held_out.features)), held_out)
        surest = classifier.separation(held_out.features[:, 0], held_out)
        return (
            f"{path}: fitted to {len(self.recordings)} texts, drafts of {longest} tokens. In held-"
            f"out texts, an accepted token gets a higher score than a rejected one in {fitted:.1%} "
            f"of pairs, and a higher confidence of the draft in {surest:.1%}"
        )


def _recorded(drafter: Drafter, path: str) -> tuple[str, Drawing]:
    """Returns the only drafter whose signals recorded texts have, after its name in them."""
    drafters = list(opinions.recorded(drafter))
    if len(drafters) != 1:
        raise UsageError(
            f"{type(drafter).__name__} has {len(drafters)} drafters to be recorded in --passes "
            f"{path}, and a classifier stops one; give a run with that drafter alone"
        )
    [(name, recorded)] = drafters
    if recorded.block is not None:
        raise UsageError(
            f"{name} drafts a block in one call, which a classifier cannot stop; train it "
            "with a drafter that goes token by token"
        )
    return name, recorded


def recording(text: Accepted, name: str, kind: str, path: str) -> Recording:
    """Returns a drafter's signals at each token of a text, and the probabilities of acceptance."""
    signals = text.drafts.get(name, {})
    needed = ("confidence", "entropy", "top", kind)
    if missing := [signal for signal in needed if len(signals.get(signal, ())) != len(text.output)]:
        raise UsageError(
            f"--passes {path}: text {text.index} has no recording {missing[0]!r} of {name}; make "
            "the passes anew with `specdec acceptance`"
        )
    confidence, entropy, top = (signals[signal] for signal in needed[:3])
    accepted = text.kept(name, kind)
    return Recording(confidence=confidence, entropy=entropy, top=top, accepted=accepted)
