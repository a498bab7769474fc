"""The schemas of what commands write: pytest tests/test_schemas.py

That the lines of each command fit theirs is looked at where it runs, with `support.check_lines`.
"""

import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from specdec.common import schemas

ROOT = Path(__file__).resolve().parents[1]


def forms(command: str) -> list[dict]:
    """What a line may be: one object, or one of several."""
    schema = schemas.schema(command)
    return list(schema.get("$defs", {"line": schema}).values())


@pytest.mark.parametrize("command", schemas.KINDS)
def test_a_schema_says_all_of_a_line(command):
    schema = schemas.schema(command)
    Draft202012Validator.check_schema(schema)
    assert re.fullmatch(r"urn:specdec:\w+:\d+", schema["$id"])
    for form in forms(command):
        assert form["additionalProperties"] is False
        assert set(form["required"]) <= set(form["properties"])
        for name, field in form["properties"].items():
            assert field["description"].endswith("."), name
            absent = re.search(r"absent|only where", field["description"])
            assert (name in form["required"]) == (absent is None), name


def test_every_schema_is_of_a_command():
    assert schemas.LINES.keys() == set(schemas.KINDS.values())


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "results").glob("*/*.jsonl"))[::4])
def test_lines_from_before_there_were_schemas_fit_them(file):
    validator = Draft202012Validator(schemas.schema("bench"))
    for line in file.read_text(encoding="utf-8").splitlines()[:60]:
        validator.validate(json.loads(line))


@pytest.mark.parametrize("change", [{"tokens": ["a"]}, {"calls": None}, {"more": 1}, {"mode": "x"}])
def test_a_line_of_another_form_does_not_fit(change):
    line = dict(mode="alone", text=0, repeat=0, seconds=0.1, calls=1, tokens=[1], drafted=[0])
    line["accepted"] = [0]
    validator = Draft202012Validator(schemas.schema("bench"))
    assert validator.is_valid(line) and not validator.is_valid(line | change)


@pytest.mark.parametrize("proposed, fits", [([-1], True), ([-2], False), ([[3, -1]], True)])
def test_a_proposal_is_a_token_or_none(proposed, fits):
    line = {"index": 0, "tokens": 1, "accepted": {"model": [1.0]}, "inputs": [2], "output": [1]}
    line |= {"proposes": 1, "drafts": {"Autoregressive": {"proposed": proposed}}}
    assert Draft202012Validator(schemas.schema("acceptance")).is_valid(line) == fits


def test_the_page_is_made_of_the_schemas(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "pages"))
    import make_formats

    assert make_formats.page() == make_formats.FILE.read_text(encoding="utf-8")
