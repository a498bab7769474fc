"""What a command is doing, on a terminal: a line for each stage, bars for what takes longer.

Nothing is shown unless a command has switched it on: a library does not write to its user's screen.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

DELAY = 2.0  # seconds before a bar appears: short work shows none
TICK = 0.5  # seconds between two looks at what cannot report by itself

OTHER = "other"  # what no stage accounts for
CLEAR = "\r\x1b[K"  # the line of a terminal

_stream: TextIO | None = None
_account: _Account | None = None


class _Account:
    """Seconds by the stage that they went to; a stage inside another one counts for itself."""

    def __init__(self, begun: float):
        self.spent: dict[str, float] = {}
        self.label = ""  # on the terminal
        self._now, self._since = OTHER, begun

    def turn_to(self, stage: str) -> str:
        """Begins a stage, and returns the one that it ends."""
        now = time.perf_counter()
        self.spent[self._now] = self.spent.get(self._now, 0.0) + now - self._since
        before, self._now, self._since = self._now, stage, now
        return before


@contextlib.contextmanager
def shown_on(stream: TextIO, begun: float | None = None) -> Iterator[None]:
    """Switches progress on, if `stream` is a terminal that can go back in a line, and begins to
    account for time, unless that has begun.

    begun: `time.perf_counter()` when the command was given; now, if None.
    """
    global _stream, _account
    before, live = (_stream, _account), stream.isatty() and os.environ.get("TERM") != "dumb"
    _stream = stream if live else None
    _account = _account or _Account(time.perf_counter() if begun is None else begun)
    try:
        yield
    finally:
        _stream, _account = before


@contextlib.contextmanager
def stage(name: str, label: str = "") -> Iterator[None]:
    """Accounts for the time of what is done inside, and says on the terminal what that is.

    Other threads than the main one do not count: it is what a user waits for.

    label: what the terminal says; nothing if it is empty.
    """
    account = _account
    if account is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before, outer = account.turn_to(name), account.label
    _say(account, label or outer)
    try:
        yield
    finally:
        account.turn_to(before)
        _say(account, outer)


def spent() -> dict[str, float]:
    """Returns the seconds of a command so far, by stage; empty where no command has begun."""
    if _account is None:
        return {}
    _account.turn_to(_account.turn_to(OTHER))
    return dict(_account.spent)


def _say(account: _Account, label: str) -> None:
    """Puts a label in place of the one that is there."""
    if _stream is not None and label != account.label:
        _stream.write(f"{CLEAR}specdec: {label} ..." if label else CLEAR)
        _stream.flush()
    account.label = label


@contextlib.contextmanager
def bar(label: str, total: float, unit: str) -> Iterator[tqdm]:
    """Shows how much of `total` has been done; yields the bar, to `update` it.

    Its clock goes on while nothing advances.
    """
    with _bar(label, total, unit) as shown, _looking(shown, lambda: None):
        yield shown


@contextlib.contextmanager
def written(label: str, folder: Path, total: int) -> Iterator[None]:
    """Shows how much of `total` bytes lies in a folder that something else writes to.

    What is compressed ends a little before all of it.
    """
    with _bar(label, total, "B") as shown:
        with _looking(shown, lambda: shown.update(min(_size(folder), total) - shown.n)):
            yield


def _bar(label: str, total: float, unit: str) -> tqdm:
    return tqdm(
        desc=label,
        total=total,
        unit=unit,
        unit_scale=unit == "B",
        delay=DELAY,
        leave=False,
        file=_stream,
        dynamic_ncols=True,
        disable=_stream is None,
    )


@contextlib.contextmanager
def _looking(shown: tqdm, look: Callable[[], Any]) -> Iterator[None]:
    """Looks again and again, after the delay, and shows the bar anew each time."""
    done = threading.Event()

    def loop() -> None:
        wait = DELAY
        while not done.wait(wait):
            wait, shown.delay = TICK, 0  # without a delay it knows that there is a line to clear
            look()
            shown.refresh()

    if shown.disable:
        yield
        return
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _size(folder: Path) -> int:
    """The bytes of the files in and below a folder, of which some may disappear meanwhile."""
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += file.stat().st_size if file.is_file() else 0
    return size
