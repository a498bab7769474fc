"""The record of a decoded text, and the kinds of its fields: pytest tests/test_decoded.py"""

import msgspec
import pytest

from specdec.common import schemas
from specdec.common.decoded import DecodedText
from specdec.common.terminal import Summary


def test_a_text_is_counted_without_its_prefix():
    text = DecodedText(tokens=[5, 6, 1], drafted=[2, 0], accepted=[1, 0], depths=[3, 4])
    summary = Summary()
    text.count_in(summary)
    text.count_in(summary, prefix=2)
    assert (summary.texts, summary.tokens, summary.broken_drafts) == (2, 3 + 1, 0)
    assert (summary.drafted, summary.accepted) == ([2, 0] * 2, [1, 0] * 2)
    assert summary.layers == [3, 4] * 2


@pytest.mark.parametrize(
    "kind, inside, outside",
    [("Count", 0, -1), ("OneOrMore", 1, 0), ("Amount", 1e9, -0.5), ("Share", 1.0, 1.5)],
)
def test_numbers_have_bounds(kind, inside, outside):
    assert msgspec.convert(inside, getattr(schemas, kind)) == inside
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(outside, getattr(schemas, kind))
