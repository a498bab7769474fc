"""The released sizes in gin/models against T5X's own listings: pytest tests/models"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import jax
import pytest

import gin
from specdec.models.t5 import T5Target

ROOT = Path(__file__).resolve().parents[2]
LADDER = json.loads((ROOT / "tests" / "golden" / "ladder.json").read_text())

# As their papers and model cards print them.
PUBLISHED = {
    "t5_1_0": {"small": "60.5M", "base": "223M", "large": "738M", "3b": "2.85B", "11b": "11.3B"},
    "t5_1_1": {"small": "77M", "base": "248M", "large": "783M", "xl": "2.85B", "xxl": "11.1B"},
    "mt5": {"small": "300M", "base": "580M", "large": "1.2B", "xl": "3.7B", "xxl": "13B"},
    "byt5": {"small": "300M", "base": "582M", "large": "1.23B", "xl": "3.74B", "xxl": "12.9B"},
}
FILES = {"t5_1_0": "t5", "t5_1_1": "t5", "flan_t5": "t5", "mt5": "mt5", "byt5": "byt5"}


def target(preset: str, *bindings: str) -> T5Target:
    family = preset.rpartition("_")[0]
    gin.clear_config()
    gin.parse_config_file(str(ROOT / "gin" / "models" / f"{FILES[family]}.gin"))
    gin.parse_config(bindings)
    with gin.config_scope(preset):
        return gin.get_configurable(T5Target)()


@pytest.mark.parametrize(
    "preset",
    [
        pytest.param(preset, marks=() if preset.endswith("_small") else pytest.mark.slow)
        for preset in LADDER["models"]
    ],
)
def test_parameters_are_those_of_t5x(preset):
    init = target(preset).parameter_shapes()
    leaves = jax.tree_util.tree_leaves_with_path(init)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    shapes = [list(leaf.shape) for _, leaf in leaves]
    lines = sorted(f"{name} {shape}" for name, shape in zip(names, shapes, strict=True))
    assert lines == LADDER["listings"].get(preset, lines)
    assert sum(map(math.prod, shapes)) == LADDER["models"][preset]["parameters"]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert digest == LADDER["models"][preset]["sha256"]


@pytest.mark.parametrize("family", PUBLISHED)
def test_counts_are_those_published(family):
    for size, printed in PUBLISHED[family].items():
        number, scale = printed[:-1], {"M": 1e6, "B": 1e9}[printed[-1]]
        digits = len(number.replace(".", "").rstrip("0"))
        count = LADDER["models"][f"{family}_{size}"]["parameters"] / scale
        assert float(f"{count:.{digits}g}") == float(number), size


@pytest.mark.parametrize("size", PUBLISHED["t5_1_1"])
def test_flan_has_the_sizes_of_v1_1(size):
    assert target(f"flan_t5_{size}") == target(f"t5_1_1_{size}")


@pytest.mark.parametrize("family", FILES)
def test_the_dtype_is_one_setting(family):
    preset = f"{family}_small"
    assert target(preset).config.dtype == "float32"
    assert target(preset, "DTYPE = 'bfloat16'").config.dtype == "bfloat16"


def test_no_size_is_left_out():
    texts = [file.read_text() for file in (ROOT / "gin" / "models").glob("*t5.gin")]
    scopes = {scope for text in texts for scope in re.findall(r"^(\w+)/t5\.", text, re.M)}
    flan = {f"flan_t5_{size}" for size in PUBLISHED["t5_1_1"]}
    assert scopes == flan | set(LADDER["models"])
