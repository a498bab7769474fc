"""How much of the package has no type: pytest tests/test_types.py"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "specdec"
# `Any` is for settings that are handed on, and for libraries without types. `JsonObject` is for
# objects that were read from a file, whose values are checked where they are used.
MOST = {"Any": 225, "JsonObject": 73}


def counted(word: str, source: str) -> int:
    """Returns how often a source says a word, its imports included."""
    return len(re.findall(rf"\b{word}\b", source))


@pytest.mark.parametrize("word", MOST)
def test_few_values_have_no_type(word):
    files = PACKAGE.rglob("*.py")
    found = {file: counted(word, file.read_text(encoding="utf-8")) for file in files}
    most = sorted(found, key=found.__getitem__, reverse=True)[:5]
    worst = ", ".join(f"{file.relative_to(ROOT)} {found[file]}" for file in most)
    total = sum(found.values())
    assert total <= MOST[word], f"{word} stands in {total} places; give a type, as in {worst}"


def test_a_use_is_counted_and_a_longer_word_is_not():
    assert counted("Any", "from typing import Any\n\ndef f(x: Any) -> dict[str, Any]: ...") == 3
    assert counted("Any", "def f(x: AnyText) -> Many: ...") == 0
