"""Values that users give: each kind at its bounds, and dataclasses that declare them."""

import dataclasses
import importlib
import math
import pickle
from typing import Annotated, Literal

import numpy as np
import pytest

from specdec.common import values
from specdec.common.values import Checked, check

HUGE = 10**400  # more than a float holds
NO_NUMBERS = (True, False, math.nan, math.inf, -math.inf, "1", None, [1], 1j)
NO_INTEGERS = (*NO_NUMBERS, 1.0, 2.5, np.float32(1))

# kind -> values inside and at its bounds, values outside, what an error gives
KINDS = {
    "Text": (("", "a"), (None, 1, b"a", ["a"]), "text"),
    "Word": (("a", " "), ("", None, 1, ["a"]), "a word"),
    "PositiveInt": ((1, 2, HUGE), (0, -1, *NO_INTEGERS), "a positive integer"),
    "NonNegativeInt": ((0, 1, HUGE), (-1, *NO_INTEGERS), "an integer from 0 on"),
    "Number": ((-1, 0.0, np.float32(2), HUGE), NO_NUMBERS, "a number"),
    "PositiveFloat": ((5e-324, 1, np.float64(2)), (0, -0.0, -1, *NO_NUMBERS), "a positive number"),
    "NonNegativeFloat": ((0, -0.0, 0.5), (-5e-324, *NO_NUMBERS), "a number from 0 on"),
    "Probability": (
        (0, 0.5, 1, np.float32(1)),
        (-1e-9, math.nextafter(1, 2), *NO_NUMBERS),
        "a probability, from 0 to 1, as in 0.4",
    ),
    "PositiveShare": (
        (5e-324, 0.5, 1),
        (0, math.nextafter(1, 2), *NO_NUMBERS),
        "a number above 0, up to 1",
    ),
    "InsideUnit": ((5e-324, 0.5), (0, 1, 1.0, -0.5, *NO_NUMBERS), "a number between 0 and 1"),
    "Seed": ((0, 2**32 - 1), (-1, 2**32, *NO_INTEGERS), "an integer from 0 to 4294967295"),
    "TokenIds": (
        ((0,), [5, 5, 3]),
        ((), [], (-1,), (1.0,), (True,), {1}, "1", None, 1),
        "token ids, as in (5, 7)",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_holds_inside_of_its_bounds_and_not_outside(name):
    kind = getattr(values, name)
    right, wrong, remedy = KINDS[name]
    for value in right:
        check("name", value, kind)
    for value in wrong:
        with pytest.raises(ValueError) as error:
            check("name", value, kind)
        assert str(error.value) == f"name is {value!r}; give {remedy}"


def test_a_kind_with_none_holds_of_none_too_and_says_so():
    check("name", None, values.PositiveInt | None)
    with pytest.raises(ValueError, match="^name is 0; give a positive integer, or None$"):
        check("name", 0, values.PositiveInt | None)


def test_an_error_may_be_of_another_kind():
    class Ours(ValueError):
        pass

    with pytest.raises(Ours):
        check("name", 0, values.PositiveInt, Ours)


def test_a_type_without_a_rule_declares_nothing():
    for kind in (int, "int", int | None, Annotated[int, "a note"]):
        check("name", "anything", kind)


def test_words_that_are_known():
    kind = Annotated[str, values.one_of(["a", "b"])]
    check("name", "b", kind)
    for value in ("c", None, ["a"]):
        with pytest.raises(ValueError, match="give one of 'a', 'b'$"):
            check("name", value, kind)
    check("name", 2, Literal[1, 2])
    for value in (0, "1", True, 1.0):
        with pytest.raises(ValueError, match="give one of 1, 2, or None$"):
            check("name", value, Literal[1, 2] | None)


def test_rows_of_integers_that_ascend():
    kind = Annotated[tuple, values.row_of(1, "layers", ascending=True)]
    check("name", (1, 3), kind)
    for value in ((0, 1), (3, 1), (1, 1)):
        with pytest.raises(ValueError, match="give layers$"):
            check("name", value, kind)
    check("name", (), Annotated[tuple, values.row_of(0, "ids", empty=True)])


@dataclasses.dataclass(frozen=True)
class Window(Checked):
    size: values.PositiveInt
    limit: values.PositiveInt | None = None
    ids: values.TokenIds = (1,)
    other: object = None


@dataclasses.dataclass(frozen=True)
class Ajar(Window):
    share: values.Probability = 0.5

    def __post_init__(self):
        super().__post_init__()
        if self.size == 7:
            raise ValueError("Ajar.size is 7; give another")


def test_a_dataclass_checks_what_it_declares():
    assert Window(1, limit=2, other="anything").limit == 2
    with pytest.raises(ValueError, match="^Window.size is True; give a positive integer$"):
        Window(True)
    with pytest.raises(ValueError, match="^Window.limit is 0; give a positive integer, or None$"):
        dataclasses.replace(Window(1), limit=0)


def test_a_subclass_checks_its_own_fields_too_and_is_named():
    assert Ajar(1, share=1.0).share == 1.0
    with pytest.raises(ValueError, match="^Ajar.size is 0; give a positive integer$"):
        Ajar(0)
    with pytest.raises(ValueError, match="^Ajar.share is 2; give a probability"):
        Ajar(1, share=2)
    with pytest.raises(ValueError, match="Ajar.size is 7"):
        Ajar(7)


def test_a_dataclass_may_raise_an_error_of_its_own():
    class Ours(ValueError):
        pass

    class Other(Window):
        error = Ours

    with pytest.raises(Ours, match="^Other.size is 0"):
        Other(0)


def test_lists_become_tuples_so_that_it_is_hashable():
    window = Window(1, ids=[5, 7])
    assert window == Window(1, ids=(5, 7)) and hash(window) == hash(Window(1, ids=(5, 7)))
    assert pickle.loads(pickle.dumps(window)) == window
    assert repr(window) == "Window(size=1, limit=None, ids=(5, 7), other=None)"


def test_annotations_of_all_classes_can_be_read():
    """A name that only type checkers import would fail when the first instance is made."""
    importlib.import_module("specdec.cli")
    classes = list(Checked.__subclasses__())
    for cls in classes:
        classes += cls.__subclasses__()
    ours = [cls for cls in classes if cls.__module__.startswith("specdec.")]
    assert len(ours) > 20
    for cls in ours:
        values._declared(cls)
