"""Trimming of Whisper: some layers, with an encoder or without, as a model of their own.

A distilled Whisper whose encoder is a copy of the target's needs none: without it, the model is a
draft that reads the target's encoder output (Gandhi et al. 2023, 2311.00430, section 5).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from specdec.models.kept_parts import Trim, of_layers, sizes
from specdec.models.whisper.whisper_model import WhisperConfig
from specdec.types import PyTree

has_encoder = True


def trimmed(config: WhisperConfig, trim: Trim) -> WhisperConfig:
    """Returns the config of the kept parts.

    Raises:
      ValueError: there are no such parts.
    """
    if trim.head_ids is not None:
        raise ValueError(
            f"Trim.head_ids has {len(trim.head_ids)} ids, and a Whisper's head has all; leave it "
            "out"
        )
    if config.encoded_dim and (trim.shared_encoder or trim.encoder_layers is not None):
        asked = "shared_encoder" if trim.shared_encoder else "encoder_layers"
        raise ValueError(
            f"Trim.{asked} is about an encoder, and the model reads another one's (encoded_dim); "
            "leave it out"
        )
    changes: dict[str, Any] = {**sizes(config, trim, ("decoder", "encoder"))}
    if trim.shared_encoder:
        changes |= {"num_encoder_layers": 0, "encoded_dim": config.emb_dim}
    return dataclasses.replace(config, **changes)


def trim(params: PyTree, config: WhisperConfig, trim: Trim) -> PyTree:
    """Returns the parameters of the kept parts; no array is copied.

    Raises:
      ValueError: as `trimmed` does.
    """
    trimmed(config, trim)
    found = dict(params)
    if trim.shared_encoder:
        del found["encoder"]
    for stack in ("decoder", "encoder"):
        if (kept := getattr(trim, f"{stack}_layers")) is not None:
            found[stack] = of_layers(params[stack], kept)
    return found
