"""The reader of gin text: pytest tests/test_gin_text.py"""

from specdec.common.gin_text import comment, settings_in, statements, summary

TEXT = """# What it is. And more,
# in two lines.
from __gin__ import dynamic_registration

include 'other.gin'

NAME = 'a = b'  # meaning
LONG = \\
    {'a': 1,  # one
     'b': '# 2'}
scope/part.Class:  # a block
  field = %NAME  # why
  other = 3
part.Class.third = @scope/f()
# fingerprint of target = abc
# recorded = {"a": 1}
"""


def test_statements_have_whole_names_values_and_meanings():
    assert [tuple(one) for one in statements(TEXT)] == [
        ("NAME", "'a = b'", "meaning"),
        ("LONG", "{'a': 1, 'b': '# 2'}", "one"),
        ("scope/part.Class.field", "%NAME", "why"),
        ("scope/part.Class.other", "3", ""),
        ("part.Class.third", "@scope/f()", ""),
    ]
    assert [one.name for one in statements(TEXT) if one.is_macro] == ["NAME", "LONG"]
    assert [one.field for one in statements(TEXT)][2:] == ["field", "other", "third"]


def test_settings_are_statements_and_the_comments_that_count():
    found = settings_in(TEXT)
    assert found["fingerprint of target"] == "abc" and found["scope/part.Class.field"] == "%NAME"
    assert len(found) == 6


def test_comments_are_read():
    assert summary(TEXT) == "What it is"
    assert comment(TEXT, "# recorded = ") == '{"a": 1}' and comment(TEXT, "# none") is None


def test_what_gin_will_complain_of_ends_the_statements():
    assert [one.name for one in statements("A = 1\nB = (\nC = 2\n")] == ["A"]
