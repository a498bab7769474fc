"""Recorded texts: texts of the target with drafters' proposals, which `specdec acceptance` writes.

FILE.gin, the settings next to the texts, has a comment with all settings that determine them: `key`
for the target's texts, and `Engine.drafter_keys` for the drafters' proposals. Another run may use
recorded texts only if its comment would be the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from specdec import tasks
from specdec.common import hosts, progress, terminal
from specdec.common.environment import environment
from specdec.common.gin_text import FORMAT, comment, settings_in
from specdec.common.json_values import parsed
from specdec.common.records import Lines, as_json
from specdec.common.values import UsageError, one_line
from specdec.decoding.refilling import Refilled
from specdec.drafters import Drafter
from specdec.measure import opinions, recording
from specdec.measure.alphas import AcceptanceSummary, Accepted
from specdec.measure.recording import Texts
from specdec.models.partitioning import Share
from specdec.texts.measured_run import Run, Variant, described

RECORD = "# recorded = "  # begins the comment, one line of JSON
WHOLE = "drafter"  # the name of the run's drafter in the comment, next to its inner drafters


def key(run: Run) -> dict[str, object]:
    """Returns name -> value of all settings that determine the target's texts."""
    data = run.data
    return {
        "TASK": data.task and tasks.get_task(data.task).name,
        "SPLIT": data.split,
        "the given texts": data.texts and _digest(data.texts),
        "SEED": data.seed,
        "DECODER_PREFIX": data.decoder_prefix,
        "NUM_SAMPLES": data.num_samples,
        "the length of inputs": data.lengths["inputs"],
        **run.engine.key(),
    }


def _digest(texts: Iterable[tuple[str, str | None]]) -> str:
    return hashlib.sha256(as_json([text for text, _ in texts]).encode()).hexdigest()[:12]


def with_record(variant: Variant) -> str:
    """Returns the variant's settings with the comment that determines its recorded texts."""
    return f"{variant.settings}{RECORD}{_record(variant)}\n"


def _record(variant: Variant) -> str:
    drafter = variant.run.plan.drafter
    named = {WHOLE: drafter, **dict(opinions.recorded(drafter))}
    drafters = variant.engine.drafter_keys(named)
    return as_json({"texts": key(variant.run), "drafters": drafters})


def read(path: str) -> list[Accepted]:
    """Returns the recorded texts of a file; raises UsageError if there are none."""
    if not Path(path).is_file() or not Path(f"{path}.gin").is_file():
        if Path(path).exists():  # `specdec acceptance` does not overwrite files
            raise UsageError(
                f"--passes {path} has no {Path(path).name}.gin next to it; make passes with "
                "`specdec acceptance --output_file=FILE`, in another file"
            )
        raise UsageError(
            f"--passes {path} does not exist; make it with `specdec acceptance "
            f"--output_file={path}`"
        )
    texts = list(_texts_of(Lines(Path(path))))
    if not texts:
        raise UsageError(f"--passes {path} has no text; make it with `specdec acceptance`")
    if not all(text.output for text in texts):
        version = settings_in(_settings_of(path)).get(f"{FORMAT[2:]}acceptance", "1")
        raise UsageError(
            f"--passes {path} is of version {version}, without tokens; make it anew with "
            "`specdec acceptance`"
        )
    return texts


def check(path: str, variant: Variant, texts: Sequence[Accepted], drafters: Iterable[str]) -> bool:
    """Returns whether recorded texts have the variant's drafter; UsageError if another target's.

    `drafters` names inner drafters that must also be the same."""
    before, now = _record_in(path), parsed(_record(variant))
    old, new = before["drafters"], now["drafters"]
    pairs = [(before["texts"], now["texts"])]
    # A drafter without a recording is refused elsewhere.
    pairs += [(old[name], new[name]) for name in drafters if name in old]
    for pair in pairs:
        if differs := difference(*pair):
            name, was, now_is = differs
            raise UsageError(
                f"--passes {path} is of {name} = {was}, and the run has {now_is}; make passes of "
                "this run with `specdec acceptance`"
            )
    _refuse_other_inputs(path, variant.run, texts)
    return old.get(WHOLE) == new[WHOLE]


