"""The contents of `commands.toml`: commands, their flags, and the help texts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from specdec.common.json_values import JsonObject

TABLE: Mapping[str, JsonObject] = tomllib.loads(
    Path(__file__).with_name("commands.toml").read_text(encoding="utf-8")
)
