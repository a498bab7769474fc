"""Shows the progress of a command on a terminal: a line for each stage, bars for longer work.

Nothing is shown unless a command has switched progress on, because a library does not write to its
user's screen.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
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
_shown_bar: tqdm | None = None  # the bar on the line of the terminal, None for none


class _Account:
    """Seconds by stage; a stage inside another one is counted separately."""

    def __init__(self, begun: float):
        self.spent: dict[str, float] = {}
        self.label, self.label_since = "", 0.0  # shown on the terminal, and when its stage began
        self.programs: dict[Hashable, int] = {}  # the number of each program that was compiled
        # the number of programs, and whether it is exact or a maximum; None if it is unknown
        self.expected_programs: tuple[int, bool] | None = None
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
        with _clock(None if _stream is before[0] else _stream, _account):
            yield
    finally:
        _stream, _account = before


@contextlib.contextmanager
def _clock(stream: TextIO | None, account: _Account) -> Iterator[None]:
    """Shows, while a stage lasts, how many seconds it has taken."""
    if stream is None:
        yield
        return
    done = threading.Event()

    def loop() -> None:
        before = None
        while not done.wait(TICK):
            label, seconds = account.label, int(time.monotonic() - account.label_since)
            if (
                not label
                or seconds < max(1, DELAY)
                or stream is not _stream
                or _shown_bar is not None
            ):
                before = None
            elif (label, seconds) != before:
                before = label, seconds
                stream.write(f"{CLEAR}specdec: {label} ... {seconds} s")
                stream.flush()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def stage(name: str, label: str = "") -> Iterator[None]:
    """Adds the time of the work inside to a stage, and shows a label on the terminal."""
    account = _account
    if account is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before, outer = account.turn_to(name), (account.label, account.label_since)
    _say(account, *((label, time.monotonic()) if label else outer))
    try:
        yield
    finally:
        account.turn_to(before)
        _say(account, *outer)


def compiling(program: Hashable, name: str) -> contextlib.AbstractContextManager[None]:
    """Accounts for the compilation of a program, and shows its number and its name.

    Args:
      program: what two programs differ in; a program that is traced and later compiled is one.
      name: what it computes, '' if that has no name.
    """
    if (account := _account) is None:
        return stage("compiling")
    number = account.programs.setdefault(program, len(account.programs) + 1)
    count, exactly = account.expected_programs or (0, True)
    total = f" of {'' if exactly else 'at most '}{count}" if number <= count else ""
    return stage("compiling", f"compiling program {number}{total}{name}")


def expect_programs(count: int, *, exactly: bool) -> None:
    """Tells how many programs, or at most how many, the command compiles."""
    if _account is not None:
        _account.expected_programs = count, exactly


def is_shown() -> bool:
    """Returns whether progress is shown on a terminal."""
    return _stream is not None


def spent() -> dict[str, float]:
    """Returns the seconds of a command so far, by stage; empty if no command has begun."""
    if _account is None:
        return {}
    _account.turn_to(_account.turn_to(OTHER))
    return dict(_account.spent)


def _say(account: _Account, label: str, since: float) -> None:
    """Replaces the label on the terminal; next to a bar, if there is one."""
    changed = label != account.label
    account.label, account.label_since = label, since
    if _stream is None or not changed:
        return
    if _shown_bar is not None:
        _shown_bar.set_postfix_str(label, refresh=False)
        return
    _stream.write(f"{CLEAR}specdec: {label} ..." if label else CLEAR)
    _stream.flush()


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
        smoothing=0,  # the mean of the whole bar: the remaining time does not jump
        disable=_stream is None,
    )


@contextlib.contextmanager
def _looking(shown: tqdm, look: Callable[[], object]) -> Iterator[None]:
    """Calls `look` repeatedly, after the delay, and redraws the bar each time."""
    global _shown_bar
    done = threading.Event()

    def loop() -> None:
        global _shown_bar
        wait = DELAY
        while not done.wait(wait):
            if _shown_bar is None:
                _shown_bar = shown
                shown.fp.write(CLEAR)
                shown.set_postfix_str(_account.label if _account else "", refresh=False)
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
        if _shown_bar is shown:
            _shown_bar = None


def _size(folder: Path) -> int:
    """Returns the bytes of the files in and below a folder; files may disappear meanwhile."""
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += file.stat().st_size if file.is_file() else 0
    return size
