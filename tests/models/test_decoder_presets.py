"""The released sizes of families in gin/models: pytest tests/models/test_decoder_presets.py"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from pathlib import Path

import jax
import pytest
from support import tiny_t5

import gin
from specdec import checkpoints
from specdec.cli.presets import preset as preset_of
from specdec.common.values import UsageError
from specdec.models.families import family_of, model_of, named
from specdec.models.t5 import T5Target
from specdec.models.t5.config import SIZES
from specdec.models.t5.shapes import PRESETS

ROOT = Path(__file__).resolve().parents[2]
# By their papers and model cards; of OPT, LLaMA and Whisper by the sizes of their files.
PUBLISHED = {
    "llama": {
        "llama_7b": "6.74B",
        "llama_13b": "13.0B",
        "llama_30b": "32.5B",
        "llama_65b": "65.3B",
        "llama_2_70b": "69.0B",
        "sheared_llama_370m": "374M",
        "sheared_llama_1_3b": "1345M",
        "sheared_llama_2_7b": "2702M",
        "llama_68m": "68M",
        "llama_160m": "162M",
        "llama_115m": "117M",  # the paper rounds, and has fewer ids
        "llama_wide_1_layer": "464.5M",
        "llama_wide_3_layers": "869.3M",
        "llama_wide_5_layers": "1274M",
    },
    "llava": {
        "llava_1_5_7b": "7.06B",
        "llava_1_5_13b": "13.35B",
    },
    "opt": {
        "opt_125m": "125M",
        "opt_350m": "331M",
        "opt_1_3b": "1.32B",
        "opt_2_7b": "2.65B",
        "opt_6_7b": "6.66B",
        "opt_13b": "12.9B",
        "opt_30b": "30.0B",
        "opt_66b": "65.7B",
    },
    "gpt2": {
        "gpt2_small": "124M",
        "gpt2_medium": "355M",
        "gpt2_large": "774M",
        "gpt2_xl": "1558M",
    },
    "t5gemma": {
        "t5gemma_s_s": "0.3B",
        "t5gemma_b_b": "0.6B",
        "t5gemma_l_l": "1.2B",
        "t5gemma_ml_ml": "2.2B",
        "t5gemma_xl_xl": "3.8B",
        "t5gemma_2b_2b": "5.6B",
        "t5gemma_9b_2b": "12.3B",
        "t5gemma_9b_9b": "20.3B",
    },
    "t5gemma2": {
        "t5gemma2_270m": "0.37B",
        "t5gemma2_1b": "1.7B",
        "t5gemma2_4b": "7B",
    },
    "whisper": {
        "whisper_tiny": "37.76064M",
        "whisper_base": "72.59392M",
        "whisper_small": "241.734912M",
        "whisper_medium": "763.85792M",
        "whisper_large_v2": "1543.30496M",
        "whisper_large_v3": "1543.49056M",
        "whisper_large_v3_turbo": "809M",
        "whisper_distil_large_v2": "756M",
        "whisper_distil_large_v3": "756M",
    },
}


def config_of(family: str, preset: str, *bindings: str):
    gin.clear_config()
    gin.parse_config_file(str(ROOT / "gin" / "models" / f"{family}.gin"))
    gin.parse_config(bindings)
    with gin.config_scope(preset):
        return gin.get_configurable(named(family).config)()


def count(config) -> int:
    """Returns the parameters, from a shallow model: all layers of a stack are equal."""
    names = [name for name in model_of(config).sizes if name.endswith("_layers")]
    shallow = dataclasses.replace(config, **dict.fromkeys(names, 1))
    tree = model_of(shallow).parameter_shapes()
    leaves = checkpoints.tree.flatten(tree)
    found = size_of(leaves.values())
    for name in names:  # num_decoder_layers is about the stack "decoder"
        layer = f"{name.split('_')[1]}/layers_0/"
        more = size_of(leaf for path, leaf in leaves.items() if layer in path)
        found += (getattr(config, name) - 1) * more
    return found


def size_of(leaves) -> int:
    return sum(math.prod(leaf.shape) for leaf in leaves)


MARKS = {"llama": ()} | dict.fromkeys(("opt", "gpt2", "whisper"), pytest.mark.ci)


@pytest.mark.parametrize(
    "family", [pytest.param(one, marks=MARKS.get(one, pytest.mark.slow)) for one in PUBLISHED]
)
def test_counts_are_those_published(family):
    for preset, printed in PUBLISHED[family].items():
        found = count(config_of(family, preset))
        number, scale = printed[:-1], {"M": 1e6, "B": 1e9}[printed[-1]]
        digits = len(number.partition(".")[2])
        assert round(found / scale, digits) == float(number), (preset, found)


@pytest.mark.parametrize("family", PUBLISHED)
def test_no_size_is_left_out_and_the_dtype_is_one_setting(family):
    text = (ROOT / "gin" / "models" / f"{family}.gin").read_text()
    assert set(re.findall(r"^(\w+)/", text, re.MULTILINE)) == PUBLISHED[family].keys()
    config = config_of(family, min(PUBLISHED[family]), "DTYPE = 'bfloat16'")
    assert config.dtype == "bfloat16" and family_of(config).name == family


def test_released_t5s_are_known_by_the_sizes_of_their_scopes():
    for sizes, name in PRESETS.items():
        family = "byt5" if name.startswith("byt5") else "t5"
        text = (ROOT / "gin" / "models" / f"{family}.gin").read_text()
        (scope,) = re.findall(rf"^{name}/t5.T5Config:\n((?:  .*\n)+)", text, re.MULTILINE)
        values = dict(line.split(" = ") for line in scope.replace("  ", "").splitlines())
        assert tuple(int(values[size]) for size in SIZES) == sizes, name


def test_a_preset_is_a_scope_of_the_gin_file():
    base = preset_of("--preset", "t5_1_1_base", T5Target(tiny_t5(30)))
    assert base.sizes == dict(zip(SIZES, (768, 12, 64, 2048, 12, 12), strict=True))
    for name in ("t5_1_1_bas", "google/t5-v1_1-base"):
        said = (
            f"^--preset is '{name}'; give a scope of models/t5.gin: flan_t5_base, .*, t5_1_1_xxl$"
        )
        with pytest.raises(UsageError, match=said):
            preset_of("--preset", name, T5Target(tiny_t5(30)))


# T5's against T5X's own listings.

LADDER = json.loads((ROOT / "tests" / "golden" / "ladder.json").read_text())

# As their papers and model cards print them.
PRINTED = {
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


@pytest.mark.parametrize("family", PRINTED)
def test_counts_of_t5s_are_those_published(family):
    for size, printed in PRINTED[family].items():
        number, scale = printed[:-1], {"M": 1e6, "B": 1e9}[printed[-1]]
        digits = len(number.replace(".", "").rstrip("0"))
        count = LADDER["models"][f"{family}_{size}"]["parameters"] / scale
        assert float(f"{count:.{digits}g}") == float(number), size


@pytest.mark.parametrize("size", PRINTED["t5_1_1"])
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
    flan = {f"flan_t5_{size}" for size in PRINTED["t5_1_1"]}
    assert scopes == flan | set(LADDER["models"])
