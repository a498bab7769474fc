"""Chromium without a window, driven by its DevTools protocol through a pipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # which root cannot have
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
    "about:blank",
)
PROBLEMS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


def path() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One page. `events` has what the browser reported about it."""

    def __init__(self, profile: Path):
        self.events: list[dict[str, Any]] = []
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The browser reads commands from 3 and writes to 4, each message up to a zero byte.
        command = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, path(), f"--user-data-dir={profile}", *FLAGS],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._number, self._session = b"", 0, None
        targets = self.call("Target.getTargets")["targetInfos"]
        (target,) = (one["targetId"] for one in targets if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, url: str) -> None:
        """Loads a page, to the end."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not self.named("Page.loadEventFired"):
            self.events.append(self._read())

    def named(self, *methods: str) -> list[dict[str, Any]]:
        """What events of these names say."""
        return [one["params"] for one in self.events if one.get("method") in methods]

    def value(self, script: str) -> Any:
        """What an expression of JavaScript is worth."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            code = {"Tab": 9, "Home": 36, "End": 35, "ArrowLeft": 37, "ArrowUp": 38}
            code |= {"ArrowRight": 39, "ArrowDown": 40}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code[key])

    def problems(self) -> list[dict[str, Any]]:
        """Exceptions, and whatever was written to the console."""
        return self.named(*PROBLEMS)

    def requests(self) -> list[str]:
        return [one["request"]["url"] for one in self.named("Network.requestWillBeSent")]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._in, 1 << 16)
            assert read, "chromium has gone"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
