"""Makes docs/formats.md of the schemas in specdec/schemas.

python scripts/make_formats.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec import schemas

FILE = Path(__file__).resolve().parents[1] / "docs" / "formats.md"
HEAD = """# What commands write

One JSON object a line, UTF-8. Made by `python scripts/make_formats.py` from the schemas (JSON
Schema, draft 2020-12) that the package has in `specdec/schemas/`:

```python
from specdec import schemas

schemas.schema("decode")["required"]  # the fields that every line has
schemas.version("decode")
```

Beside the lines are the settings, `FILE.gin` (`run.gin` for `specdec eval`), in which the comment
`# format of decode = 1`, for example, says the version; a file without one is of version 1. A
version changes when a field is removed, renamed or gets another meaning or unit; readers should
pass over fields that they do not know. A command goes on with a file of its own version only.
"""
TITLES = {
    "decode": "`specdec decode --output_file`, and `predictions.jsonl` of `specdec eval`",
    "bench": "`specdec bench --output_file`",
    "score": "`specdec score --output_file`",
    "acceptance": "`specdec acceptance --output_file`",
    "forecast": "`specdec forecast --output_file`",
}


def page() -> str:
    """The text of docs/formats.md."""
    return "\n".join([HEAD, *(line for kind in TITLES for line in section(kind))])


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
    inner = field.get("items") or field.get("additionalProperties")
    return f"{field['type']} of {type_of(inner)}" if inner else field["type"]


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
