"""The table of commands: their flags, what these stand for, and the words about them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from specdec.common.json_values import JsonObject

TABLE: Mapping[str, JsonObject] = tomllib.loads(
    Path(__file__).with_name("commands.toml").read_text(encoding="utf-8")
)
