"""What recorded texts depend on, by two versions: pytest tests/forecast/test_recorded_texts.py"""

import pytest

from specdec.instrument.acceptance.recorded_texts import difference


@pytest.mark.parametrize("off", [False, None])
def test_a_setting_that_is_off_may_be_missing_in_another_version(off):
    before, now = (
        {"target": "T5Target", "target.config.exit_classifier": off},
        {"target": "T5Target"},
    )
    assert difference(before, now) is None and difference(now, before) is None


@pytest.mark.parametrize("value", [True, 0, "", 8])
def test_any_other_value_is_a_difference(value):
    assert difference({"x": value}, {}) == ("x", repr(value), "not set")
    assert difference({}, {"x": value}) == ("x", "not set", repr(value))
    assert difference({"x": value}, {"x": 9}) == ("x", repr(value), "9")
