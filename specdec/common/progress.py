"""Shows the progress of a command on a terminal: a line for each stage, bars for longer work.

Nothing is shown unless a command has switched progress on, because a library does not write to its
user's screen.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm


DELAY = 2.0  # seconds before a bar appears: short work shows none
TICK = 0.5  # seconds between two updates of a bar

OTHER = "other"  # the stage of all other work
CLEAR = "\r\x1b[K"  # clears the line of a terminal

_stream: TextIO | None = None
_account: _Account | None = None


class _Account:
    """Seconds by stage; a stage inside another one is counted separately."""

    def __init__(self, begun: float):
        self.spent: dict[str, float] = {}
        self.label = ""  # shown on the terminal
        self._now, self._since = OTHER, begun

    def turn_to(self, stage: str) -> str:
        """Begins a stage, and returns the name of the stage that ends."""
        now = time.perf_counter()
        self.spent[self._now] = self.spent.get(self._now, 0.0) + now - self._since
        before, self._now, self._since = self._now, stage, now
        return before


@contextlib.contextmanager
def shown_on(stream: TextIO, begun: float | None = None) -> Iterator[None]:
    """Shows progress if `stream` is a terminal with cursor control, and starts to measure time."""
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
    """Adds the time of the work inside to a stage, and shows a label on the terminal."""
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
    """Returns the seconds of a command so far, by stage; empty if no command has begun."""
    if _account is None:
        return {}
    _account.turn_to(_account.turn_to(OTHER))
    return dict(_account.spent)


def _say(account: _Account, label: str) -> None:
    """Replaces the label on the terminal."""
    if _stream is not None and label != account.label:
        _stream.write(f"{CLEAR}specdec: {label} ..." if label else CLEAR)
        _stream.flush()
    account.label = label


def last_line(line: str) -> None:
    """Writes a line on stderr when this process is about to end, from any thread or handler."""
    clear = CLEAR if os.isatty(2) and os.environ.get("TERM") != "dumb" else ""
    os.write(2, f"{clear}specdec: {line}\n".encode())


@contextlib.contextmanager
def bar(label: str, total: float, unit: str) -> Iterator[tqdm]:
    """Shows how much of `total` has been done; yields the bar, to `update` it."""
    with _bar(label, total, unit) as shown, _looking(shown, lambda: None):
        yield shown


@contextlib.contextmanager
def written(label: str, folder: Path, total: int) -> Iterator[None]:
    """Shows how much of `total` bytes has been written to a folder by other code."""
    with _bar(label, total, "B") as shown:
        with _looking(shown, lambda: shown.update(min(_size(folder), total) - shown.n)):
            yield


def _bar(label: str, total: float, unit: str) -> tqdm:
    from tqdm import tqdm

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
def _looking(shown: tqdm, look: Callable[[], object]) -> Iterator[None]:
    """Calls `look` repeatedly, after the delay, and redraws the bar each time."""
    done = threading.Event()

    def loop() -> None:
        wait = DELAY
        while not done.wait(wait):
            wait, shown.delay = TICK, 0  # without a delay tqdm clears its line at the end
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
    """Returns the bytes of the files in and below a folder; files may disappear meanwhile."""
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += file.stat().st_size if file.is_file() else 0
    return size
