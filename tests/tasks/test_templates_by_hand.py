"""What a chat template makes of a message, as in transformers: pytest tests/tasks"""

from __future__ import annotations

import pytest

from specdec.tasks import TaskError, chat
from specdec.tasks.chat_process import rendered

pytest.importorskip("jinja2")

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
