"""The process that renders chat templates, and its limits: pytest tests/tasks/test_chat.py"""

from __future__ import annotations

import faulthandler
import io
import json
import re
import resource
import sys
from unittest import mock

import pytest

from specdec.tasks import TaskError, chat, chat_process
from specdec.tasks.chat_process import rendered

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


def test_a_request_is_sent_before_an_answer_is_read_and_a_silent_process_is_killed(monkeypatch):
    process = mock.Mock()
    process.poll.return_value, process.stdout.readline.return_value = None, ""
    monkeypatch.setattr(chat, "_process", lambda: process)
    assert chat._answer(["a"]) == {"error": chat_process.LIMITS}
    sent = mock.call.stdin.write('["a"]\n'), mock.call.stdin.flush(), mock.call.stdout.readline()
    calls = [mock.call.poll(), *sent, mock.call.kill(), mock.call.wait()]
    assert process.method_calls == calls


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


# What a template makes of a message, as in transformers.

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    "source, expected",
    [
        # A line that has a tag alone leaves neither its indent nor its end.
        ("{% if true %}\n  x\n  {% endif %}\ny\n", "  x\ny"),
        ("a\n   {# note #}\nb", "a\nb"),
        ("  {{ 1 }}\n", "  1"),
        ("{{ messages[0].content|tojson }}", '"h\u00e4 <b> \\"c\\""'),
        ("{{ {'b': 1, 'a': 'h\u00e4'}|tojson(indent=1) }}", '{\n "b": 1,\n "a": "h\u00e4"\n}'),
        ("{{ 'h\u00e4'|tojson(ensure_ascii=True) }}", '"h\\u00e4"'),
        ("{{ tools is none }} {{ documents is none }}", "True True"),
        ("{{ add_generation_prompt }} {{ messages|length }}", "True 1"),
        ("{{ bos_token }}{{ messages[0].role }}{{ eos_token }}", "<s>user</s>"),
        ("{% generation %}x{% endgeneration %}y", "xy"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ undefined_name }}|", "|"),
    ],
)
def test_a_template_reads_as_in_transformers(source, expected):
    assert rendered(source, NAMES, 'h\u00e4 <b> "c"') == expected


@pytest.mark.parametrize(
    "source, says",
    [
        ("{{ raise_exception('one\\ntwo') }}", "one"),
        ("{{ messages[1].content }}", "list object has no element 1"),
        ("{% if %}", "Expected an expression, got 'end of statement block'"),
    ],
)
def test_what_a_template_refuses_is_one_line(source, says):
    with pytest.raises(TaskError) as error:
        chat.prompts_of(source, NAMES, "FILE")("a")
    assert str(error.value) == (
        f"the chat template of FILE cannot be used ({says}); correct it, or decode without chat"
    )


# The process by itself.


def own_prompt(template: str, message: str) -> str:
    return chat_process.rendered(template, {}, message)


def test_a_template_may_add_so_many_characters():
    """As many as the limit to a message of any length, in however many parts."""
    limit = chat_process.CHARACTERS
    assert limit == 1_000_000 and chat_process.LIMITS == (
        "it takes more than 10 seconds or 1 GiB, or adds more than 1,000,000 characters"
    )
    half = "{{ 'a' * 500000 }}"
    assert len(own_prompt(f"{half}{{{{ messages[0].content }}}}{half}", "bb")) == limit + 2
    with pytest.raises(MemoryError):
        own_prompt(f"{half}{{{{ messages[0].content }}}}{half}x", "bb")


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
