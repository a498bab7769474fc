"""Chat templates: Jinja templates in a checkpoint that turn a conversation into a prompt."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

from specdec.tasks import chat_process
from specdec.tasks.task_error import TaskError

_LOCK = threading.Lock()


def prompts_of(source: str, names: Mapping[str, str], file: str) -> Callable[[str], str]:
    """Returns a function that turns a user's message into the prompt for an answer.

    Another process renders the template `source` in a sandbox, within limits, with the special
    tokens `names` and transformers' functions and filters. Errors name `file`.
    """
    if importlib.util.find_spec("jinja2") is None:
        raise TaskError("a chat template needs jinja2; pip install jinja2")

    def prompt(text: str | None) -> str:
        answer = _answer([source, names, text])
        if "error" in answer:
            raise TaskError(
                f"the chat template of {file} cannot be used ({answer['error']}); correct it, or "
                "decode without chat"
            )
        return answer["prompt"]

    prompt(None)  # parses it
    return prompt


def _answer(request: list[object]) -> dict[str, str]:
    """Returns the answer of the rendering process, which is restarted if it has ended."""
    with _LOCK:
        if _process().poll() is not None:
            _process.cache_clear()
        process, line = _process(), ""
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{json.dumps(request)}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:  # it has ended before it read everything
            pass
        finally:
            if not line:  # after Ctrl-C too: the next call would read this call's answer
                process.kill()
                process.wait()
    return json.loads(line) if line else {"error": chat_process.LIMITS}


@functools.cache
def _process() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", chat_process.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
