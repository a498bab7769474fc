"""How long the prompt of a chat template may be: pytest tests/tasks/test_chat_process.py"""

from __future__ import annotations

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
