"""One name for one quantity in what users read: pytest tests/test_words.py

docs/reference/words.md has the names. Code keeps the fields of files, such as `forecast`
and `tau`.
"""

import json
import re
from pathlib import Path

import pytest
from test_prose import messages, modules

from specdec.common import schemas

ROOT = Path(__file__).resolve().parents[1]
RETIRED = re.compile(
    r"\b(forecasts?|foretold|foretells?|promis(?:es?|ed)|calc|block efficiency|tau)\b", re.I
)
# A command, its flag and its file of texts have the word in their names.
NAMES = re.compile(r"specdec forecast|--forecast_split")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def retired(text: str) -> list[str]:
    """Returns the retired words of a text in their places."""
    text = NAMES.sub("", text)
    return [text[max(0, x.start() - 40) : x.end() + 20] for x in RETIRED.finditer(text)]


def prose(page: str) -> str:
    """Returns a page without code, comments, addresses of links, and the table of the names."""
    page = page.split("\n## Words\n")[0] + page.partition("\n## Words\n")[2].partition("\n## ")[2]
    page = re.sub(r"^```.*?^```|<!--.*?-->", "", page, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_use_one_name(page):
    assert retired(prose(page.read_text(encoding="utf-8"))) == []


def test_help_and_output_use_one_name():
    texts = {file: " ".join(messages(tree)) for file, tree in modules().items()}
    found = {file: words for file, text in texts.items() if (words := retired(text))}
    assert found == {}


def test_descriptions_of_files_use_one_name():
    for command in schemas.KINDS:
        text = json.dumps(schemas.schema(command))
        descriptions = re.findall(r'"description": "((?:[^"\\]|\\.)*)"', text)
        assert descriptions and retired(" ".join(descriptions)) == []


def test_the_names_are_in_the_table():
    page = (ROOT / "docs" / "reference" / "words.md").read_text()
    table = page.partition("\n## Words\n")[2]
    for name in ("tokens per call", "predicted", "block efficiency, tau", "`forecast` in files"):
        assert name in table.partition("\n## ")[0]
