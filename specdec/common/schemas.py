"""JSON Schemas (draft 2020-12) of the lines that commands write.

A schema is made from the record that a line is written from: its fields' types, and their meanings
in the section `Attributes` of its docstring. The meaning of an optional field has the word absent.

The version of a kind of lines is the last part of the schema's `$id`. A file of lines states its
version in the comment `# format of KIND = VERSION` of FILE.gin or run.gin. A file without the
comment has version 1.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from specdec.common.json_values import JsonObject

Count: TypeAlias = Annotated[int, Meta(ge=0)]
OneOrMore: TypeAlias = Annotated[int, Meta(ge=1)]
Amount: TypeAlias = Annotated[float, Meta(ge=0)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


KINDS = {
    "decode": "decode",
    "beams": "beams",  # what `specdec decode` and `specdec eval` write with --num_beams
    "eval": "decode",  # predictions.jsonl has what `specdec decode` writes
    "bench": "bench",
    "score": "score",
    "acceptance": "acceptance",
    "forecast": "forecast",
}  # command -> kind


class Form(NamedTuple):
    """One form of a line: its record, and the record's list of the fields, '' for all fields."""

    module: str
    record: str
    about: str = ""
    fields: str = ""


# kind of line -> its version, its meaning, and its forms by name
LINES: Mapping[str, JsonObject] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)


def schema(command: str) -> JsonObject:
    """Returns the schema of a command's lines; the command is one of KINDS.

    >>> schema("score")["required"]
    ['index', 'input', 'target', 'log_prob', 'tokens', 'log_probs']
    """
    kind = KINDS[command]
    line = LINES[kind]
    forms = {name: Form(**form) for name, form in line["forms"].items()}
    heading = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:specdec:{kind}:{line['version']}",
        "title": kind,
        "description": line["about"],
    }
    if "" in forms:
        return heading | _object(forms[""])
    named = {
        name: {"title": name, "description": form.about, **_object(form)}
        for name, form in forms.items()
    }
    return heading | {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in named], "$defs": named}


def version(command: str) -> int:
    """Returns the version of the lines that a command writes now.

    >>> version("decode")
    1
    """
    return LINES[KINDS[command]]["version"]


def _object(form: Form) -> dict[str, object]:
    record = getattr(importlib.import_module(form.module), form.record)
    hints = get_type_hints(record, include_extras=True)
    names = getattr(record, form.fields) if form.fields else hints

    def hint(name: str) -> object:
        if name in hints:
            return hints[name]
        return get_type_hints(getattr(record, name).fget, include_extras=True)["return"]

    meanings = _meanings(record)
    properties = {name: _field(hint(name), meanings[name]) for name in names}
    absent = re.compile(r"\babsent|only where")
    required = [x for x, field in properties.items() if not absent.search(field["description"])]
    more = {"required": required, "additionalProperties": False}
    return {"type": "object", "properties": properties, **more}


def _meanings(record: type) -> dict[str, str]:
    """Returns field -> meaning from the sections `Attributes` of a record's docstrings."""
    docs = [inspect.cleandoc(kind.__doc__ or "") for kind in reversed(record.__mro__)]
    sections = (doc.partition("\nAttributes:\n")[2] for doc in docs)
    found = (re.findall(r"^  (\w+): (.*(?:\n    .*)*)", text, re.MULTILINE) for text in sections)
    return {name: " ".join(text.split()) for section in found for name, text in section}


def _field(hint: object, meaning: str) -> JsonObject:
    """Returns the schema of a field, from the type inside `Annotated` if its hint has one."""
    others = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    written = next((x for x in others if not isinstance(x, Meta)), hint)
    schema = msgspec.json.schema(written)
    named = schema.pop("$defs", {})

    def inlined(value: object) -> object:
        if isinstance(value, list):
            return list(map(inlined, value))
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            fields = named[value["$ref"].rpartition("/")[2]] | {"additionalProperties": False}
            value = {k: v for k, v in fields.items() if k not in ("title", "description")}
        return {name: inlined(item) for name, item in value.items()}

    plain = inlined(schema)
    assert isinstance(plain, dict)
    return {"description": meaning, **plain}
