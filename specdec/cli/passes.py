"""Recorded texts, which `specdec acceptance` writes for other commands, and what they depend on.

A comment in the settings next to the texts records everything that decides about them: `key` for
the target's texts, and `_of_drafter` for what a drafter proposed along them. Texts are used by a
run only if it has the same record.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdec import acceptance, tasks
from specdec.acceptance import Accepted
from specdec.cli import run as runs
from specdec.cli.run import DecodeRun
from specdec.cli.settings import UsageError
from specdec.partitioning import Share
from specdec.records import FINGERPRINT, FORMAT, Lines, as_json, settings_in

RECORD = "# recorded = "  # begins the comment, one line of JSON
WHOLE = "drafter"  # the name of the run's own drafter in a record
# Fields of a model that say where its parameters are and how they lie in memory.
PLACEMENT = ("axis_rules", "layout", "orders")


def key(run: DecodeRun, in_force: str) -> dict[str, Any]:
    """Returns everything that the target's texts depend on, as plain values by name.

    Args:
      run: with the stop ids that its texts end with.
      in_force: the run's settings, with the fingerprints of its checkpoints.
    """
    data, vocabulary = run.data, runs.vocabulary_of(run)
    return {
        "TASK": data.task and tasks.get_task(data.task).name,
        "SPLIT": data.split,
        "SEED": data.seed,
        "DECODER_PREFIX": data.decoder_prefix,
        "NUM_SAMPLES": data.num_samples,
        "the length of inputs": data.lengths["inputs"],
        "max_length": run.plan.max_length,
        "stop_ids": list(run.plan.stop_ids),
        "the vocabulary's size": vocabulary.vocab_size,
        **_fingerprints(in_force, "target", "vocabulary"),
        **_flat("sampling", run.plan.sampling),
        **_flat("target", run.plan.target),
    }


def with_record(run: DecodeRun, in_force: str) -> str:
    """Returns the settings with a comment that says what recorded texts of this run depend on."""
    return f"{in_force}{RECORD}{_record(run, in_force)}\n"


def _record(run: DecodeRun, in_force: str) -> str:
    named = {WHOLE: run.plan.drafter, **dict(acceptance.recorded(run.plan.drafter))}
    drafters = {name: _of_drafter(name, one, in_force) for name, one in named.items()}
    return as_json({"texts": key(run, in_force), "drafters": drafters})


def _of_drafter(name: str, drafter: Any, in_force: str) -> dict[str, Any]:
    """Returns everything that a drafter's proposals along a text depend on, as `key` does."""
    return _fingerprints(in_force, *drafter.owned()) | _flat(name, drafter)


def _fingerprints(in_force: str, *of: str) -> dict[str, Any]:
    found = settings_in(in_force)
    names = (f"{FINGERPRINT[2:]}{one}" for one in of)
    return {name: found[name] for name in names if name in found}


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Returns the plain values inside a value, by dotted names; of an object also its class."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [x.name for x in dataclasses.fields(value) if x.name not in PLACEMENT]
        inside = {field: getattr(value, field) for field in fields}
        found = {name: type(value).__name__}
    elif isinstance(value, Mapping):
        inside, found = dict(value), {name: len(value)}
    elif isinstance(value, list | tuple) and any(map(_has_parts, value)):
        inside, found = dict(enumerate(value)), {name: len(value)}
    elif isinstance(value, list | tuple):
        return {name: [_plain(one) for one in value]}
    else:
        return {name: _plain(value)}
    for part, one in inside.items():
        found |= _flat(f"{name}.{part}", one)
    return found


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", repr(value))


def _has_parts(value: Any) -> bool:
    return dataclasses.is_dataclass(value) or isinstance(value, Mapping | list | tuple)


