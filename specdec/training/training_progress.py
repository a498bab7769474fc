"""Shows the progress of a run in one line."""

from __future__ import annotations

import sys
import time


class Progress:
    """Prints a line on stderr every `every` steps; on a terminal, each line replaces the one
    before."""

    def __init__(self, start: int, steps: int, every: int):
        self._steps, self._every = steps, every
        self._since = start  # the step of the last line
        self._time = time.perf_counter()
        self._tokens = 0
        self._loss = self._accuracy = 0.0
        self._passing = False  # whether the cursor is still in the last line

    def update(self, step: int, loss: float, accuracy: float, rate: float, tokens: int) -> None:
        """Counts a step.

        Args:
          step: its number.
          loss: in nats per target token.
          accuracy: of the argmax.
          rate: the learning rate.
          tokens: of inputs and targets together, without padding.
        """
        self._loss += loss
        self._accuracy += accuracy
        self._tokens += tokens
        if step % self._every and step != self._steps:
            return
        now, count = time.perf_counter(), step - self._since
        seconds = max(now - self._time, 1e-9)
        left = round((self._steps - step) * seconds / count)
        self.say(
            f"step {step:,} of {self._steps:,}, loss {self._loss / count:.4f}, "
            f"accuracy {self._accuracy / count:.3f}, learning rate {rate:.2e}, "
            f"{self._tokens / seconds:,.0f} tokens/s, {left // 60}m{left % 60:02}s left",
            passing=True,
        )
        self._since, self._time = step, now
        self._tokens, self._loss, self._accuracy = 0, 0.0, 0.0

    def say(self, line: str, passing: bool = False) -> None:
        """Prints a line; on a terminal, the next line overwrites a `passing` one."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="" if passing else "\n", file=sys.stderr, flush=True)
            self._passing = passing
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._passing:
            print(file=sys.stderr)
