"""What `specdec acceptance` has written, for `specdec forecast`: of which run it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specdec.acceptance import Accepted
from specdec.cli.settings import UsageError
from specdec.plan import Plan
from specdec.records import FORMAT, Lines, settings_in
from specdec.roles import owned_by

# The settings by which the texts are what they are.
OF_TEXTS = re.compile(
    r"fingerprint of (target|vocabulary)|SPLIT|TASK\w*|TASK/.*|SEED|SAMPLING"
    r"|TEMPERATURE|TOP_[KP]|[A-Z]+_PENALTY|NO_REPEAT_NGRAM_SIZE|BAD_WORDS_IDS|MIN_LENGTH"
    r"|FORCED_\w+|(BEGIN_)?SUPPRESS_TOKENS|PROCESSORS|cli\.Data\.(task|split|seed|lengths)"
    r"|EXITS|EXIT_(THRESHOLD|CONFIDENCE|DECAY\w*)|(.*/)?t5\.(calm|Calm)\..*"
    r"|((?!.*_SAMPLING/).*/)?sampling\..*"
)
# Those by which a drafter is what it is.
OF_DRAFTER = re.compile(
    r"DRAFTER|DRAFT_SAMPLING|(.*/)?drafters\..*|.*_SAMPLING/.*|fingerprint of (?!schedule).*"
)


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
        version = _settings(path).get(f"{FORMAT[2:]}acceptance", "1")
        raise UsageError(
            f"--passes {path} is of version {version}, without tokens; make it anew with "
            "`specdec acceptance`"
        )
    return found


def check(path: str, in_force: str, plan: Plan, recorded: Mapping[str, Any]) -> bool:
    """Whether the passes are of this very drafter, and not only of its texts.

    Args:
      path: of the passes.
      in_force: the run's settings.
      plan: the run's.
      recorded: the drafters that the passes must have recordings of, by name.

    Raises:
      UsageError: they are of another target, vocabulary or split, or lack a drafter.
    """
    before, now = _settings(path), settings_in(in_force)
    roles = [role for drafter in recorded.values() for role in owned_by(drafter)]
    texts = list(_differing(before, now, OF_TEXTS))
    drafters = list(_differing(before, now, OF_DRAFTER))
    counting = {f"fingerprint of {role}" for role in roles} | {"DRAFT_SAMPLING"}
    for name in [*texts, *(counting.intersection(drafters) if recorded else ())]:
        old, new = before.get(name, "not set"), now.get(name, "not set")
        raise UsageError(
            f"--passes {path} is of {name} = {old}, and the run has {new}; make passes of this run "
            "with `specdec acceptance`"
        )
    return not drafters


def _differing(
    before: Mapping[str, str], now: Mapping[str, str], kind: re.Pattern
) -> Iterator[str]:
    for name in sorted({*before, *now}, key=lambda name: (name.isupper(), name)):
        if kind.fullmatch(name) and before.get(name) != now.get(name):
            yield name


def _settings(path: str) -> dict[str, Any]:
    return settings_in(Path(f"{path}.gin").read_text(encoding="utf-8"))


def _text(fields: dict[str, Any]) -> Accepted:
    return Accepted(**fields)
