"""The table of model families. A new family is a folder and a row here.

A family outside of this package is registered by the module that defines it. If this module is
imported, also from a gin file, checkpoints of the family can be read (examples/rotary.py):

  families.register(Family("rotary", RotaryConfig, Rotary))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from specdec.models.contract.family import Config, Family, HuggingFace, Trimming
from specdec.models.contract.model import Model
from specdec.models.gpt2 import Gpt2, Gpt2Config
from specdec.models.gpt2.gpt2_checkpoints import Gpt2Checkpoints
from specdec.models.heads import Heads, HeadsConfig, HeadsGrowth
from specdec.models.llama import Llama, LlamaConfig
from specdec.models.llama.llama_checkpoints import LlamaCheckpoints
from specdec.models.llava import Llava, LlavaConfig
from specdec.models.llava.llava_checkpoints import LlavaCheckpoints
from specdec.models.opt import Opt, OptConfig
from specdec.models.opt.opt_checkpoints import OptCheckpoints
from specdec.models.sizes.growing import Growth
from specdec.models.sizes.kept_parts import Trim
from specdec.models.sizes.trimming import PartsTrimming
from specdec.models.t5 import (
    T5Config,
    T5Draft,
    T5DraftConfig,
    T5Target,
    shapes,
)
from specdec.models.t5.drafting import config_of, without_additions
from specdec.models.t5.growth import T5Growth
from specdec.models.t5.t5_checkpoints import T5Checkpoints
from specdec.models.t5gemma import T5Gemma, T5GemmaConfig
from specdec.models.t5gemma.t5gemma_checkpoints import T5GemmaCheckpoints
from specdec.models.t5gemma2 import T5Gemma2, T5Gemma2Config
from specdec.models.t5gemma2.t5gemma2_checkpoints import T5Gemma2Checkpoints
from specdec.models.whisper import Whisper, WhisperConfig
from specdec.models.whisper.whisper_checkpoints import WhisperCheckpoints
from specdec.types import Array, PyTree

_T5: Any = {
    "misfit": shapes.misfit,
    "huggingface": T5Checkpoints(),
    "scanned": shapes,
    "growth": T5Growth(),
    "trimming": PartsTrimming("emb_dim", T5DraftConfig.of, without_additions),
}  # of all T5s
_PARTS = PartsTrimming("encoder_emb_dim")  # of T5Gemmas


def _decoder(
    name: str, config: type, model: Callable[..., Model], huggingface: HuggingFace
) -> Family:
    """Returns a family whose models are `prompts.PromptModel`s."""
    return Family(name, config, model, huggingface=huggingface, trimming=PartsTrimming())


FAMILIES: dict[str, Family] = {
    "t5": Family("t5", T5Config, T5Target, from_record=config_of, **_T5),
    "t5_draft": Family("t5_draft", T5DraftConfig, T5Draft, sizes_of="t5", **_T5),
    "t5gemma": Family(
        "t5gemma",
        T5GemmaConfig,
        T5Gemma,
        huggingface=T5GemmaCheckpoints(),
        trimming=_PARTS,
    ),
    "t5gemma2": Family(
        "t5gemma2",
        T5Gemma2Config,
        T5Gemma2,
        huggingface=T5Gemma2Checkpoints(),
        trimming=_PARTS,
    ),
    "whisper": Family(
        "whisper",
        WhisperConfig,
        Whisper,
        huggingface=WhisperCheckpoints(),
        trimming=PartsTrimming("emb_dim"),
    ),
    "llama": _decoder("llama", LlamaConfig, Llama, LlamaCheckpoints()),
    "llava": _decoder("llava", LlavaConfig, Llava, LlavaCheckpoints()),
    "opt": _decoder("opt", OptConfig, Opt, OptCheckpoints()),
    "gpt2": _decoder("gpt2", Gpt2Config, Gpt2, Gpt2Checkpoints()),
    "heads": Family("heads", HeadsConfig, Heads, HeadsGrowth(), sizes_of="t5"),
}
DEFAULT = "t5"  # of configs that name none, such as T5X's


def register(family: Family) -> None:
    """Adds a family to the table; raises ValueError if another one has its name."""
    if FAMILIES.setdefault(family.name, family) != family:
        raise ValueError(f"there is a family {family.name!r} already; register another name")


def named(name: str) -> Family:
    """Returns the family with this name; raises ValueError if there is none."""
    if name not in FAMILIES:
        raise ValueError(
            f"family is {name!r}, and those known are {', '.join(FAMILIES)}; import the module "
            "that registers it"
        )
    return FAMILIES[name]


def family_of(config: Config) -> Family:
    """Returns the family that a config belongs to."""
    for family in FAMILIES.values():
        if type(config) is family.config:
            return family
    known = ", ".join(family.config.__name__ for family in FAMILIES.values())
    raise ValueError(
        f"config is a {type(config).__name__}, and those known are {known}; register its family"
    )


def model_of(config: Config) -> Model:
    """Returns the model of a config, in its checkpoints' layout; raises as `family_of` does."""
    return family_of(config).model(config)


def resized(config: Config, change: Config | Trim) -> Config:
    """Returns a config after trimming, or after growth to the sizes of the config `change`."""
    if isinstance(change, Trim):
        return trimming_of(config).trimmed(config, change)
    growth = growth_of(config)
    to = growth.resized(config, change)
    growth.check_growth(config, to)
    return to


def resize(
    params: PyTree, config: Config, change: Config | Trim, key: Array | None = None
) -> PyTree:
    """Returns the parameters of a trained model at a larger or smaller size; see `resized`."""
    to = resized(config, change)
    if isinstance(change, Trim):
        return trimming_of(config).trim(params, config, change)
    return growth_of(config).grow(params, config, to, jax.random.key(0) if key is None else key)


def growth_of(config: Config) -> Growth:
    """Returns the object that enlarges models of a config's family; ValueError if there is none."""
    return _known(config, "growth", "grow")


def trimming_of(config: Config) -> Trimming:
    """Returns the object that trims models of a config's family; ValueError if there is none."""
    return _known(config, "trimming", "get smaller")


def _known(config: Config, part: str, what: str) -> Any:
    family = family_of(config)
    if (value := getattr(family, part)) is None:
        known = ", ".join(name for name, each in FAMILIES.items() if getattr(each, part))
        raise ValueError(f"models of the family {family.name!r} do not {what}; give one of {known}")
    return value
