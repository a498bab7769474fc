"""The process that renders chat templates, and its limits: pytest tests/tasks/test_chat.py"""

from __future__ import annotations

import re

import pytest

from specdec.tasks import TaskError, chat, chat_process

pytest.importorskip("jinja2")

ECHO = "{{ bos_token }}{{ messages[0].content }}"
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}BODY{% endfor %}{% endfor %}"
DOUBLED = (
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}"
)


def prompt(source, message="a"):
    return chat.prompts_of(source, {"bos_token": "<s>"}, "FILE")(message)


def refused(source, message="a"):
    said = f"the chat template of FILE cannot be used ({chat_process.LIMITS}); correct it, or"
    with pytest.raises(TaskError, match=f"^{re.escape(said)} decode without chat$"):
        prompt(source, message)


def test_a_message_arrives_unchanged():
    message = "\u00e4 \ud800\r\n\u2028" + chat_process.CHARACTERS * "long"
    assert prompt(ECHO, message) == f"<s>{message}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 3000000000 }}",  # a constant, which is computed before the template runs
        "{{ messages[0].content * 3000000000 }}",
        "{{ (messages * 3000000000)|length }}",
        "{{ ('x' * 1500000000)|length }}",
        "{{ '%1000000000s' % messages[0].content }}",
        "{{ '{:>1000000000}'.format(messages[0].content) }}",
        "{{ messages[0].content.ljust(1000000000) }}",
        "{{ messages[0].content|center(1000000000) }}",
        "{{ 'x\nx'|indent(1000000000) }}",
        "{% set s = 'x' * 99999 %}{{ (s|list)|join(s) }}",
        LOOP.replace("BODY", "x"),
        DOUBLED,
    ],
)
def test_memory_and_length_are_limited(source):
    refused(source)
    assert prompt(ECHO) == "<s>a"  # by another process


@pytest.mark.ci
def test_time_is_limited_within_a_step():
    number = "{% set n = 99999998 + messages|length %}"  # no constant, which Jinja would compute
    refused(number + "{{ 2 ** n ** n }}")  # without a step of Python's


def test_a_process_that_ends_before_it_has_read_is_one_line(monkeypatch):
    def broken():
        raise BrokenPipeError

    render = chat.prompts_of(ECHO, {}, "FILE")
    with monkeypatch.context() as patched, pytest.raises(TaskError, match="it takes more than 10"):
        patched.setattr(chat._process().stdin, "flush", broken)
        render("first")
    assert render("second") == "second"


def test_a_process_that_was_interrupted_answers_nothing_later(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    render = chat.prompts_of(ECHO, {}, "FILE")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(chat._process().stdout, "readline", interrupted)
        render("first")
    assert render("second") == "second"