def of_run(path: str, variant: Variant, drafters: Iterable[str]) -> list[Accepted]:
    """Returns the recorded texts of a file; raises UsageError if they are of another run."""
    texts = read(path)
    check(path, variant, texts, drafters)
    return texts


def difference(
    before: Mapping[str, object], now: Mapping[str, object]
) -> tuple[str, str, str] | None:
    """Returns the first name whose values differ, and both values' reprs; None if none differs."""
    both = before, now
    for name in [*now, *before]:
        old, new = (None if x.get(name) is False else x.get(name) for x in both)
        if repr(old) != repr(new):
            was, is_now = (repr(x[name]) if name in x else "not set" for x in both)
            return name, was, is_now
    return None


def refuse_another(name: str, first: Mapping[str, object], key: Mapping[str, object]) -> None:
    """Raises UsageError if the key of the variant `name` differs from the first variant's."""
    if differs := difference(first, key):
        setting, old, new = differs
        raise UsageError(
            f"--variant={name} has {setting} = {new}, and the first variant {old}; only drafters, "
            "draft lengths and verifiers may vary"
        )


def _refuse_other_inputs(path: str, run: Run, texts: Sequence[Accepted]) -> None:
    """Raises UsageError if a recorded text's input differs from the run's input of that index."""
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
        warning = f"specdec: the inputs of --passes cannot be compared with the run's: {error}"
        print(terminal.visible(warning), file=sys.stderr)
        return
    if missing:
        raise UsageError(
            f"--passes {path} has text {min(missing)}, which the run's data does not have; make "
            "passes of this run with `specdec acceptance`"
        )


def _inputs_of(run: Run, count: int) -> Iterator[tuple[int, list[int]]]:
    """Yields (index, input ids without padding) of the first `count` examples of the run's data."""
    data = dataclasses.replace(run.data, limit=count, buckets=())
    for batch in data.source(Share(0, 1), None, run.engine.vocabulary, run.plan.target):
        for row, index in enumerate(batch.index):
            yield int(index), recording.unpadded(batch.inputs, row, batch.pad_id)


class _Recorded(TypedDict):
    texts: dict[str, object]
    drafters: dict[str, dict[str, object]]


def _record_in(path: str) -> _Recorded:
    """Returns the comment next to recorded texts, empty if an earlier version wrote the texts."""
    record = comment(_settings_of(path), RECORD)
    if record is None:
        return {"texts": {}, "drafters": {}}
    try:
        return parsed(record, _Recorded)
    except ValueError as error:
        raise UsageError(
            f"--passes {path}: the comment {RECORD.strip('# =')!r} of {path}.gin {error}; make the "
            "passes anew with `specdec acceptance`"
        ) from error


def _settings_of(path: str) -> str:
    return Path(f"{path}.gin").read_text(encoding="utf-8")


def _texts_of(lines: Lines) -> Iterator[Accepted]:
    """Yields the texts of a file; raises RecordsError for an invalid line or a repeated text."""
    first: dict[int, int] = {}
    for number, text in enumerate(lines.map(Accepted.of, "acceptance"), start=1):
        if (before := first.setdefault(text.index, number)) != number:
            raise lines.damaged(number, f"is of text {text.index}, as line {before} is")
        yield text


def refuse_other_than_plain(run: Run, *, paths: bool = False) -> None:
    """Raises UsageError for runs that cannot be recorded: with paths, prefixes or samples."""
    if (drafted := run.plan.drafter.paths) and not paths:
        raise UsageError(
            f"DRAFTER drafts {drafted} paths, and recorded texts have one; record with "
            "drafters/autoregressive.gin, and compare paths with specdec bench"
        )
    data = run.data
    for name, value, plain in (
        ("decoder_prefix", data.decoder_prefix, ""),
        ("num_samples", data.num_samples, 1),
    ):
        if value != plain:
            raise UsageError(f"{name} is {value!r}; leave it out, texts have one plain output each")
    refuse_adapting(run.plan.drafter)
    with one_line():
        refilled(run)


