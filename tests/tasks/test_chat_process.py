"""What the process of chat templates makes of a message, word by word: pytest tests/tasks"""

from __future__ import annotations

import pytest

from specdec.tasks import chat_process

jinja2 = pytest.importorskip("jinja2")


def prompt(template: str, message: str | None = "hi", **names: str) -> str:
    return chat_process.rendered(template, names, message)


@pytest.mark.parametrize(
    "template, made",
    [
        (
            "{{ bos }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}",
            "<s><user>hi<assistant>",
        ),
        ("{{ messages | length }} {{ tools is none }} {{ documents is none }}", "1 True True"),
        ("{% if true %}\nx{% endif %}", "x"),
        ("a\n  {% if true %}x{% endif %}", "a\nx"),
        ("{{ {'a': 'ü'} | tojson }}", '{"a": "ü"}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{% for x in 'abc' %}{% if x == 'b' %}{% break %}{% endif %}{{ x }}{% endfor %}", "a"),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        ("{{ strftime_now('%%') }}", "%"),
    ],
)
def test_a_prompt_word_by_word(template, made):
    assert prompt(template, bos="<s>") == made
    assert prompt(template, None, bos="<s>") == ""  # it is only checked


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


def test_a_template_refuses_in_its_own_words():
    with pytest.raises(jinja2.TemplateError, match="^one user only$"):
        prompt("{{ raise_exception('one user only') }}")
    with pytest.raises(jinja2.TemplateSyntaxError):
        prompt("{% if %}", None)