def read(path: str) -> list[Accepted]:
    """The texts of a file.

    Raises:
      UsageError: it is not there, has none, or was made before lines could be replayed.
      RecordsError: a line is damaged.
    """
    if not Path(path).is_file() or not Path(f"{path}.gin").is_file():
        raise UsageError(
            f"--passes {path} does not exist, or has no {Path(path).name}.gin beside it; make it "
            f"with `specdec acceptance --output_file={path}`"
        )
    found = list(Lines(Path(path)).map(_text, "acceptance"))
    if not found:
        raise UsageError(f"--passes {path} has no text; make it with `specdec acceptance`")
    if not all(text.output for text in found):
        version = settings_in(_text_of(path)).get(f"{FORMAT[2:]}acceptance", "1")
        raise UsageError(
            f"--passes {path} is of version {version}, without tokens; make it anew with "
            "`specdec acceptance`"
        )
    return found


def check(
    path: str,
    in_force: str,
    run: DecodeRun,
    texts: Sequence[Accepted],
    drafters: Mapping[str, Any],
) -> bool:
    """Returns whether recorded texts are those of this very drafter, and not only of its target.

    Args:
      path: where the texts are.
      in_force: the run's settings.
      drafters: those of which the texts must have recordings, by name.

    Raises:
      UsageError: they are of another target, vocabulary, sampling or data, or of other drafters.
    """
    before, now = _record_in(path), json.loads(_record(run, in_force))
    ours, theirs = now["drafters"], before["drafters"]
    pairs = [(before["texts"], now["texts"])]
    # What has no recording at all is refused with the texts themselves.
    pairs += [(theirs[name], ours[name]) for name in drafters if name in theirs]
    for old, new in pairs:
        if found := difference(old, new):
            name, was, now_is = found
            raise UsageError(
                f"--passes {path} is of {name} = {was}, and the run has {now_is}; make passes of "
                "this run with `specdec acceptance`"
            )
    _refuse_other_inputs(path, run, texts)
    return theirs.get(WHOLE) == ours[WHOLE]


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Returns the first name whose value is not the same in two records, and both values."""
    for name in [*now, *before]:
        old, new = (repr(one[name]) if name in one else "not set" for one in (before, now))
        if old != new:
            return name, old, new
    return None


def _refuse_other_inputs(path: str, run: DecodeRun, texts: Sequence[Accepted]) -> None:
    """Raises UsageError for texts whose inputs are not the run's. Where the data is not on this
    machine nothing is compared, and a line on stderr says so."""
    missing = {text.index: text for text in texts}
    try:
        for index, ids in _inputs_of(run, max(missing) + 1):
            text = missing.pop(index, None)
            if text is not None and list(text.inputs) != ids:
                raise UsageError(
                    f"--passes {path} has another input for text {index} than the run's data; make "
                    "passes of this run with `specdec acceptance`"
                )
    except tasks.TaskError as error:
        print(f"specdec: the inputs of --passes are not compared: {error}", file=sys.stderr)
        return
    if missing:
        raise UsageError(
            f"--passes {path} has text {min(missing)}, which the run's data does not have; make "
            "passes of this run with `specdec acceptance`"
        )


def _inputs_of(run: DecodeRun, count: int) -> Iterator[tuple[int, list[int]]]:
    """Yields the index and the ids of the first examples of the run's data, without padding."""
    data = dataclasses.replace(run.data, limit=count, buckets=())
    for batch in data.batches(Share(0, 1)):
        for index, row in zip(batch.index, batch.inputs, strict=True):
            given = np.flatnonzero(row != batch.pad_id)
            yield int(index), row[: given[-1] + 1 if len(given) else 0].tolist()


def _record_in(path: str) -> dict[str, dict[str, Any]]:
    """Returns what was recorded of texts; nothing where an earlier version wrote them."""
    lines = (line for line in _text_of(path).splitlines() if line.startswith(RECORD))
    found = next(lines, None)
    if found is None:
        return {"texts": {}, "drafters": {}}
    try:
        return json.loads(found.removeprefix(RECORD))
    except ValueError as error:
        raise UsageError(
            f"--passes {path}: the comment {RECORD.strip('# =')!r} of {path}.gin is damaged; make "
            "the passes anew with `specdec acceptance`"
        ) from error


def _text_of(path: str) -> str:
    return Path(f"{path}.gin").read_text(encoding="utf-8")


def _text(fields: dict[str, Any]) -> Accepted:
    return Accepted(**fields)
