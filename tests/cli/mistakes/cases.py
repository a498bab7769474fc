"""What a row of the tables is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

RUN = "--gin_file=YARD/run.gin"
SAMPLED = "--gin_file=sampling/temperature.gin"
PAIR = ("--target=YARD/target", "--draft=YARD/draft", "--vocabulary=bytes")


class Case(NamedTuple):
    """A command line with a mistake in it.

    argv: YARD is the folder of `yard.make`, which must stay as it is, and OUT an empty one.
    says: a regular expression that the line on stderr matches: thing, value, remedy.
    stdin: what the command reads there.
    late: whether the mistake can only be seen when the parameters have been read.
    code: the exit code.
    """

    argv: tuple[str, ...]
    says: str
    stdin: bytes = b""
    late: bool = False
    code: int = 2


Cases: TypeAlias = Mapping[str, Case]


def case(*argv: str, says: str, **fields) -> Case:
    """A row with its command line spelled out."""
    return Case(argv, says, **fields)


def settings(*files: str, command: str = "decode", **rows: tuple[str, str]) -> dict[str, Case]:
    """Rows of one gin setting each: NAME=(value, what is said)."""
    return {
        f"{name.rstrip('_')}={value} of {command}": case(
            command, *files, f"--gin.{name.rstrip('_')}={value}", says=says
        )
        for name, (value, says) in rows.items()
    }
