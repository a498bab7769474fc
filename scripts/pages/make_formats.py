"""Makes the tables of docs/reference/formats.md of the schemas in specdec/common/schemas.

python scripts/pages/make_formats.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec.common import schemas

FILE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "formats.md"
START = "\n## `specdec decode --output_file`"  # the text before it is written by hand
TITLES = {
    "decode": "`specdec decode --output_file`, and `predictions.jsonl` of `specdec eval`",
    "beams": "`specdec decode --num_beams`, and `predictions.jsonl` of `specdec eval --num_beams`",
    "bench": "`specdec bench --output_file`",
    "score": "`specdec score --output_file`",
    "acceptance": "`specdec acceptance --output_file`",
    "forecast": "`specdec forecast --output_file`",
}


def page() -> str:
    """Returns the text of docs/reference/formats.md."""
    head = FILE.read_text(encoding="utf-8").partition(START)[0]
    return "\n".join([head, *(line for kind in TITLES for line in section(kind))])


def section(kind: str) -> Iterator[str]:
    """A command's heading and tables, one for each form that a line may have."""
    schema = schemas.schema(kind)
    yield from (
        f"## {TITLES[kind]}",
        "",
        f"Version {schemas.version(kind)}. {schema['description']}",
        "",
    )
    for form in schema.get("$defs", {}).values():
        yield from (f"### {form['title'].capitalize()}", "", form["description"], "", *table(form))
    if "$defs" not in schema:
        yield from table(schema)


def table(schema: dict[str, Any]) -> Iterator[str]:
    """A row for each field; those that may be absent say so in their description."""
    yield from ("| field | type | meaning |", "|---|---|---|")
    for name, field in schema["properties"].items():
        yield f"| `{name}` | {type_of(field)} | {field['description']} |"
    yield ""


def type_of(field: dict[str, Any]) -> str:
    """'array of integer', for example, or the values of an enumeration."""
    if "enum" in field:
        return " or ".join(f'`"{value}"`' for value in field["enum"])
    if "anyOf" in field:
        return " or ".join(map(type_of, field["anyOf"]))
    inner = field.get("items") or field.get("additionalProperties")
    return f"{field['type']} of {type_of(inner)}" if inner else field["type"]


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
