"""Runs the commands of a study, each in a process of its own, and goes on after an interruption.

A command's memory and its compiled programs end with its process. A process whose parent was killed
ends immediately, and the next one waits until then, so no two write to the same file.
"""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import TypedDict

from specdec.common import child, resources
from specdec.common.records import Lines
from specdec.report.replicate.results import Step

PATIENCE = 5.0  # seconds in which an interrupted command may end by itself


class Ended(TypedDict):
    """A command that has ended."""

    row: str
    step: str
    code: int
    said: str
    seconds: float
    argv: list[str]


class Journal:
    """The JSON lines of a study: one for each command that has ended, written at its end."""

    def __init__(self, lines: Lines[Ended]):
        self.lines = lines
        self.ended: dict[tuple[str, str], Ended] = {
            (line["row"], line["step"]): line for line in lines
        }

    def run(self, step: Step) -> bool:
        """Runs a step, unless it has succeeded before; returns whether it has now."""
        if self.has(step):
            return True
        log = self.lines.path.with_name(f"{step.row or 'shared'}.{_plain(step.name)}.log")
        begun = time.monotonic()
        code = _run(tuple(map(_of_package, step.argv)), log)
        line = Ended(
            row=step.row,
            step=step.name,
            code=code,
            said="" if code == 0 else _last(log),
            seconds=round(time.monotonic() - begun, 1),
            argv=list(step.argv),
        )
        self.lines.append(line)
        self.ended[step[:2]] = line
        return code == 0

    def has(self, step: Step) -> bool:
        """Returns whether a step has succeeded, with the same arguments."""
        ended = self.ended.get(step[:2])
        return ended is not None and ended["code"] == 0 and ended["argv"] == list(step.argv)

    def failure(self, step: Step) -> str:
        """Returns what a step said that has failed; '' if it has not."""
        ended = self.ended.get(step[:2])
        return "" if ended is None else ended["said"]


def _of_package(arg: str) -> str:
    """Returns an argument; a gin file that ships with specdec is not taken from another folder."""
    flag, _, name = arg.partition("=")
    path = resources.gin_file(name) if flag == "--gin_file" else None
    return arg if path is None else f"{flag}={path}"


def _plain(name: str) -> str:
    return name.replace(" ", "_").replace(":", "_")


def _last(log: Path) -> str:
    """Returns the last line of a command's output, without its name."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    line = next((line for line in reversed(lines) if line.strip()), "ended without a word")
    return line.split("\r")[-1].removeprefix("specdec: ").strip()


def _run(argv: tuple[str, ...], log: Path) -> int:
    """Runs `specdec` with these arguments, its output in a file, and returns its exit code."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=child.command, args=(argv, str(log.resolve())))
    process.start()
    try:
        process.join()
    finally:
        if process.is_alive():  # this process was interrupted
            process.terminate()
            process.join(PATIENCE)
            process.kill()  # a compiler hears no signal, and what a command writes is complete
            process.join()
    return 1 if process.exitcode is None else process.exitcode
