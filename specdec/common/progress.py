"""Progress and time left on a terminal, of what takes longer than a few seconds.

Nothing is shown unless a command has switched it on: a library does not write to its user's screen.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

DELAY = 2.0  # seconds before a bar appears: short work shows none
TICK = 0.5  # seconds between two looks at what cannot report by itself

_stream: TextIO | None = None


@contextlib.contextmanager
def shown_on(stream: TextIO) -> Iterator[None]:
    """Switches progress on, if `stream` is a terminal that can go back in a line."""
    global _stream
    before, live = _stream, stream.isatty() and os.environ.get("TERM") != "dumb"
    _stream = stream if live else None
    try:
        yield
    finally:
        _stream = before


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