def refilled(run: Run) -> Refilled | None:
    """Returns the program that writes the target's texts in refilled rows; None for batches."""
    if not run.data.refill:
        return None
    alone = dataclasses.replace(run.engine, plan=run.plan.alone())
    way = alone.refilled(run.data.widths).way
    assert isinstance(way, Refilled)
    return way


def refuse_adapting(drafter: Drafter) -> None:
    """Raises UsageError for a drafter whose proposals depend on which drafts were accepted."""
    if drafter.adapts:
        raise UsageError(
            "DRAFTER adapts to accepted tokens, which recorded texts do not have; leave out "
            "COMMITTEE_DECAY, or measure this drafter with specdec bench"
        )


def batches_of(run: Run, purpose: str) -> Iterator[tasks.Batch]:
    """Returns batches of all the run's texts on every host; UsageError if there are none."""
    batches = run.batches(everywhere=True)
    if (first := next(batches, None)) is None:
        raise UsageError(f"split {run.data.split!r} has no examples; nothing to {purpose}")
    return itertools.chain([first], batches)


def record(
    variant: Variant,
    batches: Iterable[tasks.Batch],
    tokens: int,
    lines: Lines | None,
    tables: bool = False,
) -> Iterator[Accepted]:
    """Yields recorded texts of `tokens` tokens in all: those in `lines`, then new ones.

    New texts are appended to `lines`; `tables` adds unigram and bigram drafters."""
    earlier = hosts.from_first(lambda: _earlier(lines, tokens) if lines and not tables else [])
    lines = lines if hosts.is_first() else None
    if lines:
        lines.replace(map(_line, earlier))
    yield from earlier
    missing = tokens - sum(text.tokens for text in earlier)
    if missing <= 0:
        return
    run, params, mesh = variant.run, variant.engine.read(), variant.run.placement.mesh
    texts = recording.generate(
        run.plan,
        params["target"],
        ((batch.index, batch.inputs) for batch in batches),
        seed=run.data.seed,
        tokens=missing,
        skip=[text.index for text in earlier],
        mesh=mesh,
        refilled=refilled(run),
    )
    shown = _shown(texts, missing)
    for text in recording.measure(run.plan, params, shown, tables=tables, mesh=mesh):
        if lines:
            lines.append(_line(text))
        yield text


def _earlier(lines: Lines, tokens: int) -> list[Accepted]:
    """Returns the texts of an earlier run, up to `tokens` tokens; none if recorded with tables."""
    texts = []
    for text in _texts_of(lines):
        if tokens <= 0 or list(text.accepted) != ["model"]:
            break
        texts.append(text)
        tokens -= text.tokens
    return texts


def _shown(texts: Iterable[Texts], total: int) -> Iterator[Texts]:
    """Yields the batches of texts, with a progress bar of `total` tokens on a terminal."""
    texts = iter(texts)
    with progress.stage("recording", "compiling, and recording the first texts"):
        for batch in itertools.islice(texts, 1):
            total -= int(batch.length.sum())
            yield batch
    with progress.bar("recording texts", max(total, 0), "token") as bar:
        for batch in texts:
            bar.update(int(batch.length.sum()))
            yield batch


def _line(text: Accepted) -> dict[str, object]:
    """Returns the fields of a text's line, without `depths` if it is empty."""
    return {name: value for name, value in text._asdict().items() if name != "depths" or value}


def report(run: Run, summary: AcceptanceSummary, tokens: int) -> dict[str, object]:
    """Returns the JSON report of `specdec acceptance`: environment, settings and figures."""
    about = {
        "drafter": type(run.plan.drafter).__name__,
        "sampling": repr(run.plan.sampling),
        **described(run),
        "tokens": tokens,
    }
    return {"environment": environment(), "run": about, **summary.record()}
