"""How long the prompt of a chat template may be: pytest tests/tasks/test_chat_process.py"""

from __future__ import annotations

import faulthandler
import io
import json
import resource
import sys

import pytest

from specdec.tasks import chat_process

pytest.importorskip("jinja2")


def prompt(template: str, message: str) -> str:
    return chat_process.rendered(template, {}, message)


def test_a_template_may_add_so_many_characters():
    """As many as the limit to a message of any length, in however many parts."""
    limit = chat_process.CHARACTERS
    assert limit == 1_000_000 and chat_process.LIMITS == (
        "it takes more than 10 seconds or 1 GiB, or adds more than 1,000,000 characters"
    )
    half = "{{ 'a' * 500000 }}"
    assert len(prompt(f"{half}{{{{ messages[0].content }}}}{half}", "bb")) == limit + 2
    with pytest.raises(MemoryError):
        prompt(f"{half}{{{{ messages[0].content }}}}{half}x", "bb")


def test_requests_are_answered_until_a_prompt_is_too_long(monkeypatch, capsys):
    """A request takes ten seconds and one GiB at most. An error is cut to 300 characters."""
    requests = [
        ["{{ messages[0].content }}{{ end }}", {"end": "!"}, "hi"],
        ["{{ raise_exception('x' * 301 ~ '\\n y') }}", {}, "hi"],
        ["{{ messages[0].content }}", {}, None],
        ["{{ 'a' * 1000001 }}", {}, ""],
        ["no answer", {}, "hi"],
    ]
    limits, watched = [], []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (7, 8))
    monkeypatch.setattr(resource, "setrlimit", lambda *given: limits.append(given))
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda *a, **named: watched.append((a, named))
    )
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: watched.append(None))
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{json.dumps(x)}\n" for x in requests)))
    chat_process.main()
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert answers == [{"prompt": "hi!"}, {"error": "x" * 300}, {"prompt": ""}]
    assert limits == [(resource.RLIMIT_AS, (2**30, 8))]
    begun = (10,), {"exit": True}
    assert watched == [begun, None] * 3 + [begun]
