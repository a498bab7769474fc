"""Trimming of decoders: some of the layers and some of the head's ids, as a model of their own."""

from __future__ import annotations

import dataclasses
from typing import Any

from specdec.models.bases.decoder_only import DecoderConfig
from specdec.models.sizes.kept_parts import Trim, check_head, head, of_layers, sizes
from specdec.types import PyTree

has_encoder = False


def trimmed(config: DecoderConfig, trim: Trim) -> DecoderConfig:
    """Returns the config of the kept parts."""
    if trim.shared_encoder or trim.encoder_layers is not None:
        asked = "shared_encoder" if trim.shared_encoder else "encoder_layers"
        raise ValueError(f"Trim.{asked} is about an encoder, and the model has none; leave it out")
    changes: dict[str, Any] = {**sizes(config, trim, ("decoder",))}
    if trim.head_ids is not None:
        check_head(config.head_ids, trim.head_ids)
        changes["head_ids"] = trim.head_ids
    return dataclasses.replace(config, **changes)


def trim(params: PyTree, config: DecoderConfig, trim: Trim) -> PyTree:
    """Returns the parameters of the kept parts; only a head's are copied."""
    trimmed(config, trim)
    found = dict(params)
    if trim.decoder_layers is not None:
        found["decoder"] = of_layers(params["decoder"], trim.decoder_layers)
    if trim.head_ids is not None:
        part = head(params, config.head_is_table, config.head_ids, trim.head_ids)
        found["decoder"] = found["decoder"] | part
    return found
