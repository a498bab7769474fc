"""JSON Schemas (draft 2020-12) of the lines that commands write, one file for each kind.

A kind's version is the last part of its `$id`. A file of lines states its version in the comment `#
format of KIND = VERSION` of FILE.gin or run.gin. A file without the comment has version 1.
"""

from __future__ import annotations

import json
from pathlib import Path

from specdec.common.json_values import JsonObject

KINDS = {
    "decode": "decode",
    "beams": "beams",  # what `specdec decode` and `specdec eval` write with --num_beams
    "eval": "decode",  # predictions.jsonl has what `specdec decode` writes
    "bench": "bench",
    "score": "score",
    "acceptance": "acceptance",
    "forecast": "forecast",
}  # command -> kind


def schema(command: str) -> JsonObject:
    """Returns the schema of a command's lines; the command is one of KINDS.

    >>> schema("score")["required"]
    ['index', 'input', 'target', 'log_prob', 'tokens', 'log_probs']
    """
    file = Path(__file__).with_name(f"{KINDS[command]}.schema.json")
    return json.loads(file.read_text(encoding="utf-8"))


def version(command: str) -> int:
    """Returns the version of the lines that a command writes now.

    >>> version("decode")
    1
    """
    return int(schema(command)["$id"].rpartition(":")[2])
