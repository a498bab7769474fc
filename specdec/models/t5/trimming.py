"""Trimming: a part of a trained T5 as its own T5, from which a drafter is trained.

Kept parts do not change, and nothing replaces the others: the remaining layers read the stream from
one another. The last layers of a decoder therefore read embeddings that they have never seen. The
first layers leave a stream that the final norm and the head have never seen.

A head may keep only the ids that are likely at all (VocabTrim, Goel et al. 2025, 2506.22694;
FR-Spec, Zhao et al. 2025, 2502.14856). A step then reads D K numbers of it instead of D V. The
drafter gives the other ids probability 0, and only the target can produce them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from specdec.models.kept_parts import Trim, check_head, head, of_layers, sizes
from specdec.models.layouts import logits_from_table
from specdec.models.t5.config import T5Config
from specdec.models.t5.drafting import T5DraftConfig, config_of
from specdec.types import PyTree

has_encoder = True


def trimmed(config: T5Config, trim: Trim) -> T5Config:
    """Returns the config of the kept parts.

    Raises:
      ValueError: there are no such parts.
    """
    changes: dict[str, Any] = {}
    config = T5DraftConfig.of(config)  # in which nothing may be set
    if config.encoded_dim and (trim.shared_encoder or trim.encoder_layers is not None):
        asked = "shared_encoder" if trim.shared_encoder else "encoder_layers"
        raise ValueError(
            f"Trim.{asked} is about an encoder, and the model reads another one's (encoded_dim); "
            "leave it out"
        )
    changes |= sizes(config, trim, ("decoder", "encoder"))
    if trim.shared_encoder:
        changes |= {"num_encoder_layers": 0, "encoded_dim": config.emb_dim}
    if trim.head_ids is not None:
        check_head(config.head_ids, trim.head_ids)
        changes["head_ids"] = trim.head_ids
    return config_of(**dataclasses.asdict(config) | changes)


def trim(params: PyTree, config: T5Config, trim: Trim) -> PyTree:
    """Returns the parameters of the kept parts of T5X's tree; only a head's are copied.

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
    if trim.head_ids is not None:
        tied, known = logits_from_table(config, "checkpoint"), T5DraftConfig.of(config).head_ids
        found["decoder"] = found["decoder"] | head(params, tied, known, trim.head_ids)
    return found
